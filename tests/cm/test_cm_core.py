# SPDX-License-Identifier: MIT
"""What the core does by itself as it reads events, and what it refuses out of order."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from cm_support import SOON, Side, address_of
from raw_peer import RawPeer
from support import is_iwarp, new_state

from cqnotify import Context, QPState
from cqnotify._core import CMID, CMChannel
from cqnotify.cm import CMEventType
from cqnotify.cm._errors import Event
from cqnotify.cm._link import Options, parameters

PREPARED = parameters(Options())


@pytest.fixture
def channel() -> Iterator[CMChannel]:
    with closing(CMChannel()) as channel:
        yield channel


def next_event(channel: CMChannel) -> tuple[int, Event]:
    """The next one for a program, and how many steps the core took before."""
    steps = 0
    while not (raw := channel.read_event()):
        if raw is None:
            assert select.select([channel], [], [], SOON)[0]
        else:
            steps += 1
    return steps, Event(*raw)


def asking(channel: CMChannel, side: Side, where: tuple[str, int], goal: str) -> CMID:
    cmid = CMID(channel)
    cmid.bind_qp(side.qp)
    cmid.prepare(*PREPARED)
    cmid.resolve_addr(None, where, 4000, goal)
    return cmid


@pytest.mark.parametrize(
    ("goal", "steps", "event"),
    [
        ("ADDR_RESOLVED", 0, CMEventType.ADDR_RESOLVED),
        ("ROUTE_RESOLVED", 1, CMEventType.ROUTE_RESOLVED),
        ("RESPONDED", 2, CMEventType.CONNECT_RESPONSE),
        ("ESTABLISHED", 2, CMEventType.CONNECT_RESPONSE),
    ],
)
def test_events_lead_to_the_goal(
    ctx: Context, channel: CMChannel, goal: str, steps: int, event: CMEventType
) -> None:
    """Only the one that leads there is read, and the queue pair is as far as that."""
    host = address_of(ctx)
    side, peer = Side(ctx), RawPeer(ctx)
    port = peer.listen(host)
    cmid, taken = asking(channel, side, (host, port), goal), 0
    if steps == 2:
        while not peer.has_seen("CONNECT_REQUEST"):
            raw = channel.read_event()
            assert not raw
            taken += raw == ()
        peer.accept()
        if is_iwarp(ctx):
            event, goal = CMEventType.ESTABLISHED, "ESTABLISHED"
    more, seen = next_event(channel)
    assert (taken + more, seen.event, seen.error, cmid.state) == (steps, event, None, goal)
    if not is_iwarp(ctx):
        assert side.qp.state == (QPState.RTS if goal == "ESTABLISHED" else QPState.RESET)
    peer.drop()


def test_an_address_of_another_device_is_the_programs_matter(
    ctx: Context, ctx2: Context, channel: CMChannel
) -> None:
    cmid = asking(channel, Side(ctx2), (address_of(ctx), 9), "ESTABLISHED")
    steps, event = next_event(channel)
    assert (steps, event.event) == (0, CMEventType.ADDR_RESOLVED)
    assert (cmid.state, cmid.device) == ("ADDR_RESOLVED", ctx.name)


def test_a_step_that_fails_hands_out_its_event_with_the_error(
    ctx: Context, channel: CMChannel
) -> None:
    """Its queue pair was not said to be connected in any way."""
    cmid = CMID(channel)
    cmid.bind_qp(Side(ctx).qp)
    cmid.resolve_addr(None, (address_of(ctx), 9), 4000, "ESTABLISHED")
    steps, event = next_event(channel)
    assert (steps, event.event) == (1, CMEventType.ROUTE_RESOLVED)
    assert isinstance(event.error, RuntimeError)
    assert str(event.error) == "how this CMID is to be connected was not said"
    assert cmid.state == "ROUTE_RESOLVED"


def test_calls_out_of_order(ctx: Context, channel: CMChannel) -> None:
    cmid, side = CMID(channel), Side(ctx)
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: cmid.connect("ESTABLISHED"), RuntimeError, r"rdma_connect\(\): .* is NEW"),
        (cmid.accept, RuntimeError, r"rdma_accept\(\): .* is NEW"),
        (cmid.establish, RuntimeError, r"rdma_establish\(\): .* is NEW"),
        (lambda: cmid.modify_qp(1, 0), RuntimeError, r"rdma_init_qp_attr\(\): .* is NEW"),
        (lambda: cmid.prepare(*PREPARED), RuntimeError, "this CMID has no QP"),
        (lambda: cmid.prepare(b"x" * 256, *PREPARED[1:]), ValueError, "at most 255"),
        (lambda: cmid.connect("NEW"), ValueError, "'NEW' is no state that events lead to"),
        (lambda: cmid.connect(12), ValueError, "12 is no state"),  # type: ignore[arg-type]
        (lambda: cmid.resolve_addr(None, ("10.0.0.1", 9), 1, "?"), ValueError, "no state"),
    ]
    for call, error, words in refused:
        with pytest.raises(error, match=words):
            call()
    assert (cmid.state, side.qp.state) == ("NEW", new_state(ctx))
