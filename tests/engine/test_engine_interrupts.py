# SPDX-License-Identifier: MIT
"""Ctrl-C while the event loop handles an event: it ends the run, and nothing is lost by it.

Its signal's handler raises KeyboardInterrupt in whatever Python code runs. Here that is the loop's
call_soon(), before it has scheduled or after, when the reader of the channel calls it: once, and at
each of these moments in turn. Then the loop is run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from support import Link, MakeLink, ids, start, wait_completions

from cqnotify.aio import AsyncCQ

PATIENCE = 3.0  # seconds


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


@pytest.fixture(params=[Plain, Uv], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[Any]:
    with contextlib.closing(request.param()) as loop:
        yield loop


# ---- what is served when the interrupt comes ------------------------------------------------


class Sleepers:
    """Tasks that are asleep, what they return, and what wakes them."""

    def __init__(self, link: Link, acq: AsyncCQ, out: AsyncCQ) -> None:
        self.link = link
        self.acq, self.out = acq, out  # of the receives, and of the sends
        self.got: dict[int, Any] = {}
        self.tasks: list[asyncio.Future[Any]] = []
        self.hit = 0  # tasks that were interrupted themselves

    async def begin(self, *calls: Any) -> None:
        async def keep(i: int, call: Any) -> None:
            self.got[i] = await call

        for call in calls:
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


def is_interrupted(loop: Any, world: Sleepers) -> bool:
    """Whether it was, while it served them."""
    runner = loop.create_task(asyncio.wait_for(all_done(world), PATIENCE))
    try:
        loop.run_until_complete(runner)
        return False
    except KeyboardInterrupt:
        loop.left = None
        loop.run_until_complete(runner)
        return True
    finally:
        loop.left = None


def end(loop: Any, tasks: list[asyncio.Future[Any]]) -> None:
    """Those of a test that fails may never end; nothing need be said of them."""
    loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if task.done() and not task.cancelled():
            task.exception()


async def all_done(world: Sleepers) -> None:
    while not all(task.done() for task in world.tasks):
        await asyncio.sleep(0.001)


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
    assert world.link.qp.outstanding == (0, 0)


def serve(loop: Any, link: Link, what: str, calls: int, when: str) -> bool:
    """Whether the loop was interrupted, in that call; there may be fewer."""
    begin, complete, expected = SERVED[what]

    async def make() -> Sleepers:
        world = Sleepers(link, AsyncCQ(link.a.rcq), AsyncCQ(link.a.scq))
        await world.begin(*begin(world))
        return world

    world = loop.run_until_complete(make())
    try:
        complete(world)
        loop.plant(calls, when)
        interrupted = is_interrupted(loop, world)
        check_served(world, expected)
        loop.run_until_complete(asyncio.wait_for(works_on(world), PATIENCE))
        return interrupted
    except KeyboardInterrupt as e:
        raise AssertionError("it was interrupted elsewhere") from e
    finally:
        world.acq.close()
        world.out.close()
        end(loop, world.tasks)


async def works_on(world: Sleepers) -> None:
    """All are still woken: one after the other, so that none is served by what wakes another."""
    link = world.link
    task = await start(world.acq.wait())
    world.bring(1)
    assert ids(await task) == [0]
    task = await start(world.acq.recv(link.qp, link.into))
    link.bring(1)
    assert (await task).ok
    task = await start(world.out.send(link.qp, link.sg))
    link.take()
    assert (await task).ok
    assert world.acq.poll() == world.out.poll() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", SERVED)
def test_nothing_is_lost_by_an_interrupt_while_an_event_is_handled(
    loop: Any, make_link: MakeLink, what: str, when: str
) -> None:
    for calls in itertools.count(1):
        link = make_link(max_send_wr=4)
        if not serve(loop, link, what, calls, when):
            break
        assert calls < 100, "it ends"


# ---- a task that is resumed raises it -------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("others", ["wait", "completion", "recv"])
def test_a_task_that_is_resumed_and_ends_the_loop_takes_nothing_from_others(
    loop: Any, make_link: MakeLink, kind: type[BaseException], others: str
) -> None:
    link = make_link()

    async def make() -> Sleepers:
        world = Sleepers(link, AsyncCQ(link.a.rcq), AsyncCQ(link.a.scq))

        async def bad(call: Any) -> None:
            await call
            raise kind("mine")

        for i, first in enumerate((True, False)):
            if others == "wait":
                call = world.acq.wait(1)
            elif others == "completion":
                call = world.acq.completion(i)
            else:
                call = world.acq.recv(link.qp, link.into, wr_id=i)
            await world.begin(bad(call) if first else call)
        return world

    world = loop.run_until_complete(make())
    link.bring(2) if others == "recv" else world.bring(2)

    runner = loop.create_task(asyncio.wait_for(all_done(world), PATIENCE))
    with pytest.raises(kind, match="mine"):
        loop.run_until_complete(runner)
    loop.run_until_complete(runner)
    assert isinstance(world.tasks[0].exception(), kind)
    assert numbers([world.got[1]]) == [1]
    loop.run_until_complete(asyncio.wait_for(works_on(world), PATIENCE))
    world.acq.close()
    world.out.close()
    end(loop, world.tasks)
