# SPDX-License-Identifier: MIT
"""AsyncCQ.completion(): of what was posted by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import (
    Endpoint,
    Link,
    MakeLink,
    anext_of,
    cancel,
    connect,
    connected_by_srq,
    eventually,
    ids,
    start,
    start_all,
    tick,
)

from cqnotify import QP, SRQ, AsyncEventError, ClosedError, Context, QPType, VerbsError
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.link(recv=True)

BATCH = 16  # completions that the engine fetches at once


async def test_completion_sleeps_until_it_comes_and_leaves_the_others_in_order(
    acq: AsyncCQ, link: Link
) -> None:
    for i in range(4):
        link.qp.post_recv(None, wr_id=i)
    task = await start(acq.completion(2))
    for i in range(2):
        link.bring()
        await eventually(lambda i=i: acq.stats.events == i + 1)  # type: ignore[misc]
        assert not task.done()
    link.bring()
    assert (await task).wr_id == 2
    link.bring()
    assert ids(await acq.wait()) + ids(await acq.wait()) == [0, 1, 3]
    assert acq.stats.wakeups == 1


async def test_the_ids_behind_a_claimed_completion_come_with_those_before_it(
    acq: AsyncCQ, link: Link
) -> None:
    for i in range(4):
        link.qp.post_recv(None, wr_id=i)
    link.bring(4)
    for i in (3, 1):  # the second one is between two that were fetched with the first
        assert (await acq.completion(i)).wr_id == i
    acq.close()
    assert link.a.rcq.poll_ids() == [0, 2]


async def test_of_two_qps_with_the_same_wr_id_each_completion_goes_to_its_own_task(
    ctx: Context, make_link: MakeLink
) -> None:
    first = make_link()
    a, b = Endpoint(ctx, QPType.RC, recv_cq=first.a.rcq), Endpoint(ctx, QPType.RC)
    connect(a, b)
    async with AsyncCQ(first.a.rcq) as acq:
        tasks = [await start(acq.completion(5, qp=qp)) for qp in (first.qp, a.qp)]
        for qp in (first.qp, a.qp):
            qp.post_recv(None, wr_id=5)
        b.qp.post_send(None)
        assert (await tasks[1]).qp_num == a.qp.qp_num
        await tick()
        assert not tasks[0].done()
        first.bring()
        assert (await tasks[0]).qp_num == first.qp.qp_num


async def test_of_many_qps_with_the_same_wr_id_each_completion_goes_to_its_own_task(
    acq: AsyncCQ, link: Link
) -> None:
    """As many as fill a table, where some share a place; the last one comes first."""
    cqs = {"send_cq": link.a.scq, "recv_cq": link.a.rcq}
    qps = [QP(link.a.pd, QPType.RC, **cqs) for _ in range(16)]
    tasks = await start_all(*(acq.completion(5, qp=qp) for qp in qps))
    for qp, task in reversed([*zip(qps, tasks, strict=True)]):
        qp.connect(qp.address())
        qp.post_recv(None, wr_id=5)
        qp.post_send(None)
        assert (await task).qp_num == qp.qp_num


@pytest.mark.link(max_recv_wr=32, recv=True)
async def test_what_stands_behind_a_full_batch_of_an_armed_cq_is_found(
    acq: AsyncCQ, link: Link
) -> None:
    """The CQ was armed behind them, so they raise no event."""
    for i in range(BATCH + 1):
        link.qp.post_recv(None, wr_id=i)
    link.bring(BATCH + 1)
    link.a.rcq.req_notify()
    assert (await acq.completion(BATCH)).wr_id == BATCH
    assert acq.stats.events == 0
    assert ids(acq.poll()) == [*range(BATCH)]


@pytest.mark.parametrize("then", ["completion", "wait", "second task", "waiter"])
async def test_a_completion_that_is_cancelled_after_it_was_woken_loses_nothing(
    acq: AsyncCQ, link: Link, then: str
) -> None:
    task = await start(acq.completion(5))
    heir: asyncio.Future[Any] | None = None
    if then == "second task":
        heir = await start(acq.completion(5))
    elif then == "waiter":
        heir = await start(anext_of(acq))
    link.qp.post_recv(None, wr_id=5)
    link.bring()
    assert acq.poll() == []  # it is in the claim now, and the task has not run
    await cancel(task)
    if heir is None:
        heir = asyncio.ensure_future(acq.completion(5) if then == "completion" else anext_of(acq))
    assert (await heir).wr_id == 5
    assert acq.poll() == []


@pytest.mark.parametrize("wr_id", [5.5, 5.0, True, False, "5", None, b"5", -1, 1 << 64], ids=repr)
async def test_completion_refuses_what_is_no_wr_id(acq: AsyncCQ, link: Link, wr_id: Any) -> None:
    error, words = (ValueError, f"wr_id is {wr_id}") if type(wr_id) is int else (TypeError, None)
    for qp in (None, link.qp):
        with pytest.raises(error, match=words):
            await acq.completion(wr_id, qp=qp)


async def test_completion_refuses_a_qp_whose_completions_never_come(
    acq: AsyncCQ, link: Link
) -> None:
    with pytest.raises(TypeError, match="qp must be a QP"):
        await acq.completion(5, qp=link.a)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sends and receives on another CQ"):
        await acq.completion(5, qp=link.b.qp)
    with pytest.raises(TypeError, match="qp must be a QP, not an SRQ.*wait\\(\\) or completion"):
        await acq.completion(5, qp=SRQ(link.a.pd, 4))  # type: ignore[arg-type]
    link.qp.close()
    with pytest.raises(ClosedError):
        await acq.completion(5, qp=link.qp)


async def test_the_completions_of_an_srq_are_awaited_and_its_receives_are_posted_there(
    ctx: Context,
) -> None:
    a, b, srq = connected_by_srq(ctx)
    async with AsyncCQ(a.rcq) as acq, AsyncCQ(a.scq) as sent:
        with pytest.raises(TypeError, match="qp must be a QP, not an SRQ"):
            await acq.recv(srq, a.mr[0:64])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="receives from its SRQ: post there"):
            await acq.recv(a.qp, a.mr[0:64])
        for wr_id in (1, 2):
            srq.post_recv(a.mr[0:64], wr_id=wr_id)
        second = await start(acq.completion(2))
        first = await start(acq.completion(1, qp=a.qp))
        for task, wr_id in ((first, 1), (second, 2)):
            b.qp.post_send(b.mr[0:8])
            assert (await task).wr_id == wr_id
        b.qp.post_recv(b.mr[0:8])
        assert (await sent.send(a.qp, a.mr[0:8])).ok
        assert srq.outstanding == 0


async def test_a_send_of_a_qp_whose_receive_from_an_srq_has_failed_is_refused(
    ctx: Context,
) -> None:
    other = Endpoint(ctx, QPType.RC)  # made before them, and in no error
    a, b, srq = connected_by_srq(ctx)
    async with AsyncCQ(a.rcq) as acq, AsyncCQ(a.scq) as sent:
        b.qp.post_recv(b.mr[0:8])
        assert (await sent.send(a.qp, a.mr[0:8])).ok
        srq.post_recv(a.mr[0:4], wr_id=1)
        short = await start(acq.completion(1))
        b.qp.post_send(b.mr[0:8])
        assert not (await short).ok
        # Soft-iWARP reports the failure as well, and the report is what the task is told.
        with pytest.raises((VerbsError, AsyncEventError), match="is in ERR|reports QP_FATAL"):
            await sent.send(a.qp, a.mr[0:8])
    other.close()
