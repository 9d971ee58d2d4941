# SPDX-License-Identifier: MIT
"""SendWR and RecvWR: one request for many posts, lists of them, and what they keep."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from posting import path_to, remote
from support import GRH, UNSIGNALED, Endpoint, Pair, connect, wait_completions, wait_one

from cqnotify import (
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
    wr = SendWR(a.mr[0:5], **path_to(a, b))
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
    path = path_to(a, b)
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
