# SPDX-License-Identifier: MIT
"""The address exchange of rdma-core's ping-pong programs, over TCP, in both roles.

One record of 52 bytes each way (`QPAddress.to_wire`), then the client says "done": so either
end may be ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong. Both ends post their receives and
arm their CQ before the exchange, for a server moves its QP to RTS before it answers, and a client
sends as soon as it has connected its own.

Several QPs are connected in one exchange where a list of addresses is given instead of one: as
many records go each way, and a list comes back. ibv_srq_pingpong always has 256.

The exchange has neither encryption nor authentication: it is for a network that you trust, and
servers listen on the loopback interface unless told otherwise. What comes in is limited in length
and time and parsed strictly.

The coroutines are for asyncio. Raised by all four functions: ValueError for anything that is not
the protocol, ConnectionError for a peer that closes too early, TimeoutError after `timeout`
seconds, OSError for the network's own errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Final, Generic, TypeAlias, TypeVar, overload

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
_PATIENCE: Final = 10.0  # seconds for one client, where another may come

# The protocol, free of sockets: it yields bytes to write them, or a number to read so many.
_Steps: TypeAlias = Generator["bytes | int", bytes, "list[QPAddress]"]
_Addresses = TypeVar("_Addresses", QPAddress, "list[QPAddress]")
_T = TypeVar("_T")
_TurnedAway: TypeAlias = Callable[[str, Exception], object]


def listen(host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> socket.socket:
    """Return a listening socket for `exchange_as_server`; port 0 takes a free one.

    The caller closes it, and may serve several clients with it, one after the other.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1)


async def exchange_as_client(
    host: str, port: int, address: _Addresses, *, timeout: float = DEFAULT_TIMEOUT
) -> _Addresses:
    """Give our address to a server and return its own; then connect to it and send.

    A server that does not listen yet is tried again until `timeout` is over.
    """
    steps = _client(_as_list(address))

    async def run() -> list[QPAddress]:
        return await _drive(steps, *await _open(host, port))

    return _like(address, await _limited(run(), timeout))


async def exchange_as_server(
    listener: socket.socket,
    address: _Addresses,
    connect: Callable[[_Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
) -> _Addresses:
    """Wait for one client on `listener`, give it our address and return its own.

    `connect(remote)` has to bring our QP to RTS, or to RTR at least: it is called before we
    answer, since the client may send at once.

    With `turned_away`, a client that does not keep to the protocol is none: `turned_away(who, why)`
    is called, and the next one awaited, until `timeout` is over. The same goes for a client that
    takes longer than 10 seconds. But once `connect` was called, there is no other.
    """
    server = _Server(address, connect, turned_away)
    deadline = time.monotonic() + timeout

    async def serve(sock: socket.socket) -> list[QPAddress]:
        streams = await asyncio.open_connection(sock=sock, limit=RECORD_SIZE)
        return await _drive(server.steps(), *streams)

    while True:
        sock, who = await _accept(listener, deadline)
        with sock:
            try:
                return _like(address, await _limited(serve(sock), server.patience(deadline)))
            except (OSError, ValueError) as e:
                server.turn_away(who, e)


def exchange_as_client_blocking(
    host: str, port: int, address: _Addresses, *, timeout: float = DEFAULT_TIMEOUT
) -> _Addresses:
    """Do what `exchange_as_client` does, without asyncio."""
    steps = _client(_as_list(address))
    deadline = time.monotonic() + timeout
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=_left(deadline))
        except ConnectionRefusedError:
            time.sleep(min(_RETRY, _left(deadline)))
        else:
            break
    with sock:
        return _like(address, _drive_blocking(steps, sock, deadline))


def exchange_as_server_blocking(
    listener: socket.socket,
    address: _Addresses,
    connect: Callable[[_Addresses], object],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    turned_away: _TurnedAway | None = None,
) -> _Addresses:
    """Do what `exchange_as_server` does, without asyncio."""
    server = _Server(address, connect, turned_away)
    deadline = time.monotonic() + timeout
    while True:
        sock, who = _accept_blocking(listener, deadline)
        with sock:
            limit = time.monotonic() + server.patience(deadline)
            try:
                return _like(address, _drive_blocking(server.steps(), sock, limit))
            except (OSError, ValueError) as e:
                server.turn_away(who, e)


def _as_list(address: QPAddress | list[QPAddress]) -> list[QPAddress]:
    addresses = [address] if isinstance(address, QPAddress) else list(address)
    if not addresses:
        raise ValueError("address is an empty list: there is nothing to exchange")
    return addresses


@overload
def _like(address: QPAddress, remote: list[QPAddress]) -> QPAddress: ...
@overload
def _like(address: list[QPAddress], remote: list[QPAddress]) -> list[QPAddress]: ...
def _like(
    address: QPAddress | list[QPAddress], remote: list[QPAddress]
) -> QPAddress | list[QPAddress]:
    """What came back, in the form of what we gave: one address, or a list."""
    return remote[0] if isinstance(address, QPAddress) else remote


def _client(ours: list[QPAddress]) -> _Steps:
    yield _to_wire(ours)
    theirs = yield from _receive(len(ours))
    yield _DONE
    return theirs


def _receive(count: int) -> _Steps:
    """Each record is judged when it is there: whoever begins with garbage need not go on."""
    theirs = []
    for _ in range(count):
        theirs.append(QPAddress.from_wire((yield RECORD_SIZE)))
    return theirs


def _to_wire(addresses: list[QPAddress]) -> bytes:
    return b"".join(address.to_wire() for address in addresses)


class _Server(Generic[_Addresses]):
    """A server's part, which it may have to play to several clients until one is the peer."""

    def __init__(
        self,
        address: _Addresses,
        connect: Callable[[_Addresses], object],
        turned_away: _TurnedAway | None,
    ) -> None:
        self._address: _Addresses = address
        self._ours = _as_list(address)
        self._connect: Callable[[_Addresses], object] = connect
        self._turned_away = turned_away
        self._chosen = False

    def steps(self) -> _Steps:
        theirs = yield from _receive(len(self._ours))
        self._chosen = True
        self._connect(_like(self._address, theirs))
        yield _to_wire(self._ours)
        done = yield len(_DONE)
        if done != _DONE:
            raise ValueError(f"the peer ended the exchange with {done!r} instead of {_DONE!r}")
        return theirs

    def patience(self, deadline: float) -> float:
        """The seconds for one client."""
        left = max(0.0, deadline - time.monotonic())
        return left if self._turned_away is None else min(left, _PATIENCE)

    def turn_away(self, who: object, error: Exception) -> None:
        """Go on without this client, or raise its error, which is being handled."""
        if self._turned_away is None or self._chosen:
            raise error
        self._turned_away(_name(who), error)


def _name(who: object) -> str:
    """A socket's address as text."""
    assert isinstance(who, tuple)
    host, port = who[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _drive(
    steps: _Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> list[QPAddress]:
    gone = contextlib.suppress(OSError)  # the other end may be gone by now, and need not tell
    try:
        theirs = await _talk(steps, reader, writer)
        writer.close()
        with gone:
            await writer.wait_closed()
        return theirs
    finally:
        writer.transport.abort()  # after an error nobody waits until the peer has read everything
        with gone:
            await writer.wait_closed()


async def _talk(
    steps: _Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> list[QPAddress]:
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


def _drive_blocking(steps: _Steps, sock: socket.socket, deadline: float) -> list[QPAddress]:
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


async def _accept(listener: socket.socket, deadline: float) -> tuple[socket.socket, object]:
    """As sock_accept() in wait_for(), which drop a connection if they are cancelled just then."""
    with _nonblocking(listener):
        while True:
            try:
                return listener.accept()
            except BlockingIOError:
                await _readable(listener, deadline)


async def _readable(sock: socket.socket, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    loop.add_reader(sock, end)
    timer = loop.call_later(_left(deadline), end)
    try:
        await over
    finally:
        timer.cancel()
        loop.remove_reader(sock)
    _left(deadline)  # it raises, if that was the end


def _accept_blocking(listener: socket.socket, deadline: float) -> tuple[socket.socket, object]:
    before = listener.gettimeout()
    listener.settimeout(_left(deadline))
    try:
        return listener.accept()
    finally:
        listener.settimeout(before)


def _result(end: StopIteration) -> list[QPAddress]:
    assert isinstance(end.value, list)
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


async def _limited(work: Coroutine[object, object, _T], timeout: float) -> _T:
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
