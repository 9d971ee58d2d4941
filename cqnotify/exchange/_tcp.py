# SPDX-License-Identifier: MIT
"""The exchange over TCP, with asyncio and with threads, as _protocol.py tells each end's steps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias, TypeVar, overload

from ..qp import RECORD_SIZE
from ._listener import Listener, accept, accept_blocking, left
from ._protocol import (
    Addresses,
    Met,
    Payload,
    Server,
    Steps,
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
    """Return a listening socket for `exchange_as_server`; port 0 takes a free one.

    The caller closes it, and may serve several clients with it, one after the other or at once.
    Closing it, in any thread, ends the exchanges that still wait for a client. Those that nobody
    waits for yet stay in the backlog.
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
    """Give our address to a server and return its own; then connect to it and send.

    A server that does not listen yet is tried again until `timeout` is over. With `payload` the
    server's is returned, too: `remote, payload = await exchange_as_client(...)`.
    """
    steps = client(as_addresses(address), as_payload(payload))

    async def run() -> Met:
        return await _drive(steps, *await _open(host, port))

    return _result(address, await _limited(run(), timeout))


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
    """Wait for one client on `listener`, give it our address and return its own.

    `connect(remote)` has to bring our QP to RTS, or to RTR at least: it is called before we
    answer, since the client may send at once. With `payload` the client's is returned, too.

    Several may wait on one listener; those of one event loop get their clients in the order in
    which they began to wait. Meanwhile the listener is non-blocking: leave its accept() alone.

    With `turned_away`, a client that violates the protocol is ignored: `turned_away(who, why)` is
    called, and the next one awaited, until `timeout` is over. The same goes for a client that
    takes longer than 10 seconds. But once `connect` was called, there is no other.
    """
    server = Server(address, connect, turned_away, as_payload(payload))
    deadline = time.monotonic() + timeout

    async def serve(sock: socket.socket) -> Met:
        streams = await asyncio.open_connection(sock=sock, limit=RECORD_SIZE)
        return await _drive(server.steps(), *streams)

    while True:
        sock, who = await accept(listener, deadline)
        with sock:
            try:
                met = await _limited(serve(sock), server.patience(deadline))
            except (OSError, ValueError) as e:
                server.turn_away(who, e)
            else:
                return _result(address, met)


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
    deadline = time.monotonic() + timeout
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

    Several threads may wait on one listener; which of them gets the next client is open.
    """
    server = Server(address, connect, turned_away, as_payload(payload))
    deadline = time.monotonic() + timeout
    while True:
        sock, who = accept_blocking(listener, deadline)
        with sock:
            limit = time.monotonic() + server.patience(deadline)
            try:
                met = _drive_blocking(server.steps(), sock, limit)
            except (OSError, ValueError) as e:
                server.turn_away(who, e)
            else:
                return _result(address, met)


def _result(address: Addresses, met: Met) -> Addresses | tuple[Addresses, bytes]:
    remote = like(address, met.addresses)
    return remote if met.payload is None else (remote, met.payload)


# ---- asyncio --------------------------------------------------------------------------------


async def _drive(steps: Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Met:
    gone = contextlib.suppress(OSError)  # the other end may be gone by now, and need not tell
    try:
        met = await _talk(steps, reader, writer)
        writer.close()
        with gone:
            await writer.wait_closed()
        return met
    finally:
        writer.transport.abort()  # after an error nobody waits until the peer has read everything
        with gone:
            await writer.wait_closed()


async def _talk(steps: Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Met:
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
        return _met(end)


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
            # A name with several addresses, all of which refuse, is an error without errno.
            if e.errno not in (errno.ECONNREFUSED, None):
                raise
            await asyncio.sleep(_RETRY)


async def _limited(work: Coroutine[object, object, _T], timeout: float) -> _T:
    try:
        return await asyncio.wait_for(work, timeout)
    except asyncio.TimeoutError:  # before Python 3.11 this is not the builtin one
        raise TimeoutError("the address exchange took too long") from None


# ---- threads --------------------------------------------------------------------------------


def _drive_blocking(steps: Steps, sock: socket.socket, deadline: float) -> Met:
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
        return _met(end)


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


def _met(end: StopIteration) -> Met:
    assert isinstance(end.value, Met)
    return end.value


def _early_end(got: int, wanted: int) -> ConnectionError:
    return ConnectionError(f"the peer closed the connection after {got} of {wanted} bytes")
