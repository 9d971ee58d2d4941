# SPDX-License-Identifier: MIT
"""AsyncCQ on trio, and on anyio with either of its backends, in lock-step as in test_aio.py."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from flavors import FLAVORS, Flavor, Task
from support import (
    SOLICITED,
    Endpoint,
    Lane,
    MakeLane,
    Waiter,
    ids,
    in_child,
    just_before_it_sleeps,
    open_fds,
)

from cqnotify import ClosedError, CompletionError, Context, QPState, QPType
from cqnotify.aio import AsyncCQ

Scenario = Callable[[], Awaitable[Any]]


# ---- lock-step ------------------------------------------------------------------------------


async def test_a_completion_at_the_very_moment_of_falling_asleep_is_not_missed(
    acq: AsyncCQ, lane: Lane, on: Flavor
) -> None:
    assert ids(await just_before_it_sleeps(acq.wait(), lane.send)) == [0]
    assert acq.stats.events == acq.stats.wakeups == 1


@pytest.mark.parametrize("on", ["trio"], indirect=True)
@pytest.mark.parametrize("call", ["wait", "completion"])
async def test_a_completion_between_the_last_look_and_the_arm_is_not_missed(
    acq: AsyncCQ, lane: Lane, on: Flavor, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It raises no event: only a task that looks again after the arm finds it. The trio.Event on
    which the task is to sleep is made in between."""
    event, made = trio.Event, 0

    def make_event() -> trio.Event:
        nonlocal made
        made += 1
        if made == 1:
            assert lane.cq.stats.polls == 1
            assert lane.cq.stats.arms == 0
            lane.send()
        return event()

    monkeypatch.setattr(trio, "Event", make_event)
    got = await (acq.wait() if call == "wait" else acq.completion(0))
    assert ids(got if isinstance(got, list) else [got]) == [0]
    assert acq.stats.arms == 1
    assert acq.stats.events == acq.stats.wakeups == 0


async def woken(lane: Lane, on: Flavor, task: Task) -> list[int]:
    """What a task that waits gets of one message, which is sent once it sleeps."""
    await on.tick()
    lane.send()
    return ids(await task.result())


async def test_every_completion_wakes_when_the_producer_waits_for_the_consumer(
    lane: Lane, on: Flavor
) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        for i in range(50):
            assert await woken(lane, on, start(acq.wait)) == [i]
        assert acq.stats.events == acq.stats.wakeups == acq.stats.arms == 50
        assert acq.stats.max_per_wake == 1


async def test_a_forked_child_does_not_make_the_loop_deaf(lane: Lane, on: Flavor) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        for i in range(2):
            assert await woken(lane, on, start(acq.wait)) == [i]
            if i == 0:
                assert in_child(acq.close) == 0
        assert acq.stats.wakeups == 2


async def test_a_qp_that_another_thread_fails_and_closes_ends_what_awaits_it(
    ctx: Context, on: Flavor
) -> None:
    end = Endpoint(ctx, QPType.RC)
    end.qp.connect(end.qp.address())

    def fail() -> None:
        end.qp.modify(qp_state=QPState.ERR)
        end.qp.close()

    async with AsyncCQ(end.rcq) as acq, on.tasks() as start:
        task = start(lambda: acq.recv(end.qp, end.mr[0:8]))
        await on.tick()
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        with pytest.raises((ClosedError, CompletionError)):
            await task.result()


async def test_of_two_waiters_each_gets_one_completion_in_the_order_of_coming(
    lane: Lane, on: Flavor
) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        tasks = []
        for _ in range(2):
            tasks.append(start(acq.wait))
            await on.tick()
        for i, task in enumerate(tasks):
            lane.send()
            assert ids(await task.result()) == [i]
            assert [t.done for t in tasks].count(True) == i + 1
        assert acq.stats.events == 2


@pytest.mark.parametrize("order", ["woken, cancelled", "cancelled, woken"])
async def test_a_waiter_that_is_woken_and_cancelled_passes_the_wake_up_on(
    lane: Lane, on: Flavor, order: str
) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        tasks = []
        for _ in range(3):
            tasks.append(start(acq.wait))
            await on.tick()
        first, second, third = tasks
        lane.send()
        if order == "cancelled, woken":
            first.scope.cancel()
        assert acq.poll() == []  # wakes the first one, which has not run since
        first.scope.cancel()
        await on.tick()
        assert first.done
        if order == "woken, cancelled" and not first.scope.cancelled_caught:
            assert ids(await first.result()) == [0]  # trio lets one that was woken go on
            lane.send()
            assert ids(await second.result()) == [1]
        else:
            assert first.scope.cancelled_caught
            assert ids(await second.result()) == [0]
        assert not third.done
        lane.send()
        assert ids(await third.result()) == [lane.sent - 1]


@pytest.mark.parametrize("on", sorted(FLAVORS.keys() - {"anyio on uvloop"}), indirect=True)
async def test_a_waiter_that_falls_asleep_in_a_cancelled_scope_leaves_the_completion(
    acq: AsyncCQ, lane: Lane, on: Flavor
) -> None:
    with on.cancelled() as scope:
        await just_before_it_sleeps(acq.wait(), lane.send)
    assert scope.cancelled_caught
    lane.send()
    assert ids(await acq.wait(1)) == [0]
    assert ids(await acq.wait(1)) == [1]
    assert acq.stats.wakeups == 0


async def test_a_cancelled_completion_puts_back_what_it_was_given(lane: Lane, on: Flavor) -> None:
    """On uvloop the wake-up comes before the cancellation."""
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        task = start(lambda: acq.completion(0))
        await on.tick()
        lane.send()
        task.scope.cancel()
        assert acq.poll() == []  # the task has it, and has not run since
        await on.tick()
        assert task.scope.cancelled_caught
        assert (await acq.completion(0)).wr_id == 0


@pytest.mark.parametrize("scope", ["move_on_after", "fail_after"])
async def test_a_deadline_that_has_passed_loses_nothing(
    acq: AsyncCQ, lane: Lane, on: Flavor, scope: str
) -> None:
    for i in range(5):
        if scope == "move_on_after":
            with on.lib.move_on_after(0) as over:
                await acq.wait()
            assert over.cancelled_caught
        else:
            error = trio.TooSlowError if on.lib is trio else TimeoutError
            with pytest.raises(error), on.lib.fail_after(0):
                await acq.wait()
        lane.send()
        assert ids(await acq.wait()) == [i]


async def test_a_cancelled_waiter_does_not_deafen_another_cq_of_the_channel(
    new_lane: MakeLane, lane: Lane, on: Flavor
) -> None:
    other = new_lane()

    async with AsyncCQ(lane.cq) as acq, AsyncCQ(other.cq) as other_acq, on.tasks() as start:
        task, other_task = start(acq.wait), start(other_acq.wait)
        await on.tick()
        task.scope.cancel()
        await on.tick()
        other.send()
        assert ids(await other_task.result()) == [0]
        assert other_acq.stats.events == 1
        acq.close()
        other_task = start(other_acq.wait)
        await on.tick()
        other.send()
        assert ids(await other_task.result()) == [1]


async def test_a_cancelled_waiter_leaves_the_one_behind_it_armed(lane: Lane, on: Flavor) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        first = start(acq.wait)
        await on.tick()
        second = start(acq.wait)
        await on.tick()
        first.scope.cancel()
        await on.tick()
        assert first.done
        lane.send()
        assert ids(await second.result()) == [0]
        assert acq.stats.events == 1


def test_events_are_acknowledged_when_two_cqs_of_one_channel_close(
    new_lane: MakeLane, lane: Lane, on: Flavor
) -> None:
    lanes = [lane, new_lane()]

    async def scenario() -> None:
        async with AsyncCQ(lanes[0].cq) as acq, AsyncCQ(lanes[1].cq) as acq2, on.tasks() as start:
            for i in range(40):
                tasks = [start(each.wait) for each in (acq, acq2)]
                await on.tick()
                for each in lanes:
                    each.send()
                assert [ids(await task.result()) for task in tasks] == [[i], [i]]
            assert acq.stats.acked == 32, "many at once, the rest at close"
        for each in lanes:
            assert each.cq.unacked == 0
            assert each.cq.stats.acked == 40

    on.run(scenario)
    for each in lanes:
        each.close()
        Waiter(each.cq.close).join()


async def test_a_solicited_message_wakes_who_waits_for_one(lane: Lane, on: Flavor) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        task = start(partial(acq.wait, solicited_only=True))
        await on.tick()
        lane.send(7)
        await on.tick()
        assert not task.done
        lane.send(flags=SOLICITED)
        assert len(await task.result()) == 8
        assert acq.stats.events == 1


async def test_an_idle_waiter_burns_no_cpu_after_an_event(lane: Lane, on: Flavor) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        task = start(acq.wait)
        await on.tick()
        lane.send()
        await task.result()
        start(acq.wait)
        await on.tick()
        cpu = time.process_time()
        await on.lib.sleep(3)
        assert time.process_time() - cpu < 0.15
        assert acq.stats.events == 1


async def test_who_never_has_to_sleep_lets_others_run(new_lane: MakeLane, on: Flavor) -> None:
    lane = new_lane()

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await on.lib.lowlevel.checkpoint()

    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        for _ in range(4):
            lane.send(100)
            start(other)
            async for wc in acq:
                if wc.wr_id % 100 == 99:
                    break
        assert turns >= 4
        assert acq.stats.events == 0


# ---- closing --------------------------------------------------------------------------------


def close_cq(acq: AsyncCQ, lane: Lane) -> None:
    lane.close()
    lane.cq.close()


def close_channel(acq: AsyncCQ, lane: Lane) -> None:
    assert lane.cq.channel is not None
    channel = lane.cq.channel
    close_cq(acq, lane)
    channel.close()


CLOSERS: dict[str, Callable[[AsyncCQ, Lane], None]] = {
    "AsyncCQ": lambda acq, lane: acq.close(),
    "CQ": close_cq,
    "channel": close_channel,
    "context": lambda acq, lane: lane.cq.context.close(),
}


@pytest.mark.parametrize("where", ["in the loop", "in another thread"])
@pytest.mark.parametrize("what", CLOSERS)
def test_closing_wakes_who_waits(lane: Lane, on: Flavor, what: str, where: str) -> None:
    async def scenario() -> None:
        acq = AsyncCQ(lane.cq)
        async with on.tasks() as start:
            tasks = [start(call) for call in (acq.wait, partial(acq.completion, 7), acq.wait)]
            await on.tick()
            close = partial(CLOSERS[what], acq, lane)
            if where == "in the loop":
                close()
            else:
                Waiter(close).join()
            for task in tasks:
                with pytest.raises(ClosedError):
                    await task.result()
            with pytest.raises(ClosedError):
                await acq.wait()
        acq.close()

    before = open_fds()
    on.run(scenario)
    gc.collect()
    assert open_fds() <= before


async def test_iteration_ends_when_it_is_closed(lane: Lane, on: Flavor) -> None:
    acq = AsyncCQ(lane.cq)
    got: list[int] = []

    async def consume() -> None:
        async for wc in acq:
            got.append(wc.wr_id)

    async with on.tasks() as start:
        task = start(consume)
        await on.tick()
        lane.send(20)
        while len(got) < 20:
            await on.tick()
        await on.tick()
        acq.close()
        await task.result()
    assert got == list(range(20))


def test_what_is_closed_before_its_reader_has_run_disturbs_nothing(lane: Lane, on: Flavor) -> None:
    """trio's reader is a task. Here it begins when its descriptor is closed, and the number is
    that of another file."""
    acq = AsyncCQ(lane.cq)
    pipe: list[int] = []

    def close() -> None:
        before = set(os.listdir("/proc/self/fd"))
        acq.close()
        pipe.extend(os.pipe())
        assert str(pipe[0]) in before, "the number is used again"

    async def scenario() -> None:
        acq._reader.attach()  # as the first task that waits does
        close()
        with pytest.raises(ClosedError):
            await acq.wait()
        os.write(pipe[1], b"x")
        await on.tick()

    on.run(scenario)
    assert os.read(pipe[0], 8) == b"x"
    for fd in pipe:
        os.close(fd)


async def test_another_file_that_gets_the_descriptors_number_is_heard(
    ctx: Context, lane: Lane, on: Flavor
) -> None:
    acq = AsyncCQ(lane.cq)
    async with on.tasks() as start:
        task = start(acq.wait)
        await on.tick()
        before = set(os.listdir("/proc/self/fd"))
        ctx.close()
        readable, writable = os.pipe()
        assert str(readable) in before, "the number is used again"
        os.write(writable, b"x")
        wait = trio.lowlevel.wait_readable if on.lib is trio else anyio.wait_readable
        await wait(readable)
        os.close(readable)
        os.close(writable)
        with pytest.raises(ClosedError):
            await task.result()
