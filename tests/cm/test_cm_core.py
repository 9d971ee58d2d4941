# SPDX-License-Identifier: MIT
"""What the core does by itself as it reads events, and what it refuses out of order."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from cm_support import NOBODY, SOON, Side, address_of
from raw_peer import RawPeer
from support import is_iwarp, new_state

from cqnotify import ClosedError, Context, QPState
from cqnotify._core import CMID, CMChannel, CMConn
from cqnotify.cm import CMEventType
from cqnotify.cm._errors import Event
from cqnotify.cm._link import Options

PREPARED = Options()


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
    cmid.prepare(PREPARED)
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
        (lambda: cmid.prepare(PREPARED), RuntimeError, "this CMID has no QP"),
        (lambda: cmid.prepare(Options(b"x" * 256)), ValueError, "at most 255"),
        (lambda: cmid.connect("NEW"), ValueError, "'NEW' is no state that events lead to"),
        (lambda: cmid.connect(12), ValueError, "12 is no state"),  # type: ignore[arg-type]
        (lambda: cmid.resolve_addr(None, ("10.0.0.1", 9), 1, "?"), ValueError, "no state"),
    ]
    for call, error, words in refused:
        with pytest.raises(error, match=words):
            call()
    assert (cmid.state, side.qp.state) == ("NEW", new_state(ctx))


def test_options_that_cannot_be(ctx: Context, channel: CMChannel) -> None:
    cmid, side = CMID(channel), Side(ctx)
    cmid.bind_qp(side.qp)
    for options, error, words in (
        (None, TypeError, "takes a tuple"),
        (PREPARED[:7], TypeError, "takes a tuple"),
        (Options("text"), TypeError, "begins with bytes"),  # type: ignore[arg-type]
        (Options(access=-1), ValueError, "option 1 is -1"),
        (Options(access=1 << 32), ValueError, "option 1 is 4294967296: .* 0 to 4294967295"),
        (Options(retry_count=256), ValueError, "option 4 is 256: .* 0 to 255"),
        (Options(rnr_retry_count="7"), TypeError, "integer"),  # type: ignore[arg-type]
        (Options(ack_timeout=256), ValueError, "option 6 is 256"),
        (Options(tos=1 << 64), OverflowError, "too (big|large)"),
    ):
        with pytest.raises(error, match=words):
            cmid.prepare(options)  # type: ignore[arg-type]
    cmid.prepare(PREPARED)


def test_whether_it_is_for_a_qp(ctx: Context, channel: CMChannel) -> None:
    cmid, side = CMID(channel), Side(ctx)
    assert cmid.is_for(side.qp)  # nothing is known yet
    with pytest.raises(TypeError):
        cmid.is_for(ctx)  # type: ignore[arg-type]
    side.qp.close()
    with pytest.raises(ClosedError):
        cmid.is_for(side.qp)
    cmid.close()
    with pytest.raises(ClosedError):
        cmid.is_for(Side(ctx).qp)


def test_the_peer_is_known_when_it_is_closed(ctx: Context, channel: CMChannel) -> None:
    where = (address_of(ctx), 9)
    cmid = CMID(channel)
    assert cmid.last_peer is None
    cmid.resolve_addr(None, where, 4000, "ADDR_RESOLVED")
    assert cmid.peer == cmid.last_peer == where
    cmid.close()
    assert cmid.last_peer == where
    with pytest.raises(ClosedError):
        _ = cmid.peer


def test_an_identifier_has_one_link(channel: CMChannel) -> None:
    link = CMConn(None, channel, None, None, False)
    with pytest.raises(RuntimeError, match="this CMID has a CMConn"):
        CMConn(None, channel, None, link.id, False)
    assert link.channel is channel
    cmid = link.id
    del link
    CMConn(None, channel, None, cmid, False)


def test_the_time_of_a_resolution_is_that_of_all_tries(channel: CMChannel) -> None:
    """Two of 500 ms, of which the kernel tells of the second alone."""
    cmid = CMID(channel)
    cmid.resolve_addr(None, (NOBODY, 9), 1000, "ADDR_RESOLVED")
    steps, event = next_event(channel)
    assert (steps, event.event) == (1, CMEventType.ADDR_ERROR)
    assert cmid.state == "BOUND"
