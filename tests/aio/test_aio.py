# SPDX-License-Identifier: MIT
"""AsyncCQ, step by step: nothing is hidden by the next completion, and no test sleeps to wait.

A message that `Lane.send` has sent is received, as a completion and as an event, when it returns.
A task that was created has run up to where it sleeps after `await tick()`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Lane,
    MakeLane,
    Scenario,
    hang_up,
    ids,
    open_fds,
    python,
    sleeps,
    start,
    tick,
)

from cqnotify import CQ, CompletionChannel, Context
from cqnotify.aio import AsyncCQ

# A reader watches a duplicate of the channel's descriptor, and of that of a FailureWatch, which has
# two.
READER_FDS = 4

# ---- lock-step: each of these tests found a bug in a prototype --------------------------------

# A completion while a task falls asleep: test_aio_trio.py, and faults/test_particular_failures.py.


async def test_a_cancelled_waiter_does_not_deafen_another_cq_of_the_channel(
    new_lane: MakeLane, lane: Lane
) -> None:
    other = new_lane()
    async with AsyncCQ(lane.cq) as acq, AsyncCQ(other.cq) as other_acq:
        task, other_task = await start(acq.wait()), await start(other_acq.wait())
        task.cancel()
        await tick()
        other.send()
        assert ids(await other_task) == [0]
        assert other_acq.stats.events == 1
        acq.close()
        task = await start(other_acq.wait())
        other.send()
        assert ids(await task) == [1]


def test_events_are_acknowledged_when_two_cqs_of_one_channel_close(
    new_lane: MakeLane, lane: Lane, run: Scenario
) -> None:
    lanes = [lane, new_lane()]

    async def scenario() -> None:
        async with AsyncCQ(lanes[0].cq) as acq, AsyncCQ(lanes[1].cq) as acq2:
            for i in range(40):
                tasks = [await start(a.wait()) for a in (acq, acq2)]
                for each in lanes:
                    each.send()
                assert [ids(await task) for task in tasks] == [[i], [i]]
            assert acq.stats.acked == 32, "many at once, the rest at close"
            await start(acq.wait())
            lane.send()  # its event is not read any more
        for each in lanes:
            assert each.cq.unacked == 0
            assert each.cq.stats.acked == 40

    run(scenario())
    for each in lanes:
        each.close()
        closing = threading.Thread(target=each.cq.close, daemon=True)
        closing.start()
        closing.join(DEADLINE)
        assert not closing.is_alive(), "the destruction of the CQ hangs"


# ---- what wait() returns --------------------------------------------------------------------


async def test_completions_that_are_there_cost_no_arm(acq: AsyncCQ, lane: Lane) -> None:
    lane.send(5)
    assert ids(await acq.wait()) == [0, 1, 2, 3, 4]
    assert acq.stats.arms == acq.stats.events == acq.stats.wakeups == 0


async def test_one_event_may_bring_many_completions(new_lane: MakeLane) -> None:
    lane = new_lane()
    async with AsyncCQ(lane.cq) as acq:
        task = await start(acq.wait(200))
        lane.send(200)
        got = ids(await task)
        assert got == list(range(200))
        assert acq.stats.events == 1
        assert acq.stats.max_per_wake == 200


async def test_no_more_than_max_entries_and_the_rest_stays_in_order(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.wait(2))
    lane.send(60)
    got = [ids(await task)]
    while sum(map(len, got)) < 60:
        got.append(ids(await acq.wait(7)))
    assert [len(g) for g in got][:2] == [2, 7]
    assert [i for g in got for i in g] == list(range(60))


async def test_many_waiters_share_one_event(acq: AsyncCQ, lane: Lane) -> None:
    tasks = [await start(acq.wait(1)) for _ in range(50)]
    lane.send(50)
    assert [ids(wcs) for wcs in await asyncio.gather(*tasks)] == [[i] for i in range(50)]
    assert acq.stats.events == 1


async def test_a_late_comer_does_not_overtake_a_waiter(acq: AsyncCQ, lane: Lane) -> None:
    first = await start(acq.wait())
    lane.send()
    second = asyncio.ensure_future(acq.wait())  # runs before the event is read
    assert acq.poll() == []
    assert ids(await first) == [0]
    assert not second.done()
    lane.send()
    assert ids(await second) == [1]


async def test_a_waiter_for_any_completion_upgrades_the_arm(acq: AsyncCQ, lane: Lane) -> None:
    solicited = await start(acq.wait(solicited_only=True))
    second = await start(acq.wait())
    lane.send()
    assert ids(await solicited) == [0]
    lane.send()
    assert ids(await second) == [1]
    assert acq.stats.events == 2


async def test_iteration_ends_when_it_is_closed(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    got = []

    async def consume() -> None:
        async for wc in acq:
            got.append(wc.wr_id)

    task = asyncio.ensure_future(consume())
    await tick()
    lane.send(20)
    while len(got) < 20:
        await asyncio.sleep(0)
    await tick()
    acq.close()
    await task
    assert got == list(range(20))


async def drained(lane: Lane, n: int) -> None:
    """Sends so many, and returns when they were taken from the device."""
    lane.send(n)
    while lane.untaken > 0:
        await asyncio.sleep(0)


async def test_a_wr_id_that_was_handed_out_is_not_found_again_among_many(
    acq: AsyncCQ, lane: Lane
) -> None:
    nowhere = asyncio.ensure_future(acq.completion(12345))
    await drained(lane, 100)
    assert (await acq.completion(50)).wr_id == 50
    await drained(lane, 50)
    assert ids(acq.poll(255)) == [i for i in range(150) if i != 50]
    await drained(lane, 50)
    handed_out = [asyncio.ensure_future(acq.completion(i)) for i in (0, 50, 120)]
    assert (await acq.completion(160)).wr_id == 160
    await tick()
    assert not any(task.done() for task in [nowhere, *handed_out])
    assert ids(acq.poll(255)) == [i for i in range(150, 200) if i != 160]


async def test_what_came_after_the_last_of_many_was_taken_is_found_by_its_wr_id(
    acq: AsyncCQ, lane: Lane
) -> None:
    """It stands where that one stood."""
    nowhere = asyncio.ensure_future(acq.completion(12345))
    await drained(lane, 40)
    for last in (39, 38):
        assert (await acq.completion(last)).wr_id == last
    await drained(lane, 3)
    for wr_id in (42, 40, 41):
        assert (await acq.completion(wr_id)).wr_id == wr_id
    assert not nowhere.done()
    assert ids(acq.poll(255)) == list(range(38))


# ---- closing --------------------------------------------------------------------------------


async def test_what_was_not_handed_out_can_be_taken_after_close(lane: Lane) -> None:
    async with AsyncCQ(lane.cq) as acq:
        lane.send(3)
        assert ids(await acq.wait(1)) == [0]
    assert ids(acq.poll()) == [1, 2]


def test_a_cq_without_channel_is_refused(ctx: Context) -> None:
    with CQ(ctx, 4) as deaf, pytest.raises(ValueError, match="no completion channel"):
        AsyncCQ(deaf)


# ---- the reader -----------------------------------------------------------------------------


async def test_events_of_a_cq_that_nobody_awaits_are_left_to_it(
    new_lane: MakeLane, lane: Lane
) -> None:
    other = new_lane()
    other.cq.req_notify()
    async with AsyncCQ(lane.cq) as acq:
        task = await start(acq.wait())
        other.send()
        lane.send()
        assert ids(await task) == [0]
    assert other.cq.unacked == 1
    assert other.cq.stats.events == 1


class Counting(CompletionChannel):
    calls = 0

    def _on_event(self) -> None:
        self.calls += 1
        super()._on_event()


def test_an_error_of_the_reader_fails_every_waiter_and_it_is_not_called_again(
    ctx: Context, new_lane: MakeLane, run: Scenario
) -> None:
    channel = Counting(ctx)
    lanes = [new_lane(on=channel), new_lane(on=channel)]
    keep = os.dup(channel.fileno())

    async def scenario() -> None:
        acqs = [AsyncCQ(lane.cq) for lane in lanes]
        tasks = [await start(acq.wait()) for acq in acqs for _ in range(2)]
        hang_up(channel.fileno())  # the loop watches a duplicate
        lanes[0].send()
        for task in tasks:
            with pytest.raises(OSError, match="ibv_get_cq_event"):
                await task
        await asyncio.sleep(0.1)
        assert channel.calls == 1
        with pytest.raises(OSError, match="ibv_get_cq_event"):
            await acqs[1].wait()
        for acq in acqs:
            acq.close()

    try:
        run(scenario())
    finally:
        os.dup2(keep, channel.fileno(), inheritable=False)
        os.close(keep)


def test_one_that_is_dropped_unclosed_after_its_loop_leaks_nothing(
    lane: Lane, run: Scenario
) -> None:
    before = open_fds()
    acqs = [AsyncCQ(lane.cq)]

    async def scenario() -> None:
        await start(acqs[0].wait())

    run(scenario())
    assert open_fds() == before + READER_FDS
    acqs.clear()
    gc.collect()
    assert open_fds() == before


# ---- what waiting costs: nothing -------------------------------------------------------------


async def test_a_cancelled_receive_that_is_in_flight_costs_no_cpu(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    a, b = pair
    async with AsyncCQ(b.rcq) as acq:
        task = asyncio.ensure_future(acq.recv(b.qp, b.mr[0:64]))
        await tick()
        a.qp.post_send(a.mr[0:8])
        await task
        task = asyncio.ensure_future(acq.recv(b.qp, b.mr[0:64]))
        waiter = await start(acq.wait())
        task.cancel()
        assert await sleeps()
        assert acq.stats.events == 1
        a.qp.post_send(a.mr[0:8])
        assert len(await waiter) == 1


# ---- what they say they are ------------------------------------------------------------------


async def test_each_says_whose_it_is_and_what_is_due(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    cq = repr(lane.cq)
    assert repr(acq) == f"<AsyncCQ of {cq}, 0 awaited>"
    assert repr(acq.batches(5)) == f"<Batches of {acq!r}, at most 5 each>"
    scope = acq.scope()
    assert repr(scope) == f"<Scope of {acq!r}, not entered>"
    async with scope:
        assert repr(scope) == f"<Scope of {acq!r}, 0 outstanding>"
    assert repr(scope) == f"<Scope of {acq!r}, ended>"
    lane.send()
    assert len(await acq.wait()) == 1
    tasks = [await start(acq.wait())]
    assert ", 1 awaited>" in repr(acq)
    tasks += [await start(acq.wait()), asyncio.ensure_future(acq.completion(99))]
    await tick()
    assert ", 3 awaited>" in repr(acq)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ", 0 awaited>" in repr(acq)
    acq.close()
    assert repr(acq) == f"<AsyncCQ of {lane.cq!r}, closed>"
    lane.close()
    lane.cq.close()
    assert repr(acq) == "<AsyncCQ of <CQ closed>, closed>"


def test_one_that_could_not_be_made_has_a_repr(cq: CQ) -> None:
    assert "AsyncCQ" in repr(AsyncCQ.__new__(AsyncCQ))


# ---- a loop within the loop -----------------------------------------------------------------

NESTED = """
import asyncio, nest_asyncio
from cqnotify import Context
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint, connect

nest_asyncio.apply()

async def message(acq, a, b):
    asyncio.get_running_loop().call_later(0.05, a.qp.post_send, a.mr[:8])
    return (await acq.recv(b.qp, b.mr[:64])).byte_len

async def main(ctx):
    a, b = connect(Endpoint(ctx), Endpoint(ctx))
    async with AsyncCQ(b.recv_cq) as acq:
        print(await message(acq, a, b))  # resumes this task
        print(asyncio.get_running_loop().run_until_complete(message(acq, a, b)))
        print(await message(acq, a, b))
        assert acq.stats.wakeups == 3

with Context({name!r}) as ctx:
    asyncio.run(asyncio.wait_for(main(ctx), {deadline}))
"""


if sys.version_info < (3, 14):  # from where on nest_asyncio does not work

    def test_a_task_may_run_a_loop_within_the_loop(ctx: Context) -> None:
        """As in notebooks. An event has resumed the task, and the inner loop waits for another."""
        ended = python("-c", NESTED.format(name=ctx.name, deadline=DEADLINE))
        assert (ended.stdout, ended.returncode) == ("8\n8\n8\n", 0), ended
