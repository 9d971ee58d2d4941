# SPDX-License-Identifier: MIT
"""Ctrl-C while the event loop handles an event: it ends the run, and nothing is lost by it.

Its signal's handler raises KeyboardInterrupt in whatever Python code runs. Here that is the loop's
call_soon(), before it has scheduled or after, when the reader of the channel calls it: once, and at
each of these moments in turn. Then the loop is run again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from selectors import SelectorKey
from typing import Any

import pytest
import uvloop
from support import DEADLINE, Link, MakeLink, eventually, ids, outstanding, start, wait_completions

from cqnotify.aio import AsyncCQ
from cqnotify.aio._selector import Selector


class Interrupted:
    """The part of a loop that raises. It does so in callbacks of readers alone."""

    handling = 0
    left: int | None = None  # calls until it raises
    when = ""

    def plant(self, calls: int, when: str) -> None:
        self.left, self.when = calls, when

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> Any:
        return super().add_reader(fd, self.handle, callback, args)  # type: ignore[misc]

    def handle(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.handling += 1
        try:
            callback(*args)
        finally:
            self.handling -= 1

    def call_soon(self, callback: Any, *args: Any, **kwargs: Any) -> Any:
        return self.schedule(super().call_soon, callback, args, kwargs)  # type: ignore[misc]

    def call_soon_threadsafe(self, callback: Any, *args: Any, **kwargs: Any) -> Any:
        threadsafe = super().call_soon_threadsafe  # type: ignore[misc]
        return self.schedule(threadsafe, callback, args, kwargs)

    def schedule(self, method: Any, callback: Any, args: Any, kwargs: Any) -> Any:
        now = False
        if self.handling and self.left is not None:
            self.left -= 1
            now = self.left == 0
        if now:
            self.left = None
            if self.when == "after":
                method(callback, *args, **kwargs)
            raise KeyboardInterrupt("planted")
        return method(callback, *args, **kwargs)


class Plain(Interrupted, asyncio.SelectorEventLoop):
    pass


class Uv(Interrupted, uvloop.Loop):
    pass


class Handling(Selector):
    """It calls the readers of channels itself."""

    loop: Ours

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self.loop.handling += 1
        try:
            return super().select(timeout)
        finally:
            self.loop.handling -= 1


class Ours(Interrupted, asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = Handling()
        selector.loop = self
        super().__init__(selector)

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> Any:
        return asyncio.SelectorEventLoop.add_reader(self, fd, callback, *args)


@pytest.fixture(params=[Plain, Ours, Uv], ids=["asyncio", "cqnotify", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[Any]:
    with contextlib.closing(request.param()) as loop:
        yield loop


# ---- what is served when the interrupt comes ------------------------------------------------


class Sleepers:
    """Tasks that are asleep, what they return, and what wakes them."""

    def __init__(self, loop: Any, link: Link) -> None:
        self.loop, self.link = loop, link
        self.acq, self.out = AsyncCQ(link.a.rcq), AsyncCQ(link.a.scq)
        self.got: dict[int, Any] = {}
        self.tasks: list[asyncio.Future[Any]] = []
        self.hit = 0  # tasks that were interrupted themselves

    def do(self, call: Awaitable[Any]) -> None:
        self.loop.run_until_complete(asyncio.wait_for(call, DEADLINE))

    async def begin(self, calls: Callable[[Sleepers], list[Any]]) -> None:
        async def keep(i: int, call: Any) -> None:
            self.got[i] = await call

        for call in calls(self):
            self.tasks.append(await start(keep(len(self.tasks), call)))

    def bring(self, n: int) -> None:
        """Messages for receives that are posted by hand, of the wr_ids 0 to n-1."""
        for i in range(n):
            self.link.qp.post_recv(self.link.into, wr_id=i)
        self.link.bring(n)

    def bring_and_take(self) -> None:
        """The peer has one of ours, too, when this returns."""
        self.bring(1)
        self.link.take()
        wait_completions(self.link.b.rcq, 1)

    def are_interrupted(self) -> bool:
        """Whether the loop was, while it served them."""
        all_done = eventually(lambda: all(task.done() for task in self.tasks))
        runner = self.loop.create_task(asyncio.wait_for(all_done, DEADLINE))
        try:
            self.loop.run_until_complete(runner)
            return False
        except (KeyboardInterrupt, SystemExit):
            self.loop.left = None
            self.loop.run_until_complete(runner)
            return True
        finally:
            self.loop.left = None


@contextlib.contextmanager
def asleep(loop: Any, link: Link, calls: Callable[[Sleepers], list[Any]]) -> Iterator[Sleepers]:
    """At the end all are still woken, and then all is closed."""
    w = Sleepers(loop, link)
    try:
        w.do(w.begin(calls))
        yield w
        w.do(works_on(w))
    except KeyboardInterrupt as e:
        raise AssertionError("it was interrupted elsewhere") from e
    finally:
        w.acq.close()
        w.out.close()
        # Those of a test that fails may never end; nothing need be said of them.
        loop.run_until_complete(asyncio.wait(w.tasks, timeout=1))
        for task in w.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if task.done() and not task.cancelled():
                task.exception()


async def works_on(w: Sleepers) -> None:
    """One after the other, so that none is served by what wakes another."""
    link = w.link
    task = await start(w.acq.wait())
    w.bring(1)
    assert ids(await task) == [0]
    task = await start(w.acq.recv(link.qp, link.into))
    link.bring(1)
    assert (await task).ok
    task = await start(w.out.send(link.qp, link.sg))
    link.take()
    assert (await task).ok
    assert w.acq.poll() == w.out.poll() == []


def numbers(wcs: list[Any]) -> list[int]:
    return [wc.wr_id for got in wcs for wc in (got if isinstance(got, list) else [got])]


# Calls, what completes them, and the wr_ids that they must return.
SERVED: dict[str, tuple[Callable[[Sleepers], list[Any]], Callable[[Sleepers], None], list[int]]] = {
    "one in wait": (lambda w: [w.acq.wait()], lambda w: w.bring(1), [0]),
    "three in wait": (
        lambda w: [w.acq.wait(1), w.acq.wait(1), w.acq.wait(1)],
        lambda w: w.bring(3),
        [0, 1, 2],
    ),
    "one in completion": (lambda w: [w.acq.completion(0)], lambda w: w.bring(1), [0]),
    "three in completion": (
        lambda w: [w.acq.completion(2), w.acq.completion(0), w.acq.completion(1)],
        lambda w: w.bring(3),
        [2, 0, 1],
    ),
    "wait beside completion": (
        lambda w: [w.acq.wait(1), w.acq.completion(0), w.acq.wait(1)],
        lambda w: w.bring(3),
        [1, 0, 2],
    ),
    "receives": (
        lambda w: [w.acq.recv(w.link.qp, w.link.into, wr_id=i) for i in range(3)],
        lambda w: w.link.bring(3),
        [0, 1, 2],
    ),
    "sends, some of which wait for room": (
        lambda w: [w.out.send(w.link.qp, w.link.sg, wr_id=i) for i in range(10)],
        lambda w: w.link.take(10),  # event after event
        list(range(10)),
    ),
    "two CQs": (
        lambda w: [w.acq.wait(), w.out.send(w.link.qp, w.link.sg, wr_id=5)],
        lambda w: w.bring_and_take(),
        [0, 5],
    ),
}


async def in_scope(acq: AsyncCQ, call: Callable[[], Any]) -> Any:
    async with acq.scope():
        return await call()


async def at_the_end_of_a_scope(w: Sleepers, call: Callable[[], Any]) -> Any:
    async with w.acq.scope():
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
    await asyncio.wait([task])
    if isinstance(task.exception(), KeyboardInterrupt):
        w.hit += 1
        return []
    return task.result()


SERVED["in a scope"] = (
    lambda w: [in_scope(w.acq, lambda: w.acq.recv(w.link.qp, w.link.into, wr_id=5))],
    lambda w: w.link.bring(1),
    [5],
)
SERVED["at the end of a scope"] = (
    lambda w: [at_the_end_of_a_scope(w, lambda: w.acq.recv(w.link.qp, w.link.into, wr_id=5))],
    lambda w: w.link.bring(1),
    [5],
)


def check_served(world: Sleepers, expected: list[int]) -> None:
    """All have what they awaited. If it was a task that was interrupted, in the midst of its call,
    what it would have got is still there."""
    errors = [task.exception() for task in world.tasks]
    world.hit += sum(isinstance(error, KeyboardInterrupt) for error in errors)
    assert [e for e in errors if e is not None and not isinstance(e, KeyboardInterrupt)] == []
    assert world.hit <= 1
    got = numbers([world.got[i] for i in sorted(world.got)])
    if not world.hit:
        assert got == expected
    left = world.acq.poll() + world.out.poll()
    assert sorted(got + ids(left)) == sorted(expected)
    assert outstanding(world.link.qp) == (0, 0)


@pytest.mark.not_on_iwarp(
    "a send completes when TCP has it, so that none waits", only=r"sends,|two CQs"
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", SERVED)
def test_nothing_is_lost_by_an_interrupt_while_an_event_is_handled(
    loop: Any, make_link: MakeLink, what: str, when: str
) -> None:
    begin, complete, expected = SERVED[what]
    interrupted = True
    calls = 0
    while interrupted:  # there may be fewer calls
        calls += 1
        assert calls < 100, "it ends"
        with asleep(loop, make_link(max_send_wr=4), begin) as w:
            complete(w)
            loop.plant(calls, when)
            interrupted = w.are_interrupted()
            check_served(w, expected)


# ---- a task that is resumed raises it -------------------------------------------------------


AWAITED: dict[str, Callable[[Sleepers, int], Awaitable[Any]]] = {
    "wait": lambda w, i: w.acq.wait(1),
    "completion": lambda w, i: w.acq.completion(i),
    "recv": lambda w, i: w.acq.recv(w.link.qp, w.link.into, wr_id=i),
}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("others", AWAITED)
def test_a_task_that_is_resumed_and_ends_the_loop_takes_nothing_from_others(
    loop: Any, make_link: MakeLink, kind: type[BaseException], others: str
) -> None:
    async def bad(call: Awaitable[Any]) -> None:
        await call
        raise kind("mine")

    call = AWAITED[others]
    with asleep(loop, make_link(), lambda w: [bad(call(w, 0)), call(w, 1)]) as w:
        w.link.bring(2) if others == "recv" else w.bring(2)
        assert w.are_interrupted()
        error = w.tasks[0].exception()
        assert (type(error), str(error)) == (kind, "mine")
        assert numbers([w.got[1]]) == [1]
