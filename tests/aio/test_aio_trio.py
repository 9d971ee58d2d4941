# SPDX-License-Identifier: MIT
"""AsyncCQ on trio, and on anyio with either of its backends, in lock-step as in test_aio.py."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import anyio
import pytest
import trio
from support import (
    DEADLINE,
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

from cqnotify import BusyError, ClosedError, CompletionError, Context, QPState, QPType, WCStatus
from cqnotify.aio import AsyncCQ

Pair = tuple[Endpoint, Endpoint]
Scenario = Callable[[], Awaitable[Any]]


class Task:
    """A task, and what came of it. It is cancelled by its scope."""

    def __init__(self, flavor: Flavor, call: Callable[[], Awaitable[Any]]) -> None:
        self.scope = flavor.lib.CancelScope()
        self._call = call
        self._over = flavor.lib.Event()
        self._value: Any = None
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            with self.scope:
                self._value = await self._call()
        except Exception as e:
            self._error = e
        finally:
            self._over.set()

    @property
    def done(self) -> bool:
        return bool(self._over.is_set())

    async def result(self) -> Any:
        await self._over.wait()
        if self._error is not None:
            raise self._error
        assert not self.scope.cancelled_caught, "it was cancelled"
        return self._value


class Flavor:
    """trio, or anyio on one of its backends: what the tests ask of them has the same names."""

    def __init__(self, lib: ModuleType, run: Callable[[Scenario], Any]) -> None:
        self.lib = lib
        self._run = run

    def run(self, scenario: Scenario) -> Any:
        async def bounded() -> Any:
            with self.lib.fail_after(DEADLINE):
                return await scenario()

        return self._run(bounded)

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Callable[[Callable[[], Awaitable[Any]]], Task]]:
        """Tasks that end with the block: those that are left are cancelled."""
        make = trio.open_nursery if self.lib is trio else anyio.create_task_group
        async with make() as group:

            def start(call: Callable[[], Awaitable[Any]]) -> Task:
                task = Task(self, call)
                group.start_soon(task.run)
                return task

            yield start
            group.cancel_scope.cancel()

    async def tick(self) -> None:
        """Let every task that can run do so, up to where it waits."""
        for _ in range(4):
            await self.lib.lowlevel.checkpoint()

    @contextmanager
    def cancelled(self) -> Iterator[Any]:
        with self.lib.CancelScope() as scope:
            scope.cancel()
            yield scope


def anyio_on(backend: str) -> Flavor:
    return Flavor(anyio, lambda scenario: anyio.run(scenario, backend=backend))


FLAVORS = {
    "trio": Flavor(trio, trio.run),
    "anyio on asyncio": anyio_on("asyncio"),
    "anyio on trio": anyio_on("trio"),
}


@pytest.fixture(params=FLAVORS)
def on(request: pytest.FixtureRequest) -> Flavor:
    return FLAVORS[request.param]


# ---- lock-step ------------------------------------------------------------------------------


def test_a_completion_at_the_very_moment_of_falling_asleep_is_not_missed(
    lane: Lane, on: Flavor
) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq:
            assert ids(await just_before_it_sleeps(acq.wait(), lane.send)) == [0]
            assert acq.stats.events == acq.stats.wakeups == 1

    on.run(scenario)


async def woken(lane: Lane, on: Flavor, task: Task) -> list[int]:
    """What a task that waits gets of one message, which is sent once it sleeps."""
    await on.tick()
    lane.send()
    return ids(await task.result())


def test_every_completion_wakes_when_the_producer_waits_for_the_consumer(
    lane: Lane, on: Flavor
) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
            for i in range(50):
                assert await woken(lane, on, start(acq.wait)) == [i]
            assert acq.stats.events == acq.stats.wakeups == acq.stats.arms == 50
            assert acq.stats.max_per_wake == 1

    on.run(scenario)


def test_a_forked_child_does_not_make_the_loop_deaf(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
            for i in range(2):
                assert await woken(lane, on, start(acq.wait)) == [i]
                if i == 0:
                    assert in_child(acq.close) == 0
            assert acq.stats.wakeups == 2

    on.run(scenario)


def test_a_qp_that_another_thread_fails_and_closes_ends_what_awaits_it(
    ctx: Context, on: Flavor
) -> None:
    end = Endpoint(ctx, QPType.RC)
    end.qp.connect(end.qp.address())

    def fail() -> None:
        end.qp.modify(qp_state=QPState.ERR)
        end.qp.close()

    async def scenario() -> None:
        async with AsyncCQ(end.rcq) as acq, on.tasks() as start:
            task = start(lambda: acq.recv(end.qp, end.mr[0:8]))
            await on.tick()
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
            with pytest.raises((ClosedError, CompletionError)):
                await task.result()

    on.run(scenario)


def test_of_two_waiters_each_gets_one_completion_in_the_order_of_coming(
    lane: Lane, on: Flavor
) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


@pytest.mark.parametrize("order", ["woken, cancelled", "cancelled, woken"])
def test_a_waiter_that_is_woken_and_cancelled_passes_the_wake_up_on(
    lane: Lane, on: Flavor, order: str
) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


def test_a_waiter_that_falls_asleep_in_a_cancelled_scope_leaves_the_completion(
    lane: Lane, on: Flavor
) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq:
            with on.cancelled() as scope:
                await just_before_it_sleeps(acq.wait(), lane.send)
            assert scope.cancelled_caught
            lane.send()
            assert ids(await acq.wait(1)) == [0]
            assert ids(await acq.wait(1)) == [1]
            assert acq.stats.wakeups == 0

    on.run(scenario)


def test_a_cancelled_completion_puts_back_what_it_was_given(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
            task = start(lambda: acq.completion(0))
            await on.tick()
            lane.send()
            task.scope.cancel()
            assert acq.poll() == []  # the task has it, and has not run since
            await on.tick()
            assert task.scope.cancelled_caught
            assert (await acq.completion(0)).wr_id == 0

    on.run(scenario)


@pytest.mark.parametrize("scope", ["move_on_after", "fail_after"])
def test_a_deadline_that_has_passed_loses_nothing(lane: Lane, on: Flavor, scope: str) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq:
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

    on.run(scenario)


def test_a_cancelled_waiter_does_not_deafen_another_cq_of_the_channel(
    new_lane: MakeLane, lane: Lane, on: Flavor
) -> None:
    other = new_lane()

    async def scenario() -> None:
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

    on.run(scenario)


def test_a_cancelled_waiter_leaves_the_one_behind_it_armed(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


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


def test_a_solicited_message_wakes_who_waits_for_one(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq, on.tasks() as start:
            task = start(partial(acq.wait, solicited_only=True))
            await on.tick()
            lane.send(7)
            await on.tick()
            assert not task.done
            lane.send(flags=SOLICITED)
            assert len(await task.result()) == 8
            assert acq.stats.events == 1

    on.run(scenario)


def test_an_idle_waiter_burns_no_cpu_after_an_event(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


def test_who_never_has_to_sleep_lets_others_run(new_lane: MakeLane, on: Flavor) -> None:
    lane = new_lane()

    async def scenario() -> None:
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

    on.run(scenario)


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


def test_iteration_ends_when_it_is_closed(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


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


def test_another_file_that_gets_the_descriptors_number_is_heard(
    ctx: Context, lane: Lane, on: Flavor
) -> None:
    async def scenario() -> None:
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

    on.run(scenario)


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


@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_two_living_loops_on_one_channel_are_refused(lane: Lane, first: str) -> None:
    acq = AsyncCQ(lane.cq)
    attached, ended = threading.Event(), threading.Event()

    async def refused() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.completion(1)

    async def holds(on: Flavor) -> None:
        async with on.tasks() as start:
            task = start(acq.wait)
            await on.tick()
            attached.set()
            while not ended.is_set():
                await on.tick()
            lane.send()
            assert ids(await task.result()) == [0]

    flavors = ["anyio on asyncio", "trio"]
    holder, other = (FLAVORS[f] for f in (flavors if first == "asyncio" else flavors[::-1]))
    thread = Waiter(lambda: holder.run(lambda: holds(holder)))
    assert attached.wait(DEADLINE)
    try:
        other.run(refused)
    finally:
        ended.set()
    thread.join()
    acq.close()


def test_no_descriptor_is_left(new_lane: MakeLane, on: Flavor) -> None:
    lanes = [new_lane(), new_lane()]

    async def scenario() -> None:
        before = open_fds()
        for _ in range(3):
            async with AsyncCQ(lanes[0].cq) as acq, AsyncCQ(lanes[1].cq) as acq2:
                await one_message(on, acq, lanes[0])
                await one_message(on, acq2, lanes[1])
                assert open_fds() > before
            assert open_fds() == before

    on.run(scenario)


def test_one_that_is_dropped_unclosed_goes_away_with_its_reader(lane: Lane, on: Flavor) -> None:
    async def scenario() -> None:
        before = open_fds()
        acq = AsyncCQ(lane.cq)
        await one_message(on, acq, lane)
        assert open_fds() > before
        del acq
        await on.tick()
        gc.collect()
        await on.tick()
        assert open_fds() == before

    on.run(scenario)


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


# ---- posting --------------------------------------------------------------------------------


def test_a_send_and_a_receive_wake_those_who_posted_them(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async def scenario() -> None:
        async with AsyncCQ(a.scq) as sent, AsyncCQ(b.rcq) as received, on.tasks() as start:
            for i in range(10):
                receive = start(lambda: received.recv(b.qp, b.mr[0:64]))
                await on.tick()
                assert not receive.done
                a.mr.write(bytes([i]) * 8)
                assert (await sent.send(a.qp, a.mr[0:8], imm_data=i)).ok
                assert (await receive.result()).imm_data == i
                assert b.mr.read(8) == bytes([i]) * 8
            assert received.stats.events == received.stats.wakeups == 10

    on.run(scenario)


def test_a_failed_send_raises_what_the_device_says(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async def scenario() -> None:
        async with AsyncCQ(a.scq) as acq:
            with pytest.raises(CompletionError) as e:
                await acq.write(a.qp, a.mr[0:8], b.mr.addr, b.mr.rkey ^ 1)
            assert e.value.status == WCStatus.REM_ACCESS_ERR

    on.run(scenario)


def test_a_message_for_a_cancelled_receive_goes_to_who_waits(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async def scenario() -> None:
        async with AsyncCQ(a.scq) as sent, AsyncCQ(b.rcq) as received, on.tasks() as start:
            receive = start(lambda: received.recv(b.qp, b.mr[0:64]))
            await on.tick()
            receive.scope.cancel()
            await on.tick()
            assert receive.done
            waiter = start(received.wait)
            await on.tick()
            await sent.send(a.qp, a.mr[0:8], imm_data=5)
            ((wc,),) = [await waiter.result()]
            assert wc.imm_data == 5

    on.run(scenario)


def test_a_scope_ends_only_when_all_has_completed_though_a_scope_around_is_cancelled(
    pair: Pair, on: Flavor
) -> None:
    """The send waits for a receive at the peer. Its memory is pinned till then, and no longer."""
    a, b = pair

    async def scenario() -> None:
        async with AsyncCQ(a.scq) as acq, on.tasks() as start:
            left = False

            async def body() -> None:
                nonlocal left
                async with acq.scope() as scope:
                    assert scope.outstanding == 0
                    try:
                        await acq.send(a.qp, a.mr[0:8])
                    finally:
                        assert scope.outstanding == 1
                left = True  # never: the cancellation is raised at the end of the block

            task = start(body)
            await on.tick()
            task.scope.cancel()
            await on.tick()
            assert not task.done
            with pytest.raises(BusyError):
                a.mr.close()
            cpu = time.process_time()
            await on.lib.sleep(1)
            assert time.process_time() - cpu < 0.2, "it sleeps"
            b.qp.post_recv(b.mr[0:64])
            while not task.done:
                await on.tick()
            assert task.scope.cancelled_caught
            assert not left
            a.mr.close()

    on.run(scenario)


def test_a_scope_whose_body_has_ended_waits_though_it_is_cancelled_then(
    pair: Pair, on: Flavor
) -> None:
    a, b = pair

    async def scenario() -> None:
        async with AsyncCQ(a.scq) as acq, on.tasks() as start:

            async def body() -> None:
                async with acq.scope() as scope, on.tasks() as start_inside:
                    start_inside(lambda: acq.send(a.qp, a.mr[0:8]))
                    await on.tick()
                assert scope.outstanding == 0

            task = start(body)
            await on.tick()
            await on.tick()
            task.scope.cancel()
            await on.tick()
            assert not task.done
            b.qp.post_recv(b.mr[0:64])
            while not task.done:
                await on.tick()
            a.mr.close()

    on.run(scenario)


def test_a_scope_ends_with_an_error_when_its_receives_are_closed_away(
    pair: Pair, on: Flavor
) -> None:
    _, b = pair

    async def scenario() -> None:
        acq = AsyncCQ(b.rcq)
        async with on.tasks() as start:

            async def body() -> None:
                async with acq.scope():
                    with on.cancelled():
                        await acq.recv(b.qp, b.mr[0:64])

            task = start(body)
            await on.tick()
            assert not task.done
            acq.close()
            with pytest.raises(ClosedError):
                await task.result()

    on.run(scenario)


def test_flushed_receives_end_a_scope(pair: Pair, on: Flavor) -> None:
    _, b = pair

    async def scenario() -> None:
        async with AsyncCQ(b.rcq) as acq, on.tasks() as start:

            async def body() -> None:
                async with acq.scope():
                    with on.cancelled():
                        await acq.recv(b.qp, b.mr[0:64])

            task = start(body)
            await on.tick()
            assert not task.done
            b.qp.modify(qp_state=QPState.ERR)
            await task.result()

    on.run(scenario)
