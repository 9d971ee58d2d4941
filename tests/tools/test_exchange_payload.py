# SPDX-License-Identifier: MIT
"""Payloads of an exchange: both ways, with peers that have none, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import IPv6Address
from typing import Any

import pytest
from cli_support import started
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEADLINE, wait_one

from cqnotify import AccessFlags, Context, QPAddress, WROpcode
from cqnotify.exchange import (
    exchange_as_client,
    exchange_as_client_blocking,
    exchange_as_server,
    exchange_as_server_blocking,
    listen,
)
from cqnotify.exchange._protocol import MAX_PAYLOAD, Server
from cqnotify.testing import Endpoint

OURS = QPAddress(0x12, 0x345, 0xABCDEF, IPv6Address("fe80::1"))
THEIRS = QPAddress(0, 0xFFFFFF, 0, IPv6Address("::ffff:10.1.2.3"))
DONE = b"done\0"
HELLO = b"data:00000005\0hello"

Call = Callable[..., Any]


def asyncio_client(*args: Any, **options: Any) -> Any:
    return asyncio.run(exchange_as_client(*args, timeout=DEADLINE, **options))


def asyncio_server(*args: Any, **options: Any) -> Any:
    return asyncio.run(exchange_as_server(*args, timeout=DEADLINE, **options))


def blocking_client(*args: Any, **options: Any) -> Any:
    return exchange_as_client_blocking(*args, timeout=DEADLINE, **options)


def blocking_server(*args: Any, **options: Any) -> Any:
    return exchange_as_server_blocking(*args, timeout=DEADLINE, **options)


clients = pytest.mark.parametrize("call", [asyncio_client, blocking_client])
servers = pytest.mark.parametrize("serve", [asyncio_server, blocking_server])


def ignore(remote: object) -> None:
    pass


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen(port=0) as sock:
        yield sock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def read_all(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := sock.recv(size - len(data))):
        data += chunk
    return data


# ---- between our own ends -------------------------------------------------------------------


@clients
@servers
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(b"hello", b""), (b"", b"\0data:done\0"), (bytes(MAX_PAYLOAD), b"\xff" * MAX_PAYLOAD)],
    ids=["client's", "server's", "largest"],
)
def test_each_end_gets_the_others(
    call: Call,
    serve: Call,
    ours: bytes,
    theirs: bytes,
    listener: socket.socket,
    pool: ThreadPoolExecutor,
) -> None:
    server = pool.submit(serve, listener, THEIRS, ignore, payload=theirs)
    assert call("127.0.0.1", port_of(listener), OURS, payload=ours) == (THEIRS, theirs)
    assert server.result(DEADLINE) == (OURS, ours)


@clients
@servers
def test_it_goes_with_several_addresses(
    call: Call, serve: Call, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    server = pool.submit(serve, listener, [THEIRS, OURS], ignore, payload=bytearray(b"a"))
    got = call("127.0.0.1", port_of(listener), [OURS, OURS], payload=memoryview(b"b"))
    assert got == ([THEIRS, OURS], b"a")
    assert server.result(DEADLINE) == ([OURS, OURS], b"b")


@clients
@servers
def test_what_is_no_payload_is_refused_at_once(
    call: Call, serve: Call, listener: socket.socket
) -> None:
    port = port_of(listener)
    with pytest.raises(TypeError, match="payload must be bytes, not str"):
        call("127.0.0.1", port, OURS, payload="text")
    with pytest.raises(TypeError, match="payload must be bytes, not int"):
        serve(listener, OURS, ignore, payload=7)
    for refused in (
        lambda: call("127.0.0.1", port, OURS, payload=bytes(MAX_PAYLOAD + 1)),
        lambda: serve(listener, OURS, ignore, payload=bytes(MAX_PAYLOAD + 1)),
    ):
        with pytest.raises(ValueError, match="payload has 65537 bytes: the limit is 65536"):
            refused()


def test_the_memory_of_a_payload_may_change_meanwhile(
    listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    payload = bytearray(b"before")

    def connect(remote: QPAddress) -> None:
        payload[:] = b"after"

    server = pool.submit(blocking_server, listener, THEIRS, connect, payload=payload)
    assert blocking_client("127.0.0.1", port_of(listener), OURS, payload=b"")[1] == b"before"
    server.result(DEADLINE)


# ---- on the wire ----------------------------------------------------------------------------


@clients
def test_what_a_client_writes(
    call: Call, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def serve() -> tuple[bytes, bytes]:
        sock, _ = listener.accept()
        with sock:
            first = read_all(sock, 52)
            sock.sendall(THEIRS.to_wire() + b"data:00000003\0you")
            return first, read_all(sock, 1000)  # up to the end

    wrote = pool.submit(serve)
    assert call("127.0.0.1", port_of(listener), OURS, payload=b"hello") == (THEIRS, b"you")
    assert wrote.result(DEADLINE) == (OURS.to_wire(), HELLO + DONE)


@servers
def test_what_a_server_writes(serve: Call, listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname(), timeout=DEADLINE) as sock:
        sock.sendall(OURS.to_wire() + HELLO + DONE)
        assert serve(listener, THEIRS, ignore, payload=b"you") == (OURS, b"hello")
        assert read_all(sock, 1000) == THEIRS.to_wire() + b"data:00000003\0you"


@servers
@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"data:00010001\0", "payload has 65537 bytes: the limit is 65536"),
        (b"data:ffffffff\0", "the limit is 65536"),
        (b"data:0000000A\0", "not the length of a payload"),
        (b"data:+0000001\0", "not the length of a payload"),
        (b"data:000000001", "not the length of a payload"),
        (b"DATA:00000001\0x", "where its payload should begin"),
        (HELLO + b"more\0", "instead of"),
    ],
)
def test_what_is_no_payload_on_the_wire_is_refused(
    serve: Call, sent: bytes, words: str, listener: socket.socket
) -> None:
    with socket.create_connection(listener.getsockname(), timeout=DEADLINE) as sock:
        sock.sendall(OURS.to_wire() + sent)
        with pytest.raises(ValueError, match=words):
            serve(listener, THEIRS, ignore, payload=b"")


@servers
@pytest.mark.parametrize("sent", [b"dat", b"data:0000", HELLO[:-1], HELLO])
def test_a_payload_that_ends_early_is_an_early_end(
    serve: Call, sent: bytes, listener: socket.socket
) -> None:
    with socket.create_connection(listener.getsockname(), timeout=DEADLINE) as sock:
        sock.sendall(OURS.to_wire() + sent)
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError, match="closed the connection after"):
            serve(listener, THEIRS, ignore, payload=b"")


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=9).map(lambda b: b"data:" + b)))
def test_a_server_takes_nothing_else_for_a_payload(sent: bytes) -> None:
    """The protocol's own steps, without a socket."""
    steps = Server(THEIRS, ignore, None, b"").steps()
    rest = OURS.to_wire() + sent
    step = next(steps)
    answers = []
    with contextlib.suppress(ValueError):
        while not isinstance(step, int) or len(rest) >= step:
            if isinstance(step, int):
                piece, rest = rest[:step], rest[step:]
                step = steps.send(piece)
            else:
                answers.append(step)
                step = steps.send(b"")
    whole = re.match(rb"data:([0-9a-f]{8})\0", sent)
    complete = whole is not None and len(sent) - 14 >= int(whole[1], 16)
    assert answers == [THEIRS.to_wire(), b"data:00000000\0"][: 2 if complete else 1]


# ---- with peers that have none --------------------------------------------------------------


@clients
@servers
def test_a_server_without_says_so_and_its_client_does_too(
    call: Call, serve: Call, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    server = pool.submit(serve, listener, THEIRS, ignore)
    with pytest.raises(ConnectionError, match="it was given none, or is one of rdma-core's"):
        call("127.0.0.1", port_of(listener), OURS, payload=bytes(MAX_PAYLOAD))
    with pytest.raises(ValueError, match="the client has a payload and this server none"):
        server.result(DEADLINE)


@clients
@servers
def test_a_server_says_that_its_client_has_none(
    call: Call, serve: Call, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    server = pool.submit(serve, listener, THEIRS, ignore, payload=b"x")
    assert call("127.0.0.1", port_of(listener), OURS) == THEIRS
    with pytest.raises(ValueError, match="the client ended the exchange without a payload"):
        server.result(DEADLINE)


@pytest.mark.usefixtures("conversation")
@clients
def test_rdma_cores_server_has_none(call: Call, ctx: Context) -> None:
    program = shutil.which("ibv_rc_pingpong")
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = port_of(sock)
    gid = ctx.find_gid()
    command = [program, "-d", ctx.name, "-g", str(gid.index), "-p", str(port)]
    with started(command) as peer:
        with pytest.raises(ConnectionError, match="it was given none, or is one of rdma-core's"):
            call("127.0.0.1", port, OURS._replace(gid=gid.gid), payload=b"x")
        assert peer.wait(DEADLINE) == 1


@servers
def test_rdma_cores_client_has_none(serve: Call, ctx: Context, listener: socket.socket) -> None:
    program = shutil.which("ibv_rc_pingpong")
    assert program is not None
    gid = ctx.find_gid()
    port = str(port_of(listener))
    command = [program, "-d", ctx.name, "-g", str(gid.index), "-p", port, "127.0.0.1"]
    with started(command), pytest.raises(ValueError, match="without a payload"):
        serve(listener, OURS._replace(gid=gid.gid), ignore, payload=b"x")


# ---- with queue pairs -----------------------------------------------------------------------

BUFFERS = 8


def test_many_clients_write_to_the_memory_that_one_server_offers(ctx: Context) -> None:
    """Each is told in the exchange where to: an address and an rkey."""

    async def serve(listener: socket.socket, end: Endpoint) -> bytes:
        offer = end.mr.addr.to_bytes(8, "big") + end.mr.rkey.to_bytes(4, "big")
        _, name = await exchange_as_server(
            listener,
            end.qp.address(),
            lambda remote: end.qp.connect(remote, access=AccessFlags.REMOTE_WRITE),
            timeout=DEADLINE,
            payload=offer,
        )
        return name

    def call(port: int, name: bytes) -> None:
        with Endpoint(ctx, size=64) as end:
            remote, offer = exchange_as_client_blocking(
                "127.0.0.1", port, end.qp.address(), timeout=DEADLINE, payload=name
            )
            end.qp.connect(remote)
            end.mr.write(name)
            end.qp.post_send(
                end.mr[0 : len(name)],
                opcode=WROpcode.RDMA_WRITE,
                remote_addr=int.from_bytes(offer[:8], "big"),
                rkey=int.from_bytes(offer[8:], "big"),
            )
            wait_one(end.send_cq)

    async def main() -> None:
        with listen(port=0) as listener, ThreadPoolExecutor(BUFFERS) as pool:
            ends = [Endpoint(ctx, size=64) for _ in range(BUFFERS)]
            writes: list[Future[None]] = [
                pool.submit(call, port_of(listener), b"client %d" % n) for n in range(BUFFERS)
            ]
            names = await asyncio.gather(*(serve(listener, end) for end in ends))
            for write in writes:
                await asyncio.wrap_future(write)
            assert sorted(names) == [b"client %d" % n for n in range(BUFFERS)]
            assert [end.mr.read(8) for end in ends] == names

    asyncio.run(main())
