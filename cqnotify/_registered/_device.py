# SPDX-License-Identifier: MIT
"""The devices that this process has open: once each, for all threads and event loops."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import ClassVar, Final, NamedTuple

from .. import PD, AccessFlags, Context, VerbsError
from ..context import is_iwarp
from ..enums import DeviceCapFlags
from ._pool import Pool

DEFAULT_CACHE: Final = 64 << 20  # bytes
MAX_REGISTRATIONS: Final = 4096

# Held while a device is opened, and while its users are counted. A finalizer may interrupt the
# thread that holds it, so each step leaves everything consistent.
_lock = threading.RLock()


class Limits(NamedTuple):
    """The bounds of what is kept registered though nothing uses it.

    max_bytes: what they register at most.
    max_registrations: how many there are at most.
    """

    max_bytes: int
    max_registrations: int


_limits = Limits(DEFAULT_CACHE, MAX_REGISTRATIONS)


def limits() -> Limits:
    """Those of each device's default pool."""
    return _limits


def set_limits(*, max_bytes: int | None = None, max_registrations: int | None = None) -> None:
    """Set the limits of each device's default pool; what is beyond them is let go of now."""
    global _limits
    for name, value in (("max_bytes", max_bytes), ("max_registrations", max_registrations)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if not 0 <= value <= 1 << 48:
            raise ValueError(f"{name} is {value}: it must be 0 to {1 << 48}")
    with _lock:
        _limits = Limits(
            _limits.max_bytes if max_bytes is None else max_bytes,
            _limits.max_registrations if max_registrations is None else max_registrations,
        )
        devices = Device.all()
    for device in devices:
        device.default_pool.set_limits(*_limits)


class Device:
    """A device that is open. It is closed when its last user leaves.

    context, pd: its context, and the protection domain of this process.
    max_msg_sz: the largest message, in bytes.
    sink: the access that memory needs into which the device reads. iWARP sees that as writes of the
        peer.
    has_windows: whether it has memory windows of type 2.
    default_pool: of registrations, with the limits of set_limits().
    """

    _known: ClassVar[dict[str, Device]] = {}

    @classmethod
    def of(cls, name: str) -> Device:
        """The device of that name, with one more user. VerbsError if it cannot be opened."""
        with _lock:
            device = cls._known.get(name)
            if device is None or device.context.closed:
                new = cls(name)
                device = cls._known.get(name)  # again: a finalizer may have opened it meanwhile
                if device is None or device.context.closed:
                    device = cls._known[name] = new
                else:
                    new._close()
            device._users += 1
            return device

    @classmethod
    def all(cls) -> list[Device]:
        """Those that are open."""
        with _lock:
            return list(cls._known.values())

    def __init__(self, name: str) -> None:
        self._users = 0
        self.name: str = name
        self.context: Context = Context(name)
        try:
            self.max_msg_sz: int = self.context.query_port().max_msg_sz
            self.pd: PD = PD(self.context)
            flags = self.context.query_device().device_cap_flags
        except BaseException:
            self.context.close()
            raise
        self.is_iwarp: bool = is_iwarp(self.context)
        self.sink: AccessFlags = AccessFlags.LOCAL_WRITE
        if self.is_iwarp:
            self.sink |= AccessFlags.REMOTE_WRITE
        types = DeviceCapFlags.MEM_WINDOW_TYPE_2A | DeviceCapFlags.MEM_WINDOW_TYPE_2B
        self.has_windows: bool = bool(flags & types)
        self.default_pool: Pool = self.new_pool(self.pd, *_limits)
        self._pools: dict[int, Pool] = {DEFAULT_CACHE: self.default_pool}

    def new_pool(self, pd: PD, max_bytes: int, max_registrations: int = MAX_REGISTRATIONS) -> Pool:
        """Registrations in a protection domain of the caller's."""
        return Pool(pd, max_bytes, max_registrations, has_windows=self.has_windows)

    def pool(self, cache: int = DEFAULT_CACHE) -> Pool:
        """The registrations of all that let `cache` bytes stay registered, with one more user,
        until its leave(). With the default it is the default pool."""
        with _lock:
            pool = self._pools.get(cache)
            if pool is None:
                pool = self._pools[cache] = self.new_pool(self.pd, cache)
            pool.join()
            return pool

    def leave(self) -> None:
        """With the last user, close everything."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            if self._known.get(self.name) is self:
                del self._known[self.name]
        self._close()

    def _close(self) -> None:
        for pool in tuple(self._pools.values()):
            pool.close()
        try:
            self.context.close()
        except VerbsError:  # what is still open can be closed by another call
            with contextlib.suppress(VerbsError):
                self.context.close()


def _forget() -> None:
    """In a forked child, for which nothing of it is open."""
    global _lock
    _lock = threading.RLock()
    Device._known.clear()


os.register_at_fork(after_in_child=_forget)
