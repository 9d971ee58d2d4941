# SPDX-License-Identifier: MIT
"""Work requests that are built once and posted many times, and lists of them."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import GRH, Endpoint, connect, wait_completions, wait_one

from cqnotify import (
    AH,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlags,
    BusyError,
    ClosedError,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

Pair = tuple[Endpoint, Endpoint]
QKEY = 0x11111111
UNSIGNALED = SendFlags(0)


def datagram(a: Endpoint, b: Endpoint) -> dict[str, Any]:
    local, remote = a.ctx.find_gid(), b.ctx.find_gid()
    ah = AH(a.pd, dgid=remote.gid, sgid_index=local.index)
    return {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}


def remote(e: Endpoint, offset: int = 0) -> dict[str, Any]:
    return {"remote_addr": e.mr.addr + offset, "rkey": e.mr.rkey}


# One request, many posts --------------------------------------------------------


def test_one_send_and_one_receive_serve_many_messages(pair: Pair) -> None:
    a, b = pair
    send, receive = SendWR(a.mr[0:4]), RecvWR(b.mr[100:200])
    for i in range(200):
        a.mr.write(i.to_bytes(4, "big"))
        receive.wr_id = 1000 + i
        send.wr_id = 2000 + i
        b.qp.post_recv(receive)
        a.qp.post_send(send)
        received, sent = wait_one(b.rcq), wait_one(a.scq)
        assert (received.wr_id, received.opcode, received.byte_len) == (
            1000 + i,
            WCOpcode.RECV,
            4,
        )
        assert (sent.wr_id, sent.opcode) == (2000 + i, WCOpcode.SEND)
        assert b.mr.read(4, 100) == i.to_bytes(4, "big")
    assert (a.qp.outstanding, b.qp.outstanding) == ((0, 0), (0, 0))


def test_a_wr_id_belongs_to_the_post_and_not_to_the_object(pair: Pair) -> None:
    a, b = pair
    receive = RecvWR(b.mr[0:8], wr_id=7)
    for wr_id in (7, 0, 2**64 - 1):
        receive.wr_id = wr_id
        assert receive.wr_id == wr_id
        b.qp.post_recv(receive)
    receive.wr_id = 99
    a.qp.post_send([SendWR(a.mr[0:8])] * 3)
    assert [wc.wr_id for wc in wait_completions(b.rcq, 3)] == [7, 0, 2**64 - 1]


def test_one_request_serves_every_qp_of_its_pd(ctx: Context) -> None:
    """Also of several types, if it can be carried out there."""
    pairs = [connect(Endpoint(ctx, t), Endpoint(ctx, t)) for t in (QPType.RC, QPType.UC)]
    pd = PD(ctx)
    mr = MR(pd, 64)
    send = SendWR(mr[0:5], wr_id=3)
    mr.write(b"hello")
    for old, b in pairs:
        qp = QP(pd, old.qp.qp_type, send_cq=old.scq)
        with qp:
            b.qp.modify(qp_state=QPState.RESET)
            qp.connect(b.qp.address())
            b.qp.connect(qp.address())
            b.qp.post_recv(b.mr[0:64])
            qp.post_send(send)
            assert wait_one(b.rcq).byte_len == 5
            assert b.mr.read(5) == b"hello"
            assert wait_one(old.scq).wr_id == 3


OPERATIONS: dict[str, tuple[Callable[[Endpoint, Endpoint], SendWR], WCOpcode, WCOpcode | None]] = {
    "send": (lambda a, _: SendWR(a.mr[0:8]), WCOpcode.SEND, WCOpcode.RECV),
    "send with imm": (
        lambda a, _: SendWR(a.mr[0:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=0x01020304),
        WCOpcode.SEND,
        WCOpcode.RECV,
    ),
    "write": (
        lambda a, b: SendWR(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, **remote(b)),
        WCOpcode.RDMA_WRITE,
        None,
    ),
    "write with imm": (
        lambda a, b: SendWR(
            a.mr[0:8], opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=0x01020304, **remote(b)
        ),
        WCOpcode.RDMA_WRITE,
        WCOpcode.RECV_RDMA_WITH_IMM,
    ),
    "read": (
        lambda a, b: SendWR(a.mr[0:8], opcode=WROpcode.RDMA_READ, **remote(b)),
        WCOpcode.RDMA_READ,
        None,
    ),
    "swap": (
        lambda a, b: SendWR(
            a.mr[0:8],
            opcode=WROpcode.ATOMIC_CMP_AND_SWP,
            compare_add=0,
            swap=int.from_bytes(b"whatever", "little"),
            **remote(b),
        ),
        WCOpcode.COMP_SWAP,
        None,
    ),
    "add": (
        lambda a, b: SendWR(
            a.mr[0:8],
            opcode=WROpcode.ATOMIC_FETCH_AND_ADD,
            compare_add=int.from_bytes(b"whatever", "little"),
            **remote(b),
        ),
        WCOpcode.FETCH_ADD,
        None,
    ),
}
ATOMIC = AccessFlags.LOCAL_WRITE | AccessFlags(14)  # and all that is remote


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_opcode_does_what_it_does_by_arguments(ctx: Context, name: str) -> None:
    make, local_opcode, remote_opcode = OPERATIONS[name]
    a, b = connect(
        Endpoint(ctx, QPType.RC, access=ATOMIC),
        Endpoint(ctx, QPType.RC, access=ATOMIC),
        access=AccessFlags(14),
    )
    reads = name in ("read",)
    wr = make(a, b)
    for _ in range(3):
        a.mr.write(bytes(8) if reads else b"whatever")
        b.mr.write(b"whatever" if reads else bytes(8))
        if remote_opcode is not None:
            b.qp.post_recv(RecvWR(b.mr[0:8]))
        a.qp.post_send(wr)
        assert wait_one(a.scq).opcode is local_opcode
        if remote_opcode is not None:
            wc = wait_one(b.rcq)
            assert wc.opcode is remote_opcode
            assert wc.imm_data == (0x01020304 if "imm" in name else None)
        assert (a if reads else b).mr.read(8) == b"whatever"
    assert b.rcq.poll() == []


def test_a_datagram_is_sent_many_times(ud_pair: Pair) -> None:
    a, b = ud_pair
    wr = SendWR(a.mr[0:5], **datagram(a, b))
    a.mr.write(b"hello")
    for _ in range(3):
        b.qp.post_recv(b.mr[0:200])
        a.qp.post_send(wr)
        assert wait_one(b.rcq).byte_len == 5 + GRH
        assert b.mr.read(5, GRH) == b"hello"
        wait_one(a.scq)


def test_an_inline_send_takes_the_bytes_of_each_post(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, max_inline_data=64), Endpoint(ctx, QPType.RC))
    buffer = bytearray(b"first")
    wr = SendWR(buffer, send_flags=SendFlags.INLINE | SendFlags.SIGNALED)
    for text in (b"first", b"other"):
        buffer[:] = text
        b.qp.post_recv(b.mr[0:64])
        a.qp.post_send(wr)
        buffer[:] = bytes(5)
        assert wait_one(b.rcq).byte_len == 5
        assert b.mr.read(5) == text
        wait_one(a.scq)
    with pytest.raises(BufferError):
        buffer.clear()  # the request looks at it
    del wr
    buffer.clear()


def test_repr_says_what_it_is(pair: Pair) -> None:
    a, b = pair
    wr = SendWR([a.mr[0:8]], wr_id=5, opcode=WROpcode.RDMA_WRITE, **remote(b))
    assert repr(wr) == "<SendWR wr_id=5, RDMA_WRITE, 8 bytes>"
    assert repr(RecvWR(a.mr[0:70], wr_id=6)) == "<RecvWR wr_id=6, 70 bytes>"


# What it keeps --------------------------------------------------------------------


class Memory(bytearray):
    """Can be referred to weakly."""


def test_it_holds_its_memory_and_goes_when_nobody_holds_it(pair: Pair) -> None:
    a = pair[0]
    buffer = Memory(64)
    gone = weakref.ref(buffer)
    wr = RecvWR(MR(a.pd, buffer)[0:8])
    del buffer
    gc.collect()
    assert gone() is not None
    a.qp.post_recv(wr)
    del wr
    gc.collect()
    assert gone() is not None, "the request in flight needs it"
    a.qp.close()
    assert gone() is None


def test_a_cycle_through_it_is_collected(pair: Pair) -> None:
    a = pair[0]
    for make in (RecvWR, SendWR):
        buffer = Memory(64)
        gone = weakref.ref(buffer)
        buffer.wr = make(MR(a.pd, buffer)[0:8])  # type: ignore[attr-defined]
        del buffer
        gc.collect()
        assert gone() is None
    buffer = Memory(8)
    gone = weakref.ref(buffer)
    buffer.wr = SendWR(buffer, send_flags=SendFlags.INLINE)  # type: ignore[attr-defined]
    del buffer
    gc.collect()
    assert gone() is None


def test_it_does_not_keep_its_memory_open(pair: Pair) -> None:
    a = pair[0]
    mr = MR(a.pd, 64)
    send, receive = SendWR(mr[0:8]), RecvWR([a.mr[0:8], mr])
    mr.close()
    for post in (
        lambda: a.qp.post_send(send),
        lambda: a.qp.post_send([SendWR(a.mr[0:8]), send]),
        lambda: a.qp.post_recv(receive),
        lambda: a.qp.post_recv([RecvWR(a.mr[0:8]), receive]),
    ):
        with pytest.raises(ClosedError, match="this MR is closed"):
            post()
    assert a.qp.outstanding == (0, 0)
    with pytest.raises(ClosedError):
        SendWR(mr)


def test_it_does_not_keep_its_address_handle_open(ud_pair: Pair) -> None:
    a, b = ud_pair
    path = datagram(a, b)
    wr = SendWR(a.mr[0:8], **path)
    path["ah"].close()
    with pytest.raises(ClosedError, match="this AH is closed"):
        a.qp.post_send(wr)
    with pytest.raises(ClosedError):
        SendWR(a.mr[0:8], **path)


def test_while_it_is_in_flight_its_memory_stays_open(pair: Pair) -> None:
    a, b = pair
    mr = MR(a.pd, 64)
    a.qp.post_recv([RecvWR(mr[0:8])] * 2)
    with pytest.raises(BusyError, match="needed by 2 work requests in flight"):
        mr.close()
    b.qp.post_send([SendWR(b.mr[0:8])] * 2)
    wait_completions(a.rcq, 2)
    mr.close()


# Lists ----------------------------------------------------------------------------


@pytest.mark.parametrize("as_list", [list, tuple])
def test_a_list_is_posted_in_its_order(pair: Pair, as_list: Callable[[Any], Any]) -> None:
    a, b = pair
    a.mr.write(bytes(range(30)))
    b.qp.post_recv(as_list(RecvWR(b.mr[100 * i : 100 * i + 50], wr_id=i) for i in range(30)))
    assert b.qp.outstanding == (0, 30)
    a.qp.post_send(as_list(SendWR(a.mr[i : i + 1], wr_id=50 + i) for i in range(30)))
    received, sent = wait_completions(b.rcq, 30), wait_completions(a.scq, 30)
    assert [wc.wr_id for wc in received] == list(range(30))
    assert [wc.wr_id for wc in sent] == list(range(50, 80))
    assert [b.mr.read(1, 100 * i) for i in range(30)] == [bytes([i]) for i in range(30)]
    assert (a.qp.outstanding, b.qp.outstanding) == ((0, 0), (0, 0))


def test_a_list_has_several_opcodes_and_one_completion(pair: Pair) -> None:
    a, b = pair
    a.mr.write(b"payload!ready")
    b.qp.post_recv(b.mr[500:600])
    a.qp.post_send(
        [
            SendWR(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, send_flags=UNSIGNALED, **remote(b, 1000)),
            SendWR(a.mr[8:13], wr_id=4),
        ]
    )
    assert a.qp.outstanding_signaled == 1
    wait_one(b.rcq)
    assert (b.mr.read(5, 500), b.mr.read(8, 1000)) == (b"ready", b"payload!")
    assert wait_one(a.scq).wr_id == 4
    assert a.qp.outstanding == (0, 0)


def test_one_object_may_be_in_a_list_many_times(pair: Pair) -> None:
    a, b = pair
    receive, send = RecvWR(b.mr[0:8], wr_id=1), SendWR(a.mr[0:8], wr_id=2)
    for _ in range(2):  # what was linked once can be linked again
        b.qp.post_recv([receive] * 20)
        a.qp.post_send([send] * 20)
        assert {wc.wr_id for wc in wait_completions(b.rcq, 20)} == {1}
        assert {wc.wr_id for wc in wait_completions(a.scq, 20)} == {2}
    b.qp.post_recv(receive)
    a.qp.post_send(send)
    wait_one(b.rcq)
    assert b.qp.outstanding == (0, 0)


def test_a_list_of_one_is_a_list(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv([RecvWR(b.mr[0:8])])
    a.qp.post_send((SendWR(a.mr[0:8]),))
    wait_one(b.rcq)


def test_an_empty_list_is_an_empty_message(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv([])
    a.qp.post_send([])
    assert wait_one(b.rcq).byte_len == 0


def test_long_lists_are_posted(ctx: Context) -> None:
    n = 5000
    a, b = connect(
        Endpoint(ctx, QPType.RC, max_send_wr=n, cqe=2 * n),
        Endpoint(ctx, QPType.RC, max_recv_wr=n, cqe=2 * n),
    )
    b.qp.post_recv([RecvWR(b.mr[0:8], wr_id=i) for i in range(n)])
    assert b.qp.outstanding == (0, n)
    last = SendWR(a.mr[0:8], wr_id=n)
    a.qp.post_send([SendWR(a.mr[0:8], send_flags=UNSIGNALED)] * (n - 1) + [last])
    assert wait_one(a.scq).wr_id == n
    assert a.qp.outstanding == (0, 0)
    assert [wc.wr_id for wc in wait_completions(b.rcq, n)] == list(range(n))


def test_a_subclass_of_list_is_read_as_what_it_holds(pair: Pair) -> None:
    class Odd(list[Any]):
        def __iter__(self) -> Any:
            del self[1:]
            return super().__iter__()

        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, i: Any) -> Any:
            raise AssertionError

    a, b = pair
    b.qp.post_recv(Odd([RecvWR(b.mr[0:8])] * 3))
    assert b.qp.outstanding == (0, 3)
    a.qp.post_send([SendWR(a.mr[0:8])] * 3)
    wait_completions(b.rcq, 3)


# Where the device refuses ---------------------------------------------------------


def stuck(ctx: Context, **qp: Any) -> Pair:
    """An endpoint, and a peer who takes none of its sends."""
    return connect(Endpoint(ctx, QPType.RC, **qp), Endpoint(ctx, QPType.RC), rnr_retry=7)


def test_a_send_queue_that_gets_full_says_which_was_refused(ctx: Context) -> None:
    a, _peer = stuck(ctx, max_send_wr=4, cqe=4096)
    a.qp.post_send(SendWR(a.mr[0:8], wr_id=999))
    first, second = MR(a.pd, 64), MR(a.pd, 64)
    wrs = [SendWR(first[0:8], wr_id=i) for i in range(3)]
    wrs += [SendWR(second[0:8], wr_id=i) for i in range(3, 4000)]
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        a.qp.post_send(wrs)
    posted = e.value.posted
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_post_send")
    assert f"the first {posted} of 4000 were posted" in str(e.value)
    assert 3 <= posted < 4000
    assert e.value.bad_wr is wrs[posted]
    assert a.qp.outstanding == (posted + 1, 0)
    assert a.qp.outstanding_signaled == posted + 1
    for mr, pins in ((first, 3), (second, posted - 3)):
        if pins:
            with pytest.raises(BusyError, match=f"needed by {pins} work request"):
                mr.close()
    a.qp.modify(qp_state=QPState.ERR)
    flushed = wait_completions(a.scq, posted + 1)
    assert [wc.wr_id for wc in flushed] == [999, *range(posted)]
    assert a.qp.outstanding == (0, 0)
    first.close()
    second.close()


def test_a_receive_queue_that_gets_full_says_which_was_refused(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC, max_recv_wr=4))
    spare = MR(b.pd, 64)
    wrs = [RecvWR(b.mr[0:8], wr_id=i) for i in range(1000)]
    wrs += [RecvWR(spare[0:8], wr_id=i) for i in range(1000, 2000)]
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        b.qp.post_recv(wrs)
    posted = e.value.posted
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_post_recv")
    assert 4 <= posted < 1000
    assert e.value.bad_wr is wrs[posted]
    assert b.qp.outstanding == (0, posted)
    spare.close()  # of those that were not posted
    for i in range(0, posted, 32):
        sends = [SendWR(a.mr[0:8])] * min(32, posted - i)
        a.qp.post_send(sends)
        wait_completions(a.scq, len(sends))
    assert [wc.wr_id for wc in wait_completions(b.rcq, posted)] == list(range(posted))
    b.qp.post_recv(e.value.bad_wr)


def test_a_single_request_that_is_refused_is_named_as_well(ctx: Context) -> None:
    a, _peer = stuck(ctx, max_send_wr=4)
    posts: list[tuple[Any, Any]] = [
        (SendWR(a.mr[0:8]), a.qp.post_send),
        (RecvWR(a.mr[0:8]), a.qp.post_recv),
    ]
    for wr, post in posts:
        with pytest.raises(VerbsError, match="is full") as e:
            for _ in range(10_000):
                post(wr)
        assert e.value.bad_wr is wr
        assert e.value.posted == 0
        with pytest.raises(VerbsError, match="is full") as e:
            post(a.mr[0:8])
        assert (e.value.bad_wr, e.value.posted) == (None, 0)


def test_an_srq_takes_the_same_forms(ctx: Context) -> None:
    b = Endpoint(ctx, QPType.RC)
    srq = SRQ(b.pd, 16)
    b.qp = QP(b.pd, QPType.RC, send_cq=b.scq, recv_cq=b.rcq, srq=srq)
    a, _ = connect(Endpoint(ctx, QPType.RC), b)
    one = RecvWR(b.mr[0:8], wr_id=7)
    srq.post_recv(one)
    srq.post_recv([RecvWR(b.mr[8 * i : 8 * i + 8], wr_id=i) for i in range(3)])
    assert srq.outstanding == 4
    a.qp.post_send([SendWR(a.mr[0:8])] * 4)
    assert [wc.wr_id for wc in wait_completions(b.rcq, 4)] == [7, 0, 1, 2]
    with pytest.raises(VerbsError, match=r"the SRQ is full: .* the first \d+ of 1000") as e:
        srq.post_recv([one] * 1000)
    assert (e.value.verb, e.value.bad_wr) == ("ibv_post_srq_recv", one)
    assert e.value.posted == srq.outstanding >= 16
    with pytest.raises(VerbsError, match="the SRQ is full") as e:
        srq.post_recv(one)
    assert (e.value.posted, e.value.bad_wr) == (0, one)
    with pytest.raises(TypeError, match="wr_id was given, but .* comes alone"):
        srq.post_recv(one, wr_id=1)
    with pytest.raises(
        ValueError, match=r"\[1\] of the list: the MR belongs to another PD than the SRQ"
    ):
        srq.post_recv([one, RecvWR(a.mr[0:8])])
    with pytest.raises(ValueError, match="QP .* receives from its SRQ: post there"):
        b.qp.post_recv(one)
    b.qp.close()
    srq.close()
    with pytest.raises(ClosedError):
        srq.post_recv(one)


def test_a_request_that_fails_later_completes_as_any_other(pair: Pair) -> None:
    a, b = pair
    bad = SendWR(
        a.mr[0:8],
        wr_id=2,
        opcode=WROpcode.RDMA_WRITE,
        remote_addr=b.mr.addr,
        rkey=b.mr.rkey ^ 0xFF00,
    )
    good = SendWR(a.mr[0:8], wr_id=1, opcode=WROpcode.RDMA_WRITE, **remote(b))
    a.qp.post_send([good, bad, good])
    wcs = wait_completions(a.scq, 3)
    assert [(wc.wr_id, wc.status) for wc in wcs] == [
        (1, WCStatus.SUCCESS),
        (2, WCStatus.REM_ACCESS_ERR),
        (1, WCStatus.WR_FLUSH_ERR),
    ]
    assert a.qp.outstanding == (0, 0)


# What is refused when it is built ---------------------------------------------------

UNBUILDABLE: list[tuple[dict[str, Any], str]] = [
    ({"wr_id": -1}, "wr_id is -1"),
    ({"opcode": 99}, "opcode is 99"),
    ({"send_flags": 1 << 20}, "0x100000 is no flag"),
    ({"opcode": WROpcode.SEND_WITH_IMM}, "imm_data is missing"),
    ({"imm_data": 1}, "imm_data was given, but SEND does not take it"),
    ({"rkey": 1}, "rkey was given, but SEND does not take it"),
    ({"opcode": WROpcode.RDMA_WRITE, "rkey": 1}, "remote_addr is missing"),
    ({"opcode": WROpcode.RDMA_WRITE, "remote_addr": 0, "rkey": 1 << 32}, "rkey is 4294967296"),
    (
        {"opcode": WROpcode.RDMA_READ, "remote_addr": 0, "rkey": 1, "send_flags": SendFlags.INLINE},
        "INLINE is not possible with RDMA_READ",
    ),
    (
        {
            "opcode": WROpcode.RDMA_WRITE,
            "remote_addr": 0,
            "rkey": 1,
            "send_flags": SendFlags.SOLICITED,
        },
        "SOLICITED is not possible with RDMA_WRITE",
    ),
    (
        {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "remote_addr": 4, "rkey": 1, "compare_add": 1},
        "remote_addr is 4: ATOMIC_FETCH_AND_ADD needs a multiple of 8",
    ),
    (
        {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "remote_addr": 8, "rkey": 1, "compare_add": 1},
        "ATOMIC_FETCH_AND_ADD needs 8 bytes in one element",
    ),
    ({"remote_qpn": 5}, "ah is missing: a UD QP needs it"),
    ({"ah": 5}, "remote_qpn is missing: a UD QP needs it"),
    (
        {"opcode": WROpcode.RDMA_WRITE, "remote_addr": 0, "rkey": 1, "ah": 5},
        "ah was given, but RDMA_WRITE does not take it",
    ),
    (
        {"send_flags": SendFlags.FENCE, "ah": 5, "remote_qpn": 5, "remote_qkey": 5},
        "FENCE is possible on an RC QP only",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), UNBUILDABLE, ids=[m for _, m in UNBUILDABLE])
def test_what_can_never_be_sent_is_refused_when_it_is_built(
    pd: PD, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SendWR(MR(pd, 64), **arguments)


@pytest.mark.parametrize("make", [SendWR, RecvWR])
def test_memory_that_no_request_can_have_is_refused(ctx: Context, pd: PD, make: Any) -> None:
    mr = MR(pd, 64)
    for bad in (1, "text", b"bytes", object(), [None], [[mr]]):
        with pytest.raises(TypeError, match="sg must be"):
            make(bad)
    with pytest.raises(ValueError, match="more elements than the 64"):
        make([mr] * 65)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the rest"):
        make([mr, MR(PD(ctx), 64)])
    with pytest.raises(TypeError, match="unexpected|invalid keyword"):
        make(mr, nonsense=1)
    make([mr] * 64)
    make()


def test_memory_that_may_not_be_written_is_refused_where_it_would_be(pd: PD) -> None:
    mr = MR(pd, b"constant", access=AccessFlags(0))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        RecvWR(mr)
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        SendWR(mr, opcode=WROpcode.RDMA_READ, remote_addr=0, rkey=1)
    SendWR(mr)


def test_an_address_handle_of_another_pd_is_refused(ud_pair: Pair) -> None:
    a, b = ud_pair
    with pytest.raises(ValueError, match="the AH belongs to another PD than the rest"):
        SendWR(b.mr[0:8], **datagram(a, b))
    with pytest.raises(TypeError, match="ah must be a cqnotify.AH, not int"):
        SendWR(b.mr[0:8], ah=5, remote_qpn=5, remote_qkey=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [SendWR, RecvWR])
def test_a_wr_id_is_a_number_of_64_bits(make: Any) -> None:
    wr = make(wr_id=5)
    for bad in (-1, 2**64):
        with pytest.raises(ValueError, match=f"wr_id is {bad}: it must be 0 to"):
            wr.wr_id = bad
        with pytest.raises(ValueError, match=f"wr_id is {bad}: it must be 0 to"):
            make(wr_id=bad)
    with pytest.raises(TypeError, match="wr_id must be an integer, not float"):
        wr.wr_id = 1.0
    with pytest.raises(AttributeError):
        del wr.wr_id
    with pytest.raises(AttributeError):
        wr.nonsense = 1
    assert wr.wr_id == 5


# What is refused when it is posted --------------------------------------------------


def unpostable(ctx: Context) -> list[tuple[QPType, Callable[[Endpoint, Endpoint], SendWR], str]]:
    mtu = ctx.query_port().active_mtu.bytes  # type: ignore[attr-defined]
    read: dict[str, Any] = {"opcode": WROpcode.RDMA_READ}
    return [
        (QPType.UC, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UC"),
        (QPType.UD, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UD"),
        (QPType.UD, lambda a, _: SendWR(a.mr[0:8]), "ah is missing: a UD QP needs it"),
        (
            QPType.RC,
            lambda a, b: SendWR(a.mr[0:8], **datagram(a, b)),
            "ah was given, but a connected QP does not take it",
        ),
        (
            QPType.UC,
            lambda a, _: SendWR(a.mr[0:8], send_flags=SendFlags.FENCE),
            "FENCE is possible on an RC QP only",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR([a.mr[0:8]] * (a.qp.max_send_sge + 1)),
            r"sg has more elements than the \d+ that this QP takes",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR(a.mr, send_flags=SendFlags.INLINE),
            r"sg has 65536 bytes: this QP sends at most \d+ INLINE",
        ),
        (
            QPType.UD,
            lambda a, b: SendWR(a.mr[0 : mtu + 1], **datagram(a, b)),
            f"at most {mtu} in one datagram",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR(MR(PD(a.ctx), 64)),
            "the MR belongs to another PD than the QP",
        ),
    ]


def test_what_this_qp_can_not_send_is_refused_when_it_is_posted(ctx: Context) -> None:
    pairs = {t: connect(Endpoint(ctx, t), Endpoint(ctx, t)) for t in QPType if t <= QPType.UD}
    for qp_type, make, message in unpostable(ctx):
        a, b = pairs[qp_type]
        wr = make(a, b)
        path = datagram(a, b) if qp_type == QPType.UD else {}
        with pytest.raises(ValueError, match=message):
            a.qp.post_send(wr)
        with pytest.raises(ValueError, match=r"\[1\] of the list: .*" + message):
            a.qp.post_send([SendWR(a.mr[0:8], **path), wr])
        assert a.qp.outstanding == (0, 0)
        assert a.scq.poll() == []
        a.mr.close()  # nothing pins it
        a.mr = MR(a.pd, 65536)


def test_receives_that_do_not_fit_are_refused_when_they_are_posted(pair: Pair) -> None:
    a = pair[0]
    for make, message in (
        (lambda: RecvWR([a.mr[0:8]] * (a.qp.max_recv_sge + 1)), "sg has more elements"),
        (lambda: RecvWR(MR(PD(a.ctx), 64)), "the MR belongs to another PD than the QP"),
    ):
        wr = make()
        with pytest.raises(ValueError, match=message):
            a.qp.post_recv(wr)
        with pytest.raises(ValueError, match=r"\[2\] of the list: .*" + message):
            a.qp.post_recv([RecvWR(a.mr[0:8]), RecvWR(), wr, RecvWR()])
        assert a.qp.outstanding == (0, 0)


def test_in_a_state_that_can_not_nothing_of_a_list_is_posted(ctx: Context) -> None:
    a = Endpoint(ctx, QPType.RC)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT") as e:
        a.qp.post_recv([RecvWR(a.mr[0:8])] * 2)
    assert (e.value.posted, e.value.bad_wr) == (0, None)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send([SendWR(a.mr[0:8])] * 2)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT"):
        a.qp.post_recv(RecvWR(a.mr[0:8]))
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send(SendWR(a.mr[0:8]))
    a.qp.close()
    for post in (
        lambda: a.qp.post_recv(RecvWR()),
        lambda: a.qp.post_recv([RecvWR()]),
        lambda: a.qp.post_send(SendWR()),
        lambda: a.qp.post_send([SendWR()]),
    ):
        with pytest.raises(ClosedError, match="this QP is closed"):
            post()


def test_a_request_comes_without_other_arguments(pair: Pair) -> None:
    a = pair[0]
    for send in (SendWR(), [SendWR()]):
        for other in ({"wr_id": 1}, {"opcode": 2}, {"imm_data": None}):
            with pytest.raises(
                TypeError, match=f"{next(iter(other))} was given, but .* comes alone"
            ):
                a.qp.post_send(send, **other)
    for receive in (RecvWR(), [RecvWR()]):
        with pytest.raises(TypeError, match="wr_id was given, but .* comes alone"):
            a.qp.post_recv(receive, wr_id=1)
    assert a.qp.outstanding == (0, 0)


def test_requests_and_memory_do_not_mix(pair: Pair) -> None:
    a = pair[0]
    send, receive, part = SendWR(), RecvWR(), a.mr[0:8]
    mixed: list[tuple[Any, Any, str]] = [
        (a.qp.post_send, [send, part], r"\[1\] of the list is a cqnotify.SGE"),
        (a.qp.post_send, [send, send, receive], r"\[2\] of the list is a cqnotify.RecvWR"),
        (a.qp.post_send, [send, [send]], r"\[1\] of the list is a list"),
        (a.qp.post_send, [part, send], "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_send, receive, "sg must not have a cqnotify.RecvWR in it"),
        (a.qp.post_recv, [receive, None], r"\[1\] of the list is a NoneType"),
        (a.qp.post_recv, [part, receive], "sg must not have a cqnotify.RecvWR in it"),
        (a.qp.post_recv, send, "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_recv, [send], "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_send, iter([send]), "sg must be mr"),
        (SendWR, send, "sg must not have a cqnotify.SendWR in it"),
        (RecvWR, [receive], "sg must not have a cqnotify.RecvWR in it"),
    ]
    for call, argument, message in mixed:
        with pytest.raises(TypeError, match=message):
            call(argument)
    assert a.qp.outstanding == (0, 0)
