# SPDX-License-Identifier: MIT
"""Memory windows: what a peer reaches through one, when no more, and what a window needs."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import DEADLINE, Endpoint, connect, is_rxe, kernel, until, wait_completions, wait_one

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    AccessFlags,
    BusyError,
    ClosedError,
    Context,
    MWType,
    QPState,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)

READ, WRITE = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_WRITE
ATOMIC = AccessFlags.REMOTE_ATOMIC
ALL = READ | WRITE | ATOMIC
BINDABLE = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND  # nothing for a peer but by a window
TYPES = [MWType.TYPE_1, MWType.TYPE_2]
UNSIGNALED = SendFlags(0)
REFUSED = WCStatus.REM_ACCESS_ERR

Pair = tuple[Endpoint, Endpoint]


def new_pair(ctx: Context, qp_type: QPType = QPType.RC) -> Pair:
    """The owner of the windows, and its peer."""
    owner, peer = Endpoint(ctx, qp_type, access=BINDABLE), Endpoint(ctx, qp_type)
    return connect(owner, peer, access=ALL if qp_type == QPType.RC else WRITE)


@pytest.fixture
def mw_pair(ctx: Context) -> Pair:
    return new_pair(ctx)


def bind(owner: Endpoint, mw: MW, a: int, b: int, access: AccessFlags = ALL, **more: Any) -> int:
    """Returns the key; the window is bound by then."""
    owner.qp.bind_mw(mw, owner.mr[a:b], access=access, **more)
    wc = wait_one(owner.scq)
    assert wc.opcode is WCOpcode.BIND_MW
    return mw.rkey


def request(peer: Endpoint, opcode: WROpcode, addr: int, rkey: int, size: int = 8) -> WCStatus:
    """What comes of an operation of the peer's."""
    add = 1 if opcode == WROpcode.ATOMIC_FETCH_AND_ADD else None
    peer.qp.post_send(peer.mr[0:size], opcode=opcode, remote_addr=addr, rkey=rkey, compare_add=add)
    (wc,) = wait_completions(peer.scq, 1)
    assert isinstance(wc.status, WCStatus)
    return wc.status


def invalidate(owner: Endpoint, rkey: int) -> None:
    owner.qp.post_send(None, opcode=WROpcode.LOCAL_INV, invalidate_rkey=rkey)
    assert wait_one(owner.scq).opcode is WCOpcode.LOCAL_INV


# What a peer can do -------------------------------------------------------------------


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_peer_writes_reads_and_adds_through_a_window(mw_pair: Pair, mw_type: MWType) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 1024, 2048)
    owner.mr.write(b"\0" * 8, 1032)
    peer.mr.write(b"written!")
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr + 1024, rkey) == WCStatus.SUCCESS
    assert owner.mr.read(8, 1024) == b"written!"
    owner.mr.write(b"readable", 2040)
    assert request(peer, WROpcode.RDMA_READ, owner.mr.addr + 2040, rkey) == WCStatus.SUCCESS
    assert peer.mr.read(8) == b"readable"
    add = request(peer, WROpcode.ATOMIC_FETCH_AND_ADD, owner.mr.addr + 1032, rkey)
    assert add == WCStatus.SUCCESS
    assert int.from_bytes(owner.mr.read(8, 1032), "little") == 1


@pytest.mark.parametrize("mw_type", TYPES)
@pytest.mark.parametrize(
    ("granted", "opcode"),
    [
        (READ, WROpcode.RDMA_WRITE),
        (WRITE, WROpcode.RDMA_READ),
        (READ | WRITE, WROpcode.ATOMIC_FETCH_AND_ADD),
    ],
)
def test_a_peer_can_do_what_the_window_allows_and_nothing_else(
    mw_pair: Pair, mw_type: MWType, granted: AccessFlags, opcode: WROpcode
) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 4096, granted)
    assert request(peer, opcode, owner.mr.addr, rkey) == REFUSED
    assert owner.mr.read(8) == bytes(8)


@pytest.mark.parametrize("mw_type", TYPES)
@pytest.mark.parametrize("local", [AccessFlags(0), AccessFlags.LOCAL_WRITE])
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_window_bound_without_remote_access_lets_the_peer_do_nothing(
    mw_pair: Pair, mw_type: MWType, local: AccessFlags, opcode: WROpcode
) -> None:
    """As it is by default."""
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    before = mw.rkey
    if local:
        owner.qp.bind_mw(mw, owner.mr[0:4096], access=local)
    else:
        owner.qp.bind_mw(mw, owner.mr[0:4096])
    assert wait_one(owner.scq).opcode is WCOpcode.BIND_MW
    assert mw.rkey != before
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    assert request(peer, opcode, owner.mr.addr, mw.rkey) == REFUSED
    assert owner.mr.read(8) == bytes(8)


@pytest.mark.parametrize("mw_type", TYPES)
def test_local_write_adds_nothing_to_what_a_window_allows(mw_pair: Pair, mw_type: MWType) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 4096, READ | AccessFlags.LOCAL_WRITE)
    owner.mr.write(b"readable")
    assert request(peer, WROpcode.RDMA_READ, owner.mr.addr, rkey) == WCStatus.SUCCESS
    assert peer.mr.read(8) == b"readable"
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == REFUSED


@pytest.mark.parametrize("mw_type", TYPES)
@pytest.mark.parametrize("at", [-8, 65536 - 4])
def test_a_peer_reaches_nothing_outside_of_the_mr(mw_pair: Pair, mw_type: MWType, at: int) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 65536)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr + at, rkey) == REFUSED


@pytest.mark.parametrize("mw_type", TYPES)
@pytest.mark.parametrize("at", [1016, 2041])
def test_a_peer_reaches_nothing_outside_of_the_window_but_on_rxe(
    ctx: Context, mw_type: MWType, at: int
) -> None:
    """Soft-RoCE looks at the bounds of the MR, against the specification."""
    owner, peer = new_pair(ctx)
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 1024, 2048)
    got = request(peer, WROpcode.RDMA_WRITE, owner.mr.addr + at, rkey)
    assert got == (WCStatus.SUCCESS if is_rxe(ctx) else REFUSED)


def test_without_a_window_the_mr_is_closed_to_the_peer(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd)
    bind(owner, mw, 0, 4096)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, owner.mr.rkey) == REFUSED


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_window_that_was_never_bound_opens_nothing(mw_pair: Pair, mw_type: MWType) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, mw.rkey) == REFUSED


@pytest.mark.parametrize("mw_type", TYPES)
def test_type_1_is_good_for_all_qps_of_the_pd_and_type_2_for_one(
    ctx: Context, mw_type: MWType
) -> None:
    owner, _peer = new_pair(ctx)
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 4096)
    qp, other = QP(owner.pd, QPType.RC, send_cq=owner.scq), Endpoint(ctx, QPType.RC)
    qp.connect(other.qp.address(), access=ALL)
    other.qp.connect(qp.address())
    got = request(other, WROpcode.RDMA_WRITE, owner.mr.addr, rkey)
    assert got == (WCStatus.SUCCESS if mw_type == MWType.TYPE_1 else REFUSED)


@pytest.mark.parametrize("mw_type", TYPES)
def test_windows_work_on_uc_as_well(ctx: Context, mw_type: MWType) -> None:
    owner, peer = new_pair(ctx, QPType.UC)
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 4096, WRITE)
    peer.mr.write(b"written!")
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS
    until(lambda: owner.mr.read(8) == b"written!", "the bytes")


def test_a_zero_based_window_counts_from_its_beginning(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 1024, 2048, WRITE | AccessFlags.ZERO_BASED)
    peer.mr.write(b"written!")
    assert request(peer, WROpcode.RDMA_WRITE, 16, rkey) == WCStatus.SUCCESS
    assert owner.mr.read(8, 1040) == b"written!"


# How a key is taken back ----------------------------------------------------------------


@pytest.mark.parametrize("mw_type", TYPES)
def test_closing_a_window_takes_its_key_back(mw_pair: Pair, mw_type: MWType) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    rkey = bind(owner, mw, 0, 4096)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS
    mw.close()
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == REFUSED
    owner.mr.close()
    owner.qp.close()


def test_binding_type_1_to_nothing_takes_its_key_back(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd)
    first = bind(owner, mw, 0, 4096)
    second = bind(owner, mw, 0, 0, AccessFlags(0))
    assert second != first
    owner.mr.close()
    assert request(peer, WROpcode.RDMA_WRITE, 0, second) == REFUSED


def test_binding_type_1_anew_takes_the_old_key_back(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd)
    first = bind(owner, mw, 0, 4096)
    second = bind(owner, mw, 0, 4096)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, second) == WCStatus.SUCCESS
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, first) == REFUSED


def test_local_inv_takes_the_key_of_type_2_back(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 0, 4096)
    invalidate(owner, rkey)
    assert mw.rkey == rkey
    owner.mr.close()  # the window does not use it any more
    assert request(peer, WROpcode.RDMA_WRITE, 0, rkey) == REFUSED
    owner.qp.close()


def test_a_key_that_is_given_back_is_heard_of_whatever_fields_a_cq_was_made_with(
    ctx: Context,
) -> None:
    owner, peer = Endpoint(ctx, QPType.RC, access=BINDABLE), Endpoint(ctx, QPType.RC)
    owner.recv_cq = CQ(ctx, 16, channel=owner.channel, wc_flags=WCExFlags.BYTE_LEN)
    owner.qp = QP(owner.pd, QPType.RC, send_cq=owner.scq, recv_cq=owner.rcq)
    connect(owner, peer, access=ALL)
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 0, 4096)
    owner.qp.post_recv(owner.mr[8192:8200])
    peer.qp.post_send(peer.mr[0:5], opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=rkey)
    wc = wait_one(owner.rcq)
    assert (wc.byte_len, wc.invalidated_rkey, wc.imm_data) == (5, None, None)
    owner.mr.close()
    owner.qp.close()


@pytest.mark.parametrize("extended", [False, True])
def test_a_peer_gives_a_key_of_type_2_back_by_send_with_inv(ctx: Context, extended: bool) -> None:
    owner, peer = Endpoint(ctx, QPType.RC, access=BINDABLE), Endpoint(ctx, QPType.RC)
    if extended:
        flags = WCExFlags.BYTE_LEN | WCExFlags.IMM
        owner.recv_cq = CQ(ctx, 16, channel=owner.channel, wc_flags=flags)
        owner.qp = QP(owner.pd, QPType.RC, send_cq=owner.scq, recv_cq=owner.rcq)
    connect(owner, peer, access=ALL)
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 0, 4096)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    for i in range(3):
        owner.qp.post_recv(owner.mr[8192:8200], wr_id=i)
    peer.qp.post_send(peer.mr[0:5], opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=rkey)
    assert wait_one(peer.scq).opcode is WCOpcode.SEND
    wc = wait_one(owner.rcq)
    assert (wc.opcode, wc.byte_len, wc.imm_data) == (WCOpcode.RECV, 5, None)
    assert wc.invalidated_rkey == rkey
    assert wc.wc_flags is not None
    assert WCFlags.WITH_INV in wc.wc_flags
    assert WCFlags.IP_CSUM_OK not in wc.wc_flags
    # Messages of other kinds say nothing of a key.
    peer.qp.post_send(peer.mr[0:5])
    peer.qp.post_send(peer.mr[0:5], opcode=WROpcode.SEND_WITH_IMM, imm_data=rkey)
    plain, imm = wait_completions(owner.rcq, 2)
    assert (plain.invalidated_rkey, plain.imm_data) == (None, None)
    assert (imm.invalidated_rkey, imm.imm_data) == (None, rkey)
    wait_completions(peer.scq, 2)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == REFUSED
    owner.mr.close()
    owner.qp.close()


def test_a_key_that_was_given_back_is_bound_anew(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    keys = []
    for i in range(3):
        keys.append(bind(owner, mw, 4096 * i, 4096 * i + 4096))
        assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr + 4096 * i, keys[-1]) == 0
        owner.qp.post_recv(owner.mr[60000:60008])
        peer.qp.post_send(None, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=keys[-1])
        wait_one(peer.scq)
        wait_one(owner.rcq)
    assert keys == [keys[0], inc_rkey(keys[0]), inc_rkey(inc_rkey(keys[0]))]


def test_the_message_that_gives_a_key_back_may_be_read_before_the_bind_is(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    owner.qp.post_recv(None)
    owner.qp.bind_mw(mw, owner.mr[0:4096], access=ALL)
    # A send behind it on the same QP: when it arrived, the window is bound.
    peer.qp.post_recv(None)
    owner.qp.post_send(None, send_flags=UNSIGNALED)
    wait_one(peer.rcq)
    peer.qp.post_send(None, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=mw.rkey)
    assert wait_one(owner.rcq).invalidated_rkey == mw.rkey
    with pytest.raises(BusyError, match="this MR is still needed by 1 work request"):
        owner.mr.close()
    wait_one(owner.scq)
    owner.mr.close()
    owner.qp.close()


@pytest.mark.parametrize("opcode", [WROpcode.LOCAL_INV, WROpcode.SEND_WITH_INV])
def test_a_key_that_is_none_fails(mw_pair: Pair, opcode: WROpcode) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 0, 4096) ^ 0x80
    if opcode == WROpcode.LOCAL_INV:
        owner.qp.post_send(None, opcode=opcode, invalidate_rkey=rkey, wr_id=9)
        (wc,) = wait_completions(owner.scq, 1)
    else:  # rxe fails the receive, and acknowledges the send
        owner.qp.post_recv(None, wr_id=9)
        peer.qp.post_send(None, opcode=opcode, invalidate_rkey=rkey)
        (wc,) = wait_completions(owner.rcq, 1)
    assert (wc.wr_id, wc.ok) == (9, False)
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()  # it is bound as before


# Keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mw_type", TYPES)
def test_each_bind_gives_a_new_key_that_is_known_at_once(mw_pair: Pair, mw_type: MWType) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    before = mw.rkey
    owner.qp.bind_mw(mw, owner.mr[0:4096], access=READ)
    assert mw.rkey == inc_rkey(before)
    wait_one(owner.scq)
    assert mw.rkey == inc_rkey(before)


def test_the_last_byte_of_a_key_of_type_2_can_be_chosen(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = mw.rkey & ~0xFF | 0x5A
    assert bind(owner, mw, 0, 4096, rkey=rkey) == rkey
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS
    invalidate(owner, rkey)
    for bad in (rkey ^ 0x100, 1 << 31, 0):
        with pytest.raises(ValueError, match="only the last byte can be chosen"):
            owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, rkey=bad)
    with pytest.raises(ValueError, match="rkey is 4294967296"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, rkey=1 << 32)
    with pytest.raises(ValueError, match="a window of type 1 gets its own"):
        owner.qp.bind_mw(MW(owner.pd), owner.mr[0:8], access=READ, rkey=rkey)


def test_inc_rkey_counts_in_the_last_byte() -> None:
    assert [inc_rkey(k) for k in (0, 0x1234, 0x12FF, 0xFFFFFFFF)] == [1, 0x1235, 0x1200, 0xFFFFFF00]


def test_a_bind_and_the_message_with_its_key_are_one_call(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = inc_rkey(mw.rkey)
    owner.mr.write(rkey.to_bytes(4, "big"), 100)
    peer.qp.post_recv(peer.mr[0:4])
    owner.qp.post_send(
        [
            SendWR(
                owner.mr[0:64],
                opcode=WROpcode.BIND_MW,
                mw=mw,
                access=WRITE,
                rkey=rkey,
                send_flags=UNSIGNALED,
            ),
            SendWR(owner.mr[100:104], wr_id=1),
        ]
    )
    assert mw.rkey == rkey
    wait_one(peer.rcq)
    told = int.from_bytes(peer.mr.read(4), "big")
    peer.mr.write(b"written!")
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, told) == WCStatus.SUCCESS
    assert owner.mr.read(8) == b"written!"
    assert wait_one(owner.scq).wr_id == 1  # and that the bind was done
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()


def test_a_request_that_binds_is_used_many_times(mw_pair: Pair) -> None:
    owner, peer = mw_pair
    mw = MW(owner.pd, MWType.TYPE_2)
    wr = SendWR(owner.mr[0:64], opcode=WROpcode.BIND_MW, mw=mw, access=WRITE)
    assert repr(wr) == "<SendWR wr_id=0, BIND_MW, 64 bytes>"
    for _ in range(3):
        owner.qp.post_send(wr)
        wait_one(owner.scq)
        assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, mw.rkey) == WCStatus.SUCCESS
        owner.qp.post_send(SendWR(opcode=WROpcode.LOCAL_INV, invalidate_rkey=mw.rkey))
        wait_one(owner.scq)


# What fails ------------------------------------------------------------------------------------


def test_a_bind_that_fails_leaves_the_window_as_it_was(mw_pair: Pair) -> None:
    """One of type 2 that is bound already, which only the device knows for sure."""
    owner = mw_pair[0]
    mw = MW(owner.pd, MWType.TYPE_2)
    other = MR(owner.pd, 4096, access=BINDABLE)
    rkey = bind(owner, mw, 0, 4096)
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
    mw_pair: Pair,
) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, MWType.TYPE_2)
    other = MR(owner.pd, 4096, access=BINDABLE)
    rkey = bind(owner, mw, 0, 4096)
    binds = SendWR(
        other[:], opcode=WROpcode.BIND_MW, mw=mw, access=READ, wr_id=5, send_flags=UNSIGNALED
    )
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


@pytest.mark.parametrize("mw_type", TYPES)
def test_what_a_bind_in_flight_needs_stays_open(mw_pair: Pair, mw_type: MWType) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ)
    for thing in (mw, owner.mr):
        with pytest.raises(BusyError, match="still needed by 1 work request in flight"):
            thing.close()
    if mw_type == MWType.TYPE_2:
        with pytest.raises(BusyError, match="this QP is still used by 1 MW"):
            owner.qp.close()
    wait_one(owner.scq)
    with pytest.raises(BusyError, match="this MR is still used by 1 MW: close that first"):
        owner.mr.close()
    with pytest.raises(BusyError, match="1 MW"):
        owner.pd.close()
    if mw_type == MWType.TYPE_2:
        with pytest.raises(BusyError, match="this QP is still used by 1 MW: close that first"):
            owner.qp.close()
    else:
        owner.qp.close()
    mw.close()
    owner.mr.close()
    owner.qp.close()


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


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_failure_that_may_be_of_an_unsignaled_bind_lets_nothing_of_it_go(
    mw_pair: Pair, mw_type: MWType
) -> None:
    """Both requests have the same wr_id, and the first was carried out."""
    owner, peer = mw_pair
    mw = MW(owner.pd, mw_type)
    other = MR(owner.pd, 64)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
    rkey = mw.rkey
    owner.qp.post_send(
        other[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=peer.mr.addr, rkey=peer.mr.rkey ^ 0xFF
    )
    wait_one(owner.scq, REFUSED)
    assert mw.rkey == rkey
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    if mw_type == MWType.TYPE_2:
        with pytest.raises(BusyError, match="this QP is still used by 1 MW"):
            owner.qp.close()
    mw.close()
    owner.mr.close()
    owner.qp.close()
    other.close()


def test_sq_sig_all_counts_for_binds(ctx: Context) -> None:
    owner, peer = (
        Endpoint(ctx, QPType.RC, access=BINDABLE, sq_sig_all=True),
        Endpoint(ctx, QPType.RC),
    )
    connect(owner, peer)
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


@pytest.mark.parametrize("mw_type", TYPES)
def test_of_a_bind_that_a_reset_dropped_it_is_assumed_that_it_was_done(
    mw_pair: Pair, mw_type: MWType
) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    owner.qp.bind_mw(mw, owner.mr[0:64], access=READ, send_flags=UNSIGNALED)
    owner.qp.modify(qp_state=QPState.RESET)
    assert owner.qp.outstanding == (0, 0)
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    mw.close()
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


# What is refused --------------------------------------------------------------------------------


def test_a_window_says_what_it_is(ctx: Context, pd: PD) -> None:
    first, second = MW(pd), MW(pd, MWType.TYPE_2)
    assert (first.mw_type, second.mw_type) == (MWType.TYPE_1, MWType.TYPE_2)
    assert type(second.mw_type) is MWType
    assert first.rkey != second.rkey
    assert first.pd is pd
    assert repr(first) == f"<MW on {ctx.name}, TYPE_1, rkey=0x{first.rkey:x}>"
    first.close()
    assert repr(first) == "<MW closed>"
    for read in (lambda: first.rkey, lambda: first.mw_type, lambda: first.pd):
        with pytest.raises(ClosedError):
            read()


def test_windows_check_their_arguments(ctx: Context, pd: PD) -> None:
    for bad in (0, 3, 255):
        with pytest.raises(ValueError, match=f"mw_type is {bad}: it must be MWType.TYPE_1"):
            MW(pd, bad)
    with pytest.raises(ValueError, match="mw_type is 256"):
        MW(pd, 256)
    with pytest.raises(TypeError, match="mw_type must be an integer"):
        MW(pd, "2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pd must be a"):
        MW(ctx)  # type: ignore[arg-type]
    pd.close()
    with pytest.raises(ClosedError):
        MW(pd)


UNBINDABLE: list[tuple[MWType | None, Callable[[Endpoint], Any], AccessFlags | int, str]] = [
    (None, lambda e: e.mr[0:8], AccessFlags.MW_BIND, "access is 0x10: it can have REMOTE_WRITE"),
    (None, lambda e: e.mr[0:8], READ | AccessFlags.MW_BIND, "access is 0x14: it can have"),
    (
        MWType.TYPE_1,
        lambda e: e.mr[0:8],
        READ | AccessFlags.ZERO_BASED,
        "access is 0x24: it can have",
    ),
    (None, lambda e: e.mr[0:8], 1 << 40, "access is 1099511627776"),
    (None, lambda e: MR(e.pd, 64), READ, "an MR needs access MW_BIND"),
    (
        None,
        lambda e: MR(e.pd, bytes(64), access=AccessFlags.MW_BIND),
        WRITE,
        "for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE",
    ),
    (
        None,
        lambda e: MR(e.pd, bytes(64), access=AccessFlags.MW_BIND),
        ATOMIC,
        "for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE",
    ),
    (MWType.TYPE_1, lambda e: e.mr[0:0], READ, "0 bytes unbind the window, and nobody has access"),
    (MWType.TYPE_2, lambda e: e.mr[0:0], 0, "a window of type 2 is unbound by LOCAL_INV"),
    (
        None,
        lambda e: MR(PD(e.ctx), 64, access=BINDABLE),
        READ,
        "the MR belongs to another PD than the QP",
    ),
]


@pytest.mark.parametrize("mw_type", TYPES)
def test_what_can_not_be_bound_is_refused(mw_pair: Pair, mw_type: MWType) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    for only, make, access, message in UNBINDABLE:
        if only in (None, mw_type):
            with pytest.raises(ValueError, match=message):
                owner.qp.bind_mw(mw, make(owner), access=access)
    for bad in ([owner.mr[0:8]], b"bytes", 5):
        with pytest.raises(
            TypeError, match="sg must be mr\\[a:b\\] or an MR, what mw is bound to, not"
        ):
            owner.qp.bind_mw(mw, bad, access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sg is missing"):
        owner.qp.bind_mw(mw, None, access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the MW belongs to another PD than the QP"):
        owner.qp.bind_mw(MW(PD(owner.ctx), mw_type), owner.mr[0:8], access=READ)
    with pytest.raises(TypeError, match=r"mw must be a cqnotify.MW, not cqnotify.MR"):
        owner.qp.bind_mw(owner.mr, owner.mr[0:8], access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SOLICITED is not possible with BIND_MW"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, send_flags=SendFlags.SOLICITED)
    with pytest.raises(ValueError, match="INLINE is not possible with BIND_MW"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, send_flags=SendFlags.INLINE)
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        owner.qp.bind_mw(mw)  # type: ignore[call-arg]
    mr = MR(owner.pd, 64, access=BINDABLE)
    part = mr[0:8]
    mr.close()
    with pytest.raises(ClosedError, match="this MR is closed"):
        owner.qp.bind_mw(mw, part, access=READ)
    assert (mw.rkey, owner.qp.outstanding) == (rkey, (0, 0))
    mw.close()
    with pytest.raises(ClosedError, match="this MW is closed"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ)


@pytest.mark.parametrize("mw_type", TYPES)
def test_no_window_is_bound_where_no_request_can_be_posted(ctx: Context, mw_type: MWType) -> None:
    ud = Endpoint(ctx, QPType.UD, access=BINDABLE)
    mw = MW(ud.pd, mw_type)
    with pytest.raises(ValueError, match="BIND_MW is not possible on a UD QP"):
        ud.qp.bind_mw(mw, ud.mr[0:8], access=READ)
    rc = QP(ud.pd, QPType.RC, send_cq=ud.scq)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        rc.bind_mw(mw, ud.mr[0:8], access=READ)
    rc.close()
    with pytest.raises(ClosedError):
        rc.bind_mw(mw, ud.mr[0:8], access=READ)
    with pytest.raises(ValueError, match="LOCAL_INV is not possible on a UD QP"):
        ud.qp.post_send(None, opcode=WROpcode.LOCAL_INV, invalidate_rkey=1)


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_queue_that_is_full_binds_nothing(ctx: Context, mw_type: MWType) -> None:
    owner, peer = Endpoint(ctx, QPType.RC, access=BINDABLE, max_send_wr=4), Endpoint(ctx, QPType.RC)
    connect(owner, peer, rnr_retry=7)
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            owner.qp.post_send(None)  # the peer receives nothing
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    with pytest.raises(VerbsError, match="is full"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ)
    assert mw.rkey == rkey
    mw.close()


def test_requests_that_bind_are_checked_when_they_are_built(mw_pair: Pair) -> None:
    owner = mw_pair[0]
    mw, part = MW(owner.pd, MWType.TYPE_2), owner.mr[0:8]
    good: dict[str, Any] = {"opcode": WROpcode.BIND_MW, "mw": mw, "access": READ}
    for changes, message in (
        ({"mw": None}, "mw is missing: BIND_MW needs it"),
        ({"mw": MW(owner.pd)}, "mw is of type 1: that is bound by QP.bind_mw"),
        ({"access": AccessFlags.MW_BIND}, "access is 0x10"),
        ({"imm_data": 1}, "imm_data was given, but BIND_MW does not take it"),
        ({"invalidate_rkey": 1}, "invalidate_rkey was given, but BIND_MW does not take it"),
        ({"remote_addr": 1}, "remote_addr was given, but BIND_MW does not take it"),
        ({"rkey": mw.rkey ^ 0x100}, "only the last byte can be chosen"),
        ({"opcode": WROpcode.SEND}, "mw was given, but SEND does not take it"),
        ({"opcode": WROpcode.SEND, "mw": None}, "access was given, but SEND does not take it"),
    ):
        for call in (SendWR, owner.qp.post_send):
            with pytest.raises(ValueError, match=message):
                call(part, **{**good, **changes})
    foreign = MR(PD(owner.ctx), 64, access=BINDABLE)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the rest"):
        SendWR(foreign, **good)
    wr = SendWR(part, **good)
    mw.close()
    with pytest.raises(ClosedError, match="this MW is closed"):
        owner.qp.post_send(wr)


def test_a_list_binds_a_window_once(mw_pair: Pair) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = mw.rkey
    wr = SendWR(owner.mr[0:8], opcode=WROpcode.BIND_MW, mw=mw, access=READ)
    empty = SendWR(opcode=WROpcode.LOCAL_INV, invalidate_rkey=rkey)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\[2\] of the list: its mw is bound by another"):
            owner.qp.post_send([wr, empty, wr])
        assert (mw.rkey, owner.qp.outstanding) == (rkey, (0, 0))
    owner.qp.post_send([wr])
    wait_one(owner.scq)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"opcode": WROpcode.LOCAL_INV}, "invalidate_rkey is missing: LOCAL_INV needs it"),
    ({"opcode": WROpcode.SEND_WITH_INV}, "invalidate_rkey is missing: SEND_WITH_INV needs it"),
    ({"invalidate_rkey": 1}, "invalidate_rkey was given, but SEND does not take it"),
    ({"opcode": WROpcode.LOCAL_INV, "invalidate_rkey": 1 << 32}, "invalidate_rkey is 4294967296"),
    (
        {"opcode": WROpcode.LOCAL_INV, "invalidate_rkey": 1, "send_flags": SendFlags.SOLICITED},
        "SOLICITED is not possible with LOCAL_INV",
    ),
    (
        {"opcode": WROpcode.SEND_WITH_INV, "invalidate_rkey": 1, "imm_data": 1},
        "imm_data was given, but SEND_WITH_INV does not take it",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID, ids=[m for _, m in INVALID])
def test_what_can_not_invalidate_is_refused(
    mw_pair: Pair, arguments: dict[str, Any], message: str
) -> None:
    owner = mw_pair[0]
    for call in (SendWR, owner.qp.post_send):
        with pytest.raises(ValueError, match=message):
            call(None, **arguments)
    with pytest.raises(ValueError, match="sg was given, but LOCAL_INV does not take it"):
        SendWR(owner.mr, opcode=WROpcode.LOCAL_INV, invalidate_rkey=1)
    with pytest.raises(ValueError, match="SEND_WITH_INV is not possible on a UD QP"):
        QP(owner.pd, QPType.UD, send_cq=owner.scq).post_send(
            owner.mr, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=1
        )
    assert owner.qp.outstanding == (0, 0)
