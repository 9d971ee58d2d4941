# SPDX-License-Identifier: MIT
"""get() and put(): RDMA READs and WRITEs of memory that another process exposes."""

from __future__ import annotations

import asyncio
import importlib
import math
import mmap
import operator
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import (
    MR,
    SGE,
    AccessFlags,
    AsyncEventError,
    ClosedError,
    CompletionError,
    VerbsError,
    WCStatus,
)
from .._registered import bytes_of, end_use
from .._timeouts import seconds_of
from ._connection import Again, Connection, Grant, Home, is_flushed
from ._descriptor import Access, Described
from ._errors import RevokedError, TransferError
from ._exposure import AnyDescriptor
from ._process import Process, current, in_service

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

PIECE: Final = 1 << 20  # bytes of a read or write
WINDOW: Final = 4  # pieces of one transfer under way
ATTEMPTS: Final = 8  # connections, without any progress
MAPPED: Final = 1 << 16  # bytes: new memory of this size has pages of its own

NO_ACCESS: Final = AccessFlags(0)
REGISTERED: Final = MR, SGE
BOTH: Final = Access.READ | Access.WRITE
Release = Callable[[], None]

# What the device and the queue pair raise when the connection has ended.
ENDS: Final = (CompletionError, VerbsError, ClosedError, AsyncEventError)


class Transfer:
    """A get or a put of `nbytes` bytes, which `await` begins and waits for, once.

    Several may be under way in one task: asyncio.gather(), create_task(asyncio.wait_for(...)) and
    so on take it. When the task is cancelled, no more of it is begun; what the device has begun is
    waited for, which takes as long as 4 MiB do. Then the first `nbytes_done` bytes are transferred,
    and the 4 MiB after them may be. A `timeout` raises TimeoutError in the same way.
    """

    __slots__ = (
        "_at",
        "_attempted",
        "_attempts",
        "_buffer",
        "_descriptor",
        "_is_begun",
        "_next",
        "_result",
        "_stop",
        "_timeout",
        "_writes",
        "nbytes",
        "nbytes_done",
    )

    def __init__(
        self,
        descriptor: AnyDescriptor,
        buffer: memoryview | SGE,
        result: Any,
        at: int,
        nbytes: int,
        writes: bool,
        timeout: float | None,
        done: int = 0,
    ) -> None:
        """at: where the transfer begins in the exposed memory."""
        self.nbytes: int = nbytes
        self.nbytes_done: int = done
        self._descriptor, self._buffer, self._result = descriptor, buffer, result
        self._at, self._writes, self._timeout = at, writes, timeout
        self._attempts, self._attempted = 0, done
        self._is_begun = self._stop = False
        self._next = 0

    def __repr__(self) -> str:
        what = "put" if self._writes else "get"
        return f"<Transfer: {what}, {self.nbytes_done} of {self.nbytes} bytes>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begun(current()).__await__()

    def _begun(self, process: Process) -> Coroutine[Any, Any, Any]:
        """What is to be awaited, once, in the running loop."""
        if self._is_begun:
            raise RuntimeError("this transfer was awaited before: resume() returns another one")
        self._is_begun = True
        return self._transfer(process) if self._timeout is None else self._timed(process)

    def resume(self) -> Transfer:
        """Return a new transfer of what is missing, into or out of the same buffer.

        For one that has failed or was cancelled. Its `nbytes` are those of the whole, and it begins
        with the `nbytes_done` of this one.
        """
        return Transfer(
            self._descriptor,
            self._buffer,
            self._result,
            self._at,
            self.nbytes,
            self._writes,
            self._timeout,
            self.nbytes_done,
        )

    async def _timed(self, process: Process) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._transfer(process)
        except TimeoutError:
            done = f"{self.nbytes_done} of {self.nbytes} bytes"
            raise TimeoutError(f"{done} were transferred in {self._timeout:g} s") from None

    async def _transfer(self, process: Process) -> Any:
        lost: TransferError | None = None
        while True:
            conn, grant = process.find(self._descriptor) or await self._granted(process, lost)
            if self._at + self.nbytes > grant.length:
                raise RevokedError("the descriptor is longer than what is exposed by its token")
            if self.nbytes_done >= self.nbytes:
                return self._result
            home = conn.acquire(asyncio.get_running_loop())
            if home is None:
                if not process.service.is_here:
                    return await in_service(process, self._transfer(process))
                try:
                    home = await conn.acquire_here()
                except Again:
                    continue
            conn.uses += 1
            if not self._writes:
                home.read = self._descriptor.token, grant
            try:
                mr, start, release = self._located(conn) or await self._registered(conn)
                try:
                    await self._over(conn, grant, home, mr, start)
                    return self._result
                except ENDS as e:
                    lost = conn.failed(e)
                    if isinstance(lost, RevokedError) or not self._may_go_on(e):
                        raise lost from e
                finally:
                    release()
            finally:
                home.left()

    async def _granted(
        self, process: Process, lost: TransferError | None
    ) -> tuple[Connection, Grant]:
        """lost: why a connection was lost, of a transfer that goes on over the next one."""
        granting = process.granted(self._descriptor)
        try:
            if process.service.is_here:
                return await granting
            return await in_service(process, granting)
        except RevokedError:
            raise
        except TransferError as e:
            raise (e if lost is None else lost) from None

    def _may_go_on(self, error: Exception) -> bool:
        """Whether another connection may do better. Perhaps another transfer has broken this one;
        or the peer has ended, which the next attempt to connect will show."""
        if isinstance(error, CompletionError) and error.wc.status != WCStatus.WR_FLUSH_ERR:
            return False
        self._attempts = 0 if self.nbytes_done > self._attempted else self._attempts + 1
        self._attempted = self.nbytes_done
        return self._attempts < ATTEMPTS

    def _located(self, conn: Connection) -> tuple[MR, int, Release] | None:
        """The MR that has the buffer registered, where it begins there, and what ends the use of
        it; None if there is none yet."""
        if isinstance(self._buffer, SGE):
            return None
        table = conn.device.default_pool.table
        found = table.locate(self._buffer, NO_ACCESS if self._writes else conn.device.sink)
        if found is None:
            return None
        region, start = found
        return region.mr, start, partial(end_use, table, region)

    async def _registered(self, conn: Connection) -> tuple[MR, int, Release]:
        """Have the buffer registered."""
        access = NO_ACCESS if self._writes else conn.device.sink
        if isinstance(self._buffer, SGE):
            # This checks it, and keeps nothing.
            conn.device.default_pool.acquire(self._buffer.mr, access)
            return self._buffer.mr, self._buffer.addr - self._buffer.mr.addr, nothing
        one = await conn.device.default_pool.acquire_async(self._buffer, access)
        return one.mr, one.addr - one.mr.addr, one.release

    async def _over(self, conn: Connection, grant: Grant, home: Home, mr: MR, buffer: int) -> None:
        """Transfer what is missing over a connection. The buffer begins at `buffer` of the MR."""
        start, end = self.nbytes_done, self.nbytes
        if end - start > PIECE:
            await self._pieces(conn, grant, home, mr, buffer)
            return
        call = home.acq.write if self._writes else home.acq.read
        addr, key = grant.addr + self._at + start, grant.rkey
        try:
            await call(conn.qp, mr[buffer + start : buffer + end], addr, key)
        except asyncio.CancelledError:
            first = mr[buffer + start : buffer + start + 1]
            await _settled(conn, call(conn.qp, first, addr, key))
            raise
        self.nbytes_done = end

    async def _pieces(
        self, conn: Connection, grant: Grant, home: Home, mr: MR, buffer: int
    ) -> None:
        """Several at a time. They complete in the order in which they begin."""
        self._next, self._stop = self.nbytes_done, False
        number = min(WINDOW, math.ceil((self.nbytes - self.nbytes_done) / PIECE))
        workers = [
            asyncio.ensure_future(self._worker(conn, grant, home, mr, buffer))
            for _ in range(number)
        ]
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            self._stop = True
            await _ended(workers)
            for worker in workers:
                worker.exception()
            raise
        errors = [error for worker in workers if (error := worker.exception()) is not None]
        if errors:
            raise next((e for e in errors if not is_flushed(e)), errors[0])

    async def _worker(
        self, conn: Connection, grant: Grant, home: Home, mr: MR, buffer: int
    ) -> None:
        call = home.acq.write if self._writes else home.acq.read
        try:
            while not self._stop and (start := self._next) < self.nbytes:
                if conn.grants.get(self._descriptor.token) is not grant:
                    raise RevokedError("the memory is not exposed any more")
                end = self._next = min(start + PIECE, self.nbytes)
                part = mr[buffer + start : buffer + end]
                await call(conn.qp, part, grant.addr + self._at + start, grant.rkey)
                self.nbytes_done = max(self.nbytes_done, end)
        except BaseException:
            self._stop = True
            raise


def nothing() -> None:
    """End the use of an MR of the program."""


async def _settled(conn: Connection, again: Coroutine[Any, Any, object]) -> None:
    """Wait until the device has ended what was cancelled: its first byte, once more, is transferred
    after it."""

    async def settle() -> None:
        try:
            await again
        except ENDS as e:  # after which the device does nothing any more
            conn.failed(e)

    await _ended([asyncio.ensure_future(settle())])


def begun(transfer: Transfer, process: Process) -> Coroutine[Any, Any, Any]:
    """What carries out a transfer, in the loop in which it is run."""
    return transfer._begun(process)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for them, however often the task that waits is cancelled."""
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            continue


# ---- what they are given ----


def check(
    one: AnyDescriptor, needed: Access, offset: int, length: int | None, timeout: object
) -> tuple[int, float | None]:
    """Return how many bytes to transfer, and the seconds for it."""
    if not isinstance(one, Described):
        raise TypeError(f"give a Descriptor, not {type(one).__name__}")
    if one.access is not needed and one.access is not BOTH:
        raise PermissionError(
            f"the memory is exposed for {one.access.name}, not for {needed.name}: "
            "expose(..., access=...) says what peers may do"
        )
    if length is not None:
        length = operator.index(length)
    if offset == 0 and length is None and timeout is None:
        return one.length, None
    if not 0 <= offset <= one.length:
        raise ValueError(f"offset is {offset}: the memory has {one.length} bytes")
    if length is None:
        length = one.length - offset
    if not 0 <= length <= one.length - offset:
        raise ValueError(
            f"length is {length} at offset {offset}: the memory has {one.length} bytes"
        )
    return length, seconds_of(timeout)


def destination(buffer: AnyBuffer | MR | SGE, nbytes: int) -> memoryview | SGE:
    """The memory for a get."""
    if isinstance(buffer, REGISTERED):
        sge = whole(buffer)
        if sge.length < nbytes:
            raise ValueError(f"{nbytes} bytes do not fit into an MR of {sge.length}")
        return sge
    view = bytes_of(buffer, "into")
    if view.readonly:
        raise TypeError(f"into is a read-only {type(buffer).__name__}: get() writes there")
    if view.nbytes < nbytes:
        raise ValueError(f"{nbytes} bytes do not fit into {view.nbytes}")
    return view if view.nbytes == nbytes else view[:nbytes]


def whole(one: MR | SGE) -> SGE:
    return one[0 : one.length] if isinstance(one, MR) else one


def new_memory(one: AnyDescriptor, nbytes: int) -> tuple[memoryview, Any]:
    """Memory for a get, and what it returns: an array if all of one is asked for."""
    if one.dtype is not None and one.shape is not None and nbytes == one.length:
        array = new_array(one)
        return bytes_of(array, "into"), array
    try:
        view = memoryview(mmap.mmap(-1, nbytes) if nbytes >= MAPPED else bytearray(nbytes))
    except (OSError, OverflowError) as e:
        raise MemoryError(f"there is no memory for {nbytes} bytes: {e}") from None
    return view, view


def new_array(one: AnyDescriptor) -> Any:
    numpy = importlib.import_module("numpy")
    try:
        dtype = numpy.dtype(one.dtype)
    except (TypeError, ValueError):
        try:
            dtype = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), str(one.dtype)))
        except (ImportError, AttributeError, TypeError):
            raise ValueError(f"dtype {one.dtype!r} is not known here: give into=") from None
    shape = one.shape
    assert shape is not None, "the caller has looked"
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != one.length:
        raise ValueError(f"{one.length} bytes are no array of shape {shape} of {one.dtype}")
    return numpy.empty(shape, dtype, one.order)


# ---- the calls ----


def get(
    descriptor: AnyDescriptor,
    into: AnyBuffer | MR | SGE | None = None,
    *,
    offset: int = 0,
    length: int | None = None,
    timeout: float | None = None,
) -> Transfer:
    """Read memory that another process exposes; `await` begins it, and returns the memory.

    descriptor: what `expose` returned there.
    into: a writable buffer, at least as large, which is returned; or an MR of the PD that `pd`
        returns, or a part of one, mr[a:b]. By default new memory: a numpy array like the exposed
        one, if that is one and all of it is read; else a memoryview.
    offset, length: the part to read, in bytes; by default all from `offset` on.
    timeout: in seconds; None waits for ever, or until the peer does not answer.

    The memory is read in pieces of 1 MiB, 4 at a time, and the other process may change it
    meanwhile. asyncio only; for threads see `cqnotify.memory.blocking`.

    Raises RevokedError if the memory is not exposed any more, ConnectionLostError, RefusedError and
    TimeoutError, after which `Transfer.resume` goes on; PermissionError if it is not exposed for
    READ, ValueError for a part that it does not have, and VerbsError (ENOMEM) at the limit of
    locked memory. Wraps ibv_post_send(3) with IBV_WR_RDMA_READ.
    """
    offset = operator.index(offset)
    nbytes, seconds = check(descriptor, Access.READ, offset, length, timeout)
    if into is None:
        buffer, result = new_memory(descriptor, nbytes)
        return Transfer(descriptor, buffer, result, offset, nbytes, False, seconds)
    return Transfer(descriptor, destination(into, nbytes), into, offset, nbytes, False, seconds)


def put(
    descriptor: AnyDescriptor,
    buffer: AnyBuffer | MR | SGE,
    *,
    offset: int = 0,
    timeout: float | None = None,
) -> Transfer:
    """Write to memory that another process exposes; `await` begins it.

    descriptor: what `expose` returned there, with access WRITE.
    buffer: what to write, any contiguous buffer, an MR or a part of one; it must not change before
        the call has returned.
    offset: where to write it, in bytes.
    timeout: in seconds; None waits for ever, or until the peer does not answer.

    When it has returned, the data is in the peer's memory, and its program sees it; on iWARP it is
    on its way. Two puts at a time are in no order. If another transfer breaks the connection,
    pieces under way are written once more. Raises the errors of `cqnotify.memory.get`. Wraps
    ibv_post_send(3) with IBV_WR_RDMA_WRITE.
    """
    source = whole(buffer) if isinstance(buffer, REGISTERED) else bytes_of(buffer, "buffer")
    nbytes = source.length if isinstance(source, SGE) else source.nbytes
    offset = operator.index(offset)
    nbytes, seconds = check(descriptor, Access.WRITE, offset, nbytes, timeout)
    return Transfer(descriptor, source, None, offset, nbytes, True, seconds)
