# SPDX-License-Identifier: MIT
"""Payloads of an exchange: both ways, and with peers that have none."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from cli_support import started
from exchange_support import (
    DONE,
    HELLO,
    OURS,
    ROLES,
    THEIRS,
    WIRE,
    Role,
    client_by_hand,
    read_all,
    server_by_hand,
)
from support import DEADLINE, wait_one

from cqnotify import AccessFlags, Context, QPAddress, WROpcode
from cqnotify.exchange import exchange_as_server
from cqnotify.exchange._protocol import MAX_PAYLOAD
from cqnotify.testing import Endpoint

# ---- between our own ends -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "address"),
    [
        (b"hello", b"", THEIRS),
        (b"", b"\0data:done\0", THEIRS),
        (bytes(MAX_PAYLOAD), b"\xff" * MAX_PAYLOAD, THEIRS),
        (memoryview(b"b"), bytearray(b"a"), [THEIRS, OURS]),
    ],
    ids=["client's", "server's", "largest", "several addresses"],
)
def test_each_end_gets_the_others(
    role: Role,
    server_role: Role,
    ours: bytes,
    theirs: bytes,
    address: Any,
    listener: socket.socket,
    port: int,
    pool: ThreadPoolExecutor,
) -> None:
    own = [OURS, OURS] if isinstance(address, list) else OURS
    server = pool.submit(server_role.server, listener, address, payload=theirs)
    assert role.client(port, own, payload=ours) == (address, theirs)
    assert server.result(DEADLINE) == (own, ours)


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        ("text", TypeError, "payload must be bytes, not str"),
        (7, TypeError, "payload must be bytes, not int"),
        (bytes(MAX_PAYLOAD + 1), ValueError, "payload has 65537 bytes: the limit is 65536"),
    ],
    ids=["str", "int", "too long"],
)
def test_what_is_no_payload_is_refused_at_once(
    role: Role,
    payload: Any,
    error: type[Exception],
    words: str,
    listener: socket.socket,
    port: int,
) -> None:
    with pytest.raises(error, match=words):
        role.client(port, payload=payload)
    with pytest.raises(error, match=words):
        role.server(listener, payload=payload)


def test_the_memory_of_a_payload_may_change_meanwhile(
    listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    payload = bytearray(b"before")

    def connect(remote: QPAddress) -> None:
        payload[:] = b"after"

    server = pool.submit(ROLES["blocking"].server, listener, THEIRS, connect, payload=payload)
    assert ROLES["blocking"].client(port, payload=b"")[1] == b"before"
    server.result(DEADLINE)


# ---- on the wire ----------------------------------------------------------------------------

YOU = THEIRS.to_wire() + b"data:00000003\0you"


def test_what_a_client_writes(
    role: Role, listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    sent = pool.submit(server_by_hand, listener, YOU)
    assert role.client(port, payload=b"hello") == (THEIRS, b"you")
    assert sent.result(DEADLINE) == WIRE + HELLO + DONE


def test_what_a_server_writes(role: Role, listener: socket.socket) -> None:
    with client_by_hand(listener, WIRE + HELLO + DONE) as sock:
        assert role.server(listener, payload=b"you") == (OURS, b"hello")
        assert read_all(sock, 1000) == YOU


# ---- with peers that have none --------------------------------------------------------------


def test_a_server_without_says_so_and_its_client_does_too(
    role: Role, server_role: Role, listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    server = pool.submit(server_role.server, listener)
    with pytest.raises(ConnectionError, match="it was given none, or is one of rdma-core's"):
        role.client(port, payload=bytes(MAX_PAYLOAD))
    with pytest.raises(ValueError, match="the client has a payload and this server none"):
        server.result(DEADLINE)


def test_a_server_says_that_its_client_has_none(
    role: Role, server_role: Role, listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    server = pool.submit(server_role.server, listener, payload=b"x")
    assert role.client(port) == THEIRS
    with pytest.raises(ValueError, match="the client ended the exchange without a payload"):
        server.result(DEADLINE)


@pytest.fixture
def pingpong(ctx: Context) -> Callable[..., Any]:
    """Starts rdma-core's program, with a GID that the test's end has, too."""
    program = shutil.which("ibv_rc_pingpong")
    assert program is not None
    command = [program, "-d", ctx.name, "-g", str(ctx.find_gid().index), "-p"]
    return lambda port, *host: started([*command, str(port), *host])


@pytest.mark.usefixtures("conversation")
def test_rdma_cores_server_has_none(
    role: Role, ctx: Context, pingpong: Callable[..., Any], free_port: int
) -> None:
    with pingpong(free_port) as peer:
        with pytest.raises(ConnectionError, match="it was given none, or is one of rdma-core's"):
            role.client(free_port, OURS._replace(gid=ctx.find_gid().gid), payload=b"x")
        assert peer.wait(DEADLINE) == 1


def test_rdma_cores_client_has_none(
    role: Role, ctx: Context, pingpong: Callable[..., Any], listener: socket.socket, port: int
) -> None:
    with pingpong(port, "127.0.0.1"), pytest.raises(ValueError, match="without a payload"):
        role.server(listener, OURS._replace(gid=ctx.find_gid().gid), payload=b"x")


# ---- with queue pairs -----------------------------------------------------------------------

BUFFERS = 8


async def test_many_clients_write_to_the_memory_that_one_server_offers(
    ctx: Context, listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    """Each is told in the exchange where to: an address and an rkey."""

    async def serve(end: Endpoint) -> bytes:
        offer = end.mr.addr.to_bytes(8, "big") + end.mr.rkey.to_bytes(4, "big")
        connect = partial(end.qp.connect, access=AccessFlags.REMOTE_WRITE)
        return (await exchange_as_server(listener, end.qp.address(), connect, payload=offer))[1]

    def call(name: bytes) -> None:
        with Endpoint(ctx, size=64) as end:
            remote, offer = ROLES["blocking"].client(port, end.qp.address(), payload=name)
            end.qp.connect(remote)
            end.mr.write(name)
            end.qp.post_send(
                end.mr[0 : len(name)],
                opcode=WROpcode.RDMA_WRITE,
                remote_addr=int.from_bytes(offer[:8], "big"),
                rkey=int.from_bytes(offer[8:], "big"),
            )
            wait_one(end.send_cq)

    sent = [b"client %d" % n for n in range(BUFFERS)]
    ends = [Endpoint(ctx, size=64) for _ in sent]
    calls = [asyncio.wrap_future(pool.submit(call, name)) for name in sent]
    names = await asyncio.gather(*(serve(end) for end in ends))
    await asyncio.gather(*calls)
    assert sorted(names) == sent
    assert [end.mr.read(8) for end in ends] == names
