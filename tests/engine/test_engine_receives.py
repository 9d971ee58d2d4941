# SPDX-License-Identifier: MIT
"""A receive whose task gave up: the next one of the same memory takes its place, and its message.

Each `bring(imm=i)` is a message with that number; it is received, in the oldest receive that is
posted, when it returns.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import (
    CHOSEN,
    Link,
    beside,
    cancel,
    eventually,
    number_of,
    outstanding,
    start,
    the_first_done,
    tick,
)

from cqnotify import ClosedError, CompletionError, QPState, VerbsError, WCOpcode
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.link(recv=True)

Memory = Callable[[Link], Any]
MEMORY: dict[str, Memory] = {
    "a slice": lambda link: link.a.mr[64:128],
    "an MR": lambda link: link.a.mr,
    "two slices": lambda link: [link.a.mr[0:8], link.a.mr[64:128]],
    "none": lambda link: None,
}


@pytest.fixture(params=MEMORY)
def memory(request: pytest.FixtureRequest) -> Memory:
    return MEMORY[request.param]


async def abandon(acq: AsyncCQ, link: Link, sg: Any, wr_id: int | None = None) -> None:
    """A receive that is posted, and whose task was cancelled."""
    posted = link.qp.outstanding_recvs
    task = await start(acq.recv(link.qp, sg, wr_id=wr_id))
    assert link.qp.outstanding_recvs == posted + 1
    await cancel(task)
    assert link.qp.outstanding_recvs == posted + 1


async def test_one_whose_task_gave_up_shows_that(acq: AsyncCQ, link: Link) -> None:
    call = acq.recv(link.qp, link.into)
    task = await start(call)
    assert repr(call).endswith(", posted>")
    await cancel(task)
    assert repr(call).endswith(", abandoned>")


@pytest.mark.link(max_recv_wr=4, recv=True)
async def test_many_that_time_out_do_not_fill_the_queue(
    acq: AsyncCQ, link: Link, memory: Memory
) -> None:
    for _ in range(3 * link.qp.max_recv_wr):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(acq.recv(link.qp, memory(link)), 0.001)
        assert outstanding(link.qp) == (0, 1)
    received = await start(acq.recv(link.qp, memory(link)))
    assert outstanding(link.qp) == (0, 1)
    link.bring(imm=5)
    assert number_of(await received) == 5
    assert outstanding(link.qp) == (0, 0)
    assert acq.stats.wakeups == 1


@pytest.mark.link(max_recv_wr=4, recv=True)
async def test_a_message_between_two_calls_is_returned_by_the_second(
    acq: AsyncCQ, link: Link, memory: Memory
) -> None:
    for imm in range(3 * link.qp.max_recv_wr):
        await abandon(acq, link, memory(link))
        link.bring(imm=imm)
        assert number_of(await acq.recv(link.qp, memory(link))) == imm
        assert outstanding(link.qp) == (0, 0)


async def test_a_message_between_two_calls_that_the_loop_has_seen_is_returned_by_the_second(
    acq: AsyncCQ, link: Link
) -> None:
    """Another task waits for something else, so the loop takes what comes from the CQ."""
    other = await start(acq.completion(99))
    await abandon(acq, link, link.into)
    link.bring(imm=5)
    while outstanding(link.qp) != (0, 0):
        await asyncio.sleep(0)
    assert outstanding(link.qp) == (0, 0)
    assert number_of(await acq.recv(link.qp, link.into)) == 5
    assert outstanding(link.qp) == (0, 0)
    await cancel(other)


@pytest.mark.parametrize("when", ["not seen", "woken"])
async def test_a_message_at_the_moment_of_the_cancel_is_returned_by_the_next_call(
    acq: AsyncCQ, link: Link, when: str
) -> None:
    for imm in range(3):
        task = await start(acq.recv(link.qp, link.into))
        link.bring(imm=imm)
        if when == "woken":
            assert acq.poll() == []  # it is the task's now, which has not run
        await cancel(task)
        assert number_of(await acq.recv(link.qp, link.into)) == imm
        assert outstanding(link.qp) == (0, 0)


async def test_a_message_whose_receive_gave_up_is_handed_out_once(acq: AsyncCQ, link: Link) -> None:
    given_up = await start(acq.recv(link.qp, link.into, wr_id=3))
    claim = await start(acq.completion(3))
    link.bring(imm=5)
    assert acq.poll() == []  # it is the receive's, whose task has not run
    await cancel(given_up)
    assert number_of(await claim) == 5
    assert acq.poll() == []
    assert acq.stats.completions == 1


async def test_one_of_other_memory_is_posted_anew(acq: AsyncCQ, link: Link) -> None:
    here, there, longer = link.a.mr[64:128], link.a.mr[128:192], link.a.mr[64:192]
    await abandon(acq, link, here)
    for i, sg in enumerate((there, longer)):
        task = await start(acq.recv(link.qp, sg))
        assert outstanding(link.qp) == (0, i + 2)
        await cancel(task)
    for imm in range(3):
        link.bring(imm=imm)
    assert outstanding(link.qp) == (0, 3), "nobody has looked"
    assert number_of(await acq.recv(link.qp, longer)) == 2
    assert number_of(await acq.recv(link.qp, here)) == 0
    assert number_of(await acq.recv(link.qp, there)) == 1
    assert outstanding(link.qp) == (0, 0)


async def test_one_whose_second_piece_is_another_is_posted_anew(acq: AsyncCQ, link: Link) -> None:
    mr = link.a.mr
    pieces = [[mr[0:8], mr[64:128]], [mr[0:8], mr[128:192]], [mr[0:8], mr[64:120]]]
    for i, sg in enumerate(pieces):
        await abandon(acq, link, sg)
        assert outstanding(link.qp) == (0, i + 1)
    for imm in range(3):
        link.bring(imm=imm)
    for i in (2, 0, 1):
        assert number_of(await acq.recv(link.qp, pieces[i])) == i
    assert outstanding(link.qp) == (0, 0)


async def test_one_of_the_same_memory_on_another_qp_is_posted_anew(
    acq: AsyncCQ, link: Link
) -> None:
    other = beside(link)
    await abandon(acq, link, link.into)
    task = await start(acq.recv(other.qp, link.into))
    assert (outstanding(link.qp), outstanding(other.qp)) == ((0, 1), (0, 1))
    other.bring(imm=2)
    assert number_of(await task) == 2
    link.bring(imm=1)
    assert number_of(await acq.recv(link.qp, link.into)) == 1


async def test_one_that_is_awaited_is_not_taken_over(acq: AsyncCQ, link: Link) -> None:
    tasks = [await start(acq.recv(link.qp, link.into)) for _ in range(2)]
    assert outstanding(link.qp) == (0, 2)
    await cancel(tasks.pop())
    tasks.append(await start(acq.recv(link.qp, link.into)))
    tasks.append(await start(acq.recv(link.qp, link.into)))
    assert outstanding(link.qp) == (0, 3)
    for imm in range(3):
        link.bring(imm=imm)
        assert await the_first_done(tasks) is tasks[0]
        assert number_of(tasks.pop(0).result()) == imm


@pytest.mark.parametrize("when", ["before", "after"])
async def test_of_two_that_were_cancelled_the_first_one_goes_first(
    acq: AsyncCQ, link: Link, when: str
) -> None:
    """The messages come before the next calls, or after."""
    tasks = [await start(acq.recv(link.qp, link.into)) for _ in range(3)]
    for task in reversed(tasks):
        await cancel(task)
    assert outstanding(link.qp) == (0, 3)
    if when == "before":
        for imm in range(3):
            link.bring(imm=imm)
        assert [number_of(await acq.recv(link.qp, link.into)) for _ in range(3)] == [0, 1, 2]
    else:
        tasks = [await start(acq.recv(link.qp, link.into)) for _ in range(3)]
        assert outstanding(link.qp) == (0, 3)
        for imm in range(3):
            link.bring(imm=imm)
            assert await the_first_done(tasks) is tasks[0]
            assert number_of(tasks.pop(0).result()) == imm
    assert outstanding(link.qp) == (0, 0)


async def test_one_that_has_come_goes_before_one_that_is_still_posted(
    acq: AsyncCQ, link: Link
) -> None:
    for task in [await start(acq.recv(link.qp, link.into)) for _ in range(2)]:
        await cancel(task)
    link.bring(imm=0)
    assert number_of(await acq.recv(link.qp, link.into)) == 0
    second = await start(acq.recv(link.qp, link.into))
    assert outstanding(link.qp) == (0, 1)
    link.bring(imm=1)
    assert number_of(await second) == 1


async def abandoned_whose_message_was_kept(
    acq: AsyncCQ, link: Link, sg: Any, imm: int, wr_id: int | None = None
) -> None:
    """Another task lets the loop take what comes from the CQ."""
    other = await start(acq.completion(99))
    await abandon(acq, link, sg, wr_id)
    link.bring(imm=imm)
    await eventually(lambda: outstanding(link.qp) == (0, 0))
    await cancel(other)


async def test_those_whose_messages_others_got_are_forgotten_by_and_by(
    acq: AsyncCQ, link: Link
) -> None:
    """Each holds its QP until then. Those whose message nobody got, or is yet to come, stay."""
    await abandoned_whose_message_was_kept(acq, link, link.into, imm=0)
    before = sys.getrefcount(link.qp)
    for i in range(1, 61):
        await abandoned_whose_message_was_kept(acq, link, link.a.mr[i : i + 8], i, wr_id=i)
        assert number_of(await acq.completion(i)) == i
        assert sys.getrefcount(link.qp) - before < 30
    await abandon(acq, link, link.a.mr[128:136])
    link.bring(imm=99)
    assert number_of(await acq.recv(link.qp, link.a.mr[128:136])) == 99
    assert number_of(await acq.recv(link.qp, link.into)) == 0
    assert acq.poll() == []


async def test_one_whose_message_was_kept_does_not_keep_its_asynccq(link: Link) -> None:
    acq = AsyncCQ(link.a.rcq)
    gone = weakref.ref(acq)
    await abandoned_whose_message_was_kept(acq, link, link.into, imm=0)
    del acq
    gc.collect()
    assert gone() is None
    assert number_of(link.a.rcq.poll()[0]) == 0


# ---- with a wr_id ---------------------------------------------------------------------------


async def test_one_with_a_wr_id_is_taken_over_by_one_of_that_wr_id(
    acq: AsyncCQ, link: Link
) -> None:
    await abandon(acq, link, link.into, wr_id=5)
    received = await start(acq.recv(link.qp, link.into, wr_id=5))
    assert outstanding(link.qp) == (0, 1)
    link.bring(imm=1)
    wc = await received
    assert (wc.wr_id, number_of(wc)) == (5, 1)
    await abandon(acq, link, link.into, wr_id=5)
    link.bring(imm=2)
    wc = await acq.recv(link.qp, link.into, wr_id=5)
    assert (wc.wr_id, number_of(wc)) == (5, 2)
    assert outstanding(link.qp) == (0, 0)


@pytest.mark.parametrize("wr_id", [None, 6])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_one_with_a_wr_id_stays_for_who_asks_for_it(
    acq: AsyncCQ, link: Link, wr_id: int | None, when: str
) -> None:
    await abandon(acq, link, link.into, wr_id=5)
    if when == "before":
        link.bring(imm=1)
    other = await start(acq.recv(link.qp, link.into, wr_id=wr_id))
    if when == "after":
        assert outstanding(link.qp) == (0, 2)
        link.bring(imm=1)
    wc = await acq.completion(5)
    assert (wc.wr_id, number_of(wc)) == (5, 1)
    await tick()
    assert not other.done()
    link.bring(imm=2)
    assert number_of(await other) == 2
    assert outstanding(link.qp) == (0, 0)


async def test_one_without_a_wr_id_is_never_returned_as_one_with_it(
    acq: AsyncCQ, link: Link
) -> None:
    await abandon(acq, link, link.into)
    with_id = await start(acq.recv(link.qp, link.into, wr_id=5))
    without = await start(acq.recv(link.qp, link.into))
    link.bring(imm=1)
    link.bring(imm=2)
    assert (await with_id).wr_id == 5
    assert {number_of(await with_id), number_of(await without)} == {1, 2}


# ---- what ends it ---------------------------------------------------------------------------


@pytest.mark.parametrize("wr_id", [None, 5])
@pytest.mark.parametrize("woken", [False, True])
async def test_who_waits_for_anything_gets_the_message_of_a_cancelled_one(
    acq: AsyncCQ, link: Link, wr_id: int | None, woken: bool
) -> None:
    if woken:
        task = await start(acq.recv(link.qp, link.into, wr_id=wr_id))
        link.bring(imm=1)
        assert acq.poll() == []  # it is the task's now, which has not run
        await cancel(task)
        (wc,) = await acq.wait()
    else:
        await abandon(acq, link, link.into, wr_id=wr_id)
        waiter = await start(acq.wait())
        link.bring(imm=1)
        (wc,) = await waiter
    assert (wc.opcode, number_of(wc), wc.qp_num) == (WCOpcode.RECV, 1, link.qp.qp_num)
    assert wc.wr_id == wr_id or (wr_id is None and wc.wr_id >= CHOSEN)
    assert outstanding(link.qp) == (0, 0)


@pytest.mark.not_on_iwarp("siw knows no RESET")
async def test_one_that_was_reset_away_is_not_waited_for(acq: AsyncCQ, link: Link) -> None:
    await abandon(acq, link, link.into)
    link.qp.modify(qp_state=QPState.RESET)
    link.reconnect()
    received = await start(acq.recv(link.qp, link.into))
    assert outstanding(link.qp) == (0, 1)
    link.bring(imm=1)
    assert number_of(await received) == 1


async def test_one_that_was_flushed_ends_the_next_call(acq: AsyncCQ, link: Link) -> None:
    await abandon(acq, link, link.into)
    link.qp.modify(qp_state=QPState.ERR)
    with pytest.raises((CompletionError, VerbsError)):
        await acq.recv(link.qp, link.into)
    while outstanding(link.qp) != (0, 0):
        acq.poll()
        await asyncio.sleep(0)
    acq.poll()


@pytest.mark.not_on_iwarp("closing a QP flushes its receives first")
async def test_the_close_of_its_qp_ends_who_took_it_over(acq: AsyncCQ, link: Link) -> None:
    await abandon(acq, link, link.into)
    received = await start(acq.recv(link.qp, link.into))
    link.qp.close()
    with pytest.raises(ClosedError):
        await received


async def test_one_that_is_over_can_be_part_of_a_cycle(acq: AsyncCQ, link: Link) -> None:
    """Its list of pieces is freed once."""
    for imm in range(20):
        call = acq.recv(link.qp, [link.a.mr[0:8], link.a.mr[64:128]])
        received = await start(call)
        link.bring(imm=imm)
        assert number_of(await received) == imm
        cycle: list[object] = [call]
        cycle.append(cycle)
        del call, received
        await tick()  # the loop holds the task until then
        del cycle
        gc.collect()
