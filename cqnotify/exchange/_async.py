# SPDX-License-Identifier: MIT
"""The exchange over TCP with asyncio; blocking.py has the same for threads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import TypeVar, overload

from .._timeouts import seconds_of, time_until
from ..qp import RECORD_SIZE
from ._listener import accept
from ._protocol import (
    DEFAULT_TIMEOUT,
    RETRY,
    Addresses,
    OnReject,
    Payload,
    Server,
    Steps,
    Theirs,
    as_addresses,
    as_payload,
    client,
    early_end,
    result,
    result_of,
)

_T = TypeVar("_T")


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
    payload: up to 65536 bytes for the server. The server's are returned, too, then:
        `remote, payload = await exchange_as_client(...)`.

    Raises TimeoutError; ValueError if the server violates the protocol; ConnectionError if it
    closes the connection too early; other OSErrors of the network.
    """
    seconds = seconds_of(timeout)
    steps = client(as_addresses(address), as_payload(payload))

    async def run() -> Theirs:
        return await _drive(steps, *await _open(host, port))

    return result(address, await _limited(run(), seconds))


@overload
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: None = None,
) -> Addresses: ...
@overload
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
async def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Wait for one client, exchange addresses with it, and return the client's.

    listener: what `listen` returned.
    address: the address of our QP, or a list of addresses.
    connect: called with the client's address, or list; it must bring our QP to RTR or RTS. The
        client gets our address only afterwards, since it may send at once.
    timeout: the seconds for all of it.
    on_reject: if given, a client that violates the protocol, or takes longer than 10 seconds, is
        ignored: `on_reject(client, error)` is called, with the client's host and port as text, and
        the next client awaited. Once `connect` was called, an error is raised all the same.
    payload: up to 65536 bytes for the client. The client's are returned, too, then.

    Several tasks and threads can wait on one listener; the tasks of an event loop get clients in
    the order in which they began to wait. The listener is non-blocking meanwhile; do not call its
    accept().

    Raises TimeoutError; ValueError if the client violates the protocol; ConnectionError if it
    closes the connection too early; other OSErrors of the network, and (EBADF) after the listener
    was closed.
    """
    server = Server(address, connect, on_reject, as_payload(payload))
    deadline = time_until(timeout)

    async def serve(sock: socket.socket) -> Theirs:
        streams = await asyncio.open_connection(sock=sock, limit=RECORD_SIZE)
        return await _drive(server.steps(), *streams)

    while True:
        sock, peer = await accept(listener, deadline)
        with sock:
            try:
                theirs = await _limited(serve(sock), server.client_timeout(deadline))
            except (OSError, ValueError) as e:
                server.reject(peer, e)
            else:
                return result(address, theirs)


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
        return result_of(end)


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
        raise early_end(len(e.partial), step) from None


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(host, port, limit=RECORD_SIZE)
        except OSError as e:
            # If a host name has several addresses and all refuse, the error has no errno.
            if e.errno not in (errno.ECONNREFUSED, None):
                raise
            await asyncio.sleep(RETRY)


async def _limited(work: Coroutine[object, object, _T], timeout: float | None) -> _T:
    try:
        return await asyncio.wait_for(work, timeout)
    except TimeoutError:  # its own text is empty
        raise TimeoutError("the address exchange took too long") from None
