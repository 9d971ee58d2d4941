# SPDX-License-Identifier: MIT
"""Memory windows: what a peer can do through one, and how its key is taken back."""

from __future__ import annotations

import pytest
from mw_support import (
    ALL,
    BINDABLE,
    READ,
    REFUSED,
    TYPES,
    WRITE,
    bind,
    invalidate,
    new_pair,
    request,
)
from support import UNSIGNALED, Endpoint, Pair, connect, is_rxe, until, wait_completions, wait_one

from cqnotify import (
    CQ,
    MW,
    QP,
    AccessFlags,
    BusyError,
    Context,
    MWType,
    QPType,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
    inc_rkey,
)

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
