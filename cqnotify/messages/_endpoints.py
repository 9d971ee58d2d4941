# SPDX-License-Identifier: MIT
"""Making connections: the two ends introduce themselves in the private data of rdma_cm."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .. import AsyncEventError, ClosedError, VerbsError, cm
from .._timeouts import check_timeout, deadline, left_until
from . import _wire as wire
from ._connection import Connection
from ._errors import MessagesError, ProtocolError, RefusedError, fresh
from ._event_loop import call_in, check_loop
from ._happy_eyeballs import first_of
from ._inbox import Inbox
from ._options import ConnectionOptions
from ._resources import PEER, Address, Device, Parts
from ._session import Session

if TYPE_CHECKING:
    from typing import Self

# Seconds. A peer whose last word was lost repeats it when rdma_cm asks again, each 5 s or so.
HANDSHAKE: Final = 30.0

# Peers whose connections are being made: each has its queue pair already, so there are only so many
# at a time. When others wait, one that takes longer than PATIENCE seconds makes way for them.
HALF_OPEN: Final = 64
PATIENCE: Final = 3.0
SMALLER_MTU: Final = (
    "the MTU of your port is larger than that of ours: give both network interfaces the same one"
)
NO_ROOM: Final = "there is no room for another connection there"
WAITING: Final = 1024  # requests that wait for that, of which nothing is kept but what was asked


async def connect(
    host: str | Sequence[str],
    port: int,
    *,
    timeout: float | None = 10.0,
    options: ConnectionOptions | None = None,
    source: str | None = None,
) -> Connection:
    """Connect to a program that listens by `listen`.

    host, port: an IP address (of the link, with its interface: fe80::1%eth0); or a name, or
        several addresses: these are tried in turn, each on the device that it leads to. When one
        has not answered within 0.25 s, the next one is tried as well, and the first to accept
        remains.
    timeout: in seconds, until the connection is made; None is as long as the kernel tries.
    options: of this end.
    source: our own address, where several lead to the peer.

    Raises RefusedError if the two ends do not fit, or the peer has no memory for the connection;
    TimeoutError; ConnectionLostError if the peer goes meanwhile, ProtocolError if it breaks the
    protocol; and the errors of `cqnotify.cm.connect`.
    """
    end = deadline(timeout)
    hosts = await cm.lookup(host, timeout=timeout) if isinstance(host, str) else host
    own = options or ConnectionOptions()
    attempts = [(one, partial(_connect, one, port, end, own, source)) for one in hosts]
    return await first_of(attempts, Connection.abort)


async def _connect(
    host: str, port: int, end: float | None, options: ConnectionOptions, source: str | None
) -> Connection:
    """By one address."""
    found = await cm.resolve(host, timeout=left_until(end), source=source)
    parts = Parts(Device.of(found.device), options)
    try:
        parts.make_memory()
        parts.connected(
            await cm.connect(
                parts.qp,
                found.peer,
                port,
                private_data=wire.hello(options),
                timeout=left_until(end),
                on_init=parts.post_receives,
                source=source,
                access=PEER,
                keepalive=options.keepalive,
            )
        )
        assert parts.conn is not None, "it was made"
        session = Session(parts, wire.parse_hello(parts.conn.private_data))
    except BaseException as e:
        parts.close()
        words = wire.parse_refusal(e.private_data) if isinstance(e, cm.RejectedError) else None
        if words is None:
            raise
        raise RefusedError(f"{host} port {port} has refused the connection: {words}") from e
    return await _opened(session, end)


async def _opened(session: Session, end: float | None) -> Connection:
    """The connection, when the peer is ready to receive."""
    conn = Connection(session)
    try:
        await session.open(end)
    except MessagesError:
        await conn.aclose()  # a peer that has broken the protocol is told so
        raise
    except BaseException:
        conn.abort()
        raise
    return conn


class Listener:
    """Where peers connect to: `async with` starts it, `async for` gives the connections.

    Strangers, and peers with another version, are refused, with words that say why; the program
    sees nothing of them. It belongs to the event loop in which its block is entered.
    """

    def __init__(self, host: str, port: int, options: ConnectionOptions, backlog: int) -> None:
        self._options, self._backlog = options, backlog
        self._listener = cm.listen(host, port, backlog=max(backlog, WAITING))
        self._ready: Inbox[Connection] = Inbox("no peer has connected in time")
        self._devices: dict[str, Device] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._half_open: dict[asyncio.Task[None], float] = {}  # and since when; the oldest first
        self._error: Exception | None = None  # why it does not listen any more
        self._loop: asyncio.AbstractEventLoop | None = None  # in which its block was entered

    @property
    def local(self) -> Address:
        """The address that it listens on: a tuple of an IP address and a port."""
        return self._listener.local

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has failed."""
        return self._error is not None

    def __repr__(self) -> str:
        return f"<{self._listener!r} of messages>"

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        self._loop = asyncio.get_running_loop()
        try:
            if (name := self._listener.device) is not None:
                self._open(name)  # now: then the first peer costs no more than those after it
        except BaseException:
            self.close()
            raise
        self._run(self._serve())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self) -> None:
        try:
            while True:
                request = await self._listener.get_request()
                await self._has_place()
                task = self._run(self._welcome(request))
                self._half_open[task] = time.monotonic()
                task.add_done_callback(self._half_open.pop)
        except (ClosedError, OSError) as e:
            self._end(e)

    async def _has_place(self) -> None:
        """Until another connection may be made, or is to be refused."""
        while True:
            places = min(HALF_OPEN, self._backlog - len(self._ready))
            if places <= 0 or len(self._half_open) < places:
                return
            oldest, since = next(iter(self._half_open.items()))
            patience = max(0.0, since + PATIENCE - time.monotonic())
            done, _ = await asyncio.wait(
                self._half_open, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                oldest.cancel()
                await asyncio.wait([oldest])

    async def _welcome(self, request: cm.Request) -> None:
        """One peer, which may take its time without keeping the others waiting."""
        # The peer has gone, or is none; or there is no memory even for an answer.
        with contextlib.suppress(OSError, TimeoutError, MemoryError, AsyncEventError):
            try:
                peer = wire.parse_hello(request.private_data)
                if len(self._ready) >= self._backlog:
                    raise RefusedError("too many connections wait for the program there")
                conn = await self._accept(request, peer)
            except RefusedError as e:
                await request.reject(wire.refusal(str(e)))
                return
            if self._error is not None:
                conn.abort()
            else:
                self._ready.put(conn)

    async def _accept(self, request: cm.Request, peer: wire.Hello) -> Connection:
        parts, end = self._new_parts(request), deadline(HANDSHAKE)
        try:
            await self._answer(request, parts)
            await _complete(parts, end)
            session = Session(parts, peer)
        except BaseException:
            parts.close()
            raise
        session.answer_opening()
        return Connection(session)

    async def _answer(self, request: cm.Request, parts: Parts) -> None:
        try:
            parts.connected(
                await request.accept(
                    parts.qp,
                    private_data=wire.hello(self._options),
                    timeout=HANDSHAKE,
                    on_init=parts.post_opening_receive,
                    access=PEER,
                    keepalive=self._options.keepalive,
                )
            )
        except VerbsError as e:
            if e.errno == errno.EMSGSIZE:
                raise RefusedError(SMALLER_MTU) from e
            raise

    def _open(self, name: str) -> None:
        """Until the listener is closed, so that not each peer opens the device anew."""
        if name not in self._devices:
            self._devices[name] = Device.of(name)

    def _new_parts(self, request: cm.Request) -> Parts:
        name = request.device
        assert name is not None, "a request has come by a device"
        try:
            self._open(name)
            parts = Parts(Device.of(name), self._options)
        except (VerbsError, MemoryError) as e:
            raise RefusedError(f"{NO_ROOM}: {e}") from e
        try:
            parts.make_small_memory()
        except (VerbsError, MemoryError) as e:
            parts.close()
            raise RefusedError(f"{NO_ROOM}: {e}") from e
        return parts

    async def accept(self, timeout: float | None = None) -> Connection:
        """Wait for the next connection. Raises TimeoutError, ClosedError after close, and
        RuntimeError in another event loop."""
        check_timeout(timeout)
        check_loop(self._loop, "this listener")
        if len(self._ready):
            return self._ready.pop().thing
        if self._error is not None:
            raise fresh(self._error)
        return (await self._ready.take(deadline(timeout))).thing

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Connection:
        try:
            return await self.accept()
        except ClosedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Listen no more. Connections that the program has not taken are aborted. May be called in
        any thread; while the listener's event loop runs in another one, it ends in its next turn.
        """
        call_in(self._loop, lambda: self._end(ClosedError("this listener was closed")))

    def _end(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._loop is None or not self._loop.is_closed():
            for task in self._tasks:
                task.cancel()
            self._ready.fail(error)
        try:
            self._listener.close()
        finally:
            while len(self._ready):
                self._ready.pop().thing.abort()
            for device in self._devices.values():
                device.leave()
            self._devices.clear()

    async def aclose(self) -> None:
        """The same; afterwards nothing of it runs any more. Raises RuntimeError in another event
        loop."""
        if self._loop is not None:
            check_loop(self._loop, "this listener")
        try:
            self.close()
        finally:
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            await asyncio.gather(*tasks, return_exceptions=True)


async def _complete(parts: Parts, end: float | None) -> None:
    """Make the memory of a connection when the peer has opened it; a peer is told what fails."""
    try:
        await parts.wait_for_opening(end)
        parts.make_memory()
        parts.post_receives(parts.qp)
    except (VerbsError, MemoryError) as e:
        await parts.refuse(f"{NO_ROOM}: {e}")
        raise
    except ProtocolError as e:
        await parts.refuse(str(e))
        raise
    parts.close_small_memory()


def listen(
    host: str, port: int, *, options: ConnectionOptions | None = None, backlog: int = 64
) -> Listener:
    """Listen on an address, in an `async with` block.

    host: an IP address, or a name; "0.0.0.0" and "::" are all addresses, "::" those of IPv4, too.
    port: 0 chooses one, see `Listener.local`.
    options: of this end of each connection.
    backlog: how many connections may wait for accept(); more peers are refused. Peers that come
        while 64 connections are being made wait for their turn; one that has not completed its
        connection within 3 s then makes way for them.

    Raises VerbsError (EADDRINUSE, EADDRNOTAVAIL) as the block is entered.
    """
    return Listener(host, port, options or ConnectionOptions(), backlog)
