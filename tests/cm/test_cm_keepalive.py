# SPDX-License-Identifier: MIT
"""Keepalive: a peer that gives no sign of life is taken for dead, and one that lives is not.

A queue pair in RESET answers nothing, as that of a dead host.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from cm_support import SOON, Side, address_of, connected, serve_once
from support import outstanding, until

from cqnotify import Context, QPState, QPType, TransportType, cm
from cqnotify.aio import AsyncCQ
from cqnotify.cm import _keepalive, blocking

BOUND = 2.0

not_on_iwarp = pytest.mark.not_on_iwarp(
    "a write completes before the peer has it, so that keepalive is refused"
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with each time that a connection was asked: whether it is still there."""
    asked: list[bool] = []
    original = _keepalive.ask

    def ask(*args: object) -> bool:
        asked.append(original(*args))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr(_keepalive, "ask", ask)
    return asked


async def until_in_loop(found: list[bool], n: int) -> None:
    end = time.monotonic() + 3 * SOON
    while len(found) < n:
        assert time.monotonic() < end, "no keepalives"
        await asyncio.sleep(0.01)


async def test_a_probe_is_answered_and_no_program_sees_it(ctx: Context) -> None:
    async with connected(ctx) as (client, _, server, _):
        client.cq.req_notify()
        for _ in range(100):  # more than the send queue and the CQ can take
            until(lambda: client.qp._probe() == "posted", "the peer has answered")
            assert outstanding(client.qp) == (0, 1)
            assert client.qp.outstanding_signaled == 0
        until(lambda: client.qp._probe() != "unanswered", "the peer answers")
        assert outstanding(client.qp) == (0, 1)
        assert client.cq.poll() == server.cq.poll() == []
        client.mr.write(b"after")
        client.qp.post_send(client.mr[:5], wr_id=9)
        until(lambda: [wc.wr_id for wc in client.cq.poll()] == [9], "the send completes")


@not_on_iwarp
async def test_a_probe_finds_a_dead_peer(ctx: Context) -> None:
    async with connected(ctx, ack_timeout=12, retry_count=2) as (client, _, server, _):
        server.qp.modify(qp_state=QPState.RESET)
        assert client.qp._probe() == "posted"
        until(lambda: client.qp._probe() == "failed", "the probe fails")
        client.check_flushed()
        assert client.qp._probe() == "failed"


@not_on_iwarp
async def test_a_silent_peer_ends_the_connection(ctx: Context, answers: list[bool]) -> None:
    async with connected(ctx, keepalive=BOUND) as (client, conn, server, accepted):
        await until_in_loop(answers, 2)
        server.qp.modify(qp_state=QPState.RESET)
        await conn.wait_closed(timeout=SOON)  # when exactly: test_cm_between_hosts.py
        assert isinstance(conn.error, cm.UnreachableError)
        assert "keepalive was not answered" in str(conn.error) or "sign of life" in str(conn.error)
        client.check_flushed()
        until(lambda: not answers[-1], "the connection is asked no more")
        await accepted.wait_closed(timeout=SOON)  # is told, since this peer lives after all


@not_on_iwarp
def test_a_silent_peer_ends_a_threads_connection(ctx: Context) -> None:
    client, server, accepted = Side(ctx), Side(ctx), []
    with blocking.listen(address_of(ctx), 0) as listener:
        thread = threading.Thread(target=serve_once, args=(listener, server, accepted))
        thread.start()
        # Its QP tries for ever, so only the bound ends it.
        conn = blocking.connect(client.qp, *listener.local, keepalive=BOUND, retry_count=7)
        thread.join()
    with conn, accepted[0]:
        server.qp.modify(qp_state=QPState.RESET)
        conn.wait_closed(timeout=SOON)
        assert isinstance(conn.error, cm.UnreachableError)
        assert str(conn.error).endswith(f"the peer has given no sign of life for {BOUND:g} s")
        assert client.qp.state == QPState.ERR


@not_on_iwarp
async def test_the_one_that_accepts_can_ask_as_well(ctx: Context) -> None:
    client, server = Side(ctx), Side(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(client.qp, *listener.local, retry_count=3))
        request = await listener.get_request(SOON)
        accepted = await request.accept(server.qp, keepalive=BOUND)
        async with await asking, accepted:
            query = server.qp.query()
            assert query.retry_cnt == 3
            tries = 4 * 4.096e-6 * 2**query.timeout
            assert BOUND / 4 < tries <= BOUND / 2
            client.qp.modify(qp_state=QPState.RESET)
            await accepted.wait_closed(timeout=SOON)
            assert isinstance(accepted.error, cm.UnreachableError)


@not_on_iwarp
async def test_a_peer_that_is_not_ready_to_receive_is_alive(
    ctx: Context, answers: list[bool]
) -> None:
    """Behind a send that waits for a receive no keepalive gets through, and none is sent."""
    async with (
        connected(ctx, keepalive=BOUND / 2) as (client, conn, server, _),
        AsyncCQ(client.cq) as a,
        AsyncCQ(server.cq) as b,
    ):
        await a.send(client.qp, client.mr[:4])
        await b.completion(5)
        waiting = asyncio.create_task(a.send(client.qp, client.mr[:4]))
        await asyncio.sleep(0)
        await until_in_loop(answers, len(answers) + 3)
        assert conn.error is None
        assert not waiting.done()
        server.post_recv()
        await waiting
        await until_in_loop(answers, len(answers) + 2)
        assert conn.error is None


@not_on_iwarp
async def test_the_thread_ends_with_the_last_connection(ctx: Context) -> None:
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if "keepalive" in t.name]

    async with connected(ctx, keepalive=600):
        assert threads() == ["cqnotify.cm keepalive"]
    until(lambda: not threads(), "the thread ends, though nothing was to be asked for long")
    async with connected(ctx, keepalive=0.1):
        assert len(threads()) == 1


@pytest.mark.parametrize(
    ("keepalive", "error", "words"),
    [
        (0, ValueError, "keepalive is 0: it must be 0.01 s or more"),
        (float("inf"), ValueError, "keepalive is inf"),
        (float("nan"), ValueError, "keepalive is nan"),
        (True, TypeError, "keepalive must be a number of seconds or None, not True"),
        ("1", TypeError, "keepalive must be a number of seconds or None, not '1'"),
    ],
)
async def test_what_is_no_bound(
    ctx: Context, keepalive: float, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as e:
        await cm.connect(Side(ctx).qp, "10.99.0.1", 1, keepalive=keepalive)
    assert words in str(e.value)


async def test_datagrams_have_none(ctx: Context) -> None:
    with pytest.raises(ValueError, match="keepalive is for RC"):
        await cm.connect(Side(ctx, QPType.UD).qp, "10.99.0.1", 1, keepalive=1)


async def test_iwarp_devices_have_none(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "transport_type", TransportType.IWARP)
    with pytest.raises(ValueError, match="an RDMA write completes before the peer has it"):
        await cm.connect(Side(ctx).qp, "10.99.0.1", 1, keepalive=1)


@pytest.mark.parametrize(
    ("seconds", "retry_count", "ack_timeout"),
    [(3600, 6, 19), (60, 6, 19), (10, 6, 17), (1, 6, 14), (0.01, 7, 7), (1, 0, 16)],
)
def test_sends_are_given_up_within_half_of_the_bound(
    seconds: float, retry_count: int, ack_timeout: int
) -> None:
    assert _keepalive.ack_timeout_for(seconds, retry_count) == ack_timeout
