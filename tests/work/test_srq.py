# SPDX-License-Identifier: MIT
"""Shared receive queues: one stock of receives for several queue pairs, and its limit."""

from __future__ import annotations

import contextlib
import errno
import gc
import random
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from support import (
    DEADLINE,
    GRH,
    Endpoint,
    Waiter,
    is_rxe,
    kernel,
    take_all,
    until,
    wait_completions,
    wait_one,
)

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AsyncEvent,
    AsyncEventType,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    SRQAttr,
    VerbsError,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)

LIMIT = AsyncEventType.SRQ_LIMIT_REACHED
TYPES = [QPType.RC, QPType.UC, QPType.UD]
SLOT = 256  # of the memory that receive `wr_id` gets


class Hub:
    """An SRQ, QPs that receive from it, and a peer of each that sends."""

    def __init__(
        self,
        ctx: Context,
        qps: int = 2,
        qp_type: QPType = QPType.RC,
        *,
        peers: Context | None = None,
        one_cq: bool = False,
        own_send_cqs: bool = True,
        max_wr: int = 32,
        max_sge: int = 1,
        srq_limit: int = 0,
        **options: Any,
    ) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self.srq = SRQ(self.pd, max_wr, max_sge=max_sge, srq_limit=srq_limit)
        self.mr = MR(self.pd, 64 * SLOT)
        self.channel = CompletionChannel(ctx)
        self.qps: list[QP] = []
        self.peers: list[Endpoint] = []
        shared = self.new_cq()
        for _ in range(qps):
            recv_cq = shared if one_cq else self.new_cq()
            send_cq = self.new_cq() if own_send_cqs else recv_cq
            qp = QP(self.pd, qp_type, send_cq=send_cq, recv_cq=recv_cq, srq=self.srq)
            self.add(qp, Endpoint(peers or ctx, qp_type), **options)

    def new_cq(self) -> CQ:
        return CQ(self.ctx, 256, channel=self.channel)

    def add(self, qp: QP, peer: Endpoint, **options: Any) -> None:
        self.qps.append(qp)
        self.peers.append(peer)
        if qp.qp_type == QPType.UD:
            qp.connect()
            peer.qp.connect()
        else:
            qp.connect(peer.qp.address(), **options)
            peer.qp.connect(qp.address(), **options)

    def post(self, *wr_ids: int, size: int = SLOT) -> None:
        for wr_id in wr_ids:
            at = wr_id % 64 * SLOT
            self.srq.post_recv(self.mr[at : at + size], wr_id=wr_id)

    def send(self, i: int, data: bytes = b"x", wr_id: int = 0) -> None:
        """A message for QP i. It has arrived when this returns, where that can be known."""
        qp, peer = self.qps[i], self.peers[i]
        path: dict[str, Any] = {}
        if qp.qp_type == QPType.UD:
            gid = self.ctx.find_gid()
            ah = AH(peer.pd, dgid=gid.gid, sgid_index=gid.index)
            path = {"ah": ah, "remote_qpn": qp.qp_num, "remote_qkey": 0x11111111}
        peer.mr.write(data)
        peer.qp.post_send(peer.mr[0 : len(data)], wr_id=wr_id, **path)
        wait_one(peer.scq)
        if path:
            path["ah"].close()

    def receive(self, i: int) -> WorkCompletion:
        return wait_one(self.qps[i].recv_cq)

    def memory(self, wr_id: int, size: int) -> bytes:
        return self.mr.read(size, wr_id % 64 * SLOT)


@pytest.fixture
def hub(ctx: Context) -> Hub:
    return Hub(ctx)


# ---- making one --------------------------------------------------------------------------


def test_a_new_srq_is_empty_and_knows_what_it_was_made_of(pd: PD) -> None:
    with SRQ(pd, 20, max_sge=3, user_data="mine") as srq:
        assert (srq.pd, srq.context, srq.user_data) == (pd, pd.context, "mine")
        assert srq.max_wr >= 20
        assert srq.max_sge >= 3
        assert srq.outstanding == 0
        attr = srq.query()
        assert isinstance(attr, SRQAttr)
        assert attr.max_wr >= srq.max_wr
        assert (attr.max_sge, attr.srq_limit) == (srq.max_sge, 0)
        assert repr(srq).startswith(f"<SRQ on {pd.context.name}, handle ")
        srq.user_data = None
    assert repr(srq) == "<SRQ closed>"


def test_sizes_beyond_the_device_are_refused_with_the_limit(pd: PD) -> None:
    device = pd.context.query_device()
    for bad in (-1, 0, device.max_srq_wr + 1, 1 << 70):
        with pytest.raises(
            ValueError, match=rf"max_wr is {bad}: it must be 1 to {device.max_srq_wr}"
        ):
            SRQ(pd, bad)
    sge = min(device.max_srq_sge, 64)
    for bad in (-1, sge + 1):
        with pytest.raises(ValueError, match=rf"max_sge is {bad}: it must be 0 to {sge}"):
            SRQ(pd, 4, max_sge=bad)
    for bad in (-1, 5):
        with pytest.raises(ValueError, match=rf"srq_limit is {bad}: it must be 0 to 4"):
            SRQ(pd, 4, srq_limit=bad)
    pd.close()


def test_missing_and_wrong_arguments_are_refused(pd: PD, cq: CQ) -> None:
    with pytest.raises(TypeError, match="max_wr"):
        SRQ(pd)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="pd must be a cqnotify.PD, not cqnotify.CQ"):
        SRQ(cq, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_wr must be an integer, not str"):
        SRQ(pd, "4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_sge must be an integer, not float"):
        SRQ(pd, 4, max_sge=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        SRQ(pd, 4, 1)  # type: ignore[call-arg]
    pd.close()
    with pytest.raises(ClosedError, match="this PD is closed"):
        SRQ(pd, 4)


@pytest.mark.parametrize("qp_type", TYPES)
def test_a_qp_with_an_srq_has_no_receive_queue_of_its_own(pd: PD, cq: CQ, qp_type: QPType) -> None:
    srq = SRQ(pd, 4)
    qp = QP(pd, qp_type, send_cq=cq, srq=srq)
    assert qp.srq is srq
    assert (qp.max_recv_wr, qp.max_recv_sge) == (0, 0)
    assert QP(pd, qp_type, send_cq=cq).srq is None
    qp.to_init()
    with pytest.raises(ValueError, match=rf"QP {qp.qp_num} receives from its SRQ.*srq.post_recv"):
        qp.post_recv(MR(pd, 64))
    assert (qp.outstanding, srq.outstanding) == ((0, 0), 0)


def test_a_qp_with_an_srq_refuses_what_belongs_to_a_receive_queue(pd: PD, cq: CQ) -> None:
    srq = SRQ(pd, 4)
    for name in ("max_recv_wr", "max_recv_sge"):
        with pytest.raises(ValueError, match=f"{name} was given, but with srq there is no"):
            QP(pd, QPType.RC, send_cq=cq, srq=srq, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="srq must be a cqnotify.SRQ, not cqnotify.CQ"):
        QP(pd, QPType.RC, send_cq=cq, srq=cq)  # type: ignore[arg-type]
    with Context(pd.context.name) as other:
        foreign = SRQ(PD(other), 4)
        with pytest.raises(ValueError, match="srq belongs to another Context than pd"):
            QP(pd, QPType.RC, send_cq=cq, srq=foreign)
    with pytest.raises(ClosedError, match="this SRQ is closed"):
        QP(pd, QPType.RC, send_cq=cq, srq=foreign)
    srq.close()


# ---- posting -----------------------------------------------------------------------------


def test_what_can_not_be_received_into_is_refused(pd: PD) -> None:
    srq, mr = SRQ(pd, 4), MR(pd, 64)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the SRQ"):
        srq.post_recv(MR(PD(pd.context), 64))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        srq.post_recv(MR(pd, bytes(64), access=0))
    with pytest.raises(ValueError, match=f"more elements than the {srq.max_sge} that this SRQ"):
        srq.post_recv([mr] * (srq.max_sge + 1))
    with pytest.raises(TypeError, match="sg must be"):
        srq.post_recv(bytearray(8))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wr_id is -1"):
        srq.post_recv(mr, wr_id=-1)
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        srq.post_recv()  # type: ignore[call-arg]
    assert srq.outstanding == 0
    mr.close()
    with pytest.raises(ClosedError, match="this MR is closed"):
        srq.post_recv(mr)


def test_a_full_srq_says_so_and_loses_nothing(ctx: Context) -> None:
    hub = Hub(ctx, 1, max_wr=4)
    posted = 0
    with pytest.raises(VerbsError, match=r"the SRQ is full: it was granted \d+ receives") as e:
        for _ in range(10_000):
            hub.post(posted)
            posted += 1
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_post_srq_recv")
    assert 4 <= posted < 10_000
    assert hub.srq.outstanding == posted
    for wr_id in range(posted):
        hub.send(0)
        assert hub.receive(0).wr_id == wr_id
    assert hub.srq.outstanding == 0
    hub.post(1)


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
    assert (hub.srq.outstanding, hub.qps[0].outstanding) == (0, (0, 0))


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


def test_a_sender_waits_until_the_empty_srq_is_refilled(ctx: Context) -> None:
    hub = Hub(ctx, 2, rnr_retry=7, min_rnr_timer=1)
    for i in (0, 1):
        hub.peers[i].qp.post_send(hub.peers[i].mr[0:8], wr_id=i)
        assert hub.peers[i].scq.poll() == []
    hub.post(1, 2)
    assert {hub.receive(i).wr_id for i in (0, 1)} == {1, 2}
    for peer in hub.peers:
        wait_one(peer.scq)


def test_a_sender_that_does_not_wait_fails_and_the_srq_serves_others(ctx: Context) -> None:
    hub = Hub(ctx, 2, rnr_retry=0, min_rnr_timer=1)
    hub.peers[0].qp.post_send(hub.peers[0].mr[0:8])
    wait_one(hub.peers[0].scq, WCStatus.RNR_RETRY_EXC_ERR)
    hub.post(1)
    hub.send(1)
    assert hub.receive(1).wr_id == 1


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


def test_a_qp_that_was_reset_receives_from_its_srq_again(hub: Hub) -> None:
    for qp in (hub.qps[0], hub.peers[0].qp):
        qp.modify(qp_state=QPState.RESET)
    hub.add(hub.qps[0], hub.peers[0])
    hub.post(1)
    hub.send(0)
    assert hub.receive(0).wr_id == 1


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


class Buffer(bytearray):
    pass


def post_buffer(hub: Hub, wr_id: int) -> weakref.ref[Buffer]:
    """A receive whose memory only the work request holds."""
    buffer = Buffer(64)
    hub.srq.post_recv(MR(hub.pd, buffer)[:], wr_id=wr_id)
    return weakref.ref(buffer)


@contextlib.contextmanager
def forgetting() -> Any:
    """What goes inside was forgotten unclosed."""
    yield
    gc.collect()


def test_a_buffer_lives_until_its_own_completion_was_polled(hub: Hub) -> None:
    """Completions come out of order, since nobody looks at the first queue pair's CQ."""
    first, second, third = (post_buffer(hub, wr_id) for wr_id in (1, 2, 3))
    for i in (0, 1, 0):
        hub.send(i)
    gc.collect()
    assert None not in (first(), second(), third())
    with forgetting():
        assert hub.receive(1).wr_id == 2
    assert second() is None
    assert None not in (first(), third())
    assert hub.srq.outstanding == 2
    with forgetting():
        assert hub.receive(0).wr_id == 1
        assert hub.receive(0).wr_id == 3
    assert first() is third() is None
    assert hub.srq.outstanding == 0


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


def test_of_receives_of_one_wr_id_each_completion_lets_one_go(hub: Hub) -> None:
    buffers = [post_buffer(hub, 5) for _ in range(3)]
    for i in (0, 1, 0):
        hub.send(i)
    for left, i in ((2, 1), (1, 0), (0, 0)):
        with forgetting():
            assert hub.receive(i).wr_id == 5
        assert hub.srq.outstanding == left
        assert [ref() is not None for ref in buffers].count(True) == left


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
    assert (hub.qps[0].outstanding, hub.srq.outstanding) == ((0, 0), 3)
    sent.close()
    hub.qps[0].close()
    for left in (2, 1, 0):
        hub.send(1)
        assert hub.receive(1).wr_id == 5
        assert hub.srq.outstanding == left


def test_a_send_and_a_receive_of_one_wr_id_that_fail_are_told_apart(ctx: Context) -> None:
    hub = Hub(ctx, 1, own_send_cqs=False)
    hub.qps[0].post_send(hub.mr[0:8], wr_id=5)
    hub.post(5, 5)
    fail_receive(hub, 0)
    hub.qps[0].modify(qp_state=QPState.ERR)
    failed = wait_completions(hub.qps[0].send_cq, 2)
    assert [(wc.wr_id, wc.ok) for wc in failed] == [(5, False)] * 2
    assert hub.srq.outstanding == 1
    assert hub.qps[0].outstanding == (0, 0)


def test_sends_and_receives_of_one_wr_id_that_succeed_are_told_apart(ctx: Context) -> None:
    hub = Hub(ctx, 1, own_send_cqs=False)
    peer = hub.peers[0]
    hub.post(5)
    peer.qp.post_recv(peer.mr[0:64])
    hub.qps[0].post_send(hub.mr[0:8], wr_id=5)
    assert hub.receive(0).opcode is WCOpcode.SEND
    assert (hub.qps[0].outstanding, hub.srq.outstanding) == ((0, 0), 1)
    hub.send(0)
    assert hub.receive(0).opcode is WCOpcode.RECV
    assert hub.srq.outstanding == 0


# ---- the limit, and the size -------------------------------------------------------------


def limits(ctx: Context) -> list[AsyncEvent]:
    return [event for event in take_all(ctx) if event.event_type == LIMIT]


def await_limit(ctx: Context) -> AsyncEvent:
    while True:
        event = ctx.get_async_event(timeout=DEADLINE)
        if event.event_type == LIMIT:
            return event


def take(hub: Hub, n: int) -> None:
    for _ in range(n):
        hub.send(0)
        hub.receive(0)


@pytest.mark.parametrize("how", ["made", "modified"])
def test_a_limit_that_is_armed_is_reported_once_and_can_be_armed_again(
    ctx: Context, how: str
) -> None:
    hub = Hub(ctx, 1, srq_limit=3 if how == "made" else 0)
    if how == "modified":
        hub.srq.modify(srq_limit=3)
    for _ in range(2):
        assert hub.srq.query().srq_limit == 3
        hub.post(*range(8 - hub.srq.outstanding))
        take(hub, 5)
        assert limits(ctx) == [], "three are left"
        take(hub, 1)
        event = await_limit(ctx)
        assert event.event_type is LIMIT
        assert event.srq is hub.srq
        assert (event.cq, event.qp, event.port_num) == (None, None, None)
        assert repr(event) == f"<AsyncEvent SRQ_LIMIT_REACHED, {hub.srq!r}>"
        assert hub.srq.query().srq_limit == 0
        take(hub, 1)
        assert limits(ctx) == [], "it is not armed any more"
        hub.srq.modify(srq_limit=3)


def test_a_limit_can_be_disarmed(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.srq.modify(srq_limit=3)
    hub.post(*range(3))
    hub.srq.modify(srq_limit=0)
    take(hub, 1)
    assert hub.srq.query().srq_limit == 0
    hub.srq.modify(srq_limit=2)
    take(hub, 1)
    assert await_limit(ctx).srq is hub.srq
    assert limits(ctx) == []


def test_a_thread_that_sleeps_for_the_limit_is_woken_and_refills(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.post(0, 1, 2)
    hub.srq.modify(srq_limit=2)
    waiter = Waiter(lambda: await_limit(ctx)).asleep()
    take(hub, 2)
    assert waiter.join().srq is hub.srq
    # To wait for completions is another thing: the limit is no failure.
    with pytest.raises(TimeoutError):
        hub.channel.get_event(timeout=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"srq_limit": 32}, "srq_limit is 32: it must be 0 to 31"),
        ({"srq_limit": -1}, "srq_limit is -1"),
        ({"max_wr": 0}, "max_wr is 0: it must be 1 to"),
        ({"max_wr": 1 << 40}, "max_wr is 1099511627776: it must be 1 to"),
        ({"max_wr": 8, "srq_limit": 9}, "srq_limit is 9: it must be 0 to 8"),
        ({"max_wr": 1}, "max_wr is 1: 2 receives are posted and have not completed"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_and_changes_nothing(
    pd: PD, arguments: dict[str, int], message: str
) -> None:
    with MR(pd, 64) as mr, SRQ(pd, 31) as srq:
        assert srq.max_wr == 31  # a size that devices grant as it is
        for wr_id in range(2):
            srq.post_recv(mr, wr_id=wr_id)
        before = srq.query()
        with pytest.raises(ValueError, match=message):
            srq.modify(**arguments)
        assert srq.query() == before


def test_wrong_arguments_of_modify_are_refused(pd: PD) -> None:
    with SRQ(pd, 32) as srq:
        for nothing in ({}, {"max_wr": None}, {"max_wr": None, "srq_limit": None}):
            with pytest.raises(TypeError, match="needs max_wr or srq_limit"):
                srq.modify(**nothing)
        with pytest.raises(TypeError, match="srq_limit must be an integer, not str"):
            srq.modify(srq_limit="1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unexpected keyword argument 'max_sge'"):
            srq.modify(max_sge=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="at most 0 positional"):
            srq.modify(4)  # type: ignore[call-arg]


def test_a_resize_keeps_what_was_posted_in_its_order(ctx: Context) -> None:
    hub = Hub(ctx, 2, max_wr=4)
    hub.post(1, 2, 3)
    hub.send(0)  # so that the queue does not begin at its beginning
    hub.srq.modify(max_wr=200)
    assert 200 <= hub.srq.max_wr <= hub.srq.query().max_wr
    hub.post(*range(4, 30))
    assert hub.srq.outstanding == 29
    for wr_id in range(2, 25):
        hub.send(1)
        assert hub.receive(1).wr_id == wr_id
    hub.receive(0)
    hub.srq.modify(max_wr=5)
    assert hub.srq.query().max_wr < 200
    for wr_id in range(25, 30):
        hub.send(0)
        assert hub.receive(0).wr_id == wr_id
    assert hub.srq.outstanding == 0
    hub.post(1, 2, 3, 4, 5)


def test_size_and_limit_change_together_in_both_directions(pd: PD) -> None:
    with SRQ(pd, 4, srq_limit=4) as srq:
        srq.modify(max_wr=100, srq_limit=90)
        assert srq.query().srq_limit == 90
        assert srq.query().max_wr >= 100
        srq.modify(max_wr=8, srq_limit=7)
        assert srq.query().srq_limit == 7
        assert srq.query().max_wr < 90


def test_a_size_below_the_armed_limit_is_refused_in_words(pd: PD) -> None:
    with SRQ(pd, 100, srq_limit=60) as srq:
        with pytest.raises(VerbsError, match="from max_wr .* to 10: is the limit.*armed") as e:
            srq.modify(max_wr=10)
        assert (e.value.errno, e.value.verb) == (errno.EINVAL, "ibv_modify_srq")
        assert srq.query().srq_limit == 60
        srq.modify(max_wr=200)


# ---- closing -----------------------------------------------------------------------------


def test_an_srq_with_queue_pairs_is_busy_and_stays_usable(hub: Hub) -> None:
    with pytest.raises(BusyError, match="this SRQ is still used by 2 QPs: close that first") as e:
        hub.srq.close()
    assert (e.value.verb, e.value.errno) == ("ibv_destroy_srq", errno.EBUSY)
    with pytest.raises(BusyError, match="this PD is still used by 1 SRQ, 1 MR, 2 QPs"):
        hub.pd.close()
    hub.post(1)
    hub.send(0)
    assert hub.receive(0).wr_id == 1
    for qp in hub.qps:
        qp.close()
    hub.post(2)
    hub.srq.close()
    hub.srq.close()
    hub.mr.close()
    hub.pd.close()


def test_every_method_of_a_closed_srq_is_a_closed_error(pd: PD) -> None:
    srq = SRQ(pd, 4)
    mr = MR(pd, 64)
    srq.close()
    assert srq.closed
    calls: list[Callable[[], object]] = [
        lambda: srq.pd,
        lambda: srq.context,
        lambda: srq.max_wr,
        lambda: srq.max_sge,
        lambda: srq.outstanding,
        srq.query,
        lambda: srq.modify(srq_limit=1),
        lambda: srq.modify(max_wr="x"),  # type: ignore[arg-type]
        lambda: srq.post_recv(mr),
        srq.__enter__,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="this SRQ is closed"):
            call()


def test_a_closed_qp_does_not_tell_of_its_srq(hub: Hub) -> None:
    qp = hub.qps[0]
    qp.close()
    with pytest.raises(ClosedError, match="this QP is closed"):
        qp.srq  # noqa: B018
    with pytest.raises(ClosedError, match="this QP is closed"):
        qp.post_recv(hub.mr)


@pytest.mark.parametrize("state", ["unread", "queued", "taken"])
def test_closing_never_hangs_with_its_event_unread_queued_or_taken(
    ctx: Context, state: str
) -> None:
    with Context(ctx.name) as other:
        hub = Hub(other, 1)
        hub.srq.modify(srq_limit=1)
        hub.post(1)
        take_all(other)
        hub.send(0)
        if state == "queued":
            with pytest.raises(TimeoutError):
                hub.channel.get_event(timeout=0.1)  # reads the report
        event = await_limit(other) if state == "taken" else None
        hub.qps[0].close()
        hub.srq.close()
        assert limits(other) == []
        assert event is None or event.srq is hub.srq


def test_an_event_that_waits_to_be_taken_does_not_keep_the_srq(ctx: Context) -> None:
    hub = Hub(ctx, 1)
    hub.srq.modify(srq_limit=1)
    hub.post(1)
    hub.send(0)
    until(lambda: hub.srq.query().srq_limit == 0, "the limit was reached")
    with pytest.raises(TimeoutError):
        hub.channel.get_event(timeout=0.1)
    gone = weakref.ref(hub.srq)
    hub.qps[0].close()
    hub.qps.clear()
    del hub.srq
    gc.collect()
    assert gone() is None
    assert limits(ctx) == []


def test_a_qp_that_was_moved_to_err_reports_that_it_takes_no_more_of_the_srq(hub: Hub) -> None:
    take_all(hub.ctx)
    hub.qps[1].modify(qp_state=QPState.ERR)
    if is_rxe(hub.ctx) and kernel() < (6, 5):  # where rxe does not yet
        with pytest.raises(TimeoutError):
            hub.ctx.get_async_event(timeout=0.2)
        return
    while True:
        event = hub.ctx.get_async_event(timeout=DEADLINE)
        if event.event_type == AsyncEventType.QP_LAST_WQE_REACHED:
            break
    assert event.qp is hub.qps[1]
    assert event.srq is None


def test_threads_may_post_and_resize_and_poll_at_once(ctx: Context) -> None:
    """Whatever a resize meets, no receive is lost or comes twice."""
    hub = Hub(ctx, 2, max_wr=64, rnr_retry=7, min_rnr_timer=1)
    n = 60
    got: list[int] = []

    def fill() -> None:
        for wr_id in range(2 * n):
            until(lambda: hub.srq.outstanding < 32, "there is room")
            hub.post(wr_id)

    def resize() -> None:
        for i in range(20):
            hub.srq.modify(max_wr=64 + i % 2 * 64)

    def send(i: int) -> None:
        for _ in range(n):
            hub.send(i)

    def poll(i: int) -> None:
        mine: list[int] = []

        def all_in() -> bool:
            mine.extend(hub.qps[i].recv_cq.poll_ids())
            return len(mine) == n

        until(all_in, "all have come")
        got.extend(mine)

    work: list[Callable[[], None]] = [fill, resize]
    work += [lambda i=i: send(i) for i in (0, 1)]  # type: ignore[misc]
    work += [lambda i=i: poll(i) for i in (0, 1)]  # type: ignore[misc]
    for waiter in [Waiter(call) for call in work]:
        waiter.join()
    assert sorted(got) == list(range(2 * n))
    assert hub.srq.outstanding == 0


def test_subclasses_and_user_data_work_as_elsewhere(pd: PD) -> None:
    class Mine(SRQ):
        extra = 1

    srq = Mine(pd, 4)
    srq.user_data = srq  # a cycle
    gone = weakref.ref(srq)
    del srq
    gc.collect()
    assert gone() is None


def test_messages_over_a_wire_are_received(ctx: Context, ctx2: Context) -> None:
    hub = Hub(ctx2, peers=ctx)
    hub.post(*range(10))
    for i in (0, 1) * 5:
        hub.send(i, b"over the wire")
    wcs = [wc for i in (0, 1) for wc in wait_completions(hub.qps[i].recv_cq, 5)]
    assert sorted(wc.wr_id for wc in wcs) == list(range(10))
    assert {hub.memory(wc.wr_id, 13) for wc in wcs} == {b"over the wire"}
