# SPDX-License-Identifier: MIT
"""AsyncCQ.send() and its like: what is posted, and who gets its completion.

Nothing completes before the test wants it: a receive waits for the peer's send, and a send waits
for the peer's receive, since the sender tries again for ever where it meets none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import (
    CHOSEN,
    GRH,
    QKEY,
    Endpoint,
    Link,
    fill,
    ids,
    outstanding,
    start,
    tick,
    wait_completions,
)

from cqnotify import (
    AH,
    MR,
    PD,
    ClosedError,
    CompletionError,
    SendFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from cqnotify.aio import AsyncCQ

INLINE = SendFlags.SIGNALED | SendFlags.INLINE


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
    assert outstanding(both.qp) == (0, 0)
    assert out.poll() == into.poll() == []
    assert out.stats.wakeups + (out is not into) * into.stats.wakeups == 2


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


@pytest.mark.link(max_send_wr=4)
async def test_inline_bytes_are_held_while_they_wait_for_room(acq: AsyncCQ, link: Link) -> None:
    data = bytearray(b"in line")
    link.take()
    await acq.send(link.qp, data, send_flags=INLINE)
    data.append(1)  # which what holds it forbids
    full = await fill(acq, link)
    task = await start(acq.send(link.qp, data, send_flags=INLINE))
    with pytest.raises(BufferError):
        data.append(2)
    link.take(len(full) + 1)
    await asyncio.gather(*full, task)
    assert link.b.mr.read(8) == b"in line\1"
    data.append(2)


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


@pytest.mark.not_on_iwarp("a read that the peer refuses is flushed", only=r"READ")
@pytest.mark.parametrize(("wr_id", "told"), [(6, "READ (wr_id 6)"), (None, "READ")], ids=str)
async def test_a_failure_names_the_operation_and_no_wr_id_but_the_users(
    acq: AsyncCQ, link: Link, wr_id: int | None, told: str
) -> None:
    with pytest.raises(CompletionError) as caught:
        await acq.read(link.qp, link.sg, link.b.mr.addr, link.wrong_key, wr_id=wr_id)
    error = caught.value
    assert str(error) == (
        f"RDMA_{told} on QP {link.qp.qp_num} failed: REM_ACCESS_ERR, remote access error "
        f"(vendor_err {error.vendor_err:#x})"
    )
    assert (error.status, error.wc.status) == (WCStatus.REM_ACCESS_ERR,) * 2
    assert error.qp_num == link.qp.qp_num
    assert error.wr_id == wr_id or (wr_id is None and error.wr_id >= CHOSEN)
    assert acq.poll() == []


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


async def test_the_queue_that_completes_elsewhere_is_named(acq: AsyncCQ, link: Link) -> None:
    refused = {
        "sends on another CQ than that of this AsyncCQ: see QP.send_cq$": acq.send(link.b.qp, None),
        "receives on another CQ than that of this AsyncCQ: see QP.recv_cq$": acq.recv(
            link.qp, None
        ),
        "sends and receives on another CQ than that of this AsyncCQ: see QP.send_cq and recv_cq$": (
            acq.completion(5, qp=link.b.qp)
        ),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=rf"^QP \d+ {words}"):
            await call


async def test_a_bad_argument_is_refused_at_once_and_leaves_nothing(
    acq: AsyncCQ, link: Link
) -> None:
    async with acq.scope() as scope:
        for what, call in bad_calls(link, acq).items():
            with pytest.raises((TypeError, ValueError)):
                await call()
            assert scope.outstanding == 0, what
            assert outstanding(link.qp) == (0, 0), what
        link.take(2)
        link.qp.post_send(None, opcode=WROpcode.SEND_WITH_IMM, imm_data=7, send_flags=0)
        assert link.arrived(1) == [7], "nothing was sent before"
        assert acq.stats.arms == 0
        assert (await acq.send(link.qp, link.sg, wr_id=5)).wr_id == 5
    assert acq._awaited == 0


@pytest.mark.link(max_send_wr=1)
async def test_a_bad_one_that_waited_for_room_does_not_hold_up_those_behind(
    acq: AsyncCQ, link: Link
) -> None:
    full = await fill(acq, link)
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
