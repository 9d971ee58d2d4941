# SPDX-License-Identifier: MIT
"""This process among others: its id, where it listens, and its connections, one for each peer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from .. import AsyncEventError, ClosedError, VerbsError, cm, devices
from .._happy_eyeballs import first_of
from .._printable import printable
from .._registered import Device
from . import _wire as wire
from ._connection import PEER_ACCESS, Again, Connection, Grant
from ._descriptor import PROCESS_SIZE
from ._errors import ConnectionLostError, RefusedError
from ._exposure import AnyDescriptor, Exposure, Table
from ._service import CLOSED, Service, at_exit, in_child

_T = TypeVar("_T")

CONNECT_TIMEOUT: Final = 10.0  # seconds
CROSSED: Final = b"cqnM crossed"  # both connect at a time: the peer uses our connection
CROSSED_TIMEOUT: Final = 10.0  # seconds until that has arrived
ATTEMPTS: Final = 8  # connections that are lost while a token is opened
MAX_HALF_OPEN: Final = 64  # peers whose connections are being made
KEEPALIVE: Final = 60.0  # seconds, of the end that has accepted: it may send nothing for long
IDLE: Final = 60.0  # seconds


class _Crossed(ConnectionError):
    """The peer connects to us at the same time."""


class Process:
    """The only one of its interpreter, until it is closed.

    connections: by the id of the peer's process, in hexadecimal.
    idle: after how many seconds a connection that neither end uses is closed.
    """

    def __init__(self) -> None:
        self.id: bytes = os.urandom(PROCESS_SIZE)
        self.connections: dict[str, Connection] = {}
        self.idle: float = IDLE
        self.service: Service = Service()
        self.table: Table = Table(self.service, self.id.hex())
        self._all: set[Connection] = set()
        self._making: dict[str, asyncio.Future[Connection | None]] = {}
        self._devices: dict[str, Device] = {}
        self._default: Device | None = None
        self._half_open = 0
        self._is_closed = False
        self._lock = threading.Lock()

    # ---- listening ----

    def device(self, name: str | None = None) -> Device:
        """A device, by default the first one; it stays open."""
        if name is None and self._default is not None:
            return self._default
        if name is None:
            found = devices()
            if not found:
                raise LookupError("there is no RDMA device: peers cannot reach this process")
            name = found[0].name
        with self._lock:
            device = self._devices.get(name)
            if device is None:
                device = self._devices[name] = Device.of(name)
                device.pool()  # which keeps registrations as long as it has a user
                self._default = self._default or device
            return device

    def listen(self, host: str | None, port: int) -> None:
        """Listen, unless it does already."""
        if not self.table.port:
            self.service.run(self._listen(host, port)).result()

    async def _listen(self, host: str | None, port: int) -> None:
        if self.table.port:  # another thread was faster
            return
        hosts = [] if host is None else [host]
        for one in devices() if host is None else []:
            hosts += cm.local_addresses(self.device(one.name).context)
        hosts = [one for one in hosts if "%" not in one] or hosts
        if not hosts:
            raise LookupError("no RDMA device of this host has an IP address: give its port one")
        has_ipv4 = any(":" not in one for one in hosts)
        where = host if host is not None else "0.0.0.0" if has_ipv4 else "::"
        if where == "0.0.0.0":
            hosts = [one for one in hosts if ":" not in one]
        listener = cm.listen(where, port)
        await listener.__aenter__()
        self.table.hosts, self.table.port = tuple(hosts), listener.local[1]
        self.service.start(self._serve(listener))

    async def _serve(self, listener: cm.Listener) -> None:
        try:
            async for request in listener:
                if self._half_open >= MAX_HALF_OPEN:
                    await request.reject(b"too many connections are being made there")
                else:
                    self._half_open += 1
                    self.service.start(self._accept(request))
        finally:
            listener.close()

    async def _accept(self, request: cm.Request) -> None:
        try:
            with contextlib.suppress(OSError, MemoryError, AsyncEventError, ClosedError):
                try:
                    own = await self._accepted(request)
                except (RefusedError, _Crossed, wire.ProtocolError) as e:
                    own = None
                    await request.reject(CROSSED if isinstance(e, _Crossed) else str(e).encode())
                if own is not None and own.peer != self.id:
                    self._set_connection(own)
        finally:
            self._half_open -= 1

    async def _accepted(self, request: cm.Request) -> Connection:
        peer, wanted = wire.parse_hello(request.private_data)
        if wanted != self.id:
            raise RefusedError("another process listens there now")
        if peer.hex() in self._making and peer > self.id:
            raise _Crossed
        assert request.device is not None, "a request has come by a device"
        try:
            conn = self._new_connection(request.device)
        except (VerbsError, MemoryError) as e:
            raise RefusedError(f"there is no room for another connection there: {e}"[:140]) from e
        try:
            made = await request.accept(
                conn.qp,
                private_data=wire.hello(self.id, peer),
                on_init=conn.post_receives,
                access=PEER_ACCESS,
                keepalive=None if conn.device.is_iwarp else KEEPALIVE,
            )
        except BaseException:
            conn.fail()
            raise
        conn.begin(made, peer)
        return conn

    # ---- connections; in the thread of the service ----

    def _new_connection(self, device: str) -> Connection:
        conn = Connection(self.device(device), self.service, self.table)
        self._all.add(conn)
        conn.ended.add_done_callback(partial(self._ended, conn))
        return conn

    def _ended(self, conn: Connection, _: object) -> None:
        self._all.discard(conn)
        self._remove(conn)

    def _remove(self, conn: Connection) -> None:
        if self.connections.get(conn.peer.hex()) is conn:
            del self.connections[conn.peer.hex()]

    def _set_connection(self, conn: Connection) -> None:
        if conn.error is None:
            self.connections[conn.peer.hex()] = conn
            making = self._making.get(conn.peer.hex())
            if making is not None and not making.done():
                making.set_result(conn)

    async def connection_to(self, one: AnyDescriptor) -> Connection:
        """The connection to the process of a descriptor. Made if there is none."""
        while True:
            if self._is_closed:
                raise ClosedError(CLOSED)
            conn = self.connections.get(one.process)
            if conn is not None and conn.error is None and not conn.is_retired:
                return conn
            making = self._making.get(one.process)
            if making is None:
                making = self._making[one.process] = self.service.loop.create_future()
                self.service.start(self._make(one, making))
            made = await asyncio.shield(making)
            if made is not None and made.error is None:
                return made

    async def _make(self, one: AnyDescriptor, making: asyncio.Future[Connection | None]) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT + CROSSED_TIMEOUT):
                try:
                    conn = await self._connect(one)
                except _Crossed:
                    await asyncio.wait([making])
                else:
                    self._set_connection(conn)
                    self.service.start(self._watch_idle(conn))
        except Exception as e:
            if not making.done():
                making.set_exception(_explained(e))
                making.exception()  # perhaps nobody waits any more
        finally:
            del self._making[one.process]
            if not making.done():
                making.cancel()

    async def _connect(self, one: AnyDescriptor) -> Connection:
        attempts = [(host, partial(self._connect_to, host, one)) for host in one.hosts]
        return await first_of(attempts, lambda conn: conn.lose("another address was faster"))

    async def _connect_to(self, host: str, one: AnyDescriptor) -> Connection:
        peer = bytes.fromhex(one.process)
        found = await cm.resolve(host, timeout=CONNECT_TIMEOUT)
        conn = self._new_connection(found.device)
        try:
            made = await cm.connect(
                conn.qp,
                found.peer,
                one.port,
                private_data=wire.hello(self.id, peer),
                timeout=CONNECT_TIMEOUT,
                on_init=conn.post_receives,
                access=PEER_ACCESS,
            )
            if wire.parse_hello(made.private_data)[0] != peer:
                made.close()
                raise RefusedError("another process listens there")
        except cm.RejectedError as e:
            conn.fail()
            said = e.private_data.rstrip(b"\0")
            if said == CROSSED:
                raise _Crossed from e
            text = printable(said) or f"no process listens there: {e}"
            raise RefusedError(f"{host} port {one.port} has refused the connection: {text}") from e
        except BaseException:
            conn.fail()
            raise
        conn.begin(made, peer)
        return conn

    async def _watch_idle(self, conn: Connection) -> None:
        """Close a connection that we have made when neither end uses it."""
        while not conn.ended.done():
            await asyncio.wait([conn.ended], timeout=self.idle)
            if conn.ended.done() or conn.is_used():
                continue
            answer = conn.ask_idle()
            await asyncio.wait([answer])
            if answer.result():
                conn.lose("it was not used")
            else:
                conn.is_retired = False

    # ---- for transfers ----

    def find(self, one: AnyDescriptor) -> tuple[Connection, Grant] | None:
        """The connection over which a token was granted already. In any thread."""
        conn = self.connections.get(one.process)
        if conn is None or conn.is_retired or conn.error is not None:
            return None
        grant = conn.grants.get(one.token)
        return None if grant is None else (conn, grant)

    async def granted(self, one: AnyDescriptor) -> tuple[Connection, Grant]:
        lost: ConnectionLostError | None = None
        for _ in range(ATTEMPTS):
            try:
                conn = await self.connection_to(one)
                return conn, await conn.open(one.token)
            except Again as e:
                lost = e.lost
            except RefusedError as e:  # perhaps the process of the peer has ended meanwhile
                raise (e if lost is None else lost) from None
        assert lost is not None, "every attempt has failed"
        raise lost

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """A call is about to block the running loop: no connection may be used there."""
        for conn in list(self.connections.values()):
            conn.leave(loop)

    # ---- ending ----

    def close(self) -> None:
        self.table.close()
        self.service.run(self._close()).result()
        self.service.close()
        for device in self._devices.values():
            device.default_pool.leave()
            device.leave()
        self._devices.clear()

    async def _close(self) -> None:
        self._is_closed = True
        await self.service.end_started()
        while self._all:
            for conn in self._all:
                conn.lose(CLOSED)
            await asyncio.wait([conn.ended for conn in self._all])
            await asyncio.sleep(0)  # for the callbacks of `ended`

    def forget(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.table.forget_all()
        self.service.forget()


def _explained(error: Exception) -> Exception:
    if isinstance(error, ConnectionLostError | RefusedError):
        return error
    if isinstance(error, OSError | TimeoutError | wire.ProtocolError):
        lost = ConnectionLostError(f"no connection can be made: {error}")
        lost.__cause__ = error
        return lost
    return error


_current: Process | None = None
_parents: list[Process] = []  # of a forked child, which must not close what it shares with them
_lock = threading.RLock()


def _none(memory: object, access: object) -> None:
    """There is no process yet."""


# Exposes memory that is registered already, without a system call; returns None for other memory.
expose_registered: Callable[[Any, Any], Exposure | None] = _none


def current() -> Process:
    """The process, which starts its service with the first call."""
    global _current, expose_registered
    process = _current
    if process is None:
        with _lock:
            process = _current
            if process is None:
                process = _current = Process()
                expose_registered = process.table._expose
    return process


def end() -> None:
    """Close it; the next current() makes another, with another id."""
    global _current, expose_registered
    with _lock:
        process, _current, expose_registered = _current, None, _none
    if process is not None:
        process.close()


def _forget() -> None:
    """In a forked child: the thread, the connections and the exposures are the parent's."""
    global _current, _lock, expose_registered
    process, _current, _lock = _current, None, threading.RLock()
    expose_registered = _none
    if process is not None:
        process.forget()
        _parents.append(process)


at_exit(end)
in_child(_forget)


async def in_service(process: Process, coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run it in the service for a task of another loop. Cancelling that task cancels it, and waits
    until it has ended."""
    outcome: Future[_T] = Future()
    run = Running(process, coroutine, outcome)
    ended = asyncio.wrap_future(outcome)
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as e:
            cancelled = e
            run.cancel()
    if cancelled is not None:
        if not ended.cancelled():
            ended.exception()  # which nobody gets
        raise cancelled
    return ended.result()


class Running:
    """A coroutine that runs in the service; its outcome goes to a future of any thread."""

    def __init__(
        self, process: Process, coroutine: Coroutine[Any, Any, _T], outcome: Future[_T]
    ) -> None:
        self._service = process.service
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        if not self._service.call(self._start, coroutine, outcome):
            coroutine.close()
            outcome.set_exception(ClosedError(CLOSED))

    def _start(self, coroutine: Coroutine[Any, Any, Any], outcome: Future[Any]) -> None:
        self._task = task = self._service.loop.create_task(coroutine)
        task.add_done_callback(partial(self._hand_over, outcome))

    def cancel(self) -> None:
        """Cancel it, soon."""

        def cancel() -> None:
            self._is_cancelled = True
            if self._task is not None:
                self._task.cancel()

        self._service.call(cancel)

    def _hand_over(self, outcome: Future[Any], task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            cancelled = self._is_cancelled
            outcome.set_exception(asyncio.CancelledError() if cancelled else ClosedError(CLOSED))
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())
