# SPDX-License-Identifier: MIT
"""Registered memory: that of the program's buffers, and our own.

A buffer is registered while a message uses it, and kept registered if that is safe: see
cqnotify/_registered. Threads do the calls that take the kernel long, see _pinning.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from .. import MR, PD, AccessFlags, ClosedError, _core, _registered
from .._registered import SLOW, Pool, Registration
from ._pinning import Pinning

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

Wanted = _core.WantedMemory  # a buffer that is to be registered
READABLE = AccessFlags.REMOTE_READ  # by the peer


class MemoryStats(NamedTuple):
    """registered: how often the device was asked to register a buffer for this connection.
    reused: how often that was not necessary.
    kept: how many registrations are kept though nothing uses them, for all connections that share
        them.
    kept_bytes: what they register.
    """

    registered: int
    reused: int
    kept: int
    kept_bytes: int


def bytes_of(buffer: AnyBuffer) -> memoryview:
    """The bytes of a frame."""
    return _registered.bytes_of(buffer, "a frame")


def writable_bytes_of(buffer: AnyBuffer, nbytes: int) -> memoryview:
    """The first bytes of a buffer into which a frame is received."""
    view = bytes_of(buffer)
    if view.readonly:
        raise TypeError(f"cannot receive into a read-only {type(buffer).__name__}")
    if view.nbytes < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit into {view.nbytes} bytes")
    return view[:nbytes]


def own_memory(pd: PD, nbytes: int, access: AccessFlags) -> MR:
    """Pages of our own, which memoryviews keep when they are not registered any more."""
    return _registered.register(pd, nbytes, access)


class Registrations:
    """Those that the messages of one connection use."""

    def __init__(self, pool: Pool) -> None:
        """The caller has joined the pool; close() leaves it."""
        self._pool = pool
        self._used: set[Registration] = set()
        self._registered = self._reused = 0
        self.is_closed: bool = False
        self.pinning: Pinning = Pinning()

    @property
    def stats(self) -> MemoryStats:
        stats = self._pool.stats
        return MemoryStats(self._registered, self._reused, stats.kept, stats.kept_bytes)

    def acquire(self, wanted: Wanted) -> Registration:
        """Have a buffer registered until release(). VerbsError (ENOMEM) names the limit."""
        return self._use(self._pool.acquire_wanted(wanted))

    def is_slow(self, view: memoryview, access: AccessFlags) -> bool:
        """Whether the kernel would take long for it."""
        return view.nbytes >= SLOW and self._pool.is_slow(Wanted(view, access))

    def acquire_in_thread(
        self, view: memoryview, access: AccessFlags
    ) -> asyncio.Future[Registration]:
        """The same as acquire(), in a thread; in one for all that want it."""
        future, done = self.pinning.begin()
        acquired: asyncio.Future[Registration] = asyncio.get_running_loop().create_future()

        def use(future: asyncio.Future[Registration]) -> None:
            error = future.exception()
            if error is None:
                one = self._use(future.result())
                if not self.is_closed:
                    acquired.set_result(one)
                    return
                self.release(one)
                error = ClosedError("this connection was closed")
            acquired.set_exception(error)
            acquired.exception()  # perhaps nobody retrieves it

        future.add_done_callback(use)
        self._pool.start(Wanted(view, access), done)
        return acquired

    def _use(self, one: Registration) -> Registration:
        if one.is_new:
            self._registered += 1
        else:
            self._reused += 1
        self._used.add(one)
        return one

    def release(self, one: Registration) -> None:
        if one in self._used:  # otherwise the connection was closed meanwhile
            self._used.remove(one)
            one.release(self.pinning.close)

    def close(self) -> None:
        """The queue pair is closed: nothing uses any of them."""
        self.is_closed = True
        while self._used:
            self._used.pop().release(self.pinning.close)
        self._pool.leave(self.pinning.close)
