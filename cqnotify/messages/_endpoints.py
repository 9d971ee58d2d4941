# SPDX-License-Identifier: MIT
"""connect() and listen(): the two ends exchange hellos in the private data of rdma_cm."""

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
from .._happy_eyeballs import first_of
from .._timeouts import check_timeout, deadline, left_until
from . import _wire as wire
from ._connection import Connection
from ._errors import MessagesError, ProtocolError, RefusedError, fresh
from ._event_loop import call_in, check_loop
from ._inbox import Inbox
from ._options import ConnectionOptions
from ._resources import PEER_ACCESS, Address, Device, Resources
from ._session import Session

if TYPE_CHECKING:
    from typing import Self

# Seconds. If the last message of the handshake was lost, rdma_cm repeats it every 5 s or so.
HANDSHAKE_TIMEOUT: Final = 30.0

# Peers whose connections are being made: each has its queue pair already, so there are only so many
# at a time. When others wait, one that takes longer than HALF_OPEN_TIMEOUT makes way for them.
MAX_HALF_OPEN: Final = 64
HALF_OPEN_TIMEOUT: Final = 3.0  # seconds
SMALLER_MTU: Final = (
    "the MTU of your port is larger than that of ours: give both network interfaces the same one"
)
NO_ROOM: Final = "there is no room for another connection there"
MAX_WAITING: Final = 1024  # requests that wait for that; nothing else is kept for them


async def connect(
    host: str | Sequence[str],
    port: int,
    *,
    timeout: float | None = 10.0,
    options: ConnectionOptions | None = None,
    source: str | None = None,
) -> Connection:
    """Connect to a program that listens by `listen`.

    host: an IP address (a link-local one with its interface: fe80::1%eth0); or a name, or several
        addresses: these are tried one after the other, each on the device that it leads to. If one
        has not answered within 0.25 s, the next one is tried as well, and the first that accepts is
        used; if none does, the error has the text of each.
    port: 1 to 65535.
    timeout: in seconds, until the connection is made; None is as long as the kernel tries.
    options: of this end; by default `ConnectionOptions()`.
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
    """Connect to one address."""
    found = await cm.resolve(host, timeout=left_until(end), source=source)
    resources = Resources(Device.of(found.device), options)
    try:
        resources.make_memory()
        resources.on_connected(
            await cm.connect(
                resources.qp,
                found.peer,
                port,
                private_data=wire.hello(options),
                timeout=left_until(end),
                on_init=resources.post_receives,
                source=source,
                access=PEER_ACCESS,
                keepalive=options.keepalive,
            )
        )
        assert resources.conn is not None, "it was made"
        session = Session(resources, wire.parse_hello(resources.conn.private_data))
    except BaseException as e:
        resources.close()
        text = wire.parse_refusal(e.private_data) if isinstance(e, cm.RejectedError) else None
        if text is None:
            raise
        raise RefusedError(f"{host} port {port} has refused the connection: {text}") from e
    return await _opened(session, end)


async def _opened(session: Session, end: float | None) -> Connection:
    """Return the connection when the peer has posted its receives."""
    conn = Connection(session)
    try:
        await session.open_as_connector(end)
    except MessagesError:
        await conn.aclose()  # a peer that has broken the protocol gets an ERROR
        raise
    except BaseException:
        conn.abort()
        raise
    return conn


class Listener:
    """Where peers connect to: `async with` starts it, `async for` gives the connections.

    Strangers, and peers with another version, are refused, with a text that says why; the program
    sees nothing of them. It belongs to the event loop in which its block is entered.
    """

    def __init__(self, host: str, port: int, options: ConnectionOptions, backlog: int) -> None:
        self._options, self._backlog = options, backlog
        self._listener = cm.listen(host, port, backlog=max(backlog, MAX_WAITING))
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
                await self._wait_for_place()
                task = self._run(self._handshake(request))
                self._half_open[task] = time.monotonic()
                task.add_done_callback(self._half_open.pop)
        except (ClosedError, OSError) as e:
            self._end(e)

    async def _wait_for_place(self) -> None:
        """Wait until another connection may be made, or is to be refused. If none of those that
        are being made ends in time, the oldest is cancelled."""
        while True:
            places = min(MAX_HALF_OPEN, self._backlog - len(self._ready))
            if places <= 0 or len(self._half_open) < places:
                return
            oldest, since = next(iter(self._half_open.items()))
            left = max(0.0, since + HALF_OPEN_TIMEOUT - time.monotonic())
            done, _ = await asyncio.wait(
                self._half_open, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                oldest.cancel()
                await asyncio.wait([oldest])

    async def _handshake(self, request: cm.Request) -> None:
        """Make a connection with one peer, in a task of its own, so that others need not wait."""
        # The peer has gone, or is none; or there is no memory even for a rejection.
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
        resources, end = self._new_resources(request), deadline(HANDSHAKE_TIMEOUT)
        try:
            await self._accept_request(request, resources)
            await _complete_handshake(resources, end)
            session = Session(resources, peer)
        except BaseException:
            resources.close()
            raise
        session.open_as_acceptor()
        return Connection(session)

    async def _accept_request(self, request: cm.Request, resources: Resources) -> None:
        try:
            resources.on_connected(
                await request.accept(
                    resources.qp,
                    private_data=wire.hello(self._options),
                    timeout=HANDSHAKE_TIMEOUT,
                    on_init=resources.post_handshake_receive,
                    access=PEER_ACCESS,
                    keepalive=self._options.keepalive,
                )
            )
        except VerbsError as e:
            if e.errno == errno.EMSGSIZE:
                raise RefusedError(SMALLER_MTU) from e
            raise

    def _open(self, name: str) -> None:
        """Keep a device open until the listener is closed, for the peers to come."""
        if name not in self._devices:
            self._devices[name] = Device.of(name)

    def _new_resources(self, request: cm.Request) -> Resources:
        name = request.device
        assert name is not None, "a request has come by a device"
        try:
            self._open(name)
            resources = Resources(Device.of(name), self._options)
        except (VerbsError, MemoryError) as e:
            raise RefusedError(f"{NO_ROOM}: {e}") from e
        try:
            resources.make_handshake_memory()
        except (VerbsError, MemoryError) as e:
            resources.close()
            raise RefusedError(f"{NO_ROOM}: {e}") from e
        return resources

    async def accept(self, timeout: float | None = None) -> Connection:
        """Wait for the next connection; `async for conn in listener` does the same until it is
        closed.

        timeout: in seconds; None waits for ever.

        Raises TimeoutError, ClosedError after close, and RuntimeError in another event loop.
        """
        check_timeout(timeout)
        check_loop(self._loop, "this listener")
        if len(self._ready):
            return self._ready.pop().item
        if self._error is not None:
            raise fresh(self._error)
        return (await self._ready.get(deadline(timeout))).item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Connection:
        try:
            return await self.accept()
        except ClosedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Stop listening. Connections that accept() has not returned are aborted. May be called in
        any thread; while the listener's event loop runs in another one, it ends in the loop's next
        iteration.
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
                self._ready.pop().item.abort()
            for device in self._devices.values():
                device.leave()
            self._devices.clear()

    async def aclose(self) -> None:
        """Listen no more, as close() does; afterwards nothing of it runs any more. Raises
        RuntimeError in another event loop.
        """
        if self._loop is not None:
            check_loop(self._loop, "this listener")
        try:
            self.close()
        finally:
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            await asyncio.gather(*tasks, return_exceptions=True)


async def _complete_handshake(resources: Resources, end: float | None) -> None:
    """Wait for the initial ACK, and make the memory. Send an ERROR if that fails."""
    try:
        await resources.wait_first_frame(end)
        resources.make_memory()
        resources.post_receives(resources.qp)
    except (VerbsError, MemoryError) as e:
        await resources.send_error(f"{NO_ROOM}: {e}")
        raise
    except ProtocolError as e:
        await resources.send_error(str(e))
        raise
    resources.close_handshake_memory()


def listen(
    host: str, port: int, *, options: ConnectionOptions | None = None, backlog: int = 64
) -> Listener:
    """Listen on an address, in an `async with` block.

    host: an IP address, or a name; "0.0.0.0" and "::" are all addresses, "::" those of IPv4, too.
    port: 0 chooses one, see `Listener.local`.
    options: of this end of each connection.
    backlog: how many connections may wait for accept(); further peers are refused. While 64
        connections are being made, new peers wait; a peer that has then not completed its
        connection within 3 s is closed to make way for them.

    Raises VerbsError (EADDRINUSE, EADDRNOTAVAIL) as the block is entered.
    """
    return Listener(host, port, options or ConnectionOptions(), backlog)
