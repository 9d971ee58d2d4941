# SPDX-License-Identifier: MIT
"""get() and put(): RDMA READs and WRITEs of memory that another process exposes."""

from __future__ import annotations

import asyncio
import importlib
import math
import mmap
import operator
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from .. import MR, AccessFlags, AsyncEventError, ClosedError, CompletionError, VerbsError, WCStatus
from .._registered import bytes_of
from .._timeouts import seconds_of
from ._connection import Again, Connection, Grant, Home
from ._descriptor import Access, Described
from ._errors import RevokedError, TransferError
from ._process import Process, current, in_service

if TYPE_CHECKING:
    from .._core import SGE
    from .._core import _Buffer as AnyBuffer
    from .._registered import Registration

PIECE: Final = 1 << 20  # bytes of a read or write
WINDOW: Final = 4  # pieces of one transfer under way
ATTEMPTS: Final = 8  # connections, without any progress
MAPPED: Final = 1 << 16  # bytes: new memory of this size has pages of its own

# What the device and the queue pair raise when the connection has ended.
ENDS: Final = (CompletionError, VerbsError, ClosedError, AsyncEventError)


class Transfer:
    """A get or a put, which `await` begins and waits for, once.

    Several may be under way in one task: asyncio.gather(), create_task(asyncio.wait_for(...)) and
    so on take it. When the task is cancelled, no more of it is begun; what the device has begun is
    waited for, which takes as long as 4 MiB do. Then the first `nbytes_done` bytes are transferred,
    and the 4 MiB after them may be.
    """

    __slots__ = (
        "_at",
        "_attempted",
        "_attempts",
        "_buffer",
        "_descriptor",
        "_is_started",
        "_next",
        "_registration",
        "_result",
        "_start",
        "_stop",
        "_timeout",
        "_writes",
        "nbytes",
        "nbytes_done",
    )

    def __init__(
        self,
        descriptor: Described,
        buffer: memoryview | MR,
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
        self._registration: Registration | None = None
        self._is_started = self._stop = False
        self._next = 0

    def __repr__(self) -> str:
        what = "put" if self._writes else "get"
        return f"<Transfer: {what}, {self.nbytes_done} of {self.nbytes} bytes>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run(current(), self._timeout).__await__()

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

    async def _run(self, process: Process, timeout: float | None) -> Any:
        if self._is_started:
            raise RuntimeError("this transfer was awaited before: resume() returns another one")
        self._is_started = True
        if timeout is None:
            await self._transfer(process)
        else:
            try:
                async with asyncio.timeout(timeout):
                    await self._transfer(process)
            except TimeoutError:
                done = f"{self.nbytes_done} of {self.nbytes} bytes"
                raise TimeoutError(f"{done} were transferred in {timeout:g} s") from None
        return self._result

    async def _transfer(self, process: Process) -> None:
        lost: TransferError | None = None
        try:
            while True:
                found = process.find(self._descriptor) or await self._granted(process, lost)
                conn, grant = found
                if self._at + self.nbytes > grant.length:
                    raise RevokedError("the descriptor is longer than what is exposed by its token")
                if self.nbytes_done >= self.nbytes:
                    return
                home = conn.acquire(asyncio.get_running_loop())
                if home is None:
                    if not process.service.is_here:
                        return await in_service(process, self._transfer(process))
                    try:
                        home = await conn.acquire_here()
                    except Again:
                        continue
                conn.uses += 1
                try:
                    return await self._over(conn, grant, home)
                except ENDS as e:
                    lost = conn.failed(e)
                    if isinstance(lost, RevokedError) or not self._may_go_on(e):
                        raise lost from e
                    self._release()  # the next connection may be one of another device
                finally:
                    home.left()
        finally:
            self._release()

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

    async def _over(self, conn: Connection, grant: Grant, home: Home) -> None:
        """Transfer what is missing over a connection."""
        if self._registration is None:
            access = AccessFlags(0) if self._writes else conn.device.sink
            pool = conn.device.default_pool
            self._registration = await pool.acquire_async(self._buffer, access)
        left = self.nbytes - self.nbytes_done
        if left <= PIECE:
            await self._piece(conn, grant, home, self.nbytes_done, left)
        else:
            await self._pieces(conn, grant, home)

    async def _piece(
        self, conn: Connection, grant: Grant, home: Home, start: int, nbytes: int
    ) -> None:
        registration = self._registration
        assert registration is not None, "_over() has made it"
        sge = registration.sge(start, nbytes)
        call = home.acq.write if self._writes else home.acq.read
        addr = grant.addr + self._at + start
        try:
            await call(conn.qp, sge, addr, grant.rkey)
        except asyncio.CancelledError:
            await self._settled(conn, home, registration.sge(start, 1), addr, grant.rkey)
            raise
        self.nbytes_done = start + nbytes

    async def _settled(self, conn: Connection, home: Home, sge: SGE, addr: int, rkey: int) -> None:
        """Wait until the device has ended what was cancelled: the first byte of that, once more,
        is transferred after it."""
        call = home.acq.write if self._writes else home.acq.read

        async def again() -> None:
            try:
                await call(conn.qp, sge, addr, rkey)
            except ENDS as e:  # after which the device does nothing any more
                conn.failed(e)

        await _ended([asyncio.ensure_future(again())])

    async def _pieces(self, conn: Connection, grant: Grant, home: Home) -> None:
        """Several at a time. They complete in the order in which they begin."""
        self._next, self._stop = self.nbytes_done, False
        number = min(WINDOW, math.ceil((self.nbytes - self.nbytes_done) / PIECE))
        workers = [asyncio.ensure_future(self._worker(conn, grant, home)) for _ in range(number)]
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

    async def _worker(self, conn: Connection, grant: Grant, home: Home) -> None:
        registration = self._registration
        assert registration is not None, "_over() has made it"
        call = home.acq.write if self._writes else home.acq.read
        try:
            while not self._stop and (start := self._next) < self.nbytes:
                if conn.grants.get(self._descriptor.token) is not grant:
                    raise RevokedError("the memory is not exposed any more")
                nbytes = min(PIECE, self.nbytes - start)
                self._next = start + nbytes
                addr = grant.addr + self._at + start
                await call(conn.qp, registration.sge(start, nbytes), addr, grant.rkey)
                self.nbytes_done = max(self.nbytes_done, start + nbytes)
        except BaseException:
            self._stop = True
            raise

    def _release(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.release()


def is_flushed(error: BaseException) -> bool:
    """Whether the queue pair had failed before, for another transfer or another reason."""
    return isinstance(error, CompletionError) and error.wc.status == WCStatus.WR_FLUSH_ERR


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for them, however often the task that waits is cancelled."""
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            continue


# ---- what they are given ----


def check(
    one: Described, needed: Access, offset: int, length: int | None, timeout: object
) -> tuple[int, float | None]:
    """Return how many bytes to transfer, and the seconds for it."""
    if not isinstance(one, Described):
        raise TypeError(f"give a Descriptor, not {type(one).__name__}")
    if not one.access & needed:
        raise PermissionError(
            f"the memory is exposed for {one.access.name}, not for {needed.name}: "
            "expose(..., access=...) says what peers may do"
        )
    offset, length = operator.index(offset), None if length is None else operator.index(length)
    if not 0 <= offset <= one.length:
        raise ValueError(f"offset is {offset}: the memory has {one.length} bytes")
    if length is None:
        length = one.length - offset
    if not 0 <= length <= one.length - offset:
        raise ValueError(
            f"length is {length} at offset {offset}: the memory has {one.length} bytes"
        )
    return length, seconds_of(timeout)


def destination(buffer: AnyBuffer | MR, nbytes: int) -> memoryview | MR:
    """The memory for a get."""
    if isinstance(buffer, MR):
        if buffer.length < nbytes:
            raise ValueError(f"{nbytes} bytes do not fit into an MR of {buffer.length}")
        return buffer
    view = bytes_of(buffer, "into")
    if view.readonly:
        raise TypeError(f"into is a read-only {type(buffer).__name__}: get() writes there")
    if view.nbytes < nbytes:
        raise ValueError(f"{nbytes} bytes do not fit into {view.nbytes}")
    return view[:nbytes]


def new_memory(one: Described, nbytes: int) -> tuple[memoryview, Any]:
    """Memory for a get, and what it returns: an array if all of one is asked for."""
    if one.dtype is not None and one.shape is not None and nbytes == one.length:
        array = new_array(one)
        return bytes_of(array, "into"), array
    try:
        view = memoryview(mmap.mmap(-1, nbytes) if nbytes >= MAPPED else bytearray(nbytes))
    except (OSError, OverflowError) as e:
        raise MemoryError(f"there is no memory for {nbytes} bytes: {e}") from None
    return view, view


def new_array(one: Described) -> Any:
    numpy = importlib.import_module("numpy")
    try:
        dtype = numpy.dtype(one.dtype)
    except TypeError:
        try:
            dtype = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), str(one.dtype)))
        except (ImportError, AttributeError, TypeError):
            raise ValueError(f"dtype {one.dtype!r} is not known here: give into=") from None
    shape = one.shape
    assert shape is not None, "the caller has looked"
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != one.length:
        raise ValueError(f"{one.length} bytes are no array of shape {shape} of {one.dtype}")
    return numpy.empty(shape, dtype, one.order)


def new_get(
    descriptor: Described,
    into: AnyBuffer | MR | None,
    offset: int,
    length: int | None,
    timeout: float | None,
) -> Transfer:
    nbytes, seconds = check(descriptor, Access.READ, offset, length, timeout)
    if into is None:
        buffer, result = new_memory(descriptor, nbytes)
        return Transfer(descriptor, buffer, result, offset, nbytes, False, seconds)
    return Transfer(descriptor, destination(into, nbytes), into, offset, nbytes, False, seconds)


def new_put(
    descriptor: Described, buffer: AnyBuffer | MR, offset: int, timeout: float | None
) -> Transfer:
    source = buffer if isinstance(buffer, MR) else bytes_of(buffer, "buffer")
    nbytes = source.length if isinstance(source, MR) else source.nbytes
    nbytes, seconds = check(descriptor, Access.WRITE, offset, nbytes, timeout)
    return Transfer(descriptor, source, None, offset, nbytes, True, seconds)
