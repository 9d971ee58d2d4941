# SPDX-License-Identifier: MIT
"""The transport: one peer, registered tensors, and transfers that are cqnotify.memory's."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
from typing import Any

from .. import devices, memory
from ._interface import BaseTransport, wait_all
from ._memory import (
    DEVICES,
    Memory,
    MutableView,
    Registration,
    RemoteBuffer,
    View,
    check_tensor,
    key_of,
)
from ._work import Work, refuse_in_a_callback

# After these the peer cannot be reached.
LOST = (memory.ConnectionLostError, memory.RefusedError)


class CqnotifyTransport(BaseTransport):
    """One-sided transfers of tensors by RDMA, over `cqnotify.memory`.

    device: "cpu" or "cuda": tensors of other devices are refused. By default any device is allowed.
    timeout: how many seconds the calls wait if they are given no other timeout.

    All transports of a process share its connections and one thread, which sleeps until a transfer
    has completed.
    """

    def __init__(self, device: Any = None, *, timeout: float = 30.0) -> None:
        super().__init__(device)
        if self.device is not None and self.device.type not in DEVICES:
            raise ValueError(f"device {device}: only tensors on cpu and cuda can be registered")
        self._timeout = timeout
        self.set_timeout(self._seconds(timeout))
        # Peers read it to find out that this transport is there.
        self._presence = memory.expose(bytearray(1), access=memory.READ)
        self.endpoint: str = self._presence.process + secrets.token_hex(8)
        self._peer = ""  # its endpoint
        self._lost = False  # the last transfer lost the connection
        self._closing = False  # from then on nothing new begins
        self._registrations: dict[tuple[int, int, str], Registration] = {}
        self._pending: set[Work] = set()
        self._changed = threading.Condition()  # guards all of these

    @staticmethod
    def supported() -> bool:
        """Return whether there is an RDMA device."""
        try:
            return bool(devices())
        except OSError:  # libibverbs is missing
            return False

    # ---- the peer -------------------------------------------------------------------------------

    def bind(self, *, timeout: float | None = None) -> bytes:
        """Return what the peer's connect() takes."""
        self._check_open()
        presence = {"endpoint": self.endpoint, "presence": self._presence.to_dict()}
        return json.dumps(presence).encode()

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        """Connect to the transport whose bind() has returned `peer_url`; return 0.

        Raises TimeoutError, ConnectionError if the peer cannot be reached or is closed, and
        RuntimeError if this transport has a peer.
        """
        try:
            fields = json.loads(bytes(peer_url))
            endpoint = str(fields["endpoint"])
            presence = memory.Descriptor.from_dict(fields["presence"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"peer_url is not what bind() returned: {error!r}") from None
        refuse_in_a_callback("connect()")
        self._check_open()
        if self._peer:
            raise RuntimeError("this transport is connected; a second peer needs one of its own")
        memory.blocking.get(presence, timeout=self._seconds(timeout))
        with self._changed:
            self._peer = endpoint
        return 0

    def connected(self) -> bool:
        """Return whether the peer can be reached, as far as is known.

        After a transfer that lost the connection it cannot, until another one succeeds.
        """
        return bool(self._peer) and not self._lost and not self._closing

    # ---- memory ---------------------------------------------------------------------------------

    def register_memory(self, tensor: Any, *, timeout: float | None = None) -> Memory:
        """Register a contiguous tensor, until unregister_memory() or close().

        A tensor that is registered gets the same registration again. Raises VerbsError if its
        memory cannot be locked.
        """
        self._check_open()
        check_tensor(tensor)
        self.check_device(tensor.device)
        with self._changed:
            if known := self._registrations.get(key_of(tensor)):
                return Memory(self, known)
        made = Registration(tensor)
        with self._changed:
            kept = self._registrations.setdefault(made.key, made)
        if kept is not made:  # another thread was faster
            made.close()
        return Memory(self, kept)

    def unregister_memory(self, memory: Memory, *, timeout: float | None = None) -> None:
        """Revoke a registration: the peer's next access fails. The second time nothing happens.

        Raises RuntimeError while transfers of this transport use it.
        """
        if not isinstance(memory, Memory) or memory.transport is not self:
            raise TypeError("this memory was not registered with this transport")
        registration = memory.registration
        self._check_open()
        with self._changed:
            if not registration.active:
                return
            used = registration.pending
            used += any(view.registration is registration for view in self.views_in_streams())
            if used:
                raise RuntimeError(f"{used} transfers use this memory: wait for them first")
            registration.active = False
            del self._registrations[registration.key]
        registration.close()

    # ---- transfers ------------------------------------------------------------------------------

    def write(
        self,
        local_buffer: View,
        remote_buffer: RemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Write a view to the beginning of the peer's memory; return 0, or a Work if `async_op`.

        timeout: how long this call, or by default the wait() of the Work, waits. The transfer goes
            on after that.
        Raises TimeoutError, and the errors of `cqnotify.memory.put()`.
        """
        return self._start(local_buffer, remote_buffer, False, async_op, timeout)

    def read(
        self,
        local_buffer: MutableView,
        remote_buffer: RemoteBuffer,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> int | Work:
        """Read the beginning of the peer's memory into a view; otherwise as write()."""
        return self._start(local_buffer, remote_buffer, True, async_op, timeout)

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        needed = MutableView if mutable else View
        if not isinstance(local_buffer, needed) or local_buffer.transport is not self:
            raise TypeError(f"local_buffer must be a {needed.__name__} of this transport's memory")
        if not isinstance(remote_buffer, RemoteBuffer):
            raise TypeError(
                f"remote_buffer must be a RemoteBuffer, not {type(remote_buffer).__name__}"
            )
        if not self._peer:
            raise RuntimeError("this transport is not connected")
        if remote_buffer.endpoint != self._peer:
            raise ValueError("remote_buffer belongs to another transport than the connected peer")
        if local_buffer.size() > remote_buffer.descriptor.length:
            raise ValueError(
                f"the view has {local_buffer.size()} bytes, and the peer's memory "
                f"{remote_buffer.descriptor.length}"
            )
        local_buffer.registration.check()

    def _start(
        self,
        view: View,
        remote: RemoteBuffer,
        reading: bool,
        async_op: bool,
        timeout: float | None,
    ) -> int | Work:
        seconds = self._seconds(timeout)
        if not async_op:
            refuse_in_a_callback("a transfer without async_op")

        def settled(work: Work, error: BaseException | None) -> None:
            with self._changed:
                if error is None or isinstance(error, LOST):
                    self._lost = error is not None
                view.registration.pending -= 1
                self._pending.discard(work)
                self._changed.notify_all()

        work = Work(seconds, settled)
        with self._changed:
            self._check_open()
            self._check_transfer(view, remote, mutable=reading)
            view.registration.pending += 1
            self._pending.add(work)
        described = remote.descriptor
        try:
            if reading:
                transfer = memory.blocking.get_future(described, view.part(), length=view.size())
            else:
                transfer = memory.blocking.put_future(described, view.part())
        except BaseException as error:
            settled(work, error)
            raise
        work.follow(transfer)
        if async_op:
            return work
        work.wait()
        return 0

    # ---- the end --------------------------------------------------------------------------------

    def close(self, *, timeout: float | None = None) -> None:
        """Wait for the transfers under way, revoke all registrations, and free them.

        The errors of the transfers are those of their Works. Raises TimeoutError if transfers are
        still under way then: nothing is freed, nothing new begins, and close() can be called again.
        """
        refuse_in_a_callback("close()")
        seconds = self._begin_close(timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending, seconds):
                raise TimeoutError(self._still())
        self._free()

    async def close_async(self, *, timeout: float | None = None) -> None:
        """As close(), while the tasks of the event loop go on."""
        seconds = self._begin_close(timeout)
        works = list(self._pending)
        try:
            await wait_all(works, timeout=seconds)
        except Exception:
            if not all(work.is_completed() for work in works):
                raise TimeoutError(self._still()) from None
        await asyncio.to_thread(self._free)

    def _begin_close(self, timeout: float | None) -> float:
        seconds = self._seconds(timeout)
        self.close_streams()
        with self._changed:
            self._closing = True
        return seconds

    def _still(self) -> str:
        return f"{len(self._pending)} transfers are still under way, and their memory is kept"

    def _free(self) -> None:
        with self._changed:
            registrations = list(self._registrations.values())
            self._registrations.clear()
        for registration in registrations:
            registration.close()
        self._presence.close()

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("this transport is closed")

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self._timeout
        if not (math.isfinite(timeout) and timeout >= 0):
            raise ValueError(f"timeout {timeout}: it must be finite, and not negative")
        return timeout
