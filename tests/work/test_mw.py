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
    Window,
    bind,
    invalidate,
    new_pair,
    of_each_type,
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

BYTE_LEN = WCExFlags.BYTE_LEN

# What a peer can do -------------------------------------------------------------------


@of_each_type
def test_a_peer_writes_reads_and_adds_through_a_window(window: Window) -> None:
    mr, peer = window.mr, window.peer
    window.bind(1024, 2048)
    mr.write(b"\0" * 8, 1032)
    peer.mr.write(b"written!")
    assert window.write(1024) == WCStatus.SUCCESS
    assert mr.read(8, 1024) == b"written!"
    mr.write(b"readable", 2040)
    assert window.request(WROpcode.RDMA_READ, 2040) == WCStatus.SUCCESS
    assert peer.mr.read(8) == b"readable"
    assert window.request(WROpcode.ATOMIC_FETCH_AND_ADD, 1032) == WCStatus.SUCCESS
    assert int.from_bytes(mr.read(8, 1032), "little") == 1


@of_each_type
@pytest.mark.parametrize(
    ("granted", "opcode"),
    [
        (READ, WROpcode.RDMA_WRITE),
        (WRITE, WROpcode.RDMA_READ),
        (READ | WRITE, WROpcode.ATOMIC_FETCH_AND_ADD),
    ],
)
def test_a_peer_can_do_what_the_window_allows_and_nothing_else(
    window: Window, granted: AccessFlags, opcode: WROpcode
) -> None:
    window.bind(access=granted)
    assert window.request(opcode) == REFUSED
    assert window.mr.read(8) == bytes(8)


@of_each_type
@pytest.mark.parametrize("local", [{}, {"access": AccessFlags.LOCAL_WRITE}])
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_window_bound_without_remote_access_lets_the_peer_do_nothing(
    window: Window, local: dict[str, AccessFlags], opcode: WROpcode
) -> None:
    """As it is by default."""
    owner, mw = window.owner, window.mw
    before = mw.rkey
    owner.qp.bind_mw(mw, owner.mr[0:4096], **local)
    assert wait_one(owner.scq).opcode is WCOpcode.BIND_MW
    assert mw.rkey != before
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    assert window.request(opcode) == REFUSED
    assert owner.mr.read(8) == bytes(8)


@of_each_type
@pytest.mark.parametrize("at", [1016, 2041])
def test_a_peer_reaches_nothing_outside_of_the_window_but_on_rxe(
    ctx: Context, window: Window, at: int
) -> None:
    """Soft-RoCE looks at the bounds of the MR, against the specification."""
    window.bind(1024, 2048)
    assert window.write(at) == (WCStatus.SUCCESS if is_rxe(ctx) else REFUSED)


@of_each_type
def test_type_1_is_good_for_all_qps_of_the_pd_and_type_2_for_one(
    ctx: Context, window: Window
) -> None:
    window.bind()
    owner = window.owner
    qp, window.peer = QP(owner.pd, QPType.RC, send_cq=owner.scq), Endpoint(ctx, QPType.RC)
    qp.connect(window.peer.qp.address(), access=ALL)
    window.peer.qp.connect(qp.address())
    is_type_1 = window.mw.mw_type == MWType.TYPE_1
    assert window.write() == (WCStatus.SUCCESS if is_type_1 else REFUSED)


@pytest.mark.parametrize("mw_type", TYPES)
def test_windows_work_on_uc_as_well(ctx: Context, mw_type: MWType) -> None:
    window = Window(new_pair(ctx, QPType.UC), mw_type)
    window.bind(access=WRITE)
    window.peer.mr.write(b"written!")
    assert window.write() == WCStatus.SUCCESS
    until(lambda: window.mr.read(8) == b"written!", "the bytes")


def test_a_zero_based_window_counts_from_its_beginning(window: Window) -> None:
    rkey = window.bind(1024, 2048, WRITE | AccessFlags.ZERO_BASED)
    window.peer.mr.write(b"written!")
    assert request(window.peer, WROpcode.RDMA_WRITE, 16, rkey) == WCStatus.SUCCESS
    assert window.mr.read(8, 1040) == b"written!"


# How a key is taken back ----------------------------------------------------------------


@of_each_type
def test_closing_a_window_takes_its_key_back(window: Window) -> None:
    rkey = window.bind()
    assert window.write() == WCStatus.SUCCESS
    window.mw.close()
    assert window.write(rkey=rkey) == REFUSED
    window.mr.close()
    window.owner.qp.close()


def test_local_inv_takes_the_key_of_type_2_back(window: Window) -> None:
    rkey, addr = window.bind(), window.mr.addr
    invalidate(window.owner, rkey)
    assert window.mw.rkey == rkey
    window.mr.close()  # the window does not use it any more
    assert request(window.peer, WROpcode.RDMA_WRITE, addr, rkey) == REFUSED
    window.owner.qp.close()


@pytest.mark.parametrize("fields", [None, BYTE_LEN | WCExFlags.IMM, BYTE_LEN])
def test_a_peer_gives_a_key_of_type_2_back_by_send_with_inv(
    ctx: Context, fields: WCExFlags | None
) -> None:
    """It is heard of whatever fields the CQ was made with, and told if these are among them."""
    owner, peer = Endpoint(ctx, QPType.RC, access=BINDABLE), Endpoint(ctx, QPType.RC)
    if fields is not None:
        owner.recv_cq = CQ(ctx, 16, channel=owner.channel, wc_flags=fields)
        owner.qp = QP(owner.pd, QPType.RC, send_cq=owner.scq, recv_cq=owner.rcq)
    connect(owner, peer, access=ALL)
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = bind(owner, mw, 0, 4096)
    told = None if fields == BYTE_LEN else rkey
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == WCStatus.SUCCESS
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()
    for i in range(3):
        owner.qp.post_recv(owner.mr[8192:8200], wr_id=i)
    peer.qp.post_send(peer.mr[0:5], opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=rkey)
    assert wait_one(peer.scq).opcode is WCOpcode.SEND
    wc = wait_one(owner.rcq)
    assert (wc.opcode, wc.byte_len, wc.imm_data) == (WCOpcode.RECV, 5, None)
    assert wc.invalidated_rkey == told
    if told is not None:
        assert wc.wc_flags is not None
        assert WCFlags.WITH_INV in wc.wc_flags
        assert WCFlags.IP_CSUM_OK not in wc.wc_flags
    # Messages of other kinds say nothing of a key.
    peer.qp.post_send(peer.mr[0:5])
    peer.qp.post_send(peer.mr[0:5], opcode=WROpcode.SEND_WITH_IMM, imm_data=rkey)
    plain, imm = wait_completions(owner.rcq, 2)
    assert (plain.invalidated_rkey, plain.imm_data) == (None, None)
    assert (imm.invalidated_rkey, imm.imm_data) == (None, told)
    wait_completions(peer.scq, 2)
    assert request(peer, WROpcode.RDMA_WRITE, owner.mr.addr, rkey) == REFUSED
    owner.mr.close()
    owner.qp.close()


@pytest.mark.parametrize("size", [0, 4096])
@pytest.mark.parametrize("window", [MWType.TYPE_1], indirect=True)
def test_binding_type_1_anew_or_to_nothing_takes_the_old_key_back(
    window: Window, size: int
) -> None:
    first = window.bind()
    assert window.bind(0, size, ALL if size else AccessFlags(0)) != first
    if size:
        assert window.write() == WCStatus.SUCCESS
        assert window.write(rkey=first) == REFUSED
    else:
        assert window.write() == REFUSED
        window.mr.close()


def test_a_key_that_was_given_back_is_bound_anew(window: Window) -> None:
    owner, peer = window.owner, window.peer
    keys = []
    for i in range(3):
        keys.append(window.bind(4096 * i, 4096 * i + 4096))
        assert window.write(4096 * i) == WCStatus.SUCCESS
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
def test_a_key_that_is_none_fails(window: Window, opcode: WROpcode) -> None:
    owner = window.owner
    rkey = window.bind() ^ 0x80
    if opcode == WROpcode.LOCAL_INV:
        owner.qp.post_send(None, opcode=opcode, invalidate_rkey=rkey, wr_id=9)
        (wc,) = wait_completions(owner.scq, 1)
    else:  # rxe fails the receive, and acknowledges the send
        owner.qp.post_recv(None, wr_id=9)
        window.peer.qp.post_send(None, opcode=opcode, invalidate_rkey=rkey)
        (wc,) = wait_completions(owner.rcq, 1)
    assert (wc.wr_id, wc.ok) == (9, False)
    with pytest.raises(BusyError, match="this MR is still used by 1 MW"):
        owner.mr.close()  # it is bound as before
