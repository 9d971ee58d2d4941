# SPDX-License-Identifier: MIT
"""What Ray calls, in the actor that has an array, and in those that get it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import memory
from ._arrays import Numpy, Torch
from ._ray import (
    TRANSPORTS,
    CommunicatorMetadata,
    FetchRequest,
    RayDirectTransportError,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)


@dataclass
class Metadata(TensorTransportMetadata):
    """What Ray hands from the source to those that fetch. An empty array has no memory: None."""

    memory: list[memory.Exposure | memory.Descriptor | None] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)


class Fetch(FetchRequest):
    """Transfers under way. The memory of `tensors` is the device's until they are done."""

    def __init__(self, obj_id: str, tensors: list[Any]) -> None:
        super().__init__(obj_id, tensors)
        self.transfers: list[Future[Any]] = []

    def cancel(self) -> None:
        for transfer in self.transfers:
            transfer.cancel()

    def __del__(self) -> None:
        self.cancel()


class Transport(TensorTransportManager):
    """One of a process, which Ray makes. Its threads call it at once: the actor's own, those of
    Ray's tasks, and the one that frees."""

    arrays: ClassVar[type[Numpy | Torch]]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exposed: dict[str, tuple[Metadata, contextlib.ExitStack]] = {}
        self._transfers: dict[str, set[Future[Any]]] = {}  # under way, by object

    def tensor_transport_backend(self) -> str:
        return self.arrays.name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Return True: whether there is a device shows when the actor exposes something. To ask it
        would make each call of a method wait for the actor."""
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    # ---- the source ----

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Expose the memory of arrays, until `garbage_collect`. A task that Ray runs again has the
        same object, and its first arrays."""
        with self._lock:
            if obj_id in self._exposed:
                return self._exposed[obj_id][0]
            with contextlib.ExitStack() as stack:
                metadata = self._expose(rdt_object, stack)
                self._exposed[obj_id] = metadata, stack.pop_all()
            return metadata

    def _expose(self, arrays: list[Any], stack: contextlib.ExitStack) -> Metadata:
        metadata = Metadata([], "cpu" if arrays else None)
        for shape, dtype, order in map(self.arrays.kind, arrays):
            metadata.tensor_meta.append((shape, dtype))
            metadata.orders.append(order)
        for array in arrays:
            exposure = None
            if array.nbytes:
                exposure = stack.enter_context(memory.expose(self.arrays.buffer(array)))
            metadata.memory.append(exposure)
        return metadata

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError(f"{self.arrays.name} is one-sided: the receiver fetches")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        """Revoke the exposures of an object, to which no ObjectRef leads any more."""
        with self._lock:
            _, stack = self._exposed.pop(obj_id, (None, contextlib.ExitStack()))
        stack.close()

    # ---- the destination ----

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Begin to read arrays into new ones, or into target_buffers."""
        kinds = [
            (*meta, order)
            for meta, order in zip(
                tensor_transport_metadata.tensor_meta, tensor_transport_metadata.orders, strict=True
            )
        ]
        if target_buffers is None:
            target_buffers = [self.arrays.empty(kind) for kind in kinds]
        elif [self.arrays.kind(buffer) for buffer in target_buffers] != kinds:
            raise ValueError(
                "the target buffers must have the shapes, types and order of the object"
            )
        fetch = Fetch(obj_id, target_buffers)
        for source, into in zip(tensor_transport_metadata.memory, target_buffers, strict=True):
            if source is not None:
                fetch.transfers.append(self._begin(obj_id, source, self.arrays.buffer(into)))
        return fetch

    def _begin(self, obj_id: str, source: Any, into: Any) -> Future[Any]:
        transfer = memory.blocking.get_future(source, into)
        with self._lock:
            self._transfers.setdefault(obj_id, set()).add(transfer)
        transfer.add_done_callback(lambda done: self._forget(obj_id, done))
        return transfer

    def _forget(self, obj_id: str, transfer: Future[Any]) -> None:
        with self._lock:
            left = self._transfers[obj_id]
            left.remove(transfer)
            if not left:
                del self._transfers[obj_id]

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[Any]:
        """Return the arrays that a fetch has read.

        timeout: in seconds; negative: as long as it takes.

        Raises TimeoutError, or RayDirectTransportError if a transfer has failed or was aborted.
        """
        wait(fetch_request.transfers, None if timeout < 0 else timeout, FIRST_EXCEPTION)
        done = [transfer for transfer in fetch_request.transfers if transfer.done()]
        why = _why(done)
        if why is not None:
            fetch_request.cancel()
            raise RayDirectTransportError(
                f"object {fetch_request.obj_id} was not fetched over RDMA: "
                f"{why if isinstance(why, Exception) else 'Ray has aborted it'}"
            ) from why
        if len(done) < len(fetch_request.transfers):
            raise TimeoutError(f"object {fetch_request.obj_id} was not fetched within {timeout} s")
        return fetch_request.tensors

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Read arrays; the same as a fetch and its wait."""
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(
                obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
            )
        )

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Cancel the transfers of an object that are under way here: who waits for them gets
        RayDirectTransportError."""
        with self._lock:
            transfers = list(self._transfers.get(obj_id, ()))
        for transfer in transfers:
            transfer.cancel()


def _why(done: Sequence[Future[Any]]) -> BaseException | None:
    """Why a transfer has failed, or None. One that failed by itself has cancelled no other."""
    found = None
    for transfer in done:
        error = transfer.exception()
        if isinstance(error, Exception):
            return error
        found = found or error
    return found


class NumpyTransport(Transport):
    """Of numpy arrays."""

    arrays = Numpy


class TorchTransport(Transport):
    """Of torch's tensors on the CPU."""

    arrays = Torch


def register(transport: type[Transport]) -> None:
    """Register it with Ray, unless it is."""
    arrays = transport.arrays
    if arrays.name not in TRANSPORTS:
        register_tensor_transport(arrays.name, ["cpu"], transport, arrays.data_type())
