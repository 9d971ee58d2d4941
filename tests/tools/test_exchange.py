# SPDX-License-Identifier: MIT
"""The address exchange: its records, both roles, and what is on the wire."""

from __future__ import annotations

import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from exchange_support import (
    DONE,
    OURS,
    THEIRS,
    WIRE,
    Role,
    client_by_hand,
    many,
    port_of,
    read_all,
    server_by_hand,
)
from support import DEADLINE

from cqnotify import QPAddress
from cqnotify.exchange import listen

# ---- records --------------------------------------------------------------------------------


def test_a_record_is_written_as_rdma_core_does() -> None:
    assert OURS.to_wire() == WIRE


@pytest.mark.parametrize(
    ("field", "value"),
    [("lid", 0x10000), ("lid", -1), ("qp_num", 1 << 24), ("psn", 1 << 24), ("psn", -1)],
)
def test_a_number_out_of_range_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        OURS._replace(**{field: value}).to_wire()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WIRE[:-1],
        WIRE + b"\0",
        WIRE[:-1] + b"\n",
        WIRE.upper(),
        WIRE.replace(b":", b" "),
        WIRE.replace(b"0012:", b"+012:"),
        WIRE.replace(b"0012:", b"0x12:"),
        WIRE.replace(b"0012:", b" 012:"),
        WIRE.replace(b"0012:", b"0_12:"),
        WIRE.replace(b"000345", b"00034g"),
        WIRE.replace(b"0012:000345", b"000:1200345"),
        bytes(52),
        b"\xff" * 52,
        "\N{ARABIC-INDIC DIGIT ZERO}".encode() * 26,
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="address record"):
        QPAddress.from_wire(data)


# ---- both ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(OURS, THEIRS), (many(OURS), many(THEIRS))],
    ids=["an address", "a list"],
)
def test_client_and_server_learn_each_others_addresses(
    role: Role,
    server_role: Role,
    ours: Any,
    theirs: Any,
    listener: socket.socket,
    pool: ThreadPoolExecutor,
) -> None:
    connected: list[Any] = []
    server = pool.submit(server_role.server, listener, theirs, connected.append)
    assert role.client(port_of(listener), ours) == theirs
    assert server.result(DEADLINE) == ours
    assert connected == [ours]


def test_client_says_done_and_closes(
    role: Role, listener: socket.socket, port: int, pool: ThreadPoolExecutor
) -> None:
    sent = pool.submit(server_by_hand, listener, THEIRS.to_wire())
    assert role.client(port) == THEIRS
    assert sent.result(DEADLINE) == WIRE + DONE


def test_server_connects_its_qp_before_it_answers(role: Role, listener: socket.socket) -> None:
    answers: list[list[Any]] = []
    with client_by_hand(listener, WIRE + DONE) as sock:

        def connect(remote: QPAddress) -> None:
            answers.append(select.select([sock], [], [], 0)[0])

        role.server(listener, connect=connect)
        assert answers == [[]]
        assert read_all(sock, 52) == THEIRS.to_wire()


def test_a_record_may_come_in_pieces(
    role: Role, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def send_in_pieces(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(52):
            sock.sendall(WIRE[i : i + 1])
        read_all(sock, 52)
        sock.sendall(DONE[:2])
        sock.sendall(DONE[2:])

    with client_by_hand(listener) as sock:
        sent = pool.submit(send_in_pieces, sock)
        assert role.server(listener) == OURS
        sent.result(DEADLINE)


def test_client_waits_for_a_server_that_starts_later(
    role: Role, free_port: int, pool: ThreadPoolExecutor
) -> None:
    client = pool.submit(role.client, free_port)
    time.sleep(0.3)
    with listen(port=free_port) as late:
        assert role.server(late) == OURS
    assert client.result(DEADLINE) == THEIRS


def test_client_gives_up_on_a_silent_server(role: Role, listener: socket.socket, port: int) -> None:
    with pytest.raises(TimeoutError):
        role.client(port, timeout=0.3)


def test_client_gives_up_when_nobody_listens(role: Role, free_port: int) -> None:
    with pytest.raises(TimeoutError):
        role.client(free_port, timeout=0.3)


def test_the_listener_serves_again_after_nobody_came(role: Role, listener: socket.socket) -> None:
    blocking = listener.getblocking()
    with pytest.raises(TimeoutError):
        role.server(listener, timeout=0.1)
    assert listener.getblocking() == blocking
    with client_by_hand(listener, WIRE + DONE):
        assert role.server(listener) == OURS


def test_a_failing_connect_reaches_the_caller_and_the_peer_gets_no_answer(
    role: Role, listener: socket.socket
) -> None:
    def connect(remote: QPAddress) -> None:
        raise LookupError("no GID")

    with client_by_hand(listener, WIRE) as sock:
        with pytest.raises(LookupError, match="no GID"):
            role.server(listener, connect=connect)
        assert read_all(sock, 1) == b""


def test_no_address_is_refused(role: Role, listener: socket.socket, port: int) -> None:
    with pytest.raises(ValueError, match="empty list"):
        role.client(port, [])
    with pytest.raises(ValueError, match="empty list"):
        role.server(listener, [])


def test_servers_listen_on_loopback_by_default(listener: socket.socket) -> None:
    assert listener.getsockname()[0] == "127.0.0.1"


def test_servers_listen_on_ipv6_where_the_address_is_one() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listen("::1", port=0) as sock:
        assert sock.family == socket.AF_INET6
