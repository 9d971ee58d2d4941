# SPDX-License-Identifier: MIT
"""What fails on the way."""

from __future__ import annotations

import errno

import pytest
from support import Endpoint, Pair, connect, wait_completions, wait_one

from cqnotify import MR, CompletionError, Context, QPType, VerbsError, WCStatus, WROpcode


def test_a_wrong_rkey_is_a_remote_access_error(pair: Pair) -> None:
    a, b = pair
    a.qp.post_send(
        a.mr[0:8],
        wr_id=5,
        opcode=WROpcode.RDMA_WRITE,
        remote_addr=b.mr.addr,
        rkey=b.mr.rkey ^ 0xFF00,
    )
    wc = wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert (wc.wr_id, wc.qp_num) == (5, a.qp.qp_num)
    assert not wc.ok
    fields = ("opcode", "byte_len", "wc_flags", "imm_data", "src_qp", "slid", "sl", "pkey_index")
    assert [getattr(wc, name) for name in fields] == [None] * len(fields)
    with pytest.raises(CompletionError, match=r"work request 5 on QP \d+ failed") as e:
        wc.raise_for_status()
    assert e.value.status is WCStatus.REM_ACCESS_ERR
    assert (e.value.wr_id, e.value.qp_num, e.value.vendor_err) == (5, wc.qp_num, wc.vendor_err)
    assert e.value.wc is wc


@pytest.mark.parametrize(
    ("wr_id", "what"), [(5, "work request 5"), (1 << 63, "a work request")], ids=["own", "aio's"]
)
def test_the_text_of_a_failure_names_the_status_and_a_wr_id_that_was_chosen(
    pair: Pair, wr_id: int, what: str
) -> None:
    a, b = pair
    write = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": b.mr.addr, "rkey": b.mr.rkey ^ 0xFF00}
    a.qp.post_send(a.mr[0:8], wr_id=wr_id, **write)
    wc = wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    with pytest.raises(CompletionError) as e:
        wc.raise_for_status()
    assert str(e.value) == (
        f"{what} on QP {wc.qp_num} failed: REM_ACCESS_ERR, remote access error "
        f"(vendor_err {wc.vendor_err:#x})"
    )
    assert e.value.wr_id == wr_id


def test_a_wrong_lkey_is_a_local_protection_error(pair: Pair) -> None:
    a, b = pair
    b.mr.write(b"secret")
    sge = a.mr[0:6].with_lkey(a.mr.lkey ^ 0xFF)
    a.qp.post_send(sge, opcode=WROpcode.RDMA_READ, remote_addr=b.mr.addr, rkey=b.mr.rkey, wr_id=5)
    assert wait_one(a.scq, WCStatus.LOC_PROT_ERR).wr_id == 5
    assert a.mr.read(6) == bytes(6)


def test_a_wrong_lkey_of_a_receive_fails_both_ends(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[8:16].with_lkey(b.mr.lkey ^ 0xFF), wr_id=6)
    a.qp.post_send(a.mr[0:8].with_lkey(a.mr.lkey), wr_id=5)  # the same key again
    assert wait_one(a.scq, WCStatus.REM_OP_ERR).wr_id == 5
    (received,) = wait_completions(b.rcq, 1)
    assert (received.ok, received.wr_id) == (False, 6)
    assert b.qp.outstanding == (0, 0)


def test_memory_without_remote_access_can_not_be_written(pair: Pair) -> None:
    a, b = pair
    private = MR(b.pd, 64)
    a.qp.post_send(
        a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=private.addr, rkey=private.rkey
    )
    wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert private.read() == bytes(64)


def test_a_qp_in_error_flushes_what_is_posted(pair: Pair) -> None:
    a, b = pair
    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    b.rcq.req_notify()
    b.qp.modify(qp_state=6)
    assert b.channel.get_event(timeout=30) is b.rcq
    flushed = wait_completions(b.rcq, 3)
    assert [(wc.wr_id, wc.status) for wc in flushed] == [
        (i, WCStatus.WR_FLUSH_ERR) for i in range(3)
    ]
    assert b.qp.outstanding == (0, 0)
    a.qp.modify(qp_state=6)
    a.qp.post_send(a.mr[0:8], wr_id=8)
    assert wait_one(a.scq, WCStatus.WR_FLUSH_ERR).wr_id == 8


def test_no_receive_posted_ends_in_rnr_retry_exceeded(ctx: Context) -> None:
    a, _ = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC), rnr_retry=1, min_rnr_timer=1)
    a.qp.post_send(a.mr[0:8])
    wait_one(a.scq, WCStatus.RNR_RETRY_EXC_ERR)


def test_a_full_send_queue_says_so_and_loses_nothing(ctx: Context) -> None:
    a, _ = connect(Endpoint(ctx, QPType.RC, max_send_wr=4), Endpoint(ctx, QPType.RC), rnr_retry=7)
    posted = 0
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        for _ in range(10_000):
            a.qp.post_send(a.mr[0:8], wr_id=posted)
            posted += 1
    assert e.value.errno == errno.ENOMEM
    assert 4 <= posted < 10_000
    assert a.qp.outstanding == (posted, 0)
    a.qp.modify(qp_state=6)
    flushed = wait_completions(a.scq, posted)
    assert [wc.wr_id for wc in flushed] == list(range(posted))
    assert a.qp.outstanding == (0, 0)


def test_a_full_receive_queue_says_so(ctx: Context) -> None:
    a, _ = connect(Endpoint(ctx, QPType.RC, max_recv_wr=4), Endpoint(ctx, QPType.RC))
    with pytest.raises(VerbsError, match="is full") as e:
        for _ in range(10_000):
            a.qp.post_recv(a.mr[0:8])
    assert e.value.verb == "ibv_post_recv"
    assert a.qp.outstanding[1] >= 4
