# SPDX-License-Identifier: MIT
"""Closing CQs whose events are unread, read or acknowledged."""

from __future__ import annotations

import itertools
import select

import pytest
from support import ALL_REMOTE, DEADLINE, Waiter, is_iwarp, until

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPState, QPType, WROpcode


class Source:
    """A CQ that gets completions when it is told to: its QP writes nothing to itself, or, where it
    needs rdma_cm for that, has a receive that is flushed."""

    def __init__(self, ctx: Context, pd: PD, channel: CompletionChannel) -> None:
        self.mr = MR(pd, 64, access=ALL_REMOTE)
        self.cq = CQ(ctx, 16, channel=channel)
        self.flushes = is_iwarp(ctx)
        self.qp = QP(pd, QPType.RC if self.flushes else QPType.UC, send_cq=self.cq)
        if not self.flushes:
            self.qp.connect(self.qp.address())
        self.channel = channel
        self.raised = 0

    def complete(self) -> None:
        """Bring about one completion."""
        if self.flushes:
            self.qp.close()
            self.qp = QP(self.mr.pd, QPType.RC, send_cq=self.cq)
            self.qp.to_init()
            self.qp.post_recv(self.mr)
            self.qp.modify(qp_state=QPState.ERR)
        else:
            self.qp.post_send(
                [], opcode=WROpcode.RDMA_WRITE, remote_addr=self.mr.addr, rkey=self.mr.rkey
            )

    def raise_event(self) -> None:
        """One more event is on the channel when it returns, behind those that are."""
        before = self.cq.stats.completions
        self.cq.req_notify()
        self.complete()
        # The device raises the event before the completion can be polled, or at once after.
        until(lambda: bool(self.cq.poll()), "the completion")
        assert self.cq.stats.completions == before + 1
        self.raised += 1
        assert select.select([self.channel], [], [], DEADLINE)[0]

    def read(self) -> None:
        assert self.channel.get_event(timeout=DEADLINE) is self.cq

    def close(self) -> None:
        self.qp.close()
        self.cq.close()
        stats = self.cq.stats
        assert stats.events == stats.acked


def goes_on(channel: CompletionChannel, other: Source) -> None:
    """Nothing is left on the channel, and it and the other CQ are as usable as before."""
    assert channel.try_get_event() is None
    other.raise_event()
    other.read()
    other.close()
    channel.close()


STATES = ("unread", "read", "acked")


@pytest.fixture
def sources(ctx: Context, pd: PD, channel: CompletionChannel) -> tuple[Source, Source]:
    return Source(ctx, pd, channel), Source(ctx, pd, channel)


@pytest.mark.parametrize("states", list(itertools.product(STATES, STATES)), ids="-".join)
@pytest.mark.parametrize("closed_first", [0, 1])
def test_two_cqs_close_whatever_became_of_their_events(
    channel: CompletionChannel,
    sources: tuple[Source, Source],
    states: tuple[str, str],
    closed_first: int,
) -> None:
    # What is to be read is raised first: the channel is a queue.
    for source, state in sorted(zip(sources, states, strict=True), key=lambda s: s[1] == "unread"):
        source.raise_event()
        if state != "unread":
            source.read()
        if state == "acked":
            source.cq.ack()
    one, other = sources[closed_first], sources[1 - closed_first]
    one.close()
    assert one.cq.stats.events == (states[closed_first] != "unread")
    if states[1 - closed_first] == "unread":
        other.read()
        other.cq.ack()
    goes_on(channel, other)


@pytest.mark.parametrize(
    ("read", "acked"), [(read, acked) for read in range(4) for acked in range(read + 1)]
)
def test_a_cq_with_three_events_closes_however_many_were_read_and_acked(
    channel: CompletionChannel, sources: tuple[Source, Source], read: int, acked: int
) -> None:
    source, other = sources
    for _ in range(3):
        source.raise_event()
    for _ in range(read):
        source.read()
    source.cq.ack(acked)
    assert source.cq.unacked == read - acked
    source.close()
    assert source.cq.stats.events == read
    goes_on(channel, other)


@pytest.mark.parametrize("pattern", ["bab", "abab", "baab", "aba", "bbabaabb"])
def test_the_events_of_others_stay_when_a_cq_is_closed_with_unread_ones(
    channel: CompletionChannel, sources: tuple[Source, Source], pattern: str
) -> None:
    a, b = sources
    for which in pattern:
        (a if which == "a" else b).raise_event()
    a.close()
    assert a.cq.stats.events == 0
    for _ in range(pattern.count("b")):
        b.read()
    assert channel.try_get_event() is None
    assert b.cq.unacked == pattern.count("b")
    b.close()
    channel.close()


def test_an_unread_event_of_a_closed_cq_wakes_nobody(
    channel: CompletionChannel, sources: tuple[Source, Source]
) -> None:
    a, b = sources
    a.raise_event()
    a.close()
    waiter = Waiter(channel.get_event).asleep()
    b.cq.req_notify()
    b.complete()
    assert waiter.join() is b.cq
