# SPDX-License-Identifier: MIT
"""A CQ beside its AsyncCQ, and one AsyncCQ after another: to whom the completions go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import (
    Lane,
    Link,
    MakeLink,
    cancel,
    ids,
    number_of,
    start,
    tick,
    waiting,
    wake,
)

from cqnotify import (
    CQ,
    QP,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    VerbsError,
    WCArray,
    WCExFlags,
    WCStatus,
    WorkCompletion,
)
from cqnotify.aio import AsyncCQ

SECONDS = 20

# ---- the CQ's own methods ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "forget"])
def test_the_bulk_forms_of_polling_are_refused_while_it_has_an_asynccq(
    lane: Lane, end: str
) -> None:
    acq = AsyncCQ(lane.cq)
    lane.send(2)
    wcs = WCArray(4)
    for call in (lane.cq.poll_ids, lambda: lane.cq.poll_into(wcs)):
        with pytest.raises(ValueError, match=r"go to its AsyncCQ: use poll\(\)"):
            call()
    assert lane.cq.stats.polls == 0
    if end == "close":
        acq.close()
    del acq
    gc.collect()
    assert lane.cq.poll_ids(1) == [0]
    assert lane.cq.poll_into(wcs) == 1
    assert wcs[0].wr_id == 1


@pytest.mark.link(recv=True)
async def test_what_is_held_is_returned_without_another_poll(acq: AsyncCQ, link: Link) -> None:
    for wr_id in range(3):
        link.qp.post_recv(link.into, wr_id=wr_id)
    link.bring(3)
    assert ids(acq.poll(1)) == [0]
    assert ids(acq.poll(1) + acq.poll(1)) == [1, 2]
    assert acq.stats.polls == 1
    assert acq.poll() == []
    assert link.a.rcq._spin is None, "nothing was kept for spinning"


async def test_the_polls_of_the_cq_and_of_its_asynccq_are_one(acq: AsyncCQ, lane: Lane) -> None:
    lane.send(4)
    assert ids(lane.cq.poll(1)) == [0]
    assert ids(acq.poll(1)) == [1]
    assert ids(await acq.wait(1)) == [2]
    assert ids(lane.cq.poll()) == [3]
    assert acq.poll() == lane.cq.poll() == []


async def test_a_poll_beside_one_that_awaits_a_wr_id_takes_the_others(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = await start(acq.completion(1))
    lane.send(3)
    assert ids(lane.cq.poll()) == [0, 2]
    assert (await task).wr_id == 1


def test_what_is_closed_says_so(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    lane.close()
    lane.cq.close()
    for call in (lane.cq.poll, acq.poll):
        with pytest.raises(ClosedError, match="CQ"):
            call()
    acq.close()
    with pytest.raises(ClosedError, match="AsyncCQ"):
        acq.poll()
    with pytest.raises(ClosedError):
        AsyncCQ(lane.cq)


def test_a_program_can_wait_for_the_events_of_a_cq_that_has_an_idle_asynccq(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    channel = lane.cq.channel
    assert channel is not None
    assert lane.cq.arm_if_empty()
    assert channel.try_get_event() is None
    lane.send()
    assert channel.get_event(SECONDS) is lane.cq
    assert ids(lane.cq.poll()) == [0]
    lane.cq.ack()
    acq.close()


async def test_an_event_that_the_program_read_is_the_programs_to_acknowledge(lane: Lane) -> None:
    lane.cq.req_notify()
    lane.send()
    assert lane.cq.channel is not None
    assert lane.cq.channel.get_event() is lane.cq
    async with AsyncCQ(lane.cq) as acq:
        await acq.wait()
        await wake(acq, lane, 40)  # more than are acknowledged at once
        assert lane.cq.unacked < 40
    assert lane.cq.unacked == 1
    lane.cq.ack()


async def test_what_the_program_has_acknowledged_is_not_acknowledged_again(lane: Lane) -> None:
    """Of the events that the engine reads, it acknowledges 32 at once."""
    async with AsyncCQ(lane.cq) as acq:
        await wake(acq, lane, 31)
        assert lane.cq.unacked == 31
        lane.cq.ack()
        await wake(acq, lane)
        assert (lane.cq.stats.events, lane.cq.stats.acked, lane.cq.unacked) == (32, 32, 0)


async def test_completions_of_an_extended_cq_have_their_fields(
    ctx: Context, make_link: MakeLink
) -> None:
    """As poll() gives them, whatever is awaited."""
    link = make_link()
    cq = CQ(ctx, 64, channel=link.a.channel, wc_flags=WCExFlags(0x7F))
    link.qp = QP(link.a.pd, QPType.RC, send_cq=link.a.scq, recv_cq=cq)
    link.b.qp.modify(qp_state=QPState.RESET)
    link.qp.connect(link.b.qp.address())
    link.b.qp.connect(link.qp.address())
    calls: list[Callable[[AsyncCQ], Awaitable[Any]]] = [
        lambda acq: acq.recv(link.qp, link.into, wr_id=7),
        lambda acq: acq.wait(),
        lambda acq: acq.completion(7),
    ]
    async with AsyncCQ(cq) as acq:
        for call in calls:
            task = await start(call(acq))
            if link.qp.outstanding_recvs == 0:
                link.qp.post_recv(link.into, wr_id=7)
            link.bring(imm=3)
            got = await task
            wc = got[0] if isinstance(got, list) else got
            assert (wc.wr_id, number_of(wc)) == (7, 3)
            assert wc.qp_num == link.qp.qp_num


# ---- whose it is ---------------------------------------------------------------------------


def test_a_cq_has_one_asynccq_at_a_time(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    for _ in range(2):
        with pytest.raises(ValueError, match="this CQ has an open AsyncCQ already"):
            AsyncCQ(lane.cq)
    with pytest.raises((ValueError, RuntimeError)):
        acq.__init__(lane.cq)  # type: ignore[misc]
    lane.send()
    assert ids(acq.poll()) == [0]
    acq.close()
    with contextlib.closing(AsyncCQ(lane.cq)) as another:
        lane.send()
        assert ids(another.poll()) == [1]


@pytest.mark.parametrize("wrong", [None, 7, "cq"])
def test_an_asynccq_is_of_a_cq(wrong: Any) -> None:
    with pytest.raises(TypeError, match="cq must be a CQ"):
        AsyncCQ(wrong)


def test_one_that_is_forgotten_unclosed_leaves_its_cq(lane: Lane) -> None:
    """Also to the weak reference's callback, which runs while the AsyncCQ is deallocated."""
    acq = AsyncCQ(lane.cq)
    lane.send(3)
    assert ids(acq.poll(1)) == [0]
    heard: list[int] = []
    following: list[AsyncCQ] = []

    def forgotten(_: object) -> None:
        heard.extend(ids(lane.cq.poll(1)))
        following.append(AsyncCQ(lane.cq))

    gone = weakref.ref(acq, forgotten)
    del acq
    gc.collect()
    assert gone() is None
    assert heard == [1]
    assert ids(following.pop().poll()) == [2]


def test_a_cycle_of_both_is_collected(ctx: Context, channel: CompletionChannel) -> None:
    cq = CQ(ctx, 4, channel=channel)
    acq = AsyncCQ(cq)
    cq.user_data = acq
    gone = weakref.ref(cq), weakref.ref(acq)
    cq.close()
    del cq, acq
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


# ---- one after another ---------------------------------------------------------------------


async def test_a_closed_one_that_is_polled_leaves_those_who_wait_in_the_next_alone(
    lane: Lane,
) -> None:
    old = AsyncCQ(lane.cq)
    old.close()
    async with AsyncCQ(lane.cq) as new:
        task = await start(new.wait())
        with pytest.raises(ClosedError):
            old.poll()
        lane.send()
        assert ids(await asyncio.wait_for(task, SECONDS)) == [0]


async def test_the_next_one_need_not_arm_again_when_a_task_of_a_closed_one_is_cancelled(
    lane: Lane,
) -> None:
    """What ended the task's sleep was no lost event."""
    old = AsyncCQ(lane.cq)
    task = await start(old.wait())
    old.close()
    task.cancel()
    async with AsyncCQ(lane.cq) as new:
        sleeper = await start(new.wait())
        assert task.cancelled()
        assert lane.cq.stats.arms == 1
        lane.send()
        assert ids(await asyncio.wait_for(sleeper, SECONDS)) == [0]


async def closed_with_a_completion(lane: Lane) -> asyncio.Task[WorkCompletion]:
    """A task of a closed one, which has its completion, and is cancelled before it goes on."""
    old = AsyncCQ(lane.cq)
    task = await start(old.completion(0))
    lane.send()
    assert old.poll() == []
    assert lane.cq.channel.get_event(timeout=0) is lane.cq
    lane.cq.ack()
    old.close()
    task.cancel()
    return task


@pytest.mark.parametrize("call", ["wait", "completion"])
async def test_what_a_task_of_a_closed_one_was_given_goes_to_those_who_wait_in_the_next(
    lane: Lane, call: str
) -> None:
    task = await closed_with_a_completion(lane)
    async with AsyncCQ(lane.cq) as new, asyncio.timeout(SECONDS):
        got = await new.wait() if call == "wait" else [await new.completion(0)]
        assert ids(got) == [0]
        assert new.stats.wakeups == 1, "it slept"
    assert task.cancelled()


async def test_what_a_task_of_a_closed_one_was_given_wakes_a_thread(lane: Lane) -> None:
    task = await closed_with_a_completion(lane)
    lane.cq.req_notify()
    assert lane.cq.poll() == []
    with waiting(lane.cq.channel.get_event) as waiter:
        await asyncio.wait([task])
        assert waiter.join() is lane.cq
    lane.cq.ack()
    assert ids(lane.cq.poll()) == [0]


async def test_what_a_task_of_a_closed_one_was_given_raises_no_event_for_which_nobody_armed(
    lane: Lane,
) -> None:
    task = await closed_with_a_completion(lane)
    await asyncio.wait([task])
    assert lane.cq.channel.try_get_event() is None
    assert ids(lane.cq.poll()) == [0]


async def test_what_its_tasks_have_left_becomes_rows_without_gaps(lane: Lane) -> None:
    """And what comes then goes to where those were."""
    async with AsyncCQ(lane.cq) as acq:
        lane.send(5)
        assert (await acq.completion(2)).ok
        assert ids(acq.poll(1)) == [0]
    rows = WCArray(2)
    assert lane.cq.poll_into(rows) == 2
    assert ids(list(rows)) == [1, 3]
    lane.send(2)
    rows = WCArray(8)
    assert lane.cq.poll_into(rows) == 3
    assert ids(list(rows)) == [4, 5, 6]


async def test_counters_stay_what_they_were_when_it_is_closed(lane: Lane) -> None:
    old = AsyncCQ(lane.cq)
    lane.send()
    await old.wait()
    assert old.stats[-4:] == (0, 0, 0, 0), "nobody slept"
    for _ in range(5):
        task = await start(old.wait())
        lane.send()
        await task
    assert old.stats[-4:] == (5, 1, 0, 0)
    old.close()
    assert old.stats[-4:] == (5, 1, 0, 0)
    async with AsyncCQ(lane.cq) as new:
        task = await start(new.wait())
        lane.send(3)
        await task
        assert new.stats.wakeups == 1
    assert old.stats[-4:] == (5, 1, 0, 0)


# ---- the end, in any order -----------------------------------------------------------------

ALL = ("acq", "qp", "cq", "channel", "loop")
WAITS: dict[str, Callable[[AsyncCQ, Link], Awaitable[Any]]] = {
    "wait": lambda acq, link: acq.wait(),
    "completion": lambda acq, link: acq.completion(5),
    "completion of the QP": lambda acq, link: acq.completion(5, qp=link.qp),
    "recv": lambda acq, link: acq.recv(link.qp, link.into),
}


@pytest.mark.not_on_iwarp("closing a QP flushes its receives first")
@pytest.mark.parametrize("order", list(itertools.permutations(ALL)), ids="-".join)
def test_everything_can_be_closed_in_any_order_under_tasks_that_wait(
    make_link: MakeLink, order: tuple[str, ...]
) -> None:
    """What has something open that it needs refuses; the second round closes it."""
    link = make_link()
    loop = asyncio.new_event_loop()
    acq = AsyncCQ(link.a.rcq)

    async def begin(acq: AsyncCQ) -> list[asyncio.Future[Any]]:
        return [await start(call(acq, link)) for call in WAITS.values()]

    tasks = loop.run_until_complete(begin(acq))
    things: dict[str, Any] = {
        "acq": acq,
        "qp": link.qp,
        "cq": link.a.rcq,
        "channel": link.a.rcq.channel,
        "loop": loop,
    }
    for name in order * 2:
        with contextlib.suppress(VerbsError):
            things[name].close()
        if not loop.is_closed():
            loop.run_until_complete(tick())
    assert all(thing.closed for name, thing in things.items() if name not in ("loop", "channel"))
    if order.index("loop") > order.index("acq"):
        assert all(isinstance(task.exception(), ClosedError) for task in tasks)
    gone = weakref.ref(acq)
    things.clear()
    tasks.clear()
    del acq
    gc.collect()
    assert gone() is None
    assert link.a.mr.close() is None  # type: ignore[func-returns-value]


# ---- queue pairs that give up --------------------------------------------------------------


async def test_both_asynccqs_of_a_qp_are_told_that_it_was_moved_to_err(make_link: MakeLink) -> None:
    """Nothing raises an event where the completions come before the arm: so they look."""
    link = make_link()
    async with AsyncCQ(link.a.scq) as sends, AsyncCQ(link.a.rcq) as receives:
        link.qp.post_recv(link.into, wr_id=1)
        tasks = [
            await start(sends.send(link.qp, link.sg)),
            await start(receives.recv(link.qp, link.into)),
            await start(receives.wait()),
        ]
        link.qp.modify(qp_state=QPState.ERR)
        for task in tasks[:2]:
            error = (await asyncio.wait([task], timeout=SECONDS), task.exception())[1]
            assert getattr(error, "status", None) == WCStatus.WR_FLUSH_ERR
        (wc,) = await tasks[2]
        assert (wc.wr_id, wc.status) == (1, WCStatus.WR_FLUSH_ERR)


async def test_claims_of_a_qp_that_leave_in_any_order_leave_the_others(make_link: MakeLink) -> None:
    link = make_link()
    async with AsyncCQ(link.a.rcq) as acq:
        for order in itertools.permutations(range(3)):
            tasks = [await start(acq.completion(i, qp=link.qp)) for i in range(3)]
            for i in order[:2]:
                await cancel(tasks[i])
            tasks.append(await start(acq.completion(3, qp=link.qp)))
            for i in (order[2], 3):
                link.qp.post_recv(None, wr_id=i)
                link.bring()
                assert (await tasks[i]).wr_id == i
        tasks = [await start(acq.completion(i, qp=link.qp)) for i in range(3)]
        for i in (1, 2):
            await cancel(tasks[i])
        tasks.append(await start(acq.completion(3, qp=link.qp)))
        link.qp.close()
        for i in (0, 3):
            with pytest.raises(ClosedError):
                await tasks[i]


@pytest.mark.not_on_iwarp("siw takes transitions that are not allowed")
async def test_nobody_is_told_of_a_change_that_failed_or_drops_nothing(make_link: MakeLink) -> None:
    link = make_link()
    async with AsyncCQ(link.a.rcq) as acq:
        task = await start(acq.completion(5, qp=link.qp))
        with pytest.raises(VerbsError):
            link.qp.modify(qp_state=QPState.INIT, pkey_index=0, port_num=1)
        with pytest.raises((TypeError, ValueError)):
            link.qp.modify(qp_state=QPState.RESET, nonsense=1)  # type: ignore[call-arg]
        link.qp.modify(qp_state=QPState.SQD)
        link.b.qp.modify(qp_state=QPState.ERR)
        await tick()
        assert not task.done()


@pytest.mark.not_on_iwarp("closing a QP flushes its receives first")
@pytest.mark.parametrize("victim", ["qp", "ctx"])
async def test_a_callback_that_a_qp_is_closed_may_close_everything(
    ctx: Context, make_link: MakeLink, victim: str
) -> None:
    link = make_link()
    async with AsyncCQ(link.a.rcq) as acq:
        tasks = [await start(call(acq, link)) for call in WAITS.values()]
        link.qp.add_close_callback(link.a.qp.close if victim == "qp" else ctx.close)
        link.qp.close()
        for task in tasks[2:]:
            with pytest.raises(ClosedError):
                await task
        assert link.qp.closed
