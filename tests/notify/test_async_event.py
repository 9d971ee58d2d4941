# SPDX-License-Identifier: MIT
"""Asynchronous events: read once, acknowledged at once, told to whoever waits for completions."""

import contextlib
import gc
import os
import select
import weakref

import pytest
from support import (
    DEADLINE,
    Overflow,
    Pair,
    Waiter,
    connect,
    hang_up,
    ip_link,
    until,
    wait_completions,
    waiting,
)

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AsyncEvent,
    AsyncEventError,
    AsyncEventType,
    ClosedError,
    CompletionChannel,
    Context,
    DeviceRemovedError,
    QPState,
    QPType,
)


@pytest.fixture
def overflow(ctx: Context) -> Overflow:
    return Overflow(ctx)


def readable(ctx: Context) -> bool:
    return bool(select.select([ctx.async_fd], [], [], 0)[0])


def drain(ctx: Context) -> list[AsyncEvent]:
    """What there is; a link that came up lately may have left something."""
    events = []
    while (event := ctx.try_get_async_event()) is not None:
        events.append(event)
    return events


def cq_errors(ctx: Context, n: int) -> list[AsyncEvent]:
    got: list[AsyncEvent] = []
    while len(got) < n:
        event = ctx.get_async_event(timeout=DEADLINE)
        if event.event_type == AsyncEventType.CQ_ERR:
            got.append(event)
    return got


def test_without_events_it_times_out_and_the_fd_is_quiet(ctx: Context) -> None:
    drain(ctx)
    assert ctx.try_get_async_event() is None
    with pytest.raises(TimeoutError, match="no asynchronous event"):
        ctx.get_async_event(timeout=0.01)
    assert not readable(ctx)


def test_an_event_names_its_cq_and_comes_once_for_each_lost_completion(overflow: Overflow) -> None:
    ctx = overflow.a.ctx
    drain(ctx)
    overflow.fill()
    assert ctx.try_get_async_event() is None
    overflow.send(3)
    until(lambda: readable(ctx), "the fd tells of events")
    for event in cq_errors(ctx, 3):
        assert event.event_type is AsyncEventType.CQ_ERR
        assert event.cq is overflow.a.scq
        assert event.qp is None
        assert event.port_num is None
        assert repr(event) == f"<AsyncEvent CQ_ERR, {overflow.a.scq!r}>"
    assert ctx.try_get_async_event() is None
    assert not readable(ctx)


def test_after_an_overflow_the_cq_works_on(overflow: Overflow) -> None:
    ctx = overflow.a.ctx
    overflow.fill()
    overflow.send(1)
    cq_errors(ctx, 1)
    cq = overflow.a.scq
    assert len(cq.poll(64)) == cq.cqe
    cq.req_notify()
    overflow.send(1)
    assert overflow.a.channel.get_event(timeout=DEADLINE) is cq  # who took the report knows it
    assert len(wait_completions(cq, 1)) == 1


def test_it_sleeps_until_an_event_comes(overflow: Overflow) -> None:
    ctx = overflow.a.ctx
    drain(ctx)
    overflow.fill()
    with waiting(lambda: ctx.get_async_event(DEADLINE)) as waiter:
        overflow.send(1)
    assert waiter.join().cq is overflow.a.scq


def test_who_sleeps_for_completions_is_told_that_their_cq_failed(overflow: Overflow) -> None:
    a, b = overflow.a, overflow.b
    drain(a.ctx)
    overflow.fill()
    idle = CompletionChannel(a.ctx)
    with waiting(idle.get_event) as unconcerned:
        with waiting(lambda: a.channel.get_event(DEADLINE)) as waiter:
            b.qp.post_recv(b.mr[0:64])
            a.qp.post_send(a.mr[0:8])
        with pytest.raises(AsyncEventError, match="CQ error.*may never come") as e:
            waiter.join()
        assert e.value.event.cq is a.scq
        idle.interrupt()
    with pytest.raises(InterruptedError):
        unconcerned.join()
    # Told once; and it still is there for who asks the context.
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)
    assert cq_errors(a.ctx, 1)[0].cq is a.scq


def test_all_who_sleep_are_told_and_who_asks_for_the_event_gets_it(overflow: Overflow) -> None:
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    waiters = [Waiter(a.channel.get_event).asleep() for _ in range(3)]
    asker = Waiter(lambda: cq_errors(a.ctx, 1)).asleep()
    overflow.send(1)
    for waiter in waiters:
        with pytest.raises(AsyncEventError):
            waiter.join()
    assert asker.join()[0].cq is a.scq
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)


def test_who_goes_to_sleep_is_told_of_what_nobody_has_taken(overflow: Overflow) -> None:
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    overflow.send(2)
    with pytest.raises(AsyncEventError):
        a.channel.get_event(timeout=DEADLINE)
    with pytest.raises(TimeoutError):  # of two reports that say the same, once
        a.channel.get_event(timeout=0)
    assert len(cq_errors(a.ctx, 2)) == 2


def test_completion_events_come_first_and_looking_is_not_waiting(overflow: Overflow) -> None:
    a = overflow.a
    a.scq.req_notify()
    overflow.fill()
    overflow.send(1)
    until(lambda: readable(a.ctx), "CQ_ERR")
    assert a.channel.get_event(timeout=DEADLINE) is a.scq
    assert a.channel.try_get_event() is None
    with pytest.raises(AsyncEventError):
        a.channel.get_event(timeout=DEADLINE)


def test_what_a_waiter_read_keeps_the_fd_readable_until_it_is_taken(overflow: Overflow) -> None:
    """The device's own descriptor is empty then: an event loop must wake all the same."""
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    overflow.send(2)
    with pytest.raises(AsyncEventError):
        a.channel.get_event(timeout=DEADLINE)
    for _ in range(2):
        assert readable(a.ctx)
        cq_errors(a.ctx, 1)
    assert not readable(a.ctx)


def test_closing_the_context_wakes_who_waits(ctx: Context) -> None:
    with Context(ctx.name) as other:
        drain(other)
        with waiting(lambda: other.get_async_event()) as waiter:
            other.close()
        with pytest.raises(ClosedError):
            waiter.join()
    for call in (other.get_async_event, other.try_get_async_event, lambda: other.async_fd):
        with pytest.raises(ClosedError):
            call()


def test_closing_never_hangs_with_events_unread_queued_or_taken(ctx: Context) -> None:
    for state in ("unread", "queued", "taken"):
        with Context(ctx.name) as other:
            overflow = Overflow(other)
            overflow.fill()
            overflow.send(2)
            until(lambda other=other: readable(other), "CQ_ERR")
            if state != "unread":
                with pytest.raises(AsyncEventError):
                    overflow.a.channel.get_event(timeout=DEADLINE)
            taken = cq_errors(other, 2) if state == "taken" else []
            overflow.a.qp.close()
            overflow.a.scq.close()
            # What nobody has asked for goes with its object, in the kernel and here.
            assert not [e for e in drain(other) if e.event_type == AsyncEventType.CQ_ERR]
            assert all(event.cq is overflow.a.scq for event in taken)
            # Of a closed CQ nobody is told any more.
            with pytest.raises(TimeoutError):
                overflow.a.channel.get_event(timeout=0)


def test_an_event_of_a_qp_names_it(pair: Pair) -> None:
    a = pair[0]
    drain(a.ctx)
    a.qp.modify(qp_state=QPState.SQD)
    event = a.ctx.get_async_event(timeout=DEADLINE)
    assert event.event_type is AsyncEventType.SQ_DRAINED
    assert event.qp is a.qp
    assert event.cq is None
    # It is no failure: who waits for completions is left alone.
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)


def test_a_port_that_goes_down_is_told_to_those_with_a_qp_on_it(
    wire_pair: Pair, netdev: str
) -> None:
    b = wire_pair[1]
    drain(b.ctx)
    idle = CompletionChannel(b.ctx)
    CQ(b.ctx, 4, channel=idle, user_data="nothing of it is on the port")
    with waiting(idle.get_event) as unconcerned:
        with waiting(b.channel.get_event) as waiter:
            ip_link(netdev, "down")
        with pytest.raises(AsyncEventError, match="port error") as e:
            waiter.join()
        assert e.value.event.event_type is AsyncEventType.PORT_ERR
        assert e.value.event.port_num == 1
        assert e.value.event.cq is e.value.event.qp is None
        assert repr(e.value.event) == "<AsyncEvent PORT_ERR, port 1>"
        ip_link(netdev, "up")
        seen = set()
        while AsyncEventType.PORT_ACTIVE not in seen:
            seen.add(b.ctx.get_async_event(timeout=DEADLINE).event_type)
        idle.interrupt()
    with pytest.raises(InterruptedError):
        unconcerned.join()


@pytest.mark.usefixtures("conversation")
def test_an_unread_event_of_a_forgotten_world_is_collected(ctx: Context) -> None:
    other = Context(ctx.name)
    overflow = Overflow(other)
    overflow.fill()
    overflow.send(1)
    with pytest.raises(AsyncEventError):
        overflow.a.channel.get_event(timeout=DEADLINE)
    gone = weakref.ref(overflow.a.scq), weakref.ref(other)
    with pytest.warns(ResourceWarning, match="unclosed Context"):
        del overflow, other
        gc.collect()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_too_many_reports_are_kept_to_one_of_a_kind(overflow: Overflow) -> None:
    """Where somebody waits for completions and nobody takes reports, they do not fill memory."""
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    for _ in range(30):
        overflow.send(40)
        with pytest.raises(AsyncEventError):
            a.channel.get_event(timeout=DEADLINE)
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(AsyncEventError):
                    a.channel.get_event(timeout=0.02)
    assert 1024 <= len(drain(a.ctx)) < 1200


@pytest.mark.parametrize("asleep", [False, True])
def test_a_device_that_went_away_is_an_error_for_all_who_wait(ctx: Context, asleep: bool) -> None:
    with Context(ctx.name) as other:
        channel = CompletionChannel(other)
        CQ(other, 4, channel=channel)
        keep = os.dup(channel.fileno())
        try:
            if asleep:
                # A sleeper looks at the file of before; what else happens makes it look again.
                waiter = Waiter(channel.get_event).asleep()
                hang_up(channel.fileno())
                channel.interrupt()
                with pytest.raises(DeviceRemovedError):
                    waiter.join()
                with pytest.raises(InterruptedError):  # which was not delivered to him
                    channel.get_event()
            else:
                hang_up(channel.fileno())
            for call in (channel.get_event, channel.try_get_event, channel.__next__):
                with pytest.raises(DeviceRemovedError, match="ibv_get_cq_event") as e:
                    call()
                assert e.value.verb == "ibv_get_cq_event"
        finally:
            os.dup2(keep, channel.fileno())
            os.close(keep)


def test_objects_made_after_an_event_are_not_told_of_it(overflow: Overflow) -> None:
    ctx = overflow.a.ctx
    overflow.fill()
    overflow.send(1)
    with pytest.raises(AsyncEventError):
        overflow.a.channel.get_event(timeout=DEADLINE)
    channel = CompletionChannel(ctx)
    pd = PD(ctx)
    cq = CQ(ctx, 16, channel=channel)
    qp = QP(pd, QPType.RC, send_cq=cq)
    qp.connect(qp.address())
    mr = MR(pd, 64)
    qp.post_recv(mr)
    cq.req_notify()
    qp.post_send(mr[0:8])
    assert channel.get_event(timeout=DEADLINE) is cq


def test_who_is_about_to_wait_is_told_even_if_another_thread_took_the_report(
    overflow: Overflow,
) -> None:
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    overflow.send(1)
    taker = Waiter(lambda: cq_errors(a.ctx, 1))
    assert taker.join()[0].cq is a.scq
    with pytest.raises(AsyncEventError) as e:
        a.channel.get_event(timeout=DEADLINE)
    assert e.value.event.cq is a.scq
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)


def test_a_thread_that_took_the_report_is_not_told_of_it_again(overflow: Overflow) -> None:
    a = overflow.a
    drain(a.ctx)
    overflow.fill()
    overflow.send(1)
    assert cq_errors(a.ctx, 1)[0].cq is a.scq
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)
    with pytest.raises(TimeoutError):
        Waiter(lambda: a.channel.get_event(timeout=0)).join()


def test_two_failures_are_told_one_after_the_other(ctx: Context) -> None:
    channel = CompletionChannel(ctx)
    worlds = [Overflow(ctx) for _ in range(2)]
    for world in worlds:
        a = world.a
        a.qp.close()
        a.send_cq = CQ(ctx, 1, channel=channel)
        a.qp = QP(a.pd, QPType.RC, send_cq=a.scq, max_send_wr=64)
        world.b.qp.modify(qp_state=QPState.RESET)
        connect(a, world.b)
        world.fill()
    with waiting(lambda: channel.get_event(DEADLINE)) as waiter:
        for world in worlds:
            world.send(1)
        taker = Waiter(lambda: cq_errors(ctx, 2))
        taker.join()
    with pytest.raises(AsyncEventError) as first:
        waiter.join()
    with pytest.raises(AsyncEventError) as second:
        channel.get_event(timeout=DEADLINE)
    told = {first.value.event.cq, second.value.event.cq}  # in the order of the device
    assert told == {world.a.scq for world in worlds}


def test_of_what_was_closed_since_nobody_is_told(overflow: Overflow) -> None:
    a = overflow.a
    overflow.fill()
    overflow.send(1)
    Waiter(lambda: cq_errors(a.ctx, 1)).join()
    a.qp.close()
    a.scq.close()
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)


def test_reports_do_not_keep_what_they_are_about(ctx: Context, channel: CompletionChannel) -> None:
    pd, cq = PD(ctx), CQ(ctx, 16, channel=channel)
    drain(ctx)
    alive = []
    for _ in range(20):
        qp = QP(pd, QPType.RC, send_cq=cq)
        qp.connect(qp.address())
        qp.modify(qp_state=QPState.SQD)
        with pytest.raises(TimeoutError):
            channel.get_event(timeout=0.02)  # reads the report
        alive.append(weakref.ref(qp))
        qp.close()
        del qp
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
    assert drain(ctx) == []
