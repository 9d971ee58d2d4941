# SPDX-License-Identifier: MIT
"""SRQ: making one, its limit and its size, closing it."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable

import pytest
from srq_hub import TYPES, Hub
from support import DEADLINE, Waiter, is_rxe, kernel, outstanding, take_all, until

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AsyncEvent,
    AsyncEventType,
    ClosedError,
    Context,
    QPState,
    QPType,
    SRQAttr,
    VerbsError,
)


def test_a_new_srq_is_empty_and_knows_what_it_was_made_of(pd: PD) -> None:
    with SRQ(pd, 20, max_sge=3, user_data="mine") as srq:
        assert (srq.pd, srq.context, srq.user_data) == (pd, pd.context, "mine")
        assert srq.max_wr >= 20
        assert srq.max_sge >= 3
        assert srq.outstanding == 0
        attr = srq.query()
        assert isinstance(attr, SRQAttr)
        assert attr.max_wr >= srq.max_wr
        assert (attr.max_sge, attr.srq_limit) == (srq.max_sge, 0)
        srq.user_data = None


@pytest.mark.parametrize("qp_type", TYPES)
def test_a_qp_with_an_srq_has_no_receive_queue_of_its_own(pd: PD, cq: CQ, qp_type: QPType) -> None:
    srq = SRQ(pd, 4)
    qp = QP(pd, qp_type, send_cq=cq, srq=srq)
    assert qp.srq is srq
    assert (qp.max_recv_wr, qp.max_recv_sge) == (0, 0)
    assert QP(pd, qp_type, send_cq=cq).srq is None
    qp.to_init()
    with pytest.raises(ValueError, match=rf"QP {qp.qp_num} receives from its SRQ.*srq.post_recv"):
        qp.post_recv(MR(pd, 64))
    assert (outstanding(qp), srq.outstanding) == ((0, 0), 0)


def test_a_qp_with_an_srq_refuses_what_belongs_to_a_receive_queue(pd: PD, cq: CQ) -> None:
    srq = SRQ(pd, 4)
    for name in ("max_recv_wr", "max_recv_sge"):
        with pytest.raises(ValueError, match=f"{name} was given, but with srq there is no"):
            QP(pd, QPType.RC, send_cq=cq, srq=srq, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="srq must be a cqnotify.SRQ, not cqnotify.CQ"):
        QP(pd, QPType.RC, send_cq=cq, srq=cq)  # type: ignore[arg-type]
    with Context(pd.context.name) as other:
        foreign = SRQ(PD(other), 4)
        with pytest.raises(ValueError, match="srq belongs to another Context than pd"):
            QP(pd, QPType.RC, send_cq=cq, srq=foreign)
    with pytest.raises(ClosedError, match="this SRQ is closed"):
        QP(pd, QPType.RC, send_cq=cq, srq=foreign)
    srq.close()


LIMIT = AsyncEventType.SRQ_LIMIT_REACHED


def next_of(ctx: Context, event_type: AsyncEventType) -> AsyncEvent:
    while True:
        event = ctx.get_async_event(timeout=DEADLINE)
        if event.event_type == event_type:
            return event


def await_limit(ctx: Context) -> AsyncEvent:
    return next_of(ctx, LIMIT)


def limits(ctx: Context) -> list[AsyncEvent]:
    return [event for event in take_all(ctx) if event.event_type == LIMIT]


# ---- the limit, and the size -------------------------------------------------------------


def take(hub: Hub, n: int) -> None:
    for _ in range(n):
        hub.send(0)
        hub.receive(0)


@pytest.mark.parametrize("how", ["made", "modified"])
def test_a_limit_that_is_armed_is_reported_once_and_can_be_armed_again(
    ctx: Context, how: str
) -> None:
    hub = Hub(ctx, 1, srq_limit=3 if how == "made" else 0)
    if how == "modified":
        hub.srq.modify(srq_limit=3)
    for _ in range(2):
        assert hub.srq.query().srq_limit == 3
        hub.post(*range(8 - hub.srq.outstanding))
        take(hub, 5)
        assert limits(ctx) == [], "three are left"
        take(hub, 1)
        event = await_limit(ctx)
        assert event.event_type is LIMIT
        assert event.srq is hub.srq
        assert (event.cq, event.qp, event.port_num) == (None, None, None)
        assert repr(event) == f"<AsyncEvent SRQ_LIMIT_REACHED, {hub.srq!r}>"
        assert hub.srq.query().srq_limit == 0
        take(hub, 1)
        assert limits(ctx) == [], "it is not armed any more"
        hub.srq.modify(srq_limit=3)


def test_a_limit_can_be_disarmed(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.srq.modify(srq_limit=3)
    hub.post(*range(3))
    hub.srq.modify(srq_limit=0)
    take(hub, 1)
    assert hub.srq.query().srq_limit == 0
    hub.srq.modify(srq_limit=2)
    take(hub, 1)
    assert await_limit(ctx).srq is hub.srq
    assert limits(ctx) == []


def test_a_thread_that_sleeps_for_the_limit_is_woken_and_refills(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.post(0, 1, 2)
    hub.srq.modify(srq_limit=2)
    waiter = Waiter(lambda: await_limit(ctx)).asleep()
    take(hub, 2)
    assert waiter.join().srq is hub.srq
    # To wait for completions is another thing: the limit is no failure.
    with pytest.raises(TimeoutError):
        hub.channel.get_event(timeout=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"srq_limit": 32}, "srq_limit is 32: it must be 0 to 31"),
        ({"srq_limit": -1}, "srq_limit is -1"),
        ({"max_wr": 0}, "max_wr is 0: it must be 1 to"),
        ({"max_wr": 1 << 40}, "max_wr is 1099511627776: it must be 1 to"),
        ({"max_wr": 8, "srq_limit": 9}, "srq_limit is 9: it must be 0 to 8"),
        ({"max_wr": 1}, "max_wr is 1: 2 receives are posted and have not completed"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_and_changes_nothing(
    pd: PD, arguments: dict[str, int], message: str
) -> None:
    with MR(pd, 64) as mr, SRQ(pd, 31) as srq:
        assert srq.max_wr == 31  # a size that devices grant as it is
        for wr_id in range(2):
            srq.post_recv(mr, wr_id=wr_id)
        before = srq.query()
        with pytest.raises(ValueError, match=message):
            srq.modify(**arguments)
        assert srq.query() == before


def test_a_resize_keeps_what_was_posted_in_its_order(ctx: Context) -> None:
    hub = Hub(ctx, 2, max_wr=4)
    hub.post(1, 2, 3)
    hub.send(0)  # so that the queue does not begin at its beginning
    hub.srq.modify(max_wr=200)
    assert 200 <= hub.srq.max_wr <= hub.srq.query().max_wr
    hub.post(*range(4, 30))
    assert hub.srq.outstanding == 29
    for wr_id in range(2, 25):
        hub.send(1)
        assert hub.receive(1).wr_id == wr_id
    hub.receive(0)
    hub.srq.modify(max_wr=5)
    assert hub.srq.query().max_wr < 200
    for wr_id in range(25, 30):
        hub.send(0)
        assert hub.receive(0).wr_id == wr_id
    assert hub.srq.outstanding == 0
    hub.post(1, 2, 3, 4, 5)


def test_size_and_limit_change_together_in_both_directions(pd: PD) -> None:
    with SRQ(pd, 4, srq_limit=4) as srq:
        srq.modify(max_wr=100, srq_limit=90)
        assert srq.query().srq_limit == 90
        assert srq.query().max_wr >= 100
        srq.modify(max_wr=8, srq_limit=7)
        assert srq.query().srq_limit == 7
        assert srq.query().max_wr < 90


def test_a_size_below_the_armed_limit_is_refused_in_words(pd: PD) -> None:
    with SRQ(pd, 100, srq_limit=60) as srq:
        with pytest.raises(VerbsError, match="from max_wr .* to 10: is the limit.*armed") as e:
            srq.modify(max_wr=10)
        assert (e.value.errno, e.value.verb) == (errno.EINVAL, "ibv_modify_srq")
        assert srq.query().srq_limit == 60
        srq.modify(max_wr=200)


# ---- closing -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["unread", "queued", "taken"])
def test_closing_never_hangs_with_its_event_unread_queued_or_taken(
    ctx: Context, state: str
) -> None:
    with Context(ctx.name) as other:
        hub = Hub(other, 1)
        hub.srq.modify(srq_limit=1)
        hub.post(1)
        take_all(other)
        hub.send(0)
        if state == "queued":
            with pytest.raises(TimeoutError):
                hub.channel.get_event(timeout=0.1)  # reads the report
        event = await_limit(other) if state == "taken" else None
        hub.qps[0].close()
        hub.srq.close()
        assert limits(other) == []
        assert event is None or event.srq is hub.srq


def test_an_event_that_waits_to_be_taken_does_not_keep_the_srq(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.srq.modify(srq_limit=1)
    hub.post(1)
    hub.send(0)
    until(lambda: hub.srq.query().srq_limit == 0, "the limit was reached")
    with pytest.raises(TimeoutError):
        hub.channel.get_event(timeout=0.1)
    gone = weakref.ref(hub.srq)
    hub.qps[0].close()
    hub.qps.clear()
    del hub.srq
    gc.collect()
    assert gone() is None
    assert limits(ctx) == []


@pytest.mark.not_on_iwarp("siw reports no QP_LAST_WQE_REACHED here")
def test_a_qp_that_was_moved_to_err_reports_that_it_takes_no_more_of_the_srq(hub: Hub) -> None:
    take_all(hub.ctx)
    hub.qps[1].modify(qp_state=QPState.ERR)
    if is_rxe(hub.ctx) and kernel() < (6, 5):  # where rxe does not yet
        with pytest.raises(TimeoutError):
            hub.ctx.get_async_event(timeout=0.2)
        return
    event = next_of(hub.ctx, AsyncEventType.QP_LAST_WQE_REACHED)
    assert event.qp is hub.qps[1]
    assert event.srq is None


@pytest.mark.not_on_iwarp("siw resizes no SRQ")
def test_threads_may_post_and_resize_and_poll_at_once(ctx: Context) -> None:
    """Whatever a resize meets, no receive is lost or comes twice."""
    hub = Hub(ctx, 2, max_wr=64, rnr_retry=7, min_rnr_timer=1)
    n = 60
    got: list[int] = []

    def fill() -> None:
        for wr_id in range(2 * n):
            until(lambda: hub.srq.outstanding < 32, "there is room")
            hub.post(wr_id)

    def resize() -> None:
        for i in range(20):
            hub.srq.modify(max_wr=64 + i % 2 * 64)

    def send(i: int) -> None:
        for _ in range(n):
            hub.send(i)

    def poll(i: int) -> None:
        mine: list[int] = []

        def all_in() -> bool:
            mine.extend(hub.qps[i].recv_cq.poll_ids())
            return len(mine) == n

        until(all_in, "all have come")
        got.extend(mine)

    work: list[Callable[[], None]] = [fill, resize]
    work += [lambda i=i: send(i) for i in (0, 1)]  # type: ignore[misc]
    work += [lambda i=i: poll(i) for i in (0, 1)]  # type: ignore[misc]
    for waiter in [Waiter(call) for call in work]:
        waiter.join()
    assert sorted(got) == list(range(2 * n))
    assert hub.srq.outstanding == 0
