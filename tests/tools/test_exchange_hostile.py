# SPDX-License-Identifier: MIT
"""The address exchange with peers that misbehave: what is refused, and who is turned away."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from exchange_support import (
    DONE,
    HELLO,
    MANY,
    OURS,
    THEIRS,
    WIRE,
    Role,
    client_by_hand,
    many,
    read_all,
    server_by_hand,
)
from support import DEADLINE

from cqnotify.exchange import _protocol

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: *\r\n\r\n"
SEVERAL = {"address": many(THEIRS)}
NO_PAYLOAD = {"payload": b""}


@pytest.mark.parametrize(
    ("reply", "ends", "error", "words"),
    [
        (b"x" * 52, False, ValueError, "not an address record"),
        (b"\xff" * 52, False, ValueError, "not an address record"),
        (WIRE.upper(), False, ValueError, "not an address record"),
        (b"y" * 5000, False, ValueError, "not an address record"),
        (b"", True, ConnectionError, "closed the connection"),
        (WIRE[:51], True, ConnectionError, "closed the connection"),
    ],
)
def test_a_client_says_what_is_wrong_with_its_server(
    role: Role,
    reply: bytes,
    ends: bool,
    error: type[Exception],
    words: str,
    listener: socket.socket,
    port: int,
    pool: ThreadPoolExecutor,
) -> None:
    server = pool.submit(server_by_hand, listener, reply, ends)
    with pytest.raises(error, match=words):
        role.client(port)
    server.result(DEADLINE)


# What a client sends, what the server was given, and what that says of the client.
VIOLATIONS: list[tuple[bytes, dict[str, Any], str]] = [
    (HTTP, {}, "not an address record"),
    (WIRE + b"more\n", {}, "more"),
    (3 * WIRE + WIRE.upper(), SEVERAL, "not an address record"),  # the others are not awaited
    (3 * WIRE + DONE, {"address": [THEIRS, OURS]}, "instead of"),
    (WIRE + b"data:00010001\0", NO_PAYLOAD, "payload has 65537 bytes: the limit is 65536"),
    (WIRE + b"data:ffffffff\0", NO_PAYLOAD, "the limit is 65536"),
    (WIRE + b"data:0000000A\0", NO_PAYLOAD, "not the length of a payload"),
    (WIRE + b"data:+0000001\0", NO_PAYLOAD, "not the length of a payload"),
    (WIRE + b"data:000000001", NO_PAYLOAD, "not the length of a payload"),
    (WIRE + b"DATA:00000001\0x", NO_PAYLOAD, "where its payload should begin"),
    (WIRE + HELLO + b"more\0", NO_PAYLOAD, "instead of"),
]
EARLY_ENDS: list[tuple[bytes, dict[str, Any], str]] = [
    *((sent, {}, "closed the connection") for sent in (b"", WIRE[:20], WIRE, WIRE + DONE[:4])),
    ((MANY - 1) * WIRE + WIRE[:51], SEVERAL, "51 of 52 bytes"),
    *(
        (WIRE + sent, NO_PAYLOAD, "closed the connection after")
        for sent in (b"dat", b"data:0000", HELLO[:-1], HELLO)
    ),
]


@pytest.mark.parametrize(
    ("sent", "options", "words", "error"),
    [
        *((*row, ValueError) for row in VIOLATIONS),
        *((*row, ConnectionError) for row in EARLY_ENDS),
        (WIRE[:30], {"timeout": 0.3}, "took too long|timed out", TimeoutError),
    ],
)
def test_a_server_says_what_is_wrong_with_its_client_and_connects_to_whole_records_alone(
    role: Role,
    sent: bytes,
    options: dict[str, Any],
    words: str,
    error: type[Exception],
    listener: socket.socket,
) -> None:
    connected: list[object] = []
    with client_by_hand(listener, sent, ends=error is ConnectionError) as sock:
        with pytest.raises(error, match=words):
            role.server(listener, connect=connected.append, **options)
        records = options.get("address", [THEIRS])
        assert len(connected) == sent.startswith(len(records) * WIRE)
        answer = b"".join(address.to_wire() for address in records) if connected else b""
        with contextlib.suppress(ConnectionResetError):  # there was more than the server has read
            assert read_all(sock, len(answer) or 1) == answer


def test_a_client_that_trickles_does_not_stretch_the_deadline(
    role: Role, listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def trickle(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is hung up on
            for i in range(52):
                sock.sendall(WIRE[i : i + 1])
                time.sleep(0.1)

    with client_by_hand(listener) as sock:
        pool.submit(trickle, sock)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            role.server(listener, timeout=0.5)
        assert time.monotonic() - start < 3


def test_a_server_that_does_not_read_does_not_stretch_the_deadline(
    role: Role, listener: socket.socket, port: int
) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):  # more than the sockets' buffers take
        role.client(port, [OURS] * 200_000, timeout=3)
    assert time.monotonic() - start < 20


# ---- servers that go on after a client that was none ----------------------------------------


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (HTTP, ValueError),
        (b"", ConnectionError),
        (WIRE[:26], ConnectionError),
        (WIRE[:30], TimeoutError),
        (WIRE.upper(), ValueError),
        (bytes(4096), ValueError),
    ],
    ids=["garbage", "nothing", "half a record", "too slow", "a record in capitals", "zeros"],
)
def test_the_next_client_is_served(
    role: Role,
    sent: bytes,
    error: type[Exception],
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = error is TimeoutError
    if slow:
        monkeypatch.setattr(_protocol, "PATIENCE", 0.3)
    told = []
    with (
        client_by_hand(listener, sent, ends=not slow) as bad,
        client_by_hand(listener, WIRE + DONE) as good,
    ):
        name = ":".join(map(str, bad.getsockname()))
        remote = role.server(listener, turned_away=lambda who, why: told.append((who, type(why))))
        assert remote == OURS
        assert told == [(name, error)]
        with contextlib.suppress(ConnectionResetError):
            assert read_all(bad, 1) == b""
        assert read_all(good, 52) == THEIRS.to_wire()


@pytest.mark.parametrize("end", [b"more\n", b""])
def test_who_has_been_connected_to_is_not_turned_away(
    role: Role, end: bytes, listener: socket.socket
) -> None:
    told: list[object] = []
    with (
        client_by_hand(listener, WIRE + end, ends=True),
        pytest.raises((ValueError, ConnectionError)),
    ):
        role.server(listener, turned_away=lambda *who_and_why: told.append(who_and_why))
    assert told == []
