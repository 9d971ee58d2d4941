# SPDX-License-Identifier: MIT
"""AsyncCQ.send() and its like, completion(), scope(): what is posted, who gets its completion.

Nothing completes before the test wants it: a receive waits for the peer's send, and a send waits
for the peer's receive, since the sender tries again for ever where it meets none.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import (
    GRH,
    Endpoint,
    Link,
    MakeLink,
    Scenario,
    Waiter,
    cancel,
    closes,
    connect,
    eventually,
    ids,
    start,
    tick,
    wait_completions,
)

from cqnotify import (
    AH,
    MR,
    PD,
    QP,
    SRQ,
    BusyError,
    ClosedError,
    CompletionError,
    Context,
    QPState,
    QPType,
    SendFlags,
    VerbsError,
    WCOpcode,
    WCStatus,
    WorkCompletion,
    WROpcode,
)
from cqnotify.aio import AsyncCQ, Scope

QKEY = 0x11111111
CHOSEN = 1 << 63
INLINE = SendFlags.SIGNALED | SendFlags.INLINE


# ---- every operation ------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["one CQ", "a CQ each"])
def both(request: pytest.FixtureRequest, make_link: MakeLink) -> Link:
    return make_link(one_cq=request.param)


@pytest.fixture
def out(both: Link) -> AsyncCQ:
    return AsyncCQ(both.a.scq)


@pytest.fixture
def into(both: Link, out: AsyncCQ) -> AsyncCQ:
    """That of the receives, which may be that of the sends."""
    return out if both.a.rcq is both.a.scq else AsyncCQ(both.a.rcq)


async def test_send_and_recv_return_their_own_completions(
    both: Link, out: AsyncCQ, into: AsyncCQ
) -> None:
    both.a.mr.write(b"to you, ")
    both.b.mr.write(b"to me...", 100)
    sent = await start(out.send(both.qp, both.sg))
    received = await start(into.recv(both.qp, both.a.mr[64:128]))
    both.take()
    wc = await sent
    assert (wc.opcode, wc.status, wc.qp_num) == (
        WCOpcode.SEND,
        WCStatus.SUCCESS,
        both.qp.qp_num,
    )
    await tick()
    assert not received.done()
    both.b.qp.post_send(both.b.mr[100:108])
    wc = await received
    assert (wc.opcode, wc.byte_len) == (WCOpcode.RECV, 8)
    assert both.a.mr.read(8, 64) == b"to me..."
    assert both.b.mr.read(8) == b"to you, "
    assert both.qp.outstanding == (0, 0)
    assert out.poll() == into.poll() == []
    assert out.stats.wakeups + (out is not into) * into.stats.wakeups == 2


async def test_immediate_data_goes_along(both: Link, out: AsyncCQ, into: AsyncCQ) -> None:
    sent = await start(out.send(both.qp, both.sg, imm_data=7))
    both.take()
    await sent
    (wc,) = wait_completions(both.b.rcq, 1)
    assert wc.imm_data == 7
    received = await start(into.recv(both.qp, None))
    both.b.qp.post_send(None, opcode=WROpcode.SEND_WITH_IMM, imm_data=8)
    assert (await received).imm_data == 8


async def test_write_puts_the_bytes_there(acq: AsyncCQ, link: Link) -> None:
    link.a.mr.write(b"written!")
    wc = await acq.write(link.qp, link.sg, *link.remote)
    assert wc.opcode is WCOpcode.RDMA_WRITE
    assert link.b.mr.read(8) == b"written!"
    assert link.b.rcq.poll() == []


async def test_write_with_imm_waits_for_a_receive(acq: AsyncCQ, link: Link) -> None:
    link.a.mr.write(b"written!")
    task = await start(acq.write(link.qp, link.sg, *link.remote, imm_data=9))
    link.take()
    assert (await task).opcode is WCOpcode.RDMA_WRITE
    (wc,) = wait_completions(link.b.rcq, 1)
    assert (wc.opcode, wc.imm_data) == (WCOpcode.RECV_RDMA_WITH_IMM, 9)
    assert link.b.mr.read(8) == b"written!"


async def test_read_fetches_the_bytes(acq: AsyncCQ, link: Link) -> None:
    link.b.mr.write(b"read me!")
    wc = await acq.read(link.qp, link.sg, *link.remote)
    assert wc.opcode is WCOpcode.RDMA_READ
    assert link.a.mr.read(8) == b"read me!"


def number(mr: MR) -> int:
    return int.from_bytes(mr.read(8), sys.byteorder)


async def test_atomics_return_the_number_from_before(acq: AsyncCQ, link: Link) -> None:
    link.b.mr.write((40).to_bytes(8, sys.byteorder))
    wc = await acq.atomic_fetch_and_add(link.qp, link.sg, *link.remote, 2)
    assert wc.opcode is WCOpcode.FETCH_ADD
    assert (number(link.a.mr), number(link.b.mr)) == (40, 42)
    wc = await acq.atomic_cmp_and_swp(link.qp, link.sg, *link.remote, 42, 1 << 60)
    assert wc.opcode is WCOpcode.COMP_SWAP
    assert (number(link.a.mr), number(link.b.mr)) == (42, 1 << 60)
    await acq.atomic_cmp_and_swp(link.qp, link.sg, *link.remote, 42, 3)
    assert (number(link.a.mr), number(link.b.mr)) == (1 << 60, 1 << 60)


async def test_a_datagram_goes_where_the_address_handle_says(
    ud_pair: tuple[Endpoint, Endpoint],
) -> None:
    a, b = ud_pair
    gid = a.ctx.find_gid()
    ah = AH(a.pd, dgid=gid.gid, sgid_index=gid.index)
    async with AsyncCQ(a.scq) as out, AsyncCQ(b.rcq) as into:
        received = await start(into.recv(b.qp, b.mr[0:128]))
        a.mr.write(b"datagram")
        wc = await out.send(
            a.qp, a.mr[0:8], ah=ah, remote_qpn=b.qp.qp_num, remote_qkey=QKEY, imm_data=5
        )
        assert wc.opcode is WCOpcode.SEND
        wc = await received
        assert (wc.byte_len, wc.src_qp, wc.imm_data) == (GRH + 8, a.qp.qp_num, 5)
        assert b.mr.read(8, GRH) == b"datagram"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_inline_bytes_are_taken_at_once(
    acq: AsyncCQ, link: Link, kind: Callable[[bytes], Any]
) -> None:
    task = await start(acq.send(link.qp, kind(b"in line"), send_flags=INLINE))
    link.take()
    await task
    assert link.b.mr.read(7) == b"in line"
    await acq.write(link.qp, kind(b"INLINE"), *link.remote, send_flags=INLINE)
    assert link.b.mr.read(7) == b"INLINEe"


async def test_operations_are_signaled_whatever_the_flags(acq: AsyncCQ, link: Link) -> None:
    link.take()
    assert (await acq.send(link.qp, link.sg, send_flags=0)).ok
    assert (await acq.write(link.qp, link.sg, *link.remote, send_flags=0)).ok


async def test_messages_are_posted_in_the_order_of_the_calls(acq: AsyncCQ, link: Link) -> None:
    """Also where each completes within the call, so that the loop must get its turn in between."""
    n = 200
    link.take(n)
    await asyncio.gather(*(acq.send(link.qp, b"", imm_data=i, send_flags=INLINE) for i in range(n)))
    assert link.arrived(n) == list(range(n))


# ---- what fails -----------------------------------------------------------------------------


async def test_a_failed_operation_raises_its_status(acq: AsyncCQ, link: Link) -> None:
    with pytest.raises(CompletionError, match="remote access error") as caught:
        await acq.write(link.qp, link.sg, link.b.mr.addr, link.b.mr.rkey ^ 0xFF00, wr_id=6)
    error = caught.value
    assert (error.status, error.qp_num, error.wr_id) == (
        WCStatus.REM_ACCESS_ERR,
        link.qp.qp_num,
        6,
    )
    assert error.wc.status == WCStatus.REM_ACCESS_ERR
    assert acq.poll() == []


@pytest.mark.parametrize(("wr_id", "told"), [(6, "READ (wr_id 6)"), (None, "READ")], ids=str)
async def test_a_failure_names_the_operation_and_no_wr_id_but_the_users(
    acq: AsyncCQ, link: Link, wr_id: int | None, told: str
) -> None:
    with pytest.raises(CompletionError) as caught:
        wrong = link.b.mr.rkey ^ 0xFF00
        await acq.read(link.qp, link.sg, link.b.mr.addr, wrong, wr_id=wr_id)
    assert str(caught.value) == (
        f"RDMA_{told} on QP {link.qp.qp_num} failed: REM_ACCESS_ERR, remote access error "
        f"(vendor_err {caught.value.vendor_err:#x})"
    )


async def test_those_behind_a_failed_one_are_flushed(acq: AsyncCQ, link: Link) -> None:
    first = await start(acq.send(link.qp, link.sg))
    bad = await start(acq.write(link.qp, link.sg, link.b.mr.addr, link.b.mr.rkey ^ 0xFF00))
    last = await start(acq.send(link.qp, link.sg))
    link.take()
    assert (await first).ok
    for task, status in ((bad, WCStatus.REM_ACCESS_ERR), (last, WCStatus.WR_FLUSH_ERR)):
        with pytest.raises(CompletionError) as caught:
            await task
        assert caught.value.status is status


def bad_calls(link: Link, acq: AsyncCQ) -> dict[str, Callable[[], Awaitable[Any]]]:
    foreign = MR(PD(link.a.ctx), 8)
    return {
        "QP": lambda: acq.send(link.a, link.sg),  # type: ignore[arg-type]
        "another CQ": lambda: acq.recv(link.qp, link.sg),
        "peer's QP": lambda: acq.send(link.b.qp, link.sg),
        "bytes": lambda: acq.send(link.qp, b"not inline"),  # type: ignore[arg-type]
        "PD": lambda: acq.send(link.qp, foreign),
        "flags": lambda: acq.send(link.qp, link.sg, send_flags=1 << 20),
        "solicited": lambda: acq.write(
            link.qp, link.sg, *link.remote, send_flags=SendFlags.SOLICITED
        ),
        "imm": lambda: acq.send(link.qp, link.sg, imm_data=1 << 32),
        "ah": lambda: acq.send(link.qp, link.sg, remote_qpn=3),
        "rkey": lambda: acq.write(link.qp, link.sg, 0, -1),
        "size": lambda: acq.atomic_fetch_and_add(link.qp, link.a.mr[0:4], *link.remote, 1),
        "negative wr_id": lambda: acq.send(link.qp, link.sg, wr_id=-1),
        "high wr_id": lambda: acq.send(link.qp, link.sg, wr_id=CHOSEN),
        "no wr_id": lambda: acq.send(link.qp, link.sg, wr_id="5"),  # type: ignore[arg-type]
        "half wr_id": lambda: acq.send(link.qp, link.sg, wr_id=1.5),  # type: ignore[arg-type]
    }


async def test_a_bad_argument_is_refused_at_once_and_leaves_nothing(
    acq: AsyncCQ, link: Link
) -> None:
    async with acq.scope() as scope:
        for what, call in bad_calls(link, acq).items():
            with pytest.raises((TypeError, ValueError)):
                await call()
            assert scope.outstanding == 0, what
            assert link.qp.outstanding == (0, 0), what
        link.take(2)
        link.qp.post_send(None, opcode=WROpcode.SEND_WITH_IMM, imm_data=7, send_flags=0)
        assert link.arrived(1) == [7], "nothing was sent before"
    assert acq.stats.arms == 0
    assert acq._awaited == 0


@pytest.mark.link(max_send_wr=1)
async def test_a_bad_argument_leaves_the_wr_id_and_the_room(acq: AsyncCQ, link: Link) -> None:
    link.take()
    for _ in range(3):
        with pytest.raises(TypeError):
            await acq.send(link.qp, b"x", wr_id=5)
    assert (await acq.send(link.qp, link.sg, wr_id=5)).wr_id == 5


@pytest.mark.link(max_send_wr=1)
async def test_a_bad_one_that_waited_for_room_does_not_hold_up_those_behind(
    acq: AsyncCQ, link: Link
) -> None:
    full = [await start(acq.send(link.qp, link.sg)) for _ in range(link.qp.max_send_wr)]
    mr = MR(link.a.pd, 8)
    bad = await start(acq.send(link.qp, mr))
    good = await start(acq.send(link.qp, link.sg))
    with pytest.raises(TypeError, match="sg must be"):
        await acq.send(link.qp, b"x")
    mr.close()  # it is in nobody's way: it was not posted
    link.take(len(full) + 1)
    await asyncio.gather(*full)
    with pytest.raises(ClosedError, match="MR is closed"):
        await bad
    assert (await good).ok


async def test_what_the_qps_state_does_not_allow_is_refused(ctx: Context) -> None:
    new = Endpoint(ctx, QPType.RC, one_cq=True)
    async with AsyncCQ(new.scq) as acq:
        for call in (acq.send(new.qp, new.mr[0:8]), acq.recv(new.qp, new.mr[0:8])):
            with pytest.raises(VerbsError, match="is in RESET"):
                await call
        new.qp.close()
        for call in (acq.send(new.qp, None), acq.recv(new.qp, None)):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            await acq.completion(1, qp=new.qp)


# ---- wr_ids ---------------------------------------------------------------------------------


async def test_chosen_wr_ids_are_high_and_never_repeat(
    both: Link, out: AsyncCQ, into: AsyncCQ
) -> None:
    seen: list[int] = []
    for _ in range(20):
        received = await start(into.recv(both.qp, None))
        both.take()
        sent = await out.send(both.qp, both.sg)
        both.bring()
        seen += ids([sent, await received])
    assert len(set(seen)) == 40
    assert all(CHOSEN <= wr_id < 1 << 64 for wr_id in seen)


@pytest.mark.parametrize("wr_id", [0, 5, CHOSEN - 1])
async def test_an_own_wr_id_comes_back(both: Link, wr_id: int, out: AsyncCQ, into: AsyncCQ) -> None:
    both.take()
    assert (await out.send(both.qp, both.sg, wr_id=wr_id)).wr_id == wr_id
    task = await start(into.recv(both.qp, None, wr_id=wr_id))
    both.bring()
    assert (await task).wr_id == wr_id


@pytest.mark.link(one_cq=True)
async def test_of_the_same_wr_id_several_times_on_a_qp_each_gets_its_own_completion(
    acq: AsyncCQ, link: Link
) -> None:
    cancelled, first, second = [await start(acq.send(link.qp, link.sg, wr_id=5)) for _ in range(3)]
    received = await start(acq.recv(link.qp, None, wr_id=5))
    await cancel(cancelled)  # the device does not know
    link.take()
    assert ids(await acq.wait()) == [5]
    assert not first.done()
    link.take()
    wc = await first
    assert (wc.wr_id, wc.opcode) == (5, WCOpcode.SEND)
    await tick()
    assert not second.done()
    assert not received.done()
    link.bring()
    wc = await received
    assert (wc.wr_id, wc.opcode) == (5, WCOpcode.RECV)
    assert not second.done()
    link.take()
    wc = await second
    assert (wc.wr_id, wc.opcode) == (5, WCOpcode.SEND)


async def test_the_same_wr_id_on_two_qps_is_fine(acq: AsyncCQ, link: Link) -> None:
    second = QP(link.a.pd, QPType.RC, send_cq=link.a.scq, recv_cq=link.a.rcq)
    peer = Endpoint(link.a.ctx, QPType.RC)
    second.connect(peer.qp.address())
    peer.qp.connect(second.address())
    first = await start(acq.send(link.qp, link.sg, wr_id=5))
    other = await start(acq.send(second, link.sg, wr_id=5))
    peer.qp.post_recv(peer.mr[0:64])
    assert (await other).qp_num == second.qp_num
    await tick()
    assert not first.done()
    link.take()
    assert (await first).qp_num == link.qp.qp_num


async def test_direct_posts_beside_awaited_ones_go_where_they_belong(
    acq: AsyncCQ, link: Link
) -> None:
    direct: list[asyncio.Future[Any]] = [
        await start(anext_of(acq)),
        await start(acq.completion(101)),
        await start(acq.completion(102, qp=link.qp)),
    ]
    tasks: list[asyncio.Future[Any]] = []
    for i, task in enumerate(direct):
        tasks += [await start(acq.send(link.qp, link.sg)), task]
        link.qp.post_send(link.sg, wr_id=100 + i)
    for i in range(6):
        link.take()
        await tasks[i]
        await tick()
        assert [task.done() for task in tasks] == [True] * (i + 1) + [False] * (5 - i)
    assert ids([task.result() for task in direct]) == [100, 101, 102]
    sent = ids([task.result() for task in tasks[::2]])
    assert len(set(sent)) == 3
    assert min(sent) >= CHOSEN
    assert acq.poll() == []


@pytest.mark.link(one_cq=True)
async def test_a_direct_receive_of_the_same_wr_id_is_not_taken_for_a_send(
    acq: AsyncCQ, link: Link
) -> None:
    link.qp.post_recv(link.a.mr[0:64], wr_id=0)
    link.qp.post_send(link.sg, wr_id=1)
    sent = await start(acq.send(link.qp, link.sg, wr_id=0))
    received = await start(acq.recv(link.qp, link.a.mr[64:128], wr_id=1))
    link.bring()
    (wc,) = await acq.wait()
    assert (wc.wr_id, wc.opcode) == (0, WCOpcode.RECV)
    link.take()
    (wc,) = await acq.wait()
    assert (wc.wr_id, wc.opcode) == (1, WCOpcode.SEND)
    assert not sent.done()
    assert not received.done()
    link.take()
    assert (await sent).opcode is WCOpcode.SEND
    link.bring()
    assert (await received).opcode is WCOpcode.RECV


# ---- completion() ---------------------------------------------------------------------------


@pytest.mark.link(recv=True)
async def test_completion_returns_what_is_there_already_and_leaves_the_others_in_order(
    acq: AsyncCQ, link: Link
) -> None:
    for i in range(40):
        link.qp.post_recv(None, wr_id=i) if i < 16 else None
    link.bring(16)
    assert (await acq.completion(9)).wr_id == 9
    assert (await acq.completion(3, qp=link.qp)).wr_id == 3
    left = [i for i in range(16) if i not in (3, 9)]
    assert ids(await acq.wait(20)) == left
    assert acq.stats.events == acq.stats.wakeups == 0


@pytest.mark.link(recv=True)
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


@pytest.mark.link(recv=True)
async def test_of_two_tasks_for_the_same_wr_id_the_first_goes_first(
    acq: AsyncCQ, link: Link
) -> None:
    first, second = await start(acq.completion(5)), await start(acq.completion(5))
    link.qp.post_recv(None, wr_id=5)
    link.bring()
    await first
    await tick()
    assert not second.done()
    link.qp.post_recv(None, wr_id=5)
    link.bring()
    await second


@pytest.mark.parametrize("then", ["completion", "wait"])
@pytest.mark.link(recv=True)
async def test_a_cancelled_completion_loses_nothing(acq: AsyncCQ, link: Link, then: str) -> None:
    task = await start(acq.completion(5))
    await cancel(task)
    link.qp.post_recv(None, wr_id=5)
    link.bring()
    wc = await (acq.completion(5) if then == "completion" else anext_of(acq))
    assert wc.wr_id == 5


async def anext_of(acq: AsyncCQ) -> WorkCompletion:
    (wc,) = await acq.wait(1)
    return wc


@pytest.mark.parametrize("then", ["completion", "wait", "second task", "waiter"])
@pytest.mark.link(recv=True)
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


@pytest.mark.link(recv=True)
async def test_completion_goes_before_wait(acq: AsyncCQ, link: Link) -> None:
    anybody = await start(acq.wait())
    named = await start(acq.completion(5))
    for wr_id in (5, 6):
        link.qp.post_recv(None, wr_id=wr_id)
    link.bring()
    assert (await named).wr_id == 5
    await tick()
    assert not anybody.done()
    link.bring()
    assert ids(await anybody) == [6]


@pytest.mark.link(recv=True)
async def test_completion_returns_a_failed_one_as_well(acq: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None, wr_id=5)
    task = await start(acq.completion(5))
    link.qp.modify(qp_state=QPState.ERR)
    assert (await task).status is WCStatus.WR_FLUSH_ERR


async def test_completion_refuses_what_can_never_come(acq: AsyncCQ, link: Link) -> None:
    for wr_id in (-1, 1 << 64):
        with pytest.raises(ValueError, match="wr_id is"):
            await acq.completion(wr_id)
    with pytest.raises(TypeError):
        await acq.completion("5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="qp must be a QP"):
        await acq.completion(5, qp=link.a)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sends and receives on another CQ"):
        await acq.completion(5, qp=link.b.qp)
    with pytest.raises(TypeError, match="qp must be a QP, not an SRQ.*wait\\(\\) or completion"):
        await acq.completion(5, qp=SRQ(link.a.pd, 4))  # type: ignore[arg-type]


async def test_the_completions_of_an_srq_are_awaited_and_its_receives_are_posted_there(
    ctx: Context,
) -> None:
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    srq = SRQ(a.pd, 8)
    a.qp.close()
    a.qp = QP(a.pd, QPType.RC, send_cq=a.scq, recv_cq=a.rcq, srq=srq)
    connect(a, b)
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


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_completion_of_a_qp_that_goes_ends(acq: AsyncCQ, link: Link, how: str) -> None:
    link.qp.post_send(link.sg, wr_id=5)
    task = await start(acq.completion(5, qp=link.qp))
    if how == "close":
        link.qp.close()
    else:
        link.qp.modify(qp_state=QPState.RESET)
    with pytest.raises(ClosedError, match=how):
        await task
    assert acq._awaited == 0


# ---- room in the queues ---------------------------------------------------------------------


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_a_hundred_sends_through_a_queue_of_four_complete_in_order(
    acq: AsyncCQ, link: Link
) -> None:
    done: list[int] = []
    under_way: list[int] = []

    async def one(i: int) -> None:
        done.append((await acq.send(link.qp, link.sg, wr_id=i, imm_data=i)).wr_id)
        under_way.append(link.qp.outstanding[0])

    tasks = [asyncio.ensure_future(one(i)) for i in range(100)]
    await tick()
    assert link.qp.outstanding[0] == link.qp.max_send_wr
    link.take(100)
    await asyncio.gather(*tasks)
    assert done == link.arrived(100) == list(range(100))
    assert max(under_way) <= link.qp.max_send_wr
    assert acq.stats.events > 0


@pytest.mark.link(max_send_wr=4, max_recv_wr=4, recv=True)
async def test_a_hundred_receives_through_a_queue_of_four_complete_in_order(
    acq: AsyncCQ, link: Link
) -> None:
    done: list[int] = []

    async def one(i: int) -> None:
        wc = await acq.recv(link.qp, link.a.mr[0:64], wr_id=i)
        assert wc.imm_data == i
        done.append(wc.wr_id)

    tasks = [asyncio.ensure_future(one(i)) for i in range(100)]
    await tick()
    room = link.qp.max_recv_wr
    assert link.qp.outstanding[1] == room
    for i in range(100):
        # It waits for the receive.
        link.b.qp.post_send(link.b.mr[0:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=i)
        await eventually(lambda: len(link.b.scq.poll()) == 1)
        await eventually(lambda i=i: len(done) == i + 1)  # type: ignore[misc]
        assert link.qp.outstanding[1] == min(room, 99 - i)
    await asyncio.gather(*tasks)
    assert done == list(range(100))
    assert acq.stats.events > 0


async def fill(link: Link, acq: AsyncCQ) -> list[asyncio.Future[Any]]:
    """As many sends as the queue takes."""
    tasks = [await start(acq.send(link.qp, link.sg)) for _ in range(link.qp.max_send_wr)]
    assert link.qp.outstanding[0] == link.qp.max_send_wr
    return tasks


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_a_late_comer_does_not_overtake_who_waits_for_room(acq: AsyncCQ, link: Link) -> None:
    full = await fill(link, acq)
    waiting = await start(acq.send(link.qp, link.sg, imm_data=1))
    link.take(1)
    assert link.arrived(1) == [None]
    late = asyncio.ensure_future(acq.send(link.qp, link.sg, imm_data=2))
    await full[0]
    await tick()
    assert link.qp.outstanding[0] == link.qp.max_send_wr, "one of the two was posted"
    link.take(len(full) + 1)
    await asyncio.gather(*full, waiting, late)
    assert link.arrived(len(full) + 1)[-2:] == [1, 2]


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_who_is_cancelled_waiting_for_room_was_never_posted_and_blocks_nobody(
    acq: AsyncCQ, link: Link
) -> None:
    full = await fill(link, acq)
    waiting = [await start(acq.send(link.qp, link.sg, wr_id=i, imm_data=i)) for i in range(3)]
    await cancel(waiting[0])
    link.take(1)
    await full.pop(0)
    await tick()
    assert link.qp.outstanding[0] == link.qp.max_send_wr, "the next one was posted"
    await cancel(waiting[2])
    link.take(len(full) + 1)
    await asyncio.gather(*full, waiting[1])
    assert acq._awaited == 0
    assert acq.poll() == []
    link.take()
    assert (await acq.send(link.qp, link.sg, wr_id=0, imm_data=9)).ok
    assert link.arrived(len(full) + 3) == [None] * (len(full) + 1) + [1, 9]


@pytest.mark.parametrize("flags", [SendFlags.SIGNALED, 0], ids=["signaled", "unsignaled"])
@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_direct_posts_take_room(acq: AsyncCQ, link: Link, flags: int) -> None:
    room = link.qp.max_send_wr
    first = await start(acq.send(link.qp, link.sg))
    for i in range(room - 1):
        link.qp.post_send(link.sg, wr_id=i, send_flags=flags)
    waiting = await start(acq.send(link.qp, link.sg))
    assert link.qp.outstanding[0] == room
    link.take(1)
    await first
    await tick()
    assert link.qp.outstanding[0] == room, "one went, one came"
    assert not waiting.done()
    link.take(room)
    assert (await waiting).ok
    assert ids(acq.poll()) == (list(range(room - 1)) if flags else [])


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
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


@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_a_queue_that_takes_no_more_unsignaled_sends_is_an_error_in_words(
    acq: AsyncCQ, link: Link
) -> None:
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            link.qp.post_send(link.sg, send_flags=0)
    with pytest.raises(VerbsError, match=r"none of which .* with SendFlags\.SIGNALED") as e:
        await acq.send(link.qp, link.sg)
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_post_send")
    assert acq._awaited == 0


# ---- the QP dies ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failure", "modify"])
@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_when_the_qp_dies_all_who_are_under_way_or_wait_for_room_end(
    acq: AsyncCQ, link: Link, how: str
) -> None:
    first = await start(acq.send(link.qp, link.sg))
    bad = await start(acq.write(link.qp, link.sg, link.b.mr.addr, 1))
    rest = [await start(acq.send(link.qp, link.sg)) for _ in range(20)]
    if how == "modify":
        link.qp.modify(qp_state=QPState.ERR)
    else:
        link.take()
    for task in (first, bad, *rest):
        try:
            wc = await task
        except (CompletionError, VerbsError) as e:
            assert not isinstance(e, VerbsError) or "is in ERR" in str(e)  # noqa: PT017
        else:
            assert wc.ok
            assert (task, how) == (first, "failure")
    assert link.qp.outstanding[0] == 0
    assert acq._awaited == 0
    with pytest.raises((CompletionError, VerbsError)):
        await acq.send(link.qp, link.sg)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.link(recv=True)
async def test_a_receive_on_a_qp_in_err_is_refused(acq: AsyncCQ, link: Link, before: int) -> None:
    """Some devices would take it, and never complete it."""
    for _ in range(before):
        task = await start(acq.recv(link.qp, None))
        link.bring()
        await task
    link.qp.modify(qp_state=QPState.ERR)
    with pytest.raises(VerbsError, match="is in ERR: .* connect it anew"):
        await acq.recv(link.qp, None)
    assert acq._awaited == 0
    link.reconnect()
    task = await start(acq.recv(link.qp, None))
    link.bring()
    assert (await task).ok


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


@pytest.mark.parametrize("recv", [False, True], ids=["send", "recv"])
@pytest.mark.link(one_cq=True, max_send_wr=4, max_recv_wr=4)
async def test_a_reset_ends_what_is_under_way_and_what_waits_and_the_qp_works_again(
    acq: AsyncCQ, link: Link, recv: bool
) -> None:
    def operation() -> Awaitable[Any]:
        return acq.recv(link.qp, None) if recv else acq.send(link.qp, link.sg)

    tasks = [await start(operation()) for _ in range(10)]
    assert link.qp.outstanding[recv] < 10
    link.qp.modify(qp_state=QPState.RESET)
    for task in tasks:
        with pytest.raises(ClosedError, match="was reset"):
            await task
    assert acq._awaited == 0
    link.reconnect()
    task = await start(operation())
    if recv:
        link.bring()
    else:
        link.take()
    assert (await task).ok


@pytest.mark.link(recv=True)
async def test_a_reset_leaves_what_has_completed(acq: AsyncCQ, link: Link) -> None:
    first, second = [await start(acq.recv(link.qp, None)) for _ in range(2)]
    link.bring()
    link.qp.modify(qp_state=QPState.RESET)
    assert (await first).ok
    with pytest.raises(ClosedError):
        await second


@pytest.mark.parametrize("thread", [False, True], ids=["here", "in a thread"])
@pytest.mark.link(max_send_wr=4, max_recv_wr=4)
async def test_closing_the_qp_ends_what_is_under_way_and_what_waits(
    acq: AsyncCQ, link: Link, thread: bool
) -> None:
    tasks = [await start(acq.send(link.qp, link.sg)) for _ in range(10)]
    if thread:
        await asyncio.get_running_loop().run_in_executor(None, link.qp.close)
    else:
        link.qp.close()
    for task in tasks:
        with pytest.raises(ClosedError, match="QP was closed"):
            await task
    assert acq._awaited == 0
    assert closes(link.a.mr)


async def test_a_qp_and_its_asynccq_can_be_closed_in_one_breath(acq: AsyncCQ, link: Link) -> None:
    task = await start(acq.send(link.qp, link.sg))
    link.qp.close()
    acq.close()
    with pytest.raises(ClosedError):
        await task


def test_closing_a_qp_after_the_loop_forgets_what_was_under_way(run: Scenario, link: Link) -> None:
    acq = AsyncCQ(link.a.scq)

    async def scenario() -> None:
        await start(acq.send(link.qp, link.sg))

    run(scenario())
    assert acq._awaited
    link.qp.close()
    assert acq._awaited == 0
    acq.close()


# ---- cancelled operations -------------------------------------------------------------------


async def test_a_cancelled_send_keeps_its_memory_until_it_completes(
    acq: AsyncCQ, link: Link
) -> None:
    mr = MR(link.a.pd, 8)
    await cancel(await start(acq.send(link.qp, mr)))
    with pytest.raises(BusyError):
        mr.close()
    link.take()
    await eventually(lambda: closes(mr))
    assert acq.stats.events == 1
    assert acq.poll() == []  # nobody is interested in it
    assert acq._awaited == 0


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


# ---- who else polls -------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [False, True], ids=["here", "in a thread"])
@pytest.mark.link(recv=True)
async def test_a_foreign_poll_feeds_the_tasks_that_wait(
    acq: AsyncCQ, link: Link, thread: bool
) -> None:
    """No event is raised here: a solicited completion would raise one."""
    for i in range(3):
        link.qp.post_recv(None, wr_id=i)
    task = await start(acq.wait(solicited_only=True))
    link.bring(3)
    await tick()
    assert not task.done()
    assert (Waiter(link.a.rcq.poll).join() if thread else link.a.rcq.poll()) == []
    assert ids(await task) == [0, 1, 2]
    assert acq.stats.events == 0


@pytest.mark.parametrize("thread", [False, True], ids=["here", "in a thread"])
async def test_a_foreign_poll_feeds_the_operations(both: Link, thread: bool, into: AsyncCQ) -> None:
    received = await start(into.recv(both.qp, None))
    named = await start(into.completion(5))
    both.qp.post_recv(None, wr_id=5)
    both.bring(2)
    poll = both.a.rcq.poll
    assert (Waiter(poll).join() if thread else poll()) == []
    assert (await received).ok
    assert (await named).wr_id == 5


@pytest.mark.parametrize("thread", [False, True], ids=["here", "in a thread"])
@pytest.mark.link(recv=True)
async def test_a_foreign_poll_while_nobody_waits_returns_the_completions(
    acq: AsyncCQ, link: Link, thread: bool
) -> None:
    await cancel(await start(acq.wait()))  # the loop reads the channel from now on
    for i in range(3):
        link.qp.post_recv(None, wr_id=i)
    link.bring(3)
    poll = link.a.rcq.poll
    assert ids(Waiter(poll).join() if thread else poll()) == [0, 1, 2]
    assert acq.poll() == []


@pytest.mark.link(recv=True)
async def test_poll_after_close_does_not_touch_the_cq(acq: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None)
    task = await start(acq.wait())
    acq.close()
    link.bring()
    with pytest.raises(ClosedError):
        acq.poll()
    with pytest.raises(ClosedError):
        await task
    assert len(link.a.rcq.poll()) == 1


@pytest.mark.parametrize("bad", [0, 1 << 31, 1 << 40])
@pytest.mark.link(recv=True)
async def test_a_bad_max_entries_harms_nobody_else(acq: AsyncCQ, link: Link, bad: int) -> None:
    task = await start(acq.wait())
    for call in (acq.wait, acq.poll):
        with pytest.raises(ValueError, match="max_entries"):
            await call(bad)  # type: ignore[misc]
    with pytest.raises(TypeError):
        await acq.wait(1.5)  # type: ignore[arg-type]
    link.qp.post_recv(None, wr_id=1)
    link.bring()
    assert ids(await task) == [1]


# ---- spinning -------------------------------------------------------------------------------


@pytest.mark.link(recv=True)
async def test_a_completion_that_comes_while_wait_spins_needs_no_event(
    acq: AsyncCQ, link: Link
) -> None:
    link.qp.post_recv(None, wr_id=1)
    # It waits for the receive's queue of the other side: nothing is sent before the spin.
    sender = Waiter(lambda: send_when_polled(link))
    assert ids(await acq.wait(spin=30)) == [1]
    sender.join()
    assert acq.stats.events == acq.stats.arms == acq.stats.wakeups == 0


def send_when_polled(link: Link) -> None:
    """In a thread, as soon as the CQ is polled."""
    while link.a.rcq.stats.polls == 0:
        pass
    link.b.qp.post_send(None)


@pytest.mark.link(recv=True)
async def test_wait_falls_asleep_when_nothing_came_while_it_span(acq: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None, wr_id=1)
    task = await start(acq.wait(spin=0.001))
    link.bring()
    assert ids(await task) == [1]
    assert acq.stats.events == acq.stats.wakeups == 1
