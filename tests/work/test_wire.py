# SPDX-License-Identifier: MIT
"""A bad wire between the lab's two devices: delay, loss, duplicates, reordering, a cut.

Every message arrives once, whole and in order, or its error completion does.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Pair,
    Waiter,
    connect,
    is_asleep,
    is_iwarp,
    outstanding,
    until,
    wait_completions,
    wait_one,
    waiting,
)

from cqnotify import (
    CQ,
    SGE,
    Context,
    QPState,
    QPType,
    SendFlags,
    WCStatus,
    WorkCompletion,
    WROpcode,
)

pytestmark = pytest.mark.skipif(
    os.environ.get("CQNOTIFY_LAB") not in ("vm", "native"), reason="needs the lab's two devices"
)

Connector = Callable[..., "Stream"]
SIGNALED = SendFlags.SIGNALED
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
NETDEVS = os.environ.get("CQNOTIFY_LAB_NETDEVS", "").split()
REQUESTS, REPLIES = NETDEVS[:1], NETDEVS[1:]  # what leaves the sender's device, the receiver's

N = 64
SIZE = 2500  # bytes of a message: three packets
DELAY = ["delay", "3ms"]
QUICK = 12  # the code of a timeout of 17 ms
STEADY = 15  # of 134 ms, in which a busy machine answers
FOR_EVER = 7  # rxe counts this many retries as no limit
QUIET = 6.0  # seconds after which a sender that hears nothing is reminded
REMINDERS = round(DEADLINE / QUIET)  # at most: a QP has room for them

WEATHER = {
    "loss": [*DELAY, "loss", "20%"],
    "duplicates": [*DELAY, "duplicate", "30%"],
    "reordering": [*DELAY, "reorder", "30%", "50%"],
    "corruption": [*DELAY, "corrupt", "15%"],
    "all of it": [*DELAY, "1ms", "loss", "10%", "duplicate", "10%", "corrupt", "5%"],
}


def tc(*arguments: str) -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    done = subprocess.run(
        ["tc", *arguments], capture_output=True, text=True, timeout=60, env={"PATH": path}
    )
    assert done.returncode == 0, f"tc {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def disturbed() -> list[str]:
    """Those of the lab's network devices that netem sits on."""
    listed = json.loads(tc("-j", "qdisc"))
    return [q["dev"] for q in listed if q["kind"] == "netem" and q["dev"] in NETDEVS]


def dropped(netdev: str) -> int:
    (root,) = json.loads(tc("-s", "-j", "qdisc", "show", "dev", netdev))
    return int(root["drops"])


def without_corruption(netem: tuple[str, ...]) -> tuple[str, ...]:
    """A reply has 20 bytes. Where a wrong bit in the UDP header says that it has 4, rxe puts a QP
    that it has not looked up yet, and the kernel panics."""
    if "corrupt" not in netem:
        return netem
    at = netem.index("corrupt")
    return netem[:at] + netem[at + 2 :]


@contextmanager
def weather(*netem: str, on: list[str] = NETDEVS) -> Iterator[None]:
    """What leaves these network devices is treated so, until the end of the block."""
    try:
        for netdev in on:
            treatment = without_corruption(netem) if netdev in REPLIES else netem
            tc("qdisc", "replace", "dev", netdev, "root", "netem", *treatment)
        yield
    finally:
        for netdev in disturbed():
            tc("qdisc", "del", "dev", netdev, "root")


def slot(end: Endpoint, i: int) -> SGE:
    """The place of message i."""
    return end.mr[i * SIZE : (i + 1) * SIZE]


def summary(completions: list[WorkCompletion]) -> list[tuple[int, WCStatus | int]]:
    return [(wc.wr_id, wc.status) for wc in completions]


ALL_SENT = [(i, SUCCESS) for i in range(N)]


def receive(cq: CQ, n: int, got: list[WorkCompletion]) -> None:
    """n completions into `got`: arm, poll until there are no more, sleep."""
    assert cq.channel is not None
    while len(got) < n:
        cq.req_notify()
        while batch := cq.poll():
            got += batch
        if len(got) < n:
            cq.channel.get_event(timeout=DEADLINE).ack()


class Stream:
    """N messages from `a` to `b`, which has receives for them, and for `spare` more."""

    def __init__(self, pair: Pair, spare: int) -> None:
        self.a, self.b = pair
        self.data = random.Random(7).randbytes(N * SIZE)
        self.got: list[WorkCompletion] = []  # what b has received
        self.a.mr.write(self.data)
        self.post_receives(N + spare)

    def post_receives(self, n: int = N) -> None:
        for i in range(n):
            self.b.qp.post_recv(slot(self.b, i), wr_id=i)

    def send(self, i: int, flags: SendFlags = SIGNALED) -> None:
        opcode = WROpcode.SEND_WITH_IMM
        self.a.qp.post_send(slot(self.a, i), wr_id=i, opcode=opcode, imm_data=i, send_flags=flags)

    def send_all(self) -> None:
        for i in range(N):
            self.send(i)

    def remind(self) -> None:
        """rxe of Linux 7.2 can lose the timer by which it sends a lost frame again; with the next
        request it does. This one, where all goes well, nobody hears of."""
        there = {"remote_addr": self.b.mr.addr, "rkey": self.b.mr.rkey}
        place = self.a.mr[N * SIZE : N * SIZE + 1]
        self.a.qp.post_send(place, opcode=WROpcode.RDMA_READ, send_flags=SendFlags(0), **there)

    def completed(self, n: int) -> list[WorkCompletion]:
        """At the sender, in time."""
        got: list[WorkCompletion] = []
        end = time.monotonic() + DEADLINE
        while len(got) < n:
            try:
                got += wait_completions(self.a.scq, timeout=min(QUIET, end - time.monotonic()))
            except TimeoutError:
                if time.monotonic() >= end:
                    raise
                if not is_iwarp(self.a.ctx):  # TCP needs no reminder
                    self.remind()
        return got

    def sent(self, n: int = N) -> list[tuple[int, WCStatus | int]]:
        """What became of them at the sender."""
        return summary(self.completed(n))

    def receive(self) -> None:
        """Returns when all have come; sleeps whenever there is nothing."""
        receive(self.b.rcq, N, self.got)

    def asleep_after(self, n: int, waiter: Waiter) -> None:
        """Returns when the receiver has n completions, and sleeps for the next."""
        until(lambda: len(self.got) == n and is_asleep(waiter.thread), f"asleep after {n} messages")

    def arrived_in_order(self) -> int:
        """How many have arrived. What else the receiver got are the flushes of the rest."""
        n = sum(wc.ok for wc in self.got)
        arrived = self.got[:n]
        assert [(wc.wr_id, wc.status, wc.imm_data) for wc in arrived] == [
            (i, SUCCESS, i) for i in range(n)
        ]
        assert {wc.byte_len for wc in arrived} <= {SIZE}
        assert self.b.mr.read(n * SIZE) == self.data[: n * SIZE]
        assert summary(self.got[n:]) == [(i, FLUSHED) for i in range(n, len(self.got))]
        return n


@pytest.fixture
def wired(ctx: Context, ctx2: Context) -> Connector:
    """Makes two endpoints, connected from the first device to the second."""

    def make(spare: int = 0, **options: int) -> Stream:
        sends = N + 1 + REMINDERS
        room: dict[str, Any] = {"size": (N + 1) * SIZE, "max_send_wr": sends, "max_recv_wr": N + 1}
        a = Endpoint(ctx, QPType.RC, **room)
        b = Endpoint(ctx2, QPType.RC, **room)
        # Only by their link-local addresses do the two meet on the wire.
        return Stream(connect(a, b, gid_index=0, **options), spare)

    return make


def counter(end: Endpoint, *names: str) -> int:
    folder = Path(f"/sys/class/infiniband/{end.ctx.name}/ports/1/hw_counters")
    return sum(int((folder / name).read_text()) for name in names)


def trouble(b: Endpoint) -> int:
    """How many requests came to the receiver's device that it had, or that left a gap. On iWARP
    that is a matter of TCP."""
    return 0 if is_iwarp(b.ctx) else counter(b, "duplicate_request", "out_of_seq_request")


def test_the_wire_is_as_before_even_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), weather(*WEATHER["loss"]):
        assert sorted(disturbed()) == sorted(NETDEVS)
        _ = 1 / 0
    assert disturbed() == []


def test_a_receiver_sleeps_for_each_message_on_a_wire_that_loses_every_fifth(
    wired: Connector,
) -> None:
    """One message at a time, and only when the receiver is asleep: one event for each."""
    w = wired(spare=1, ack_timeout=QUICK, retry_cnt=FOR_EVER)
    with weather(*WEATHER["loss"]):
        waiter = Waiter(w.receive)
        for i in range(N):
            w.asleep_after(i, waiter)
            w.send(i)
            assert w.sent(1) == [(i, SUCCESS)]
        waiter.join()
        losses = [dropped(netdev) for netdev in NETDEVS]
    assert w.arrived_in_order() == N
    assert all(losses), losses
    stats = w.b.rcq.stats
    assert stats.events == stats.acked == N
    assert stats.spurious == 0
    # Nothing came twice: the next one is another message.
    w.send(N)
    assert wait_one(w.b.rcq).imm_data == N


@pytest.mark.parametrize("kind", WEATHER)
def test_a_stream_arrives_once_whole_and_in_order(wired: Connector, kind: str) -> None:
    """All messages are under way at once; the receiver sleeps whenever it has nothing."""
    w = wired(spare=1, ack_timeout=QUICK, retry_cnt=FOR_EVER)
    before = trouble(w.b)
    with weather(*WEATHER[kind]):
        with waiting(w.receive) as waiter:
            w.send_all()
            assert w.sent() == ALL_SENT
        waiter.join()
    assert w.arrived_in_order() == N
    assert is_iwarp(w.b.ctx) or trouble(w.b) > before
    stats = w.b.rcq.stats
    assert 1 <= stats.events <= N + stats.spurious
    assert stats.events == stats.acked
    w.send(N)
    assert wait_one(w.b.rcq).imm_data == N
    assert outstanding(w.b.qp) == (0, 0)


def test_writes_and_reads_are_whole_on_a_wire_that_loses_every_fifth(wired: Connector) -> None:
    """Each is written to the peer, and read back to another place."""
    w = wired(ack_timeout=QUICK, retry_cnt=FOR_EVER)
    half = N // 2
    size = half * SIZE
    with weather(*WEATHER["loss"]):
        for i in range(half):
            there = {"remote_addr": w.b.mr.addr + i * SIZE, "rkey": w.b.mr.rkey}
            for opcode, place in ((WROpcode.RDMA_WRITE, i), (WROpcode.RDMA_READ, half + i)):
                w.a.qp.post_send(slot(w.a, place), wr_id=place, opcode=opcode, **there)
        got = w.completed(2 * half)
        losses = [dropped(netdev) for netdev in NETDEVS]
    assert summary(got) == [(p, SUCCESS) for i in range(half) for p in (i, half + i)]
    assert w.b.mr.read(size) == w.a.mr.read(size, size) == w.data[:size]
    assert all(losses), losses


def all_failed(first: int, n: int) -> list[tuple[int, WCStatus | int]]:
    return [(first, WCStatus.RETRY_EXC_ERR), *((i, FLUSHED) for i in range(first + 1, n))]


@pytest.mark.parametrize("delivered", [0, 5])
def test_on_a_cut_wire_every_request_comes_back_as_an_error(
    wired: Connector, delivered: int
) -> None:
    """The sender sleeps until it knows; the receiver does not know, and sleeps on."""
    w = wired(ack_timeout=STEADY, retry_cnt=2)
    a, b = w.a, w.b
    receiver = Waiter(w.receive)
    for i in range(delivered):
        w.send(i)
        wait_one(a.scq)
    failed: list[WorkCompletion] = []
    with weather("loss", "100%"):
        with waiting(lambda: receive(a.scq, N - delivered, failed)) as sender:
            for i in range(delivered, N):
                # Signaled or not (the last is not): what fails says so.
                w.send(i, SendFlags(0) if i % 2 else SIGNALED)
        sender.join()
        assert all(dropped(netdev) for netdev in REQUESTS)
    assert summary(failed) == all_failed(delivered, N)
    assert a.qp.state is QPState.ERR
    assert outstanding(a.qp) == (0, 0)
    assert a.scq.stats.events >= 1
    w.asleep_after(delivered, receiver)
    assert b.qp.state is QPState.RTS
    b.qp.modify(qp_state=QPState.ERR)
    receiver.join()
    assert w.arrived_in_order() == delivered
    assert a.scq.poll() == b.rcq.poll() == []


def test_a_connection_is_made_anew_after_the_cut(wired: Connector) -> None:
    w = wired(ack_timeout=QUICK, retry_cnt=1)
    with weather("loss", "100%"):
        w.send(0)
        wait_one(w.a.scq, WCStatus.RETRY_EXC_ERR)
    for end in (w.a, w.b):
        end.qp.modify(qp_state=QPState.RESET)
    connect(w.a, w.b, gid_index=0)
    w.post_receives()
    with waiting(w.receive) as waiter:
        w.send_all()
    waiter.join()
    assert w.arrived_in_order() == N
    assert w.sent() == ALL_SENT


@pytest.mark.not_on_iwarp("TCP retries for minutes")
def test_what_was_received_stays_received_though_no_reply_gets_through(wired: Connector) -> None:
    """The sender repeats, and fails in the end; the receiver takes each message once."""
    w = wired(ack_timeout=QUICK, retry_cnt=3)
    before = counter(w.b, "duplicate_request")
    with weather("loss", "100%", on=REPLIES):
        receiver = Waiter(w.receive).asleep()
        w.send_all()
        assert w.sent() == all_failed(0, N)
    assert counter(w.b, "duplicate_request") > before
    w.b.qp.modify(qp_state=QPState.ERR)
    receiver.join()
    assert w.arrived_in_order() > 0


@pytest.mark.parametrize("retry_cnt", [0, 1])
def test_each_message_arrives_or_its_error_does(wired: Connector, retry_cnt: int) -> None:
    """Too few retries for such a wire: somewhere it ends, and both sides agree on what was."""
    w = wired(ack_timeout=QUICK, retry_cnt=retry_cnt)
    with weather(*DELAY, "loss", "50%"):
        with waiting(w.receive) as receiver:
            w.send_all()
            sent = w.sent()
            w.b.qp.modify(qp_state=QPState.ERR)
        receiver.join()
    acknowledged = sum(status == SUCCESS for _, status in sent)
    assert acknowledged < N
    assert sent == ALL_SENT[:acknowledged] + all_failed(acknowledged, N)
    assert w.arrived_in_order() >= acknowledged


def test_a_receiver_is_asleep_while_its_message_is_on_the_wire(wired: Connector) -> None:
    w = wired(ack_timeout=0)  # the sender waits for ever
    cq, channel = w.b.rcq, w.b.channel
    cq.req_notify()
    with weather("delay", "2s", on=REQUESTS):
        with waiting(lambda: channel.get_event(timeout=DEADLINE)) as waiter:
            w.send(0)
            assert is_asleep(waiter.thread)
            assert w.a.scq.poll() == cq.poll() == []
        assert waiter.join() is cq
        cq.ack()
        assert wait_one(cq).imm_data == 0
        wait_one(w.a.scq)
