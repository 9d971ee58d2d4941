# SPDX-License-Identifier: MIT
"""Registered tensors, views of them, and what describes them to the peer."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .. import MR, memory
from . import _cuda
from ._interface import Tensor, strided, uint8

if TYPE_CHECKING:
    from ._transport import CqnotifyTransport

DEVICES = ("cpu", "cuda")
_FORMAT = 1  # of a serialized RemoteBuffer


@dataclass(frozen=True)
class RemoteBuffer:
    """A peer's registered tensor: who has it can read and write it. It can be pickled, too."""

    endpoint: str  # the peer's transport
    descriptor: memory.Descriptor

    def serialize(self) -> bytes:
        """Return it as JSON."""
        fields = {"endpoint": self.endpoint, "descriptor": self.descriptor.to_dict()}
        return json.dumps({"cqnotify": _FORMAT, **fields}).encode()

    @classmethod
    def deserialize(cls, data: bytes) -> RemoteBuffer:
        """Return the RemoteBuffer of what serialize() has returned; ValueError: it is none."""
        try:
            fields = json.loads(bytes(data))
            if fields["cqnotify"] != _FORMAT:
                raise ValueError(f"format {fields['cqnotify']!r}, which this version does not know")
            if not isinstance(endpoint := fields["endpoint"], str):
                raise ValueError("its endpoint is no text")
            return cls(endpoint, memory.Descriptor.from_dict(fields["descriptor"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"this is no RemoteBuffer of cqnotify: {error!r}") from None


class Registration:
    """A tensor that is registered and exposed to peers, as long as it is active.

    Several Memory share it. `pending` counts the transfers that use it, under the transport's lock.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.key: tuple[int, int, str] = key_of(tensor)
        self.length: int = tensor.nbytes
        self.pending = 0
        self.active: bool = True
        # Its bytes: a numpy array, or an MR if the CPU cannot reach them.
        self.whole: Any = bytes_of(tensor) if is_on_cpu(tensor) else register(tensor)
        self.exposure: memory.Exposure = memory.expose(
            self.whole, access=memory.READ | memory.WRITE
        )

    def check(self) -> None:
        """Raise RuntimeError if it was unregistered, or is not the tensor's memory any more."""
        if not self.active:
            raise RuntimeError("this memory was unregistered; register the tensor again")
        if key_of(self.tensor) != self.key:
            raise RuntimeError(
                "the tensor was resized, or its storage replaced, after it was registered"
            )

    def close(self) -> None:
        """Revoke it: the peers' next access fails. The second time nothing happens."""
        self.active = False
        self.exposure.close()
        if isinstance(self.whole, MR):
            self.whole.close()


def check_tensor(tensor: Any) -> None:
    """Raise TypeError or ValueError for what cannot be registered."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"only a torch.Tensor can be registered, not {type(tensor).__name__}")
    if tensor.layout is not strided or not tensor.is_contiguous():
        raise ValueError("only a contiguous tensor can be registered: see Tensor.contiguous()")
    if not tensor.numel():
        raise ValueError("an empty tensor cannot be registered")
    if tensor.device.type not in DEVICES:
        raise ValueError(f"a tensor on {tensor.device} cannot be registered: only on cpu and cuda")


def is_on_cpu(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def bytes_of(tensor: Any) -> Any:
    """A numpy array of the same memory."""
    return tensor.detach().reshape(-1).view(uint8).numpy()


def register(tensor: Any) -> MR:
    """An MR of the memory of a CUDA tensor."""
    return _cuda.register(memory.pd(), tensor.data_ptr(), tensor.nbytes)


def key_of(tensor: Any) -> tuple[int, int, str]:
    """What tells registrations apart."""
    return tensor.data_ptr(), tensor.nbytes, str(tensor.device)


class View:
    """A range of registered memory, in bytes, to write from."""

    def __init__(self, registered: Memory, offset: int, length: int) -> None:
        self._memory = registered
        self._offset = offset
        self._length = length

    @property
    def registration(self) -> Registration:
        """What it is a range of."""
        return self._memory.registration

    @property
    def transport(self) -> CqnotifyTransport:
        """That which has registered the memory."""
        return self._memory.transport

    def part(self) -> Any:
        """Its bytes, as cqnotify.memory takes them."""
        return self.registration.whole[self._offset : self._offset + self._length]

    def size(self) -> int:
        """Return its length in bytes."""
        return self._length


class MutableView(View):
    """A range of registered memory to read into, too."""

    writable: Literal[True] = True


class Memory:
    """A tensor that is registered with a transport."""

    def __init__(self, transport: CqnotifyTransport, registration: Registration) -> None:
        self.transport = transport
        self.registration = registration

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        self.registration.check()
        whole = self.registration.length
        start = 0 if offset is None else operator.index(offset)
        size = whole - start if length is None else operator.index(length)
        if not (0 <= start <= whole and 0 <= size <= whole - start):
            raise ValueError(f"{size} bytes from {start}: the registered memory has {whole} bytes")
        return start, size

    def to_view(self, offset: int | None = None, length: int | None = None) -> View:
        """Return a view to write from: `length` bytes from `offset`, by default all that follow."""
        return View(self, *self._range(offset, length))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> MutableView:
        """Return a view that read() takes, too."""
        return MutableView(self, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> RemoteBuffer:
        """Return what the peer needs to read and write this memory, until it is unregistered."""
        self.registration.check()
        described = memory.Descriptor.from_dict(self.registration.exposure.to_dict())
        return RemoteBuffer(self.transport.endpoint, described)
