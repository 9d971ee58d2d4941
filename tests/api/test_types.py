# SPDX-License-Identifier: MIT
"""What users do has the types that it is said to have: for type checkers, which read these tests,
and on a device, where each value is looked at. test_types_aio.py is the same for cqnotify.aio, and
test_promised_types.py for whatever has a type of its own."""

from __future__ import annotations

import array
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from types_support import DEADLINE, Pair, exchange

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
    AccessFlags,
    CompletionChannel,
    CompletionError,
    Context,
    CQStats,
    GIDEntry,
    MWType,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    SuccessfulCompletion,
    VerbsError,
    WCArray,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WorkCompletion,
    WROpcode,
    inc_rkey,
)
from cqnotify.hw import DM, TD, AdviseMRAdvice, ParentDomain
from cqnotify.testing import Endpoint, connect, wait_completions

if TYPE_CHECKING:
    from typing import assert_type
else:
    from runtime_types import assert_type

# ---- devices and memory -------------------------------------------------------------------


def test_memory(rdma_pd: PD) -> None:
    assert_type(rdma_pd.context, Context)
    assert_type(rdma_pd.context.find_gid(), GIDEntry)
    over = MR(rdma_pd, bytearray(64), access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    assert_type(over, MR)
    with MR(rdma_pd, 4096) as mr:
        assert_type(mr, MR)
        assert_type(mr.pd, PD)
        assert_type(mr.write(b"hello"), int)
        assert_type(mr.read(5), bytes)
        assert_type(bytes(memoryview(mr)), bytes)
        assert_type(len(mr), int)
        assert_type(mr.access, AccessFlags)
        for number in (mr.addr, mr.length, mr.lkey, mr.rkey):
            assert_type(number, int)
        sge = mr[:8]
        assert_type(sge, SGE)
        assert_type(sge.mr, MR)
        assert_type(sge.with_lkey(mr.lkey), SGE)
        for number in (sge.addr, sge.length, sge.lkey, len(sge)):
            assert_type(number, int)
    assert_type(mr.closed, bool)
    over.close()
    with suppress(VerbsError):  # not every device pages on demand
        assert_type(MR.implicit(rdma_pd).sub_mr(bytearray(8)), MR)
    with suppress(VerbsError):
        assert_type(MR.from_dm(rdma_pd, DM(rdma_pd.context, 64)), MR)
        assert_type(MR.null(rdma_pd).pointer, int)
        assert_type(ParentDomain(rdma_pd, TD(rdma_pd.context)).td, TD | None)
        assert_type(Context.from_fd(rdma_pd.context.cmd_fd), Context)
        assert_type(rdma_pd.advise_mr(AdviseMRAdvice.PREFETCH, MR(rdma_pd, 64)), None)


@pytest.mark.not_on_iwarp("siw grants no more inline data than it was asked for")
def test_memory_of_others(rdma_pd: PD, rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    numbers = numpy.zeros((4, 2), dtype=numpy.uint64)
    buffers = [
        *[MR(rdma_pd, bytearray(64)), MR(rdma_pd, memoryview(bytearray(64)))],
        *[MR(rdma_pd, array.array("Q", bytes(64))), MR(rdma_pd, mmap.mmap(-1, 64))],
        *[MR(rdma_pd, numbers), MR(rdma_pd, numpy.zeros(16, dtype=numpy.float32))],
    ]
    for mr in buffers:
        assert_type(mr, MR)
        assert_type(mr.write(numpy.arange(8, dtype=numpy.uint64)), int)
        assert mr.length == 64
    assert numbers.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    b.qp.post_recv(b.mr[:64])
    with suppress(VerbsError):  # not every device takes data inline
        a.qp.post_send(numbers[0], send_flags=SendFlags.INLINE | SendFlags.SIGNALED)
        wait_completions(a.send_cq)[0].raise_for_status()


def test_memory_window(rdma_context: Context, rdma_rc_pair: Pair) -> None:
    a, _ = rdma_rc_pair
    bindable = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
    with MR(a.pd, 64, access=bindable) as mr, MW(a.pd, MWType.TYPE_1) as mw:
        assert_type(mw, MW)
        assert_type(mw.pd, PD)
        assert_type(mw.mw_type, MWType | int)
        assert_type(mw.rkey, int)
        assert_type(inc_rkey(mw.rkey), int)
        a.qp.bind_mw(mw, mr[:8], access=AccessFlags.REMOTE_READ, wr_id=1)
        wait_completions(a.send_cq)


# ---- completions --------------------------------------------------------------------------


def test_completion_channel(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    channel = b.channel
    assert_type(channel, CompletionChannel)
    assert_type(channel.context, Context)
    assert_type(channel.fileno(), int)
    assert_type(channel.try_get_event(), CQ | None)
    b.recv_cq.req_notify()
    with pytest.raises(TimeoutError):
        channel.get_event(0)
    exchange(a, b)
    cq = channel.get_event()
    assert_type(cq, CQ)
    cq.ack()
    cq.req_notify(solicited_only=False)
    exchange(a, b)
    cq = channel.get_event(timeout=DEADLINE)
    assert_type(cq, CQ)
    cq.ack()
    cq.req_notify()
    exchange(a, b)
    for cq in channel:
        assert_type(cq, CQ)
        cq.ack(1)
        break


def test_cq(rdma_context: Context, rdma_channel: CompletionChannel) -> None:
    with CQ(rdma_context, 16, wc_flags=WCExFlags.BYTE_LEN) as extended:
        none: CompletionChannel | None = extended.channel
        assert none is None
        assert_type(extended.wc_flags, WCExFlags | None)
    cq = CQ(rdma_context, 16, channel=rdma_channel, comp_vector=0, user_data="mine")
    assert_type(cq, CQ)
    assert_type(cq.context, Context)
    descriptor: int = cq.channel.fileno()
    assert descriptor == rdma_channel.fileno()
    assert_type(cq.wc_flags, WCExFlags | None)
    assert_type(cq.arm_if_empty(), bool)
    assert_type(cq.poll(), list[WorkCompletion])
    assert_type(cq.poll(16, spin=1e-6), list[WorkCompletion])
    assert_type(cq.poll(spin="auto"), list[WorkCompletion])
    assert_type(cq.stats, CQStats)
    for number in (cq.cqe, cq.comp_vector, cq.unacked, cq.stats.events, cq.stats.spurious):
        assert_type(number, int)
    cq.resize(32)
    cq.close()


def test_poll(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    wcs = WCArray(4)
    for _ in range(2):
        b.qp.post_recv(b.mr)
        a.qp.post_send(a.mr[0:8])
        wait_completions(a.send_cq)
    while (found := b.recv_cq.poll_into(wcs)) == 0:
        pass
    assert_type(found, int)
    assert_type(wcs[0], WorkCompletion)
    assert_type(wcs[0:1], list[WorkCompletion])
    for wc in wcs:
        assert_type(wc, WorkCompletion)
    assert_type(wcs.index(wcs[0]), int)
    assert_type(wcs.count(wcs[0]), int)
    assert_type(wcs.capacity, int)
    assert_type(len(wcs), int)
    assert_type(bytes(memoryview(wcs)), bytes)
    exchange(a, b)
    b.qp.post_recv(b.mr, wr_id=5)
    a.qp.post_send(a.mr[0:8])
    while not (ids := b.recv_cq.poll_ids()):
        pass
    assert_type(ids, list[int])


def look_closely(wc: SuccessfulCompletion) -> None:
    assert_type(wc, SuccessfulCompletion)
    assert_type(wc.raise_for_status(), SuccessfulCompletion)
    assert_type(wc.byte_len, int)
    assert_type(wc.byte_len - 1, int)
    assert_type(wc.opcode, WCOpcode | int)
    assert_type(wc.wc_flags, WCFlags)
    assert_type(wc.imm_data, int | None)
    if wc.imm_data is not None:
        assert_type(wc.imm_data, int)


@pytest.mark.parametrize("wc_flags", [None, WCExFlags.BYTE_LEN])
def test_successful_completion(rdma_rc_pair: Pair, wc_flags: WCExFlags | None) -> None:
    """Of every operation, wherever it completes, if the CQ was asked for the length."""
    a, b = rdma_rc_pair
    ends = [Endpoint(a.ctx), Endpoint(a.ctx)]
    for end in ends:
        end.qp.close()
        end.send_cq = CQ(a.ctx, 16, channel=end.channel, wc_flags=wc_flags)
        end.recv_cq = CQ(a.ctx, 16, channel=end.channel, wc_flags=wc_flags)
        end.qp = QP(end.pd, QPType.RC, send_cq=end.send_cq, recv_cq=end.recv_cq)
    a, b = connect(*ends)
    there: dict[str, Any] = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey}
    b.qp.post_recv([RecvWR(b.mr), RecvWR(b.mr), RecvWR(b.mr)])
    for wr in [
        SendWR(a.mr[:8]),
        SendWR(a.mr[:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=1),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_WRITE, **there),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=1, **there),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_READ, **there),
        SendWR(a.mr[:8], opcode=WROpcode.ATOMIC_FETCH_AND_ADD, compare_add=1, **there),
    ]:
        a.qp.post_send(wr)
        look_closely(wait_completions(a.send_cq)[0].raise_for_status())
    for wc in map(WorkCompletion.raise_for_status, wait_completions(b.recv_cq, 3)):
        look_closely(wc)


def same(wc: WorkCompletion) -> WorkCompletion:
    return wc


def test_a_successful_completion_is_a_completion(rdma_rc_pair: Pair) -> None:
    (wc,) = exchange(*rdma_rc_pair)
    good = wc.raise_for_status()
    assert same(good) is wc
    assert_type([good], list[SuccessfulCompletion])
    wc = wc.raise_for_status()  # the name has the narrower type from here on
    assert_type(wc.byte_len, int)


LOST = (WCStatus.RETRY_EXC_ERR, WCStatus.RNR_RETRY_EXC_ERR)


def told(wc: WorkCompletion) -> str:
    match wc:
        case WorkCompletion(status=WCStatus.SUCCESS, opcode=WCOpcode.RECV, byte_len=int(size)):
            return f"a message of {assert_type(size, int)} bytes"
        case WorkCompletion(status=WCStatus() as status) if status in LOST:
            return f"lost, {status.name}"
        case WorkCompletion(status=WCStatus() as status):
            return assert_type(status, WCStatus).name
        case _:
            return "unheard of"


def test_matching(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    (wc,) = exchange(a, b)
    assert told(wc) == "a message of 8 bytes"
    b.qp.post_recv(b.mr)
    b.qp.modify(qp_state=QPState.ERR)
    (wc,) = wait_completions(b.recv_cq)
    assert told(wc) == "WR_FLUSH_ERR"
    try:
        wc.raise_for_status()
    except CompletionError as e:
        assert_type(e.wc, WorkCompletion)
        assert_type(e.status, WCStatus | int)
        for number in (e.wr_id, e.qp_num, e.vendor_err):
            assert_type(number, int)
    else:
        pytest.fail("it has not failed")
