# SPDX-License-Identifier: MIT
"""Scopes that end in any order, and that are left before what was begun inside has posted."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from support import Link, cancel, closes, eventually, start, tick

from cqnotify import MR
from cqnotify.aio import AsyncCQ, Scope

# ---- out of order ---------------------------------------------------------------------------


async def entered(acq: AsyncCQ) -> tuple[contextlib.AsyncExitStack, Scope]:
    stack = contextlib.AsyncExitStack()
    return stack, await stack.enter_async_context(acq.scope())


async def ended(stack: contextlib.AsyncExitStack, link: Link) -> None:
    """Its end waits for one send, which the peer takes now."""
    task = await start(stack.aclose())
    link.take()
    await task


async def test_an_inner_scope_goes_on_counting_when_the_outer_one_has_ended(
    acq: AsyncCQ, link: Link
) -> None:
    outer, _ = await entered(acq)
    inner, counts = await entered(acq)
    await outer.aclose()
    sent = await start(acq.send(link.qp, link.sg))
    assert counts.outstanding == 1
    await ended(inner, link)
    await sent
    last = await start(acq.send(link.qp, link.sg))
    assert counts.outstanding == 0
    link.take()
    await last


async def test_of_three_scopes_the_innermost_that_has_not_ended_counts(
    acq: AsyncCQ, link: Link
) -> None:
    stacks, scopes = zip(*[await entered(acq) for _ in range(3)], strict=True)

    async def counts() -> list[int]:
        before = [scope.outstanding for scope in scopes]
        task = await start(acq.send(link.qp, link.sg))
        after = [scope.outstanding for scope in scopes]
        link.take()
        await task
        return [a - b for a, b in zip(after, before, strict=True)]

    assert await counts() == [0, 0, 1]
    await stacks[1].aclose()
    assert await counts() == [0, 0, 1]
    await stacks[2].aclose()
    assert await counts() == [1, 0, 0]
    again, scope = await entered(acq)
    await stacks[0].aclose()
    assert await counts() == [0, 0, 0]
    task = await start(acq.send(link.qp, link.sg))
    assert scope.outstanding == 1
    await ended(again, link)
    await task
    assert await counts() == [0, 0, 0]


async def test_an_outer_scope_waits_at_its_end_while_the_inner_one_goes_on(
    acq: AsyncCQ, link: Link
) -> None:
    outer, outer_scope = await entered(acq)
    await start(acq.send(link.qp, link.sg))
    inner, inner_scope = await entered(acq)
    await start(acq.send(link.qp, link.sg))
    assert (outer_scope.outstanding, inner_scope.outstanding) == (1, 1)
    end_of_outer = await start(outer.aclose())
    link.take()
    await end_of_outer
    assert inner_scope.outstanding == 1
    end_of_inner = await start(inner.aclose())
    link.take()
    await end_of_inner
    assert link.qp.outstanding == (0, 0)


async def test_scopes_of_two_tasks_that_overlap_count_their_own(acq: AsyncCQ, link: Link) -> None:
    entries: list[Scope] = []
    go = [asyncio.Event(), asyncio.Event()]

    async def user(i: int) -> None:
        async with acq.scope() as scope:
            entries.append(scope)
            await start(acq.send(link.qp, link.sg))
            await go[i].wait()

    tasks = [await start(user(i)) for i in range(2)]
    assert [scope.outstanding for scope in entries] == [1, 1]
    go[0].set()
    await tick()
    assert not tasks[0].done()
    link.take()
    await tasks[0]
    assert [scope.outstanding for scope in entries] == [0, 1]
    go[1].set()
    link.take()
    await tasks[1]


# ---- what was begun inside ------------------------------------------------------------------


async def writes(acq: AsyncCQ, link: Link, sg: Any) -> None:
    await acq.send(link.qp, sg)


@pytest.mark.parametrize("what", ["the call itself", "a coroutine that makes it"])
@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.link(max_send_wr=4)
async def test_a_scope_waits_for_tasks_that_were_created_inside_and_have_not_posted(
    acq: AsyncCQ, link: Link, what: str, n: int
) -> None:
    """Nothing is awaited in the block: it ends before the tasks have run."""
    tasks: list[asyncio.Task[Any]] = []
    mrs = [MR(link.a.pd, 8) for _ in range(n)]
    over = False

    async def block() -> None:
        nonlocal over
        async with acq.scope():
            for mr in mrs:
                call = acq.send(link.qp, mr) if what == "the call itself" else writes(acq, link, mr)
                tasks.append(asyncio.get_running_loop().create_task(call))
            assert link.qp.outstanding == (0, 0)
        over = True
        assert link.qp.outstanding == (0, 0)
        assert all(map(closes, mrs))

    task = asyncio.ensure_future(block())
    await eventually(lambda: link.qp.outstanding[0] == min(n, link.qp.max_send_wr))
    await tick()
    assert not over
    assert not any(task.done() for task in tasks)
    link.take(n - 1)
    await eventually(lambda: sum(task.done() for task in tasks) == n - 1)
    await tick()
    assert not over
    link.take()
    await task
    await asyncio.gather(*tasks)


@pytest.mark.link(max_send_wr=4)
async def test_a_scope_waits_for_one_that_waits_for_room_at_its_end(
    acq: AsyncCQ, link: Link
) -> None:
    full = [await start(acq.send(link.qp, link.sg)) for _ in range(link.qp.max_send_wr)]

    async def block() -> None:
        async with acq.scope() as scope:
            asyncio.get_running_loop().create_task(acq.send(link.qp, link.sg))
        assert scope.outstanding == 0

    task = await start(block())
    link.take(len(full))
    await asyncio.gather(*full)
    await eventually(lambda: link.qp.outstanding == (1, 0))
    await tick()
    assert not task.done()
    link.take()
    await task
    assert link.qp.outstanding == (0, 0)


@pytest.mark.parametrize("how", ["closed", "dropped", "its task was cancelled"])
async def test_a_scope_does_not_wait_for_what_will_never_be_posted(
    acq: AsyncCQ, link: Link, how: str
) -> None:
    async with acq.scope() as scope:
        call = acq.send(link.qp, link.sg)
        if how == "its task was cancelled":
            task = asyncio.ensure_future(call)
            task.cancel()
        else:
            call.close()
        if how == "dropped":
            del call
    assert scope.outstanding == 0
    assert link.qp.outstanding == (0, 0)


async def test_a_scope_does_not_wait_for_what_was_refused(acq: AsyncCQ, link: Link) -> None:
    async with acq.scope():
        loop = asyncio.get_running_loop()
        task = loop.create_task(acq.send(link.qp, b"not inline"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await task


async def test_a_scope_whose_task_is_cancelled_at_its_end_waits_for_what_was_created_inside(
    acq: AsyncCQ, link: Link
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def block() -> None:
        async with acq.scope():
            tasks.append(asyncio.get_running_loop().create_task(writes(acq, link, link.sg)))

    task = asyncio.ensure_future(block())
    await eventually(lambda: link.qp.outstanding == (1, 0))
    task.cancel()
    await tick()
    assert not task.done()
    await cancel(tasks[0])
    await tick()
    assert not task.done()
    link.take()
    await asyncio.wait([task])
    assert task.cancelled()
    assert link.qp.outstanding == (0, 0)
