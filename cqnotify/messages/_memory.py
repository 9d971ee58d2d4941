# SPDX-License-Identifier: MIT
"""Registered memory: that of the program's buffers, and our own.

A buffer is registered while a message uses it, once for all messages that do, of all connections
that share a protection domain: see _pool.py. Afterwards the registration is kept if the buffer is a
numpy array: a weak reference tells when it goes. Such a registration does not keep the
array alive, and while there is a weak reference numpy refuses to resize it, so the address leads to
the same memory. Other buffers can be resized, or cannot be referenced weakly, and their
registrations end with the messages. Threads do the calls that take the kernel long, see
_pinning.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import MR, PD, AccessFlags, ClosedError, VerbsError
from ._pinning import SLOW, Pinning
from ._pool import Pool, Region, Wanted, memory_of

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

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
    """The bytes of any contiguous buffer, in the order in which they are in memory."""
    contiguous: Any = buffer
    if has_objects(contiguous):
        raise TypeError(
            f"a frame must have bytes of its own: this {type(buffer).__name__} has references to "
            "Python objects, which mean nothing to the peer; convert it to a type of a fixed size, "
            "or pickle it"
        )
    if isinstance(contiguous, memoryview) and contiguous.c_contiguous:
        # Up to 3.12, Python crashes when it collects a memoryview together with a PickleBuffer of
        # it, as when an exception keeps the frames of functions that have both.
        with contextlib.suppress(TypeError):  # PickleBuffer takes any format
            return contiguous.cast("B")
    try:
        return PickleBuffer(contiguous).raw()
    except TypeError:
        kind = type(buffer).__name__
        raise TypeError(f"a frame must be a bytes-like object, not {kind}") from None
    except BufferError:
        kind = type(buffer).__name__
        raise BufferError(f"a frame must be contiguous in memory: this {kind} is not") from None
    except ValueError:  # numpy has no format for a date, nor for types of other packages
        array = flat(contiguous)
        if array is None:
            raise
        return memoryview(array)


def has_objects(buffer: Any) -> bool:
    """Whether it has references to Python objects, in the place of bytes."""
    if isinstance(buffer, memoryview):
        return "O" in re.sub(":[^:]*:", "", buffer.format)
    dtype = getattr(buffer, "dtype", None)
    return dtype is not None and getattr(dtype, "hasobject", False) is True


def flat(array: Any) -> Any:
    """The bytes of a numpy array, as an array; None if it is something else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        return None
    plain = array.view(numpy.ndarray)
    if not plain.flags.c_contiguous:
        plain = plain.T
    if not plain.flags.c_contiguous:
        raise BufferError("a frame must be contiguous in memory: this array is not")
    return plain.reshape(-1).view(numpy.uint8)


def writable_bytes_of(buffer: AnyBuffer, nbytes: int) -> memoryview:
    """The first bytes of a buffer into which a frame is received."""
    view = bytes_of(buffer)
    if view.readonly:
        raise TypeError(f"cannot receive into a read-only {type(buffer).__name__}")
    if view.nbytes < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit into {view.nbytes} bytes")
    return view[:nbytes]


def register(pd: PD, memory: Any, access: AccessFlags) -> MR:
    """In whichever thread."""
    return MR(pd, memory, access=access)


def own_memory(pd: PD, nbytes: int, access: AccessFlags) -> MR:
    """Pages of our own, which memoryviews keep when they are not registered any more."""
    return register(pd, nbytes, access)


class Registration:
    """A buffer that is registered while a message uses it, from `addr` on."""

    def __init__(self, region: Region, wanted: Wanted) -> None:
        self.region: Region = region
        self.mr: MR = region.mr
        self.addr: int = region.addr + wanted.start - region.start
        self.rkey: int = region.rkey


class Registrations:
    """Those that the messages of one connection use."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._used: set[Registration] = set()
        self._registered = self._reused = 0
        self.is_closed: bool = False
        self.pinning: Pinning = Pinning()
        pool.join(self)

    @property
    def stats(self) -> MemoryStats:
        return MemoryStats(self._registered, self._reused, *self._pool.kept)

    def acquire(self, wanted: Wanted) -> Registration:
        """Have a buffer registered until release(). VerbsError (ENOMEM) names the limit."""
        region = self._pool.acquire(wanted)
        if region is not None:
            return self.reused(region, wanted)
        start, mr = self._register(wanted)
        return self.registered(self._pool.add(mr, wanted, start, self.pinning), wanted)

    def _register(self, wanted: Wanted) -> tuple[int, MR]:
        while True:
            start, end = self._pool.extent(wanted)
            try:
                return start, register(self._pool.pd, memory_of(wanted, start, end), wanted.access)
            except VerbsError:
                if not self._pool.drop_oldest(self.pinning):  # it may have been in the way
                    raise

    def is_slow(self, view: memoryview, access: AccessFlags) -> bool:
        """Whether the kernel would take long for it."""
        return view.nbytes >= SLOW and not self._pool.has(Wanted(view, access))

    def acquire_in_thread(
        self, view: memoryview, access: AccessFlags
    ) -> asyncio.Future[Registration]:
        """The same as acquire(), in a thread; in one for all messages that want it."""
        wanted = Wanted(view, access)
        for registering in self._pool.in_flight:
            if registering.contains(wanted):
                return registering.join(self, wanted)
        registering = Registering(self._pool, wanted)
        future = registering.join(self, wanted)
        registering.start(self)
        return future

    def registered(self, region: Region, wanted: Wanted) -> Registration:
        self._registered += 1
        return self._use(region, wanted)

    def reused(self, region: Region, wanted: Wanted) -> Registration:
        self._reused += 1
        return self._use(region, wanted)

    def _use(self, region: Region, wanted: Wanted) -> Registration:
        one = Registration(region, wanted)
        self._used.add(one)
        return one

    def release(self, one: Registration) -> None:
        if one in self._used:  # otherwise the connection was closed meanwhile
            self._used.remove(one)
            self._pool.release(one.region, self.pinning)

    def close(self) -> None:
        """The queue pair is closed: nothing uses any of them."""
        self.is_closed = True
        while self._used:
            self._pool.release(self._used.pop().region, self.pinning)
        self._pool.leave(self)


class Registering:
    """A registration that a thread makes, and the messages that wait for it.

    It has none of this when it is over, because its futures may then be part of a reference cycle,
    by the traceback of an exception: the garbage collector of Python 3.11 crashes where it finds a
    memoryview there whose memory an MR still uses.
    """

    def __init__(self, pool: Pool, wanted: Wanted) -> None:
        self._pool = pool
        self._wanted: Wanted | None = wanted
        self._start, self._end = wanted.start, wanted.end
        self._call: Callable[[], MR] | None = None
        self._waiting: list[tuple[Registrations, Wanted, asyncio.Future[Registration]]] = []
        pool.in_flight.append(self)

    def contains(self, other: Wanted) -> bool:
        wanted = self._wanted
        assert wanted is not None, "it is not over"
        if (wanted.access, wanted.key) != (other.access, other.key):
            return False
        return self._start <= other.start and other.end <= self._end

    def join(self, owner: Registrations, wanted: Wanted) -> asyncio.Future[Registration]:
        """What one of them waits for. Nobody may cancel it."""
        future: asyncio.Future[Registration] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, wanted, future))
        return future

    def start(self, owner: Registrations) -> None:
        wanted, pool = self._wanted, self._pool
        assert wanted is not None, "it is not over"
        start, end = pool.extent(wanted)
        self._start = min(start, *(own.start for _, own, _ in self._waiting))
        self._end = max(end, *(own.end for _, own, _ in self._waiting))
        memory = memory_of(wanted, self._start, self._end)
        self._call = functools.partial(register, pool.pd, memory, wanted.access)
        made = functools.partial(self._made, owner)
        owner.pinning.start(self._call).add_done_callback(made)

    def _made(self, starter: Registrations, making: asyncio.Future[MR]) -> None:
        error = making.exception()
        owner = next((one for one, _, _ in self._waiting if not one.is_closed), None)
        if owner is not None and isinstance(error, VerbsError):
            has_room = self._pool.drop_all(owner.pinning)
            if has_room:
                self.start(owner)  # once more
                return
        waiting, wanted = self._waiting, self._wanted
        self._waiting, self._wanted, self._call = [], None, None
        self._pool.in_flight.remove(self)
        assert wanted is not None, "it was not over"
        mr = None if error is not None else making.result()
        for one, own, future in waiting:
            if error is not None:
                future.set_exception(error)
            elif one.is_closed:
                future.set_exception(ClosedError("this connection was closed"))
            elif (region := self._pool.acquire(own)) is not None:
                future.set_result(one.reused(region, own))
            else:
                assert mr is not None, "the first one has it contain those of all"
                region = self._pool.add(mr, wanted, self._start, one.pinning)
                future.set_result(one.registered(region, own))
                mr = None
        if mr is not None:  # another message has done it meanwhile, or nobody wants it any more
            (owner or starter).pinning.close(mr)
