# SPDX-License-Identifier: MIT
"""Whose the sleeper of a CQ is, where AsyncCQs, loops and programs take turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from aio_support import Lane, Scenario, ids, sleeper, tick

from cqnotify import CQ, ClosedError, CompletionChannel, Context
from cqnotify._core import Wakeup
from cqnotify.aio import AsyncCQ

SECONDS = 20


async def quick(acq: AsyncCQ, lane: Lane) -> None:
    """From now on the next that waits is a sleeper of the CQ."""
    lane.send()
    await acq.wait()


async def gets(acq: AsyncCQ, lane: Lane) -> None:
    """One that waits is woken, asleep before or after the message comes."""
    task = await sleeper(acq)
    lane.send()
    assert len(await asyncio.wait_for(task, SECONDS)) == 1


def test_a_closed_one_that_is_polled_leaves_the_sleeper_of_the_next_alone(
    lane: Lane, run: Scenario
) -> None:
    async def scenario() -> None:
        old = AsyncCQ(lane.cq)
        await quick(old, lane)
        old.close()
        async with AsyncCQ(lane.cq) as new:
            await quick(new, lane)
            task = await sleeper(new)
            with pytest.raises(ClosedError):
                old.poll()
            lane.send()
            assert ids(await asyncio.wait_for(task, SECONDS)) == [2]

    run(scenario())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_one_that_is_closed_takes_its_sleeper_with_it(
    lane: Lane, run: Scenario, elsewhere: bool
) -> None:
    async def scenario() -> None:
        old = AsyncCQ(lane.cq)
        await quick(old, lane)
        task = await sleeper(old)
        if elsewhere:
            thread = threading.Thread(target=old.close)
            thread.start()
            thread.join()
        else:
            old.close()
        async with AsyncCQ(lane.cq) as new:
            lane.send()
            assert len(await new.wait()) == 1
            for _ in range(3):
                waiting = await sleeper(new)
                lane.send()
                assert len(await asyncio.wait_for(waiting, SECONDS)) == 1
            with pytest.raises(ClosedError):
                await task

    run(scenario())


def test_counters_stay_what_they_were_when_it_is_closed(lane: Lane, run: Scenario) -> None:
    async def scenario() -> None:
        old = AsyncCQ(lane.cq)
        await quick(old, lane)
        for _ in range(5):
            task = await sleeper(old)
            lane.send()
            await task
        assert old.stats[-2:] == (5, 1)
        old.close()
        assert old.stats[-2:] == (5, 1)
        async with AsyncCQ(lane.cq) as new:
            await quick(new, lane)
            task = await sleeper(new)
            lane.send(3)
            await task
            assert new.stats.wakeups == 1
        assert old.stats[-2:] == (5, 1)

    run(scenario())


def test_an_event_that_the_program_read_is_the_programs_to_acknowledge(
    lane: Lane, run: Scenario
) -> None:
    async def scenario() -> None:
        lane.cq.req_notify()
        lane.send()
        assert lane.cq.channel is not None
        assert lane.cq.channel.get_event() is lane.cq
        async with AsyncCQ(lane.cq) as acq:
            await acq.wait()
            for _ in range(40):  # more than are acknowledged at once
                task = await sleeper(acq)
                lane.send()
                await task
            assert lane.cq.unacked < 40
        assert lane.cq.unacked == 1
        lane.cq.ack()

    run(scenario())


@pytest.mark.parametrize("quickly", [False, True])
def test_it_can_be_closed_after_a_loop_was_closed_under_its_waiter(
    lane: Lane, quickly: bool
) -> None:
    """Nobody else holds the task: it goes the moment it is told."""
    loop = asyncio.new_event_loop()
    acq = AsyncCQ(lane.cq)

    async def scenario() -> None:
        if quickly:
            await quick(acq, lane)
        asyncio.ensure_future(acq.wait())  # noqa: RUF006
        await tick()

    loop.run_until_complete(scenario())
    loop.close()
    acq.close()
    assert acq.closed


def test_a_sleeper_outlives_its_cq_and_its_channel(ctx: Context) -> None:
    channel = CompletionChannel(ctx)
    cq = CQ(ctx, 16, channel=channel)
    loop = asyncio.new_event_loop()
    wakeup = cq.sleep(loop, 16, False)
    assert isinstance(wakeup, Wakeup)
    cq.close()
    channel.close()
    del channel
    assert cq.forget_sleeper() is wakeup
    assert cq.forget_sleeper() is None
    loop.close()


class Interfering(asyncio.SelectorEventLoop):
    """While it is asked, something else happens, as a signal's handler can at any time."""

    def is_closed(self) -> bool:
        self.interfere("is_closed")
        return super().is_closed()

    def call_soon(self, *args: Any, **kwargs: Any) -> Any:
        handle = super().call_soon(*args, **kwargs)
        self.interfere("call_soon")
        return handle

    def interfere(self, where: str) -> None:
        if (call := self.calls.pop(where, None)) is not None:
            call()

    calls: dict[str, Any]

    def __init__(self) -> None:
        self.calls = {}
        super().__init__()


@pytest.mark.parametrize("where", ["is_closed", "call_soon"])
def test_a_task_that_is_cancelled_while_it_is_woken_goes_on_once(where: str) -> None:
    steps = []

    async def sleep(wakeup: Wakeup) -> None:
        try:
            await wakeup
            steps.append("woken")
        except asyncio.CancelledError:
            steps.append("cancelled")
        await asyncio.sleep(0)
        steps.append("end")

    async def scenario(loop: Interfering) -> None:
        wakeup = Wakeup(loop)
        task = asyncio.ensure_future(sleep(wakeup))
        await tick()
        loop.calls[where] = task.cancel
        wakeup.wake()
        assert not loop.calls
        await asyncio.wait([task])
        assert steps == ["cancelled", "end"]

    with contextlib.closing(Interfering()) as loop:
        loop.run_until_complete(scenario(loop))


def test_who_is_interrupted_as_he_falls_asleep_leaves_no_sleeper(lane: Lane) -> None:
    """A handler runs as soon as CQ.sleep() returns, and raises."""

    class Interrupt(BaseException):
        pass

    class Interrupting(CQ):
        armed = False

        def sleep(self, *args: Any) -> Any:
            made = super().sleep(*args)
            if Interrupting.armed and isinstance(made, Wakeup):
                Interrupting.armed = False
                raise Interrupt
            return made

    channel = lane.cq.channel
    assert channel is not None
    lane = Lane(lane.cq.context, channel, Interrupting)
    acq = AsyncCQ(lane.cq)

    async def prepare() -> None:
        await quick(acq, lane)
        Interrupting.armed = True
        await acq.wait()

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        with pytest.raises(Interrupt):
            loop.run_until_complete(prepare())
        assert not Interrupting.armed
        assert lane.cq.sleeper is None
        loop.run_until_complete(gets(acq, lane))
        acq.close()
