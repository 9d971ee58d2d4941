# SPDX-License-Identifier: MIT
"""CQ.set_consumer(): who gets the completions of a CQ, and is told when some may be missing."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import Endpoint, connect, wait_completions

from cqnotify import (
    CQ,
    QP,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    VerbsError,
    WCArray,
    WorkCompletion,
)

Pair = tuple[Endpoint, Endpoint]


class Consumer:
    """Answers with what it has, and remembers what it was told."""

    def __init__(self, *cqs: CQ) -> None:
        self.polls: list[tuple[int, float]] = []
        self.has: list[WorkCompletion] = []
        self.changed: list[QP] = []
        self.on_change: Callable[[QP], object] = lambda qp: None
        for cq in cqs:
            cq.set_consumer(self)

    def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[WorkCompletion]:
        self.polls.append((max_entries, spin))
        return self.has

    def qp_changed(self, qp: QP) -> None:
        self.changed.append(qp)
        self.on_change(qp)


@pytest.fixture
def unraisable() -> Iterator[list[BaseException | None]]:
    """What was reported as unraisable."""
    seen: list[BaseException | None] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda u: seen.append(u.exc_value)
    yield seen
    sys.unraisablehook = hook


def settled(pair: Pair) -> None:
    """A message has arrived; the receiver's completion was not polled."""
    a, b = pair
    b.qp.post_recv(b.mr[0:64], wr_id=4)
    a.qp.post_send(a.mr[0:8])
    wait_completions(a.scq, 1)


# ---- polling ------------------------------------------------------------------------------


def test_poll_returns_what_the_consumer_returns(cq: CQ) -> None:
    consumer = Consumer(cq)
    assert cq.poll() is consumer.has
    cq.poll(3)
    cq.poll(max_entries=2, spin=1)
    assert consumer.polls == [(16, 0.0), (3, 0.0), (2, 1.0)]
    assert cq.stats.polls == 0


def test_take_gets_the_completions(pair: Pair) -> None:
    cq = pair[1].rcq
    consumer = Consumer(cq)
    settled(pair)
    assert cq.poll() == []
    assert [wc.wr_id for wc in cq.take()] == [4]
    assert len(consumer.polls) == 1


def test_arguments_are_checked_before_the_consumer_is_asked(cq: CQ) -> None:
    consumer = Consumer(cq)
    with pytest.raises(ValueError, match="max_entries is 0"):
        cq.poll(0)
    with pytest.raises(ValueError, match="spin is -1"):
        cq.poll(spin=-1)
    cq.close()
    with pytest.raises(ClosedError):
        cq.poll()
    assert consumer.polls == []


def test_the_bulk_forms_are_refused(pair: Pair) -> None:
    cq = pair[1].rcq
    consumer = Consumer(cq)
    settled(pair)
    wcs = WCArray(4)
    for call in (cq.poll_ids, lambda: cq.poll_into(wcs)):
        with pytest.raises(ValueError, match=r"go to its AsyncCQ: use poll\(\)"):
            call()
    del consumer
    assert cq.poll_into(wcs) == 1  # nothing was taken
    assert cq.poll_ids() == []


def test_an_exception_of_the_consumer_is_that_of_poll(cq: CQ) -> None:
    class Broken(Consumer):
        def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[WorkCompletion]:
            raise KeyError(max_entries)

    broken = Broken(cq)
    with pytest.raises(KeyError, match="16"):
        cq.poll()
    del broken


def test_who_asks_a_consumer_that_has_just_left_gets_the_completions_of_the_cq(pair: Pair) -> None:
    a, b = pair

    class Leaves(Consumer):
        def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[WorkCompletion]:
            b.rcq.set_consumer(None)
            raise ClosedError("the consumer is closed")

    leaves = Leaves(b.rcq)
    b.qp.post_recv(b.mr[0:64], wr_id=4)
    a.qp.post_send(a.mr[0:8])
    wait_completions(a.scq, 1)
    assert [wc.wr_id for wc in b.rcq.poll()] == [4]
    del leaves


def test_a_consumer_may_close_everything_while_it_is_asked(ctx: Context, cq: CQ) -> None:
    class Closes(Consumer):
        def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[WorkCompletion]:
            alive.clear()
            ctx.close()
            return []

    alive = [Closes(cq)]
    gone = weakref.ref(alive[0])
    assert cq.poll() == []
    assert gone() is None


# ---- who it is ----------------------------------------------------------------------------


def test_a_consumer_is_held_weakly(pair: Pair) -> None:
    cq = pair[1].rcq
    consumer = Consumer(cq)
    gone = weakref.ref(consumer)
    settled(pair)
    del consumer
    assert gone() is None
    assert [wc.wr_id for wc in cq.poll()] == [4]
    another = Consumer(cq)
    assert cq.poll() is another.has


def test_a_second_consumer_is_refused(cq: CQ) -> None:
    consumer, another = Consumer(cq), Consumer()
    with pytest.raises(ValueError, match="this CQ has an open AsyncCQ already"):
        cq.set_consumer(another)
    assert cq.poll() is consumer.has
    cq.set_consumer(consumer)  # that it is already
    cq.set_consumer(None)
    cq.set_consumer(None)
    assert cq.poll() is not consumer.has
    cq.set_consumer(another)
    assert cq.poll() is another.has


def test_what_cannot_be_held_weakly_is_refused(cq: CQ) -> None:
    with pytest.raises(TypeError, match="weak reference"):
        cq.set_consumer(7)  # type: ignore[arg-type]
    assert cq.poll() == []


def test_a_closed_cq_takes_no_consumer(cq: CQ) -> None:
    cq.close()
    for consumer in (Consumer(), None):
        with pytest.raises(ClosedError):
            cq.set_consumer(consumer)


def test_a_cycle_of_both_is_collected(ctx: Context) -> None:
    cq = CQ(ctx, 4)
    consumer = Consumer(cq)
    consumer.has = [cq]  # type: ignore[list-item]
    cq.user_data = consumer
    gone = weakref.ref(cq), weakref.ref(consumer)
    cq.close()
    del cq, consumer
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


# ---- queue pairs --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [QPState.ERR, QPState.RESET])
def test_the_consumers_of_both_cqs_are_told_when_a_qp_gives_up(pair: Pair, state: QPState) -> None:
    qp = pair[0].qp
    consumers = Consumer(pair[0].scq), Consumer(pair[0].rcq)
    qp.modify(qp_state=state)
    assert [c.changed for c in consumers] == [[qp], [qp]]
    qp.modify(qp_state=QPState.RESET)
    qp.connect(pair[1].qp.address())
    assert [c.changed for c in consumers] == [[qp, qp], [qp, qp]]


@pytest.mark.parametrize("one_cq", [True, False])
def test_a_consumer_of_both_is_told_once(ctx: Context, one_cq: bool) -> None:
    end = Endpoint(ctx, QPType.RC, one_cq=one_cq)
    end.qp.connect(end.qp.address())
    consumer = Consumer(end.scq, end.rcq)
    end.qp.modify(qp_state=QPState.ERR)
    assert consumer.changed == [end.qp]


def test_nobody_is_told_of_what_drops_no_requests(ctx: Context) -> None:
    end, other = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    consumer = Consumer(end.scq)
    connect(end, other)
    end.qp.modify(qp_state=QPState.SQD)
    other.qp.modify(qp_state=QPState.ERR)
    with pytest.raises(VerbsError):
        other.qp.modify(qp_state=QPState.RTS)
    assert consumer.changed == []


def test_nobody_is_told_of_a_change_that_failed(ctx: Context) -> None:
    end = Endpoint(ctx, QPType.RC)
    consumer = Consumer(end.scq)
    with pytest.raises(VerbsError):
        end.qp.modify(qp_state=QPState.RTS)
    with pytest.raises((TypeError, ValueError)):
        end.qp.modify(qp_state=QPState.RESET, nonsense=1)
    assert consumer.changed == []


def test_it_is_told_when_the_reset_is_complete(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:8])
    consumer = Consumer(b.rcq)
    seen: list[Any] = []

    def on_change(qp: QP) -> None:
        seen.append((qp.outstanding, b.mr.close()))
        qp.connect(a.qp.address())  # it is usable

    consumer.on_change = on_change
    b.qp.modify(qp_state=QPState.RESET)
    assert seen == [((0, 0), None)]


@pytest.mark.parametrize("closes", ["qp", "ctx"])
def test_who_is_told_may_close_everything(ctx: Context, pair: Pair, closes: str) -> None:
    consumer, another = Consumer(pair[0].scq), Consumer(pair[0].rcq)
    consumer.on_change = lambda qp: (qp if closes == "qp" else ctx).close()
    pair[0].qp.modify(qp_state=QPState.ERR)
    assert pair[0].qp.closed
    assert set(consumer.changed) == set(another.changed) == {pair[0].qp}


def test_an_exception_there_is_reported_and_not_raised(
    pair: Pair, unraisable: list[BaseException | None]
) -> None:
    class Mute:
        pass

    consumer, mute = Consumer(pair[0].scq), Mute()
    pair[0].rcq.set_consumer(mute)  # type: ignore[arg-type]
    consumer.on_change = lambda qp: {}["missing"]
    pair[0].qp.modify(qp_state=QPState.ERR)
    assert [type(e) for e in unraisable] == [KeyError, AttributeError]
    assert consumer.changed == [pair[0].qp]
    for cq in (pair[0].scq, pair[0].rcq):
        cq.set_consumer(None)  # or they were told of the closing, too


def test_it_is_told_when_a_qp_is_closed(ctx: Context) -> None:
    end = Endpoint(ctx, QPType.UD)
    consumer = Consumer(end.scq, end.rcq)
    closed: list[bool] = []
    consumer.on_change = lambda qp: closed.append(qp.closed)
    end.qp.add_close_callback(lambda: closed.append(True))
    end.qp.close()
    end.qp.close()
    assert consumer.changed == [end.qp]
    assert closed == [True, True]


def test_it_is_told_when_the_context_is_closed(ctx: Context, pair: Pair) -> None:
    consumer = Consumer(pair[0].scq, pair[1].scq)
    ctx.close()
    assert set(consumer.changed) == {pair[0].qp, pair[1].qp}


def test_a_forgotten_qp_that_the_consumer_keeps_is_a_closed_one(ctx: Context) -> None:
    end = Endpoint(ctx, QPType.UD)
    consumer = Consumer(end.scq)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del end.qp
    (qp,) = consumer.changed
    assert qp.closed
    with pytest.raises(ClosedError):
        qp.query()


def test_a_dead_consumer_is_told_nothing(pair: Pair) -> None:
    consumer = Consumer(pair[0].scq)
    del consumer
    pair[0].qp.modify(qp_state=QPState.ERR)
    assert pair[0].scq.poll() == []


def test_a_cq_can_wait_for_its_events_while_it_has_a_consumer(
    cq: CQ, channel: CompletionChannel
) -> None:
    consumer = Consumer(cq)
    assert cq.safe_to_sleep()
    assert channel.try_get_event() is None
    assert consumer.polls == []
