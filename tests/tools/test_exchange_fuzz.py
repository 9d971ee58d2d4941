# SPDX-License-Identifier: MIT
"""The address exchange with anything at the other end."""

from __future__ import annotations

import contextlib
import re
import socket

from exchange_support import DONE, OURS, THEIRS, WIRE, addresses, read_all
from hypothesis import given, settings
from hypothesis import strategies as st

from cqnotify import QPAddress
from cqnotify.exchange import _protocol, exchange_as_server_blocking, listen

RECORD = re.compile(rb"[0-9a-f]{4}:[0-9a-f]{6}:[0-9a-f]{6}:[0-9a-f]{32}\0")
fuzzed = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@st.composite
def spoiled(draw):
    """Some records, of which a few bytes may be others, missing, or too many."""
    data = bytearray(b"".join(a.to_wire() for a in draw(st.lists(addresses, max_size=3))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@fuzzed
@given(addresses)
def test_every_address_survives_the_wire(address):
    wire = address.to_wire()
    assert len(wire) == 52
    assert QPAddress.from_wire(wire) == address


@fuzzed
@given(st.one_of(st.binary(max_size=60), st.binary(min_size=52, max_size=52), spoiled()))
def test_what_is_read_is_exactly_what_would_be_written(data):
    try:
        address = QPAddress.from_wire(data)
    except ValueError:
        assert not RECORD.fullmatch(data)
    else:
        assert address.to_wire() == data


@fuzzed
@given(st.one_of(spoiled(), st.binary(max_size=200)), st.integers(1, 3))
def test_a_server_connects_to_nothing_but_whole_records(sent, count):
    """The protocol's own steps, without a socket: a real one is too slow for so many."""
    connected, answers = [], []
    steps = _protocol.Server([THEIRS] * count, connected.append, None).steps()
    rest = sent
    with contextlib.suppress(ValueError, StopIteration):
        step = next(steps)
        while not isinstance(step, int) or len(rest) >= step:
            if isinstance(step, int):
                piece, rest = rest[:step], rest[step:]
                step = steps.send(piece)
            else:
                answers.append(step)
                step = steps.send(b"")
    records = re.match(RECORD.pattern * count, sent)
    if records is None:
        assert connected == answers == []
    else:
        ((*remote,),) = connected
        assert b"".join(address.to_wire() for address in remote) == records[0]
        assert answers == [THEIRS.to_wire() * count]


@settings(fuzzed, max_examples=25)
@given(st.lists(st.one_of(spoiled(), st.binary(max_size=200)), max_size=4))
def test_a_server_survives_whatever_clients_send(garbage):
    """Over real sockets: the one that keeps to the protocol is served, after all the others."""
    bad = [data for data in garbage if not RECORD.match(data)]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(port=0))
        listener.listen(8)
        told, connected = [], []
        for data in [*bad, WIRE + DONE]:
            sock = socket.create_connection(listener.getsockname(), timeout=30)
            stack.enter_context(sock).sendall(data)
            if data in bad:
                sock.shutdown(socket.SHUT_WR)
        remote = exchange_as_server_blocking(
            listener,
            THEIRS,
            connected.append,
            timeout=30,
            turned_away=lambda who, why: told.append(why),
        )
        assert (remote, connected) == (OURS, [OURS])
        assert len(told) == len(bad)
        assert read_all(sock, 52) == THEIRS.to_wire()
