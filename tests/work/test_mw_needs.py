# SPDX-License-Identifier: MIT
"""Memory windows: their keys, what fails, and what they need to stay open."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from mw_support import (
    ALL,
    BINDABLE,
    READ,
    REFUSED,
    TYPES,
    WRITE,
    Window,
    bind,
    invalidate,
    new_pair,
    of_each_type,
    request,
)
from support import (
    DEADLINE,
    UNSIGNALED,
    Endpoint,
    Pair,
    connect,
    is_rxe,
    kernel,
    outstanding,
    wait_completions,
    wait_one,
)

from cqnotify import (
    MR,
    MW,
    QP,
    BusyError,
    Context,
    MWType,
    QPState,
    QPType,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)

# Keys ---------------------------------------------------------------------------------------


@of_each_type
def test_each_bind_gives_a_new_key_that_is_known_at_once(window: Window) -> None:
    owner, mw = window.owner, window.mw
    before = mw.rkey
    owner.qp.bind_mw(mw, owner.mr[0:4096], access=READ)
    assert mw.rkey == inc_rkey(before)
    wait_one(owner.scq)
    assert mw.rkey == inc_rkey(before)


def test_the_last_byte_of_a_key_of_type_2_can_be_chosen(window: Window) -> None:
    owner, mw = window.owner, window.mw
    rkey = mw.rkey & ~0xFF | 0x5A
    assert bind(owner, mw, 0, 4096, rkey=rkey) == rkey
    assert window.write() == WCStatus.SUCCESS
    invalidate(owner, rkey)
    wrong = [(mw, bad, "only the last byte can be chosen") for bad in (rkey ^ 0x100, 1 << 31, 0)]
    wrong += [(mw, 1 << 32, "rkey is 4294967296")]
    wrong += [(MW(owner.pd), rkey, "a window of type 1 gets its own")]
    for which, bad, words in wrong:
        with pytest.raises(ValueError, match=words):
            owner.qp.bind_mw(which, owner.mr[0:8], access=READ, rkey=bad)


def test_inc_rkey_counts_in_the_last_byte() -> None:
    assert [inc_rkey(k) for k in (0, 0x1234, 0x12FF, 0xFFFFFFFF)] == [1, 0x1235, 0x1200, 0xFFFFFF00]


def test_a_bind_and_the_message_with_its_key_are_one_call(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = inc_rkey(mw.rkey)
    owner.mr.write(rkey.to_bytes(4, "big"), 100)
    peer.qp.post_recv(peer.mr[0:4])
    how = {"opcode": WROpcode.BIND_MW, "access": WRITE, "rkey": rkey, "send_flags": UNSIGNALED}
    binds = SendWR(owner.mr[0:64], mw=mw, **how)
    owner.qp.post_send([binds, SendWR(owner.mr[100:104], wr_id=1)])
    assert mw.rkey == rkey
    wait_one(peer.rcq)
    told = int.from_bytes(peer.mr.read(4), "big")
    peer.mr.write(b"written!")
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, told) == WCStatus.SUCCESS
    assert owner.mr.read(8) == b"written!"
    assert wait_one(owner.scq).wr_id == 1  # and that the bind was done
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()


def test_a_request_that_binds_is_used_many_times(window: Window) -> None:
    owner, mw = window.owner, window.mw
    wr = SendWR(owner.mr[0:64], opcode=WROpcode.BIND_MW, mw=mw, access=WRITE)
    assert repr(wr) == "<SendWR wr_id=0, BIND_MW, 64 bytes>"
    for _ in range(3):
        owner.qp.post_send(wr)
        wait_one(owner.scq)
        assert window.write() == WCStatus.SUCCESS
        owner.qp.post_send(SendWR(opcode=WROpcode.LOCAL_INV, invalidate_rkey=mw.rkey))
        wait_one(owner.scq)


# What fails ------------------------------------------------------------------------------------


def test_a_bind_that_fails_leaves_the_window_as_it_was(window: Window) -> None:
    """One of type 2 that is bound already, which only the device knows for sure."""
    owner, mw = window.owner, window.mw
    other = MR(owner.pd, 4096, access=BINDABLE)
    rkey = window.bind()
    owner.qp.bind_mw(mw, other[:], access=READ, wr_id=5)
    assert mw.rkey == inc_rkey(rkey)
    (wc,) = wait_completions(owner.scq, 1)
    failure = WCStatus.MW_BIND_ERR if kernel() < (6, 3) else WCStatus.WR_FLUSH_ERR
    assert (wc.wr_id, wc.status) == (5, failure)
    assert mw.rkey == rkey
    other.close()
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    assert owner.qp.state == QPState.ERR
    owner.qp.bind_mw(mw, owner.mr[0:8], access=READ)
    wait_one(owner.scq, WCStatus.WR_FLUSH_ERR)
    assert mw.rkey == rkey
    mw.close()
    owner.mr.close()
    owner.qp.close()


def test_an_unsignaled_bind_that_fails_is_told_from_a_later_request_of_its_wr_id(
    window: Window,
) -> None:
    owner, mw = window.owner, window.mw
    other = MR(owner.pd, 4096, access=BINDABLE)
    rkey = window.bind()
    how = {"opcode": WROpcode.BIND_MW, "access": READ, "wr_id": 5, "send_flags": UNSIGNALED}
    binds = SendWR(other[:], mw=mw, **how)
    owner.qp.post_send([binds, SendWR(owner.mr[0:8], wr_id=5)])
    assert [(wc.wr_id, wc.ok) for wc in wait_completions(owner.scq, 2)] == [(5, False)] * 2
    assert mw.rkey == rkey
    del binds
    other.close()


def test_a_window_whose_bind_failed_can_be_bound_elsewhere(ctx: Context) -> None:
    owner, _peer = new_pair(ctx)
    mw = MW(owner.pd)
    before = mw.rkey
    owner.qp.modify(qp_state=QPState.ERR)
    for _ in range(2):
        owner.qp.bind_mw(mw, owner.mr[0:64], access=WRITE)
    assert {wc.status for wc in wait_completions(owner.scq, 2)} == {WCStatus.WR_FLUSH_ERR}
    assert mw.rkey == before
    owner.qp.close()
    peer = Endpoint(ctx, QPType.RC)
    owner.qp = QP(owner.pd, QPType.RC, send_cq=owner.scq)
    connect(owner, peer, access=ALL)
    rkey = bind(owner, mw, 0, 64)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS


@pytest.mark.parametrize("opcode", [WROpcode.LOCAL_INV, WROpcode.SEND_WITH_INV])
def test_rxe_fails_what_it_lacks_on_uc(ctx: Context, opcode: WROpcode) -> None:
    owner, peer = new_pair(ctx, QPType.UC)
    if not is_rxe(ctx):
        pytest.skip("other devices can do it")
    peer.qp.post_recv(None)
    owner.qp.post_send(None, opcode=opcode, invalidate_rkey=5)
    (wc,) = wait_completions(owner.scq, 1)
    assert wc.status == (WCStatus.LOC_QP_OP_ERR if kernel() < (6, 3) else WCStatus.WR_FLUSH_ERR)


# What a window needs -----------------------------------------------------------------------------


def test_a_window_that_moves_lets_its_old_mr_go_when_that_is_known(mw_pair: Pair) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd)
    mrs = [MR(owner.pd, 64, access=BINDABLE) for _ in range(3)]
    owner.qp.bind_mw(mw, mrs[0], access=READ)
    wait_one(owner.scq)
    owner.qp.bind_mw(mw, mrs[1], access=READ, wr_id=1)
    owner.qp.bind_mw(mw, mrs[2], access=READ, wr_id=2)
    for mr in mrs:
        with pytest.raises(BusyError):
            mr.close()
    assert [wc.wr_id for wc in wait_completions(owner.scq, 2)] == [1, 2]
    mrs[0].close()
    mrs[1].close()
    with pytest.raises(BusyError, match="used by 1 MW"):
        mrs[2].close()
    mw.close()
    mrs[2].close()


def test_an_unsignaled_bind_is_known_by_what_completes_behind_it(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
    peer.qp.post_recv(None)
    owner.qp.post_send(None)
    with pytest.raises(BusyError, match="in flight"):
        mw.close()
    wait_one(owner.scq)
    with pytest.raises(BusyError, match="used by 1 MW"):
        owner.mr.close()
    mw.close()
    owner.mr.close()


@of_each_type
def test_a_failure_that_may_be_of_an_unsignaled_bind_lets_nothing_of_it_go(window: Window) -> None:
    """Both requests have the same wr_id, and the first was carried out."""
    owner, peer, mw = window.owner, window.peer, window.mw
    other = MR(owner.pd, 64)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
    rkey = mw.rkey
    wrong = {"remote_addr": peer.mr.addr, "rkey": peer.mr.rkey ^ 0xFF}
    owner.qp.post_send(other[0:8], opcode=WROpcode.RDMA_WRITE, **wrong)
    wait_one(owner.scq, REFUSED)
    assert mw.rkey == rkey
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    if mw.mw_type == MWType.TYPE_2:
        with pytest.raises(BusyError, match="this QP is still used by 1 MW"):
            owner.qp.close()
    mw.close()
    owner.mr.close()
    owner.qp.close()
    other.close()


def test_sq_sig_all_counts_for_binds(ctx: Context) -> None:
    owner = Endpoint(ctx, QPType.RC, access=BINDABLE, sq_sig_all=True)
    connect(owner, Endpoint(ctx, QPType.RC))
    for mw_type in TYPES:
        mw = MW(owner.pd, mw_type)
        owner.qp.bind_mw(mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
        assert owner.qp.outstanding_signaled == 1
        assert wait_one(owner.scq).opcode is WCOpcode.BIND_MW


def test_a_window_of_type_2_is_bound_through_one_qp(ctx: Context) -> None:
    owner, _peer = new_pair(ctx)
    mw = MW(owner.pd, MWType.TYPE_2)
    qp, peer = QP(owner.pd, QPType.RC, send_cq=owner.scq), Endpoint(ctx, QPType.RC)
    qp.connect(peer.qp.address(), access=ALL)
    peer.qp.connect(qp.address())
    rkey = bind(owner, mw, 0, 64)
    with pytest.raises(ValueError, match=f"mw is bound through QP {owner.qp.qp_num}"):
        qp.bind_mw(mw, owner.mr[0:64], access=READ)
    invalidate(owner, rkey)
    owner.qp.close()
    qp.bind_mw(mw, owner.mr[0:64], access=WRITE)
    wait_one(owner.scq)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, mw.rkey) == WCStatus.SUCCESS


@of_each_type
def test_of_a_bind_that_a_reset_dropped_it_is_assumed_that_it_was_done(window: Window) -> None:
    owner = window.owner
    owner.qp.bind_mw(window.mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
    owner.qp.modify(qp_state=QPState.RESET)
    assert outstanding(owner.qp) == (0, 0)
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    window.mw.close()
    owner.mr.close()
    owner.qp.close()


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_context_closes_windows_that_are_bound(ctx: Context, in_flight: bool) -> None:
    """In time: rxe waits for a minute if a QP goes before its windows."""
    with Context(ctx.name) as mine:
        owner, peer = new_pair(mine)
        windows = [MW(owner.pd, t) for t in TYPES for _ in range(2)]
        for mw in windows:
            owner.qp.bind_mw(mw, owner.mr[0:64], access=READ)
        if not in_flight:
            wait_completions(owner.scq, len(windows))
        start = time.monotonic()
    assert time.monotonic() - start < DEADLINE / 2
    assert all(thing.closed for thing in (*windows, owner.qp, owner.mr, peer.qp))


@pytest.mark.parametrize("polled", [False, True])
def test_what_is_forgotten_is_closed_in_time(ctx: Context, polled: bool) -> None:
    owner, _peer = new_pair(ctx)
    mw = MW(owner.pd, MWType.TYPE_2)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ)
    if polled:
        wait_one(owner.scq)
    gone = [weakref.ref(thing) for thing in (mw, owner.qp, owner.mr)]
    start = time.monotonic()
    del owner, mw
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert time.monotonic() - start < DEADLINE / 2
