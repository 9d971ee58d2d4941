# SPDX-License-Identifier: MIT
"""What the methods of AsyncCQ return is a coroutine, to asyncio, trio, anyio and the language."""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import functools
import gc
import inspect
import logging
import sys
import traceback
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from flavors import Flavor
from support import DEADLINE, Link, MakeLink, cancel, eventually, outstanding, start, tick

from cqnotify import QPState, WorkCompletion
from cqnotify.aio import AsyncCQ

Call = Callable[[AsyncCQ, Link], Coroutine[Any, Any, Any]]

# Each sleeps until finish() is called.
CALLS: dict[str, Call] = {
    "wait": lambda acq, link: acq.wait(),
    "completion": lambda acq, link: acq.completion(3),
    "send": lambda acq, link: acq.send(link.qp, link.sg, wr_id=3),
    "recv": lambda acq, link: acq.recv(link.qp, link.into, wr_id=3),
    "write": lambda acq, link: acq.write(link.qp, link.sg, *link.remote, imm_data=1, wr_id=3),
}
# These would complete before they could be seen to sleep.
QUICK: dict[str, Call] = {
    "read": lambda acq, link: acq.read(link.qp, link.sg, *link.remote),
    "atomic_cmp_and_swp": lambda acq, link: acq.atomic_cmp_and_swp(
        link.qp, link.sg, *link.remote, 1, 2
    ),
    "atomic_fetch_and_add": lambda acq, link: acq.atomic_fetch_and_add(
        link.qp, link.sg, *link.remote, 1
    ),
}


def finish(link: Link, name: str) -> None:
    """Let it complete that sleeps in the call of this name."""
    if name in ("send", "write"):
        link.take()
        return
    if name != "recv":
        link.qp.post_recv(link.into, wr_id=3)
    link.bring()


def own(result: Any) -> int:
    """The wr_id of the only completion; wait() has it in a list, and so has gather()."""
    while isinstance(result, list):
        (result,) = result
    assert isinstance(result, WorkCompletion)
    return result.wr_id


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    """Both sides of it complete on one CQ."""
    return make_link(one_cq=True)


@pytest.fixture(params=CALLS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- what they are --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, *QUICK])
async def test_a_call_returns_a_coroutine(acq: AsyncCQ, link: Link, name: str) -> None:
    call = {**CALLS, **QUICK}[name](acq, link)
    assert asyncio.iscoroutine(call)
    assert isinstance(call, collections.abc.Coroutine)
    assert inspect.isawaitable(call)
    assert outstanding(link.qp) == (0, 0), "it begins with its first step"
    call.close()
    assert acq.stats.polls == acq.stats.arms == 0


async def test_a_task_tells_what_it_does(acq: AsyncCQ, link: Link, name: str) -> None:
    call = CALLS[name](acq, link)
    task = await start(call)
    assert task.get_coro() is call  # type: ignore[attr-defined]
    assert f".{name}" in repr(task)
    task.get_stack()  # type: ignore[attr-defined]
    finish(link, name)
    await task
    assert f".{name}" in repr(task)


# ---- the ways of asyncio --------------------------------------------------------------------


async def gathered(call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.gather(call)


async def as_completed(call: Coroutine[Any, Any, Any]) -> Any:
    for first in asyncio.as_completed([call]):
        return await first


async def by_hand(call: Coroutine[Any, Any, Any]) -> Any:
    """As __await__() gives it to others."""

    class Outer:
        def __await__(self) -> Iterator[Any]:
            return (yield from call.__await__())

    return await Outer()


async def delegated(call: Coroutine[Any, Any, Any]) -> Any:
    return await call


async def in_a_group(call: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call)
    return task.result()


async def timed(call: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await call


WAYS: dict[str, Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]] = {
    "awaited": delegated,
    "create_task": lambda call: asyncio.get_running_loop().create_task(call),
    "gather": gathered,
    "shield": asyncio.shield,
    "wait_for": lambda call: asyncio.wait_for(call, DEADLINE),
    "as_completed": as_completed,
    "__await__": by_hand,
    "TaskGroup": in_a_group,
    "timeout": timed,
}


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("way", WAYS)
async def test_it_sleeps_and_returns_its_completion(
    acq: AsyncCQ, link: Link, name: str, way: str
) -> None:
    task = await start(WAYS[way](CALLS[name](acq, link)))
    finish(link, name)
    assert own(await task) == 3
    assert acq.stats.wakeups == 1, "it slept"


@pytest.mark.not_on_iwarp(
    "a send completes when TCP has it, so that none waits", only=r"send|write"
)
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancellation_reaches_it_and_loses_nothing(
    acq: AsyncCQ, link: Link, name: str, way: str
) -> None:
    task = await start(WAYS[way](CALLS[name](acq, link)))
    await cancel(task)
    finish(link, name)
    if way in ("shield", "as_completed"):  # there it goes on, and has it
        await eventually(lambda: acq.stats.wakeups == 1)
        await tick()
    else:
        assert own(await acq.wait()) == 3
    assert outstanding(link.qp) == (0, 0)


# ---- debug mode, and eager tasks ------------------------------------------------------------


def test_debug_mode_finds_nothing(
    link: Link,
    name: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with AsyncCQ(link.a.scq) as acq:
            for way in WAYS.values():
                task = await start(way(CALLS[name](acq, link)))
                finish(link, name)
                assert own(await task) == 3
            await cancel(await start(CALLS[name](acq, link)))
            finish(link, name)
            assert own(await acq.wait()) == 3

    with contextlib.closing(new_loop()) as loop, caplog.at_level(logging.WARNING):
        loop.set_debug(True)
        loop.slow_callback_duration = DEADLINE  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.wait_for(scenario(), DEADLINE))
        gc.collect()
    assert caplog.records == []


if sys.version_info >= (3, 12):

    async def test_an_eager_task_posts_at_once_and_sleeps(
        acq: AsyncCQ, link: Link, name: str
    ) -> None:
        loop = asyncio.get_running_loop()
        for call in (CALLS[name](acq, link), delegated(CALLS[name](acq, link))):
            task = asyncio.Task(call, loop=loop, eager_start=True)
            posted = (int(name in ("send", "write")), int(name == "recv"))
            assert outstanding(link.qp) == posted
            await tick()
            assert not task.done()
            finish(link, name)
            assert own(await task) == 3

    async def test_an_eager_task_that_never_sleeps_is_done_at_once(
        acq: AsyncCQ, link: Link
    ) -> None:
        loop = asyncio.get_running_loop()

        def eager(loop: Any, call: Any, **options: Any) -> asyncio.Task[Any]:
            # uvloop hands on a keyword that asyncio's own factory takes in some versions alone
            return asyncio.Task(call, loop=loop, **{**options, "eager_start": True})

        loop.set_task_factory(eager)
        try:
            for i in range(3):
                link.qp.post_recv(link.into, wr_id=i)
            link.bring(3)
            first = loop.create_task(acq.wait(1))
            assert own(first.result()) == 0
            second = loop.create_task(acq.completion(2))
            assert own(second.result()) == 2
            assert own(await asyncio.gather(acq.wait())) == 1
        finally:
            loop.set_task_factory(None)


# ---- what is never awaited, or twice --------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, *QUICK])
async def test_one_that_is_dropped_unstarted_warns_by_its_name(
    acq: AsyncCQ, link: Link, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    message = f"coroutine 'AsyncCQ.{name}' was never awaited"
    with pytest.warns(RuntimeWarning, match=message) as caught:
        {**CALLS, **QUICK}[name](acq, link)
        gc.collect()
    assert len(caught) == 1
    assert unraisable == []
    assert outstanding(link.qp) == (0, 0)


async def test_one_that_is_dropped_unstarted_keeps_nothing(link: Link) -> None:
    acq = AsyncCQ(link.a.scq)
    gone = weakref.ref(acq)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        acq.wait()
    acq.close()
    del acq
    gc.collect()
    assert gone() is None


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("how", ["closed", "thrown into", "started", "cancelled in a task"])
async def test_one_that_was_begun_or_ended_does_not_warn(
    acq: AsyncCQ, link: Link, name: str, how: str
) -> None:
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = CALLS[name](acq, link)
        if how == "closed":
            call.close()
            call.close()
        elif how == "thrown into":
            with pytest.raises(KeyError, match="mine"):
                call.throw(KeyError("mine"))
        elif how == "started":
            call.send(None)
            call.close()
        else:
            await cancel(asyncio.ensure_future(call))  # before its first step
        del call
        gc.collect()
    assert caught == []
    started = how == "started"
    posted = {"send": (1, 0), "write": (1, 0), "recv": (0, 1)}.get(name, (0, 0))
    assert outstanding(link.qp) == (posted if started else (0, 0))
    if started:
        finish(link, name)
        assert own(await acq.wait()) == 3


@pytest.mark.parametrize("end", ["returned", "raised", "closed", "thrown into"])
async def test_one_that_has_ended_is_not_awaited_again(
    acq: AsyncCQ, link: Link, name: str, end: str
) -> None:
    call = CALLS[name](acq, link)
    if end == "closed":
        call.close()
    elif end == "thrown into":
        with pytest.raises(KeyError):
            call.throw(KeyError())
    else:
        task = await start(call)
        if end == "raised":
            await cancel(task)
        finish(link, name)
        assert own(await (acq.wait() if end == "raised" else task)) == 3
    for again in (lambda: call, lambda: delegated(call)):
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await again()
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        call.send(None)
    call.close()  # of one that has ended it is nothing
    assert outstanding(link.qp) == (0, 0)


async def test_one_that_runs_is_not_stepped(acq: AsyncCQ, link: Link) -> None:
    class Again:
        def __index__(self) -> int:
            call.send(None)
            return 3

    call = acq.recv(link.qp, link.into, wr_id=Again())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="coroutine already executing"):
        call.send(None)
    assert outstanding(link.qp) == (0, 0)


async def test_one_that_another_task_awaits_is_refused(acq: AsyncCQ, link: Link, name: str) -> None:
    call = CALLS[name](acq, link)
    first = await start(delegated(call))
    with pytest.raises(RuntimeError, match="being awaited already"):
        await call
    with pytest.raises(RuntimeError, match="being awaited already"):
        await asyncio.ensure_future(delegated(call))
    await tick()
    assert not first.done()
    finish(link, name)
    assert own(await first) == 3


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("kind", [KeyError, GeneratorExit, asyncio.CancelledError])
async def test_what_is_thrown_into_one_that_sleeps_comes_out(
    acq: AsyncCQ, link: Link, name: str, kind: type[BaseException]
) -> None:
    error = kind()
    call = CALLS[name](acq, link)
    call.send(None)
    with pytest.raises(kind) as caught:
        call.throw(error)
    assert caught.value is error
    finish(link, name)
    assert own(await acq.wait()) == 3


async def test_a_value_that_is_sent_before_the_start_is_refused(acq: AsyncCQ) -> None:
    call = acq.wait()
    with pytest.raises(TypeError, match="non-None value to a just-started coroutine"):
        call.send(1)  # type: ignore[arg-type]
    call.close()


# ---- tracebacks -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flushed", "closed"])
async def test_the_traceback_of_one_that_slept_shows_where_it_was_awaited(
    acq: AsyncCQ, link: Link, how: str
) -> None:
    async def user() -> None:
        await acq.recv(link.qp, link.into)

    task = await start(user())
    if how == "flushed":
        link.qp.modify(qp_state=QPState.ERR)
    else:
        acq.close()
    await asyncio.wait([task])
    error = task.exception()
    assert error is not None
    mine = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
    assert [frame.name for frame in mine] == ["user"]
    assert mine[-1].line == "await acq.recv(link.qp, link.into)"
    assert error.__context__ is None


# ---- trio and anyio -------------------------------------------------------------------------


def the_call(acq: AsyncCQ, link: Link, name: str) -> tuple[Any, ...]:
    """The method and its arguments, as start_soon() takes them."""
    return {
        "wait": (acq.wait,),
        "completion": (acq.completion, 3),
        "send": (acq.send, link.qp, link.sg),
        "recv": (acq.recv, link.qp, link.into),
        "write": (functools.partial(acq.write, imm_data=1), link.qp, link.sg, *link.remote),
    }[name]


async def test_a_method_that_a_nursery_has_started_is_cancelled(
    link: Link, name: str, on: Flavor
) -> None:
    async with AsyncCQ(link.a.scq) as acq:
        async with on.group() as group:
            group.start_soon(*the_call(acq, link, name))
            await on.tick()
            group.cancel_scope.cancel()
        finish(link, name)
        while outstanding(link.qp) != (0, 0) or acq.stats.completions == 0:
            acq.poll()
            await on.tick()


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
async def test_a_method_returns_its_completion_in_another_library(
    link: Link, name: str, on: Flavor
) -> None:
    got = []

    async def user(acq: AsyncCQ) -> None:
        got.append(own(await CALLS[name](acq, link)))

    async with AsyncCQ(link.a.scq) as acq, on.group() as group:
        group.start_soon(user, acq)
        await on.tick()
        assert got == []
        assert sum(outstanding(link.qp)) == (name not in ("wait", "completion"))
        finish(link, name)
    assert got == [3]
    assert acq.stats.wakeups == 1
    assert outstanding(link.qp) == (0, 0)
