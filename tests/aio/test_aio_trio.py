# SPDX-License-Identifier: MIT
"""AsyncCQ on trio, and on anyio with either of its backends: what depends on the event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from flavors import FLAVORS, Flavor
from support import (
    DEADLINE,
    Endpoint,
    Lane,
    MakeLane,
    Pair,
    Waiter,
    ids,
    in_child,
    just_before_it_sleeps,
    open_fds,
    sleeps,
)

from cqnotify import BusyError, ClosedError, CompletionError, Context, QPState, QPType
from cqnotify.aio import AsyncCQ

# A reader watches a duplicate of the channel's descriptor, and of that of a FailureWatch, which has
# two.
READER_FDS = 4

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
        Waiter(fail).join()
        with pytest.raises((ClosedError, CompletionError)):
            await task.result()


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


async def test_an_idle_waiter_burns_no_cpu_after_an_event(lane: Lane, on: Flavor) -> None:
    async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
        task = start(acq.wait)
        await on.tick()
        lane.send()
        await task.result()
        start(acq.wait)
        await on.tick()
        assert await sleeps(on.lib.sleep)
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
        assert acq._awaited == 0
        assert lane.cq.closed == (what != "AsyncCQ")
        acq.close()
        with pytest.raises(ClosedError, match="AsyncCQ is closed"):
            acq.poll()

    before = open_fds()
    on.run(scenario)
    gc.collect()
    assert open_fds() <= before


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


# ---- loops ----------------------------------------------------------------------------------


async def one_message(on: Flavor, acq: AsyncCQ, lane: Lane) -> int:
    """The wr_id of a message that a sleeping task was woken for; another one sleeps to the end."""
    async with on.tasks() as start:
        task = start(acq.wait)
        await on.tick()
        assert not task.done
        lane.send()
        (got,) = ids(await task.result())
        start(acq.wait)
        await on.tick()
    return got


def test_one_asynccq_works_in_one_loop_after_the_other(lane: Lane) -> None:
    gc.collect()
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    flavors = [*FLAVORS.values(), *FLAVORS.values()]
    for i, on in enumerate(flavors):
        assert on.run(lambda on=on: one_message(on, acq, lane)) == i  # type: ignore[misc]
    asyncio.run(asyncio.wait_for(native_message(acq, lane, len(flavors)), DEADLINE))
    assert acq.stats.events == len(flavors) + 1
    acq.close()
    gc.collect()
    assert open_fds() == before


async def native_message(acq: AsyncCQ, lane: Lane, i: int) -> None:
    task = asyncio.ensure_future(acq.wait())
    await asyncio.sleep(0)
    lane.send()
    assert ids(await task) == [i]


ASYNCIO, TRIO = "anyio on asyncio", "trio"


@pytest.mark.parametrize(
    ("holds", "refused"), [(ASYNCIO, TRIO), (TRIO, ASYNCIO), (ASYNCIO, ASYNCIO)]
)
def test_two_living_loops_on_one_channel_are_refused(lane: Lane, holds: str, refused: str) -> None:
    acq = AsyncCQ(lane.cq)
    attached, ended = threading.Event(), threading.Event()

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.completion(1)

    async def wait(on: Flavor) -> None:
        async with on.tasks() as start:
            task = start(acq.wait)
            await on.tick()
            attached.set()
            while not ended.is_set():
                await on.tick()
            lane.send()
            assert ids(await task.result()) == [0]

    holder = FLAVORS[holds]
    thread = Waiter(lambda: holder.run(lambda: wait(holder)))
    assert attached.wait(DEADLINE)
    try:
        FLAVORS[refused].run(ask)
    finally:
        ended.set()
    thread.join()
    acq.close()


async def test_the_last_one_that_closes_takes_the_reader_along(
    new_lane: MakeLane, on: Flavor
) -> None:
    lanes = [new_lane(), new_lane()]
    before = open_fds()
    for _ in range(3):
        async with AsyncCQ(lanes[0].cq) as acq:
            async with AsyncCQ(lanes[1].cq) as acq2:
                await one_message(on, acq, lanes[0])
                await one_message(on, acq2, lanes[1])
                assert open_fds() == before + READER_FDS
            assert open_fds() == before + READER_FDS
        assert open_fds() == before


async def test_one_that_is_dropped_unclosed_goes_away_with_its_reader(
    lane: Lane, on: Flavor
) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    await one_message(on, acq, lane)
    assert open_fds() == before + READER_FDS
    gone = weakref.ref(acq)
    del acq
    await on.tick()
    gc.collect()
    assert gone() is None
    await on.tick()
    assert open_fds() == before


def drop(acqs: list[AsyncCQ], ctx: Context) -> None:
    acqs.clear()
    gc.collect()


HARMS: dict[str, Callable[[list[AsyncCQ], Context], None]] = {
    "closes it": lambda acqs, ctx: acqs[0].close(),
    "drops it": drop,
    "closes the context": lambda acqs, ctx: ctx.close(),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_a_forked_child_does_not_make_the_loop_deaf(
    ctx: Context, lane: Lane, on: Flavor, harm: str
) -> None:
    """It has the descriptors of the parent's loop, and with them what the loop listens to."""
    acqs = [AsyncCQ(lane.cq)]
    assert await one_message(on, acqs[0], lane) == 0
    assert in_child(lambda: HARMS[harm](acqs, ctx)) == 0
    assert await one_message(on, acqs[0], lane) == 1
    assert acqs[0].stats.wakeups == 2
    acqs[0].close()


def test_trio_as_a_guest_of_asyncio(lane: Lane) -> None:
    """Its tasks are trio's, though an asyncio loop runs in their thread; the host closes it."""
    on = FLAVORS["trio"]
    acq = AsyncCQ(lane.cq)
    asleep = threading.Event()

    async def guest() -> None:
        for i in range(3):
            assert await one_message(on, acq, lane) == i
        async with on.tasks() as start:
            task = start(acq.wait)
            await on.tick()
            asleep.set()
            with pytest.raises(ClosedError):
                await task.result()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=over.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        while not (asleep.is_set() or over.done()):
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()
        acq.close()
        (await asyncio.wait_for(over, DEADLINE)).unwrap()

    asyncio.run(host())


# ---- an older anyio --------------------------------------------------------------------------


async def test_for_an_anyio_that_starts_only_native_coroutines_the_calls_return_them(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_native() -> bool:
        call = acq.wait()
        call.close()
        return isinstance(call, types.CoroutineType)

    async with AsyncCQ(lane.cq) as acq:
        assert not is_native()
        monkeypatch.setitem(sys.modules, "anyio", types.ModuleType("anyio"))
        monkeypatch.setitem(sys.modules, "imported beside it", types.ModuleType("another"))
        assert is_native()
        call = acq.wait()
        assert call.__qualname__ == "AsyncCQ.wait"
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        lane.send()
        assert ids(await task) == [0]
        with pytest.warns(RuntimeWarning, match="'AsyncCQ.wait' was never awaited") as caught:
            del call, task
            acq.wait()
            gc.collect()
        assert len(caught) == 1
        monkeypatch.undo()
        assert not is_native()


# ---- without trio ----------------------------------------------------------------------------

WITHOUT_TRIO = """
import sys
sys.modules["trio"] = sys.modules["anyio"] = None  # an import of it fails
import asyncio
from cqnotify import CQ, CompletionChannel, Context
from cqnotify.aio import AsyncCQ

async def main():
    with Context() as ctx:
        async with AsyncCQ(CQ(ctx, 4, channel=CompletionChannel(ctx))) as acq:
            try:
                await asyncio.wait_for(acq.wait(), 0.01)
            except asyncio.TimeoutError:
                pass
            async with acq.scope():
                pass

asyncio.run(main())
"""


def test_it_works_where_there_is_no_trio(ctx: Context) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRIO], check=True, timeout=DEADLINE)


# ---- scopes ---------------------------------------------------------------------------------


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("when", ["in the block", "at its end"])
async def test_a_scope_ends_only_when_all_has_completed_though_a_scope_around_is_cancelled(
    pair: Pair, on: Flavor, when: str
) -> None:
    """The send waits for a receive at the peer. Its memory is pinned till then, and no longer."""
    a, b = pair

    async with AsyncCQ(a.scq) as acq, on.tasks() as start:
        left = False

        async def body() -> None:
            nonlocal left
            async with acq.scope() as scope:
                assert scope.outstanding == 0
                try:
                    if when == "in the block":
                        await acq.send(a.qp, a.mr[0:8])
                    else:
                        start(lambda: acq.send(a.qp, a.mr[0:8]))
                        await on.tick()
                finally:
                    assert scope.outstanding == 1
            left = True  # not if the block was cancelled: that is raised at its end

        task = start(body)
        await on.tick()
        await on.tick()
        task.scope.cancel()
        await on.tick()
        assert not task.done
        with pytest.raises(BusyError):
            a.mr.close()
        assert await sleeps(on.lib.sleep)
        b.qp.post_recv(b.mr[0:64])
        while not task.done:
            await on.tick()
        assert task.scope.cancelled_caught == (not left) == (when == "in the block")
        a.mr.close()
