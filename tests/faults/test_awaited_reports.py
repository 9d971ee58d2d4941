# SPDX-License-Identifier: MIT
"""AsyncCQ, when the device reports what rxe never reports: needs the debug build."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from typing import Any

import pytest
from fault_world import core
from support import (
    Endpoint,
    Link,
    MakeLane,
    connect,
    ids,
    open_fds,
    outstanding,
    start,
    start_all,
    take_all,
    tick,
    wait_completions,
)

from cqnotify import (
    SRQ,
    AsyncEvent,
    AsyncEventError,
    AsyncEventType,
    ClosedError,
    CompletionChannel,
    Context,
    DeviceRemovedError,
    QPState,
    QPType,
    VerbsError,
)
from cqnotify.aio import AsyncCQ

BATCH = 16  # completions that a poll asks the device for
PER_QP = [
    AsyncEventType.QP_FATAL,
    AsyncEventType.QP_REQ_ERR,
    AsyncEventType.QP_ACCESS_ERR,
    AsyncEventType.PATH_MIG_ERR,
]


class TwoLinks:
    """Two connections, whose receiving ends, b and d, work with the CQs of b. Waits of a and b are
    told of failures that may pass, too."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.a, self.b = connect(
            *(
                Endpoint(ctx, QPType.RC, channel=CompletionChannel(ctx, transient_errors=True))
                for _ in range(2)
            )
        )
        shared = Endpoint(ctx, QPType.RC, send_cq=self.b.scq, recv_cq=self.b.rcq)
        self.c, self.d = connect(Endpoint(ctx, QPType.RC), shared)
        take_all(ctx)

    def report(self, kind: AsyncEventType, element: object) -> None:
        """As if the device had reported it. Somebody takes it at once, and the loop is told."""
        core.inject_event(kind, element)
        event = self.ctx.try_get_async_event()
        assert event is not None
        assert event.event_type is kind


@pytest.fixture
def w(ctx: Context) -> TwoLinks:
    return TwoLinks(ctx)


async def is_told(call: Awaitable[Any], kind: AsyncEventType) -> AsyncEvent:
    with pytest.raises(AsyncEventError, match=kind.name) as e:
        await call
    assert e.value.event.event_type is kind
    return e.value.event


@pytest.mark.parametrize("kind", [*PER_QP, AsyncEventType.PORT_ERR], ids=lambda kind: kind.name)
async def test_a_failed_qp_or_port_is_told_to_those_that_it_concerns_and_no_others(
    w: TwoLinks, kind: AsyncEventType
) -> None:
    b, c, d = w.b, w.c, w.d
    async with AsyncCQ(b.rcq) as acq, AsyncCQ(b.scq) as sent, AsyncCQ(w.a.rcq) as elsewhere:
        concerned = await start_all(
            acq.wait(),
            acq.completion(1),
            acq.completion(1, qp=b.qp),
            acq.recv(b.qp, b.mr[0:64]),
            sent.send(b.qp, b.mr[0:8]),  # nothing is posted at the peer
            sent.wait(),
        )
        others = await start_all(
            acq.completion(5, qp=d.qp),
            acq.recv(d.qp, d.mr[0:64]),
            sent.send(d.qp, d.mr[0:8]),
            elsewhere.wait(),
        )
        if kind is AsyncEventType.PORT_ERR:
            w.report(kind, 1)
            for task in concerned + others:
                await is_told(task, kind)
            await start_all(acq.wait(), elsewhere.wait())
            return
        w.report(kind, b.qp)
        for task in concerned:
            await is_told(task, kind)
        await tick()
        assert not any(task.done() for task in others)
        c.qp.post_send(c.mr[0:8])
        assert (await others[1]).ok
        c.qp.post_recv(c.mr[0:64])
        assert (await others[2]).ok
        d.qp.post_recv(d.mr[0:64], wr_id=5)
        c.qp.post_send(c.mr[0:8])
        assert (await others[0]).ok


@pytest.mark.parametrize(
    "kind", [AsyncEventType.PORT_ERR, AsyncEventType.PATH_MIG_ERR], ids=lambda kind: kind.name
)
async def test_a_failure_that_may_pass_leaves_tasks_waiting(
    ctx: Context, kind: AsyncEventType
) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    take_all(ctx)
    async with AsyncCQ(b.rcq) as acq:
        tasks = await start_all(acq.recv(b.qp, b.mr[0:64]), acq.wait())
        core.inject_event(kind, 1 if kind is AsyncEventType.PORT_ERR else b.qp)
        assert [event.event_type for event in take_all(ctx)] == [kind]
        await tick()
        assert not any(task.done() for task in tasks)
        b.qp.post_recv(b.mr[0:64])
        for _ in tasks:
            a.qp.post_send(a.mr[0:8])
        assert (await tasks[0]).ok
        assert len(await tasks[1]) == 1


async def test_a_failed_srq_is_told_to_those_who_receive_from_it(w: TwoLinks) -> None:
    b = w.b
    srq = SRQ(b.pd, 4)
    d = Endpoint(w.ctx, QPType.RC, pd=b.pd, send_cq=w.a.scq, srq=srq)
    async with AsyncCQ(d.rcq) as acq, AsyncCQ(w.a.scq) as sent, AsyncCQ(b.rcq) as elsewhere:
        concerned = await start_all(acq.wait(), acq.completion(1))
        others = await start_all(sent.wait(), elsewhere.wait())
        for _ in range(2):
            w.report(AsyncEventType.SRQ_ERR, srq)
            for task in concerned:
                await is_told(task, AsyncEventType.SRQ_ERR)
            concerned = await start_all(acq.wait())
        await tick()
        assert not any(task.done() for task in others)
        w.report(AsyncEventType.SRQ_LIMIT_REACHED, srq)
        await tick()
        assert not any(task.done() for task in concerned)


async def test_what_came_while_nobody_waited_is_raised_for_its_qp_alone(w: TwoLinks) -> None:
    b, c, d = w.b, w.c, w.d
    async with AsyncCQ(b.rcq) as acq:
        receive = await start(acq.recv(d.qp, d.mr[0:64]))
        for _ in range(2):
            w.report(AsyncEventType.QP_FATAL, b.qp)
            await tick()
        w.report(AsyncEventType.QP_FATAL, d.qp)
        await is_told(receive, AsyncEventType.QP_FATAL)
        d.qp.modify(qp_state=QPState.RESET)
        c.qp.modify(qp_state=QPState.RESET)
        connect(c, d)
        receive = await start(acq.recv(d.qp, d.mr[0:64]))
        c.qp.post_send(c.mr[0:8])
        assert (await receive).ok
        event = await is_told(acq.recv(b.qp, b.mr[0:64]), AsyncEventType.QP_FATAL)
        assert event.qp is b.qp
        assert outstanding(b.qp) == (0, 0)
        await start(acq.wait())


async def test_of_several_failures_that_nobody_waited_for_each_is_raised(w: TwoLinks) -> None:
    async with AsyncCQ(w.b.rcq) as acq:
        task = await start(acq.wait())
        task.cancel()
        for qp in (w.b.qp, w.d.qp, w.b.qp):
            w.report(AsyncEventType.QP_FATAL, qp)
            await tick()
        for qp in (w.d.qp, w.b.qp):
            assert (await is_told(acq.wait(), AsyncEventType.QP_FATAL)).qp is qp
        await start(acq.wait())


async def test_a_failure_of_a_task_that_is_cancelled_then_is_raised_by_the_next(
    w: TwoLinks,
) -> None:
    """It was woken with the failure, and another one cancels it before it goes on."""
    async with AsyncCQ(w.b.rcq) as acq:

        async def cancel_second() -> None:
            await is_told(acq.wait(), AsyncEventType.QP_FATAL)
            assert second.cancel()

        first, second = await start_all(cancel_second(), acq.wait())
        w.report(AsyncEventType.QP_FATAL, w.b.qp)
        await first
        await asyncio.wait([second])
        assert second.cancelled()
        assert (await is_told(acq.wait(), AsyncEventType.QP_FATAL)).qp is w.b.qp
        await start(acq.wait())


async def test_a_fatal_failure_is_told_to_all_and_for_good(w: TwoLinks) -> None:
    b = w.b

    async def in_scope(acq: AsyncCQ) -> None:
        async with acq.scope():
            await acq.recv(b.qp, b.mr[0:64])

    async with AsyncCQ(b.rcq) as acq, AsyncCQ(w.a.scq) as other:
        tasks = await start_all(acq.wait(), acq.completion(1), in_scope(acq), other.wait())
        w.report(AsyncEventType.DEVICE_FATAL, None)
        for task in tasks:
            await is_told(task, AsyncEventType.DEVICE_FATAL)
        for call in (acq.wait, lambda: acq.recv(b.qp, b.mr[0:64]), other.wait):
            for _ in range(2):
                await is_told(call(), AsyncEventType.DEVICE_FATAL)


async def test_the_removal_of_the_device_ends_all_waits_for_good_and_nothing_spins(
    w: TwoLinks,
) -> None:
    b = w.b
    before = open_fds()
    async with AsyncCQ(b.rcq) as acq, AsyncCQ(b.scq) as sent, AsyncCQ(w.a.scq) as elsewhere:
        tasks = await start_all(
            acq.wait(),
            acq.completion(1),
            acq.recv(b.qp, b.mr[0:64]),
            sent.send(b.qp, b.mr[0:8]),
            sent.wait(),
        )
        w.a.qp.modify(qp_state=QPState.SQD)  # the device has something to read
        core.before_call("ibv_get_async_event", lambda: core.fail_call(1, errno.EIO))
        for task in tasks:
            with pytest.raises(DeviceRemovedError, match="no more events will come"):
                await task
        assert core.failed() == "ibv_get_async_event"
        for call in (acq.wait, lambda: sent.send(b.qp, b.mr[0:8])):
            with pytest.raises(DeviceRemovedError):
                await call()
        await start(elsewhere.wait())  # of another channel; it did not look, and may wait
    assert open_fds() == before


async def test_an_error_of_one_cq_leaves_the_others_of_its_channel_alone(
    new_lane: MakeLane,
) -> None:
    good, bad = new_lane(), new_lane()
    async with AsyncCQ(good.cq) as acq, AsyncCQ(bad.cq) as bad_acq:
        task = await start(acq.wait())
        core.before_call("ibv_req_notify_cq", lambda: core.fail_call(1, errno.EIO))
        for _ in range(2):
            with pytest.raises(VerbsError, match="ibv_req_notify_cq"):
                await bad_acq.wait()
        good.send()
        assert ids(await task) == [0]


async def test_an_arm_that_fails_after_an_event_ends_all_waits_of_its_cq_for_good(
    w: TwoLinks,
) -> None:
    """The event comes without a completion, which was taken before: so the CQ is armed again."""
    a, b = w.a, w.b
    async with AsyncCQ(b.rcq) as acq, AsyncCQ(b.scq) as elsewhere:
        b.rcq.req_notify()
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(a.mr[0:8])
        wait_completions(a.scq, 1)
        assert len(b.rcq.poll()) == 1  # and its event is left
        other = await start(elsewhere.wait())
        tasks = [asyncio.ensure_future(acq.wait()) for _ in range(2)]
        core.before_call("ibv_req_notify_cq", lambda: core.fail_call(1, errno.EIO))
        for task in [*tasks, asyncio.ensure_future(acq.wait())]:
            with pytest.raises(DeviceRemovedError):
                await task
        assert core.failed() == "ibv_req_notify_cq"
        with pytest.raises(DeviceRemovedError):
            acq.poll()
        await tick()
        assert other.cancel(), "it still waits"


async def test_the_completion_of_a_send_that_was_told_a_failure_before_is_dropped(
    w: TwoLinks,
) -> None:
    a = w.a
    async with AsyncCQ(a.scq) as acq:
        task = await start(acq.send(a.qp, a.mr[0:8]))
        w.report(AsyncEventType.QP_REQ_ERR, a.qp)
        await is_told(task, AsyncEventType.QP_REQ_ERR)
        assert outstanding(a.qp) == (1, 0)
        w.b.qp.post_recv(w.b.mr[0:64])
        while outstanding(a.qp) != (0, 0):
            assert acq.poll() == []
            await tick()
        assert acq.poll() == []


async def test_an_operation_of_a_qp_whose_state_is_unknown_is_refused(w: TwoLinks) -> None:
    a = w.a
    async with AsyncCQ(a.scq) as acq:
        other = await start(acq.completion(1))
        core.fail_call(1, errno.EIO)
        with pytest.raises(VerbsError, match=rf"ibv_query_qp.*QP {a.qp.qp_num}\b"):
            await acq.send(a.qp, a.mr[0:8])
        assert core.failed() == "ibv_query_qp"
        assert outstanding(a.qp) == (0, 0)
        assert other.cancel()
        w.b.qp.post_recv(w.b.mr[0:64])
        assert (await acq.send(a.qp, a.mr[0:8])).ok


async def test_an_operation_of_a_qp_that_is_closed_while_its_state_is_queried_is_refused(
    w: TwoLinks,
) -> None:
    async with AsyncCQ(w.a.scq) as acq:
        core.before_call("state", w.a.qp.close)
        with pytest.raises(ClosedError, match="QP"):
            await acq.send(w.a.qp, w.a.mr[0:8])


@pytest.mark.link(recv=True)
async def test_those_whose_completions_came_before_a_poll_failed_go_on(
    acq: AsyncCQ, link: Link
) -> None:
    tasks = [await start(acq.recv(link.qp, None)) for _ in range(BATCH)]
    link.bring(BATCH)
    core.fail_call(2, errno.EIO)
    with pytest.raises(VerbsError, match="ibv_poll_cq"):
        acq.poll()
    assert core.failed() == "ibv_poll_cq"
    await asyncio.gather(*tasks)
