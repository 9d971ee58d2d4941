# SPDX-License-Identifier: MIT
"""Objects between two comms, and the ends of these."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time

import dask.config
import numpy
import pytest
from dask_support import SOON, connected, listening, url_of
from distributed.comm import CommClosedError, connect
from distributed.protocol import Serialized, to_serialize
from support import address_of, sleeps

from cqnotify import CQ, PD, QP, Context, QPType, cm, messages
from cqnotify.context import is_iwarp
from cqnotify.dask._options import options

OBJECTS = [
    {"op": "register", "n": 1},
    {"data": b"x" * 100_000, "text": "ä" * 50_000, "none": None, "more": (1, 2.5, "x")},
    ("many", *range(20_000)),
]


@pytest.mark.parametrize("number", range(len(OBJECTS)))
async def test_objects_arrive_as_they_were(ctx: Context, number: int) -> None:
    msg = OBJECTS[number]
    async with connected(ctx) as (client, server):
        for a, b in ((client, server), (server, client)):
            assert await a.write(msg) >= len(str(msg)) // 4
            assert await b.read() == msg


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
async def test_arrays_arrive_and_are_writable(ctx: Context, size: int) -> None:
    sent = {"a": numpy.arange(size), "b": numpy.ones((2, size), order="F")}
    async with connected(ctx) as (client, server):
        await client.write({name: to_serialize(array) for name, array in sent.items()})
        found = await server.read()
    for name, array in sent.items():
        numpy.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        found[name][...] = 7  # it is the receiver's own


async def test_what_is_not_deserialized_can_be_sent_on(ctx: Context) -> None:
    array = numpy.arange(100_000)
    async with (
        connected(ctx) as (first, scheduler),
        connected(ctx, deserialize=False) as (out, last),
    ):
        scheduler.deserialize = False
        last.deserialize = True
        await first.write({"x": to_serialize(array)})
        msg = await scheduler.read()
        assert isinstance(msg["x"], Serialized)
        await out.write(msg)
        numpy.testing.assert_array_equal((await last.read())["x"], array)


async def test_a_write_does_not_wait_for_the_reader(ctx: Context) -> None:
    arrays = [numpy.full(100_000, i) for i in range(20)]
    async with connected(ctx) as (client, server):
        for array in arrays:
            await client.write([to_serialize(array)])
            await client.write("a small one behind it")
        for array in arrays:
            numpy.testing.assert_array_equal((await server.read())[0], array)
            assert await server.read() == "a small one behind it"


async def test_what_was_written_before_close_arrives(ctx: Context) -> None:
    async with connected(ctx) as (client, server):
        await client.write([to_serialize(numpy.arange(500_000))])
        await client.write("goodbye")
        closing = asyncio.ensure_future(client.close())
        assert (await server.read())[0].sum() == numpy.arange(500_000).sum()
        assert await server.read() == "goodbye"
        with pytest.raises(CommClosedError, match="PeerClosedError"):
            await server.read()
        await closing
        assert server.closed()


async def test_a_closed_comm_says_so(ctx: Context) -> None:
    async with connected(ctx) as (client, server):
        await client.close()
        await client.close()
        assert client.closed()
        assert "closed" in repr(client)
        for call in (client.read(), client.write("x"), server.read(), server.write("x")):
            with pytest.raises(CommClosedError):
                await call


async def test_a_reader_is_woken_by_close_and_by_abort(ctx: Context) -> None:
    for end in ("close", "abort"):
        async with connected(ctx) as (client, server):
            readers = [asyncio.ensure_future(comm.read()) for comm in (client, server)]
            await asyncio.sleep(0)
            if end == "close":
                await client.close()
            else:
                client.abort()
            for reader in readers:
                with pytest.raises(CommClosedError):
                    await asyncio.wait_for(reader, SOON)


async def test_a_read_that_is_cancelled_aborts_as_with_tcp(ctx: Context) -> None:
    async with connected(ctx) as (client, server):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.read(), 0.01)
        assert client.closed()
        with pytest.raises(CommClosedError, match="ConnectionLostError"):
            await asyncio.wait_for(server.read(), SOON)


async def test_a_lost_peer_fails_what_is_under_way(ctx: Context) -> None:
    async with connected(ctx) as (client, server):
        await client.write([to_serialize(numpy.ones(100_000))])  # which nobody reads
        server.abort()
        with pytest.raises(CommClosedError, match="ConnectionLostError"):
            await asyncio.wait_for(client.read(), SOON)
        with pytest.raises(CommClosedError, match="ConnectionLostError"):
            await client.write("x")


async def test_a_message_that_fails_on_its_way_aborts(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(self: messages.Connection, *buffers: object) -> None:
        await asyncio.sleep(0.01)
        raise OSError(12, "no memory can be locked")

    async with connected(ctx) as (client, server):
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(messages.Connection, "send", fails)
            await client.write("x")
            with pytest.raises(CommClosedError, match="no memory can be locked"):
                await asyncio.wait_for(client.read(), SOON)
        assert "A message was not sent" in caplog.text
        with pytest.raises(CommClosedError):
            await server.read()


async def test_a_message_too_large_is_refused_and_the_comm_goes_on(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cqnotify.dask._options.MEMORY_LIMIT", 100_000)
    async with connected(ctx) as (client, server):
        with pytest.raises(ValueError, match="the peer takes at most 100000"):
            await client.write([to_serialize(numpy.ones(100_000))])
        await client.write("x")
        assert await server.read() == "x"


async def test_where_nobody_listens_connecting_takes_the_time_it_is_given(ctx: Context) -> None:
    async with listening(ctx) as (listener, _):
        gone = listener.contact_address
    began = time.monotonic()
    with pytest.raises(OSError, match=r"Timed out trying to connect to rdma://.* after 0.3 s"):
        await connect(gone, timeout=0.3)
    assert time.monotonic() - began > 0.25


async def test_a_stranger_is_refused_and_the_listener_goes_on(ctx: Context) -> None:
    async with listening(ctx) as (listener, accepted):
        qp = QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 16))
        with pytest.raises(cm.RejectedError):
            await cm.connect(qp, *listener.get_host_port(), private_data=b"a stranger")
        client = await connect(listener.contact_address)
        await (await accepted.get()).close()
        await client.close()


async def test_a_stranger_is_not_taken_for_dask(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as strangers:
        # It speaks the protocol of messages, and says what is no handshake of Dask's.
        connecting = asyncio.ensure_future(connect(url_of(ctx, strangers.local[1]), timeout=SOON))
        conn = await strangers.accept(SOON)
        await conn.aclose()
        with pytest.raises(CommClosedError):
            await connecting


async def test_a_peer_without_dasks_handshake_is_dropped(
    ctx: Context, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(ctx) as (listener, accepted):
        conn = await messages.connect(*listener.get_host_port())
        await conn.recv(timeout=SOON)  # Dask introduces itself
        await conn.send(b"no message of Dask's")
        with pytest.raises(messages.ConnectionLostError):
            await conn.recv(timeout=SOON)
        await conn.aclose()
        assert accepted.empty()
        assert "is refused" in caplog.text


async def test_many_listeners_and_many_comms(ctx: Context) -> None:
    number = 2 if is_iwarp(ctx) else 8  # libsiw has room for 144 pages of queues in a context

    async def talk(listener_number: int) -> int:
        async with listening(ctx) as (listener, accepted):
            clients = await asyncio.gather(
                *(connect(listener.contact_address) for _ in range(number))
            )
            servers = [await accepted.get() for _ in clients]
            for i, client in enumerate(clients):
                await client.write((listener_number, i))
            read = [await server.read() for server in servers]
            await asyncio.gather(*(comm.close() for comm in clients))
            await asyncio.gather(*(comm.close() for comm in servers))
            return len({tuple(one) for one in read if one[0] == listener_number})

    assert await asyncio.gather(*map(talk, range(number))) == [number] * number


async def test_a_stopped_listener_leaves_its_comms_alone(ctx: Context) -> None:
    async with connected(ctx) as (client, server):  # which stops it
        await client.write("x")
        assert await server.read() == "x"


async def test_comms_that_are_idle_use_no_cpu(ctx: Context) -> None:
    async with connected(ctx) as (client, server):
        reader = asyncio.ensure_future(server.read())
        await client.write("x")
        assert await reader == "x"
        reader = asyncio.ensure_future(server.read())
        await asyncio.sleep(0)
        assert await sleeps()
        assert not reader.done()
        await client.write("y")
        assert await asyncio.wait_for(reader, SOON) == "y"


def test_what_a_comm_takes() -> None:
    """Nobody notices otherwise when it grows."""
    wanted = options()
    registered = (wanted.receives + 4) * wanted.eager
    assert registered <= 160 << 10
    assert wanted.cache == 0
    assert os.sysconf("SC_PAGE_SIZE") <= wanted.eager


def test_the_keepalive_is_what_dask_asks_of_tcp(ctx: Context) -> None:
    with dask.config.set({"distributed.comm.timeouts.tcp": "7 s"}):
        assert options().keepalive == (None if is_iwarp(ctx) else 7.0)


async def test_a_comm_that_is_dropped_is_closed(
    ctx: Context, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(ctx) as (listener, accepted):
        client = await connect(listener.contact_address)
        server = await accepted.get()
        await asyncio.sleep(0)  # the task that has handed it over ends
        del server
        gc.collect()
        assert "Closing a dangling <Connection" in caplog.text
        with pytest.raises(CommClosedError, match="ConnectionLostError"):
            await asyncio.wait_for(client.read(), SOON)
