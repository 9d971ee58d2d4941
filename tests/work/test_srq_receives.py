# SPDX-License-Identifier: MIT
"""What is posted to an SRQ: who receives it, and what it keeps alive."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections import deque

import pytest
from srq_hub import SLOT, TYPES, Hub
from support import GRH, Endpoint, is_rxe, outstanding, until, wait_completions, wait_one

from cqnotify import (
    MR,
    PD,
    QP,
    BusyError,
    Context,
    QPState,
    QPType,
    WCOpcode,
    WCStatus,
)

# ---- posting -----------------------------------------------------------------------------


def test_a_receive_scatters(ctx: Context) -> None:
    hub = Hub(ctx, 1, max_sge=3)
    other = MR(hub.pd, 64)
    hub.srq.post_recv([hub.mr[0:2], other[8:11], hub.mr[100:200]], wr_id=1)
    hub.send(0, b"0123456789")
    assert hub.receive(0).byte_len == 10
    got = (hub.mr.read(3), other.read(4, 8), hub.mr.read(6, 100))
    assert got == (b"01\0", b"234\0", b"56789\0")


# ---- receiving ---------------------------------------------------------------------------


@pytest.mark.parametrize("qp_type", TYPES)
def test_a_message_takes_the_next_receive_and_completes_on_its_qp(
    ctx: Context, qp_type: QPType
) -> None:
    hub = Hub(ctx, 1, qp_type)
    grh = GRH if qp_type == QPType.UD else 0
    hub.post(7)
    hub.send(0, b"to the srq")
    wc = hub.receive(0)
    assert (wc.wr_id, wc.qp_num, wc.opcode) == (7, hub.qps[0].qp_num, WCOpcode.RECV)
    assert wc.byte_len == 10 + grh
    assert (wc.src_qp is None) == (qp_type != QPType.UD)
    assert hub.memory(7, grh + 11)[grh:] == b"to the srq\0"
    assert (hub.srq.outstanding, outstanding(hub.qps[0])) == (0, (0, 0))


@pytest.mark.not_on_iwarp("it has no UD")
@pytest.mark.parametrize("one_cq", [False, True])
def test_an_srq_of_datagrams_and_connections_tells_their_completions_apart(
    ctx: Context, one_cq: bool
) -> None:
    hub = Hub(ctx, 1)
    recv_cq = hub.qps[0].recv_cq if one_cq else hub.new_cq()
    ud = QP(hub.pd, QPType.UD, send_cq=hub.new_cq(), recv_cq=recv_cq, srq=hub.srq)
    hub.add(ud, Endpoint(ctx, QPType.UD))
    hub.post(1, 2, 3)
    for i, wr_id in ((1, 1), (0, 2), (1, 3)):
        hub.send(i)
        wc = hub.receive(i)
        assert wc.wr_id == wr_id
        assert (wc.src_qp is None) == (i == 0)
        assert wc.byte_len == (1 if i == 0 else 1 + GRH)


@pytest.mark.parametrize("one_cq", [False, True])
def test_queue_pairs_take_receives_in_the_order_of_posting(ctx: Context, one_cq: bool) -> None:
    hub = Hub(ctx, 3, one_cq=one_cq)
    hub.post(*range(24))
    turns = [0, 1, 2, 2, 1, 0, 0, 0] * 3
    for wr_id, i in enumerate(turns):
        hub.send(i, b"%02d" % wr_id)
    got = {wc.wr_id: wc.qp_num for qp in hub.qps for wc in qp.recv_cq.poll(64)}
    assert got == {wr_id: hub.qps[i].qp_num for wr_id, i in enumerate(turns)}
    assert [hub.memory(wr_id, 2) for wr_id in got] == [b"%02d" % wr_id for wr_id in got]
    assert hub.srq.outstanding == 0


@pytest.mark.not_on_iwarp("a message without a receive ends the connection")
def test_a_sender_waits_until_the_empty_srq_is_refilled(ctx: Context) -> None:
    hub = Hub(ctx, 2, rnr_retry=7, min_rnr_timer=1)
    for i in (0, 1):
        hub.peers[i].qp.post_send(hub.peers[i].mr[0:8], wr_id=i)
        assert hub.peers[i].scq.poll() == []
    hub.post(1, 2)
    assert {hub.receive(i).wr_id for i in (0, 1)} == {1, 2}
    for peer in hub.peers:
        wait_one(peer.scq)


@pytest.mark.parametrize("state", [QPState.ERR, QPState.RESET])
def test_a_qp_that_stops_leaves_the_receives_to_the_others(hub: Hub, state: QPState) -> None:
    hub.post(*range(6))
    hub.send(0)
    hub.qps[0].modify(qp_state=state)
    for wr_id in range(1, 6):
        hub.send(1)
        assert hub.receive(1).wr_id == wr_id
    # What the first one received is its own, and nothing of the rest was flushed through it.
    assert [(wc.wr_id, wc.ok) for wc in hub.qps[0].recv_cq.poll()] == [(0, True)]
    assert hub.srq.outstanding == 0


@pytest.mark.not_on_iwarp("a send that fails ends the connection")
def test_a_peer_that_stops_in_the_middle_of_a_message_takes_its_receive_along(ctx: Context) -> None:
    """Rxe of Linux 6.1 flushes it, that of 7.2 never completes it."""
    hub = Hub(ctx, 1, rnr_retry=1)
    qp = QP(hub.pd, QPType.RC, send_cq=hub.new_cq(), srq=hub.srq)
    stopping = Endpoint(ctx, QPType.RC, max_send_sge=2)
    hub.add(qp, stopping)
    hub.post(0, 1, size=4096)
    stopping.mr.write(b"begun")
    refused = stopping.mr[0:8].with_lkey(MR(PD(ctx), 8).lkey)
    stopping.qp.post_send([stopping.mr[0:2048], refused])
    (wc,) = wait_completions(stopping.scq, 1)
    assert not wc.ok
    until(lambda: hub.memory(0, 5) == b"begun", "the message has begun to arrive")
    qp.modify(qp_state=QPState.ERR)
    hub.send(0)
    assert hub.receive(0).wr_id == 1
    hub.peers[0].qp.post_send(hub.peers[0].mr[0:8])
    (wc,) = wait_completions(hub.peers[0].scq, 1)
    assert wc.status == WCStatus.RNR_RETRY_EXC_ERR


def test_a_qp_of_another_pd_leaves_the_memory_to_the_srq(ctx: Context) -> None:
    hub = Hub(ctx, 0)
    elsewhere = QP(PD(ctx), QPType.RC, send_cq=hub.new_cq(), srq=hub.srq)
    hub.add(elsewhere, Endpoint(ctx, QPType.RC))
    hub.post(1)
    hub.peers[0].qp.post_send(hub.peers[0].mr[0:8])
    (wc,) = wait_completions(hub.qps[0].recv_cq, 1)
    assert wc.wr_id == 1
    # Of whose PD the memory is decides the SRQ by the verbs, and the QP on rxe.
    assert wc.ok == (not is_rxe(ctx))
    assert hub.srq.outstanding == 0


# ---- what a posted receive keeps alive ---------------------------------------------------


def test_each_of_several_mrs_of_a_receive_is_needed_until_its_completion(ctx: Context) -> None:
    hub = Hub(ctx, max_sge=3)
    mrs = [[MR(hub.pd, 64) for _ in range(3)] for _ in range(4)]
    for wr_id, row in enumerate(mrs):
        hub.srq.post_recv([mr[0:4] for mr in row], wr_id=wr_id)
    for i in (0, 1, 0, 1):
        hub.send(i)

    def is_busy(mr: MR) -> bool:
        with contextlib.suppress(BusyError):
            mr.close()
        return not mr.closed

    def busy() -> list[int]:
        return [wr_id for wr_id, row in enumerate(mrs) for mr in row if is_busy(mr)]

    assert [wc.wr_id for wc in hub.qps[1].recv_cq.poll()] == [1, 3]
    assert busy() == [0, 0, 0, 2, 2, 2]
    assert [wc.wr_id for wc in hub.qps[0].recv_cq.poll()] == [0, 2]
    assert busy() == []
    assert hub.srq.outstanding == 0


def test_growing_for_a_receive_of_several_mrs_loses_none_of_the_others(ctx: Context) -> None:
    """Whatever the room is at first: one receive finds a place for one of its three MRs alone."""
    for before in range(14, 17):
        hub = Hub(ctx, 1, max_wr=64, max_sge=3)
        hub.post(*range(before))
        hub.srq.post_recv([MR(hub.pd, 8)[0:8] for _ in range(3)], wr_id=before)
        hub.post(*range(before + 1, 40))
        for _ in range(40):
            hub.send(0)
        assert [hub.receive(0).wr_id for _ in range(40)] == list(range(40))
        assert hub.srq.outstanding == 0


def test_a_receive_that_stays_does_not_let_the_rest_pile_up(hub: Hub) -> None:
    """The first queue pair's completion is never polled; thousands pass by."""
    hub.post(0, *range(1, 9))
    hub.send(0)
    received = 0

    def pass_by(n: int) -> None:
        nonlocal received
        for _ in range(n):
            peer = hub.peers[1]
            peer.qp.post_send(peer.mr[0:8])
            wait_one(peer.scq)
            (wr_id,) = hub.qps[1].recv_cq.poll_ids()
            assert wr_id == received % 8 + 1
            hub.post(wr_id)
            received += 1

    pass_by(64)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pass_by(2000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 8192
    assert hub.srq.outstanding == 9
    assert hub.receive(0).wr_id == 0
    assert hub.srq.outstanding == 8


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("one_cq", [False, True])
def test_what_a_qp_had_received_is_let_go_with_it_and_can_still_be_polled(
    ctx: Context, end: str, one_cq: bool
) -> None:
    hub = Hub(ctx, 2, one_cq=one_cq)
    mrs = [MR(hub.pd, 64) for _ in range(3)]
    for wr_id, mr in enumerate(mrs):
        hub.srq.post_recv(mr, wr_id=wr_id)
    qp, cq = hub.qps[0], hub.qps[0].recv_cq
    hub.send(0)
    number = qp.qp_num
    qp.close() if end == "close" else qp.modify(qp_state=QPState.RESET)
    assert hub.srq.outstanding == 2
    mrs[0].close()
    for mr in mrs[1:]:
        with pytest.raises(BusyError, match=r"close the QP or SRQ that it was posted to"):
            mr.close()
    hub.send(1)
    assert hub.srq.outstanding == 2 if not one_cq else 1
    got = [(wc.wr_id, wc.qp_num) for wc in cq.poll()]
    assert got[0] == (0, number)
    if not one_cq:
        hub.receive(1)
    hub.qps[1].close()
    qp.close()
    # Nobody has taken the last one: it is the SRQ's.
    assert hub.srq.outstanding == 1
    mrs[1].close()
    hub.srq.close()
    mrs[2].close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_in_any_order_what_waits_is_kept_and_what_completed_goes(
    ctx: Context, seed: int
) -> None:
    rng = random.Random(seed)
    hub = Hub(ctx, 3, one_cq=seed % 2 == 1)
    memory: dict[int, MR] = {}
    waiting: deque[int] = deque()
    arrived: dict[int, list[int]] = {qp.qp_num: [] for qp in hub.qps}  # by QP, and not polled

    def post() -> None:
        wr_id = len(memory)
        memory[wr_id] = MR(hub.pd, 64)
        hub.srq.post_recv(memory[wr_id], wr_id=wr_id)
        waiting.append(wr_id)

    def send() -> None:
        if waiting:
            i = rng.randrange(len(hub.qps))
            hub.send(i)
            arrived[hub.qps[i].qp_num].append(waiting.popleft())

    def poll() -> None:
        for wc in rng.choice(hub.qps).recv_cq.poll(rng.randrange(1, 6)):
            if wc.wr_id in arrived.get(wc.qp_num, ()):  # else its QP has gone
                arrived[wc.qp_num].remove(wc.wr_id)
            memory[wc.wr_id].close()

    def replace() -> None:
        i = rng.randrange(len(hub.qps))
        qp, peer = hub.qps.pop(i), hub.peers.pop(i)
        send_cq, recv_cq = qp.send_cq, qp.recv_cq
        received = arrived.pop(qp.qp_num)
        for other in hub.qps:
            if other.recv_cq is recv_cq:  # what it has is taken from it then, and kept to be polled
                received += arrived[other.qp_num]
                arrived[other.qp_num] = []
        if rng.random() < 0.5:
            qp.close()
            qp = QP(hub.pd, QPType.RC, send_cq=send_cq, recv_cq=recv_cq, srq=hub.srq)
        else:
            qp.modify(qp_state=QPState.RESET)
        peer.qp.modify(qp_state=QPState.RESET)
        hub.add(qp, peer)
        arrived[qp.qp_num] = []
        for wr_id in received:
            memory[wr_id].close()

    for _ in range(300):
        if len(waiting) > 20:
            send()
        rng.choice([post, post, send, send, poll, replace])()
        kept = [*waiting, *(wr_id for ids in arrived.values() for wr_id in ids)]
        assert hub.srq.outstanding == len(kept)
        if kept:
            with pytest.raises(BusyError):
                memory[rng.choice(kept)].close()


def test_memory_that_goes_with_a_closed_qp_may_close_everything(ctx: Context) -> None:
    class Closing(bytearray):
        def __del__(self) -> None:
            other.close()

    with Context(ctx.name) as other:
        hub = Hub(other)
        buffer = Closing(64)
        hub.srq.post_recv(MR(hub.pd, buffer)[:])
        del buffer
        hub.send(0)
        hub.qps[0].close()
        assert other.closed
        assert hub.srq.closed


# ---- failures ----------------------------------------------------------------------------


def fail_receive(hub: Hub, i: int) -> None:
    """A message that is too long for the receive."""
    peer = hub.peers[i]
    peer.qp.post_send(peer.mr[0 : 2 * SLOT])
    (wc,) = wait_completions(peer.scq, 1)
    assert not wc.ok


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
@pytest.mark.parametrize("own_send_cqs", [False, True])
def test_a_receive_that_fails_is_let_go_alone(ctx: Context, own_send_cqs: bool) -> None:
    hub = Hub(ctx, 2, own_send_cqs=own_send_cqs)
    hub.qps[0].post_send(hub.mr[0:8], wr_id=6)  # the peer has no receive for it
    hub.post(5, 6)
    fail_receive(hub, 0)
    failed = wait_completions(hub.qps[0].recv_cq, 1)[0]
    assert (failed.wr_id, failed.ok) == (5, False)
    assert hub.srq.outstanding == 1
    hub.send(1)
    assert hub.receive(1).wr_id == 6
    assert hub.srq.outstanding == 0


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_failed_sends_with_the_wr_ids_of_waiting_receives_let_none_of_these_go(
    ctx: Context,
) -> None:
    """The CQ is one for both, so a failure does not say of which side it is."""
    hub = Hub(ctx, 2, own_send_cqs=False)
    sent = MR(hub.pd, 64)
    hub.post(5, 5, 5)
    for _ in range(2):
        hub.qps[0].post_send(sent[0:8], wr_id=5)
    hub.qps[0].modify(qp_state=QPState.ERR)
    flushed = wait_completions(hub.qps[0].send_cq, 2)
    assert [(wc.wr_id, wc.status) for wc in flushed] == [(5, WCStatus.WR_FLUSH_ERR)] * 2
    assert (outstanding(hub.qps[0]), hub.srq.outstanding) == ((0, 0), 3)
    sent.close()
    hub.qps[0].close()
    for left in (2, 1, 0):
        hub.send(1)
        assert hub.receive(1).wr_id == 5
        assert hub.srq.outstanding == left


@pytest.mark.not_on_iwarp("what the peer does with a message does not reach its sender")
def test_a_send_and_a_receive_of_one_wr_id_that_fail_are_told_apart(ctx: Context) -> None:
    hub = Hub(ctx, 1, own_send_cqs=False)
    hub.qps[0].post_send(hub.mr[0:8], wr_id=5)
    hub.post(5, 5)
    fail_receive(hub, 0)
    hub.qps[0].modify(qp_state=QPState.ERR)
    failed = wait_completions(hub.qps[0].send_cq, 2)
    assert [(wc.wr_id, wc.ok) for wc in failed] == [(5, False)] * 2
    assert hub.srq.outstanding == 1
    assert outstanding(hub.qps[0]) == (0, 0)


def test_sends_and_receives_of_one_wr_id_that_succeed_are_told_apart(ctx: Context) -> None:
    hub = Hub(ctx, 1, own_send_cqs=False)
    peer = hub.peers[0]
    hub.post(5)
    peer.qp.post_recv(peer.mr[0:64])
    hub.qps[0].post_send(hub.mr[0:8], wr_id=5)
    assert hub.receive(0).opcode is WCOpcode.SEND
    assert (outstanding(hub.qps[0]), hub.srq.outstanding) == ((0, 0), 1)
    hub.send(0)
    assert hub.receive(0).opcode is WCOpcode.RECV
    assert hub.srq.outstanding == 0
