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
registration as it is: each peer that has its rkey would reach it for as long as its new user needs
it, say an exposure whose close() is to end all access. Other flags, as RELAXED_ORDERING, change
what the device does, so they must be the same.

The core does the frequent part, see csrc/memory. An array can be freed in any thread, and in the
middle of anything: then its registrations end before its memory does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import MR, PD, SGE, AccessFlags, ClosedError, VerbsError, _core
from . import _buffers
from ._buffers import Wanted
from ._pinning import SLOW, submit

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

LOCAL = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND  # which lets a peer do nothing

Region = _core.RegisteredRegion
Close = Callable[[MR, Any], None]  # of an MR and of what holds its memory, see close_here()
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


class Registration:
    """A buffer that is registered until release().

    mr: the registered memory, which may have more on both sides of the buffer.
    addr, nbytes: where the device finds the buffer.
    rkey: of the MR.
    is_new: whether the device registered it for this use.
    """

    def __init__(
        self,
        pool: Pool,
        region: Region | None,
        mr: MR,
        addr: int,
        nbytes: int,
        is_new: bool,
        holder: Any = None,
    ) -> None:
        self._pool = pool
        self._region = region  # None: of an MR that was given, or of one that is in no table
        self._holder = holder  # of the memory of one that is in no table
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
            end_use(self._pool.table, region, close)
        elif self.is_new:  # it is in no table
            self.is_new = False
            holder, self._holder = self._holder, None
            close_all([self.mr], holder, close)


def _registration(pool: Pool, region: Region, wanted: Wanted, is_new: bool) -> Registration:
    return pool.taken_over(region, wanted.start, wanted.end - wanted.start, is_new)


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

    def bounds(self) -> tuple[int, int]:
        """Where the memory of all that wait begins and ends."""
        starts = (self.wanted.start, *(own.start for own, _ in self.waiting))
        return min(starts), max(self.wanted.end, *(own.end for own, _ in self.waiting), 0)

    def register(self, pd: PD) -> MR:
        wanted = self.wanted
        memory = _buffers.memory_of(wanted, self.memory, self.start, self.end)
        try:
            return _buffers.register(pd, memory, self.access)
        except VerbsError as e:
            if e.errno != errno.EFAULT or self.access == wanted.access:
                raise
        self.access = AccessFlags(wanted.access)  # of a file that may not be pinned for writing
        return _buffers.register(pd, memory, self.access)


class Pool:
    """Registrations in one protection domain.

    table: the core's part, which functions in C may use, too.
    """

    def __init__(
        self, pd: PD, max_bytes: int, max_registrations: int, *, has_windows: bool = False
    ) -> None:
        """max_bytes, max_registrations: of what stays registered that nothing uses."""
        self.pd: PD = pd
        self.table: _core.RegisteredTable = _core.RegisteredTable(
            max_bytes, max_registrations, close_all
        )
        self._has_windows = has_windows
        # Around the list of what is being registered. A finalizer that interrupts a thread which
        # holds the lock may not wait for it: see acquire_wanted().
        self._lock = threading.RLock()
        self._registering: list[_Registering] = []

    # ---- users ----

    def join(self) -> None:
        """Another user, until leave(). Without users nothing is kept."""
        self.table.join()

    def leave(self, close: Close | None = None) -> None:
        """With the last user goes what is kept."""
        close_all(self.table.leave(), close=close)

    def close(self) -> None:
        """The device is closed, and what is kept with it."""
        close_all(self.table.drop_all())

    def set_limits(self, max_bytes: int, max_registrations: int) -> None:
        close_all(self.table.set_limits(max_bytes, max_registrations))

    @property
    def stats(self) -> PoolStats:
        table = self.table
        return PoolStats(
            table.registered,
            table.reused,
            table.kept,
            table.kept_bytes,
            table.in_use,
            table.in_use_bytes,
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
        one = _Registering(_buffers.wanted_of(buffer, access), access)
        mr = one.register(self.pd)
        return Registration(self, None, mr, mr.addr, mr.length, True, one.memory)

    def taken_over(
        self, region: Region, start: int, nbytes: int, is_new: bool = False
    ) -> Registration:
        """The registration of memory for which the caller uses a region already."""
        mr = region.mr
        addr = mr.addr + start - region.start
        return Registration(self, region, mr, addr, nbytes, is_new)

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
        region = self.table.find(wanted.start, wanted.end, wanted.access)
        if region is not None:
            return _registration(self, region, wanted, False)
        if wanted.end - wanted.start >= SLOW:
            return self._wait(wanted)
        one = _Registering(wanted, self._access(wanted))
        region, mrs = self._add(one, self._register(one, self.table.drop_oldest), 1)
        close_all(mrs)
        return _registration(self, region, wanted, True)

    def is_slow(self, wanted: Wanted) -> bool:
        """Whether the kernel would take long for it."""
        start, end = wanted.start, wanted.end
        return end - start >= SLOW and not self.table.has(start, end, wanted.access)

    def start(self, wanted: Wanted, done: Done) -> None:
        """Have it registered by a thread, by one for all that want it. `done` is called in any."""
        registering = self._join(wanted, done)
        if registering is not None:
            submit(self._run, registering)

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

    def _register(self, one: _Registering, make_room: Callable[[], list[MR]]) -> MR:
        array = one.wanted.array if one.is_watched else None
        while True:
            with self._lock:
                start, end = one.bounds()
                one.start, one.end = self.table.extent(start, end, one.access, array)
            try:
                return one.register(self.pd)
            except VerbsError:
                in_the_way = make_room()  # perhaps
                if not in_the_way:
                    raise
            for mr in in_the_way:
                close_here(mr)

    def _add(self, one: _Registering, mr: MR, users: int) -> tuple[Region, list[MR]]:
        """Return what the users get, and the MRs that are to be closed."""
        region, mrs = self.table.add(mr, one.start, one.access, one.memory, users)
        if region.mr is not mr:  # another thread was faster
            mrs.append(mr)
        elif one.is_watched and mr.length <= self.table.max_bytes:
            _watch(self.table, region, one.wanted.array)
        return region, mrs

    def _join(self, wanted: Wanted, done: Done) -> _Registering | None:
        """What is to run, unless it does or did."""
        access = self._access(wanted)
        with self._lock:
            region = self.table.find(wanted.start, wanted.end, wanted.access)
            if region is None:
                for one in self._registering:
                    if one.contains(wanted, access):
                        one.waiting.append((wanted, done))
                        return None
                registering = _Registering(wanted, access)
                registering.waiting.append((wanted, done))
                self._registering.append(registering)
                return registering
        done(_registration(self, region, wanted, False), None)
        return None

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
        region: Region | None = None
        waiting, mrs = one.waiting, list[MR]()
        try:
            mr = self._register(one, self.table.drop_all)
        except BaseException as e:
            error = e
        try:
            with self._lock:  # who looks for it finds it in the list, or in the table
                self._registering.remove(one)
                if mr is not None:
                    region, mrs = self._add(one, mr, len(waiting))
            close_all(mrs)
        except BaseException as e:
            region, error = None, e
        del one.waiting, one.wanted, one.memory
        for i, (wanted, done) in enumerate(waiting):
            done(None if region is None else _registration(self, region, wanted, i == 0), error)


def _watch(table: _core.RegisteredTable, region: Region, array: Any) -> None:
    """End the registration before the memory is freed, in whichever thread that is."""

    def gone(_: object) -> None:
        with contextlib.suppress(VerbsError, ClosedError):
            region.mr.close()
        table.forget(region)

    region.watch(array, weakref.ref(array, gone))


def close_here(mr: MR, holder: Any = None) -> None:
    """Deregister it, and then end what has held its memory. A region that the device does not
    deregister ends with its context, and until then the MR holds the memory."""
    with contextlib.suppress(VerbsError, ClosedError):  # as its array is freed elsewhere
        mr.close()
    _buffers.let_go(holder)


def _deregister(mr: MR, holder: Any) -> None:
    """In a thread if that takes long, and if an event loop runs here."""
    with contextlib.suppress(ClosedError):  # as its array is freed elsewhere
        if mr.length >= SLOW and asyncio._get_running_loop() is not None:
            submit(close_here, mr, holder)
        else:
            close_here(mr, holder)


def end_use(table: _core.RegisteredTable, region: Region, close: Close | None = None) -> None:
    """End one use of a region, see Registration.release()."""
    dropped = table.release(region)
    if dropped is not None:
        close_all(*dropped, close)


def close_all(mrs: list[MR], holder: Any = None, close: Close | None = None) -> None:
    """holder: what RegisteredTable.release() returns, if this was the last use of it."""
    for mr in mrs:
        (close or _deregister)(mr, holder)
