# SPDX-License-Identifier: MIT
"""A call that is dropped while it sleeps, and freed by the collector, in another thread.

The loop is in debug mode: there its call_soon() raises in any thread but its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from support import DEADLINE, PATIENCE, Link, MakeLink, Waiter, ids, start, tick

from cqnotify.aio import AsyncCQ

NewLoop = Callable[[], asyncio.AbstractEventLoop]
Call = Callable[[AsyncCQ, Link], Coroutine[Any, Any, Any]]


async def iterates(acq: AsyncCQ, link: Link) -> None:
    async for _ in acq:
        pass


CALLS: dict[str, Call] = {
    "wait": lambda acq, link: acq.wait(),
    "wait for solicited ones": lambda acq, link: acq.wait(solicited_only=True),
    "iteration": iterates,
    "completion": lambda acq, link: acq.completion(77),
    "recv": lambda acq, link: acq.recv(link.qp, link.into),
    "send": lambda acq, link: acq.send(link.qp, link.sg),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


class Holder:
    """Something in a cycle, which only the collector can free."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.me = self


def abandon(held: Any) -> weakref.ref[Holder]:
    return weakref.ref(Holder(held))


def collect_elsewhere(gone: weakref.ref[Holder]) -> None:
    """In another thread, while the loop's stands still; it is not collected before."""
    assert gone() is not None
    assert Waiter(lambda: gc.collect() and None).join() is None
    assert gone() is None, "it was collected there"


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """But those that the test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What nobody could raise; and what the loop was told, see debugging()."""
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    return reports


@contextlib.contextmanager
def debugging(new_loop: NewLoop, reports: list[Any]) -> Iterator[Callable[[Any], Any]]:
    with contextlib.closing(new_loop()) as loop:
        loop.set_debug(True)
        loop.slow_callback_duration = DEADLINE  # type: ignore[attr-defined]
        loop.set_exception_handler(lambda loop, context: reports.append(context))
        yield lambda scenario: loop.run_until_complete(asyncio.wait_for(scenario, PATIENCE))


def post_for_others(link: Link) -> None:
    for wr_id in (1, 9):
        link.qp.post_recv(link.a.mr[128:192], wr_id=wr_id)


async def others_are_served(
    acq: AsyncCQ, link: Link, waiter: asyncio.Future[Any], named: asyncio.Future[Any]
) -> None:
    """Their receives are posted; one after the other, since each is woken by its own message."""
    link.bring(imm=1)
    assert ids(await waiter) == [1]
    link.bring(imm=9)
    assert (await named).wr_id == 9


@pytest.mark.parametrize("how", ["the call", "a coroutine that awaits it"])
@pytest.mark.parametrize("order", ["before the others", "behind the others"])
def test_one_that_is_collected_in_another_thread_disturbs_nobody(
    make_link: MakeLink,
    new_loop: NewLoop,
    reports: list[Any],
    call: Call,
    how: str,
    order: str,
) -> None:
    """It was never a task's: who drives it has forgotten it."""
    link = make_link(one_cq=True)

    async def awaits(acq: AsyncCQ) -> None:
        await call(acq, link)

    async def scenario() -> None:
        async with AsyncCQ(link.a.scq) as acq:
            post_for_others(link)

            def suspend() -> weakref.ref[Holder]:
                coroutine = call(acq, link) if how == "the call" else awaits(acq)
                coroutine.send(None)
                return abandon(coroutine)

            gone = suspend() if order == "before the others" else None
            waiter = await start(acq.wait(1))
            named = await start(acq.completion(9))
            if gone is None:
                gone = suspend()
            collect_elsewhere(gone)
            await tick()
            await others_are_served(acq, link, waiter, named)
            assert reports == []

    with debugging(new_loop, reports) as run:
        run(scenario())
        assert reports == []


@pytest.mark.parametrize("when", ["before it is collected", "after"])
def test_the_baton_of_one_that_is_collected_in_another_thread_goes_on(
    make_link: MakeLink, new_loop: NewLoop, reports: list[Any], when: str
) -> None:
    """It is the first that waits, so the completion wakes it, and nobody takes it up."""
    link = make_link()

    async def scenario() -> None:
        async with AsyncCQ(link.a.rcq) as acq:
            for wr_id in (1, 2):
                link.qp.post_recv(link.into, wr_id=wr_id)

            def suspend() -> weakref.ref[Holder]:
                waiter = acq.wait(1)
                waiter.send(None)
                return abandon(waiter)

            gone = suspend()
            waiters = [await start(acq.wait(1)) for _ in range(2)]
            if when == "after":
                collect_elsewhere(gone)
            link.bring()
            while acq.stats.events == 0:
                await asyncio.sleep(0)
            await tick()
            if when == "before it is collected":
                assert not waiters[1].done()
                collect_elsewhere(gone)
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            link.bring()
            assert [ids(await waiter) for waiter in waiters] == [[1], [2]]
            assert reports == []

    with debugging(new_loop, reports) as run:
        run(scenario())
        assert reports == []


def test_a_task_of_a_closed_loop_that_is_collected_in_another_thread_disturbs_nobody(
    make_link: MakeLink, new_loop: NewLoop, reports: list[Any], call: Call
) -> None:
    """Its loop is closed; another one uses the AsyncCQ, in debug mode."""
    link = make_link(one_cq=True)
    acq = AsyncCQ(link.a.scq)
    post_for_others(link)

    def leave() -> weakref.ref[Holder]:
        with contextlib.closing(new_loop()) as loop:
            task = loop.create_task(call(acq, link))
            loop.run_until_complete(tick())
            assert not task.done()
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose
        return abandon(task)

    gone = leave()

    async def scenario() -> None:
        waiter = await start(acq.wait(1))
        named = await start(acq.completion(9))
        collect_elsewhere(gone)
        await tick()
        await others_are_served(acq, link, waiter, named)
        assert reports == []

    with debugging(new_loop, reports) as run:
        run(scenario())
        acq.close()
        assert reports == []


def test_a_whole_asynccq_that_is_collected_in_another_thread_disturbs_nobody(
    make_link: MakeLink, new_loop: NewLoop, reports: list[Any]
) -> None:
    """With its last call, while another one of the same channel waits."""
    link = make_link()

    async def scenario() -> None:
        async with AsyncCQ(link.a.scq) as other:

            def suspend() -> weakref.ref[Holder]:
                acq = AsyncCQ(link.a.rcq)
                waits = acq.wait()
                holder = abandon([acq, waits, waits.send(None)])
                return holder

            gone = suspend()
            sent = await start(other.send(link.qp, link.sg))
            Waiter(lambda: gc.collect() and None).join()
            await tick()
            link.take()
            assert (await sent).ok
            assert reports == []
        del gone

    with debugging(new_loop, reports) as run:
        run(scenario())
        assert reports == []


def test_one_that_waits_for_room_and_is_collected_in_another_thread_makes_room(
    make_link: MakeLink, new_loop: NewLoop, reports: list[Any]
) -> None:
    link = make_link(max_send_wr=4)

    async def scenario() -> None:
        async with AsyncCQ(link.a.scq) as acq:
            n = link.qp.max_send_wr
            full = [await start(acq.send(link.qp, link.sg)) for _ in range(n)]

            def suspend() -> weakref.ref[Holder]:
                waits = acq.send(link.qp, link.sg)
                waits.send(None)
                return abandon(waits)

            gone = suspend()
            behind = await start(acq.send(link.qp, link.sg))
            collect_elsewhere(gone)
            link.take(n + 1)
            await asyncio.gather(*full)
            assert (await behind).ok
            assert link.qp.outstanding == (0, 0)
            assert reports == []

    with debugging(new_loop, reports) as run:
        run(scenario())
        assert reports == []
