# SPDX-License-Identifier: MIT
"""cqnotify.cm: connections for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import time
from typing import Any

import pytest
import uvloop
from cm_support import (
    NOBODY,
    SOON,
    Side,
    address_of,
    check_gone,
    connected,
    padded,
)
from support import eventually, is_iwarp, new_state, start

from cqnotify import ClosedError, CompletionError, Context, QPState, QPType, cm
from cqnotify._core import CMID, CMChannel
from cqnotify.aio import AsyncCQ
from cqnotify.cm import CMEventType, RejectReason

# ---- making one -----------------------------------------------------------------------------


async def test_messages_go_both_ways(ctx: Context) -> None:
    async with connected(ctx, private_data=b"hello") as (client, conn, server, accepted):
        client.mr.write(b"ping")
        server.mr.write(b"pong")
        async with AsyncCQ(client.cq) as a, AsyncCQ(server.cq) as b:
            await a.send(client.qp, client.mr[:4])
            await b.completion(5)
            await b.send(server.qp, server.mr[:4])
            await a.completion(5)
        assert (server.mr.read(4, 2048), client.mr.read(4, 2048)) == (b"ping", b"pong")
        assert accepted.private_data == padded(ctx, b"hello", 56)
        known = not is_iwarp(ctx)  # the number of the peer's QP
        assert accepted.remote_qpn == (client.qp.qp_num if known else 0)
        assert conn.remote_qpn == (server.qp.qp_num if known else 0)
        assert conn.peer == accepted.local
        assert conn.local == accepted.peer
        assert conn.device == accepted.device == ctx.name
        assert conn.error is accepted.error is None


async def test_the_parameters_reach_the_queue_pairs(ctx: Context) -> None:
    if is_iwarp(ctx):
        pytest.skip("on iWARP the timers and retries are those of TCP, and siw tells no depths")
    options = {"ack_timeout": 13, "retry_count": 3, "rnr_retry_count": 2, "access": 4}
    async with connected(ctx, responder_resources=3, initiator_depth=2, **options) as (
        client,
        _,
        server,
        accepted,
    ):
        mine, theirs = client.qp.query(), server.qp.query()
        assert (mine.timeout, mine.retry_cnt, mine.rnr_retry) == (13, 3, 7)
        assert theirs.rnr_retry == 2
        assert (mine.max_rd_atomic, theirs.max_dest_rd_atomic) == (2, 2)
        assert theirs.max_rd_atomic >= 3  # a power of two on some devices, as
        assert mine.max_dest_rd_atomic >= 3
        assert (mine.qp_access_flags, theirs.qp_access_flags) == (
            4,
            2,
        )  # the default is REMOTE_WRITE
        assert accepted.parameters["rnr_retry_count"] == 2


GRANTED = r"the peer has granted none \(its responder_resources is 0\)"
OWN = r"connect it with 1 or more \(over rdma_cm that is initiator_depth\)"

# Who sets what to 0; which side can't read then, and why.
DEPTHS = [
    ("server", "responder_resources", "client", GRANTED),
    ("client", "responder_resources", "server", GRANTED),
    ("client", "initiator_depth", "client", OWN),
    ("server", "initiator_depth", "server", OWN),
]


@pytest.mark.not_on_iwarp("siw fails such a read by itself, and tells no depths")
@pytest.mark.parametrize(("who", "what", "whose", "words"), DEPTHS)
async def test_reads_that_the_peer_or_the_program_does_not_allow_are_refused(
    ctx: Context, who: str, what: str, whose: str, words: str
) -> None:
    sides, options = {"client": Side(ctx), "server": Side(ctx)}, {who: {what: 0}}
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = await start(
            cm.connect(sides["client"].qp, *listener.local, **options.get("client", {}))
        )
        request = await listener.get_request(SOON)
        accepted = await request.accept(sides["server"].qp, **options.get("server", {}))
        conn = await asking
    async with conn, accepted, AsyncCQ(sides[whose].cq) as acq:
        side = sides.pop(whose)
        (peer,) = sides.values()
        assert side.qp.query().max_rd_atomic == 0
        assert peer.qp.query().max_rd_atomic > 0
        with pytest.raises(ValueError, match=f"RDMA_READ: max_rd_atomic of QP .* is 0, .*{words}"):
            await acq.read(side.qp, side.mr[0:8], peer.mr.addr, peer.mr.rkey)
        await acq.write(side.qp, side.mr[0:8], peer.mr.addr, peer.mr.rkey)


@pytest.mark.parametrize(
    "base", [asyncio.SelectorEventLoop, uvloop.Loop], ids=["asyncio", "uvloop"]
)
def test_a_name_is_resolved_by_the_event_loop(ctx: Context, base: Any) -> None:
    class Loop(base):  # type: ignore[misc]
        async def getaddrinfo(self, host: str, port: int, **_: object) -> list[object]:
            await never.wait() if host == "no.where" else await asyncio.sleep(0)
            return [(2, 1, 6, "", (address_of(ctx), port))]

    async def scenario() -> None:
        with pytest.raises(cm.RejectedError):
            await cm.connect(Side(ctx).qp, "some.where", 9)
        for call in (
            cm.resolve("no.where", timeout=0.05),
            cm.connect(Side(ctx).qp, "no.where", 9, timeout=0.05),
            cm.connect(Side(ctx).qp, address_of(ctx), 9, source="no.where", timeout=0.05),
        ):
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="'no.where' was not resolved in time"):
                await call
            assert time.monotonic() - began >= 0.049  # uvloop counts milliseconds

    never = asyncio.Event()
    with contextlib.closing(Loop()) as loop:
        loop.run_until_complete(scenario())


# ---- refusals by the other side -------------------------------------------------------------


async def test_nothing_listens_there(ctx: Context) -> None:
    side = Side(ctx)
    with pytest.raises(cm.RejectedError, match="port 9: rejected, INVALID_SERVICE_ID") as e:
        await cm.connect(side.qp, address_of(ctx), 9)
    assert e.value.reason == RejectReason.INVALID_SERVICE_ID
    assert e.value.event == CMEventType.REJECTED
    assert isinstance(e.value, ConnectionRefusedError)
    assert side.qp.state == new_state(ctx)


async def test_more_requests_than_the_backlog_are_rejected(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0, backlog=2) as listener:
        asking = [asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local)) for _ in range(5)]
        await eventually(lambda: sum(task.done() for task in asking) >= 3)
        waiting = [task for task in asking if not task.done()]
        assert len(waiting) == 2
        assert all(isinstance(task.exception(), cm.RejectedError) for task in asking if task.done())
        for _ in range(2):
            await (await listener.get_request(SOON)).accept(Side(ctx).qp)
        await asyncio.gather(*waiting)


# ---- its end --------------------------------------------------------------------------------


async def test_a_request_that_a_goodbye_has_flushed_names_where_the_reason_is(ctx: Context) -> None:
    async with connected(ctx) as (_, conn, server, accepted):
        async with AsyncCQ(server.cq) as acq:
            waiting = await start(acq.completion(5))
            await conn.disconnect()
            with pytest.raises(CompletionError, match=r"WR_FLUSH_ERR, .*\(conn.error says how\)"):
                (await waiting).raise_for_status()
        assert isinstance(accepted.error, cm.DisconnectedError)
        assert isinstance(accepted.error, ConnectionResetError)


async def test_what_ends_while_nobody_waits_is_known(ctx: Context) -> None:
    async with connected(ctx) as (_, conn, server, accepted):
        await conn.disconnect()
        await conn.wait_closed(SOON)
        while is_iwarp(ctx) and accepted.error is None:  # wait_closed() did not wait for its answer
            await asyncio.sleep(0.001)
        assert accepted.error is not None
        server.check_flushed()


async def test_closed_says_whether_a_connection_is_over(ctx: Context) -> None:
    """In other states, and in threads: test_cm_matrix.py."""
    async with connected(ctx) as (_, conn, _, accepted):
        assert not conn.closed
        assert not accepted.closed
        with pytest.raises(TimeoutError):
            await accepted.wait_closed(0)
        await conn.disconnect()
        await accepted.wait_closed(SOON)  # nobody has closed this end
        assert accepted.closed
        await conn.wait_closed(SOON)
        assert conn.closed
        accepted.close()
        await accepted.wait_closed(0)
        assert accepted.closed


async def test_a_connection_that_fails_is_closed(ctx: Context) -> None:
    async with connected(ctx) as (client, conn, _, _):
        client.qp.close()
        assert conn.closed
        assert isinstance(conn.error, ClosedError)
        await conn.wait_closed(0)


async def test_closed_of_listeners_and_requests(ctx: Context) -> None:
    listener = cm.listen(address_of(ctx), 0)
    assert not listener.closed, "its block was not entered"
    async with listener:
        assert not listener.closed
        asking = await start(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        assert not request.closed
        await request.reject()
        assert request.closed
        with pytest.raises(cm.RejectedError):
            await asking
    assert listener.closed


# ---- deadlines and cancellation -------------------------------------------------------------


async def test_a_listener_that_does_not_answer_ends_by_the_deadline(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        side = Side(ctx)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer in time") as e:
            await cm.connect(side.qp, *listener.local, timeout=1)
        if not is_iwarp(ctx):
            assert str(e.value).endswith(
                "; the peer's host is silent, or its program has not accepted"
            )
        assert time.monotonic() - began >= 0.999  # uvloop counts milliseconds
        assert side.qp.state == (QPState.ERR if is_iwarp(ctx) else QPState.RESET)
        request = await listener.get_request(SOON)
        await check_gone(ctx, request)


async def test_an_address_that_no_host_has(ctx: Context) -> None:
    text = (
        f"connecting to {NOBODY} port 9: no answer in time; no host has answered that the address"
    )
    with pytest.raises(TimeoutError, match=text):
        await cm.connect(Side(ctx).qp, NOBODY, 9, timeout=0.2)
    with pytest.raises(cm.UnreachableError, match="ADDR_ERROR") as e:
        await cm.connect(Side(ctx).qp, NOBODY, 9, timeout=SOON)
    assert e.value.status == -errno.ETIMEDOUT


def next_event(channel: CMChannel) -> CMEventType:
    assert select.select([channel.fileno()], [], [], SOON)[0]
    event = channel.read_event()
    assert event is not None
    return CMEventType(event[1])


def test_an_address_that_was_not_found_can_be_asked_for_again(ctx: Context) -> None:
    """The kernel misses some answers, so connect() tries several times."""
    with contextlib.closing(CMChannel()) as channel, contextlib.closing(CMID(channel, False)) as it:
        it.resolve_addr(None, (NOBODY, 9), 100, "ADDR_RESOLVED")
        assert next_event(channel) == CMEventType.ADDR_ERROR
        it.resolve_addr(None, (address_of(ctx), 9), 4000, "ADDR_RESOLVED")
        assert next_event(channel) == CMEventType.ADDR_RESOLVED


# ---- datagrams ------------------------------------------------------------------------------


async def test_datagrams_go_where_the_listener_says(ctx: Context) -> None:
    client, server = Side(ctx, QPType.UD), Side(ctx, QPType.UD)
    async with cm.listen(address_of(ctx), 0, datagrams=True) as listener:
        asking = asyncio.create_task(cm.connect(client.qp, *listener.local, private_data=b"hi"))
        request = await listener.get_request(SOON)
        assert request.private_data[:2] == b"hi"
        accepted = await request.accept(server.qp, private_data=b"there", on_init=server.post_recv)
        async with await asking as conn:
            assert conn.private_data[:5] == b"there"
            assert conn.parameters["qp_num"] == server.qp.qp_num
            async with AsyncCQ(client.cq) as a, AsyncCQ(server.cq) as b:
                ah = conn.make_ah(client.pd)
                client.mr.write(b"gram")
                where = {"remote_qpn": conn.remote_qpn, "remote_qkey": conn.remote_qkey}
                await a.send(client.qp, client.mr[:4], ah=ah, **where)
                await b.completion(5)
                assert server.mr.read(4, 2048 + 40) == b"gram"
        accepted.close()
    assert client.qp.state == server.qp.state == QPState.RTS, "it can have other peers"
