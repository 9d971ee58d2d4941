# SPDX-License-Identifier: MIT
"""Credits and places, without a device: two ends between which frames wait, in any interleaving.

What must hold: no frame finds no receive, no end waits for ever for credits that were given, and
nobody sleeps through what it waits for.
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from cqnotify._core import MessageRing as Ring
from cqnotify.messages import ProtocolError
from cqnotify.messages._flow import Flow
from cqnotify.messages._options import ConnectionOptions
from cqnotify.messages._wire import LAST, MASK, Header, Kind

ROUNDS = 300


class SimulatedEnd:
    """What _session.py does, with a list for a device."""

    def __init__(
        self, chosen: random.Random, options: ConnectionOptions, peers: ConnectionOptions
    ) -> None:
        self.chosen, self.options = chosen, options
        self.flow = Flow(options.credits, peers.credits)
        self.peer: SimulatedEnd
        self.arrived: deque[tuple[Header, bool]] = deque()  # frames, and whether solicited
        self.unread: deque[tuple[Kind, int]] = deque()
        self.reading: list[int] = []
        self.wanted = 0  # messages to send
        self.is_awake = True
        self.received = self.acks = self.events = 0

    @property
    def posted(self) -> int:
        return self.options.receives - len(self.unread) - len(self.arrived) - len(self.reading)

    def transmit(self, kind: Kind, solicited: bool) -> None:
        assert self.peer.posted > 0, "no receive is posted for it"
        self.peer.arrived.append((self.flow.header(kind), solicited))
        if solicited:
            self.peer.is_awake = True
            self.peer.events += 1

    def send_some(self) -> None:
        while self.wanted and self.flow.credits:
            kind = self.chosen.choice((Kind.DATA, Kind.OFFER))
            if kind == Kind.OFFER and self.flow.unread_offers >= self.options.offers:
                break
            self.wanted -= 1
            self.transmit(kind, True)
        if self.flow.is_ack_due:
            self.acks += 1
            self.transmit(Kind.ACK, self.flow.is_ack_urgent)

    def take_in(self) -> None:
        """All that has arrived, as after an event or by looking."""
        while self.arrived:
            header, _ = self.arrived.popleft()
            offer = self.flow.offers_received
            self.flow.on_header(header)
            if header.kind in (Kind.DATA, Kind.OFFER):
                self.unread.append((header.kind, offer))

    def receive(self) -> None:
        """The program takes a message; an offer is read later, and perhaps out of order."""
        kind, number = self.unread.popleft()
        if kind == Kind.OFFER:
            self.reading.append(number)
        else:
            self.free()

    def finish_read(self) -> None:
        number = self.reading.pop(self.chosen.randrange(len(self.reading)))
        self.flow.return_credit()
        self.flow.mark_read(number)
        self.received += 1

    def free(self) -> None:
        self.flow.return_credit()
        self.received += 1

    def step(self) -> bool:
        """Do one thing, if it is awake. Return whether it did any."""
        busy = self.unread or self.reading  # the program may go on before its pump does
        if self.is_awake and (not busy or self.chosen.random() < 0.7):
            self.is_awake = False
            self.take_in()
            self.send_some()
            return True
        if self.reading and self.chosen.random() < 0.5:
            self.finish_read()
        elif self.unread:
            self.receive()
        elif self.reading:
            self.finish_read()
        else:
            return False
        self.send_some()
        return True


@pytest.mark.parametrize("seed", range(100))
def test_two_ends_never_stall_nor_overrun(seed: int) -> None:
    chosen = random.Random(seed)
    options = [
        ConnectionOptions(credits=chosen.randrange(2, 9), offers=chosen.randrange(1, 5), eager=256)
        for _ in range(2)
    ]
    a, b = SimulatedEnd(chosen, *options), SimulatedEnd(chosen, *reversed(options))
    a.peer, b.peer = b, a
    total = {id(a): 0, id(b): 0}
    for _ in range(ROUNDS):
        end = chosen.choice((a, b))
        if chosen.random() < 0.6:
            more = chosen.randrange(12)
            end.wanted += more
            total[id(end)] += more
            end.take_in()  # a sender looks before it sleeps
            end.send_some()
        for _ in range(chosen.randrange(6)):
            chosen.choice((a, b)).step()
    while a.step() or b.step():  # until both sleep, and the programs have received everything
        pass
    assert (a.wanted, b.wanted) == (0, 0), "a sender sleeps though it has credits"
    assert (b.received, a.received) == (total[id(a)], total[id(b)])
    assert a.flow.unread_offers == b.flow.unread_offers == 0


def test_a_stream_needs_few_acknowledgements() -> None:
    options = ConnectionOptions(credits=16, eager=256)
    a, b = (SimulatedEnd(random.Random(1), options, options) for _ in range(2))
    a.peer, b.peer = b, a
    a.chosen = b.chosen = type(
        "Data", (), {"choice": lambda _, kinds: kinds[0], "random": lambda _: 1}
    )()  # type: ignore[assignment]
    for _ in range(800):
        a.wanted += 1
        if a.flow.is_low:
            a.take_in()
        a.send_some()
        while b.arrived or b.step():
            b.take_in()
    assert b.received == 800
    assert b.acks == 100
    assert a.events == 0, "nobody waited for one"


def test_counters_wrap_around() -> None:
    flow = Flow(2, 2)
    flow.sent = flow.received = flow.peer_credits_returned = MASK - 1
    flow.credits_returned = flow.last_advertised = MASK - 1
    for i in range(5):
        header = flow.header(Kind.DATA)
        assert flow.credits == 1
        flow.on_header(Header(Kind.DATA, 0, (flow.sent) & MASK, 0))
        flow.return_credit()
        assert header.credits_returned == MASK - 1 + i, "put_header() cuts it"
    assert flow.peer_credits_returned == MASK + 4


@pytest.mark.parametrize(
    "header",
    [
        Header(Kind.ACK, 0, 3, 0),
        Header(Kind.ACK, 0, MASK, 0),
        Header(Kind.ACK, 0, 0, 2),
        Header(Kind.ACK, 0, 0, MASK),
    ],
)
def test_counters_that_lie_are_refused(header: Header) -> None:
    flow = Flow(2, 2)
    flow.header(Kind.OFFER)
    flow.header(Kind.DATA)
    with pytest.raises(ProtocolError, match="cannot be more than"):
        flow.on_header(header)


def test_the_last_credit_is_marked() -> None:
    flow = Flow(2, 2)
    assert [flow.header(Kind.DATA).flags for _ in range(2)] == [0, LAST]


# ---- places in memory -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1024, 4096, 10000])
def test_places_in_the_ring_never_overlap(size: int) -> None:
    chosen = random.Random(size)
    ring = Ring(size)
    taken: deque[tuple[int, int, int]] = deque()
    for _ in range(5000):
        length = chosen.randrange(1, size // 4 + 1)
        assert ring.has_room(length) in (True, False)
        could = ring.has_room(length)
        at = ring.allocate(length)
        assert could == (at is not None)
        if at is None:
            assert taken, "an empty ring has room"
            ring.free_to(taken.popleft()[2])
            continue
        assert 0 <= at <= at + length <= size
        assert all(at + length <= a or b <= at for a, b, _ in taken)
        if chosen.random() < 0.3:
            length, longer = chosen.randrange(length + 1), length
            ring.shorten(longer, length)
        taken.append((at, at + length, ring.mark))
        if chosen.random() < 0.3:
            ring.free_to(taken.popleft()[2])


def test_a_quarter_of_the_ring_in_use_leaves_room_for_a_frame() -> None:
    """For that much may be in flight without a completion being asked for."""
    size = 4096
    for start in range(0, size, 64):
        ring = Ring(size)
        for _ in range(start // 64):
            ring.allocate(64)
            ring.free_to(ring.mark)
        for _ in range(size // 4 // 64 - 1):
            assert ring.allocate(64) is not None
        assert ring.has_room(size // 4)
