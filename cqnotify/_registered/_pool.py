# SPDX-License-Identifier: MIT
"""Registrations in a protection domain: found by their addresses, counted, and kept for later.

A slice of what is registered is registered. A peer is granted nothing that was not offered, so a
slice of an array is registered together with what it overlaps, and never the whole array for the
sake of a slice.

Which registration is found: it must have all the access that is wanted. More of LOCAL_WRITE and
MW_BIND does no harm, since neither lets a peer do anything: one is for work requests of this
process, and the other for windows, which this process binds. Therefore, on devices that have
windows, writable memory is registered with both, so that messages, exposures and destinations share
what they can. More remote access than wanted is refused, although the memory is reachable by that
registration as it is: those who know its rkey would reach it for as long as its new user needs it,
say an exposure whose close() was to end all access. Other flags, as RELAXED_ORDERING, change what
the device does, so they must be the same.

An array can be freed in any thread, and in the middle of anything: then its registrations end
before its memory does, and the pool takes them out of its lists later, see _guard.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import MR, PD, SGE, AccessFlags, ClosedError, VerbsError
from . import _buffers
from ._buffers import Wanted
from ._guard import Guard
from ._pinning import SLOW, submit
from ._spans import Spans

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

LOCAL = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND  # which lets a peer do nothing

Close = Callable[[MR], None]
# What gets a registration, or the reason why there is none; in any thread.
Done = Callable[["Registration | None", "BaseException | None"], None]


class PoolStats(NamedTuple):
    """registered: how often the device was asked to register memory.
    reused: how often that was not necessary.
    kept: how many registrations are kept though nothing uses them.
    kept_bytes: what they register.
    in_use: how many are in use.
    in_use_bytes: what they register.
    """

    registered: int
    reused: int
    kept: int
    kept_bytes: int
    in_use: int
    in_use_bytes: int


class Region:
    """Registered memory.

    users: how many use it; meanwhile `memory` holds what is registered.
    array: the numpy array that has the memory, without keeping it; None if it is not to be kept.
    is_listed: whether it is to be found.
    """

    def __init__(self, mr: MR, one: _Registering) -> None:
        self.mr: MR = mr
        self.nbytes: int = mr.length
        self.start: int = one.start
        self.end: int = one.start + mr.length
        self.access: AccessFlags = one.access
        self.users: int = 0
        self.memory: Any = one.memory
        self.array: weakref.ref[Any] | None = None
        self.is_listed: bool = False


class Registration:
    """A buffer that is registered until release().

    mr: the registered memory, which may have more on both sides of the buffer.
    addr, nbytes: where the device finds the buffer.
    rkey: of the MR.
    is_new: whether the device registered it for this use.
    """

    def __init__(
        self, pool: Pool, region: Region | None, mr: MR, addr: int, nbytes: int, is_new: bool
    ) -> None:
        self._pool = pool
        self._region = region  # None: of an MR that was given
        self.mr: MR = mr
        self.addr: int = addr
        self.nbytes: int = nbytes
        self.rkey: int = mr.rkey
        self.is_new: bool = is_new

    def sge(self, offset: int = 0, length: int | None = None) -> SGE:
        """A part of the buffer, for a work request."""
        length = self.nbytes - offset if length is None else length
        if not 0 <= offset <= offset + length <= self.nbytes:
            raise ValueError(
                f"{length} bytes from {offset} on: this registration has {self.nbytes} bytes"
            )
        start = self.addr - self.mr.addr + offset
        return self.mr[start : start + length]

    def release(self, close: Close | None = None) -> None:
        """End the use of it, from any thread and once. `close` is what deregisters an MR; by
        default that is done here, or in a thread if it takes long and an event loop runs here."""
        region, self._region = self._region, None
        if region is not None:
            self._pool.release(region, close)


def _registration(pool: Pool, region: Region, wanted: Wanted, is_new: bool) -> Registration:
    addr = region.mr.addr + wanted.start - region.start
    return Registration(pool, region, region.mr, addr, wanted.end - wanted.start, is_new)


class _Registering:
    """A registration in progress, and those that wait for it.

    It has no memory when it is over, because what it ends in may then be part of a reference cycle,
    by the traceback of an exception: the garbage collector of Python 3.11 crashes where it finds a
    memoryview there whose memory an MR still uses.
    """

    def __init__(self, wanted: Wanted, access: AccessFlags) -> None:
        self.wanted: Wanted = wanted
        self.access: AccessFlags = access
        self.memory, self.is_watched = _buffers.hold(wanted)
        self.start, self.end = wanted.start, wanted.end
        self.waiting: list[tuple[Wanted, Done]] = []

    def contains(self, other: Wanted, access: AccessFlags) -> bool:
        is_inside = self.start <= other.start and other.end <= self.end
        return is_inside and self.access == access and self.wanted.array is other.array

    def widen(self, start: int, end: int) -> None:
        self.start = min(start, *(own.start for own, _ in self.waiting), start)
        self.end = max(end, *(own.end for own, _ in self.waiting), end)

    def register(self, pd: PD) -> MR:
        wanted, memory = self.wanted, _buffers.memory_of(self.wanted, self.start, self.end)
        try:
            return _buffers.register(pd, memory, self.access)
        except VerbsError as e:
            if e.errno != errno.EFAULT or self.access == wanted.access:
                raise
        self.access = AccessFlags(wanted.access)  # of a file that may not be pinned for writing
        return _buffers.register(pd, memory, self.access)


class Pool:
    """Registrations in one protection domain."""

    def __init__(
        self, pd: PD, max_bytes: int, max_registrations: int = 4096, *, has_windows: bool = False
    ) -> None:
        """max_bytes, max_registrations: of what stays registered that nothing uses."""
        self.pd: PD = pd
        self.max_bytes: int = max_bytes
        self.max_registrations: int = max_registrations
        self._has_windows = has_windows
        self._guard = Guard()
        self._users = 0
        self._spans: dict[AccessFlags, Spans[Region]] = {}
        self._kept: OrderedDict[Region, None] = OrderedDict()  # the oldest first
        self._kept_bytes = 0
        self._in_use = self._in_use_bytes = 0
        self._registered = self._reused = 0
        self._registering: list[_Registering] = []

    # ---- users ----

    def join(self) -> None:
        """Another user, until leave()."""
        with self._guard:
            self._users += 1

    def leave(self, close: Close | None = None) -> None:
        """With the last user goes what is kept. Never waits."""
        self._guard.later(functools.partial(self._leave, close))

    def _leave(self, close: Close | None) -> None:
        self._users -= 1
        if not self._users:
            self._drop_all(close)

    def close(self) -> None:
        """The device is closed, and what is kept with it."""
        self._guard.later(functools.partial(self._drop_all, None))

    def set_limits(self, max_bytes: int, max_registrations: int) -> None:
        with self._guard:
            self.max_bytes, self.max_registrations = max_bytes, max_registrations
            self._shrink(None)

    @property
    def stats(self) -> PoolStats:
        with self._guard:
            return PoolStats(
                self._registered,
                self._reused,
                len(self._kept),
                self._kept_bytes,
                self._in_use,
                self._in_use_bytes,
            )

    # ---- for any thread ----

    def acquire(self, buffer: AnyBuffer | MR, access: AccessFlags) -> Registration:
        """Have a buffer registered until release(); in this thread, or by one that does it already.
        VerbsError (ENOMEM) names the limit of locked memory. An MR is used as it is."""
        if isinstance(buffer, MR):
            return self._given(buffer, access)
        return self.acquire_wanted(_buffers.wanted_of(buffer, access))

    def acquire_alone(self, buffer: AnyBuffer, access: AccessFlags) -> Registration:
        """One of its own, which nobody else finds and which ends with release()."""
        return self._acquire_unlisted(_buffers.wanted_of(buffer, access))

    async def acquire_async(self, buffer: AnyBuffer | MR, access: AccessFlags) -> Registration:
        """The same in an event loop, which goes on meanwhile."""
        if isinstance(buffer, MR):
            return self._given(buffer, access)
        wanted = _buffers.wanted_of(buffer, access)
        if not self.is_slow(wanted):
            return self.acquire_wanted(wanted)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Registration] = loop.create_future()

        def settle(one: Registration | None, error: BaseException | None) -> None:
            if future.done():  # the task was cancelled
                if one is not None:
                    one.release()
            elif one is None:
                assert error is not None, "one of both"
                future.set_exception(error)
            else:
                future.set_result(one)

        def done(one: Registration | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, one, error)
            except RuntimeError:  # the loop was closed
                if one is not None:
                    one.release()

        self.start(wanted, done)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()
            raise

    def acquire_wanted(self, wanted: Wanted) -> Registration:
        """The same as acquire()."""
        if self._guard.is_mine:  # a finalizer interrupts this thread
            return self._acquire_unlisted(wanted)
        region = self._find_and_use(wanted)
        if region is not None:
            return _registration(self, region, wanted, False)
        if wanted.end - wanted.start >= SLOW:
            return self._wait(wanted)
        one = _Registering(wanted, self._access(wanted))
        mr = self._register(one, self._drop_oldest)
        with self._guard:
            region = self._add(one, mr)
            self._use(region)
        return _registration(self, region, wanted, True)

    def is_slow(self, wanted: Wanted) -> bool:
        """Whether the kernel would take long for it."""
        if wanted.end - wanted.start < SLOW:
            return False
        with self._guard:
            return self._find(wanted.access, wanted.start, wanted.end) is None

    def start(self, wanted: Wanted, done: Done) -> None:
        """Have it registered by a thread, by one for all that want it. `done` is called in any."""
        registering = self._join(wanted, done)
        if registering is not None:
            submit(self._run, registering)

    def release(self, region: Region, close: Close | None = None) -> None:
        """One of its users does not use it any more. Never waits."""
        self._guard.later(functools.partial(self._release, region, close))

    # ---- registering ----

    def _given(self, mr: MR, access: AccessFlags) -> Registration:
        if mr.pd is not self.pd:
            raise ValueError("this MR is of another PD: make it of the PD of this process")
        if access & ~mr.access:
            raise ValueError(f"access of this MR is {mr.access!r}: {access!r} was asked for")
        return Registration(self, None, mr, mr.addr, mr.length, False)

    def _access(self, wanted: Wanted) -> AccessFlags:
        """With what it is registered."""
        if not self._has_windows or wanted.view.readonly:
            return AccessFlags(wanted.access)
        return AccessFlags(wanted.access) | LOCAL

    def _find_and_use(self, wanted: Wanted) -> Region | None:
        with self._guard:
            region = self._find(wanted.access, wanted.start, wanted.end)
            if region is not None:
                self._reused += 1
                self._use(region)
            return region

    def _register(self, one: _Registering, make_room: Callable[[], bool]) -> MR:
        while True:
            with self._guard:
                one.widen(*self._extent(one))
            try:
                return one.register(self.pd)
            except VerbsError:
                if not make_room():  # what is kept may have been in the way
                    raise

    def _acquire_unlisted(self, wanted: Wanted) -> Registration:
        """Nobody else finds it."""
        one = _Registering(wanted, self._access(wanted))
        region = Region(one.register(self.pd), one)
        self._guard.later(functools.partial(self._use, region))
        return _registration(self, region, wanted, True)

    def _join(self, wanted: Wanted, done: Done) -> _Registering | None:
        """What is to run, unless it does."""
        access = self._access(wanted)
        with self._guard:
            for one in self._registering:
                if one.contains(wanted, access):
                    one.waiting.append((wanted, done))
                    return None
            registering = _Registering(wanted, access)
            registering.waiting.append((wanted, done))
            self._registering.append(registering)
        return registering

    def _wait(self, wanted: Wanted) -> Registration:
        """In this thread, or wait for another one that does it."""
        over, results = threading.Event(), list[Any]()

        def done(one: Registration | None, error: BaseException | None) -> None:
            results.append(one if error is None else error)
            over.set()

        registering = self._join(wanted, done)
        if registering is not None:
            self._run(registering)
        over.wait()
        result = results.pop()
        if isinstance(result, Registration):
            return result
        raise result

    def _run(self, one: _Registering) -> None:
        """In any thread."""
        mr: MR | None = None
        error: BaseException | None = None
        try:
            mr = self._register(one, self._drop_all_kept)
        except BaseException as e:
            error = e
        with self._guard:
            self._registering.remove(one)
            region = None if mr is None else self._add(one, mr)
            waiting = one.waiting
            if region is not None:
                self._reused += len(waiting) - 1
                for _ in waiting:
                    self._use(region)
            del one.waiting, one.wanted, one.memory
        for i, (wanted, done) in enumerate(waiting):
            done(None if region is None else _registration(self, region, wanted, i == 0), error)

    # ---- under the lock ----

    def _suitable(self, access: int) -> list[Spans[Region]]:
        """What has this access, and no more that matters."""
        return [
            spans
            for own, spans in self._spans.items()
            if not access & ~own and not own & ~access & ~LOCAL
        ]

    def _find(self, access: int, start: int, end: int) -> Region | None:
        """What has it registered. Its memory is held."""
        for spans in self._suitable(access):
            while (region := spans.find(start, end)) is not None:
                if region.memory is None and region.array is not None:
                    region.memory = region.array()
                if region.memory is not None:
                    return region
                self._unlist(region)  # its array is being freed
        return None

    def _extent(self, one: _Registering) -> tuple[int, int]:
        """What to register for it: with what it overlaps, so that slices of an array become one
        registration, which contains those that are to come."""
        start, end = one.wanted.start, one.wanted.end
        spans = self._spans.get(one.access)
        if one.is_watched and spans is not None:
            for region in spans.overlapping(start, end):
                if region.array is not None and region.array() is one.wanted.array:
                    start, end = min(start, region.start), max(end, region.end)
        if end - start <= self.max_bytes:
            return start, end
        return one.wanted.start, one.wanted.end

    def _add(self, one: _Registering, mr: MR) -> Region:
        """What was registered; or what contains it, if another thread has registered that
        meanwhile."""
        self._registered += 1
        region = self._find(one.access, one.start, one.end)
        if region is not None:
            self._close(mr, None)
            return region
        region = Region(mr, one)
        for contained in self._spans.setdefault(one.access, Spans()).add(region):
            contained.is_listed = False
            if not contained.users:
                self._drop(contained, None)
        region.is_listed = True
        if region.nbytes <= self.max_bytes and one.is_watched:
            self._watch(region, one.wanted.array)
        return region

    def _use(self, region: Region) -> None:
        self._unkeep(region)
        if not region.users:
            self._in_use += 1
            self._in_use_bytes += region.nbytes
        region.users += 1

    def _release(self, region: Region, close: Close | None) -> None:
        region.users -= 1
        if region.users:
            return
        self._in_use -= 1
        self._in_use_bytes -= region.nbytes
        memory, region.memory = region.memory, None
        if region.array is not None and region.is_listed and self._users:
            self._kept[region] = None
            self._kept_bytes += region.nbytes
            self._shrink(close)
        else:
            self._drop(region, close)
        self._guard.after(functools.partial(_let_go, memory))  # last: this may free the array
        del memory

    def _unlist(self, region: Region) -> None:
        region.is_listed = False
        self._spans[region.access].remove(region)

    # ---- kept ----

    def _watch(self, region: Region, array: Any) -> None:
        """End the registration before the memory is freed, in whichever thread that is."""
        mr, guard, forget = region.mr, self._guard, functools.partial(self._forget, region)

        def gone(_: object) -> None:
            with contextlib.suppress(VerbsError, ClosedError):
                mr.close()
            guard.later(forget)

        region.array = weakref.ref(array, gone)

    def _forget(self, region: Region) -> None:
        """Its array was freed."""
        self._unkeep(region)
        if region.is_listed:
            self._unlist(region)

    def _drop(self, region: Region, close: Close | None) -> None:
        """Nothing uses it."""
        self._unkeep(region)
        if region.is_listed:
            self._unlist(region)
        region.array = None  # otherwise numpy would still refuse to resize it
        self._close(region.mr, close)

    def _close(self, mr: MR, close: Close | None) -> None:
        self._guard.after(functools.partial(close or _deregister, mr))

    def _unkeep(self, region: Region) -> None:
        if region in self._kept:
            del self._kept[region]
            self._kept_bytes -= region.nbytes

    def _shrink(self, close: Close | None) -> None:
        while self._kept_bytes > self.max_bytes or len(self._kept) > self.max_registrations:
            self._drop(next(iter(self._kept)), close)

    def _drop_all(self, close: Close | None) -> bool:
        is_any = bool(self._kept)
        while self._kept:
            self._drop(next(iter(self._kept)), close)
        return is_any

    def _drop_oldest(self) -> bool:
        """Return False if nothing is kept."""
        with self._guard:
            if not self._kept:
                return False
            self._drop(next(iter(self._kept)), _close_here)
        return True

    def _drop_all_kept(self) -> bool:
        with self._guard:
            return self._drop_all(_close_here)


def _let_go(_memory: object) -> None:
    """What the caller refers to no more ends here."""


def _close_here(mr: MR) -> None:
    """A region that the device does not deregister ends with its context."""
    with contextlib.suppress(VerbsError, ClosedError):  # as its array is freed elsewhere
        mr.close()


def _deregister(mr: MR) -> None:
    """In a thread if that takes long, and if an event loop runs here."""
    if mr.length >= SLOW and asyncio._get_running_loop() is not None:
        submit(_close_here, mr)
    else:
        _close_here(mr)
