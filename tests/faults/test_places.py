# SPDX-License-Identifier: MIT
"""At each place where the engine lets go of its lock (the table in csrc/await/await.h), another
thread acts before the engine goes on: the task ends with its result, or with ClosedError."""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from fault_world import core
from flavors import FLAVORS, Flavor, Task
from support import Link, MakeLink

from cqnotify import ClosedError
from cqnotify.aio import AsyncCQ

ON_TRIO = [name for name in FLAVORS if "trio" in name]
WR_ID = 7
BATCH = 16  # completions that the engine fetches at once


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    return make_link(one_cq=True, max_send_wr=4, max_recv_wr=8)


class Scene:
    """An AsyncCQ and its link; and what another thread does, once, at a place of the engine."""

    def __init__(self, link: Link, on: Flavor, act: str) -> None:
        self.link = link
        self.on = on
        self.acq = AsyncCQ(link.a.scq)
        self.act = act
        self.passed = 0
        self.posted = False  # a receive, for which no message has come
        self.polled = 0  # completions that the other thread got

    def other_thread_acts_at(self, place: str) -> None:
        core.before_call(place, self._pass)

    def _pass(self) -> None:
        self.passed += 1
        thread = threading.Thread(target=(ACTS | OTHER_ACTS)[self.act], args=(self,))
        thread.start()
        thread.join()

    def post(self) -> None:
        self.link.qp.post_recv(self.link.into, wr_id=WR_ID)
        self.posted = True

    def bring(self) -> None:
        if self.posted:
            self.posted = False
            self.link.bring()

    def close_cq(self) -> None:
        self.link.qp.close()
        self.link.a.scq.close()

    def poll(self) -> None:
        self.bring()
        self.polled += len(self.acq.poll())

    def arm(self) -> None:
        self.bring()
        self.link.a.scq.req_notify()


ACTS: dict[str, Callable[[Scene], object]] = {
    "AsyncCQ.close": lambda s: s.acq.close(),
    "CQ.close": lambda s: s.close_cq(),
    "QP.close": lambda s: s.link.qp.close(),
    "Context.close": lambda s: s.link.a.ctx.close(),
    "poll": lambda s: s.poll(),
    "req_notify": lambda s: s.arm(),
}
OTHER_ACTS: dict[str, Callable[[Scene], object]] = {"forget": lambda s: s.acq._forget_tasks()}
CLOSES = {"AsyncCQ.close", "CQ.close", "QP.close", "Context.close"}

CALLS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "wait": lambda s: s.acq.wait(),
    "completion": lambda s: s.acq.completion(WR_ID),
    "completion of a QP": lambda s: s.acq.completion(WR_ID, qp=s.link.qp),
    "recv": lambda s: s.acq.recv(s.link.qp, s.link.into),
    "send": lambda s: s.acq.send(s.link.qp, s.link.sg),
}
OF_QP = {"completion of a QP", "recv", "send"}
POSTS = {"recv", "send"}

# Those which the first step of each call passes, and for a call that posts whether it has by then.
FIRST_STEP = {
    "arguments": (list(CALLS), False),
    "attach": (list(CALLS), False),
    "report": (["completion of a QP", "recv", "send"], False),
    "memory": (["recv", "send"], False),
    "state": (["recv", "send"], False),
    "fetch": (list(CALLS), True),
    "wakeup": (list(CALLS), True),
    "arm": (list(CALLS), True),
    "prepare": (list(CALLS), True),
    "iterator": (list(CALLS), True),
    "iterate": (list(CALLS), True),
}
OF_TRIO = {"iterator", "iterate", "throw"}


def skips(place: str, on: str) -> bool:
    return place in OF_TRIO and on not in ON_TRIO


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("place", "call", "on"),
    [
        (place, call, on)
        for place, (calls, _) in FIRST_STEP.items()
        for call in calls
        for on in FLAVORS
        if not skips(place, on)
    ],
    indirect=["on"],
)
async def test_in_the_first_step(link: Link, on: Flavor, place: str, call: str, act: str) -> None:
    s = Scene(link, on, act)
    _, has_posted = FIRST_STEP[place]
    if call not in POSTS:
        s.post()
    elif call == "recv" and has_posted:
        s.posted = True
    if place == "report":  # one that does not concern this QP
        s.acq._reports = [SimpleNamespace(qp=object())]
    async with on.tasks() as start:
        s.other_thread_acts_at(place)
        task = start(lambda: CALLS[call](s))
        await on.tick()
        assert s.passed == 1
        if act in CLOSES:
            if act == "QP.close" and call not in OF_QP:
                s.acq.close()
            with pytest.raises(ClosedError):
                await task.result()
            return
        if call == "send":
            link.take()
        elif s.polled or (call == "recv" and not has_posted):
            if call != "recv":
                s.post()
            link.bring()
        else:
            s.bring()
        assert await task.result()
    s.acq.close()


async def settle(task: Task, act: str) -> None:
    """It has its result, or was told that something was closed."""
    try:
        assert await task.result()
    except ClosedError:
        assert act in CLOSES


async def until_passed(s: Scene) -> None:
    while s.passed == 0:
        await s.on.tick()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("place", "call"),
    [("stash", "wait"), *itertools.product(["event", "arm"], ["wait", "completion", "recv"])],
)
async def test_when_an_event_has_brought_a_completion(
    link: Link, on: Flavor, place: str, call: str, act: str
) -> None:
    s = Scene(link, on, act)
    if call != "recv":
        s.post()
    async with on.tasks() as start:
        task = start(lambda: CALLS[call](s))
        await on.tick()
        assert not task.done
        s.posted = False
        s.other_thread_acts_at(place)
        link.bring()
        await until_passed(s)
        await settle(task, act)
    s.acq.close()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("place", "call", "n"), [("wake", "recv", 3), ("capacity", "send", 12)])
async def test_when_the_first_of_many_was_woken_or_posted(
    link: Link, on: Flavor, place: str, call: str, n: int, act: str
) -> None:
    """The sends are more than there is capacity for."""
    s = Scene(link, on, act)
    async with on.tasks() as start:
        tasks = [start(lambda: CALLS[call](s)) for _ in range(n)]
        await on.tick()
        s.other_thread_acts_at(place)
        (link.take if call == "send" else link.bring)(n)
        await until_passed(s)
        for task in tasks:
            await settle(task, act)
    s.acq.close()


@types.coroutine
def thrown_into(request: Any) -> Generator[Any, Any, None]:
    """Trio sends even a cancellation; a coroutine around the request may throw."""
    yield request.send(None)
    with pytest.raises(LookupError):
        request.throw(LookupError())


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("place", "on"),
    [(place, on) for place in ("give up", "throw") for on in FLAVORS if not skips(place, on)],
    indirect=["on"],
)
async def test_when_the_task_is_cancelled(
    link: Link, on: Flavor, place: str, call: str, act: str
) -> None:
    """Another task, which stands behind it, goes on."""
    s = Scene(link, on, act)
    if call not in POSTS:
        s.post()
    async with on.tasks() as start:
        task = start(lambda: thrown_into(CALLS[call](s)) if place == "throw" else CALLS[call](s))
        await on.tick()
        behind = start(lambda: s.acq.wait())
        await on.tick()
        s.posted = False
        s.other_thread_acts_at(place)
        task.scope.cancel()
        await until_passed(s)
        if act in CLOSES:
            if act == "QP.close":
                s.acq.close()
            with pytest.raises(ClosedError):
                await behind.result()
            return
        if call == "send":
            s.post()
        link.bring()
        assert await behind.result()
    s.acq.close()


@pytest.mark.parametrize("on", ON_TRIO, indirect=True)
async def test_when_the_loop_of_a_task_that_is_cancelled_was_closed(link: Link, on: Flavor) -> None:
    """It has given up when its loop was found closed, and does so once."""
    s = Scene(link, on, "forget")
    async with on.tasks() as start:
        task = start(lambda: thrown_into(s.acq.recv(link.qp, link.into)))
        await on.tick()
        s.other_thread_acts_at("throw")
        task.scope.cancel()
        await until_passed(s)
        link.bring()
        assert await s.acq.recv(link.qp, link.into), "it takes over"
    assert core.check_engine(s.acq) is None
    s.acq.close()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("place", ["yield", "wakeup", "prepare"])
async def test_when_a_scope_ends(link: Link, on: Flavor, place: str, act: str) -> None:
    """What it counts is a receive whose task has given up."""
    s = Scene(link, on, act)

    async def scope() -> bool:
        async with s.acq.scope():
            with on.cancelled():
                await s.acq.recv(link.qp, link.into)
            s.posted = True
            s.other_thread_acts_at(place)
        return True

    async with on.tasks() as start:
        task = start(scope)
        await until_passed(s)
        if act in CLOSES:
            with pytest.raises(ClosedError):
                await task.result()
            return
        s.bring()
        assert await task.result()
    s.acq.close()


@pytest.mark.parametrize("act", sorted(CLOSES))
async def test_when_poll_has_asked_for_the_loop(link: Link, on: Flavor, act: str) -> None:
    s = Scene(link, on, act)
    async with on.tasks() as start:
        task = start(lambda: s.acq.recv(link.qp, link.into))
        await on.tick()
        s.other_thread_acts_at("poll")
        with suppress(ClosedError):
            assert s.acq.poll() == []
        assert s.passed == 1
        with pytest.raises(ClosedError):
            await task.result()
    s.acq.close()


async def test_wait_polls_again_if_another_thread_took_the_batch_that_it_fetched(
    make_link: MakeLink, on: Flavor
) -> None:
    """The CQ is armed, but the completions behind that batch came before it was: they raise no
    event."""
    link = make_link(one_cq=True, max_recv_wr=32)
    s = Scene(link, on, "poll")
    for _ in range(BATCH + 1):
        s.link.qp.post_recv(s.link.into)
    link.bring(BATCH + 1)
    link.a.scq.req_notify()
    async with on.tasks() as start:
        s.other_thread_acts_at("fetch")
        task = start(lambda: s.acq.wait())
        await on.tick()
        assert s.passed == 1
        assert s.polled == BATCH
        assert len(await task.result()) == 1
    s.acq.close()
