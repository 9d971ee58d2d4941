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
from support import (
    DEADLINE,
    Lane,
    Link,
    MakeLink,
    Scenario,
    Waiter,
    fill,
    ids,
    outstanding,
    start,
    tick,
)

from cqnotify import Context
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint

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
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What nobody could raise, and what a loop was told: at the end there must be nothing."""
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    yield reports
    assert reports == []


@pytest.fixture
def new_loop(new_loop: NewLoop, reports: list[Any]) -> NewLoop:
    """In debug mode; on it the tests of this file run, too."""

    def make() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = DEADLINE  # type: ignore[attr-defined]
        loop.set_exception_handler(lambda loop, context: reports.append(context))
        return loop

    return make


def suspended(call: Coroutine[Any, Any, Any]) -> weakref.ref[Holder]:
    """It sleeps, and was never a task's: who drives it has forgotten it."""
    call.send(None)
    return abandon(call)


def post_for_others(link: Link) -> None:
    for wr_id in (1, 9):
        link.qp.post_recv(link.a.mr[128:192], wr_id=wr_id)


async def others_are_served(
    link: Link, waiter: asyncio.Future[Any], named: asyncio.Future[Any]
) -> None:
    """Their receives are posted; one after the other, since each is woken by its own message."""
    link.bring(imm=1)
    assert ids(await waiter) == [1]
    link.bring(imm=9)
    assert (await named).wr_id == 9


async def awaits(call: Coroutine[Any, Any, Any]) -> None:
    await call


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"-send-")
@pytest.mark.parametrize("how", ["the call", "a coroutine that awaits it"])
@pytest.mark.parametrize("order", ["before the others", "behind the others"])
@pytest.mark.link(one_cq=True)
async def test_one_that_is_collected_in_another_thread_disturbs_nobody(
    acq: AsyncCQ, link: Link, call: Call, how: str, order: str
) -> None:
    post_for_others(link)

    def suspend() -> weakref.ref[Holder]:
        return suspended(call(acq, link) if how == "the call" else awaits(call(acq, link)))

    gone = suspend() if order == "before the others" else None
    waiter = await start(acq.wait(1))
    named = await start(acq.completion(9))
    if gone is None:
        gone = suspend()
    collect_elsewhere(gone)
    await tick()
    await others_are_served(link, waiter, named)


def known_calls() -> int:
    return sum(type(o).__name__ == "Awaitable" for o in gc.get_objects())


@pytest.mark.link(recv=True)
async def test_one_that_is_dropped_is_known_to_the_collector_while_the_device_has_its_request(
    acq: AsyncCQ, link: Link
) -> None:
    before = known_calls()
    acq.recv(link.qp, link.into).send(None)
    assert known_calls() == before + 1
    assert link.qp.outstanding_recvs == 1


@pytest.mark.parametrize("when", ["before it is collected", "after"])
@pytest.mark.link(recv=True)
async def test_the_baton_of_one_that_is_collected_in_another_thread_goes_on(
    acq: AsyncCQ, link: Link, when: str
) -> None:
    """It is the first that waits, so the completion wakes it, and nobody takes it up."""
    for wr_id in (1, 2):
        link.qp.post_recv(link.into, wr_id=wr_id)
    gone = suspended(acq.wait(1))
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


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"-send")
def test_a_task_of_a_closed_loop_that_is_collected_in_another_thread_disturbs_nobody(
    make_link: MakeLink, new_loop: NewLoop, run: Scenario, call: Call
) -> None:
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
        await others_are_served(link, waiter, named)

    run(scenario())
    acq.close()


async def test_a_whole_asynccq_that_is_collected_in_another_thread_disturbs_nobody(
    acq: AsyncCQ, link: Link
) -> None:
    """With its last call, while another one of the same channel waits."""

    def suspend() -> weakref.ref[Holder]:
        other = AsyncCQ(link.a.rcq)
        waits = other.wait()
        return abandon([other, waits, waits.send(None)])

    gone = suspend()
    sent = await start(acq.send(link.qp, link.sg))
    collect_elsewhere(gone)
    await tick()
    link.take()
    assert (await sent).ok


@pytest.mark.link(max_send_wr=4)
async def test_one_that_waits_for_room_and_is_collected_in_another_thread_makes_room(
    acq: AsyncCQ, link: Link
) -> None:
    full = await fill(acq, link)
    gone = suspended(acq.send(link.qp, link.sg))
    behind = await start(acq.send(link.qp, link.sg))
    collect_elsewhere(gone)
    link.take(len(full) + 1)
    await asyncio.gather(*full)
    assert (await behind).ok
    assert outstanding(link.qp) == (0, 0)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # in callbacks of the loop, too
async def test_what_is_dropped_after_its_receive_has_timed_out_is_collected(ctx: Context) -> None:
    """The device keeps the receive, and nobody awaits it any more."""

    async def leave() -> weakref.ref[Context]:
        link = Link(Context(ctx.name))
        acq = AsyncCQ(link.a.rcq)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(acq.recv(link.qp, link.into), 0.01)
        assert outstanding(link.qp) == (0, 1)
        return weakref.ref(link.a.ctx)

    gone = await leave()
    for _ in range(2):  # the loop lets go of the channel in between
        gc.collect()
        await tick()
    assert gone() is None


async def test_a_receive_that_somebody_awaits_keeps_what_was_dropped(ctx: Context) -> None:
    async def leave() -> tuple[weakref.ref[Context], Endpoint]:
        link = Link(Context(ctx.name))
        acq = AsyncCQ(link.a.rcq)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(acq.recv(link.qp, link.into), 0.01)
        received = await start(acq.recv(link.qp, link.a.mr[8:16]))
        received.add_done_callback(lambda task: messages.append(task.result().ok))
        return weakref.ref(link.a.ctx), link.b

    messages: list[bool] = []
    kept, peer = await leave()
    gc.collect()
    ctx_of_both = kept()
    assert ctx_of_both is not None
    for _ in range(2):  # the first is for the receive that was given up
        peer.qp.post_send(None)
    while not messages:
        await asyncio.sleep(0)
    assert messages == [True]
    ctx_of_both.close()


def test_a_scope_that_lets_go_of_its_asynccq_is_not_collected_meanwhile(lane: Lane) -> None:
    collected = []

    class Collecting(AsyncCQ):
        def __del__(self) -> None:
            collected.append(gc.collect())

    acq = Collecting(lane.cq)
    scope = acq.scope()
    acq.close()
    del acq
    assert not collected
    gc.collect()
    del scope
    assert collected == [0]
