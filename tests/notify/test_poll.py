# SPDX-License-Identifier: MIT
"""Taking completions in bulk, with extended fields, and preparing to sleep."""

import ctypes
import gc
import struct
import weakref
from typing import Any

import numpy
import pytest
from support import (
    DEADLINE,
    GRH,
    Endpoint,
    Pair,
    connect,
    deliver,
    outstanding,
    send,
    until,
    wait_completions,
    wait_one,
    waiting,
)

from cqnotify import (
    AH,
    CQ,
    MR,
    QP,
    ClosedError,
    CompletionError,
    Context,
    QPState,
    QPType,
    VerbsError,
    WCArray,
    WCExFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)

STANDARD = WCExFlags(0x7F)
ROW = struct.Struct("=Q8I2H2BH")


def datagram(pair: Pair, **how: Any) -> None:
    """It is in the receiver's CQ when it returns."""
    a, b = pair
    entry = b.ctx.find_gid()
    to = {"remote_qpn": b.qp.qp_num, "remote_qkey": b.qp.query().qkey}
    with AH(a.pd, dgid=entry.gid, sgid_index=entry.index) as ah:
        b.qp.post_recv(b.mr[0:128])
        a.qp.post_send(a.mr[0:8], ah=ah, **to, **how)
        wait_one(a.scq)


def next_row(cq: CQ) -> WCArray:
    wcs = WCArray(1)
    until(lambda: cq.poll_into(wcs) == 1, "a completion")
    return wcs


def with_imm(pair: Pair, imm: int, wr_id: int = 0) -> None:
    """A message of five bytes, which is in the receiver's CQ when it returns."""
    a, b = pair
    b.qp.post_recv(b.mr[0:64], wr_id=wr_id)
    a.qp.post_send(a.mr[0:5], opcode=WROpcode.SEND_WITH_IMM, imm_data=imm)
    wait_one(a.scq)


# ---- ids ---------------------------------------------------------------------------------


def test_ids_come_in_order_up_to_max_entries(pair: Pair) -> None:
    deliver(pair, [5, 2**64 - 1, 0, 7])
    cq = pair[1].rcq
    assert cq.poll_ids(2) == [5, 2**64 - 1]
    assert cq.poll_ids() == [0, 7]
    assert cq.poll_ids() == []
    assert cq.stats.completions == 4


def test_a_failed_one_ends_the_ids_and_is_raised_next(pair: Pair) -> None:
    deliver(pair, [1, 2])
    b = pair[1]
    for i in (10, 11):
        b.qp.post_recv(b.mr[0:8], wr_id=i)
    b.qp.modify(qp_state=QPState.ERR)
    assert b.rcq.poll_ids() == [1, 2]
    failed = []

    def another() -> bool:
        try:
            assert b.rcq.poll_ids() == []
        except CompletionError as e:
            failed.append((e.wr_id, e.status, e.wc.wr_id))
        return len(failed) == 2

    until(another, "both are flushed")
    assert failed == [(i, WCStatus.WR_FLUSH_ERR, i) for i in (10, 11)]
    assert b.rcq.stats.completions == 4


# ---- arrays ------------------------------------------------------------------------------


def test_an_array_is_filled_again_and_again(pair: Pair) -> None:
    deliver(pair, [3, 1, 4, 1, 5])
    cq = pair[1].rcq
    wcs = WCArray(3)
    assert len(wcs) == 0
    assert wcs.capacity == 3
    assert (cq.poll_into(wcs), len(wcs)) == (3, 3)
    assert [wc.wr_id for wc in wcs] == [3, 1, 4]
    assert repr(wcs) == "<WCArray with 3 of 3 completions>"
    assert (cq.poll_into(wcs), len(wcs)) == (2, 2)
    assert [wc.wr_id for wc in wcs] == [1, 5]
    assert wcs[-1].byte_len == 8
    assert wcs[0].opcode is WCOpcode.RECV
    with pytest.raises(IndexError, match="brought 2 completions"):
        wcs[2]
    assert (cq.poll_into(wcs), len(wcs)) == (0, 0)


def test_an_array_is_a_buffer_of_rows(pair: Pair) -> None:
    b = pair[1]
    with_imm(pair, 0x01020304, wr_id=9)
    wcs = WCArray(4)
    view = memoryview(wcs)
    assert (view.itemsize, view.shape, view.readonly, view.ndim) == (48, (4,), True, 1)
    assert b.rcq.poll_into(wcs) == 1
    row = ROW.unpack_from(view.tobytes())
    assert row[:3] == (9, 0, WCOpcode.RECV)
    assert row[4:7] == (5, 0x01020304, b.qp.qp_num)
    assert row[8] & 2  # WITH_IMM; rxe sets GRH, too
    assert row[-1] == WCExFlags.BYTE_LEN | WCExFlags.IMM | WCExFlags.QP_NUM


def test_numpy_sees_the_rows_without_copying(pair: Pair) -> None:
    b = pair[1]
    wcs = WCArray(8)
    rows = numpy.asarray(wcs)
    assert rows.shape == (8,)
    assert rows.dtype.itemsize == 48
    deliver(pair, [7, 8, 9])
    n = b.rcq.poll_into(wcs)
    assert rows["wr_id"][:n].tolist() == [7, 8, 9]
    assert set(rows["qp_num"][:n].tolist()) == {b.qp.qp_num}
    assert (rows["status"][:n] == WCStatus.SUCCESS).all()
    del wcs  # the view keeps the memory
    assert rows["wr_id"][0] == 7


def test_failures_in_an_array_have_no_other_fields(pair: Pair) -> None:
    b = pair[1]
    b.qp.post_recv(b.mr[0:8], wr_id=77)
    b.qp.modify(qp_state=QPState.ERR)
    wcs = WCArray(2)
    until(lambda: b.rcq.poll_into(wcs) == 1, "it is flushed")
    (wc,) = wcs
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (77, WCStatus.WR_FLUSH_ERR, None, None)
    row = ROW.unpack_from(memoryview(wcs).tobytes())
    assert (row[2], *row[4:6], *row[7:12]) == (0,) * 8
    assert row[-1] == WCExFlags.QP_NUM


def test_a_row_is_overwritten_as_a_whole(pair: Pair) -> None:
    """By a plain success, of which most fields tell nothing: a send."""
    a, b = pair
    with_imm(pair, 2**32 - 1, wr_id=2**64 - 1)
    wcs = WCArray(1)
    assert b.rcq.poll_into(wcs) == 1
    assert wcs[0].imm_data == 2**32 - 1
    send(pair, [2**63])
    until(lambda: a.scq.poll_into(wcs) == 1, "it is sent")
    (wc,) = wcs
    assert (wc.wr_id, wc.ok, wc.opcode, wc.imm_data) == (2**63, True, WCOpcode.SEND, None)
    valid = WCExFlags.BYTE_LEN | WCExFlags.QP_NUM
    row = (2**63, 0, WCOpcode.SEND, 0, wc.byte_len, 0, a.qp.qp_num, *[0] * 6, valid)
    assert ROW.unpack(memoryview(wcs).tobytes()) == row


def test_an_array_tells_who_sent_a_datagram(ud_pair: Pair) -> None:
    a, b = ud_pair
    datagram(ud_pair)
    (wc,) = next_row(b.rcq)
    assert (wc.src_qp, wc.byte_len, wc.pkey_index) == (a.qp.qp_num, GRH + 8, 0)
    assert wc.slid is not None


def test_each_attribute_is_the_field_of_its_name(ud_pair: Pair) -> None:
    """Of these some are always 0 on RoCE: so they are written into the memory of an array."""
    datagram(ud_pair, opcode=WROpcode.SEND_WITH_IMM, imm_data=1)
    wcs = next_row(ud_pair[1].rcq)
    rows = numpy.asarray(wcs)
    values = {"wr_id": 2**63, "byte_len": 70, "imm_data": 71, "qp_num": 72, "src_qp": 73}
    values |= {"pkey_index": 74, "slid": 75, "sl": 76, "dlid_path_bits": 77}
    changed = rows.copy()
    for name, value in values.items():
        changed[name] = value
    ctypes.memmove(rows.ctypes.data, changed.ctypes.data, rows.nbytes)
    assert {name: getattr(wcs[0], name) for name in values} == values


# ---- extended ----------------------------------------------------------------------------


def extended_pair(ctx: Context, wc_flags: WCExFlags, qp_type: QPType = QPType.RC) -> Pair:
    a, b = Endpoint(ctx, qp_type), Endpoint(ctx, qp_type)
    b.qp.close()
    b.recv_cq = CQ(ctx, 64, channel=b.channel, wc_flags=wc_flags)
    b.qp = QP(b.pd, qp_type, send_cq=b.scq, recv_cq=b.rcq, max_recv_wr=64)
    return connect(a, b)


def test_extended_completions_come_by_the_same_poll(ctx: Context) -> None:
    pair = extended_pair(ctx, STANDARD)
    b = pair[1]
    assert b.rcq.wc_flags == STANDARD
    for _ in range(3):  # no stale ones follow, however often the end of the queue is met
        deliver(pair, [1, 2, 3])
        got = b.rcq.poll(64)
        assert [(wc.wr_id, wc.ok, wc.opcode, wc.byte_len, wc.qp_num) for wc in got] == [
            (i, True, WCOpcode.RECV, 8, b.qp.qp_num) for i in (1, 2, 3)
        ]
        assert b.rcq.poll() == []
    assert outstanding(b.qp) == (0, 0)


@pytest.mark.parametrize("asked", [WCExFlags(0), WCExFlags.IMM])
def test_of_extended_completions_only_what_was_asked_for_is_there(
    ctx: Context, asked: WCExFlags
) -> None:
    pair = extended_pair(ctx, asked)
    b = pair[1]
    assert b.rcq.wc_flags == asked | WCExFlags.QP_NUM  # always: it says which memory may be let go
    imm = 0xDEADBEEF if asked else None
    for _ in range(2):
        with_imm(pair, 0xDEADBEEF, wr_id=4)
    for (wc,) in (b.rcq.poll(1), next_row(b.rcq)):
        assert (wc.wr_id, wc.status, wc.opcode) == (4, WCStatus.SUCCESS, WCOpcode.RECV)
        assert (wc.qp_num, wc.imm_data) == (b.qp.qp_num, imm)
        assert (wc.byte_len, wc.src_qp, wc.sl) == (None,) * 3
        assert (wc.completion_ts, wc.completion_wallclock_ns) == (None, None)
        assert (wc.cvlan, wc.flow_tag) == (None, None)


def test_the_sender_of_a_datagram_comes_extended_too(ctx: Context) -> None:
    pair = extended_pair(ctx, STANDARD, QPType.UD)
    datagram(pair)
    wc = wait_one(pair[1].rcq)
    assert (wc.src_qp, wc.byte_len, wc.sl) == (pair[0].qp.qp_num, GRH + 8, 0)
    assert wc.pkey_index == 0


@pytest.mark.parametrize("is_extended", [False, True])
def test_the_sender_of_a_datagram_is_known_although_the_qp_is_closed(
    ctx: Context, ud_pair: Pair, is_extended: bool
) -> None:
    a, b = pair = extended_pair(ctx, STANDARD, QPType.UD) if is_extended else ud_pair
    datagram(pair)
    b.qp.close()
    wc = wait_one(b.rcq)
    assert (wc.src_qp, wc.byte_len) == (a.qp.qp_num, GRH + 8)


def test_failures_come_extended_too(ctx: Context) -> None:
    b = extended_pair(ctx, STANDARD)[1]
    mr = MR(b.pd, 64)
    b.qp.post_recv(mr, wr_id=6)
    b.qp.modify(qp_state=QPState.ERR)
    wc = wait_one(b.rcq, WCStatus.WR_FLUSH_ERR)
    assert (wc.wr_id, wc.opcode, wc.byte_len, wc.qp_num) == (6, None, None, b.qp.qp_num)
    mr.close()  # no longer pinned


def test_a_cq_that_could_not_be_made_keeps_nothing(ctx: Context) -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    with pytest.raises(VerbsError):
        CQ(ctx, 4, wc_flags=WCExFlags.COMPLETION_TIMESTAMP, user_data=thing)
    del thing
    gc.collect()
    assert gone() is None


# ---- safe to sleep -----------------------------------------------------------------------


def test_with_completions_it_is_not_safe_and_nothing_is_armed(pair: Pair) -> None:
    deliver(pair, [1, 2])
    b = pair[1]
    assert not b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 0
    assert [wc.wr_id for wc in b.rcq.poll()] == [1, 2]  # it took none away
    assert b.rcq.arm_if_empty()


def test_an_armed_cq_is_not_armed_again_until_its_event_was_read(pair: Pair) -> None:
    b = pair[1]
    assert b.rcq.arm_if_empty()
    assert b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 1
    deliver(pair, [1])
    assert not b.rcq.arm_if_empty()
    assert len(b.rcq.poll()) == 1
    # Its event waits unread: it will wake us at once, so there is no need to arm.
    assert b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 1
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    b.rcq.ack()
    assert b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 2


def test_solicited_only_is_widened_but_not_narrowed(pair: Pair) -> None:
    b = pair[1]
    assert b.rcq.arm_if_empty(solicited_only=True)
    assert b.rcq.arm_if_empty(solicited_only=True)
    assert b.rcq.stats.arms == 1
    assert b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 2
    assert b.rcq.arm_if_empty(solicited_only=True)
    assert b.rcq.stats.arms == 2
    send(pair, [1])
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq


def test_an_arm_for_solicited_events_does_not_end_one_for_any(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    b.rcq.req_notify(solicited_only=True)
    assert b.rcq.arm_if_empty()
    assert b.rcq.stats.arms == 2, "it is armed for any still"
    send(pair, [1])
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq


# ---- resize, modify ----------------------------------------------------------------------


def test_a_resized_cq_keeps_its_completions_and_its_arm(pair: Pair) -> None:
    b = pair[1]
    deliver(pair, [1, 2, 3])
    b.rcq.req_notify()
    b.rcq.resize(1000)
    assert b.rcq.cqe >= 1000
    send(pair, [4])
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert [wc.wr_id for wc in wait_completions(b.rcq, 4)] == [1, 2, 3, 4]
    b.rcq.resize(2)
    assert 2 <= b.rcq.cqe < 1000


def test_resizing_under_traffic_loses_nothing(wire_pair: Pair) -> None:
    a, b = wire_pair
    n, got = 400, []
    sizes = [64, 1000, 100, 2000, 300]

    def receive() -> None:
        while len(got) < n:
            if b.rcq.arm_if_empty():
                b.channel.get_event(DEADLINE).ack()
            got.extend(b.rcq.poll_ids(64))

    with waiting(receive) as waiter:
        for start in range(0, n, 16):
            until(lambda: len(got) >= start - 32, "what the CQ holds fits the smallest size")  # noqa: B023
            for i in range(start, start + 16):
                b.qp.post_recv(b.mr[0:64], wr_id=i)
            for _ in range(16):
                a.qp.post_send(a.mr[0:8])
            b.rcq.resize(sizes[start // 16 % len(sizes)])
            wait_completions(a.scq, 16)
    waiter.join()
    assert got == list(range(n))


def test_a_size_that_does_not_fit_is_refused_and_harms_nothing(pair: Pair) -> None:
    b = pair[1]
    deliver(pair, list(range(10)))
    before = b.rcq.cqe
    with pytest.raises(VerbsError, match="does it hold more completions than that") as e:
        b.rcq.resize(2)
    assert e.value.verb == "ibv_resize_cq"
    assert b.rcq.cqe == before
    assert b.rcq.poll_ids() == list(range(10))


# ---- a loop over a channel ---------------------------------------------------------------


def test_a_loop_over_a_channel_gets_its_events_and_ends_when_it_is_closed(ctx: Context) -> None:
    with Context(ctx.name) as other:
        a, b = connect(Endpoint(other, QPType.RC), Endpoint(other, QPType.RC))
        seen: list[CQ] = []

        def loop() -> str:
            for cq in b.channel:
                cq.ack()
                seen.append(cq)
                cq.req_notify()
                cq.poll()
            return "ended"

        b.rcq.req_notify()
        with waiting(loop) as waiter:
            for n in (1, 2):
                send((a, b), [n])
                until(lambda n=n: len(seen) >= n, "the event")  # type: ignore[misc]
            waiter.asleep()
            b.channel.interrupt()
        with pytest.raises(InterruptedError):
            waiter.join()
        with waiting(loop) as waiter:
            other.close()
        assert waiter.join() == "ended"
        with pytest.raises(ClosedError):
            iter(b.channel)
        assert list(seen[:2]) == [b.rcq, b.rcq]
