# SPDX-License-Identifier: MIT
"""The address exchange of rdma-core's ping-pong programs, over TCP, in both roles.

One record of 52 bytes each way (`QPAddress.to_wire`), then the client says "done": so either
end may be ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong. Both ends post their receives and
arm their CQ before the exchange, for a server moves its QP to RTS before it answers, and a client
sends as soon as it has connected its own.

The exchange has neither encryption nor authentication: it is for a network that you trust, and
servers listen on the loopback interface unless told otherwise. What comes in is limited in length
and time and parsed strictly.

Raised by all four functions: ValueError for anything that is not the protocol, ConnectionError
for a peer that closes too early, TimeoutError after `timeout` seconds, OSError for the network's
own errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Final, TypeAlias

from .qp import RECORD_SIZE, QPAddress

__all__ = [
    "exchange_as_client",
    "exchange_as_client_blocking",
    "exchange_as_server",
    "exchange_as_server_blocking",
    "listen",
]

DEFAULT_PORT: Final = 18515
"""The TCP port of rdma-core's ping-pong programs."""

DEFAULT_TIMEOUT: Final = 30.0
_DONE: Final = b"done\0"
_RETRY: Final = 0.05

# The protocol, free of sockets: it yields bytes to write them, or a number to read so many.
_Steps: TypeAlias = Generator["bytes | int", bytes, QPAddress]
_Connect: TypeAlias = Callable[[QPAddress], object]


def listen(host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> socket.socket:
    """Return a listening socket for `exchange_as_server`; port 0 takes a free one.

    The caller closes it, and may serve several clients with it, one after the other.
    """
    return socket.create_server((host, port), backlog=1)


async def exchange_as_client(
    host: str, port: int, address: QPAddress, *, timeout: float = DEFAULT_TIMEOUT
) -> QPAddress:
    """Give our address to a server and return its own; then connect to it and send.

    A server that does not listen yet is tried again until `timeout` is over. See the module for
    what is raised.
    """

    async def run() -> QPAddress:
        reader, writer = await _open(host, port)
        return await _drive(_client(address), reader, writer)

    return await _limited(run(), timeout)


async def exchange_as_server(
    listener: socket.socket,
    address: QPAddress,
    connect: _Connect,
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> QPAddress:
    """Wait for one client on `listener`, give it our address and return its own.

    `connect(remote)` has to bring our QP to RTS, or to RTR at least: it is called before we
    answer, since the client may send at once. See the module for what is raised.
    """

    async def run() -> QPAddress:
        with _nonblocking(listener):
            sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=RECORD_SIZE)
        except BaseException:
            sock.close()
            raise
        return await _drive(_server(address, connect), reader, writer)

    return await _limited(run(), timeout)


def exchange_as_client_blocking(
    host: str, port: int, address: QPAddress, *, timeout: float = DEFAULT_TIMEOUT
) -> QPAddress:
    """Do what `exchange_as_client` does, without asyncio."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=_left(deadline))
        except ConnectionRefusedError:
            time.sleep(min(_RETRY, _left(deadline)))
        else:
            break
    with sock:
        return _drive_blocking(_client(address), sock, deadline)


def exchange_as_server_blocking(
    listener: socket.socket,
    address: QPAddress,
    connect: _Connect,
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> QPAddress:
    """Do what `exchange_as_server` does, without asyncio."""
    deadline = time.monotonic() + timeout
    before = listener.gettimeout()
    listener.settimeout(_left(deadline))
    try:
        sock, _ = listener.accept()
    finally:
        listener.settimeout(before)
    with sock:
        return _drive_blocking(_server(address, connect), sock, deadline)


def _client(address: QPAddress) -> _Steps:
    yield address.to_wire()
    remote = QPAddress.from_wire((yield RECORD_SIZE))
    yield _DONE
    return remote


def _server(address: QPAddress, connect: _Connect) -> _Steps:
    remote = QPAddress.from_wire((yield RECORD_SIZE))
    connect(remote)
    yield address.to_wire()
    done = yield len(_DONE)
    if done != _DONE:
        raise ValueError(f"the peer ended the exchange with {done!r} instead of {_DONE!r}")
    return remote


async def _drive(
    steps: _Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> QPAddress:
    try:
        step = next(steps)
        while True:
            answer = b""
            if isinstance(step, int):
                answer = await reader.readexactly(step)
            else:
                writer.write(step)
                await writer.drain()
            step = steps.send(answer)
    except StopIteration as end:
        return _result(end)
    except asyncio.IncompleteReadError as e:
        raise _early_end(len(e.partial), e.expected or 0) from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # the other end may be gone by now, and need not tell
            await writer.wait_closed()


def _drive_blocking(steps: _Steps, sock: socket.socket, deadline: float) -> QPAddress:
    try:
        step = next(steps)
        while True:
            answer = b""
            sock.settimeout(_left(deadline))
            if isinstance(step, int):
                answer = _read_exactly(sock, step, deadline)
            else:
                sock.sendall(step)
            step = steps.send(answer)
    except StopIteration as end:
        return _result(end)


def _read_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(_left(deadline))
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise _early_end(len(data), size)
        data += chunk
    return data


def _result(end: StopIteration) -> QPAddress:
    assert isinstance(end.value, QPAddress)
    return end.value


def _early_end(got: int, wanted: int) -> ConnectionError:
    return ConnectionError(f"the peer closed the connection after {got} of {wanted} bytes")


def _left(deadline: float) -> float:
    """The seconds until `deadline`; TimeoutError when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the address exchange took too long")
    return left


async def _open(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(host, port, limit=RECORD_SIZE)
        except OSError as e:
            # A name with several addresses, all of which refuse, is an error without errno.
            if e.errno not in (errno.ECONNREFUSED, None):
                raise
            await asyncio.sleep(_RETRY)


async def _limited(work: Coroutine[object, object, QPAddress], timeout: float) -> QPAddress:
    try:
        return await asyncio.wait_for(work, timeout)
    except asyncio.TimeoutError:  # before Python 3.11 this is not the builtin one
        raise TimeoutError("the address exchange took too long") from None


@contextlib.contextmanager
def _nonblocking(sock: socket.socket) -> Iterator[None]:
    """Lend a socket to the event loop, which needs it non-blocking."""
    before = sock.gettimeout()
    sock.setblocking(False)
    try:
        yield
    finally:
        sock.settimeout(before)
