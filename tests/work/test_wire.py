# SPDX-License-Identifier: MIT
"""A bad wire between the lab's two devices: delay, loss, duplicates, reordering, a cut.

Every message arrives once, whole and in order, or its error completion does.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
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

Connector = Callable[..., Pair]
SIGNALED = SendFlags.SIGNALED
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
NETDEVS = os.environ.get("CQNOTIFY_LAB_NETDEVS", "").split()
REQUESTS, REPLIES = NETDEVS[:1], NETDEVS[1:]  # what leaves the sender's device, the receiver's

N = 64
SIZE = 2500  # bytes of a message: three packets
DELAY = ["delay", "3ms"]
QUICK = 12  # the code of a timeout of 17 ms
FOR_EVER = 7  # rxe counts this many retries as no limit

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


@pytest.fixture
def wired(ctx: Context, ctx2: Context) -> Connector:
    """Makes two endpoints, connected from the first device to the second."""

    def make(**options: int) -> Pair:
        room: dict[str, Any] = {"size": (N + 1) * SIZE, "max_send_wr": N + 1, "max_recv_wr": N + 1}
        a = Endpoint(ctx, QPType.RC, **room)
        b = Endpoint(ctx2, QPType.RC, **room)
        # Only by their link-local addresses do the two meet on the wire.
        return connect(a, b, gid_index=0, **options)

    return make


def slot(end: Endpoint, i: int) -> SGE:
    """The place of message i."""
    return end.mr[i * SIZE : (i + 1) * SIZE]


def fill(a: Endpoint) -> bytes:
    data = random.Random(7).randbytes(N * SIZE)
    a.mr.write(data)
    return data


def post_receives(b: Endpoint, n: int = N) -> None:
    for i in range(n):
        b.qp.post_recv(slot(b, i), wr_id=i)


def send(a: Endpoint, i: int, flags: SendFlags = SIGNALED) -> None:
    a.qp.post_send(
        slot(a, i),
        wr_id=i,
        opcode=WROpcode.SEND_WITH_IMM,
        imm_data=i,
        send_flags=flags,
    )


def receive(cq: CQ, n: int, got: list[WorkCompletion]) -> None:
    """n completions into `got`: arm, poll until there are no more, sleep."""
    assert cq.channel is not None
    while len(got) < n:
        cq.req_notify()
        while batch := cq.poll():
            got += batch
        if len(got) < n:
            cq.channel.get_event(timeout=DEADLINE).ack()


def asleep_after(waiter: Waiter, got: list[WorkCompletion], n: int) -> None:
    """Returns when the receiver has n completions, and sleeps for the next."""
    until(lambda: len(got) == n and is_asleep(waiter.thread), f"asleep after {n} messages")


def summary(completions: list[WorkCompletion]) -> list[tuple[int, WCStatus | int]]:
    return [(wc.wr_id, wc.status) for wc in completions]


def arrived_in_order(b: Endpoint, got: list[WorkCompletion], data: bytes) -> None:
    n = len(got)
    assert [(wc.wr_id, wc.status, wc.imm_data) for wc in got] == [(i, SUCCESS, i) for i in range(n)]
    assert {wc.byte_len for wc in got} <= {SIZE}
    assert b.mr.read(n * SIZE) == data[: n * SIZE]


def counter(end: Endpoint, *names: str) -> int:
    folder = Path(f"/sys/class/infiniband/{end.ctx.name}/ports/1/hw_counters")
    return sum(int((folder / name).read_text()) for name in names)


def trouble(b: Endpoint) -> int:
    """How many requests came to the receiver's device that it had, or that left a gap."""
    return counter(b, "duplicate_request", "out_of_seq_request")


def test_the_wire_is_as_before_even_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), weather(*WEATHER["loss"]):
        assert sorted(disturbed()) == sorted(NETDEVS)
        _ = 1 / 0
    assert disturbed() == []


def test_a_receiver_sleeps_for_each_message_on_a_wire_that_loses_every_fifth(
    wired: Connector,
) -> None:
    """One message at a time, and only when the receiver is asleep: one event for each."""
    a, b = wired(timeout=QUICK, retry_cnt=FOR_EVER)
    data = fill(a)
    post_receives(b, N + 1)
    got: list[WorkCompletion] = []
    with weather(*WEATHER["loss"]):
        waiter = Waiter(lambda: receive(b.rcq, N, got))
        for i in range(N):
            asleep_after(waiter, got, i)
            send(a, i)
            wait_one(a.scq)
        waiter.join()
        losses = [dropped(netdev) for netdev in NETDEVS]
    arrived_in_order(b, got, data)
    assert all(losses), losses
    assert b.rcq.stats.events == b.rcq.stats.acked == N
    assert b.rcq.stats.spurious == 0
    # Nothing came twice: the next one is another message.
    send(a, N)
    assert wait_one(b.rcq).imm_data == N


@pytest.mark.parametrize("kind", WEATHER)
def test_a_stream_arrives_once_whole_and_in_order(wired: Connector, kind: str) -> None:
    """All messages are under way at once; the receiver sleeps whenever it has nothing."""
    a, b = wired(timeout=QUICK, retry_cnt=FOR_EVER)
    data = fill(a)
    post_receives(b, N + 1)
    got: list[WorkCompletion] = []
    before = trouble(b)
    with weather(*WEATHER[kind]):
        with waiting(lambda: receive(b.rcq, N, got)) as waiter:
            for i in range(N):
                send(a, i)
        waiter.join()
        assert summary(wait_completions(a.scq, N)) == [(i, SUCCESS) for i in range(N)]
    arrived_in_order(b, got, data)
    assert trouble(b) > before
    stats = b.rcq.stats
    assert 1 <= stats.events <= N + stats.spurious
    assert stats.events == stats.acked
    send(a, N)
    assert wait_one(b.rcq).imm_data == N
    assert b.qp.outstanding == (0, 0)


def test_writes_and_reads_are_whole_on_a_wire_that_loses_every_fifth(wired: Connector) -> None:
    """Each is written to the peer, and read back to another place."""
    a, b = wired(timeout=QUICK, retry_cnt=FOR_EVER)
    half = N // 2
    data = fill(a)[: half * SIZE]
    with weather(*WEATHER["loss"]):
        for i in range(half):
            for opcode, place in ((WROpcode.RDMA_WRITE, i), (WROpcode.RDMA_READ, half + i)):
                a.qp.post_send(
                    slot(a, place),
                    wr_id=place,
                    opcode=opcode,
                    remote_addr=b.mr.addr + i * SIZE,
                    rkey=b.mr.rkey,
                )
        got = wait_completions(a.scq, 2 * half)
        losses = [dropped(netdev) for netdev in NETDEVS]
    assert summary(got) == [(p, SUCCESS) for i in range(half) for p in (i, half + i)]
    assert b.mr.read(len(data)) == data
    assert a.mr.read(len(data), half * SIZE) == data
    assert all(losses), losses


def all_failed(first: int, n: int) -> list[tuple[int, WCStatus | int]]:
    return [(first, WCStatus.RETRY_EXC_ERR), *((i, FLUSHED) for i in range(first + 1, n))]


@pytest.mark.parametrize("delivered", [0, 5])
def test_on_a_cut_wire_every_request_comes_back_as_an_error(
    wired: Connector, delivered: int
) -> None:
    """The sender sleeps until it knows; the receiver does not know, and sleeps on."""
    a, b = wired(timeout=QUICK, retry_cnt=2)
    data = fill(a)
    post_receives(b)
    got: list[WorkCompletion] = []
    receiver = Waiter(lambda: receive(b.rcq, N, got))
    for i in range(delivered):
        send(a, i)
        wait_one(a.scq)
    failed: list[WorkCompletion] = []
    with weather("loss", "100%"):
        with waiting(lambda: receive(a.scq, N - delivered, failed)) as sender:
            for i in range(delivered, N):
                # Signaled or not (the last is not): what fails says so.
                send(a, i, SendFlags(0) if i % 2 else SIGNALED)
        sender.join()
        assert all(dropped(netdev) for netdev in REQUESTS)
    assert summary(failed) == all_failed(delivered, N)
    assert a.qp.state is QPState.ERR
    assert a.qp.outstanding == (0, 0)
    assert a.scq.stats.events >= 1
    asleep_after(receiver, got, delivered)
    arrived_in_order(b, got, data)
    assert b.qp.state is QPState.RTS
    b.qp.modify(qp_state=QPState.ERR)
    receiver.join()
    assert summary(got[delivered:]) == [(i, FLUSHED) for i in range(delivered, N)]
    assert a.scq.poll() == b.rcq.poll() == []


def test_a_connection_is_made_anew_after_the_cut(wired: Connector) -> None:
    a, b = wired(timeout=QUICK, retry_cnt=1)
    data = fill(a)
    with weather("loss", "100%"):
        post_receives(b)
        send(a, 0)
        wait_one(a.scq, WCStatus.RETRY_EXC_ERR)
    for end in (a, b):
        end.qp.modify(qp_state=QPState.RESET)
    connect(a, b, gid_index=0)
    post_receives(b)
    got: list[WorkCompletion] = []
    with waiting(lambda: receive(b.rcq, N, got)) as waiter:
        for i in range(N):
            send(a, i)
    waiter.join()
    arrived_in_order(b, got, data)
    assert summary(wait_completions(a.scq, N)) == [(i, SUCCESS) for i in range(N)]


def test_what_was_received_stays_received_though_no_reply_gets_through(wired: Connector) -> None:
    """The sender repeats, and fails in the end; the receiver takes each message once."""
    a, b = wired(timeout=QUICK, retry_cnt=3)
    data = fill(a)
    post_receives(b)
    got: list[WorkCompletion] = []
    before = counter(b, "duplicate_request")
    with weather("loss", "100%", on=REPLIES):
        receiver = Waiter(lambda: receive(b.rcq, N, got)).asleep()
        for i in range(N):
            send(a, i)
        assert summary(wait_completions(a.scq, N)) == all_failed(0, N)
    assert counter(b, "duplicate_request") > before
    b.qp.modify(qp_state=QPState.ERR)
    receiver.join()
    arrived = [wc for wc in got if wc.ok]
    assert arrived
    arrived_in_order(b, arrived, data)
    assert summary(got[len(arrived) :]) == [(i, FLUSHED) for i in range(len(arrived), N)]


@pytest.mark.parametrize("retry_cnt", [0, 1])
def test_each_message_arrives_or_its_error_does(wired: Connector, retry_cnt: int) -> None:
    """Too few retries for such a wire: somewhere it ends, and both sides agree on what was."""
    a, b = wired(timeout=QUICK, retry_cnt=retry_cnt)
    data = fill(a)
    post_receives(b)
    got: list[WorkCompletion] = []
    with weather(*DELAY, "loss", "50%"):
        with waiting(lambda: receive(b.rcq, N, got)) as receiver:
            for i in range(N):
                send(a, i)
            sent = wait_completions(a.scq, N)
            b.qp.modify(qp_state=QPState.ERR)
        receiver.join()
    acknowledged = sum(wc.ok for wc in sent)
    assert acknowledged < N
    assert summary(sent[:acknowledged]) == [(i, SUCCESS) for i in range(acknowledged)]
    assert summary(sent[acknowledged:]) == all_failed(acknowledged, N)
    arrived = [wc for wc in got if wc.ok]
    assert len(arrived) >= acknowledged
    arrived_in_order(b, arrived, data)
    assert summary(got[len(arrived) :]) == [(i, FLUSHED) for i in range(len(arrived), N)]


def test_a_receiver_is_asleep_while_its_message_is_on_the_wire(wired: Connector) -> None:
    a, b = wired(timeout=0)  # the sender waits for ever
    post_receives(b)
    b.rcq.req_notify()
    with weather("delay", "2s", on=REQUESTS):
        with waiting(lambda: b.channel.get_event(timeout=DEADLINE)) as waiter:
            send(a, 0)
            assert is_asleep(waiter.thread)
            assert a.scq.poll() == b.rcq.poll() == []
        assert waiter.join() is b.rcq
        b.rcq.ack()
        assert wait_one(b.rcq).imm_data == 0
        wait_one(a.scq)
