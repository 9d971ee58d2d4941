# SPDX-License-Identifier: MIT
"""ATOMIC_WRITE, which rxe has from Linux 6.3 on; before, that it says so."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from posting import remote
from support import Endpoint, Pair, connect, is_rxe, kernel, outstanding, wait_completions, wait_one

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


MakePair = Callable[..., Pair]


@pytest.fixture
def has_it(ctx: Context) -> bool:
    there = bool(ctx.query_device_ex().device_cap_flags_ex & DeviceCapFlags.ATOMIC_WRITE)
    assert not is_rxe(ctx) or there == (kernel() >= (6, 3))
    return there


@pytest.fixture
def new_pair(ctx: Context, has_it: bool) -> MakePair:
    if not has_it:
        pytest.skip("this device has no ATOMIC_WRITE")

    def make(**options: Any) -> Pair:
        a = Endpoint(ctx, QPType.RC, atomic_write=True, **options)
        return connect(a, Endpoint(ctx, QPType.RC))

    return make


def test_a_device_has_it_or_says_so(pd: PD, cq: CQ, has_it: bool) -> None:
    if has_it:
        QP(pd, QPType.RC, send_cq=cq, atomic_write=True).close()
        return
    with pytest.raises(VerbsError, match="not supported by this device: .*ATOMIC_WRITE") as e:
        QP(pd, QPType.RC, send_cq=cq, atomic_write=True)
    assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_create_qp_ex")
    cq.close()
    pd.close()


def to(b: Endpoint, offset: int = 0, **more: Any) -> dict[str, Any]:
    """The arguments of an atomic write there."""
    return {"opcode": WROpcode.ATOMIC_WRITE, **remote(b, offset), **more}


@pytest.mark.parametrize("form", ["slice", "buffer", "request", "request of a buffer"])
def test_eight_bytes_are_there(new_pair: MakePair, form: str) -> None:
    a, b = new_pair()
    a.mr.write(WORD, 100)
    sg = bytearray(WORD) if "buffer" in form else a.mr[100:108]
    if "request" in form:
        a.qp.post_send(SendWR(sg, wr_id=7, **to(b, 16)))
    else:
        a.qp.post_send(sg, wr_id=7, **to(b, 16))
    wc = wait_one(a.scq)
    assert (wc.wr_id, wc.opcode) == (7, WCOpcode.ATOMIC_WRITE)
    assert b.mr.read(32) == bytes(16) + WORD + bytes(8)
    assert outstanding(a.qp) == (0, 0)


def test_it_goes_in_order_with_the_other_operations(new_pair: MakePair) -> None:
    a, b = new_pair()
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
    new_pair: MakePair, sq_sig_all: bool
) -> None:
    a, b = new_pair(sq_sig_all=sq_sig_all)
    extra = MR(a.pd, 8)
    a.qp.post_send(extra, send_flags=SendFlags(0), **to(b))
    with pytest.raises(BusyError, match="needed by 1 work request"):
        extra.close()
    a.qp.post_send(WORD, wr_id=1, **to(b, 8))
    wait_completions(a.scq, 1 + sq_sig_all)
    assert outstanding(a.qp) == (0, 0)
    extra.close()


def test_a_wrong_key_fails_it(new_pair: MakePair) -> None:
    a, b = new_pair()
    a.qp.post_send(WORD, wr_id=3, **to(b, rkey=b.mr.rkey ^ 0xFF00))
    wc = wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert wc.wr_id == 3
    assert a.qp.query().qp_state is QPState.ERR
    assert b.mr.read(8) == bytes(8)


def test_a_queue_that_gets_full_says_so_and_goes_on(new_pair: MakePair) -> None:
    a, b = new_pair(max_send_wr=4, cqe=4096)
    posted = reaped = 0
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        while posted < 100_000:
            a.qp.post_send(WORD, **to(b))
            posted += 1
            if posted - reaped > a.scq.cqe // 2:  # the device can be as fast as this
                reaped += len(a.scq.poll(a.scq.cqe))
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_wr_atomic_write")
    wait_completions(a.scq, posted - reaped)
    assert outstanding(a.qp) == (0, 0)
    a.qp.post_send(WORD, wr_id=5, **to(b))
    assert wait_one(a.scq).wr_id == 5


def test_what_does_not_go_together_is_refused(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_send_sge=2), Endpoint(ctx, QPType.RC))
    whole = a.mr[0:8]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (a.mr[0:4], {}, "sg has 4 bytes in 1 element: ATOMIC_WRITE needs 8 bytes in one element"),
        ([a.mr[0:4], a.mr[4:8]], {}, "sg has 8 bytes in 2 elements: ATOMIC_WRITE needs"),
        (b"123456789", {}, "sg has 9 bytes"),
        (None, {}, "sg has 0 bytes in 0 elements"),
        (whole, remote(b, 4), "ATOMIC_WRITE needs a multiple of 8"),
        (whole, {"send_flags": SendFlags.INLINE}, "INLINE is not possible with ATOMIC_WRITE"),
        (whole, {"send_flags": SendFlags.SOLICITED}, "SOLICITED is not possible with ATOMIC_WRITE"),
        (whole, {"rkey": None}, "rkey is missing"),
    ]
    for sg, changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            SendWR(sg, **to(b, **changes))
    for post in (
        lambda: a.qp.post_send(SendWR(whole, **to(b))),
        lambda: a.qp.post_send(WORD, **to(b)),
    ):
        with pytest.raises(ValueError, match="ATOMIC_WRITE: that needs a QP made with atomic_wri"):
            post()
    for qp_type in (QPType.UC, QPType.UD):
        with pytest.raises(ValueError, match="atomic_write is possible with QPType.RC only"):
            QP(a.pd, qp_type, send_cq=a.scq, atomic_write=True)
    assert outstanding(a.qp) == (0, 0)


def test_it_is_posted_alone(new_pair: MakePair) -> None:
    a, b = new_pair()
    wr = SendWR(a.mr[0:8], **to(b))
    with pytest.raises(ValueError, match=r"\[1\] of the list: ATOMIC_WRITE is not possible in a"):
        a.qp.post_send([SendWR(a.mr[0:8]), wr])
    assert outstanding(a.qp) == (0, 0)


def test_it_needs_room_among_the_reads_in_flight(new_pair: MakePair) -> None:
    a, b = new_pair()
    for end in (a, b):
        end.qp.modify(qp_state=QPState.RESET)
    connect(a, b, max_rd_atomic=0)
    with pytest.raises(ValueError, match="ATOMIC_WRITE: max_rd_atomic of QP .* is 0"):
        a.qp.post_send(WORD, **to(b))


def test_the_peer_must_be_allowed_to_write(new_pair: MakePair) -> None:
    a, b = new_pair()
    closed = MR(b.pd, 64, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    a.qp.post_send(WORD, **to(b, remote_addr=closed.addr, rkey=closed.rkey))
    wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
