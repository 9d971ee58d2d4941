# SPDX-License-Identifier: MIT
"""The address exchange with anything at the other end."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv6Address

from exchange_support import (
    DONE,
    OURS,
    ROLES,
    THEIRS,
    WIRE,
    addresses,
    client_by_hand,
    ignore,
    read_all,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cqnotify import QPAddress
from cqnotify.exchange import _protocol, listen

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
@example(OURS)
@example(QPAddress(0xFFFF, 0xFFFFFF, 0xFFFFFF, IPv6Address(2**128 - 1)))
@example(QPAddress(0, 0, 0, IPv6Address(0)))
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


def answers_to(server, sent):
    """The protocol's own steps, without a socket: a real one is too slow for so many."""
    steps = server.steps()
    answers = []
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
def test_a_server_connects_to_nothing_but_whole_records(sent, count):
    connected = []
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
def test_a_server_takes_nothing_else_for_a_payload(sent):
    answers = answers_to(_protocol.Server(THEIRS, ignore, None, b""), WIRE + sent)
    whole = re.match(rb"data:([0-9a-f]{8})\0", sent)
    complete = whole is not None and len(sent) - 14 >= int(whole[1], 16)
    assert answers == [THEIRS.to_wire(), b"data:00000000\0"][: 2 if complete else 1]


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
            sock = stack.enter_context(client_by_hand(listener, data, ends=data in bad))
        remote = ROLES["blocking"].server(
            listener, connect=connected.append, turned_away=lambda who, why: told.append(why)
        )
        assert (remote, connected) == (OURS, [OURS])
        assert len(told) == len(bad)
        assert read_all(sock, 52) == THEIRS.to_wire()
