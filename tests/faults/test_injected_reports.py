# SPDX-License-Identifier: MIT
"""Reports that rxe never makes: whom they reach, and with what."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import sys
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from fault_world import World, core, event_pending, failures_pending, inject, inside, starves, told
from support import DEADLINE, Waiter, device_fd, device_gone, take_all, until, waiting

from cqnotify import (
    CQ,
    PD,
    QP,
    SRQ,
    AsyncEventError,
    AsyncEventType,
    CompletionChannel,
    Context,
    DeviceRemovedError,
    FailureWatch,
    QPType,
    VerbsError,
    WCArray,
    _core,
)
from cqnotify.hw import XRCD, SRQType

LASTING = {
    AsyncEventType.CQ_ERR: "cq",
    AsyncEventType.QP_FATAL: "qp",
    AsyncEventType.QP_REQ_ERR: "qp",
    AsyncEventType.QP_ACCESS_ERR: "qp",
    AsyncEventType.SRQ_ERR: "srq",
    AsyncEventType.DEVICE_FATAL: "device",
}
TRANSIENT = {AsyncEventType.PATH_MIG_ERR: "qp", AsyncEventType.PORT_ERR: "port"}
FAILURES = LASTING | TRANSIENT
UNSUPPORTED = {AsyncEventType.WQ_FATAL}
NEWS = {
    AsyncEventType.COMM_EST: "qp",
    AsyncEventType.SQ_DRAINED: "qp",
    AsyncEventType.PATH_MIG: "qp",
    AsyncEventType.QP_LAST_WQE_REACHED: "qp",
    AsyncEventType.SRQ_LIMIT_REACHED: "srq",
    AsyncEventType.PORT_ACTIVE: "port",
    AsyncEventType.LID_CHANGE: "port",
    AsyncEventType.PKEY_CHANGE: "port",
    AsyncEventType.SM_CHANGE: "port",
    AsyncEventType.CLIENT_REREGISTER: "port",
    AsyncEventType.GID_CHANGE: "port",
    AsyncEventType.DEVICE_SPEED_CHANGE: "device",
}


def test_an_observer_sees_failures_and_what_waits_to_be_taken(w: World) -> None:
    known, watch = partial(_core.known_async_events, w.ctx), FailureWatch(w.ctx)
    take_all(w.ctx)
    assert known() == []
    inject(w, AsyncEventType.QP_FATAL, w.qp)  # a failure, which is taken
    assert len(watch.read()) == 1
    core.inject_event(AsyncEventType.SQ_DRAINED, w.sqp)
    assert watch.read() == []
    core.inject_event(AsyncEventType.PORT_ERR, 1)
    assert len(watch.read()) == 1
    expected = [AsyncEventType.QP_FATAL, AsyncEventType.PORT_ERR, AsyncEventType.SQ_DRAINED]
    assert [event.event_type for event in known()] == expected
    assert [(event.qp, event.port_num) for event in known()] == [
        (w.qp, None),
        (None, 1),
        (w.sqp, None),
    ]


def test_reports_that_were_taken_leave_room_for_equal_ones(w: World) -> None:
    take_all(w.ctx)
    for _ in range(1100):  # more than are queued, if equal ones are there
        inject(w, AsyncEventType.SQ_DRAINED, w.qp)
    watch = FailureWatch(w.ctx)
    for _ in range(2):
        core.inject_event(AsyncEventType.SQ_DRAINED, w.qp)
        assert watch.read() == []
    assert len(take_all(w.ctx)) == 2


def element_of(w: World, kind: str) -> Any:
    return {"cq": w.cq, "qp": w.qp, "srq": w.srq, "port": 1, "device": None}[kind]


@pytest.mark.parametrize("event_type", LASTING, ids=lambda t: t.name)
def test_each_failure_ends_the_waits_that_it_concerns_and_no_others(
    w: World, event_type: AsyncEventType
) -> None:
    idle = CompletionChannel(w.ctx)
    CQ(w.ctx, 4, channel=idle)
    with waiting(w.channel.get_event) as concerned, waiting(idle.get_event) as other:
        inject(w, event_type, element_of(w, FAILURES[event_type]))
        if event_type != AsyncEventType.DEVICE_FATAL:
            idle.interrupt()
    with pytest.raises(AsyncEventError) as e:
        concerned.join()
    assert e.value.event.event_type is event_type
    with pytest.raises(
        AsyncEventError if event_type == AsyncEventType.DEVICE_FATAL else InterruptedError
    ):
        other.join()
    with pytest.raises(TimeoutError):  # a thread that was told once is not told again
        w.channel.get_event(timeout=0)


@pytest.mark.parametrize("first", ["its own", "the other's"])
def test_of_two_failures_a_wait_is_told_the_one_that_concerns_it(w: World, first: str) -> None:
    channel = CompletionChannel(w.ctx)
    qp = QP(w.pd, QPType.RC, send_cq=CQ(w.ctx, 4, channel=channel))
    for each in (w.qp, qp) if first == "its own" else (qp, w.qp):
        inject(w, AsyncEventType.QP_FATAL, each)  # this thread knows both, another one neither
    with pytest.raises(AsyncEventError) as e:
        Waiter(lambda: w.channel.get_event(timeout=0)).join()
    assert e.value.event.qp is w.qp
    with pytest.raises(TimeoutError):
        Waiter(lambda: w.channel.get_event(timeout=0)).join()


@pytest.mark.parametrize("event_type", TRANSIENT, ids=lambda t: t.name)
def test_a_failure_that_may_pass_ends_only_the_waits_of_channels_that_ask_for_it(
    w: World, event_type: AsyncEventType
) -> None:
    asking = CompletionChannel(w.ctx, transient_errors=True)
    qp = QP(w.pd, QPType.RC, send_cq=CQ(w.ctx, 4, channel=asking))
    qp.connect(qp.address())
    with waiting(asking.get_event) as concerned, waiting(w.channel.get_event) as other:
        for each in (w.qp, qp):
            inject(w, event_type, each if TRANSIENT[event_type] == "qp" else 1)
        w.channel.interrupt()
    with pytest.raises(AsyncEventError) as e:
        concerned.join()
    assert e.value.event.event_type is event_type
    assert e.value.event.transient
    with pytest.raises(InterruptedError):
        other.join()


def test_what_came_before_a_channel_or_a_watch_was_made_is_not_told_to_it(w: World) -> None:
    take_all(w.ctx)
    for unread in (1, 200):  # more than are read in a row elsewhere
        for _ in range(unread):
            core.inject_event(AsyncEventType.DEVICE_FATAL, None)
        channel = CompletionChannel(w.ctx)
        assert FailureWatch(w.ctx).read() == []
        with pytest.raises(TimeoutError):
            channel.get_event(timeout=0)
        with pytest.raises(AsyncEventError, match="catastrophic"):
            w.channel.get_event(timeout=0)
        left = [event.event_type for event in take_all(w.ctx)]
        assert left == [AsyncEventType.DEVICE_FATAL], "the same one comes once"


def test_a_channel_and_a_watch_are_made_on_a_device_that_has_gone_and_their_waits_say_so(
    w: World,
) -> None:
    for make in (CompletionChannel, FailureWatch):
        with device_gone(w.ctx):
            made = make(w.ctx)
            wait = made.read if isinstance(made, FailureWatch) else made.get_event
            with pytest.raises(DeviceRemovedError, match="no more events will come"):
                wait()


@pytest.mark.parametrize("event_type", NEWS, ids=lambda t: t.name)
def test_news_that_are_no_failure_leave_waiters_alone(w: World, event_type: AsyncEventType) -> None:
    with waiting(lambda: w.channel.get_event(DEADLINE)) as waiter:
        inject(w, event_type, element_of(w, NEWS[event_type]))
        w.channel.interrupt()
    with pytest.raises(InterruptedError):
        waiter.join()


@pytest.mark.parametrize("event_type", FAILURES, ids=lambda t: t.name)
def test_a_watch_tells_each_failure_with_the_cqs_that_it_concerns(
    w: World, event_type: AsyncEventType
) -> None:
    idle = CQ(w.ctx, 4)
    QP(w.pd, QPType.RC, send_cq=idle)  # on no port yet
    kind = FAILURES[event_type]
    for _ in range(2):
        core.inject_event(event_type, element_of(w, kind))
        ((event, cqs),) = w.watch.read()
        assert event.event_type is event_type
        assert event.cq is (w.cq if kind == "cq" else None)
        assert event.qp is (w.qp if kind == "qp" else None)
        assert event.srq is (w.srq if kind == "srq" else None)
        assert event.port_num == (1 if kind == "port" else None)
        assert event.transient == (event_type in TRANSIENT)
        assert cqs == {"cq": [w.cq], "srq": [w.ex], "device": None}.get(kind, [w.cq, w.ex])
        assert w.watch.read() == []
        queued = w.ctx.try_get_async_event()
        assert queued is not None
        assert queued.event_type is event_type


@pytest.mark.parametrize("kind", ["cq", "qp", "srq"])
def test_what_is_about_an_object_that_others_made_on_the_device_is_nobodys(
    w: World, kind: str
) -> None:
    """As those of a library that shares the device by librdmacm: what our object would be there is
    theirs."""
    event_type = next(t for t, of in FAILURES.items() if of == kind)
    with closing(World(w.ctx.name)) as other:
        core.inject_event(event_type, element_of(other, kind))
        assert w.watch.read() == []
        assert w.ctx.try_get_async_event() is None


def test_a_port_without_queue_pairs_concerns_no_cq(w: World) -> None:
    core.inject_event(AsyncEventType.PORT_ERR, 2)
    ((event, cqs),) = w.watch.read()
    assert (event.port_num, cqs) == (2, [])


def test_a_cq_for_both_directions_is_named_once(w: World) -> None:
    qp = QP(w.pd, QPType.RC, send_cq=w.ex)
    core.inject_event(AsyncEventType.QP_FATAL, qp)
    assert [cqs for _, cqs in w.watch.read()] == [[w.ex]]


def test_a_failure_of_a_qp_without_cqs_concerns_all_cqs(ctx: Context) -> None:
    """That of XRC_RECV: each message names an SRQ, which has a CQ of its own."""
    core.use_fake_device(True)
    with Context(ctx.name) as able:
        pd, xrcd = PD(able), XRCD(able)
        channel, watch = CompletionChannel(able), FailureWatch(able)
        cqs = [CQ(able, 4, channel=channel), CQ(able, 4)]
        SRQ(pd, 4, srq_type=SRQType.XRC, xrcd=xrcd, cq=cqs[1])
        qp = QP(None, QPType.XRC_RECV, xrcd=xrcd)
        core.inject_event(AsyncEventType.QP_FATAL, qp)
        ((event, concerned),) = watch.read()
        assert (event.qp, concerned) == (qp, cqs)
        with pytest.raises(AsyncEventError):
            channel.get_event(timeout=0)


def test_a_failure_of_an_srq_with_a_cq_ends_the_waits_of_its_channel(ctx: Context) -> None:
    core.use_fake_device(True)
    with Context(ctx.name) as able:
        channel, other = CompletionChannel(able), CompletionChannel(able)
        watch = FailureWatch(able)
        cq = CQ(able, 4, channel=channel)
        srq = SRQ(PD(able), 4, srq_type=SRQType.XRC, xrcd=XRCD(able), cq=cq)
        CQ(able, 4, channel=other)
        core.inject_event(AsyncEventType.SRQ_ERR, srq)
        assert [cqs for _, cqs in watch.read()] == [[cq]]
        with pytest.raises(AsyncEventError):
            channel.get_event(timeout=0)
        with pytest.raises(TimeoutError):
            other.get_event(timeout=0)


@pytest.mark.parametrize("error", [0, errno.EBUSY])
def test_a_failure_of_what_is_being_closed_is_told_once(w: World, error: int) -> None:
    """It may stay open."""
    cq = CQ(w.ctx, 4)
    inject(w, AsyncEventType.CQ_ERR, cq)
    with inside("ibv_destroy_cq", cq.close, error=error) as closer:
        ((event, cqs),) = w.watch.read()
        assert (event.cq, cqs) == (cq, [cq])
    if error:
        with pytest.raises(VerbsError, match="stays open"):
            closer.join()
    else:
        closer.join()
    assert cq.closed == (not error)
    assert w.watch.read() == []


def test_a_wait_that_can_not_make_its_failure_says_that_memory_is_short(w: World) -> None:
    """Each allocation fails once, in another thread than the one that reads the report."""

    def raised(starve: int) -> Exception:
        with pytest.raises((AsyncEventError, MemoryError)) as e:
            core.fail_alloc(starve)
            w.channel.get_event()
        return e.value

    for n in itertools.count(1):
        inject(w, AsyncEventType.QP_FATAL, w.qp)
        if isinstance(Waiter(partial(raised, n)).join(), AsyncEventError):
            break
        assert core.failed() == "allocation"
    assert n > 3


def test_a_failure_is_told_to_a_watch_in_spite_of_a_lack_of_memory(w: World) -> None:
    """Whatever it is that can't be made: the descriptor stays readable, and nothing is lost."""
    readable = select.poll()
    readable.register(w.watch, select.POLLIN)
    starved = 0
    while True:
        failures_pending(w)
        assert readable.poll(0)
        if not starves(w.watch.read, starved + 1):
            break
        assert core.failed() == "allocation"
        assert readable.poll(0)
        told(w, w.watch.read())
        assert not readable.poll(0)
        starved += 1
    assert starved > 5


def test_a_device_that_has_gone_but_says_only_that_nothing_came_is_seen_to_have_gone(
    w: World,
) -> None:
    with device_gone(w.ctx), socket.socket() as unconnected:
        os.dup2(unconnected.fileno(), device_fd(w.ctx), inheritable=False)  # POLLHUP alone
        core.fail_call(1, errno.EAGAIN)
        with pytest.raises(DeviceRemovedError, match="no more events will come"):
            w.watch.read()
        assert core.failed() == "ibv_get_async_event"


def sleep_once(w: World) -> None:
    """The next wait then sleeps before it looks."""
    with waiting(w.channel.get_event) as waiter:
        w.channel.interrupt()
    with pytest.raises(InterruptedError):
        waiter.join()


def test_an_event_that_came_before_the_device_went_away_is_returned(w: World) -> None:
    sleep_once(w)
    event_pending(w)
    with device_gone(w.ctx):
        assert w.channel.get_event(timeout=DEADLINE) is w.ex
        with pytest.raises(DeviceRemovedError, match="no more events will come"):
            w.channel.get_event(timeout=DEADLINE)
    w.ex.ack()


def test_a_wait_ends_when_the_device_has_gone_and_does_not_say_so(w: World) -> None:
    with device_gone(w.ctx), socket.socket() as unconnected:
        os.dup2(unconnected.fileno(), device_fd(w.ctx), inheritable=False)  # POLLHUP alone
        with pytest.raises(DeviceRemovedError, match="no more events will come"):
            w.channel.get_event(timeout=DEADLINE)


def test_every_type_of_event_is_known() -> None:
    assert set(AsyncEventType) == {*FAILURES, *NEWS, *UNSUPPORTED}


def test_an_unknown_type_of_event_is_handed_out_as_a_number(w: World) -> None:
    core.inject_event(77, None)
    event = w.ctx.try_get_async_event()
    assert event is not None
    assert event.event_type == 77
    assert repr(event) == "<AsyncEvent 77>"


def test_a_failure_is_told_even_to_who_found_an_event_at_the_same_moment(w: World) -> None:
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    seen: list[object] = []

    def loop() -> None:
        for cq in w.channel:
            seen.append(cq)
            cq.ack()

    old = sys.getswitchinterval()
    with waiting(loop) as waiter:
        sys.setswitchinterval(DEADLINE)  # the waiter runs only after both have happened
        try:
            w.qp.post_send(w.mr[64:72])
            wcs = WCArray(1)
            until(lambda: w.ex.poll_into(wcs) == 1, "received")
            inject(w, AsyncEventType.QP_FATAL, w.qp)
        finally:
            sys.setswitchinterval(old)
    with pytest.raises(AsyncEventError):
        waiter.join()
    assert seen in ([w.ex], [])
