# SPDX-License-Identifier: MIT
"""AsyncCQ, when the device reports a failure, a queue pair dies, or the world is closed.

What rxe never reports is put in by faults/test_awaited_reports.py.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from typing import Any

import pytest
from support import (
    DEADLINE,
    SOLICITED,
    Endpoint,
    Overflow,
    Pair,
    Scenario,
    Waiter,
    connect,
    ids,
    ip_link,
    sleeps,
    start,
    start_all,
    take_all,
    take_cq_err,
    tick,
)

from cqnotify import (
    AsyncEvent,
    AsyncEventError,
    AsyncEventType,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    WCStatus,
)
from cqnotify.aio import AsyncCQ

CQ_ERR = AsyncEventType.CQ_ERR


@pytest.fixture
def world(ctx: Context) -> Overflow:
    """Of its sender's completions those beyond the room of a.scq are lost, with a CQ_ERR each."""
    world = Overflow(ctx)
    take_all(ctx)
    return world


@pytest.fixture
def acq(world: Overflow) -> Iterator[AsyncCQ]:
    """On the CQ that is too small."""
    acq = AsyncCQ(world.a.scq)
    yield acq
    acq.close()


def lose_one(world: Overflow) -> None:
    """Without letting the loop run, which would make room. The device has a report of it."""
    world.fill()
    world.send(1)
    assert select.select([world.a.ctx.async_fd], [], [], DEADLINE)[0]


def a_message_to(a: Endpoint, b: Endpoint) -> None:
    a.qp.post_recv(a.mr[0:64])
    b.qp.post_send(b.mr[0:8])


def other_pair(a: Endpoint, b: Endpoint) -> Pair:
    """Another connection, of which the second end works with the CQs of b."""
    c, d = Endpoint(a.ctx, QPType.RC), Endpoint(a.ctx, QPType.RC)
    d.qp.close()
    d.qp = type(d.qp)(d.pd, QPType.RC, send_cq=b.scq, recv_cq=b.rcq)
    return connect(c, d)


async def all_are_told(tasks: list[asyncio.Task[Any]], kind: AsyncEventType) -> list[AsyncEvent]:
    events = []
    for task in tasks:
        with pytest.raises(AsyncEventError, match=kind.name) as e:
            await task
        assert e.value.event.event_type is kind
        events.append(e.value.event)
    return events


async def told_at_last(acq: AsyncCQ) -> AsyncEvent:
    """The failure that a task is told of that waits again and again, as an iterator does."""
    with pytest.raises(AsyncEventError) as e:
        while True:
            await acq.wait()
    event: AsyncEvent = e.value.event
    return event


# ---- a CQ that overflows --------------------------------------------------------------------


async def test_who_waits_is_told_that_the_cq_failed_and_others_of_the_channel_are_not(
    world: Overflow, acq: AsyncCQ
) -> None:
    """Their arm is solicited, and only the report wakes them."""
    a, b = world.a, world.b
    async with AsyncCQ(a.rcq) as other:
        undisturbed = await start(other.wait())
        tasks = [await start(acq.wait(solicited_only=True)) for _ in range(3)]
        lose_one(world)
        for event in await all_are_told(tasks, CQ_ERR):
            assert event.cq is a.scq
        assert acq.stats.events == 0
        await tick()
        assert not undisturbed.done()
        a_message_to(a, b)
        assert len(await undisturbed) == 1
        assert [e.cq for e in take_all(a.ctx) if e.event_type == CQ_ERR] == [a.scq]


@pytest.mark.parametrize("when", ["asleep", "between two waits", "before the first wait"])
async def test_another_thread_that_takes_the_report_does_not_hide_it(
    world: Overflow, acq: AsyncCQ, when: str
) -> None:
    if when != "before the first wait":
        task = await start(acq.wait(solicited_only=True))
    if when == "between two waits":
        task.cancel()
        await tick()
    lose_one(world)
    assert Waiter(lambda: take_cq_err(world.a.ctx)).join().cq is world.a.scq
    if when == "asleep":
        await all_are_told([task], CQ_ERR)
    else:
        assert (await told_at_last(acq)).cq is world.a.scq


def test_a_report_that_comes_between_two_loops_is_told_in_the_second(
    world: Overflow, acq: AsyncCQ, run: Scenario
) -> None:
    async def first() -> None:
        await start(acq.wait())

    run(first())
    lose_one(world)
    assert take_cq_err(world.a.ctx).cq is world.a.scq
    assert run(told_at_last(acq)).cq is world.a.scq


async def test_reports_that_nobody_takes_cost_no_cpu(world: Overflow, acq: AsyncCQ) -> None:
    ctx = world.a.ctx
    tasks = [await start(acq.wait(solicited_only=True))]
    lose_one(world)
    await all_are_told(tasks, CQ_ERR)
    acq.poll(200)
    await start(acq.wait())
    assert select.select([ctx.async_fd], [], [], 0)[0], "the report is there"
    assert await sleeps()


# ---- a queue pair that dies -----------------------------------------------------------------


@pytest.mark.parametrize("where", ["in the loop", "in another thread"])
@pytest.mark.parametrize("order", ["asleep before", "later"])
async def test_who_waits_for_solicited_ones_is_woken_when_the_program_moves_the_qp_to_err(
    pair: Pair, where: str, order: str
) -> None:
    b = pair[1]

    def kill() -> None:
        b.qp.modify(qp_state=QPState.ERR)

    async with AsyncCQ(b.rcq) as acq:
        for i in range(40):
            b.qp.post_recv(b.mr[0:64], wr_id=i)
        tasks = [await start(acq.wait(40, solicited_only=True))] if order == "asleep before" else []
        if where == "in the loop":
            kill()
        else:
            Waiter(kill).join()
        got = [wc for task in tasks for wc in await task]
        while len(got) < 40:
            got += await acq.wait(40, solicited_only=True)
        assert {wc.status for wc in got} == {WCStatus.WR_FLUSH_ERR}
        assert ids(got) == list(range(40))


@pytest.mark.not_on_iwarp("closing a QP flushes its receives first")
async def test_a_qp_that_was_moved_to_err_and_closed_disturbs_nobody(pair: Pair) -> None:
    a, b = pair
    c, d = other_pair(a, b)
    async with AsyncCQ(b.rcq) as acq:
        b.qp.modify(qp_state=QPState.ERR)
        b.qp.close()
        task = await start(acq.wait(solicited_only=True))
        d.qp.post_recv(d.mr[0:64])
        c.qp.post_send(c.mr[0:8], send_flags=SOLICITED)
        assert [wc.ok for wc in await task] == [True]
        assert acq.stats.events == 1


# ---- the port, and the end ------------------------------------------------------------------


async def test_a_port_that_goes_down_is_told_to_who_asks_for_it_and_awaits_what_comes_over_it(
    ctx: Context, ctx2: Context, netdev: str
) -> None:
    asking = CompletionChannel(ctx2, transient_errors=True)
    b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx2, QPType.RC, channel=asking))[1]
    async with AsyncCQ(b.rcq) as acq:
        take_all(b.ctx)
        tasks = await start_all(acq.wait(), acq.completion(7), acq.recv(b.qp, b.mr[0:64]))
        ip_link(netdev, "down")
        for event in await all_are_told(tasks, AsyncEventType.PORT_ERR):
            assert event.port_num == 1
        ip_link(netdev, "up")
        # Waiting goes on: the receive is posted still, and is flushed now.
        task = await start(acq.wait())
        b.qp.modify(qp_state=QPState.ERR)
        assert [wc.status for wc in await task] == [WCStatus.WR_FLUSH_ERR]
