# SPDX-License-Identifier: MIT
"""The address exchange with anything at the other end: what is refused, which clients are turned
away."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address
from typing import Any

import pytest
from exchange_support import (
    DONE,
    HELLO,
    MANY,
    OURS,
    ROLES,
    THEIRS,
    WIRE,
    Role,
    addresses,
    client_by_hand,
    ignore,
    many,
    read_all,
    server_by_hand,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import DEADLINE

from cqnotify import QPAddress
from cqnotify.exchange import _protocol, listen

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


@pytest.mark.parametrize("options", [{}, {"on_reject": print}], ids=["raised", "rejected"])
def test_a_client_that_trickles_does_not_stretch_the_deadline(
    role: Role, options: dict[str, Any], listener: socket.socket, pool: ThreadPoolExecutor
) -> None:
    def trickle(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is hung up on
            for i in range(52):
                sock.sendall(WIRE[i : i + 1])
                time.sleep(0.1)

    with client_by_hand(listener) as sock:
        pool.submit(trickle, sock)
        with pytest.raises(TimeoutError):  # before it has all the bytes
            role.server(listener, timeout=0.5, **options)


def test_a_server_that_does_not_read_does_not_stretch_the_deadline(
    role: Role, listener: socket.socket, port: int
) -> None:
    with pytest.raises(TimeoutError):  # more than the sockets' buffers take
        role.client(port, [OURS] * 200_000, timeout=0.5)


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
        monkeypatch.setattr(_protocol, "CLIENT_TIMEOUT", 0.3)
    told = []
    with (
        client_by_hand(listener, sent, ends=not slow) as bad,
        client_by_hand(listener, WIRE + DONE) as good,
    ):
        name = ":".join(map(str, bad.getsockname()))
        remote = role.server(listener, on_reject=lambda who, why: told.append((who, type(why))))
        assert remote == OURS
        assert told == [(name, error)]
        with contextlib.suppress(ConnectionResetError):
            assert read_all(bad, 1) == b""
        assert read_all(good, 52) == THEIRS.to_wire()


@pytest.mark.parametrize("end", [b"more\n", b""])
def test_a_client_that_was_connected_to_is_not_rejected(
    role: Role, end: bytes, listener: socket.socket
) -> None:
    told: list[object] = []
    with (
        client_by_hand(listener, WIRE + end, ends=True),
        pytest.raises((ValueError, ConnectionError)),
    ):
        role.server(listener, on_reject=lambda *who_and_why: told.append(who_and_why))
    assert told == []


# ---- anything -------------------------------------------------------------------------------

RECORD = re.compile(rb"[0-9a-f]{4}:[0-9a-f]{6}:[0-9a-f]{6}:[0-9a-f]{32}\0")
fuzzed = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """Some records, of which a few bytes may be others, missing, or too many."""
    data = bytearray(b"".join(a.to_wire() for a in draw(st.lists(addresses, max_size=3))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@fuzzed
@given(addresses)
@example(OURS)
@example(QPAddress(0xFFFF, 0xFFFFFF, 0xFFFFFF, IPv6Address(2**128 - 1)))
@example(QPAddress(0, 0, 0, IPv6Address(0)))
def test_every_address_survives_the_wire(address: QPAddress) -> None:
    wire = address.to_wire()
    assert len(wire) == 52
    assert QPAddress.from_wire(wire) == address._replace(mtu=None)  # which is not sent


@fuzzed
@given(st.one_of(st.binary(max_size=60), st.binary(min_size=52, max_size=52), spoiled()))
def test_what_is_read_is_exactly_what_would_be_written(data: bytes) -> None:
    try:
        address = QPAddress.from_wire(data)
    except ValueError:
        assert not RECORD.fullmatch(data)
    else:
        assert address.to_wire() == data


def answers_to(server: _protocol.Server[Any], sent: bytes) -> list[bytes]:
    """The protocol's own steps, without a socket: a real one is too slow for so many."""
    steps = server.steps()
    answers: list[bytes] = []
    with contextlib.suppress(ValueError, StopIteration):
        step = next(steps)
        while not isinstance(step, int) or len(sent) >= step:
            if isinstance(step, int):
                piece, sent = sent[:step], sent[step:]
                step = steps.send(piece)
            else:
                answers.append(step)
                step = steps.send(b"")
    return answers


@fuzzed
@given(st.one_of(spoiled(), st.binary(max_size=200)), st.integers(1, 3))
def test_a_server_connects_to_nothing_but_whole_records(sent: bytes, count: int) -> None:
    connected: list[Any] = []
    answers = answers_to(_protocol.Server([THEIRS] * count, connected.append, None), sent)
    records = re.match(RECORD.pattern * count, sent)
    if records is None:
        assert connected == answers == []
    else:
        ((*remote,),) = connected
        assert b"".join(address.to_wire() for address in remote) == records[0]
        assert answers == [THEIRS.to_wire() * count]


@fuzzed
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=9).map(lambda b: b"data:" + b)))
def test_a_server_takes_nothing_else_for_a_payload(sent: bytes) -> None:
    answers = answers_to(_protocol.Server(THEIRS, ignore, None, b""), WIRE + sent)
    whole = re.match(rb"data:([0-9a-f]{8})\0", sent)
    complete = whole is not None and len(sent) - 14 >= int(whole[1], 16)
    assert answers == [THEIRS.to_wire(), b"data:00000000\0"][: 2 if complete else 1]


@settings(fuzzed, max_examples=25)
@given(st.lists(st.one_of(spoiled(), st.binary(max_size=200)), max_size=4))
def test_a_server_survives_whatever_clients_send(garbage: list[bytes]) -> None:
    """Over real sockets: the one that keeps to the protocol is served, after all the others."""
    bad = [data for data in garbage if not RECORD.match(data)]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(port=0))
        listener.listen(8)
        told: list[Exception] = []
        connected: list[Any] = []
        for data in [*bad, WIRE + DONE]:
            sock = stack.enter_context(client_by_hand(listener, data, ends=data in bad))
        remote = ROLES["blocking"].server(
            listener, connect=connected.append, on_reject=lambda who, why: told.append(why)
        )
        assert (remote, connected) == (OURS, [OURS])
        assert len(told) == len(bad)
        assert read_all(sock, 52) == THEIRS.to_wire()
