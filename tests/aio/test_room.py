# SPDX-License-Identifier: MIT
"""Operations that wait for room in a queue, and queue pairs that die under them."""

from __future__ import annotations

import asyncio
import errno
import threading
import types
import weakref
from collections.abc import Generator
from typing import Any

import pytest
from flavors import Flavor
from support import Link, Scenario, cancel, eventually, fill, ids, start, tick

from cqnotify import (
    MR,
    ClosedError,
    CompletionError,
    QPState,
    SendFlags,
    VerbsError,
    WorkCompletion,
)
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.link(max_send_wr=4, max_recv_wr=4)

# ---- room in the queues ---------------------------------------------------------------------


async def test_a_late_comer_does_not_overtake_who_waits_for_room(acq: AsyncCQ, link: Link) -> None:
    full = await fill(acq, link)
    waiting = await start(acq.send(link.qp, link.sg, imm_data=1))
    link.take(1)
    assert link.arrived(1) == [None]
    late = asyncio.ensure_future(acq.send(link.qp, link.sg, imm_data=2))
    await full[0]
    await tick()
    assert link.qp.outstanding_sends == link.qp.max_send_wr, "one of the two was posted"
    link.take(len(full) + 1)
    await asyncio.gather(*full, waiting, late)
    assert link.arrived(len(full) + 1)[-2:] == [1, 2]


async def test_who_begins_when_memory_is_let_go_does_not_overtake_who_waits_for_room(
    acq: AsyncCQ, link: Link
) -> None:
    """The completion that frees a slot lets go of the memory of its send, before the slot is
    filled."""
    late: list[asyncio.Future[Any]] = []

    def begin(_: object) -> None:
        call = acq.send(link.qp, link.sg, imm_data=2)
        late.append(asyncio.ensure_future(going_on(call, call.send(None))))

    mr = MR(link.a.pd, 8)
    link.qp.post_send(mr, wr_id=0)
    gone = weakref.ref(mr, begin)
    del mr
    full = [await start(acq.send(link.qp, link.sg)) for _ in range(link.qp.max_send_wr - 1)]
    waiting = await start(acq.send(link.qp, link.sg, imm_data=1))
    link.take(1)
    await eventually(lambda: bool(late))
    assert gone() is None
    link.take(len(full) + 2)
    await asyncio.gather(*full, waiting, *late)
    assert link.arrived(len(full) + 3)[-2:] == [1, 2]
    assert ids(acq.poll()) == [0]


@types.coroutine
def going_on(call: Any, yielded: Any) -> Generator[Any, Any, object]:
    """The rest of what has made its first step."""
    try:
        while True:
            value = yield yielded
            yielded = call.send(value)
    except StopIteration as e:
        return e.value


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.link(max_send_wr=8, max_recv_wr=4)
async def test_a_send_queue_has_more_room_than_the_receive_queue(acq: AsyncCQ, link: Link) -> None:
    assert link.qp.max_send_wr > link.qp.max_recv_wr
    full = await fill(acq, link)
    link.take(len(full))
    await asyncio.gather(*full)


@pytest.mark.link(max_send_wr=4, max_recv_wr=8, recv=True)
async def test_a_receive_queue_has_more_room_than_the_send_queue(acq: AsyncCQ, link: Link) -> None:
    room = link.qp.max_recv_wr
    assert room > link.qp.max_send_wr
    tasks = [await start(acq.recv(link.qp, None)) for _ in range(room)]
    assert link.qp.outstanding_recvs == room
    link.bring(room)
    await asyncio.gather(*tasks)


async def test_who_is_cancelled_waiting_for_room_was_never_posted_and_blocks_nobody(
    acq: AsyncCQ, link: Link
) -> None:
    full = await fill(acq, link)
    waiting = [await start(acq.send(link.qp, link.sg, wr_id=i, imm_data=i)) for i in range(3)]
    await cancel(waiting[0])
    link.take(1)
    await full.pop(0)
    await tick()
    assert link.qp.outstanding_sends == link.qp.max_send_wr, "the next one was posted"
    await cancel(waiting[2])
    link.take(len(full) + 1)
    await asyncio.gather(*full, waiting[1])
    assert acq._awaited == 0
    assert acq.poll() == []
    link.take()
    assert (await acq.send(link.qp, link.sg, wr_id=0, imm_data=9)).ok
    assert link.arrived(len(full) + 3) == [None] * (len(full) + 1) + [1, 9]


@pytest.mark.parametrize("flags", [SendFlags.SIGNALED, 0], ids=["signaled", "unsignaled"])
async def test_direct_posts_take_room(acq: AsyncCQ, link: Link, flags: int) -> None:
    room = link.qp.max_send_wr
    first = await start(acq.send(link.qp, link.sg))
    for i in range(room - 1):
        link.qp.post_send(link.sg, wr_id=i, send_flags=flags)
    waiting = await start(acq.send(link.qp, link.sg))
    assert link.qp.outstanding_sends == room
    link.take(1)
    await first
    await tick()
    assert link.qp.outstanding_sends == room, "one went, one came"
    assert not waiting.done()
    link.take(room)
    assert (await waiting).ok
    assert ids(acq.poll()) == (list(range(room - 1)) if flags else [])


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
async def test_a_queue_full_of_unsignaled_sends_works_or_says_why_not(
    acq: AsyncCQ, link: Link
) -> None:
    for _ in range(link.qp.max_send_wr):
        link.qp.post_send(link.sg, send_flags=0)
    tasks = []
    for _ in range(3):
        tasks.append(asyncio.ensure_future(acq.send(link.qp, link.sg)))
        await tick()
    # Some devices take more than they granted. Then they complete.
    link.take(link.qp.max_send_wr + 3)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [e for e in results if isinstance(e, VerbsError)]
    assert all(e.errno == errno.ENOMEM and "SendFlags.SIGNALED" in str(e) for e in refused)
    assert all(isinstance(r, WorkCompletion) and r.ok for r in results if r not in refused)
    link.arrived(link.qp.max_send_wr + 3 - len(refused))
    assert link.b.rcq.poll() == []


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
async def test_a_queue_that_takes_no_more_unsignaled_sends_is_an_error_in_words(
    acq: AsyncCQ, link: Link
) -> None:
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            link.qp.post_send(link.sg, send_flags=0)
    with pytest.raises(VerbsError, match=r"so none will free a slot.* SendFlags\.SIGNALED") as e:
        await acq.send(link.qp, link.sg)
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_post_send")
    assert acq._awaited == 0


# ---- the QP dies ----------------------------------------------------------------------------


async def test_when_a_request_fails_all_who_are_under_way_or_wait_for_room_end(
    acq: AsyncCQ, link: Link
) -> None:
    first = await start(acq.send(link.qp, link.sg))
    bad = await start(acq.write(link.qp, link.sg, link.b.mr.addr, 1))
    rest = [await start(acq.send(link.qp, link.sg)) for _ in range(20)]
    link.take()
    assert (await first).ok
    for task in (bad, *rest):
        with pytest.raises((CompletionError, VerbsError), match=r"ERR\b"):
            await task
    assert link.qp.outstanding_sends == 0
    assert acq._awaited == 0
    with pytest.raises((CompletionError, VerbsError)):
        await acq.send(link.qp, link.sg)


async def test_a_receive_on_a_qp_whose_send_has_failed_is_refused(
    both: Link, out: AsyncCQ, into: AsyncCQ
) -> None:
    task = await start(into.recv(both.qp, None))
    both.bring()
    await task
    with pytest.raises(CompletionError):
        await out.write(both.qp, both.sg, both.b.mr.addr, 1)
    await eventually(lambda: both.qp.state == QPState.ERR)
    with pytest.raises(VerbsError, match="is in ERR"):
        await into.recv(both.qp, None)


@pytest.mark.link(recv=True)
async def test_a_reset_leaves_what_has_completed(acq: AsyncCQ, link: Link) -> None:
    first, second = [await start(acq.recv(link.qp, None)) for _ in range(2)]
    link.bring()
    link.qp.modify(qp_state=QPState.RESET)
    assert (await first).ok
    with pytest.raises(ClosedError):
        await second


async def test_the_qp_is_being_closed_while_operations_wait_for_room(
    link: Link, on: Flavor
) -> None:
    """Completions have made room when the loop looks, and another thread is destroying the QP: none
    of those that waited for room is posted any more."""
    depth = link.qp.max_send_wr
    link.take(depth)
    async with AsyncCQ(link.a.scq) as acq, on.tasks() as start:
        sends = [start(lambda: acq.send(link.qp, link.sg)) for _ in range(3 * depth)]
        await on.tick()
        closing = threading.Thread(target=link.qp.close)
        closing.start()
        while closing.is_alive():
            await on.tick()
        closed = 0
        for send in sends:
            try:
                assert (await send.result()).ok
            except ClosedError:
                closed += 1
        assert closed >= 2 * depth


def test_closing_a_qp_after_the_loop_forgets_what_was_under_way(run: Scenario, link: Link) -> None:
    acq = AsyncCQ(link.a.scq)

    async def scenario() -> None:
        await start(acq.send(link.qp, link.sg))

    run(scenario())
    assert acq._awaited
    link.qp.close()
    assert acq._awaited == 0
    acq.close()
