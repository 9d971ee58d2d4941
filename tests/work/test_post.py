# SPDX-License-Identifier: MIT
"""Every operation over the device: bytes, statuses, flags, and what is refused before it."""

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from support import GRH, Endpoint, connect, until, wait_completions, wait_one

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    AccessFlags,
    ClosedError,
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

Pair = tuple[Endpoint, Endpoint]
QKEY = 0x11111111


def fill(mr: MR, n: int, seed: int = 1) -> bytes:
    data = random.Random(seed).randbytes(n)
    mr.write(data)
    return data


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
    request: pytest.FixtureRequest, kind: str, imm: int
) -> None:
    a, b = request.getfixturevalue(kind)
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=imm)
    wc = wait_one(b.rcq)
    assert wc.imm_data == imm
    assert wc.opcode is WCOpcode.RECV
    assert wc.wc_flags is not None
    assert WCFlags.WITH_IMM in wc.wc_flags


@pytest.mark.parametrize("kind", ["pair", "uc_pair", "wire_pair"])
def test_rdma_write_puts_the_bytes_and_completes_only_here(
    request: pytest.FixtureRequest, kind: str
) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(a.mr, 5000)
    a.qp.post_send(
        a.mr[0:5000], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr + 100, rkey=b.mr.rkey
    )
    assert wait_one(a.scq).opcode is WCOpcode.RDMA_WRITE
    if kind == "uc_pair":  # unreliable: done here does not mean arrived there
        from support import until

        until(lambda: b.mr.read(5000, 100) == data, "the bytes")
    assert b.mr.read(5000, 100) == data
    assert b.mr.read(100) == bytes(100)
    assert b.mr.read(1, 5100) == b"\0"
    assert b.rcq.poll() == []


@pytest.mark.parametrize("kind", ["pair", "uc_pair"])
def test_rdma_write_with_imm_completes_at_both_ends(
    request: pytest.FixtureRequest, kind: str
) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(a.mr, 3000)
    b.qp.post_recv(None, wr_id=3)
    a.qp.post_send(
        a.mr[0:3000],
        opcode=WROpcode.RDMA_WRITE_WITH_IMM,
        imm_data=77,
        remote_addr=b.mr.addr,
        rkey=b.mr.rkey,
    )
    wc = wait_one(b.rcq)
    assert (wc.wr_id, wc.opcode, wc.imm_data) == (3, WCOpcode.RECV_RDMA_WITH_IMM, 77)
    assert b.mr.read(3000) == data
    assert wait_one(a.scq).opcode is WCOpcode.RDMA_WRITE


@pytest.mark.parametrize("kind", ["pair", "wire_pair"])
def test_rdma_read_brings_the_peers_bytes(request: pytest.FixtureRequest, kind: str) -> None:
    a, b = request.getfixturevalue(kind)
    data = fill(b.mr, 5000)
    a.qp.post_send(
        a.mr[1000:5000], opcode=WROpcode.RDMA_READ, remote_addr=b.mr.addr + 500, rkey=b.mr.rkey
    )
    wc = wait_one(a.scq)
    assert wc.opcode is WCOpcode.RDMA_READ
    assert a.mr.read(4000, 1000) == data[500:4500]
    assert b.rcq.poll() == []


def test_scatter_and_gather(ctx: Context) -> None:
    a, b = connect(
        Endpoint(ctx, QPType.RC, max_send_sge=4, max_recv_sge=4),
        Endpoint(ctx, QPType.RC, max_send_sge=4, max_recv_sge=4),
    )
    extra = MR(a.pd, bytearray(b"EXTRA"))
    a.mr.write(b"0123456789")
    b.qp.post_recv([b.mr[100:104], b.mr[200:202], b.mr[300:400]])
    a.qp.post_send((a.mr[0:3], extra, a.mr[7:10]))
    assert wait_one(b.rcq).byte_len == 11
    assert (b.mr.read(5, 100), b.mr.read(3, 200), b.mr.read(6, 300)) == (
        b"012E\0",
        b"XT\0",
        b"RA789\0",
    )


@pytest.mark.usefixtures("conversation")
def test_inline_takes_the_bytes_at_once(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_inline_data=128), Endpoint(ctx, QPType.RC))
    for sg in (b"as bytes", bytearray(b"as bytes"), memoryview(b"as bytes")):
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(sg, send_flags=SendFlags.SIGNALED | SendFlags.INLINE)
        assert wait_one(b.rcq).byte_len == 8
        assert b.mr.read(8) == b"as bytes"
        wait_one(a.scq)
    a.mr.write(b"from an mr")
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:10], send_flags=SendFlags.SIGNALED | SendFlags.INLINE)
    assert wait_one(b.rcq).byte_len == 10
    assert b.mr.read(10) == b"from an mr"


def test_unsignaled_gives_no_completion_and_is_released_by_the_next(pair: Pair) -> None:
    a, b = pair
    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    a.qp.post_send(a.mr[0:8], wr_id=1, send_flags=0)
    a.qp.post_send(a.mr[0:8], wr_id=2, send_flags=0)
    assert len(wait_completions(b.rcq, 2)) == 2
    assert a.scq.poll() == []
    assert a.qp.outstanding == (2, 0)
    a.qp.post_send(a.mr[0:8], wr_id=3)
    assert wait_one(a.scq).wr_id == 3
    assert a.qp.outstanding == (0, 0)


def test_sq_sig_all_completes_everything(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, sq_sig_all=True), Endpoint(ctx, QPType.RC))
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8], wr_id=9, send_flags=0)
    assert wait_one(a.scq).wr_id == 9


def poll_one(cq: CQ) -> WorkCompletion:
    """Take one from the device, and no more, as who looks before he sleeps would."""
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
        assert (a.qp.outstanding, a.qp.outstanding_signaled) == ((i + 1, 0), signaled)
    assert b.qp.outstanding_signaled == 0, "receives do not count"
    assert poll_one(a.scq).wr_id == 1
    assert (a.qp.outstanding, a.qp.outstanding_signaled) == ((3, 0), 1)
    assert poll_one(a.scq).wr_id == 3
    assert (a.qp.outstanding, a.qp.outstanding_signaled) == ((1, 0), 0)


def test_outstanding_signaled_counts_all_sends_with_sq_sig_all(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, sq_sig_all=True), Endpoint(ctx, QPType.RC))
    for i in range(3):
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(a.mr[0:8], send_flags=0)
        assert a.qp.outstanding_signaled == i + 1
    for left in (2, 1, 0):
        poll_one(a.scq)
        assert a.qp.outstanding_signaled == left


def stuck(ctx: Context, flags: list[int], **qp: Any) -> Endpoint:
    """An endpoint with these sends, which the peer, without a receive, does not take."""
    a, _ = connect(Endpoint(ctx, QPType.RC, **qp), Endpoint(ctx, QPType.RC), rnr_retry=7)
    for i, flag in enumerate(flags):
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=flag)
    return a


def test_outstanding_signaled_goes_down_with_the_sends_that_fail(ctx: Context) -> None:
    """An unsignaled one that fails completes as well, and is not among them."""
    a = stuck(ctx, [0, SendFlags.SIGNALED, 0, SendFlags.SIGNALED])
    assert a.qp.outstanding_signaled == 2
    a.qp.modify(qp_state=QPState.ERR)
    for wr_id, left in enumerate([2, 1, 1, 0]):
        wc = poll_one(a.scq)
        assert (wc.wr_id, wc.ok) == (wr_id, False)
        assert (a.qp.outstanding, a.qp.outstanding_signaled) == ((3 - wr_id, 0), left)


def test_outstanding_signaled_is_0_after_a_reset_and_gone_after_close(ctx: Context) -> None:
    a = stuck(ctx, [SendFlags.SIGNALED, 0])
    assert a.qp.outstanding_signaled == 1
    a.qp.modify(qp_state=QPState.RESET)
    assert (a.qp.outstanding, a.qp.outstanding_signaled) == ((0, 0), 0)
    with stuck(ctx, [SendFlags.SIGNALED]).qp as qp:
        assert qp.outstanding_signaled == 1
    with pytest.raises(ClosedError):
        qp.outstanding_signaled  # noqa: B018


def test_a_full_send_queue_of_unsignaled_requests_shows_that_nothing_will_complete(
    ctx: Context,
) -> None:
    a = stuck(ctx, [], max_send_wr=4)
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            a.qp.post_send(a.mr[0:8], send_flags=0)
    assert a.qp.outstanding[0] >= 4
    assert a.qp.outstanding_signaled == 0
    assert a.scq.poll() == []


def test_fence_lets_a_send_wait_for_a_read(pair: Pair) -> None:
    a, b = pair
    b.mr.write(b"fresh")
    b.qp.post_recv(b.mr[1000:1100])
    a.qp.post_send(a.mr[0:5], opcode=WROpcode.RDMA_READ, remote_addr=b.mr.addr, rkey=b.mr.rkey)
    a.qp.post_send(a.mr[0:5], send_flags=SendFlags.SIGNALED | SendFlags.FENCE)
    wait_one(b.rcq)
    assert b.mr.read(5, 1000) == b"fresh"


def test_solicited_decides_who_wakes_the_receiver(wire_pair: Pair) -> None:
    a, b = wire_pair
    for i in range(4):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    b.rcq.req_notify(solicited_only=True)
    for _ in range(3):
        a.qp.post_send(a.mr[0:8])
    assert len(wait_completions(a.scq, 3)) == 3  # acknowledged, so delivered
    assert b.channel.try_get_event() is None
    a.qp.post_send(a.mr[0:8], send_flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
    assert b.channel.get_event(timeout=30) is b.rcq
    assert [wc.wr_id for wc in b.rcq.poll()] == [0, 1, 2, 3]


def ah_to(a: Endpoint, b: Endpoint) -> AH:
    local, remote = a.ctx.find_gid(), b.ctx.find_gid()
    return AH(a.pd, dgid=remote.gid, sgid_index=local.index)


@pytest.mark.parametrize("imm", [None, 0xDEADBEEF])
def test_a_datagram_arrives_with_a_grh_and_its_sender(ud_pair: Pair, imm: int | None) -> None:
    a, b = ud_pair
    data = fill(a.mr, 500)
    b.qp.post_recv(b.mr[0:2000], wr_id=4)
    a.qp.post_send(
        a.mr[0:500],
        opcode=WROpcode.SEND if imm is None else WROpcode.SEND_WITH_IMM,
        imm_data=imm,
        ah=ah_to(a, b),
        remote_qpn=b.qp.qp_num,
        remote_qkey=QKEY,
    )
    wait_one(a.scq)
    wc = wait_one(b.rcq)
    assert wc.byte_len == 500 + GRH
    assert wc.src_qp == a.qp.qp_num
    assert wc.imm_data == imm
    assert wc.wc_flags is not None
    assert WCFlags.GRH in wc.wc_flags
    assert (wc.slid, wc.sl, wc.dlid_path_bits, wc.pkey_index) == (0, 0, 0, 0)
    assert b.mr.read(500, GRH) == data


def test_datagrams_cross_the_wire(ctx: Context, ctx2: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.UD), Endpoint(ctx2, QPType.UD))
    data = fill(a.mr, 100)
    b.qp.post_recv(b.mr[0:200])
    a.qp.post_send(a.mr[0:100], ah=ah_to(a, b), remote_qpn=b.qp.qp_num, remote_qkey=QKEY)
    assert wait_one(b.rcq).src_qp == a.qp.qp_num
    assert b.mr.read(100, GRH) == data


def test_an_address_handle_is_needed_as_long_as_a_send_is_in_flight(ud_pair: Pair) -> None:
    import gc

    a, b = ud_pair
    b.qp.post_recv(b.mr[0:200])
    a.qp.post_send(a.mr[0:8], ah=ah_to(a, b), remote_qpn=b.qp.qp_num, remote_qkey=QKEY)
    gc.collect()  # only the work request holds the AH now
    wait_one(b.rcq)
    wait_one(a.scq)


# What fails on the way --------------------------------------------------------


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


# What is refused before the device sees it ------------------------------------


def write(e: Endpoint, **changes: Any) -> dict[str, Any]:
    call = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": e.mr.addr, "rkey": e.mr.rkey}
    return {k: v for k, v in {**call, **changes}.items() if v is not ...}


REFUSED: list[tuple[str, Callable[[Endpoint], dict[str, Any]], str]] = [
    ("no imm", lambda e: {"opcode": WROpcode.SEND_WITH_IMM}, "imm_data is missing"),
    ("an imm", lambda e: {"imm_data": 1}, "imm_data was given, but SEND does not take it"),
    (
        "imm too large",
        lambda e: {"opcode": WROpcode.SEND_WITH_IMM, "imm_data": 1 << 32},
        "imm_data is 4294967296: it must be 0 to 4294967295",
    ),
    ("no address", lambda e: write(e, remote_addr=...), "remote_addr is missing"),
    ("no rkey", lambda e: write(e, rkey=...), "rkey is missing"),
    ("an address", lambda e: {"remote_addr": 1}, "remote_addr was given, but SEND"),
    ("an rkey", lambda e: {"rkey": 1}, "rkey was given, but SEND"),
    ("rkey too large", lambda e: write(e, rkey=1 << 32), "rkey is 4294967296"),
    ("address negative", lambda e: write(e, remote_addr=-1), "remote_addr is -1"),
    ("wr_id negative", lambda e: {"wr_id": -1}, "wr_id is -1"),
    ("wr_id too large", lambda e: {"wr_id": 1 << 64}, "wr_id is 18446744073709551616"),
    ("unknown flag", lambda e: {"send_flags": 1 << 20}, "0x100000 is no flag"),
    ("unknown opcode", lambda e: {"opcode": 99}, "opcode is 99"),
    (
        "solicited write",
        lambda e: write(e, send_flags=SendFlags.SOLICITED),
        "SOLICITED is not possible with RDMA_WRITE",
    ),
    (
        "inline read",
        lambda e: write(e, opcode=WROpcode.RDMA_READ, send_flags=SendFlags.INLINE),
        "INLINE is not possible with RDMA_READ",
    ),
    ("inline too long", lambda e: {"send_flags": SendFlags.INLINE}, "at most .* INLINE"),
    ("remote_qpn", lambda e: {"remote_qpn": 5}, "a connected QP does not take it"),
    ("remote_qkey", lambda e: {"remote_qkey": 5}, "a connected QP does not take it"),
    ("an ah", lambda e: {"ah": 5}, "a connected QP does not take it"),
]


@pytest.mark.parametrize(("make", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_does_not_go_together_is_refused(
    pair: Pair, make: Callable[[Endpoint], dict[str, Any]], message: str
) -> None:
    a = pair[0]
    with pytest.raises(ValueError, match=message):
        a.qp.post_send(a.mr, **make(a))
    assert a.qp.outstanding == (0, 0)
    assert a.scq.poll() == []


def test_flush_that_another_call_posts_is_not_supported(pair: Pair) -> None:
    a = pair[0]
    call = "FLUSH is not supported by this verb, but by ibv_wr_flush"
    for post in (a.qp.post_send, SendWR):
        with pytest.raises(VerbsError, match=call) as e:
            post(a.mr[0:8], opcode=WROpcode.FLUSH)  # type: ignore[operator]
        assert e.value.errno == errno.EOPNOTSUPP


def test_checksums_are_for_datagrams_on_devices_that_make_them(pair: Pair, ud_pair: Pair) -> None:
    a, b = ud_pair
    flags = SendFlags.IP_CSUM | SendFlags.SIGNALED
    with pytest.raises(ValueError, match="IP_CSUM is possible on a UD QP only"):
        pair[0].qp.post_send(pair[0].mr[0:8], send_flags=flags)
    if a.ctx.query_device().device_cap_flags & 1 << 18:
        pytest.skip("this device makes checksums")
    with ah_to(a, b) as ah:
        path: dict[str, Any] = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
        wr = SendWR(a.mr[0:8], send_flags=flags, **path)
        for post in (
            lambda: a.qp.post_send(a.mr[0:8], send_flags=flags, **path),
            lambda: a.qp.post_send(wr),
        ):
            with pytest.raises(VerbsError, match="IP_CSUM is not supported by rxe") as e:
                post()
            assert e.value.errno == errno.EOPNOTSUPP
    assert a.qp.outstanding == (0, 0)


@pytest.mark.parametrize("bad", [1, "text", b"bytes", object(), [b"x"], [None], [[]]])
def test_memory_of_a_wrong_type_is_refused(pair: Pair, bad: Any) -> None:
    with pytest.raises(TypeError, match="sg must be"):
        pair[0].qp.post_send(bad)
    with pytest.raises(TypeError, match="sg must be"):
        pair[0].qp.post_recv(bad)


def test_arguments_by_name_only_and_none_unknown(pair: Pair) -> None:
    a = pair[0]
    with pytest.raises(TypeError, match="at most 1 positional argument"):
        a.qp.post_send(a.mr, 5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'flags'"):
        a.qp.post_send(a.mr, flags=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        a.qp.post_send()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="wr_id must be an integer, not float"):
        a.qp.post_recv(a.mr, wr_id=1.0)  # type: ignore[arg-type]


def test_memory_of_another_pd_is_refused(pair: Pair) -> None:
    a = pair[0]
    foreign = MR(PD(a.ctx), 64)
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ValueError, match="another PD"):
            post(foreign[0:8])


def test_closed_memory_is_refused(pair: Pair) -> None:
    a = pair[0]
    mr = MR(a.pd, 64)
    part = mr[0:8]
    mr.close()
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ClosedError):
            post(part)
        with pytest.raises(ClosedError):
            post(mr)


def test_memory_that_may_not_be_written_can_not_receive(pair: Pair) -> None:
    a, b = pair
    mr = MR(a.pd, b"constant", access=AccessFlags(0))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        a.qp.post_recv(mr)
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        a.qp.post_send(mr, **write(b, opcode=WROpcode.RDMA_READ))
    b.qp.post_recv(b.mr)
    a.qp.post_send(mr)
    wait_one(b.rcq)
    assert b.mr.read(8) == b"constant"


def test_more_elements_than_the_qp_takes_are_refused(pair: Pair) -> None:
    a = pair[0]
    for post, limit in ((a.qp.post_send, a.qp.max_send_sge), (a.qp.post_recv, a.qp.max_recv_sge)):
        with pytest.raises(ValueError, match=f"more elements than the {limit} that this QP takes"):
            post([a.mr[0:1]] * (limit + 1))
        with pytest.raises(ValueError, match="more elements than the 64 that any queue takes"):
            post([a.mr[0:1]] * 65)


def test_posting_in_a_state_that_can_not_is_refused_and_never_sent(ctx: Context) -> None:
    """Some providers would keep what they refuse, and send it later."""
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT"):
        a.qp.post_recv(a.mr)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send(a.mr[0:8])
    a.qp.to_init()
    with pytest.raises(VerbsError, match="is in INIT, and needs RTS"):
        a.qp.post_send(a.mr[0:8])
    connect(a, b)
    b.qp.post_recv(b.mr, wr_id=1)
    a.qp.post_send(a.mr[0:16], wr_id=2)
    assert wait_one(b.rcq).byte_len == 16
    assert a.qp.outstanding == (0, 0) or wait_one(a.scq).wr_id == 2


def test_a_closed_qp_posts_nothing(pair: Pair) -> None:
    a = pair[0]
    a.qp.close()
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ClosedError):
            post(a.mr[0:8])


UD_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no ah", {"ah": ...}, "ah is missing: a UD QP needs it"),
    ("no qpn", {"remote_qpn": ...}, "remote_qpn is missing"),
    ("no qkey", {"remote_qkey": ...}, "remote_qkey is missing"),
    ("qpn too large", {"remote_qpn": 1 << 24}, "remote_qpn is 16777216"),
    (
        "write",
        {"opcode": WROpcode.RDMA_WRITE, "remote_addr": 1, "rkey": 1},
        "RDMA_WRITE is not possible on a UD QP",
    ),
    ("fence", {"send_flags": SendFlags.FENCE}, "FENCE is possible on an RC QP only"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [r[1:] for r in UD_REFUSED], ids=[r[0] for r in UD_REFUSED]
)
def test_a_datagram_that_is_not_complete_is_refused(
    ud_pair: Pair, changes: dict[str, Any], message: str
) -> None:
    a, b = ud_pair
    with ah_to(a, b) as ah:
        call = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY, **changes}
        with pytest.raises(ValueError, match=message):
            a.qp.post_send(a.mr[0:8], **{k: v for k, v in call.items() if v is not ...})


def test_a_datagram_longer_than_the_mtu_is_refused(ud_pair: Pair) -> None:
    """rxe would report success, and lose it."""
    a, b = ud_pair
    mtu = a.ctx.query_port().active_mtu.bytes  # type: ignore[union-attr]
    with ah_to(a, b) as ah:
        for size, fits in ((mtu, True), (mtu + 1, False)):
            call = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
            b.qp.post_recv(b.mr)
            if fits:
                a.qp.post_send(a.mr[0:size], **call)
                assert wait_one(b.rcq).byte_len == size + GRH
                wait_one(a.scq)
            else:
                with pytest.raises(ValueError, match=f"at most {mtu} in one datagram"):
                    a.qp.post_send(a.mr[0:size], **call)


@pytest.mark.usefixtures("conversation")
def test_a_message_longer_than_the_port_takes_is_refused(ctx: Context) -> None:
    """The same memory many times over: the limit can be 2 GiB."""
    limit = ctx.query_port().max_msg_sz
    n = 16
    size = limit // n
    sender = Endpoint(ctx, QPType.RC, size=size + 1, max_send_sge=n)
    a, b = connect(sender, Endpoint(ctx, QPType.RC, size=min(limit, 1 << 23)))
    with pytest.raises(ValueError, match=f"at most {limit} in one message"):
        a.qp.post_send([a.mr[:]] * n)
    if limit == b.mr.length:  # no more than that is sent here
        b.qp.post_recv(b.mr)
        a.qp.post_send([a.mr[:size]] * n)
        assert wait_one(b.rcq).byte_len == limit


def datagram(a: Endpoint, b: Endpoint) -> WorkCompletion:
    b.qp.post_recv(b.mr[0:128])
    a.qp.post_send(a.mr[0:8], ah=ah_to(a, b), remote_qpn=b.qp.qp_num, remote_qkey=QKEY)
    wait_one(a.scq)
    return wait_one(b.rcq)


def test_the_way_back_of_a_datagram_leads_to_its_sender(ctx: Context, ctx2: Context) -> None:
    """Over a wire: the sender's address is another than the receiver's."""
    a, b = connect(Endpoint(ctx, QPType.UD), Endpoint(ctx2, QPType.UD))
    wc = datagram(a, b)
    assert wc.src_qp is not None
    a.qp.post_recv(a.mr[0:1024])
    with AH.from_wc(b.pd, wc, b.mr.read(GRH)) as ah:
        data = fill(b.mr, 300)
        b.qp.post_send(b.mr[0:300], ah=ah, remote_qpn=wc.src_qp, remote_qkey=QKEY)
        wait_one(b.scq)
    back = wait_one(a.rcq)
    assert back.src_qp == b.qp.qp_num
    assert a.mr.read(300, GRH) == data


def test_a_way_back_is_made_from_a_received_datagram_alone(pair: Pair, ud_pair: Pair) -> None:
    a, b = ud_pair
    wc = datagram(a, b)
    grh = b.mr.read(GRH)
    with pytest.raises(ValueError, match="grh has 39 bytes: it must be the 40 before the message"):
        AH.from_wc(b.pd, wc, grh[:-1])
    with pytest.raises(ValueError, match="grh has 0 bytes"):
        AH.from_wc(b.pd, wc)
    with pytest.raises(ValueError, match="port_num is 2"):
        AH.from_wc(b.pd, wc, grh, port_num=2)
    with pytest.raises(TypeError, match="wc must be a WorkCompletion, not bytes"):
        AH.from_wc(b.pd, grh, grh)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pd must be a"):
        AH.from_wc(b.ctx, wc, grh)  # type: ignore[arg-type]
    with pytest.raises(VerbsError, match="port 1 has no GID that the datagram was sent to"):
        AH.from_wc(b.pd, wc, grh[:24] + bytes(range(16)))
    pair[1].qp.post_recv(pair[1].mr[0:64])
    pair[0].qp.post_send(pair[0].mr[0:64])
    with pytest.raises(ValueError, match="the successful receive of a datagram"):
        AH.from_wc(pair[1].pd, wait_one(pair[1].rcq), grh)
    b.pd.context.close()
    with pytest.raises(ClosedError):
        AH.from_wc(b.pd, wc, grh)


def test_address_handles_check_their_arguments(pd: PD, ud_pair: Pair) -> None:
    a, b = ud_pair
    with pytest.raises(ValueError, match="port_num is 9: this device has port 1"):
        AH(pd, dgid=b.ctx.find_gid().gid, port_num=9)
    with pytest.raises(TypeError, match="dgid must be an IP address, its text, or 16"):
        AH(pd, dgid=b"short")
    with pytest.raises(ValueError, match="dgid is 'bogus': that is no IP address"):
        AH(pd, dgid="bogus")
    with pytest.raises(ValueError, match="sl is 16"):
        AH(pd, sl=16)
    with pytest.raises(TypeError, match="no field 'nonsense'"):
        AH(pd, nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="pd must be a"):
        AH(None)  # type: ignore[arg-type]
    with ah_to(a, b) as ah:
        with pytest.raises(TypeError, match="ah must be a"):
            a.qp.post_send(a.mr[0:8], ah=pd, remote_qpn=1, remote_qkey=1)  # type: ignore[arg-type]
        assert ah.pd is a.pd
    foreign = AH(pd, dgid=b.ctx.find_gid().gid, sgid_index=a.ctx.find_gid().index)
    with pytest.raises(ValueError, match="another PD"):
        a.qp.post_send(a.mr[0:8], ah=foreign, remote_qpn=1, remote_qkey=1)
    with pytest.raises(ClosedError):
        a.qp.post_send(a.mr[0:8], ah=ah, remote_qpn=1, remote_qkey=1)
