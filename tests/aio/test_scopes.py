# SPDX-License-Identifier: MIT
"""AsyncCQ.scope(), and operations whose task was cancelled."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import CHOSEN, Link, cancel, closes, eventually, ids, start, tick

from cqnotify import MR, ClosedError, CompletionError, QPState, VerbsError, WCOpcode
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


@pytest.mark.parametrize("woken", [False, True])
@pytest.mark.link(recv=True)
async def test_the_message_of_a_cancelled_receive_is_returned_by_wait(
    acq: AsyncCQ, link: Link, woken: bool
) -> None:
    task = await start(acq.recv(link.qp, link.a.mr[0:64]))
    if woken:
        link.bring()
        assert acq.poll() == []  # it is in the claim now, and the task has not run
        await cancel(task)
    else:
        await cancel(task)
        link.bring()
    (wc,) = await acq.wait()
    assert (wc.opcode, wc.byte_len, wc.qp_num) == (WCOpcode.RECV, 0, link.qp.qp_num)
    assert wc.wr_id >= CHOSEN
    assert link.qp.outstanding == (0, 0)


@pytest.mark.parametrize("how", ["completion", "wait"])
@pytest.mark.link(max_recv_wr=200, recv=True)
async def test_who_never_has_to_sleep_lets_others_run_and_loses_nothing_if_they_cancel_him(
    acq: AsyncCQ, link: Link, how: str
) -> None:
    for i in range(200):
        link.qp.post_recv(None, wr_id=i)
    link.bring(200)
    got: list[int] = []

    async def consume() -> None:
        while True:
            wcs = [await acq.completion(len(got))] if how == "completion" else await acq.wait(1)
            got.extend(ids(wcs))

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0)
    assert 0 < len(got) < 100
    await cancel(task)
    left: list[int] = []
    while len(got) + len(left) < 200:
        left += ids(await acq.wait())
    assert got + left == list(range(200))
    assert acq.stats.events == 0


@pytest.mark.link(max_recv_wr=200, recv=True)
async def test_who_lets_others_run_is_not_overtaken(acq: AsyncCQ, link: Link) -> None:
    for i in range(200):
        link.qp.post_recv(None, wr_id=i)
    link.bring(200)
    calls = itertools.count()
    others: list[int] = []

    async def consume(name: str) -> None:
        for _ in range(100):
            call = next(calls)
            (wc,) = await acq.wait(1)
            assert wc.wr_id == call
            if name == "b" and call < 150:
                others.append(call)

    await asyncio.gather(consume("a"), consume("b"))
    assert others, "the second one did not wait for the end of the first"


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


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_everything_that_was_posted_in_a_scope_is_done_after_it(
    acq: AsyncCQ, link: Link
) -> None:
    tasks: list[asyncio.Future[Any]] = []

    async def post(scope: Scope) -> None:
        tasks.extend([await start(acq.send(link.qp, link.sg)) for _ in range(10)])
        assert scope.outstanding == 10

    block = await leaving(acq, post)
    link.take(9)
    await eventually(lambda: sum(task.done() for task in tasks) == 9)
    await tick()
    assert not block.done()
    link.take(1)
    await block
    assert link.qp.outstanding[0] == 0
    await asyncio.gather(*tasks)


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_a_scope_waits_for_what_was_cancelled_inside(acq: AsyncCQ, link: Link) -> None:
    mr = MR(link.a.pd, 8)
    room = link.qp.max_send_wr

    async def post(scope: Scope) -> None:
        for task in [await start(acq.send(link.qp, mr)) for _ in range(room + 3)]:
            await cancel(task)
        assert link.qp.outstanding[0] == room, "the others were not posted"
        assert scope.outstanding == room

    block = await leaving(acq, post)
    assert not closes(mr)
    link.take(room)
    await block
    mr.close()
    assert link.qp.outstanding[0] == 0


async def test_a_scope_hands_an_exception_on_after_all_is_done(acq: AsyncCQ, link: Link) -> None:
    async def post(scope: Scope) -> None:
        await start(acq.send(link.qp, link.sg))
        raise KeyError("mine")

    block = await leaving(acq, post)
    link.take()
    with pytest.raises(KeyError, match="mine"):
        await block
    assert link.qp.outstanding[0] == 0


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
    await eventually(lambda: link.qp.outstanding[0] == 1)
    await tick()
    for _ in range(1 + (when == "both")):
        block.cancel()
        await tick()
        assert not block.done()
    link.take()
    with pytest.raises(asyncio.CancelledError):
        await block
    assert link.qp.outstanding[0] == 0


@pytest.mark.parametrize("how", ["wait_for", "timeout"])
async def test_a_timeout_is_reported_after_all_is_done(acq: AsyncCQ, link: Link, how: str) -> None:
    if how == "timeout" and sys.version_info < (3, 11):
        pytest.skip("asyncio.timeout() is of Python 3.11")
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


@pytest.mark.link(recv=True)
async def test_an_inner_scope_waits_for_its_own_and_the_outer_one_for_the_rest(
    acq: AsyncCQ, link: Link
) -> None:
    steps: list[str] = []

    async def block() -> None:
        async with acq.scope() as outer:
            await start(acq.recv(link.qp, None))
            async with acq.scope() as inner:
                await start(acq.recv(link.qp, None))
                assert (outer.outstanding, inner.outstanding) == (1, 1)
                link.bring()
                await eventually(lambda: outer.outstanding == 0)
                steps.append("inner ends")
            steps.append("inner has ended")
            await start(acq.recv(link.qp, None))
            assert (outer.outstanding, inner.outstanding) == (1, 0)
            steps.append("outer ends")

    task = await start(block())
    await eventually(lambda: steps == ["inner ends"])
    link.bring()
    await eventually(lambda: steps[1:] == ["inner has ended", "outer ends"])
    await tick()
    assert not task.done()
    link.bring()
    await task


async def test_a_scope_counts_what_the_tasks_post_that_were_started_in_it(
    acq: AsyncCQ, link: Link
) -> None:
    go = asyncio.Event()
    tasks: list[asyncio.Future[Any]] = []

    async def child() -> None:
        await go.wait()
        await acq.send(link.qp, link.sg)

    async def outsider() -> None:
        await go.wait()
        await acq.send(link.qp, link.sg)

    tasks.append(asyncio.ensure_future(outsider()))
    async with acq.scope() as scope:
        tasks.append(asyncio.ensure_future(child()))
        go.set()
        await tick()
        assert scope.outstanding == 1
        assert link.qp.outstanding[0] == 2
        link.take(2)
    assert link.qp.outstanding[0] == 0
    await asyncio.gather(*tasks)


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
    assert link.qp.outstanding[0] == 0
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


@pytest.mark.parametrize("how", ["close", "ERR", "reset", "close the QP"])
@pytest.mark.link(recv=True)
async def test_a_receive_that_never_comes_ends_the_scope_with_its_qp_or_asynccq(
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


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_what_was_never_posted_is_no_error_of_the_scope(acq: AsyncCQ, link: Link) -> None:
    async with acq.scope():
        tasks = [await start(acq.send(link.qp, link.sg)) for _ in range(10)]
        link.qp.modify(qp_state=QPState.ERR)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(e) for e in errors} == {CompletionError, VerbsError}
