# SPDX-License-Identifier: MIT
"""AsyncCQ(spin=...), and spin="auto": a task polls before it sleeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from flavors import Flavor
from support import DEADLINE, SPIN, Link, Waiter, ids, start, start_all, tick, until

from cqnotify import ClosedError
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.link(recv=True)

Await = Callable[[AsyncCQ, Link], Awaitable[Any]]


def posted(link: Link) -> None:
    link.qp.post_recv(None, wr_id=7)


AWAITED: dict[str, tuple[Callable[[Link], None], Await]] = {
    "recv": (lambda link: None, lambda acq, link: acq.recv(link.qp, None)),
    "wait": (posted, lambda acq, link: acq.wait()),
    "completion": (posted, lambda acq, link: acq.completion(7)),
    "iteration": (posted, lambda acq, link: anext(acq)),
    "batches": (posted, lambda acq, link: anext(acq.batches())),
}


@pytest.fixture
def spinning(link: Link) -> Iterator[AsyncCQ]:
    acq = AsyncCQ(link.a.rcq, spin=SPIN)
    yield acq
    acq.close()


def bring_when_it_spins(acq: AsyncCQ, link: Link, n: int = 1) -> Waiter:
    """In a thread, once a task has polled: it keeps the GIL until it spins."""
    polls = acq.stats.polls

    def bring() -> None:
        until(lambda: acq.stats.polls > polls, "it spins")
        link.bring(n)

    return Waiter(bring)


def is_sleepless(acq: AsyncCQ) -> bool:
    stats = acq.stats
    return stats.events == stats.arms == stats.wakeups == 0


@pytest.mark.parametrize(("prepare", "call"), AWAITED.values(), ids=AWAITED)
async def test_what_comes_while_a_task_spins_needs_no_event(
    spinning: AsyncCQ, link: Link, prepare: Callable[[Link], None], call: Await
) -> None:
    prepare(link)
    sender = bring_when_it_spins(spinning, link)
    await call(spinning, link)
    sender.join()
    assert is_sleepless(spinning)
    assert (spinning.stats.spins, spinning.stats.sleeps_saved) == (1, 1)


async def test_what_the_task_has_posted_itself_is_spun_for(link: Link) -> None:
    async with AsyncCQ(link.a.scq, spin=SPIN) as acq:
        polls = acq.stats.polls

        def take() -> None:
            until(lambda: acq.stats.polls > polls, "it spins")
            link.take()

        taker = Waiter(take)
        assert (await acq.send(link.qp, link.sg)).ok
        taker.join()
        assert acq.stats.wakeups == 0
        assert acq.stats.sleeps_saved == acq.stats.spins


async def test_a_spin_in_vain_is_followed_by_a_sleep(link: Link) -> None:
    async with AsyncCQ(link.a.rcq, spin=1e-5) as acq:
        for n in range(1, 4):

            def bring(n: int = n) -> None:
                until(lambda: acq.stats.arms == n, "it sleeps")
                link.bring()

            sender = Waiter(bring)
            assert (await acq.recv(link.qp, None)).ok
            sender.join()
            assert 1 <= acq.stats.spins <= n  # on a slow machine one spin can use the limit up
            assert acq.stats.sleeps_saved == 0
            assert acq.stats.events == acq.stats.wakeups == n


async def test_what_is_there_is_returned_without_a_spin(spinning: AsyncCQ, link: Link) -> None:
    for i in range(3):
        link.qp.post_recv(None, wr_id=i)
    link.bring(3)
    assert ids(await spinning.wait(2)) == [0, 1]
    assert (await spinning.completion(2)).ok
    assert spinning.stats.spins == 0


async def test_a_wait_may_spin_otherwise_than_its_asynccq(spinning: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None, wr_id=1)
    task = await start(spinning.wait(spin=0))
    assert spinning.stats.spins == 0
    link.bring()
    assert ids(await task) == [1]
    assert spinning.stats.wakeups == 1


async def test_a_completion_of_another_task_ends_the_spin(spinning: AsyncCQ, link: Link) -> None:
    """Both go on then, and who has nothing yet sleeps."""
    posted(link)
    other = await start(spinning.wait(spin=0))
    polls = spinning.stats.polls

    def bring() -> None:
        until(lambda: spinning.stats.polls > polls, "it spins")
        link.bring()
        until(other.done, "the other has it")
        link.bring()

    sender = Waiter(bring)
    assert (await spinning.recv(link.qp, None)).ok
    sender.join()
    assert ids(await other) == [7]
    assert (spinning.stats.spins, spinning.stats.sleeps_saved) == (1, 0)


async def test_a_close_by_another_thread_ends_the_spin(spinning: AsyncCQ, link: Link) -> None:
    polls = spinning.stats.polls

    def close() -> None:
        until(lambda: spinning.stats.polls > polls, "it spins")
        link.a.ctx.close()

    closer = Waiter(close)
    with pytest.raises(ClosedError):
        await spinning.recv(link.qp, None)
    closer.join()
    spinning.close()


# ---- the event loop -----------------------------------------------------------------------------


async def test_no_task_spins_while_others_are_ready(spinning: AsyncCQ, link: Link) -> None:
    loop = asyncio.get_running_loop()
    for n in range(1, 4 if hasattr(loop, "_ready") else 0):  # uvloop does not tell
        loop.call_soon(link.bring)
        assert (await spinning.recv(link.qp, None)).ok
        assert (spinning.stats.spins, spinning.stats.wakeups) == (0, n)


@pytest.mark.parametrize("comes", ["a message", "a close"])
def test_what_comes_as_the_loop_is_asked_who_is_ready_ends_the_spin_before_it_begins(
    spinning: AsyncCQ, link: Link, comes: str
) -> None:
    asked: list[str] = []

    class TellingLoop(asyncio.SelectorEventLoop):
        @property
        def _ready(self) -> Any:
            if link.qp.outstanding_recvs == 1 and not asked:
                asked.append(comes)
                if comes == "a message":
                    link.bring()
                    assert spinning.poll() == []  # it is the task's
                else:
                    spinning.close()
            return self.queue

        @_ready.setter
        def _ready(self, queue: Any) -> None:
            self.queue = queue

    async def receive() -> None:
        if comes == "a message":
            assert (await spinning.recv(link.qp, None)).ok
        else:
            with pytest.raises(ClosedError):
                await spinning.recv(link.qp, None)

    loop = TellingLoop()
    loop.run_until_complete(receive())
    loop.close()
    assert asked == [comes]
    assert spinning.stats.spins == 0


@pytest.mark.parametrize("spin", [0.0001, 0.001])
async def test_what_all_tasks_spin_in_one_iteration_is_limited(link: Link, spin: float) -> None:
    """After 200 us none begins."""
    async with AsyncCQ(link.a.rcq, spin=spin) as acq:
        tasks = await start_all(*(acq.recv(link.qp, None) for _ in range(10)))
        assert acq.stats.spins <= (2 if spin < 0.0002 else 1)
        link.bring(10)
        await asyncio.gather(*tasks)


def test_trio_and_anyio_spin_and_are_limited_alike(link: Link, on: Flavor) -> None:
    async def scenario() -> None:
        acq = AsyncCQ(link.a.rcq, spin=SPIN)
        sender = bring_when_it_spins(acq, link)
        assert (await acq.recv(link.qp, None)).ok
        sender.join()
        assert is_sleepless(acq)
        assert acq.stats.sleeps_saved == 1
        acq.close()
        with_limit = AsyncCQ(link.a.rcq, spin=0.001)
        async with on.tasks() as begin:
            tasks = [begin(lambda: with_limit.recv(link.qp, None)) for _ in range(5)]
            while with_limit._awaited < 5:
                await on.lib.sleep(0.001)
            assert with_limit.stats.spins < 5
            link.bring(5)
            for task in tasks:
                assert (await task.result()).ok
        with_limit.close()

    on.run(scenario)


# ---- spin="auto" --------------------------------------------------------------------------------


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("given", ["AsyncCQ", "wait"])
async def test_on_one_cpu_auto_does_not_spin(link: Link, given: str) -> None:
    async with AsyncCQ(link.a.rcq, spin="auto" if given == "AsyncCQ" else 0.0) as acq:
        for n in range(1, 100):
            posted(link)
            task = await start(acq.wait(spin=None if given == "AsyncCQ" else "auto"))
            link.bring()
            assert ids(await task) == [7]
            assert (acq.stats.spins, acq.stats.wakeups) == (0, n)
        assert acq.poll(spin="auto") == []
        assert acq.cq._spin == (0, 0, 0)


async def test_auto_takes_messages_as_they_come(link: Link) -> None:
    """With one CPU or many, none is lost, and none is taken twice."""
    async with AsyncCQ(link.a.rcq, spin="auto") as acq:
        for _ in range(200):
            task = asyncio.ensure_future(acq.recv(link.qp, None))
            await tick()
            link.bring()
            assert (await asyncio.wait_for(task, DEADLINE)).ok
        stats = acq.stats
        assert stats.completions == 200
        assert stats.sleeps_saved <= stats.spins


# ---- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spin", [0, 0.0, 20e-6, 1, 60, "auto"])
def test_it_says_how_it_spins(link: Link, spin: Any) -> None:
    acq = AsyncCQ(link.a.rcq, spin=spin)
    assert acq.spin == spin
    acq.close()


@pytest.mark.parametrize(
    ("spin", "error", "match"),
    [
        (-1, ValueError, "spin is -1: it must be 0 to 60 seconds"),
        (61, ValueError, "spin is 61: it must be 0 to 60 seconds"),
        ("1", ValueError, "spin must be a number of seconds or 'auto', not '1'"),
        (None, TypeError, "spin must be a number of seconds or 'auto', not NoneType"),
        ([], TypeError, "spin must be a number of seconds or 'auto', not list"),
    ],
)
def test_another_spin_is_refused_and_makes_no_asynccq(
    link: Link, spin: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        AsyncCQ(link.a.rcq, spin=spin)
    with pytest.raises(TypeError):
        AsyncCQ(link.a.rcq, 0.1)  # type: ignore[misc]
    AsyncCQ(link.a.rcq).close()


@pytest.mark.parametrize("spin", ["", "AUTO", b"auto"])
async def test_another_spin_of_a_wait_is_refused(acq: AsyncCQ, spin: Any) -> None:
    for call in (acq.wait, acq.batches):
        with pytest.raises((TypeError, ValueError), match="spin must be a number of seconds or"):
            await (anext(call(spin=spin)) if call == acq.batches else call(spin=spin))  # type: ignore[misc]
    with pytest.raises((TypeError, ValueError), match="spin must be a number of seconds or"):
        acq.poll(spin=spin)
