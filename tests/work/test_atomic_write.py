# SPDX-License-Identifier: MIT
"""ATOMIC_WRITE, which rxe has from Linux 6.3 on; before, that it says so."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from support import Endpoint, Pair, connect, is_rxe, kernel, wait_completions, wait_one

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlags,
    BusyError,
    Context,
    DeviceCapFlags,
    QPState,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

WORD = b"8 bytes!"


def has_it(ctx: Context) -> bool:
    there = bool(ctx.query_device_ex().device_cap_flags_ex & DeviceCapFlags.ATOMIC_WRITE)
    assert not is_rxe(ctx) or there == (kernel() >= (6, 3))
    return there


def new_pair(ctx: Context, **options: Any) -> Pair | None:
    """None where there is no such thing, and the device said so."""
    if has_it(ctx):
        return connect(
            Endpoint(ctx, QPType.RC, atomic_write=True, **options), Endpoint(ctx, QPType.RC)
        )
    pd, cq = PD(ctx), CQ(ctx, 4)
    with pytest.raises(VerbsError, match="not supported by this device: .*ATOMIC_WRITE") as e:
        QP(pd, QPType.RC, send_cq=cq, atomic_write=True)
    assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_create_qp_ex")
    cq.close()
    pd.close()
    return None


def to(b: Endpoint, offset: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "opcode": WROpcode.ATOMIC_WRITE,
        "remote_addr": b.mr.addr + offset,
        "rkey": b.mr.rkey,
        **more,
    }


@pytest.mark.parametrize("form", ["slice", "buffer", "request", "request of a buffer"])
def test_eight_bytes_are_there(ctx: Context, form: str) -> None:
    pair = new_pair(ctx)
    if pair is None:
        return
    a, b = pair
    a.mr.write(WORD, 100)
    sg = bytearray(WORD) if "buffer" in form else a.mr[100:108]
    if "request" in form:
        a.qp.post_send(SendWR(sg, wr_id=7, **to(b, 16)))
    else:
        a.qp.post_send(sg, wr_id=7, **to(b, 16))
    wc = wait_one(a.scq)
    assert (wc.wr_id, wc.opcode) == (7, WCOpcode.ATOMIC_WRITE)
    assert b.mr.read(32) == bytes(16) + WORD + bytes(8)
    assert a.qp.outstanding == (0, 0)


def test_it_goes_in_order_with_the_other_operations(ctx: Context) -> None:
    pair = new_pair(ctx)
    if pair is None:
        return
    a, b = pair
    a.mr.write(bytes(range(64)))
    rest = to(b)
    for i in range(8):
        a.qp.post_send(a.mr[8 * i : 8 * i + 8], wr_id=2 * i, **to(b, 8 * i))
        write = {**rest, "opcode": WROpcode.RDMA_WRITE, "remote_addr": b.mr.addr + 64 + i}
        a.qp.post_send(a.mr[i : i + 1], wr_id=2 * i + 1, **write)
    assert [wc.wr_id for wc in wait_completions(a.scq, 16)] == list(range(16))
    assert b.mr.read(72) == bytes(range(64)) + bytes(range(8))


@pytest.mark.parametrize("sq_sig_all", [False, True])
def test_unsignaled_ones_are_known_by_what_completes_behind_them(
    ctx: Context, sq_sig_all: bool
) -> None:
    pair = new_pair(ctx, sq_sig_all=sq_sig_all)
    if pair is None:
        return
    a, b = pair
    extra = MR(a.pd, 8)
    a.qp.post_send(extra, send_flags=SendFlags(0), **to(b))
    with pytest.raises(BusyError, match="needed by 1 work request"):
        extra.close()
    a.qp.post_send(WORD, wr_id=1, **to(b, 8))
    wait_completions(a.scq, 1 + sq_sig_all)
    assert a.qp.outstanding == (0, 0)
    extra.close()


def test_a_wrong_key_fails_it(ctx: Context) -> None:
    pair = new_pair(ctx)
    if pair is None:
        return
    a, b = pair
    a.qp.post_send(WORD, wr_id=3, **to(b, rkey=b.mr.rkey ^ 0xFF00))
    wc = wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert wc.wr_id == 3
    assert a.qp.query().qp_state is QPState.ERR
    assert b.mr.read(8) == bytes(8)


def test_a_queue_that_gets_full_says_so_and_goes_on(ctx: Context) -> None:
    pair = new_pair(ctx, max_send_wr=4, cqe=4096)
    if pair is None:
        return
    a, b = pair
    posted = reaped = 0
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        while posted < 100_000:
            a.qp.post_send(WORD, **to(b))
            posted += 1
            if posted - reaped > a.scq.cqe // 2:  # the device can be as fast as this
                reaped += len(a.scq.poll(a.scq.cqe))
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_wr_atomic_write")
    wait_completions(a.scq, posted - reaped)
    assert a.qp.outstanding == (0, 0)
    a.qp.post_send(WORD, wr_id=5, **to(b))
    assert wait_one(a.scq).wr_id == 5


def test_what_does_not_go_together_is_refused(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_send_sge=2), Endpoint(ctx, QPType.RC))
    for sg, message in (
        (a.mr[0:4], "sg has 4 bytes in 1 element: ATOMIC_WRITE needs 8 bytes in one element"),
        ([a.mr[0:4], a.mr[4:8]], "sg has 8 bytes in 2 elements: ATOMIC_WRITE needs"),
        (b"123456789", "sg has 9 bytes"),
        (None, "sg has 0 bytes in 0 elements"),
    ):
        with pytest.raises(ValueError, match=message):
            SendWR(sg, **to(b))
    with pytest.raises(ValueError, match=r"ATOMIC_WRITE needs a multiple of 8"):
        SendWR(a.mr[0:8], **to(b, 4))
    for flag in (SendFlags.INLINE, SendFlags.SOLICITED):
        with pytest.raises(ValueError, match=f"{flag.name} is not possible with ATOMIC_WRITE"):
            SendWR(a.mr[0:8], send_flags=flag, **to(b))
    with pytest.raises(ValueError, match="rkey is missing"):
        SendWR(a.mr[0:8], opcode=WROpcode.ATOMIC_WRITE, remote_addr=b.mr.addr)
    wr = SendWR(a.mr[0:8], **to(b))
    with pytest.raises(ValueError, match="ATOMIC_WRITE: that needs a QP made with atomic_write"):
        a.qp.post_send(wr)
    with pytest.raises(ValueError, match="ATOMIC_WRITE: that needs a QP made with atomic_write"):
        a.qp.post_send(WORD, **to(b))
    for qp_type in (QPType.UC, QPType.UD):
        with pytest.raises(ValueError, match="atomic_write is possible with QPType.RC only"):
            QP(a.pd, qp_type, send_cq=a.scq, atomic_write=True)
    assert a.qp.outstanding == (0, 0)


def test_it_is_posted_alone(ctx: Context) -> None:
    pair = new_pair(ctx)
    if pair is None:
        return
    a, b = pair
    wr = SendWR(a.mr[0:8], **to(b))
    with pytest.raises(ValueError, match=r"\[1\] of the list: ATOMIC_WRITE is not possible in a"):
        a.qp.post_send([SendWR(a.mr[0:8]), wr])
    assert a.qp.outstanding == (0, 0)


def test_the_peer_must_be_allowed_to_write(ctx: Context) -> None:
    pair = new_pair(ctx)
    if pair is None:
        return
    a, b = pair
    closed = MR(b.pd, 64, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    a.qp.post_send(WORD, **to(b, remote_addr=closed.addr, rkey=closed.rkey))
    wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
