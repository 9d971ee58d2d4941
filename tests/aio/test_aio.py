# SPDX-License-Identifier: MIT
"""AsyncCQ, step by step: nothing is hidden by the next completion, and no test sleeps to wait.

A message that `Lane.send` has sent is received, as a completion and as an event, when it returns.
A task that was created has run up to where it sleeps after `await tick()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest
from support import (
    DEADLINE,
    IDLE_LIMIT,
    SOLICITED,
    Lane,
    MakeLane,
    Scenario,
    cpu_while_idle,
    hang_up,
    ids,
    just_before_it_sleeps,
    open_fds,
    start,
    tick,
)

from cqnotify import CQ, ClosedError, CompletionChannel, Context
from cqnotify.aio import AsyncCQ

# A reader watches a duplicate of the channel's descriptor, and of that of a FailureWatch, which has
# two.
READER_FDS = 4

# ---- the nine lock-step tests: each of them found a bug in a prototype ----------------------


async def test_a_completion_at_the_very_moment_of_falling_asleep_is_not_missed(
    acq: AsyncCQ, lane: Lane
) -> None:
    """One between the last look and the arm: see test_particular_failures.py."""
    assert ids(await just_before_it_sleeps(acq.wait(), lane.send)) == [0]
    assert acq.stats.events == acq.stats.wakeups == 1


async def test_every_completion_wakes_when_the_producer_waits_for_the_consumer(
    acq: AsyncCQ, lane: Lane
) -> None:
    for i in range(50):
        task = await start(acq.wait())
        lane.send()
        assert ids(await task) == [i]
    assert acq.stats.events == 50
    assert acq.stats.wakeups == 50
    assert acq.stats.arms == 50
    assert acq.stats.max_per_wake == 1


async def test_of_two_waiters_each_gets_one_completion_in_the_order_of_coming(
    acq: AsyncCQ, lane: Lane
) -> None:
    first, second = await start(acq.wait()), await start(acq.wait())
    assert acq.stats.arms == 1
    lane.send()
    assert ids(await first) == [0]
    assert not second.done()
    lane.send()
    assert ids(await second) == [1]
    assert acq.stats.events == 2


async def test_a_waiter_that_is_woken_and_then_cancelled_passes_the_wake_up_on(
    acq: AsyncCQ, lane: Lane
) -> None:
    first, second = await start(acq.wait()), await start(acq.wait())
    lane.send()
    assert acq.poll() == []  # who polls wakes the first one, who runs in the next turn
    first.cancel()
    assert ids(await second) == [0]
    assert first.cancelled()
    assert acq.stats.arms == 1


async def test_a_waiter_that_is_woken_and_then_cancelled_leaves_the_completion(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.wait())
    lane.send()
    assert acq.poll() == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lane.send()
    assert ids(await acq.wait()) == [0]
    assert ids(await acq.wait()) == [1]
    assert acq.stats.arms == 1


async def test_a_timeout_loses_nothing(acq: AsyncCQ, lane: Lane) -> None:
    for i in range(5):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(acq.wait(), 0.01)
        lane.send()
        assert ids(await acq.wait()) == [i]


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


async def test_a_cancelled_waiter_leaves_the_one_behind_it_armed(acq: AsyncCQ, lane: Lane) -> None:
    first, second = await start(acq.wait()), await start(acq.wait())
    first.cancel()
    await tick()
    lane.send()
    assert ids(await second) == [0]
    assert acq.stats.events == 1


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


async def test_an_idle_waiter_burns_no_cpu_after_an_event(acq: AsyncCQ, lane: Lane) -> None:
    task = await start(acq.wait())
    lane.send()
    await task
    await start(acq.wait())
    assert await cpu_while_idle() < IDLE_LIMIT
    assert acq.stats.events == 1


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


async def test_poll_takes_from_the_same_queue(acq: AsyncCQ, lane: Lane) -> None:
    assert acq.poll() == []
    lane.send(3)
    assert ids(acq.poll(1)) == [0]
    assert ids(await acq.wait()) == [1, 2]


async def test_only_a_solicited_message_wakes_who_waits_for_one(acq: AsyncCQ, lane: Lane) -> None:
    for _ in range(3):
        task = await start(acq.wait(solicited_only=True))
        lane.send(7)
        await tick()
        assert not task.done()
        lane.send(flags=SOLICITED)
        assert len(await task) == 8
    assert acq.stats.events == 3
    assert acq.stats.wakeups == 3


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


async def test_close_wakes_every_waiter_with_closed_error(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    tasks = [await start(acq.wait()) for _ in range(3)]
    acq.close()
    acq.close()
    for task in tasks:
        with pytest.raises(ClosedError, match="AsyncCQ is closed"):
            await task
    with pytest.raises(ClosedError):
        await acq.wait()
    with pytest.raises(ClosedError):
        acq.poll()
    assert acq.closed
    assert not lane.cq.closed


async def test_what_was_not_handed_out_can_be_taken_after_close(lane: Lane) -> None:
    async with AsyncCQ(lane.cq) as acq:
        lane.send(3)
        assert ids(await acq.wait(1)) == [0]
    assert ids(acq.poll()) == [1, 2]


async def test_after_close_poll_takes_nothing_more_from_the_cq(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    task = await start(acq.wait())
    lane.send()
    acq.close()
    with pytest.raises(ClosedError):  # the waiter has yet to run
        acq.poll()
    assert ids(lane.cq.poll()) == [0]
    with pytest.raises(ClosedError):
        await task


def test_a_cq_without_channel_or_a_closed_one_is_refused(ctx: Context, lane: Lane) -> None:
    with CQ(ctx, 4) as deaf, pytest.raises(ValueError, match="no completion channel"):
        AsyncCQ(deaf)
    lane.close()
    lane.cq.close()
    with pytest.raises(ClosedError):
        AsyncCQ(lane.cq)


async def test_another_file_that_gets_the_descriptors_number_is_heard(
    ctx: Context, lane: Lane
) -> None:
    """asyncio never calls the reader of a number that was closed while it was being watched."""
    acq = AsyncCQ(lane.cq)
    task = await start(acq.wait())
    before = set(os.listdir("/proc/self/fd"))
    ctx.close()
    readable, writable = os.pipe()
    assert str(readable) in before, "the number is used again"
    called = asyncio.Event()
    asyncio.get_running_loop().add_reader(readable, called.set)
    os.write(writable, b"x")
    await called.wait()
    asyncio.get_running_loop().remove_reader(readable)
    os.close(readable)
    os.close(writable)
    with pytest.raises(ClosedError):
        await task


# ---- the reader -----------------------------------------------------------------------------


async def test_more_events_than_one_callback_reads_all_arrive(new_lane: MakeLane) -> None:
    lanes = [new_lane() for _ in range(40)]
    async with contextlib.AsyncExitStack() as stack:
        acqs = [await stack.enter_async_context(AsyncCQ(lane.cq)) for lane in lanes]
        for i in range(2):
            tasks = [await start(acq.wait()) for acq in acqs]
            for lane in lanes:
                lane.send()
            assert [ids(await task) for task in tasks] == [[i]] * len(lanes)
        assert [acq.stats.events for acq in acqs] == [2] * len(lanes)


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


async def test_an_event_without_completion_wakes_nobody(lane: Lane) -> None:
    lane.cq.req_notify()
    lane.send()
    assert len(lane.cq.poll()) == 1
    async with AsyncCQ(lane.cq) as acq:
        task = await start(acq.wait())
        while acq.stats.events == 0:
            await asyncio.sleep(0)
        await tick()
        assert not task.done()
        lane.send()
        assert ids(await task) == [1]
        assert acq.stats.spurious == 1


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


def test_a_second_run_works_with_the_same_asynccq(lane: Lane, run: Scenario) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)

    async def scenario(i: int) -> None:
        task = await start(acq.wait())
        lane.send()
        assert ids(await task) == [i]
        await start(acq.wait())  # cancelled when the loop ends

    for i in range(3):
        run(scenario(i))
    acq.close()
    gc.collect()
    assert open_fds() == before
    assert acq.stats.events == 3


def test_waiters_of_a_loop_that_was_closed_are_forgotten(
    lane: Lane, run: Scenario, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    acq = AsyncCQ(lane.cq)
    loop = new_loop()
    lost = loop.create_task(acq.wait())
    loop.run_until_complete(tick())
    loop.close()
    lost._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose

    async def scenario() -> None:
        task = await start(acq.wait())
        lane.send()
        assert ids(await task) == [0]
        acq.close()

    run(scenario())


def test_two_living_loops_on_one_channel_are_refused(
    lane: Lane, run: Scenario, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    acq = AsyncCQ(lane.cq)
    loop = new_loop()
    task = loop.create_task(acq.wait())
    loop.run_until_complete(tick())

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()

    run(scenario())
    lane.send()
    assert ids(loop.run_until_complete(task)) == [0]
    acq.close()
    loop.close()


async def test_one_that_is_dropped_unclosed_goes_away_with_its_reader(lane: Lane) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    task = await start(acq.wait())
    assert open_fds() == before + READER_FDS
    task.cancel()
    await tick()
    gone = weakref.ref(acq)
    del acq, task
    gc.collect()
    assert gone() is None
    await tick()
    assert open_fds() == before


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


async def test_the_last_one_that_closes_takes_the_reader_along(
    new_lane: MakeLane, lane: Lane
) -> None:
    other = new_lane()
    before = open_fds()
    async with AsyncCQ(lane.cq) as acq:
        async with AsyncCQ(other.cq) as other_acq:
            tasks = [await start(acq.wait()), await start(other_acq.wait())]
            assert open_fds() == before + READER_FDS
        assert open_fds() == before + READER_FDS
    assert open_fds() == before
    await asyncio.gather(*tasks, return_exceptions=True)


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
