# SPDX-License-Identifier: MIT
"""Each completion goes to the request that it is of, whatever wr_ids the user gives to others.

What was posted by hand and what is awaited have the same wr_id here, on one QP, at the same time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest
from support import (
    CHOSEN,
    UNSIGNALED,
    Link,
    cancel,
    closes,
    eventually,
    ids,
    number_of,
    outstanding,
    start,
    the_first_done,
    tick,
    wait_completions,
)

from cqnotify import (
    MR,
    ClosedError,
    CompletionError,
    QPState,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)
from cqnotify.aio import AsyncCQ

ID = 7
OTHERS = ["wait", "completion", "completion of the QP"]


async def other(acq: AsyncCQ, link: Link, how: str) -> WorkCompletion:
    """What was posted by hand, in one of the ways to await it."""
    if how == "wait":
        (wc,) = await acq.wait(1)
        return wc
    return await acq.completion(ID, qp=link.qp if how == "completion of the QP" else None)


async def status(call: Awaitable[Any]) -> WCStatus:
    """Of an operation, also where it fails."""
    try:
        await call
    except CompletionError as e:
        return e.status if e.wr_id == ID else WCStatus.GENERAL_ERR
    return WCStatus.SUCCESS


def call(acq: AsyncCQ, link: Link, what: str, wr_id: int | None = ID) -> Awaitable[Any]:
    if what == "send":
        return acq.send(link.qp, link.sg, wr_id=wr_id)
    return acq.recv(link.qp, link.into, wr_id=wr_id)


def complete(link: Link, what: str, imm: int = 0) -> None:
    """The oldest one that is posted."""
    link.take() if what == "send" else link.bring(imm=imm)


# ---- one by hand and one that is awaited ----------------------------------------------------


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("first", ["by hand", "awaited"])
@pytest.mark.parametrize("what", ["send", "recv"])
@pytest.mark.link(one_cq=True)
async def test_of_two_of_a_queue_each_has_its_own_completion_by_their_order(
    acq: AsyncCQ, link: Link, what: str, first: str, how: str
) -> None:
    def post() -> None:
        if what == "send":
            link.qp.post_send(link.sg, wr_id=ID)
        else:
            link.qp.post_recv(link.into, wr_id=ID)

    if first == "by hand":
        post()
    awaited = await start(call(acq, link, what))
    if first == "awaited":
        post()
    by_hand = await start(other(acq, link, how))
    in_order = [awaited, by_hand] if first == "awaited" else [by_hand, awaited]
    for imm, left in enumerate((in_order, in_order[1:])):
        complete(link, what, imm)
        assert await the_first_done(left) is left[0]
        wc = left[0].result()
        assert (wc.ok, wc.wr_id) == (True, ID)
        assert what == "send" or number_of(wc) == imm
    assert outstanding(link.qp) == (0, 0)


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("first", ["by hand", "awaited"])
@pytest.mark.parametrize("fails", ["by hand", "awaited"])
async def test_of_a_send_and_one_that_fails_each_has_its_own_completion(
    acq: AsyncCQ, link: Link, fails: str, first: str, how: str
) -> None:
    """If the first one fails, the second one is flushed."""

    async def awaited() -> WCStatus:
        if fails == "awaited":
            addr, _ = link.remote
            return await status(acq.write(link.qp, link.sg, addr, link.wrong_key, wr_id=ID))
        return await status(acq.send(link.qp, link.sg, wr_id=ID))

    def post() -> None:
        link.fail(ID) if fails == "by hand" else link.qp.post_send(link.sg, wr_id=ID)

    link.qp.post_send(link.sg, send_flags=UNSIGNALED)  # holds up what is behind it
    if first == "by hand":
        post()
    task = await start(awaited())
    if first == "awaited":
        post()
    by_hand = await start(other(acq, link, how))
    link.take(2)
    got = {"awaited": await task, "by hand": (await by_hand).status}
    flushed = first == fails
    (good,) = got.keys() - {fails}
    assert got[fails] is WCStatus.REM_ACCESS_ERR
    assert got[good] is (WCStatus.WR_FLUSH_ERR if flushed else WCStatus.SUCCESS)


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("by_hand", ["receive", "send"])
@pytest.mark.parametrize("fails", [False, True], ids=["success", "flushed"])
@pytest.mark.link(one_cq=True)
async def test_of_a_send_and_a_receive_on_one_cq_each_has_its_own_completion(
    acq: AsyncCQ, link: Link, by_hand: str, how: str, fails: bool
) -> None:
    if by_hand == "receive":
        link.qp.post_recv(link.into, wr_id=ID)
        addr, rkey = link.b.mr.addr, link.wrong_key
        call = (
            acq.write(link.qp, link.sg, addr, rkey, wr_id=ID)
            if fails
            else acq.send(link.qp, link.sg, wr_id=ID)
        )
    else:
        call = acq.recv(link.qp, link.into, wr_id=ID)
    awaited = asyncio.ensure_future(status(call))
    posted = asyncio.ensure_future(other(acq, link, how))
    # Both calls have posted, and nothing has run that could serve them.
    await asyncio.sleep(0)
    if by_hand == "send":
        link.fail(ID) if fails else link.qp.post_send(link.sg, wr_id=ID)
    if not fails:
        link.take()
        link.bring()
    failed, flushed = WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR
    expected = [failed, flushed] if fails else [WCStatus.SUCCESS] * 2
    got = [await awaited, (await posted).status]
    assert got == (expected if by_hand == "receive" else expected[::-1])


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("by_hand", [1, 3])
@pytest.mark.link(max_send_wr=4)
async def test_who_waits_for_room_has_none_of_what_was_posted_before(
    acq: AsyncCQ, link: Link, by_hand: int
) -> None:
    """As soon as it is posted, and those before it have not completed."""
    room = link.qp.max_send_wr
    for _ in range(room):
        link.qp.post_send(link.sg, wr_id=ID)
    sent = await start(acq.send(link.qp, link.sg, wr_id=ID))
    left = room
    while left:
        n = min(by_hand, left)
        link.take(n)
        got: list[WorkCompletion] = []
        while len(got) < n:
            got += await acq.wait()
        assert [wc.ok for wc in got] == [True] * n
        left -= n
        await tick()
        assert not sent.done()
    link.take()
    assert (await sent).ok


# ---- two that are awaited -------------------------------------------------------------------


@pytest.mark.parametrize("what", ["send", "recv"])
@pytest.mark.link(one_cq=True, max_send_wr=2, max_recv_wr=2)
async def test_awaited_ones_of_one_wr_id_complete_in_their_order(
    acq: AsyncCQ, link: Link, what: str
) -> None:
    """Also those that wait for room."""
    room = link.qp.max_send_wr if what == "send" else link.qp.max_recv_wr
    tasks = [await start(call(acq, link, what)) for _ in range(3 * room)]
    for imm in range(3 * room):
        assert sum(outstanding(link.qp)) == min(room, len(tasks))
        complete(link, what, imm)
        assert await the_first_done(tasks) is tasks[0]
        wc = tasks.pop(0).result()
        assert (wc.ok, wc.wr_id) == (True, ID)
        assert what == "send" or number_of(wc) == imm
    assert outstanding(link.qp) == (0, 0)


async def test_one_of_the_wr_id_of_a_cancelled_one_has_its_own_completion(
    acq: AsyncCQ, link: Link
) -> None:
    """That of the cancelled one stays in the queue, since its caller can tell it by the wr_id."""
    await cancel(await start(acq.send(link.qp, link.sg, wr_id=ID)))
    second = await start(acq.send(link.qp, link.sg, wr_id=ID))
    link.take()
    assert ids(await acq.wait()) == [ID]
    await tick()
    assert not second.done()
    link.take()
    assert (await second).ok


@pytest.mark.parametrize("wr_ids", [(None, None), (ID, ID + 1)], ids=["chosen", "own"])
@pytest.mark.parametrize("what", ["send", "recv"])
@pytest.mark.link(one_cq=True)
async def test_what_is_under_way_when_the_asynccq_is_closed_is_for_those_that_poll_the_cq_then(
    link: Link, what: str, wr_ids: tuple[int | None, ...]
) -> None:
    """Also where no caller chose its wr_id. The AsyncCQ goes away while the device goes on."""

    async def closed_under_two() -> weakref.ref[AsyncCQ]:
        async with AsyncCQ(link.a.scq) as acq:
            tasks = [await start(call(acq, link, what, wr_id)) for wr_id in wr_ids]
        for task in tasks:
            with pytest.raises(ClosedError):
                await task
        return weakref.ref(acq)

    gone = await closed_under_two()
    await tick()  # it was the end of the other tasks that woke us, and holds it
    gc.collect()
    assert gone() is None
    assert sum(outstanding(link.qp)) == 2
    link.take(2) if what == "send" else link.bring(2)
    wcs = wait_completions(link.a.scq, 2)
    assert [wc.ok for wc in wcs] == [True, True]
    assert [wc.wr_id if wc.wr_id < CHOSEN else None for wc in wcs] == list(wr_ids)


# ---- what stays pinned ----------------------------------------------------------------------


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("await_them", [False, True], ids=["by hand", "awaited"])
@pytest.mark.link(one_cq=True)
async def test_nothing_is_outstanding_of_one_wr_id_on_one_cq_once_all_was_polled(
    acq: AsyncCQ, link: Link, await_them: bool
) -> None:
    """Signaled and unsignaled sends and receives, with an unsignaled success at the end: nothing
    tells that it is done, until something behind it is."""
    tasks: list[asyncio.Future[Any]] = []
    mrs = [MR(link.a.pd, 8) for _ in range(7)]
    for i, mr in enumerate(mrs):
        if i % 2:
            link.qp.post_send(mr, wr_id=ID, send_flags=UNSIGNALED if i % 3 else 2)
        elif await_them:
            tasks.append(await start(acq.recv(link.qp, mr, wr_id=ID)))
        else:
            link.qp.post_recv(mr, wr_id=ID)
    last = MR(link.a.pd, 8)
    link.qp.post_send(last, wr_id=ID, send_flags=UNSIGNALED)
    assert outstanding(link.qp) == (4, 4)
    link.take(4)
    link.bring(4)
    for task in tasks:
        assert (await task).opcode is WCOpcode.RECV
    got: list[WorkCompletion] = []
    while len(got) < (1 if await_them else 5):
        got += await acq.wait()
    assert [wc.opcode for wc in got].count(WCOpcode.SEND) == 1
    # The second unsignaled one, after the signaled one, and the last.
    assert outstanding(link.qp) == (2, 0)
    assert [closes(mr) for mr in mrs] == [True] * 5 + [False, True]
    assert not closes(last)
    link.take()
    assert (await acq.send(link.qp, link.sg, wr_id=ID)).ok
    assert outstanding(link.qp) == (0, 0)
    assert closes(mrs[5])
    assert closes(last)


@pytest.mark.not_on_iwarp("siw does not flush what is posted on a QP in ERR")
@pytest.mark.link(one_cq=True)
async def test_nothing_is_pinned_when_all_of_one_wr_id_were_flushed(
    acq: AsyncCQ, link: Link
) -> None:
    mrs = [MR(link.a.pd, 8) for _ in range(8)]
    tasks = []
    for mr, post in zip(mrs, itertools.cycle(range(4)), strict=False):
        if post == 0:
            link.qp.post_send(mr, wr_id=ID, send_flags=UNSIGNALED)
        elif post == 1:
            tasks.append(await start(status(acq.send(link.qp, mr, wr_id=ID))))
        elif post == 2:
            link.qp.post_recv(mr, wr_id=ID)
        else:
            tasks.append(await start(status(acq.recv(link.qp, mr, wr_id=ID))))
    link.qp.modify(qp_state=QPState.ERR)
    assert await asyncio.gather(*tasks) == [WCStatus.WR_FLUSH_ERR] * 4
    got: list[WorkCompletion] = []
    await eventually(lambda: len(got) == 4 or bool(got.extend(acq.poll())))
    assert {wc.status for wc in got} == {WCStatus.WR_FLUSH_ERR}
    assert outstanding(link.qp) == (0, 0)
    assert all(map(closes, mrs))


@pytest.mark.link(one_cq=True)
async def test_the_one_that_asked_first_has_the_completion_whether_or_not_it_names_the_qp(
    acq: AsyncCQ, link: Link
) -> None:
    order = [None, link.qp, link.qp, None, None, link.qp]
    tasks = [await start(acq.completion(ID, qp=qp)) for qp in order]
    for i in range(len(order)):
        link.qp.post_recv(link.into, wr_id=ID)
        link.bring(imm=i)
    assert [number_of(wc) for wc in await asyncio.gather(*tasks)] == list(range(len(order)))


@pytest.mark.link(one_cq=True, max_recv_wr=255)
async def test_each_of_many_that_are_there_is_found_in_their_order(
    acq: AsyncCQ, link: Link
) -> None:
    """By wr_id and with the QP or without, in any order of wr_ids; some are put back in front by
    tasks that are cancelled as they come, and some are polled."""
    rng, many, numbers, others = random.Random(3), 200, itertools.count(), itertools.count(100)
    there: list[tuple[int, int]] = []  # wr_id and number

    def come(wr_id: int) -> tuple[int, int]:
        number = next(numbers)
        link.qp.post_recv(link.into, wr_id=wr_id)
        link.bring(imm=number)
        acq._drain()
        return wr_id, number

    for _ in range(many):
        there.append(come(rng.randrange(20)))
    while there:
        step = rng.randrange(8)
        if step == 0:
            (wc,) = acq.poll(1)
            assert (wc.wr_id, number_of(wc)) == there.pop(0)
        elif step == 1:
            wr_id = next(others)
            task = await start(acq.completion(wr_id))
            there.insert(0, come(wr_id))
            await cancel(task)
        else:
            wr_id = rng.choice(there)[0]
            place = next(i for i, (of, _) in enumerate(there) if of == wr_id)
            wc = await acq.completion(wr_id, qp=rng.choice([None, link.qp]))
            assert (wc.wr_id, number_of(wc)) == there.pop(place)
    assert acq.poll() == []
