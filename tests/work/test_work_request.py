# SPDX-License-Identifier: MIT
"""SendWR and RecvWR: one request for many posts, lists of them, and what they keep."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from posting import path_to, remote, stuck
from support import (
    GRH,
    UNSIGNALED,
    Endpoint,
    Link,
    Pair,
    connect,
    connected_by_srq,
    outstanding,
    wait_completions,
    wait_one,
)

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
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
        got, sent = wait_one(b.rcq), wait_one(a.scq)
        assert (got.wr_id, got.opcode, got.byte_len) == (1000 + i, WCOpcode.RECV, 4)
        assert (sent.wr_id, sent.opcode) == (2000 + i, WCOpcode.SEND)
        assert b.mr.read(4, 100) == i.to_bytes(4, "big")
    assert (outstanding(a.qp), outstanding(b.qp)) == ((0, 0), (0, 0))


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
    pd = pair[0].pd
    for make in (
        lambda buffer: RecvWR(MR(pd, buffer)[0:8]),
        lambda buffer: SendWR(MR(pd, buffer)[0:8]),
        lambda buffer: SendWR(buffer, send_flags=SendFlags.INLINE),
    ):
        buffer = Memory(64)
        gone = weakref.ref(buffer)
        buffer.wr = make(buffer)  # type: ignore[attr-defined]
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
    assert outstanding(a.qp) == (0, 0)


# Lists ----------------------------------------------------------------------------


@pytest.mark.parametrize("as_list", [list, tuple])
def test_a_list_is_posted_in_its_order(pair: Pair, as_list: Callable[[Any], Any]) -> None:
    a, b = pair
    a.mr.write(bytes(range(30)))
    b.qp.post_recv(as_list(RecvWR(b.mr[100 * i : 100 * i + 50], wr_id=i) for i in range(30)))
    assert outstanding(b.qp) == (0, 30)
    a.qp.post_send(as_list(SendWR(a.mr[i : i + 1], wr_id=50 + i) for i in range(30)))
    received, sent = wait_completions(b.rcq, 30), wait_completions(a.scq, 30)
    assert [wc.wr_id for wc in received] == list(range(30))
    assert [wc.wr_id for wc in sent] == list(range(50, 80))
    assert [b.mr.read(1, 100 * i) for i in range(30)] == [bytes([i]) for i in range(30)]
    assert (outstanding(a.qp), outstanding(b.qp)) == ((0, 0), (0, 0))


def test_a_list_has_several_opcodes_and_one_completion(pair: Pair) -> None:
    a, b = pair
    a.mr.write(b"payload!ready")
    b.qp.post_recv(b.mr[500:600])
    first = {"opcode": WROpcode.RDMA_WRITE, "send_flags": UNSIGNALED, **remote(b, 1000)}
    a.qp.post_send([SendWR(a.mr[0:8], **first), SendWR(a.mr[8:13], wr_id=4)])
    assert a.qp.outstanding_signaled == 1
    wait_one(b.rcq)
    assert (b.mr.read(5, 500), b.mr.read(8, 1000)) == (b"ready", b"payload!")
    assert wait_one(a.scq).wr_id == 4
    assert outstanding(a.qp) == (0, 0)


def test_one_object_may_be_in_a_list_many_times(pair: Pair) -> None:
    a, b = pair
    receive, send = RecvWR(b.mr[0:8], wr_id=1), SendWR(a.mr[0:8], wr_id=2)
    for _ in range(2):  # what was linked once can be linked again
        b.qp.post_recv([receive] * 20)
        a.qp.post_send([send] * 20)
        assert {wc.wr_id for wc in wait_completions(b.rcq, 20)} == {1}
        assert {wc.wr_id for wc in wait_completions(a.scq, 20)} == {2}
    for _ in range(2):
        b.qp.post_recv(receive)
        a.qp.post_send(send)
        assert (wait_one(b.rcq).wr_id, wait_one(a.scq).wr_id) == (1, 2)
    assert (receive.wr_id, send.wr_id) == (1, 2)
    assert outstanding(b.qp) == (0, 0)


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
    assert outstanding(b.qp) == (0, n)
    last = SendWR(a.mr[0:8], wr_id=n)
    a.qp.post_send([SendWR(a.mr[0:8], send_flags=UNSIGNALED)] * (n - 1) + [last])
    assert wait_one(a.scq).wr_id == n
    assert outstanding(a.qp) == (0, 0)
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
    assert outstanding(b.qp) == (0, 3)
    a.qp.post_send([SendWR(a.mr[0:8])] * 3)
    wait_completions(b.rcq, 3)


# Where the device refuses ---------------------------------------------------------


@pytest.mark.not_on_iwarp("siw does not flush what is posted on a QP in ERR")
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
    assert outstanding(a.qp) == (posted + 1, 0)
    assert a.qp.outstanding_signaled == posted + 1
    for mr, pins in ((first, 3), (second, posted - 3)):
        if pins:
            with pytest.raises(BusyError, match=f"needed by {pins} work request"):
                mr.close()
    a.qp.modify(qp_state=QPState.ERR)
    flushed = wait_completions(a.scq, posted + 1)
    assert [wc.wr_id for wc in flushed] == [999, *range(posted)]
    assert outstanding(a.qp) == (0, 0)
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
    assert outstanding(b.qp) == (0, posted)
    spare.close()  # of those that were not posted
    for i in range(0, posted, 32):
        sends = [SendWR(a.mr[0:8])] * min(32, posted - i)
        a.qp.post_send(sends)
        wait_completions(a.scq, len(sends))
    assert [wc.wr_id for wc in wait_completions(b.rcq, posted)] == list(range(posted))
    b.qp.post_recv(e.value.bad_wr)


@pytest.mark.not_on_iwarp("siw does not flush what is posted on a QP in ERR", only=r"send")
@pytest.mark.parametrize("side", [0, 1], ids=["send", "receive"])
def test_a_single_request_that_is_refused_is_named_and_nothing_is_lost(
    ctx: Context, side: int
) -> None:
    a, _peer = stuck(ctx, max_send_wr=4, max_recv_wr=4)
    kinds: list[tuple[Any, Any, str, CQ]] = [
        (SendWR(a.mr[0:8]), a.qp.post_send, "ibv_post_send", a.scq),
        (RecvWR(a.mr[0:8]), a.qp.post_recv, "ibv_post_recv", a.rcq),
    ]
    wr, post, verb, cq = kinds[side]
    posted = 0
    with pytest.raises(VerbsError, match="is full: it was granted") as e:
        while posted < 10_000:
            wr.wr_id = posted
            post(wr)
            posted += 1
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, verb)
    assert (e.value.bad_wr, e.value.posted) == (wr, 0)
    with pytest.raises(VerbsError, match="is full") as e:
        post(a.mr[0:8])
    assert (e.value.bad_wr, e.value.posted) == (None, 0)
    assert posted >= 4
    assert outstanding(a.qp)[side] == posted
    a.qp.modify(qp_state=QPState.ERR)
    assert [wc.wr_id for wc in wait_completions(cq, posted)] == list(range(posted))
    assert outstanding(a.qp) == (0, 0)


def test_an_srq_takes_the_same_forms(ctx: Context) -> None:
    b, a, srq = connected_by_srq(ctx)
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
    other_pd = r"\[1\] of the list: the MR belongs to another PD than the SRQ"
    with pytest.raises(ValueError, match=other_pd):
        srq.post_recv([one, RecvWR(a.mr[0:8])])
    with pytest.raises(ValueError, match="QP .* receives from its SRQ: post there"):
        b.qp.post_recv(one)


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_a_request_that_fails_later_completes_as_any_other(link: Link) -> None:
    write: dict[str, Any] = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": link.b.mr.addr}
    bad = SendWR(link.sg, wr_id=2, rkey=link.wrong_key, **write)
    good = SendWR(link.sg, wr_id=1, rkey=link.b.mr.rkey, **write)
    link.qp.post_send([good, bad, good])
    assert [(wc.wr_id, wc.status) for wc in wait_completions(link.a.scq, 3)] == [
        (1, WCStatus.SUCCESS),
        (2, WCStatus.REM_ACCESS_ERR),
        (1, WCStatus.WR_FLUSH_ERR),
    ]
    assert outstanding(link.qp) == (0, 0)
