# SPDX-License-Identifier: MIT
"""Completions that find no room in the CQ, and queue pairs that die with work requests posted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Pair,
    connect,
    outstanding,
    take_all,
    take_cq_err,
    until,
    wait_completions,
    wait_one,
)

from cqnotify import (
    CQ,
    MR,
    QP,
    AccessFlags,
    BusyError,
    Context,
    QPState,
    QPType,
    SendFlags,
    WCStatus,
    WorkCompletion,
    WROpcode,
)

SIGNALED = SendFlags.SIGNALED
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
N = 12
FEW = 4  # entries asked for in a CQ that is to overflow; CQ.cqe says how many it has
LOST = 5  # completions too many


def summary(completions: list[WorkCompletion]) -> list[tuple[int, WCStatus | int]]:
    return [(wc.wr_id, wc.status) for wc in completions]


def poll_until(cq: CQ, n: int) -> list[WorkCompletion]:
    """n completions without arming."""
    got: list[WorkCompletion] = []

    def more() -> bool:
        got.extend(cq.poll(n))
        return len(got) >= n

    until(more, f"{n} completions")
    return got


def send_many(pair: Pair, n: int, mr: MR | None = None, *, base: int = 0) -> None:
    a, b = pair
    for i in range(base, base + n):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    for i in range(base, base + n):
        a.qp.post_send((a.mr if mr is None else mr)[0:8], wr_id=i)


def barrier(pair: Pair, mark: bytes, qp: QP | None = None) -> None:
    """Returns when all sends so far are done, without a completion that would tell.

    Work requests are completed in order, so when the bytes of a read are here, those before it are.
    """
    a, b = pair
    b.mr.write(mark, 1024)
    there: dict[str, int] = {"remote_addr": b.mr.addr + 1024, "rkey": b.mr.rkey}
    into = a.mr[1024 : 1024 + len(mark)]
    (qp or a.qp).post_send(into, opcode=WROpcode.RDMA_READ, send_flags=0, **there)
    until(lambda: a.mr.read(len(mark), 1024) == mark, "the bytes of the read")


def close(qp: QP) -> None:
    qp.close()


def reset(qp: QP) -> None:
    qp.modify(qp_state=QPState.RESET)
    assert outstanding(qp) == (0, 0)


def take_reports(ctx: Context, n: int) -> None:
    """n reports of a CQ that has failed: who waits afterwards is not told of them again."""
    for _ in range(n):
        take_cq_err(ctx)
    take_all(ctx)


@pytest.fixture
def few_sends(ctx: Context) -> Pair:
    """The sender's CQs are small."""
    return connect(Endpoint(ctx, QPType.RC, cqe=FEW), Endpoint(ctx, QPType.RC))


@pytest.fixture
def few_receives(ctx: Context) -> Pair:
    """The receiver's CQs are small; the sender soon gives up."""
    sender, receiver = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC, cqe=FEW)
    return connect(sender, receiver, retry_cnt=1)


def overflow_send_cq(pair: Pair, mr: MR | None = None) -> int:
    """Sends LOST messages too many without polling, and returns how many fit."""
    a, b = pair
    fit = a.scq.cqe
    send_many(pair, fit + LOST, mr)
    barrier(pair, b"overflow")
    assert summary(poll_until(b.rcq, fit + LOST)) == [(i, SUCCESS) for i in range(fit + LOST)]
    take_reports(a.ctx, LOST)  # one for each
    return fit


def test_a_send_cq_that_overflows_keeps_what_came_first_and_works_on(few_sends: Pair) -> None:
    a, b = few_sends
    fit = overflow_send_cq(few_sends)
    assert summary(a.scq.poll(64)) == [(i, SUCCESS) for i in range(fit)]
    assert a.qp.state is b.qp.state is QPState.RTS
    for i in range(3 * fit):
        send_many(few_sends, 1, base=1000 + i)
        assert wait_one(a.scq).wr_id == wait_one(b.rcq).wr_id == 1000 + i


def test_memory_of_a_lost_completion_is_released_by_a_later_one(few_sends: Pair) -> None:
    a, _ = few_sends
    mr = MR(a.pd, 64)
    fit = overflow_send_cq(few_sends, mr)
    assert len(a.scq.poll(64)) == fit
    assert outstanding(a.qp) == (LOST + 1, 0)  # the barrier is one
    with pytest.raises(BusyError, match=f"{LOST} work requests in flight"):
        mr.close()
    send_many(few_sends, 1, base=99)
    assert wait_one(a.scq).wr_id == 99
    assert outstanding(a.qp) == (0, 0)
    mr.close()


@pytest.mark.parametrize("polled", [True, False])
@pytest.mark.parametrize("end", [close, reset])
def test_memory_of_a_lost_completion_is_released_with_the_qp(
    few_sends: Pair, end: Callable[[QP], None], polled: bool
) -> None:
    a, _ = few_sends
    mr = MR(a.pd, 64)
    fit = overflow_send_cq(few_sends, mr)
    if polled:
        assert len(a.scq.poll(64)) == fit
    with pytest.raises(BusyError, match="in flight"):
        mr.close()
    end(a.qp)
    mr.close()
    assert len(a.scq.poll(64)) == (0 if polled else fit)


def test_a_lost_completion_raises_no_event_and_leaves_the_arm(few_sends: Pair) -> None:
    a, b = few_sends
    a.scq.req_notify()
    fit = overflow_send_cq(few_sends)
    assert a.channel.get_event(timeout=DEADLINE) is a.scq
    a.scq.req_notify()  # the CQ is full: nothing can be added to it
    send_many(few_sends, 2, base=100)
    barrier(few_sends, b"once more")
    poll_until(b.rcq, 2)
    take_reports(a.ctx, 2)
    assert a.channel.try_get_event() is None
    assert summary(a.scq.poll(64)) == [(i, SUCCESS) for i in range(fit)]
    send_many(few_sends, 1, base=200)
    assert a.channel.get_event(timeout=DEADLINE) is a.scq
    assert summary(poll_until(a.scq, 1)) == [(200, SUCCESS)]
    assert a.channel.try_get_event() is None
    assert a.scq.stats.events == 2


def test_a_qp_that_fills_a_shared_cq_takes_nothing_from_the_other(ctx: Context) -> None:
    """Its completions are lost, and its memory is kept, until a completion of its own."""
    pair = a, b = connect(Endpoint(ctx, QPType.RC, cqe=FEW), Endpoint(ctx, QPType.RC))
    other = QP(a.pd, QPType.RC, send_cq=a.scq)
    peer = QP(b.pd, QPType.RC, send_cq=b.scq, recv_cq=b.rcq)
    other.connect(peer.address())
    peer.connect(other.address(), access=AccessFlags.REMOTE_READ)
    fit = a.scq.cqe
    send_many(pair, fit)
    barrier(pair, b"full")
    mr = MR(a.pd, 64)
    peer.post_recv(b.mr[0:64])
    peer.post_recv(b.mr[0:64])
    other.post_send(mr[0:8], wr_id=500)
    barrier(pair, b"lost", other)
    assert {wc.qp_num for wc in a.scq.poll(64)} == {a.qp.qp_num}
    assert outstanding(a.qp) == (1, 0)  # the barrier
    assert outstanding(other) == (2, 0)
    with pytest.raises(BusyError, match="1 work request in flight"):
        mr.close()
    other.post_send(a.mr[0:8], wr_id=502)
    until(lambda: any(wc.wr_id == 502 for wc in a.scq.poll(64)), "its own completion")
    assert outstanding(other) == (0, 0)
    mr.close()


def overflow_receive_cq(pair: Pair, mr: MR | None = None) -> tuple[int, list[WorkCompletion]]:
    """Sends LOST messages too many without polling the receiver; what the sender got of it."""
    a, b = pair
    fit = b.rcq.cqe
    n = fit + LOST
    for i in range(n):
        b.qp.post_recv((b.mr if mr is None else mr)[0:64], wr_id=i)
    for i in range(n):
        a.qp.post_send(a.mr[0:8], wr_id=i)
    return fit, wait_completions(a.scq, n)


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_a_receive_cq_that_overflows_ends_the_connection(few_receives: Pair) -> None:
    a, b = few_receives
    fit, sent = overflow_receive_cq(few_receives)
    assert summary(sent) == [
        *((i, SUCCESS) for i in range(fit)),
        (fit, WCStatus.RETRY_EXC_ERR),
        *((i, FLUSHED) for i in range(fit + 1, fit + LOST)),
    ]
    assert a.qp.state is b.qp.state is QPState.ERR
    assert summary(b.rcq.poll(64)) == [(i, SUCCESS) for i in range(fit)]
    assert outstanding(b.qp) == (0, LOST)


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
@pytest.mark.parametrize("end", [close, reset])
def test_memory_of_lost_receives_is_released_with_the_qp(
    few_receives: Pair, end: Callable[[QP], None]
) -> None:
    _, b = few_receives
    mr = MR(b.pd, 64)
    fit, _ = overflow_receive_cq(few_receives, mr)
    with pytest.raises(BusyError, match=f"{fit + LOST} work requests in flight"):
        mr.close()
    assert len(b.rcq.poll(64)) == fit
    with pytest.raises(BusyError, match=f"{LOST} work requests in flight"):
        mr.close()
    end(b.qp)
    mr.close()


@pytest.mark.not_on_iwarp("siw knows no RESET")
def test_after_a_reset_the_overflowed_cq_receives_again(few_receives: Pair) -> None:
    a, b = few_receives
    fit, _ = overflow_receive_cq(few_receives)
    take_reports(b.ctx, 1)
    for end in (a, b):
        end.qp.modify(qp_state=QPState.RESET)
    connect(a, b)
    b.rcq.req_notify()
    send_many(few_receives, 1, base=77)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert [wc.wr_id for wc in poll_until(b.rcq, fit + 1)] == [*range(fit), 77]
    assert wait_one(a.scq).wr_id == 77


@pytest.mark.not_on_iwarp(
    "what the peer does with a message does not reach its sender", only=r"few_receives"
)
@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("kind", ["few_sends", "few_receives"])
def test_all_closes_in_order_after_an_overflow(
    request: pytest.FixtureRequest, kind: str, armed: bool
) -> None:
    pair = request.getfixturevalue(kind)
    for end in pair:
        if armed:
            end.scq.req_notify()
            end.rcq.req_notify()
    overflow_send_cq(pair) if kind == "few_sends" else overflow_receive_cq(pair)
    for end in pair:
        for thing in (end.qp, end.mr, end.scq, end.rcq, end.channel, end.pd):
            thing.close()
            assert thing.closed


# Queue pairs that go to ERR.


def every_other(i: int) -> SendFlags:
    """The first is signaled, the last of N is not."""
    return SendFlags(0) if i % 2 else SIGNALED


def with_work(a: Endpoint, b: Endpoint, *, shared_wr_ids: bool = False) -> Pair:
    """A connected to a silent peer, N sends and N receives posted."""
    b.qp.to_init()
    a.qp.connect(b.qp.address(), ack_timeout=0)  # it waits for ever
    for i in range(N):
        a.qp.post_recv(a.mr[64:128], wr_id=i if shared_wr_ids else 100 + i)
    for i in range(N):
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=every_other(i))
    assert outstanding(a.qp) == (N, N)
    return a, b


@pytest.mark.parametrize(
    ("one_cq", "shared_wr_ids"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_a_qp_in_err_flushes_every_request_once_and_in_order(
    ctx: Context, one_cq: bool, shared_wr_ids: bool
) -> None:
    """Each queue in order; the same wr_id may stand for a send and a receive."""
    ends = Endpoint(ctx, QPType.RC, one_cq=one_cq), Endpoint(ctx, QPType.RC)
    a, _ = with_work(*ends, shared_wr_ids=shared_wr_ids)
    sends = [(i, FLUSHED) for i in range(N)]
    receives = sends if shared_wr_ids else [(100 + i, FLUSHED) for i in range(N)]
    cqs = {a.scq, a.rcq}
    for cq in cqs:
        cq.req_notify()
    a.qp.modify(qp_state=QPState.ERR)
    assert {a.channel.get_event(timeout=DEADLINE) for _ in cqs} == cqs
    if one_cq:
        got = summary(poll_until(a.scq, 2 * N))
        assert sorted(got) == sorted(sends + receives)
        assert shared_wr_ids or [wc for wc in got if wc[0] < 100] == sends
        assert shared_wr_ids or [wc for wc in got if wc[0] >= 100] == receives
    else:
        assert summary(poll_until(a.scq, N)) == sends
        assert summary(poll_until(a.rcq, N)) == receives
    assert a.channel.try_get_event() is None
    assert outstanding(a.qp) == (0, 0)
    a.mr.close()
    # Nothing more came, nor comes after the QP has gone.
    a.qp.close()
    assert a.scq.poll() == a.rcq.poll() == []


def test_flushed_requests_that_find_no_room_are_released_with_the_qp(ctx: Context) -> None:
    a, _ = with_work(Endpoint(ctx, QPType.RC, cqe=FEW), Endpoint(ctx, QPType.RC))
    a.qp.modify(qp_state=QPState.ERR)
    fit = a.scq.cqe
    assert fit < N
    assert summary(poll_until(a.scq, fit))[:fit] == [(i, FLUSHED) for i in range(fit)]
    assert summary(poll_until(a.rcq, fit))[:fit] == [(100 + i, FLUSHED) for i in range(fit)]
    a.qp.close()
    a.mr.close()
    a.scq.close()
    a.rcq.close()
    a.channel.close()


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_a_failure_in_the_middle_splits_success_from_flush(pair: Pair) -> None:
    """Unsignaled requests before it say nothing, after it they are flushed as the others are."""
    a, b = pair
    bad = N // 2
    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    b.rcq.req_notify()
    write: dict[str, Any] = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": b.mr.addr}
    for i in range(N):
        rkey = b.mr.rkey ^ (0xFF if i == bad else 0)
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=every_other(i), rkey=rkey, **write)
    ok = [(i, SUCCESS) for i in range(bad) if every_other(i)]
    expected = [*ok, (bad, WCStatus.REM_ACCESS_ERR), *((i, FLUSHED) for i in range(bad + 1, N))]
    assert summary(wait_completions(a.scq, len(expected))) == expected
    assert outstanding(a.qp) == (0, 0)
    assert a.qp.state is QPState.ERR
    # The receiver dies of it, too, and says so.
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert summary(poll_until(b.rcq, 3)) == [(i, FLUSHED) for i in range(3)]
    assert b.qp.state is QPState.ERR
    a.mr.close()
    b.mr.close()


@pytest.mark.not_on_iwarp("siw does not flush what is posted on a QP in ERR")
def test_what_is_posted_on_a_dead_qp_is_flushed_or_released_with_it(pair: Pair) -> None:
    """Sends are flushed, in order. A device may leave receives alone, and rxe does."""
    a, _ = pair
    a.qp.modify(qp_state=QPState.ERR)
    receive = MR(a.pd, 64)
    a.qp.post_recv(receive[0:64], wr_id=100)
    a.scq.req_notify()
    for i in range(N):
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=every_other(i))
    assert a.channel.get_event(timeout=DEADLINE) is a.scq
    assert summary(poll_until(a.scq, N)) == [(i, FLUSHED) for i in range(N)]
    a.mr.close()
    a.rcq.poll()
    a.qp.close()
    receive.close()
