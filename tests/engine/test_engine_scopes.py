# SPDX-License-Identifier: MIT
"""Operations whose task was cancelled; AsyncCQ.scope(): scopes that end in any order, and that are
left before what was begun inside has posted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import Link, cancel, closes, eventually, ids, outstanding, start, tick, until

from cqnotify import MR, ClosedError, CompletionError, QPState, VerbsError
from cqnotify.aio import AsyncCQ, Scope

# ---- cancelled operations -------------------------------------------------------------------


async def test_the_completion_of_a_cancelled_send_with_an_own_wr_id_is_in_the_queue(
    acq: AsyncCQ, link: Link
) -> None:
    await cancel(await start(acq.send(link.qp, link.sg, wr_id=5)))
    await cancel(await start(acq.send(link.qp, link.sg)))
    await cancel(await start(acq.send(link.qp, link.sg, wr_id=6)))
    heir = await start(acq.completion(6))
    link.take(3)
    assert ids(await acq.wait(1)) == [5]
    assert (await heir).wr_id == 6
    assert acq.poll() == []


async def test_a_send_without_a_wr_id_that_completed_before_the_cancel_leaves_nothing(
    acq: AsyncCQ, link: Link
) -> None:
    task = await start(acq.send(link.qp, link.sg))
    link.take()
    until(lambda: not acq.poll() and outstanding(link.qp) == (0, 0), "it is the send's")
    await cancel(task)  # which has not run
    assert acq.poll() == []


# ---- scopes ---------------------------------------------------------------------------------


async def leaving(acq: AsyncCQ, body: Callable[[Scope], Awaitable[Any]]) -> asyncio.Future[Any]:
    """A task that hangs at the end of a scope, with this body."""

    at_the_end = asyncio.Event()

    async def block() -> None:
        async with acq.scope() as scope:
            try:
                await body(scope)
            finally:
                at_the_end.set()

    task = asyncio.ensure_future(block())
    await at_the_end.wait()
    await tick()
    assert not task.done()
    return task


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_a_scope_waits_for_what_was_cancelled_inside(acq: AsyncCQ, link: Link) -> None:
    mr = MR(link.a.pd, 8)
    room = link.qp.max_send_wr

    async def post(scope: Scope) -> None:
        tasks = [await start(acq.send(link.qp, mr)) for _ in range(room + 3)]
        assert scope.outstanding == room + 3
        for task in tasks:
            await cancel(task)
        assert link.qp.outstanding_sends == room, "the others were not posted"
        assert scope.outstanding == room

    block = await leaving(acq, post)
    assert not closes(mr)
    link.take(room)
    await block
    mr.close()
    assert link.qp.outstanding_sends == 0


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
async def test_a_scope_hands_an_exception_on_after_all_is_done(acq: AsyncCQ, link: Link) -> None:
    async def post(scope: Scope) -> None:
        await start(acq.send(link.qp, link.sg))
        raise KeyError("mine")

    block = await leaving(acq, post)
    link.take()
    with pytest.raises(KeyError, match="mine"):
        await block
    assert link.qp.outstanding_sends == 0


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("when", ["in the body", "at the end", "both"])
async def test_a_cancellation_is_raised_after_all_is_done(
    acq: AsyncCQ, link: Link, when: str
) -> None:
    async def post() -> None:
        async with acq.scope():
            sending = await start(acq.send(link.qp, link.sg))
            if when != "at the end":
                await sending

    block = asyncio.ensure_future(post())
    await eventually(lambda: link.qp.outstanding_sends == 1)
    await tick()
    for _ in range(1 + (when == "both")):
        block.cancel()
        await tick()
        assert not block.done()
    link.take()
    with pytest.raises(asyncio.CancelledError):
        await block
    assert link.qp.outstanding_sends == 0


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("how", ["wait_for", "timeout"])
async def test_a_timeout_is_reported_after_all_is_done(acq: AsyncCQ, link: Link, how: str) -> None:
    mr = MR(link.a.pd, 8)

    async def inner() -> None:
        async with acq.scope():
            await acq.send(link.qp, mr)

    async def outer() -> None:
        if how == "wait_for":
            await asyncio.wait_for(inner(), 0.01)
        else:
            async with asyncio.timeout(0.01) as timeout:
                await inner()
            assert timeout.expired()

    block = await start(outer())
    await asyncio.sleep(0.05)
    assert not block.done()
    link.take()
    with pytest.raises(asyncio.TimeoutError):
        await block
    mr.close()


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
async def test_a_scope_counts_what_the_tasks_post_that_were_started_in_it(
    acq: AsyncCQ, link: Link
) -> None:
    go = asyncio.Event()

    async def user() -> None:
        await go.wait()
        await acq.send(link.qp, link.sg)

    outside = asyncio.ensure_future(user())
    async with acq.scope() as scope:
        inside = asyncio.ensure_future(user())
        go.set()
        await tick()
        assert scope.outstanding == 1
        assert link.qp.outstanding_sends == 2
        link.take(2)
    assert link.qp.outstanding_sends == 0
    await asyncio.gather(outside, inside)


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
async def test_a_task_that_outlives_its_scope_counts_in_the_one_around(
    acq: AsyncCQ, link: Link
) -> None:
    go = asyncio.Event()

    async def child() -> None:
        await go.wait()
        await acq.send(link.qp, link.sg)

    async with acq.scope() as outer:
        async with acq.scope():
            task = asyncio.ensure_future(child())
        go.set()
        await tick()
        assert outer.outstanding == 1
        link.take()
    assert link.qp.outstanding_sends == 0
    await task


async def test_a_scope_counts_what_its_own_asynccq_posts(link: Link) -> None:
    async with AsyncCQ(link.a.scq) as out, AsyncCQ(link.a.rcq) as into:
        async with out.scope() as sends, into.scope() as recvs:
            received = await start(into.recv(link.qp, None))
            sent = await start(out.send(link.qp, link.sg))
            assert (sends.outstanding, recvs.outstanding) == (1, 1)
            link.bring()
            await received
            assert (sends.outstanding, recvs.outstanding) == (1, 0)
            link.take()
        await sent


async def test_a_scope_can_be_entered_once(acq: AsyncCQ) -> None:
    scope = acq.scope()
    async with scope:
        with pytest.raises(RuntimeError, match="entered before"):
            await scope.__aenter__()
    with pytest.raises(RuntimeError, match="entered before"):
        async with scope:
            pass


@pytest.mark.parametrize("how", ["close", "ERR", "reset", "close the QP", "close the context"])
@pytest.mark.link(recv=True)
async def test_a_receive_that_never_comes_ends_the_scope_with_what_it_is_of(
    acq: AsyncCQ, link: Link, how: str
) -> None:
    tasks: list[asyncio.Future[Any]] = []

    async def post(scope: Scope) -> None:
        tasks.append(await start(acq.recv(link.qp, None)))
        tasks.append(await start(acq.recv(link.qp, None)))
        await cancel(tasks.pop())

    block = await leaving(acq, post)
    if how == "close":
        acq.close()
    elif how == "close the QP":
        link.qp.close()
    elif how == "close the context":
        link.a.ctx.close()
    else:
        link.qp.modify(qp_state=QPState.ERR if how == "ERR" else QPState.RESET)
    if how == "ERR":
        await block  # they have completed
        assert len(acq.poll()) == 1, "that of the cancelled one"
    else:
        with pytest.raises(ClosedError):
            await block
    with pytest.raises(CompletionError if how == "ERR" else ClosedError):
        await tasks[0]
    if how == "close the context":
        acq.close()


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_what_was_never_posted_is_no_error_of_the_scope(acq: AsyncCQ, link: Link) -> None:
    async with acq.scope():
        tasks = [await start(acq.send(link.qp, link.sg)) for _ in range(10)]
        link.qp.modify(qp_state=QPState.ERR)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(e) for e in errors} == {CompletionError, VerbsError}


# ---- out of order ---------------------------------------------------------------------------


async def entered(acq: AsyncCQ) -> tuple[contextlib.AsyncExitStack, Scope]:
    stack = contextlib.AsyncExitStack()
    return stack, await stack.enter_async_context(acq.scope())


async def ended(stack: contextlib.AsyncExitStack, link: Link) -> None:
    """Its end waits for one send, which the peer takes now."""
    task = await start(stack.aclose())
    link.take()
    await task


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
    assert outstanding(link.qp) == (0, 0)


# ---- what was begun inside ------------------------------------------------------------------


async def writes(acq: AsyncCQ, link: Link, sg: Any) -> None:
    await acq.send(link.qp, sg)


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
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
            assert outstanding(link.qp) == (0, 0)
        over = True
        assert outstanding(link.qp) == (0, 0)
        assert all(map(closes, mrs))

    task = asyncio.ensure_future(block())
    await eventually(lambda: link.qp.outstanding_sends == min(n, link.qp.max_send_wr))
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
    assert outstanding(link.qp) == (0, 0)


async def test_the_end_of_a_scope_is_woken_when_the_last_call_is_dropped_unstarted(
    acq: AsyncCQ, link: Link
) -> None:
    calls = []

    async def begin(scope: Scope) -> None:
        calls.append(acq.send(link.qp, link.sg))
        assert scope.outstanding == 1

    block = await leaving(acq, begin)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        calls.clear()
    await block
    assert outstanding(link.qp) == (0, 0)


async def test_a_scope_does_not_wait_for_what_was_refused(acq: AsyncCQ, link: Link) -> None:
    async with acq.scope():
        loop = asyncio.get_running_loop()
        task = loop.create_task(acq.send(link.qp, b"not inline"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await task
