# SPDX-License-Identifier: MIT
"""post_send() and post_recv(): what arrives, what completes, and what fails on the way."""

from __future__ import annotations

import gc

import pytest
from posting import Post, fill, path_to, remote, stuck
from support import GRH, Endpoint, Pair, connect, outstanding, until, wait_completions, wait_one

from cqnotify import (
    CQ,
    MR,
    CompletionError,
    Context,
    QPState,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WCFlags,
    WCOpcode,
    WCStatus,
    WorkCompletion,
    WROpcode,
)


@pytest.mark.parametrize("size", [0, 1, 64, 1023, 1024, 1025, 40000])
@pytest.mark.parametrize("kind", ["pair", "uc_pair", "wire_pair"])
def test_send_brings_every_byte(request: pytest.FixtureRequest, kind: str, size: int) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(a.mr, size)
    b.qp.post_recv(b.mr[0:size], wr_id=11)
    a.qp.post_send(a.mr[0:size], wr_id=22)
    sent, received = wait_one(a.scq), wait_one(b.rcq)
    assert (sent.wr_id, sent.opcode, sent.qp_num) == (22, WCOpcode.SEND, a.qp.qp_num)
    assert (received.wr_id, received.opcode, received.qp_num) == (11, WCOpcode.RECV, b.qp.qp_num)
    assert received.byte_len == size
    assert received.imm_data is None
    assert received.src_qp is None
    assert received.ok
    received.raise_for_status()
    assert b.mr.read(size) == data
    assert b.mr.read(1, size) == b"\0"


@pytest.mark.parametrize("kind", ["pair", "uc_pair"])
@pytest.mark.parametrize("imm", [0, 1, 0x01020304, 0xFFFFFFFF])
def test_immediate_data_arrives_in_host_order(
    request: pytest.FixtureRequest, kind: str, post: Post, imm: int
) -> None:
    a, b = request.getfixturevalue(kind)
    b.qp.post_recv(b.mr[0:64])
    post(a.qp, a.mr[0:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=imm)
    wc = wait_one(b.rcq)
    assert wc.imm_data == imm
    assert wc.opcode is WCOpcode.RECV
    assert wc.wc_flags is not None
    assert WCFlags.WITH_IMM in wc.wc_flags


@pytest.mark.parametrize("kind", ["pair", "uc_pair", "wire_pair"])
def test_rdma_write_puts_the_bytes_and_completes_only_here(
    request: pytest.FixtureRequest, kind: str, post: Post
) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(a.mr, 5000)
    post(a.qp, a.mr[0:5000], opcode=WROpcode.RDMA_WRITE, **remote(b, 100))
    assert wait_one(a.scq).opcode is WCOpcode.RDMA_WRITE
    if kind == "uc_pair":  # unreliable: done here does not mean arrived there
        until(lambda: b.mr.read(5000, 100) == data, "the bytes")
    assert b.mr.read(5000, 100) == data
    assert b.mr.read(100) == bytes(100)
    assert b.mr.read(1, 5100) == b"\0"
    assert b.rcq.poll() == []


@pytest.mark.parametrize("kind", ["pair", "uc_pair"])
def test_rdma_write_with_imm_completes_at_both_ends(
    request: pytest.FixtureRequest, kind: str, post: Post
) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(a.mr, 3000)
    b.qp.post_recv(None, wr_id=3)
    opcode = WROpcode.RDMA_WRITE_WITH_IMM
    post(a.qp, a.mr[0:3000], opcode=opcode, imm_data=77, **remote(b))
    wc = wait_one(b.rcq)
    assert (wc.wr_id, wc.opcode, wc.imm_data) == (3, WCOpcode.RECV_RDMA_WITH_IMM, 77)
    assert b.mr.read(3000) == data
    assert wait_one(a.scq).opcode is WCOpcode.RDMA_WRITE


@pytest.mark.parametrize("kind", ["pair", "wire_pair"])
def test_rdma_read_brings_the_peers_bytes(
    request: pytest.FixtureRequest, kind: str, post: Post
) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(b.mr, 5000)
    post(a.qp, a.mr[1000:5000], opcode=WROpcode.RDMA_READ, **remote(b, 500))
    assert wait_one(a.scq).opcode is WCOpcode.RDMA_READ
    assert a.mr.read(4000, 1000) == data[500:4500]
    assert b.rcq.poll() == []


def test_scatter_and_gather(ctx: Context) -> None:
    many = {"max_send_sge": 4, "max_recv_sge": 4}
    a, b = connect(Endpoint(ctx, QPType.RC, **many), Endpoint(ctx, QPType.RC, **many))
    extra = MR(a.pd, bytearray(b"EXTRA"))
    a.mr.write(b"0123456789")
    b.qp.post_recv([b.mr[100:104], b.mr[200:202], b.mr[300:400]])
    a.qp.post_send((a.mr[0:3], extra, a.mr[7:10]))
    assert wait_one(b.rcq).byte_len == 11
    got = (b.mr.read(5, 100), b.mr.read(3, 200), b.mr.read(6, 300))
    assert got == (b"012E\0", b"XT\0", b"RA789\0")


@pytest.mark.usefixtures("conversation")
def test_inline_takes_the_bytes_at_once(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_inline_data=128), Endpoint(ctx, QPType.RC))
    a.mr.write(b"as bytes")
    for sg in (b"as bytes", bytearray(b"as bytes"), memoryview(b"as bytes"), a.mr[0:8]):
        b.mr.write(bytes(8))
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(sg, send_flags=SendFlags.SIGNALED | SendFlags.INLINE)
        assert wait_one(b.rcq).byte_len == 8
        assert b.mr.read(8) == b"as bytes"
        wait_one(a.scq)


def post_all(a: Endpoint, flags: list[int]) -> None:
    for i, flag in enumerate(flags):
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=flag)


@pytest.mark.usefixtures("conversation")
def test_inline_takes_as_many_bytes_as_the_qp_was_granted_and_not_one_more(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_inline_data=64), Endpoint(ctx, QPType.RC))
    most = a.qp.max_inline_data
    data = bytes(i % 251 for i in range(most + 1))
    a.mr.write(data)
    for sg in (data[:most], a.mr[0:most]):
        b.qp.post_recv(b.mr)
        a.qp.post_send(sg, send_flags=SendFlags.SIGNALED | SendFlags.INLINE)
        assert wait_one(b.rcq).byte_len == most
        assert b.mr.read(most) == data[:most]
        wait_one(a.scq)
    for sg in (data, a.mr[0 : most + 1]):
        with pytest.raises(ValueError, match=f"has {most + 1} bytes: this QP sends at most {most}"):
            a.qp.post_send(sg, send_flags=SendFlags.SIGNALED | SendFlags.INLINE)
    assert outstanding(a.qp) == (0, 0)


def poll_one(cq: CQ) -> WorkCompletion:
    """Take one from the device, and no more, as a thread does that looks before it sleeps."""
    got: list[WorkCompletion] = []
    until(lambda: bool(got.extend(cq.poll(1)) or got), "a completion")
    return got[0]


def test_outstanding_signaled_counts_what_will_complete_and_each_request_once(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_send_sge=2), Endpoint(ctx, QPType.RC))
    extra = MR(a.pd, 8)
    assert a.qp.outstanding_signaled == 0
    signaled = 0
    for i, flags in enumerate([0, SendFlags.SIGNALED, 0, SendFlags.SIGNALED, 0]):
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send([a.mr[0:8], extra], wr_id=i, send_flags=flags)
        signaled += flags != 0
        assert (outstanding(a.qp), a.qp.outstanding_signaled) == ((i + 1, 0), signaled)
    assert b.qp.outstanding_signaled == 0, "receives do not count"
    assert poll_one(a.scq).wr_id == 1
    assert (outstanding(a.qp), a.qp.outstanding_signaled) == ((3, 0), 1)
    assert poll_one(a.scq).wr_id == 3
    assert (outstanding(a.qp), a.qp.outstanding_signaled) == ((1, 0), 0)


def test_outstanding_signaled_counts_all_sends_with_sq_sig_all(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, sq_sig_all=True), Endpoint(ctx, QPType.RC))
    for i in range(3):
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(a.mr[0:8], send_flags=0)
        assert a.qp.outstanding_signaled == i + 1
    for left in (2, 1, 0):
        poll_one(a.scq)
        assert a.qp.outstanding_signaled == left


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_outstanding_signaled_goes_down_with_the_sends_that_fail(ctx: Context) -> None:
    """An unsignaled one that fails completes as well, and is not among them."""
    a, _peer = stuck(ctx)
    post_all(a, [0, SendFlags.SIGNALED, 0, SendFlags.SIGNALED])
    assert a.qp.outstanding_signaled == 2
    a.qp.modify(qp_state=QPState.ERR)
    for wr_id, left in enumerate([2, 1, 1, 0]):
        wc = poll_one(a.scq)
        assert (wc.wr_id, wc.ok) == (wr_id, False)
        assert (outstanding(a.qp), a.qp.outstanding_signaled) == ((3 - wr_id, 0), left)


def test_outstanding_signaled_is_0_after_a_reset(ctx: Context) -> None:
    a, _peer = stuck(ctx)
    post_all(a, [SendFlags.SIGNALED, 0])
    assert a.qp.outstanding_signaled == 1
    a.qp.modify(qp_state=QPState.RESET)
    assert (outstanding(a.qp), a.qp.outstanding_signaled) == ((0, 0), 0)


def test_a_full_send_queue_of_unsignaled_requests_shows_that_nothing_will_complete(
    ctx: Context,
) -> None:
    a, b = stuck(ctx, max_send_wr=4)
    for _ in range(a.qp.max_send_wr):  # for iWARP, where a message without one ends the connection
        b.qp.post_recv(b.mr)
    # By one call: one after the other they find the room of those that were sent meanwhile.
    with pytest.raises(VerbsError, match="is full") as e:
        a.qp.post_send([SendWR(a.mr[0:8], send_flags=0)] * 10_000)
    assert a.qp.outstanding_sends == e.value.posted >= 4
    assert a.qp.outstanding_signaled == 0
    assert a.scq.poll() == []


def test_fence_lets_a_send_wait_for_a_read(pair: Pair) -> None:
    a, b = pair
    b.mr.write(b"fresh")
    b.qp.post_recv(b.mr[1000:1100])
    a.qp.post_send(a.mr[0:5], opcode=WROpcode.RDMA_READ, **remote(b))
    a.qp.post_send(a.mr[0:5], send_flags=SendFlags.SIGNALED | SendFlags.FENCE)
    wait_one(b.rcq)
    assert b.mr.read(5, 1000) == b"fresh"


@pytest.mark.parametrize("imm", [None, 0xDEADBEEF])
def test_a_datagram_arrives_with_a_grh_and_its_sender(ud_pair: Pair, imm: int | None) -> None:
    a, b = ud_pair
    data = fill(a.mr, 500)
    b.qp.post_recv(b.mr[0:2000], wr_id=4)
    opcode = WROpcode.SEND if imm is None else WROpcode.SEND_WITH_IMM
    a.qp.post_send(a.mr[0:500], opcode=opcode, imm_data=imm, **path_to(a, b))
    gc.collect()  # only the work request holds the AH now
    wait_one(a.scq)
    wc = wait_one(b.rcq)
    assert wc.byte_len == 500 + GRH
    assert wc.src_qp == a.qp.qp_num
    assert wc.imm_data == imm
    assert wc.wc_flags is not None
    assert WCFlags.GRH in wc.wc_flags
    assert (wc.slid, wc.sl, wc.dlid_path_bits, wc.pkey_index) == (0, 0, 0, 0)
    assert b.mr.read(500, GRH) == data


# ---- what fails on the way ---------------------------------------------------------------


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
@pytest.mark.parametrize(
    ("wr_id", "what"), [(5, "work request 5"), (1 << 63, "a work request")], ids=["own", "aio's"]
)
def test_a_wrong_rkey_is_a_remote_access_error_that_names_a_wr_id_that_was_chosen(
    pair: Pair, wr_id: int, what: str
) -> None:
    a, b = pair
    wrong = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey ^ 0xFF00}
    a.qp.post_send(a.mr[0:8], wr_id=wr_id, opcode=WROpcode.RDMA_WRITE, **wrong)
    wc = wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert (wc.wr_id, wc.qp_num, wc.ok) == (wr_id, a.qp.qp_num, False)
    fields = ("opcode", "byte_len", "wc_flags", "imm_data", "src_qp", "slid", "sl", "pkey_index")
    assert [getattr(wc, name) for name in fields] == [None] * len(fields)
    with pytest.raises(CompletionError) as e:
        wc.raise_for_status()
    assert str(e.value) == (
        f"{what} on QP {wc.qp_num} failed: REM_ACCESS_ERR, remote access error "
        f"(vendor_err {wc.vendor_err:#x})"
    )
    assert e.value.status is WCStatus.REM_ACCESS_ERR
    assert (e.value.wr_id, e.value.qp_num, e.value.vendor_err) == (wr_id, wc.qp_num, wc.vendor_err)
    assert e.value.wc is wc


def test_a_wrong_lkey_is_a_local_protection_error(pair: Pair) -> None:
    a, b = pair
    b.mr.write(b"secret")
    sge = a.mr[0:6].with_lkey(a.mr.lkey ^ 0xFF)
    a.qp.post_send(sge, opcode=WROpcode.RDMA_READ, wr_id=5, **remote(b))
    assert wait_one(a.scq, WCStatus.LOC_PROT_ERR).wr_id == 5
    assert a.mr.read(6) == bytes(6)


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_a_wrong_lkey_of_a_receive_fails_both_ends(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[8:16].with_lkey(b.mr.lkey ^ 0xFF), wr_id=6)
    a.qp.post_send(a.mr[0:8].with_lkey(a.mr.lkey), wr_id=5)  # the same key again
    assert wait_one(a.scq, WCStatus.REM_OP_ERR).wr_id == 5
    (received,) = wait_completions(b.rcq, 1)
    assert (received.ok, received.wr_id) == (False, 6)
    assert outstanding(b.qp) == (0, 0)
