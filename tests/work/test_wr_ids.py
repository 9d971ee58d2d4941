# SPDX-License-Identifier: MIT
"""A completion belongs to the one request that it is of, whatever wr_ids the user gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support import ALL_REMOTE, UNSIGNALED, closes, outstanding, until, wait_completions

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    WCArray,
    WCExFlags,
    WCStatus,
    WROpcode,
)

IDS = (0, 1, 2**24 - 1, 2**24, 2**40, 2**40 + 5, 2**63, 2**64 - 1)
DEPTH = 64


def new_cq(ctx: Context) -> CQ:
    return CQ(ctx, 256, channel=CompletionChannel(ctx))


class Loop:
    """A queue pair that is connected to itself. Both its sides complete on one CQ."""

    def __init__(self, pd: PD, cq: CQ, srq: SRQ | None = None) -> None:
        self.pd, self.cq = pd, cq
        receives: dict[str, Any] = {"srq": srq} if srq else {"max_recv_wr": DEPTH}
        self.qp = QP(pd, QPType.RC, send_cq=cq, max_send_wr=DEPTH, **receives)
        self.mr = MR(pd, 4096, access=ALL_REMOTE)
        self.connect()

    def connect(self) -> None:
        self.qp.connect(self.qp.address(), access=ALL_REMOTE, rnr_retry=7)

    def write(self, mr: MR, wr_id: int = 0, flags: SendFlags = SendFlags.SIGNALED) -> None:
        self.qp.post_send(
            mr[0:8],
            wr_id=wr_id,
            opcode=WROpcode.RDMA_WRITE,
            remote_addr=self.mr.addr,
            rkey=self.mr.rkey,
            send_flags=flags,
        )

    def wait_written(self) -> None:
        """What was posted before is done, and nobody polled: the memory tells."""
        self.write(MR(self.pd, bytearray(b"the last")), flags=UNSIGNALED)
        until(lambda: self.mr.read(8) == b"the last", "written")


@pytest.fixture
def loop(ctx: Context) -> Loop:
    return Loop(PD(ctx), new_cq(ctx))


def in_flight(mrs: Sequence[MR]) -> list[bool]:
    """Of which of them a request is in flight; the others are closed."""
    return [not closes(mr) for mr in mrs]


# ---- the user's wr_id comes back ---------------------------------------------------------


def objects(cq: CQ) -> list[int]:
    wcs = cq.poll()
    assert all(wc.ok for wc in wcs)
    return [wc.wr_id for wc in wcs]


def rows(cq: CQ) -> list[int]:
    wcs = WCArray(16)
    return [wcs[i].wr_id for i in range(cq.poll_into(wcs))]


@pytest.mark.parametrize("poll", [objects, CQ.poll_ids, rows])
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_any_number_of_64_bits_comes_back(
    ctx: Context, poll: Callable[[CQ], list[int]], extended: bool, shared: bool
) -> None:
    pd = PD(ctx)
    cq = CQ(ctx, 64, wc_flags=WCExFlags(0x7F) if extended else None)
    srq = SRQ(pd, 32) if shared else None
    loop = Loop(pd, cq, srq)
    receiver = srq or loop.qp
    for wr_id in IDS:
        receiver.post_recv(loop.mr[0:8], wr_id=wr_id)
    receiver.post_recv([RecvWR(loop.mr[0:8], wr_id=wr_id) for wr_id in IDS])
    for wr_id in IDS:
        loop.qp.post_send(loop.mr[8:16], wr_id=wr_id)
    loop.qp.post_send([SendWR(loop.mr[8:16], wr_id=wr_id) for wr_id in IDS])
    got: list[int] = []

    def all_came() -> bool:
        got.extend(poll(cq))
        return len(got) >= 4 * len(IDS)

    until(all_came, "completions")
    assert sorted(got) == sorted(IDS * 4)
    assert outstanding(loop.qp) == (0, 0)
    assert srq is None or srq.outstanding == 0


# ---- equal wr_ids never mix --------------------------------------------------------------


def test_one_cq_and_one_wr_id_for_both_sides_leave_no_receive_behind(loop: Loop) -> None:
    """Sends that succeed without a completion are the last ones."""
    received = MR(loop.pd, 64)
    for _ in range(20):
        loop.qp.post_recv(received[0:8])
    for _ in range(7):
        loop.write(loop.mr, flags=UNSIGNALED)
    loop.wait_written()
    loop.qp.modify(qp_state=QPState.ERR)

    def all_flushed() -> bool:
        assert not any(wc.ok for wc in loop.cq.poll())
        return loop.qp.outstanding_recvs == 0

    until(all_flushed, "every receive")
    received.close()


def test_equal_wr_ids_of_many_queues_are_released_by_their_own_completions(ctx: Context) -> None:
    rng = random.Random(3)
    pd, cq = PD(ctx), new_cq(ctx)
    loops = {loop.qp.qp_num: loop for loop in (Loop(pd, cq) for _ in range(6))}
    memory = {number: [MR(pd, 64) for _ in range(12)] for number in loops}
    order = [number for number in loops for _ in range(12)]
    rng.shuffle(order)
    waiting = {number: list(mrs) for number, mrs in memory.items()}
    for number in order:
        loops[number].write(waiting[number].pop(0), wr_id=5)
    polled = dict.fromkeys(loops, 0)

    def all_came() -> bool:
        for wc in cq.poll(rng.randrange(1, 40)):
            assert (wc.wr_id, wc.status) == (5, WCStatus.SUCCESS)
            polled[wc.qp_num] += 1
            memory[wc.qp_num][polled[wc.qp_num] - 1].close()
        return sum(polled.values()) == len(order)

    until(all_came, "completions")
    assert [outstanding(loop.qp) for loop in loops.values()] == [(0, 0)] * len(loops)


def test_of_equal_wr_ids_of_an_srq_that_one_is_released_whose_message_was_polled(
    ctx: Context,
) -> None:
    pd = PD(ctx)
    srq = SRQ(pd, 8)
    first, second = (Loop(pd, new_cq(ctx), srq) for _ in range(2))
    mrs = [MR(pd, 64) for _ in range(3)]
    for mr in mrs:
        srq.post_recv(mr[0:8], wr_id=5)
    first.mr.write(b"a letter")
    first.qp.post_send(first.mr[0:8], wr_id=5)
    until(lambda: mrs[0].read(8) == b"a letter", "the first message")
    second.qp.post_send(second.mr[0:8], wr_id=5)
    assert [wc.wr_id for wc in wait_completions(second.cq, 2)] == [5, 5]
    assert srq.outstanding == 2
    assert in_flight(mrs) == [True, False, True]
    wait_completions(first.cq, 2)
    assert in_flight(mrs) == [False, False, True]


# ---- queues that come and go -------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset"])
def test_what_completed_before_the_end_keeps_its_wr_id(loop: Loop, end: str) -> None:
    for wr_id in IDS:
        loop.write(loop.mr, wr_id)
    loop.wait_written()
    ended = loop.qp.qp_num
    loop.qp.close() if end == "close" else loop.qp.modify(qp_state=QPState.RESET)
    loop.mr.close()
    other = Loop(loop.pd, loop.cq)
    other.write(other.mr, wr_id=77)
    got: list[tuple[int, int]] = []

    def other_came() -> bool:
        got.extend((wc.qp_num, wc.wr_id) for wc in loop.cq.poll())
        return got[-1:] == [(other.qp.qp_num, 77)]

    until(other_came, "the completion of the other")
    assert got[:-1] == [(ended, wr_id) for wr_id in IDS[: len(got) - 1]]
    assert outstanding(other.qp) == (0, 0)


def test_many_queue_pairs_use_a_cq_one_after_the_other(ctx: Context) -> None:
    pd, cq = PD(ctx), new_cq(ctx)
    stays = Loop(pd, cq)
    for i in range(100):
        goes = Loop(pd, cq)
        goes.write(goes.mr, wr_id=i)
        stays.write(stays.mr, wr_id=1000 + i)
        assert {wc.wr_id for wc in wait_completions(cq, 2)} == {i, 1000 + i}
        goes.write(goes.mr, flags=UNSIGNALED)
        goes.qp.close()
        goes.mr.close()
    assert outstanding(stays.qp) == (0, 0)


def test_a_request_after_a_reset_is_none_of_those_before(loop: Loop) -> None:
    for i in range(20):
        for _ in range(i):
            loop.qp.post_recv(loop.mr[0:8], wr_id=5)
        loop.qp.modify(qp_state=QPState.RESET)
        assert outstanding(loop.qp) == (0, 0)
        loop.connect()
        loop.qp.post_recv(loop.mr[0:8], wr_id=100 + i)
        loop.qp.post_send(loop.mr[8:16], wr_id=200 + i)
        assert {wc.wr_id for wc in wait_completions(loop.cq, 2)} == {100 + i, 200 + i}
        assert outstanding(loop.qp) == (0, 0)
