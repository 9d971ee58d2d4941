# SPDX-License-Identifier: MIT
"""Asynchronous events: read once, acknowledged at once, told to whoever waits for completions."""

import contextlib
import gc
import os
import pickle
import select
import weakref

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Overflow,
    Pair,
    Waiter,
    connect,
    hang_up,
    ip_link,
    remind,
    switches,
    take_all,
    take_cq_err,
    until,
    until_addresses_are_back,
    wait_completions,
    wait_one,
    waiting,
)

from cqnotify import (
    CQ,
    PD,
    QP,
    AsyncEvent,
    AsyncEventError,
    AsyncEventType,
    ClosedError,
    CompletionChannel,
    Context,
    DeviceRemovedError,
    FailureWatch,
    QPState,
    QPType,
    WCStatus,
)


def readable(ctx: Context) -> bool:
    return bool(select.select([ctx.async_fd], [], [], 0)[0])


def cq_errors(ctx: Context, n: int) -> list[AsyncEvent]:
    return [take_cq_err(ctx) for _ in range(n)]


def is_told(world: Overflow) -> AsyncEvent:
    """A waiter for completions of the sender is told of a failure: of this one."""
    with pytest.raises(AsyncEventError) as e:
        world.a.channel.get_event(timeout=DEADLINE)
    return e.value.event


def is_not_told(world: Overflow) -> bool:
    with pytest.raises(TimeoutError):
        world.a.channel.get_event(timeout=0)
    return True


def test_without_events_it_times_out_and_the_fd_is_quiet(ctx: Context) -> None:
    take_all(ctx)
    assert ctx.try_get_async_event() is None
    with pytest.raises(TimeoutError, match="no asynchronous event"):
        ctx.get_async_event(timeout=0.01)
    assert not readable(ctx)


def test_an_event_names_its_cq_and_comes_once_for_each_lost_completion(full: Overflow) -> None:
    ctx = full.a.ctx
    assert ctx.try_get_async_event() is None
    full.send(3)
    until(lambda: readable(ctx), "the fd tells of events")
    for event in cq_errors(ctx, 3):
        assert event.event_type is AsyncEventType.CQ_ERR
        assert event.cq is full.a.scq
        assert event.qp is None
        assert event.port_num is None
        assert repr(event) == f"<AsyncEvent CQ_ERR, {full.a.scq!r}>"
    assert ctx.try_get_async_event() is None
    assert not readable(ctx)


def test_all_who_sleep_for_completions_are_told_that_their_cq_failed(full: Overflow) -> None:
    a = full.a
    idle = CompletionChannel(a.ctx)
    with waiting(idle.get_event) as unconcerned:
        waiters = [Waiter(a.channel.get_event).asleep() for _ in range(3)]
        asker = Waiter(lambda: take_cq_err(a.ctx)).asleep()
        full.send(1)
        for waiter in waiters:
            with pytest.raises(AsyncEventError, match="CQ error.*may never come") as e:
                waiter.join()
            assert e.value.event.cq is a.scq
        assert asker.join().cq is a.scq, "who asks for the event gets it"
        idle.interrupt()
    with pytest.raises(InterruptedError):
        unconcerned.join()
    assert is_not_told(full), "told once"


def test_who_goes_to_sleep_is_told_of_what_nobody_has_taken(full: Overflow) -> None:
    full.send(2)
    is_told(full)
    assert is_not_told(full), "of two reports that say the same, once"
    assert len(cq_errors(full.a.ctx, 2)) == 2


def test_completion_events_come_first_and_looking_is_not_waiting(ctx: Context) -> None:
    world = Overflow(ctx)
    a = world.a
    a.scq.req_notify()
    world.fill()
    world.send(1)
    until(lambda: readable(ctx), "CQ_ERR")
    assert a.channel.get_event(timeout=DEADLINE) is a.scq
    assert a.channel.try_get_event() is None
    is_told(world)


def test_what_a_waiter_read_keeps_the_fd_readable_until_it_is_taken(full: Overflow) -> None:
    """The device's own descriptor is empty then: an event loop must wake all the same."""
    ctx = full.a.ctx
    full.send(2)
    is_told(full)
    for _ in range(2):
        assert readable(ctx)
        cq_errors(ctx, 1)
    assert not readable(ctx)


def test_closing_the_context_wakes_who_waits(ctx: Context) -> None:
    with Context(ctx.name) as other:
        take_all(other)
        with waiting(lambda: other.get_async_event()) as waiter:
            other.close()
        with pytest.raises(ClosedError):
            waiter.join()


@pytest.mark.parametrize("state", ["unread", "queued", "taken"])
def test_closing_never_hangs_with_events_unread_queued_or_taken(full: Overflow, state: str) -> None:
    ctx = full.a.ctx
    full.send(2)
    until(lambda: readable(ctx), "CQ_ERR")
    if state != "unread":
        is_told(full)
    taken = cq_errors(ctx, 2) if state == "taken" else []
    full.a.qp.close()
    full.a.scq.close()
    # What nobody has asked for goes with its object, in the kernel and here.
    assert not [e for e in take_all(ctx) if e.event_type == AsyncEventType.CQ_ERR]
    assert all(event.cq is full.a.scq for event in taken)
    assert is_not_told(full), "of a closed CQ"


@pytest.mark.not_on_iwarp("siw knows no SQD, and so no SQ_DRAINED")
def test_an_event_of_a_qp_names_it(pair: Pair) -> None:
    a = pair[0]
    take_all(a.ctx)
    a.qp.modify(qp_state=QPState.SQD)
    event = a.ctx.get_async_event(timeout=DEADLINE)
    assert event.event_type is AsyncEventType.SQ_DRAINED
    assert event.qp is a.qp
    assert event.cq is None
    # It is no failure: who waits for completions is left alone.
    with pytest.raises(TimeoutError):
        a.channel.get_event(timeout=0)


@pytest.mark.not_on_iwarp("siw knows no SQD, and so no SQ_DRAINED")
def test_a_waiter_that_reads_what_is_no_failure_waits_on_to_its_deadline(pair: Pair) -> None:
    a = pair[0]
    take_all(a.ctx)
    with waiting(lambda: a.channel.get_event(timeout=DEADLINE)) as waiter:
        before = switches(waiter.thread)
        a.qp.modify(qp_state=QPState.SQD)
        until(lambda: switches(waiter.thread) > before, "it has looked, and sleeps again")
        waiter.asleep()
        a.channel.interrupt()
    with pytest.raises(InterruptedError):
        waiter.join()
    assert [event.event_type for event in take_all(a.ctx)] == [AsyncEventType.SQ_DRAINED]


def asking(ctx: Context) -> Endpoint:
    """Its waits are told of failures that may pass, too."""
    return Endpoint(ctx, QPType.RC, channel=CompletionChannel(ctx, transient_errors=True), cqe=16)


def await_event(ctx: Context, kind: AsyncEventType) -> set[AsyncEventType | int]:
    """Take the device's events up to this one."""
    seen: set[AsyncEventType | int] = set()
    while kind not in seen:
        seen.add(ctx.get_async_event(timeout=DEADLINE).event_type)
    return seen


def test_a_port_that_goes_down_ends_only_waits_that_ask_for_it_and_have_a_qp_on_it(
    ctx: Context, ctx2: Context, netdev: str
) -> None:
    b = connect(Endpoint(ctx, QPType.RC), asking(ctx2))[1]
    plain = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx2, QPType.RC))[1]
    take_all(ctx2)
    idle = CompletionChannel(ctx2, transient_errors=True)
    CQ(ctx2, 4, channel=idle, user_data="nothing of it is on the port")
    with (
        FailureWatch(ctx2) as watch,
        waiting(idle.get_event) as unconcerned,
        waiting(lambda: plain.channel.get_event(DEADLINE)) as patient,
    ):
        with waiting(b.channel.get_event) as waiter:
            ip_link(netdev, "down")
        with pytest.raises(AsyncEventError, match="port error") as e:
            waiter.join()
        event = e.value.event
        assert event.event_type is AsyncEventType.PORT_ERR
        assert event.transient
        assert event.port_num == 1
        assert event.cq is event.qp is None
        assert repr(event) == "<AsyncEvent PORT_ERR, port 1>"
        ((told, cqs),) = watch.read()
        assert told.event_type is AsyncEventType.PORT_ERR
        assert cqs == [b.scq, b.rcq, plain.scq, plain.rcq]
        ip_link(netdev, "up")
        assert AsyncEventType.PORT_ERR in await_event(ctx2, AsyncEventType.PORT_ACTIVE)
        for channel in (idle, plain.channel):
            channel.interrupt()
    for waiter in (unconcerned, patient):
        with pytest.raises(InterruptedError):
            waiter.join()


@pytest.mark.not_on_iwarp("TCP has retries of its own")
def test_a_link_that_goes_and_comes_back_ends_nothing(
    ctx: Context, ctx2: Context, netdev: str
) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx2, QPType.RC), retry_cnt=7)
    take_all(ctx2)
    b.qp.post_recv(b.mr[0:64], wr_id=1)
    for end in (a, b):
        assert end.channel.try_get_event() is None
    with (
        waiting(lambda: wait_completions(b.rcq, timeout=DEADLINE)) as receiver,
        waiting(lambda: wait_completions(a.scq, timeout=DEADLINE)) as sender,
    ):
        ip_link(netdev, "down")
        await_event(ctx2, AsyncEventType.PORT_ERR)
        ip_link(netdev, "up")
        await_event(ctx2, AsyncEventType.PORT_ACTIVE)
        until_addresses_are_back(ctx2)
        receiver.asleep()
        sender.asleep()
        a.qp.post_send(a.mr[0:8], wr_id=2)
        while sender.thread.is_alive():
            sender.thread.join(5)
            if sender.thread.is_alive():
                remind(a, b)
    (received,), (sent,) = receiver.join(), sender.join()
    assert (received.wr_id, received.status) == (1, WCStatus.SUCCESS)
    assert (sent.wr_id, sent.status) == (2, WCStatus.SUCCESS)


@pytest.mark.not_on_iwarp("TCP has retries of its own")
def test_what_is_made_when_the_link_is_up_again_is_not_told_that_it_was_down(
    ctx2: Context, netdev: str
) -> None:
    with Context(ctx2.name) as unaware:
        take_all(ctx2)
        ip_link(netdev, "down")
        ip_link(netdev, "up")
        await_event(ctx2, AsyncEventType.PORT_ACTIVE)
        until_addresses_are_back(unaware)
        a, b = connect(asking(unaware), asking(unaware))
        with FailureWatch(unaware) as watch:
            assert watch.read() == []
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(a.mr[0:8])
        wait_one(a.scq)
        wait_one(b.rcq)
        assert AsyncEventType.PORT_ERR in [event.event_type for event in take_all(unaware)]


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


def test_too_many_reports_are_kept_to_one_of_a_kind(full: Overflow) -> None:
    """Where somebody waits for completions and nobody takes reports, they do not fill memory."""
    a = full.a
    for _ in range(30):
        full.send(40)
        is_told(full)
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.suppress(AsyncEventError):
                    a.channel.get_event(timeout=0.02)
    assert 1024 <= len(take_all(a.ctx)) < 1200


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


def test_who_is_about_to_wait_is_told_even_if_another_thread_took_the_report(
    full: Overflow,
) -> None:
    full.send(1)
    assert Waiter(lambda: take_cq_err(full.a.ctx)).join().cq is full.a.scq
    assert is_told(full).cq is full.a.scq
    assert is_not_told(full)


def test_a_thread_that_took_the_report_is_not_told_of_it_again(full: Overflow) -> None:
    full.send(1)
    assert take_cq_err(full.a.ctx).cq is full.a.scq
    assert is_not_told(full)
    assert Waiter(lambda: is_not_told(full)).join()


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
        Waiter(lambda: cq_errors(ctx, 2)).join()
    with pytest.raises(AsyncEventError) as first:
        waiter.join()
    with pytest.raises(AsyncEventError) as second:
        channel.get_event(timeout=DEADLINE)
    told = {first.value.event.cq, second.value.event.cq}  # in the order of the device
    assert told == {world.a.scq for world in worlds}


def test_reports_do_not_keep_what_they_are_about(ctx: Context, channel: CompletionChannel) -> None:
    pd, cq = PD(ctx), CQ(ctx, 16, channel=channel)
    take_all(ctx)
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
    assert take_all(ctx) == []


def test_one_of_a_port_is_restored_without_an_element() -> None:
    restored = AsyncEvent._restore(AsyncEventType.PORT_ERR, 1, None)  # type: ignore[attr-defined]
    assert repr(restored) == repr(pickle.loads(pickle.dumps(restored)))
    assert repr(restored) == "<AsyncEvent PORT_ERR, port 1>"
