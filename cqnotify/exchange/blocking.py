# SPDX-License-Identifier: MIT
"""The address exchange for threads: what `cqnotify.exchange` has for asyncio.

    with exchange.listen() as listener:
        remote = blocking.exchange_as_server(listener, qp.address(), qp.connect)

The calls wait without the GIL, and Ctrl-C ends them. A task of trio calls them by
`trio.to_thread.run_sync`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import overload

from .._timeouts import time_until
from ._listener import accept_blocking, left
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

__all__ = ["exchange_as_client", "exchange_as_server"]


@overload
def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: None = None,
) -> Addresses: ...
@overload
def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
def exchange_as_client(
    host: str,
    port: int,
    address: Addresses,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Exchange addresses with a server, and return the server's.

    The parameters are those of `cqnotify.exchange.exchange_as_client`, and so are the errors.
    """
    steps = client(as_addresses(address), as_payload(payload))
    deadline = time_until(timeout)
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=left(deadline))
        except ConnectionRefusedError:
            time.sleep(min(RETRY, left(deadline)))
        else:
            break
    with sock:
        return result(address, _drive(steps, sock, deadline))


@overload
def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: None = None,
) -> Addresses: ...
@overload
def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: Payload,
) -> tuple[Addresses, bytes]: ...
def exchange_as_server(
    listener: socket.socket,
    address: Addresses,
    connect: Callable[[Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    on_reject: OnReject | None = None,
    payload: Payload | None = None,
) -> Addresses | tuple[Addresses, bytes]:
    """Wait for one client, exchange addresses with it, and return the client's.

    The parameters are those of `cqnotify.exchange.exchange_as_server`, and so are the errors.
    Several threads can wait on one listener; any of them gets the next client.
    """
    server = Server(address, connect, on_reject, as_payload(payload))
    deadline = time_until(timeout)
    while True:
        sock, peer = accept_blocking(listener, deadline)
        with sock:
            limit = time.monotonic() + server.client_timeout(deadline)
            try:
                theirs = _drive(server.steps(), sock, limit)
            except (OSError, ValueError) as e:
                server.reject(peer, e)
            else:
                return result(address, theirs)


def _drive(steps: Steps, sock: socket.socket, deadline: float) -> Theirs:
    try:
        step = next(steps)
        while True:
            try:
                answer = _step(step, sock, deadline)
            except ConnectionError as e:
                step = steps.throw(e)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return result_of(end)


def _step(step: bytes | int, sock: socket.socket, deadline: float) -> bytes:
    if isinstance(step, bytes):
        sock.settimeout(left(deadline))
        sock.sendall(step)
        return b""
    data = bytearray()
    while len(data) < step:
        sock.settimeout(left(deadline))
        chunk = sock.recv(step - len(data))
        if not chunk:
            raise early_end(len(data), step)
        data += chunk
    return bytes(data)
