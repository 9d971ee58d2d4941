# SPDX-License-Identifier: MIT
"""The exchange over TCP, with asyncio and with threads; _protocol.py has the steps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias, TypeVar, overload

from .._timeouts import seconds_of, time_until
from ..qp import RECORD_SIZE
from ._listener import Listener, accept, accept_blocking, left
from ._protocol import (
    Addresses,
    Payload,
    Server,
    Steps,
    Theirs,
    as_addresses,
    as_payload,
    client,
    like,
)

DEFAULT_PORT: Final = 18515
"""The TCP port of rdma-core's ping-pong programs."""

DEFAULT_TIMEOUT: Final = 30.0
_RETRY: Final = 0.05
_BACKLOG: Final = 128

_T = TypeVar("_T")
_TurnedAway: TypeAlias = Callable[[str, Exception], object]


def listen(host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> socket.socket:
    """Return a listening socket for `exchange_as_server`, which the caller closes.

    host: the address to listen on.
    port: the TCP port; 0 takes a free one.

    The socket can serve several clients, one after the other or at once. Clients stay in the
    backlog until an exchange waits for them. Closing the socket, in any thread, ends the exchanges
    that still wait for a client.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    return Listener(fileno=plain.detach())


@overload
async def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: None = None,
) -> Addresses: ...
@overload
async def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
async def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Exchange addresses with a server, and return the server's; then connect the QP and send.

    host, port: where the server listens. A refused connection is tried again until the timeout.
    address: the address of our QP, or a list of addresses.
    timeout: the seconds for all of it.
    payload: bytes for the server. The server's are returned, too, then:
        `remote, payload = await exchange_as_client(...)`.
    """
    seconds = seconds_of(timeout)
    steps = client(as_addresses(address), as_payload(payload))

    async def run() -> Theirs:
        return await _drive(steps, *await _open(host, port))

    return _result(address, await _limited(run(), seconds))


@overload
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: None = None,
) -> Addresses: ...
@overload
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Wait for one client, exchange addresses with it, and return the client's.

    listener: what `listen` returned.
    address: the address of our QP, or a list of addresses.
    connect: called with the client's address, or list; it must bring our QP to RTR or RTS. The
        client gets our address only afterwards, since it may send at once.
    timeout: the seconds for all of it.
    turned_away: if given, a client that violates the protocol, or takes longer than 10 seconds, is
        ignored: `turned_away(client, error)` is called, and the next client awaited. Once `connect`
        was called, an error is raised all the same.
    payload: bytes for the client. The client's are returned, too, then.

    Several tasks and threads can wait on one listener; the tasks of an event loop get clients in
    the order in which they began to wait. The listener is non-blocking meanwhile; do not call its
    accept().
    """
    server = Server(address, connect, turned_away, as_payload(payload))
    deadline = time_until(timeout)

    async def serve(sock: socket.socket) -> Theirs:
        streams = await asyncio.open_connection(sock=sock, limit=RECORD_SIZE)
        return await _drive(server.steps(), *streams)

    while True:
        sock, peer = await accept(listener, deadline)
        with sock:
            try:
                theirs = await _limited(serve(sock), server.patience(deadline))
            except (OSError, ValueError) as e:
                server.turn_away(peer, e)
            else:
                return _result(address, theirs)


@overload
def exchange_as_client_blocking(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: None = None,
) -> Addresses: ...
@overload
def exchange_as_client_blocking(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
def exchange_as_client_blocking(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Do what `exchange_as_client` does, without asyncio."""
    steps = client(as_addresses(address), as_payload(payload))
    deadline = time_until(timeout)
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=left(deadline))
        except ConnectionRefusedError:
            time.sleep(min(_RETRY, left(deadline)))
        else:
            break
    with sock:
        return _result(address, _drive_blocking(steps, sock, deadline))


@overload
def exchange_as_server_blocking(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: None = None,
) -> Addresses: ...
@overload
def exchange_as_server_blocking(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
def exchange_as_server_blocking(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Do what `exchange_as_server` does, without asyncio.

    Several threads can wait on one listener; any of them gets the next client.
    """
    server = Server(address, connect, turned_away, as_payload(payload))
    deadline = time_until(timeout)
    while True:
        sock, peer = accept_blocking(listener, deadline)
        with sock:
            limit = time.monotonic() + server.patience(deadline)
            try:
                theirs = _drive_blocking(server.steps(), sock, limit)
            except (OSError, ValueError) as e:
                server.turn_away(peer, e)
            else:
                return _result(address, theirs)


def _result(address: Addresses, theirs: Theirs) -> Addresses | tuple[Addresses, bytes]:
    remote = like(address, theirs.addresses)
    return remote if theirs.payload is None else (remote, theirs.payload)


# ---- asyncio --------------------------------------------------------------------------------


async def _drive(
    steps: Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Theirs:
    gone = contextlib.suppress(OSError)  # the exchange is over: the peer may be gone by now
    try:
        theirs = await _talk(steps, reader, writer)
        writer.close()
        with gone:
            await writer.wait_closed()
        return theirs
    finally:
        writer.transport.abort()  # after an error do not wait until the peer has read everything
        with gone:
            await writer.wait_closed()


async def _talk(steps: Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Theirs:
    try:
        step = next(steps)
        while True:
            try:
                answer = await _step(step, reader, writer)
            except ConnectionError as e:
                step = steps.throw(e)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return _result_of(end)


async def _step(
    step: bytes | int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    if isinstance(step, bytes):
        writer.write(step)
        await writer.drain()
        return b""
    try:
        return await reader.readexactly(step)
    except asyncio.IncompleteReadError as e:
        raise _early_end(len(e.partial), step) from None


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(host, port, limit=RECORD_SIZE)
        except OSError as e:
            # If a host name has several addresses and all refuse, the error has no errno.
            if e.errno not in (errno.ECONNREFUSED, None):
                raise
            await asyncio.sleep(_RETRY)


async def _limited(work: Coroutine[object, object, _T], timeout: float | None) -> _T:
    try:
        return await asyncio.wait_for(work, timeout)
    except TimeoutError:  # before Python 3.11 this is not the builtin one
        raise TimeoutError("the address exchange took too long") from None


# ---- threads --------------------------------------------------------------------------------


def _drive_blocking(steps: Steps, sock: socket.socket, deadline: float) -> Theirs:
    try:
        step = next(steps)
        while True:
            try:
                answer = _step_blocking(step, sock, deadline)
            except ConnectionError as e:
                step = steps.throw(e)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return _result_of(end)


def _step_blocking(step: bytes | int, sock: socket.socket, deadline: float) -> bytes:
    if isinstance(step, bytes):
        sock.settimeout(left(deadline))
        sock.sendall(step)
        return b""
    data = bytearray()
    while len(data) < step:
        sock.settimeout(left(deadline))
        chunk = sock.recv(step - len(data))
        if not chunk:
            raise _early_end(len(data), step)
        data += chunk
    return bytes(data)


def _result_of(end: StopIteration) -> Theirs:
    assert isinstance(end.value, Theirs)
    return end.value


def _early_end(got: int, wanted: int) -> ConnectionError:
    return ConnectionError(f"the peer closed the connection after {got} of {wanted} bytes")
