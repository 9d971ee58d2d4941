# SPDX-License-Identifier: MIT
"""Whether a CQ is armed: where events get lost, and where its size changes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import struct

import pytest
from support import (
    DEADLINE,
    SOLICITED,
    Endpoint,
    Lane,
    MakeLane,
    Pair,
    Waiter,
    deliver,
    ids,
    start,
    waiting,
)

from cqnotify import CompletionChannel, Context
from cqnotify.aio import AsyncCQ

SECONDS = 20


def lose_event(channel: CompletionChannel) -> None:
    """A foreign reader takes the event that comes. What it reads is the address of the ibv_cq; to
    that it acknowledges the event, or the CQ could not be closed any more."""
    assert select.select([channel], [], [], DEADLINE)[0]
    (address,) = struct.unpack("Q", os.read(channel.fileno(), 8))
    ctypes.CDLL("libibverbs.so.1").ibv_ack_cq_events(ctypes.c_void_p(address), 1)


def send_unheard(lane: Lane) -> None:
    """A message, whose event a foreign reader takes."""
    lane.send()
    lose_event(lane.cq.channel)


@pytest.fixture
def deaf(pair: Pair) -> Endpoint:
    """The receiver. It believes that it is armed, but the event of what came is lost."""
    b = pair[1]
    assert b.rcq.arm_if_empty()
    deliver(pair)
    lose_event(b.channel)
    return b


# ---- threads -----------------------------------------------------------------------------


def test_after_a_wait_that_timed_out_a_cq_is_armed_whatever_it_remembers(
    pair: Pair, deaf: Endpoint
) -> None:
    with pytest.raises(TimeoutError):
        deaf.channel.get_event(timeout=0.05)
    assert not deaf.rcq.arm_if_empty()
    assert len(deaf.rcq.poll()) == 1
    assert deaf.rcq.arm_if_empty()
    with waiting(lambda: deaf.channel.get_event(timeout=DEADLINE)) as waiter:
        deliver(pair)
    assert waiter.join() is deaf.rcq


def test_a_cq_that_is_armed_is_not_armed_again_but_once_after_each_time_out(pair: Pair) -> None:
    b = pair[1]
    for arms in (1, 2, 3):
        for _ in range(3):
            assert b.rcq.arm_if_empty()
            assert b.rcq.stats.arms == arms
        with pytest.raises(TimeoutError):
            b.channel.get_event(timeout=0.001)


def test_a_completion_before_a_resize_that_raised_no_event_wakes_who_sleeps(deaf: Endpoint) -> None:
    with waiting(lambda: deaf.channel.get_event(timeout=DEADLINE)) as waiter:
        deaf.rcq.resize(100)
    assert waiter.join() is deaf.rcq
    deaf.rcq.ack()
    assert len(deaf.rcq.poll()) == 1
    assert deaf.rcq.unacked == 0
    deaf.qp.close()
    deaf.rcq.close()  # the library was told of no event too many


@pytest.mark.parametrize("acked", ["one by one", "both at once", "the first", "by the closing"])
def test_a_cq_closes_however_an_event_of_ours_and_one_of_the_device_are_acknowledged(
    pair: Pair, deaf: Endpoint, acked: str
) -> None:
    """The library knows of the second one alone. Acknowledged there twice, or not at all, it would
    keep the CQ from closing for ever."""
    deaf.rcq.resize(100)
    assert deaf.channel.get_event(timeout=DEADLINE) is deaf.rcq
    assert deaf.channel.try_get_event() is None
    assert len(deaf.rcq.poll()) == 1
    if acked in ("one by one", "the first"):
        deaf.rcq.ack()
    assert deaf.rcq.arm_if_empty()
    deliver(pair)
    assert deaf.channel.get_event(timeout=DEADLINE) is deaf.rcq
    if acked in ("one by one", "both at once"):
        deaf.rcq.ack(deaf.rcq.unacked)
        assert deaf.rcq.unacked == 0
    deaf.qp.close()
    deaf.rcq.close()


@pytest.mark.not_on_iwarp("siw can not resize a CQ")
@pytest.mark.parametrize("solicited_only", [False, True])
def test_a_cq_that_was_not_armed_any_more_is_so_after_a_resize(
    pair: Pair, solicited_only: bool
) -> None:
    b = pair[1]
    assert b.rcq.arm_if_empty(solicited_only)
    deliver(pair, flags=SOLICITED)
    lose_event(b.channel)
    assert len(b.rcq.poll()) == 1
    waiter = Waiter(lambda: b.channel.get_event(timeout=DEADLINE)).asleep()
    b.rcq.resize(100)
    assert b.channel.try_get_event() is None
    if solicited_only:
        deliver(pair)
        assert b.channel.try_get_event() is None
    waiter.asleep()
    deliver(pair, flags=SOLICITED)
    assert waiter.join() is b.rcq


def test_a_resize_arms_nothing_that_was_not_armed(pair: Pair) -> None:
    b = pair[1]
    b.rcq.resize(100)
    deliver(pair)
    b.rcq.resize(200)
    assert b.channel.try_get_event() is None
    assert b.rcq.stats.arms == 0


# ---- tasks -------------------------------------------------------------------------------


async def test_a_task_that_sleeps_on_an_arm_that_was_lost_is_woken_after_a_resize(
    acq: AsyncCQ, lane: Lane
) -> None:
    """Something else has read the event that took the arm, and the completion went elsewhere."""
    mine, other = await start(acq.wait(1)), asyncio.ensure_future(acq.completion(0))
    await asyncio.sleep(0)
    send_unheard(lane)
    while not other.done():
        lane.cq.poll()
        await asyncio.sleep(0)
    assert (await other).wr_id == 0
    lane.cq.resize(128)
    await asyncio.sleep(0.01)
    assert not mine.done()
    lane.send()
    assert ids(await asyncio.wait_for(mine, SECONDS)) == [lane.sent - 1]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_task_that_sleeps_is_woken_in_its_loop_after_a_resize_by_any_thread(
    acq: AsyncCQ, lane: Lane, elsewhere: bool
) -> None:
    task = await start(acq.wait())
    send_unheard(lane)
    if elsewhere:
        await asyncio.to_thread(lane.cq.resize, 128)
    else:
        lane.cq.resize(128)
    assert ids(await asyncio.wait_for(task, SECONDS)) == [lane.sent - 1]


async def test_a_closed_asynccq_is_no_consumer_of_a_resize(lane: Lane) -> None:
    async with AsyncCQ(lane.cq) as acq:
        task = await start(acq.wait())
        lane.send()
        assert len(await task) == 1
    lane.cq.req_notify()
    lane.cq.resize(128)
    lane.send()
    assert lane.cq.channel.get_event(timeout=DEADLINE) is lane.cq


@pytest.mark.parametrize("what", ["wait", "completion"])
async def test_after_a_task_was_cancelled_the_next_one_is_not_deaf(
    acq: AsyncCQ, lane: Lane, what: str
) -> None:
    task = await start(acq.wait() if what == "wait" else acq.completion(99))
    send_unheard(lane)
    task.cancel()
    assert len(await asyncio.wait_for(acq.wait(), SECONDS)) == 1
    task = await start(acq.wait())
    lane.send()
    assert ids(await asyncio.wait_for(task, SECONDS)) == [lane.sent - 1]


async def test_who_times_out_wakes_the_others_whose_event_was_lost(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.wait())
    impatient = asyncio.ensure_future(asyncio.wait_for(acq.wait(), 0.05))
    await asyncio.sleep(0)
    send_unheard(lane)
    with pytest.raises(asyncio.TimeoutError):
        await impatient
    assert ids(await asyncio.wait_for(task, SECONDS)) == [lane.sent - 1]


async def test_a_task_on_another_cq_of_the_channel_is_not_armed_again(
    ctx: Context, new_lane: MakeLane
) -> None:
    channel = CompletionChannel(ctx)
    mine, other = new_lane(on=channel), new_lane(on=channel)
    async with AsyncCQ(mine.cq) as acq, AsyncCQ(other.cq) as its:
        task, cancelled = await start(acq.wait()), await start(its.wait())
        arms = mine.cq.stats.arms
        cancelled.cancel()
        await asyncio.sleep(0)
        mine.send()
        assert len(await asyncio.wait_for(task, SECONDS)) == 1
        assert mine.cq.stats.arms == arms
