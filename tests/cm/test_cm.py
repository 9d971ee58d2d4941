# SPDX-License-Identifier: MIT
"""cqnotify.cm: connections for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import time

import pytest
from cm_support import NOBODY, SOON, Side, address_of, connected

from cqnotify import ClosedError, Context, QPState, QPType, cm
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
        assert accepted.private_data == b"hello" + bytes(51)
        assert accepted.parameters["qp_num"] == client.qp.qp_num
        assert conn.parameters["qp_num"] == server.qp.qp_num
        assert conn.peer == accepted.local
        assert conn.local == accepted.peer
        assert conn.device == accepted.device == ctx.name
        assert conn.error is accepted.error is None


async def test_the_parameters_reach_the_queue_pairs(ctx: Context) -> None:
    options = {"ack_timeout": 13, "retry_count": 3, "rnr_retry_count": 2, "access": 2}
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
        assert (mine.qp_access_flags, theirs.qp_access_flags) == (2, 0)
        assert accepted.parameters["rnr_retry_count"] == 2


async def test_a_name_is_resolved_without_stopping_the_loop(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    asked = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        await asyncio.sleep(0)
        return [(2, 1, 6, "", (address_of(ctx), port))]

    with contextlib.suppress(AttributeError):  # uvloop's loop has no room for it
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        with pytest.raises(cm.RejectedError):
            await cm.connect(Side(ctx).qp, "some.where", 9)
        assert asked == ["some.where"]


# ---- refusals by the other side -------------------------------------------------------------


async def test_nothing_listens_there(ctx: Context) -> None:
    side = Side(ctx)
    with pytest.raises(cm.RejectedError, match="port 9: rejected, INVALID_SERVICE_ID") as e:
        await cm.connect(side.qp, address_of(ctx), 9)
    assert e.value.reason == RejectReason.INVALID_SERVICE_ID
    assert e.value.event == CMEventType.REJECTED
    assert isinstance(e.value, ConnectionRefusedError)
    assert side.qp.state == QPState.RESET


@pytest.mark.parametrize("how", ["reject", "close", "drop"])
async def test_a_request_is_rejected(ctx: Context, how: str) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        if how == "reject":
            await request.reject(b"no room")
        elif how == "close":
            request.close()
        del request
        with pytest.raises(cm.RejectedError, match="CONSUMER_DEFINED") as e:
            await asking
        assert e.value.private_data[:7] == (b"no room" if how == "reject" else bytes(7))


async def test_those_that_wait_when_the_listener_is_closed_are_rejected(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = [asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local)) for _ in range(3)]
        await listener.get_request(SOON)
    for result in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(result, cm.RejectedError)
    with pytest.raises(ClosedError):
        await listener.get_request()
    assert [request async for request in listener] == []


async def test_more_requests_than_the_backlog_are_rejected(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0, backlog=2) as listener:
        asking = [asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local)) for _ in range(5)]
        done, waiting = await asyncio.wait(asking, timeout=2)
        assert len(done) == 3
        assert all(isinstance(task.exception(), cm.RejectedError) for task in done)
        for _ in range(2):
            await (await listener.get_request(SOON)).accept(Side(ctx).qp)
        await asyncio.gather(*waiting)


async def test_a_client_that_has_gone_is_an_error_of_accept(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        asking.cancel()
        await asyncio.wait([asking])
        with pytest.raises(cm.PeerGoneError, match="the peer has gone"):
            await request.accept(Side(ctx).qp)


# ---- its end --------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["client", "server"])
@pytest.mark.parametrize("how", ["disconnect", "close", "close the QP", "drop"])
async def test_both_ends_know_when_one_ends_it(ctx: Context, by: str, how: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client, conn, server, accepted = await stack.enter_async_context(connected(ctx))
        mine, side, other, peer = (
            (conn, client, accepted, server) if by == "client" else (accepted, server, conn, client)
        )
        waiting = asyncio.create_task(other.closed(SOON))
        await asyncio.sleep(0)
        assert not waiting.done()
        if how == "disconnect":
            await mine.disconnect()
            side.check_flushed()
            await mine.closed(SOON)
        elif how == "close":
            mine.close()
            side.check_flushed()
        elif how == "close the QP":
            side.qp.close()
            assert isinstance(mine.error, ClosedError)
        else:
            mine._link.close()
            del mine
            gc.collect()
        await waiting
        assert isinstance(other.error, cm.DisconnectedError)
        assert isinstance(other.error, ConnectionResetError)
        peer.check_flushed()


async def test_a_context_takes_its_connections_along(ctx: Context) -> None:
    with Context(ctx.name) as other:
        client, server = Side(other), Side(ctx)
        async with cm.listen(address_of(ctx), 0) as listener:
            asking = asyncio.create_task(cm.connect(client.qp, *listener.local))
            accepted = await (await listener.get_request(SOON)).accept(server.qp)
            conn = await asking
        other.close()
        assert isinstance(conn.error, ClosedError)
        await conn.closed(SOON)
        await accepted.closed(SOON)
        assert server.qp.state == QPState.ERR


async def test_what_ends_while_nobody_waits_is_known(ctx: Context) -> None:
    async with connected(ctx) as (_, conn, server, accepted):
        await conn.disconnect()
        await conn.closed(SOON)
        assert accepted.error is not None
        server.check_flushed()


# ---- deadlines and cancellation -------------------------------------------------------------


async def test_a_listener_that_does_not_answer_ends_by_the_deadline(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        side = Side(ctx)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer in time"):
            await cm.connect(side.qp, *listener.local, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < SOON
        assert side.qp.state == QPState.RESET
        request = await listener.get_request(SOON)
        with pytest.raises(cm.PeerGoneError):
            await request.accept(side.qp)


async def test_an_address_that_no_host_has(ctx: Context) -> None:
    with pytest.raises((TimeoutError, cm.UnreachableError)):
        await cm.connect(Side(ctx).qp, NOBODY, 9, timeout=0.2)
    with pytest.raises(cm.UnreachableError, match="ADDR_ERROR") as e:
        await cm.connect(Side(ctx).qp, NOBODY, 9, timeout=8)
    assert e.value.status == -errno.ETIMEDOUT


@pytest.mark.parametrize("where", ["resolving", "connecting"])
async def test_a_cancelled_connect_leaves_the_queue_pair_free(ctx: Context, where: str) -> None:
    side = Side(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        host, port = (NOBODY, 9) if where == "resolving" else listener.local
        asking = asyncio.create_task(cm.connect(side.qp, host, port))
        if where == "connecting":
            await listener.get_request(SOON)
        else:
            await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        asking = asyncio.create_task(cm.connect(side.qp, *listener.local))
        other = Side(ctx)
        await (await listener.get_request(SOON)).accept(other.qp)
        async with await asking:
            assert side.qp.state == QPState.RTS


async def test_requests_wait_with_a_deadline(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        with pytest.raises(TimeoutError):
            await listener.get_request(0.05)
        waiting = asyncio.create_task(listener.get_request())
        await asyncio.sleep(0)
        listener.close()
        with pytest.raises(ClosedError):
            await waiting


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
