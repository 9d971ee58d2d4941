# SPDX-License-Identifier: MIT
"""How a task goes on: inside the reader's callback, in the turn in which the event came."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import Lane, MakeLane, Scenario, ids, start, tick, wake

from cqnotify import ClosedError, CompletionChannel, Context
from cqnotify._core import Wakeup
from cqnotify.aio import AsyncCQ

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Watched(CompletionChannel):
    """Notes when the loop lets it read events, and when that is over."""

    def __new__(cls, ctx: Context) -> Watched:
        self = super().__new__(cls, ctx)
        self.log = []
        return self

    log: list[str]

    def _on_event(self) -> None:
        self.log.append("read")
        try:
            super()._on_event()
        finally:
            self.log.append("over")


async def is_woken(acq: AsyncCQ, lane: Lane) -> list[int]:
    """The wr_ids that one gets who sleeps while a message comes."""
    task = await start(acq.wait())
    lane.send()
    return ids(await task)


@pytest.fixture
def watched(ctx: Context) -> Watched:
    return Watched(ctx)


@pytest.mark.parametrize("others", [0, 1])
async def test_the_task_goes_on_while_the_event_is_read(
    watched: Watched, new_lane: MakeLane, others: int
) -> None:
    lane = new_lane(on=watched)

    async def wait(acq: AsyncCQ) -> None:
        assert ids(await acq.wait()) == [0]
        watched.log.append("task")

    async with AsyncCQ(lane.cq) as acq:
        task = await start(wait(acq))
        for _ in range(others):
            await start(acq.wait())
        lane.send()
        await task
        assert watched.log == ["read", "task", "over"]
        assert acq.stats.events == 1
        assert acq.stats.wakeups == 1


async def test_a_task_is_not_resumed_twice_in_one_turn_of_the_loop(
    watched: Watched, new_lane: MakeLane
) -> None:
    """Now and then the callback reads several events. Then a second one for `a` comes meanwhile."""
    lane, other = new_lane(on=watched), new_lane(on=watched)
    rounds = 16

    async def wait(acq: AsyncCQ, name: str, then: Callable[[], None]) -> None:
        while True:
            await acq.wait()
            watched.log.append(name)
            then()

    async with AsyncCQ(lane.cq) as acq, AsyncCQ(other.cq) as its:
        tasks = [
            asyncio.ensure_future(wait(acq, "a", lambda: None)),
            asyncio.ensure_future(wait(its, "b", lane.send)),
        ]
        for i in range(1, rounds + 1):
            await tick()
            lane.send()
            other.send()
            while watched.log.count("a") < 2 * i:
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    callbacks = [part.partition("over") for part in " ".join(watched.log).split("read")]
    assert all(inside.count("a") <= 1 for inside, _, _ in callbacks)
    assert any("a b" in inside and after.strip() == "a" for inside, _, after in callbacks)


async def test_waiters_behind_a_sleeper_are_served_in_the_order_of_their_coming(
    acq: AsyncCQ, lane: Lane
) -> None:
    tasks = [await start(acq.wait(1)) for _ in range(4)]
    assert acq.stats.arms == 1
    for i, task in enumerate(tasks):
        lane.send()
        assert ids(await task) == [i]
        assert not any(task.done() for task in tasks[i + 1 :])


async def test_a_claim_that_comes_while_one_sleeps_gets_its_completion(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.wait())
    claim = asyncio.ensure_future(acq.completion(0))
    await tick()
    lane.send()
    assert (await claim).wr_id == 0
    assert not task.done()
    lane.send()
    assert ids(await task) == [1]


async def test_an_event_without_a_completion_wakes_nobody(acq: AsyncCQ, lane: Lane) -> None:
    lane.cq.req_notify()
    lane.send()
    assert ids(lane.cq.poll()) == [0]  # and its event is left
    task = await start(acq.wait())
    assert acq.stats.spurious == 1
    lane.send()
    assert ids(await task) == [1]
    assert acq.stats.wakeups == 1


# ---- what the task does while the event is being read ------------------------------------------


async def wait_again(acq: AsyncCQ, lane: Lane) -> None:
    lane.send()
    assert ids(await acq.wait()) == [1]
    assert await is_woken(acq, lane) == [2]


async def poll(acq: AsyncCQ, lane: Lane) -> None:
    assert acq.poll() == lane.cq.poll() == []
    lane.send()
    assert ids(acq.poll()) == [1]


async def close(acq: AsyncCQ, lane: Lane) -> None:
    acq.close()
    with pytest.raises(ClosedError):
        await acq.wait()


async def close_cq(acq: AsyncCQ, lane: Lane) -> None:
    lane.close()
    lane.cq.close()
    await tick()
    with pytest.raises(ClosedError):
        await acq.wait()


async def close_all(acq: AsyncCQ, lane: Lane) -> None:
    lane.cq.context.close()
    with pytest.raises(ClosedError):
        await acq.wait()


async def replace(acq: AsyncCQ, lane: Lane) -> None:
    acq.close()
    async with AsyncCQ(lane.cq) as new:
        lane.send()
        assert ids(await new.wait()) == [1]
        task = await start(new.wait())
        lane.send()
        assert ids(await task) == [2]


@pytest.mark.parametrize("act", [wait_again, poll, close, close_cq, close_all, replace])
async def test_the_task_that_was_resumed_can_do_anything(
    lane: Lane, act: Callable[[AsyncCQ, Lane], Any]
) -> None:
    async def wait(acq: AsyncCQ) -> None:
        assert ids(await acq.wait()) == [0]
        await act(acq, lane)

    acq = AsyncCQ(lane.cq)
    task = await start(wait(acq))
    lane.send()
    await task
    acq.close()


async def test_the_task_that_was_resumed_can_cancel_the_one_behind_it(lane: Lane) -> None:
    async def wait(acq: AsyncCQ) -> None:
        assert ids(await acq.wait(1)) == [0]
        second.cancel()

    async with AsyncCQ(lane.cq) as acq:
        first = await start(wait(acq))
        second, third = await start(acq.wait()), await start(acq.wait())
        lane.send(2)
        await first
        assert ids(await third) == [1]
        assert second.cancelled()


async def test_after_the_last_one_is_closed_no_event_is_taken_from_others(
    watched: Watched, new_lane: MakeLane
) -> None:
    lane, other = new_lane(on=watched), new_lane(on=watched)

    async def wait(acq: AsyncCQ) -> None:
        await acq.wait()
        acq.close()
        other.cq.req_notify()
        other.send()

    for _ in range(20):  # so one of them looks for more events than one
        acq = AsyncCQ(lane.cq)
        task = await start(wait(acq))
        lane.send()
        await task
        await tick()
        assert watched.try_get_event() is other.cq
        other.cq.poll()


# ---- exceptions, cancellation, contexts ---------------------------------------------------------


async def test_an_exception_of_the_task_is_its_own(acq: AsyncCQ, lane: Lane) -> None:
    async def fail(acq: AsyncCQ) -> None:
        await acq.wait()
        raise ValueError("mine")

    task = await start(fail(acq))
    lane.send()
    with pytest.raises(ValueError, match="mine"):
        await task
    assert await is_woken(acq, lane) == [1]


async def test_a_cancelled_sleeper_loses_nothing_and_keeps_its_message(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.wait())
    lane.send()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError) as e:
        await task
    assert e.value.args == ("enough",)
    assert ids(await acq.wait()) == [0]


async def test_the_task_goes_on_in_its_own_context(acq: AsyncCQ, lane: Lane) -> None:
    name = contextvars.ContextVar("name", default="nobody")

    async def wait(acq: AsyncCQ) -> None:
        name.set("mine")
        await acq.wait()
        assert name.get() == "mine"
        name.set("still mine")
        await acq.wait()
        assert name.get() == "still mine"

    task = asyncio.ensure_future(wait(acq))
    for _ in range(2):
        await tick()
        lane.send()
    await task
    assert name.get() == "nobody"


def python_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    return asyncio.tasks._PyTask(coro, loop=loop, **options)  # type: ignore[attr-defined]


def eager_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    options.pop("eager_start", None)  # which uvloop gives, and early Pythons do not take
    return asyncio.eager_task_factory(loop, coro, **options)  # type: ignore[attr-defined]


# What resumes one: a task in Python may run a loop within the loop, and is left to the loop.
FACTORIES = [pytest.param(python_task, ["read", "over", "task"], id="python_task")]
if sys.version_info >= (3, 12):
    FACTORIES.append(pytest.param(eager_task, ["read", "task", "over"], id="eager_task"))


@pytest.mark.parametrize(("factory", "order"), FACTORIES)
async def test_tasks_of_other_kinds_are_resumed_too(
    watched: Watched, new_lane: MakeLane, factory: Any, order: list[str]
) -> None:
    lane = new_lane(on=watched)

    async def wait(acq: AsyncCQ) -> None:
        await acq.wait()
        watched.log.append("task")

    asyncio.get_running_loop().set_task_factory(factory)
    async with AsyncCQ(lane.cq) as acq:
        for _ in range(3):
            task = asyncio.get_running_loop().create_task(wait(acq))
            await tick()
            lane.send()
            await task
        assert watched.log == order * 3
        task = asyncio.get_running_loop().create_task(acq.wait())
        await tick()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.not_on_iwarp("libsiw has room for 144 pages of queues in a context")
def test_a_burst_of_events_does_not_take_a_turn_for_each(
    watched: Watched, new_lane: MakeLane, run: Scenario
) -> None:
    lanes = [new_lane(on=watched) for _ in range(40)]
    turns = 0

    async def scenario() -> None:
        nonlocal turns
        async with contextlib.AsyncExitStack() as stack:
            acqs = [await stack.enter_async_context(AsyncCQ(lane.cq)) for lane in lanes]
            tasks = [await start(acq.wait()) for acq in acqs]
            for lane in lanes:
                lane.send()
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                turns += 1
        assert len(watched.log) <= 2 * (8 + 4)

    run(scenario())
    assert turns <= 8 + 4


async def test_single_events_are_read_singly(watched: Watched, new_lane: MakeLane) -> None:
    lane = new_lane(on=watched)
    async with AsyncCQ(lane.cq) as acq:
        await wake(acq, lane, 80)
        assert acq.stats.events == 80
        assert watched.log.count("read") == 80


# ---- the Wakeup itself --------------------------------------------------------------------------


def test_only_a_task_of_asyncio_can_await_a_wakeup() -> None:
    async def sleep() -> None:
        await wakeup

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        wakeup = Wakeup(loop)
        coro = sleep()
        assert coro.send(None) is wakeup
        with pytest.raises(RuntimeError, match="asyncio"):
            coro.send(None)
        context = contextvars.copy_context()
        with pytest.raises(TypeError, match="add_done_callback"):
            wakeup.add_done_callback(context=context)  # type: ignore[call-arg]
        wakeup.add_done_callback(print, context=context)
        with pytest.raises(RuntimeError, match="one task"):
            wakeup.add_done_callback(print, context=context)


async def test_a_wakeup_is_done_once() -> None:
    async def sleep(wakeup: Wakeup) -> None:
        await wakeup

    loop = asyncio.get_running_loop()
    for end in (Wakeup.wake, Wakeup.cancel):
        wakeup = Wakeup(loop)
        task = await start(sleep(wakeup))
        assert not wakeup.done()
        end(wakeup)
        assert wakeup.done()
        assert not wakeup.cancel()
        wakeup.wake()
        await asyncio.wait([task])
        assert task.cancelled() == (end is Wakeup.cancel)


async def test_a_task_that_was_woken_before_it_slept_does_not_wait() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    wakeup.wake()
    await wakeup
    await wakeup  # it is done for good


async def test_however_often_the_loop_calls_a_wakeup_its_task_goes_on_once() -> None:
    steps = []

    async def sleep(wakeup: Wakeup) -> None:
        await wakeup
        steps.append("woken")
        await asyncio.sleep(0)
        steps.append("end")

    loop = asyncio.get_running_loop()
    wakeup = Wakeup(loop)
    task = await start(sleep(wakeup))
    for _ in range(2):
        loop.call_soon(wakeup)
    wakeup.wake()
    assert steps == []
    await task
    await tick()
    assert steps == ["woken", "end"]


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
        task = await start(sleep(wakeup))
        loop.calls[where] = task.cancel
        wakeup.wake()
        assert not loop.calls
        await asyncio.wait([task])
        assert steps == ["cancelled", "end"]

    with contextlib.closing(Interfering()) as loop:
        loop.run_until_complete(scenario(loop))


def test_a_wakeup_of_a_closed_loop_wakes_nobody() -> None:
    loop = asyncio.new_event_loop()
    wakeup = Wakeup(loop)
    wakeup.add_done_callback(print, context=contextvars.copy_context())
    loop.close()
    wakeup.wake()
    assert wakeup.done()


def test_a_wakeup_is_iterated_until_it_is_done() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        wakeup = Wakeup(loop)
        steps = iter(wakeup.__await__())
        assert next(steps) is wakeup
        wakeup = Wakeup(loop)
        wakeup.wake()
        assert list(wakeup.__await__()) == []


def test_what_a_resumed_task_raises_is_told_to_its_loop() -> None:
    def fails(_: object) -> None:
        raise KeyError("mine")

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        wakeup = Wakeup(loop)
        wakeup.add_done_callback(fails, context=contextvars.copy_context())
        wakeup.resume()
        (context,) = told
        assert context["message"] == "a task could not be resumed"
        assert (context["exception"].args, context["future"]) == (("mine",), wakeup)


def test_what_a_signal_raises_as_the_task_falls_asleep_is_raised_in_the_loop() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with contextlib.closing(Interfering()) as loop:
        went_on: list[object] = []
        wakeup = Wakeup(loop)
        wakeup.wake()
        loop.calls["call_soon"] = interrupt
        wakeup.add_done_callback(went_on.append, context=contextvars.copy_context())
        assert not loop.calls
        with pytest.raises(KeyboardInterrupt):
            wakeup()
        assert went_on == [wakeup]
        wakeup()
        assert went_on == [wakeup]


def test_a_task_that_was_woken_before_it_slept_is_called_once() -> None:
    with contextlib.closing(Interfering()) as loop:
        calls: list[object] = []
        wakeup = Wakeup(loop)
        wakeup.wake()
        loop.calls["call_soon"] = lambda: loop.calls.update(call_soon=lambda: calls.append("again"))
        wakeup.add_done_callback(print, context=contextvars.copy_context())
        assert calls == []
