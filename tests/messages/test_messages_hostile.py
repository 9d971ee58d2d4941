# SPDX-License-Identifier: MIT
"""A peer that sends what it wants reaches nothing: the connection is closed, and says why."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hostile import (
    ENTRY,
    SIZE,
    Raw,
    data,
    header,
    hostile_client,
    hostile_server,
    offer,
    offer_elsewhere,
)
from messages_support import SOON, data_of, took
from support import eventually, start

from cqnotify import MR, AccessFlags, AsyncEventError, CompletionError, Context, WCStatus
from cqnotify.messages import (
    Connection,
    ConnectionLostError,
    ConnectionOptions,
    MessagesError,
    PeerClosedError,
    ProtocolError,
)
from cqnotify.messages import _wire as wire
from cqnotify.messages._wire import Kind, Remote

VIOLATIONS = {
    "empty": (b"", "a frame of 0 bytes has no header"),
    "short": (b"1", "a frame of 1 bytes has no header"),
    "kind": (header(9), "a frame of the unknown kind 9"),
    "flags": (header(1, 2), "a frame DATA with the flags 0x2, 0x0"),
    "flag of an ACK": (header(3, 1), "a frame ACK with the flags 0x1, 0x0"),
    "reserved": (header(3, zero=7), "a frame ACK with the flags 0x0, 0x7"),
    "long ACK": (header(3) + b"1", "a frame ACK of 13 bytes"),
    "long CLOSE": (header(4) + b"1", "a frame CLOSE of 13 bytes"),
    "returned": (
        header(3, returned=1),
        "the number of messages received is 1, and cannot be more than 0",
    ),
    "back": (header(3, returned=-1), "the number of messages received is 4294967295"),
    "read": (header(3, read=1), "the number of offers read is 1, and cannot be more than 0"),
    "no count": (header(1), "a frame DATA of 12 bytes"),
    "no table": (header(1) + b"\5\0\0\0", "a frame DATA of 16 bytes for 5 frames"),
    "many frames": (header(1) + b"\xff\xff\xff\xff", "at most 65536 are taken"),
    "table": (data(b"12345")[:-1], "a frame DATA of 24 bytes, by its table 25"),
    "rest": (data(b"12345") + b"6", "a frame DATA of 26 bytes, by its table 25"),
    "large": (data(bytes(2001)), "a message of 2001 bytes: at most 2000 are taken"),
    "no offer": (header(2), "a frame OFFER of 12 bytes"),
    "offer without its table": (offer([], length=5), "a frame OFFER of 36 bytes with 5 behind it"),
    "long offer": (offer_elsewhere(1, Remote(20, 99, 1)) + b"1", "with its body elsewhere"),
    "small table": (offer_elsewhere(9, Remote(20, 99, 1)), "9 frames with a table of 20 bytes"),
    "end of memory": (
        offer_elsewhere(1, Remote(100, (1 << 64) - 9, 1)),
        "an offer of 100 bytes at address 0xfffffffffffffff7",
    ),
    "no body": (offer_elsewhere(0, Remote(0, 99, 1)), "an offer of 0 bytes at address 0x63"),
    "frames of an offer": (offer_elsewhere(65537, Remote(1 << 40, 99, 1)), "at most 65536"),
    "a large offer": (offer_elsewhere(1, Remote(1 << 40, 99, 1)), "at most 2000 are taken"),
}


async def refused(raw: Raw, server: Connection, words: str) -> None:
    """It is over on our side, for that reason, and the peer was told."""
    await eventually(lambda: server.closed)
    assert isinstance(server.error, ProtocolError)
    assert words in str(server.error)
    said = wire.parse_error(memoryview(await raw.recv_kind(Kind.ERROR)))
    assert str(server.error).startswith(said)
    with pytest.raises(ProtocolError):
        await server.send(b"1")
    with pytest.raises(ProtocolError):
        await server.recv()
    await server.aclose()


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_a_frame_that_breaks_the_protocol_ends_it(ctx: Context, what: str) -> None:
    frame, words = VIOLATIONS[what]
    async with hostile_client(ctx, ConnectionOptions(max_message=2000)) as (raw, server):
        await raw.send(data(b"fine"))
        assert took(await server.recv(timeout=SOON)) == [b"fine"]
        taking = await start(server.recv())
        await raw.send(frame)
        with pytest.raises(ProtocolError):
            await taking
        await refused(raw, server, words)


BODIES = {
    "table": ([Remote(5, 0, 0)], b"1234", "with a body of 24 bytes, by its table 25"),
    "rest": ([Remote(5, 0, 0)], b"123456", "with a body of 26 bytes, by its table 25"),
    "sum": ([Remote(1999, 99, 0)] * 2, b"", "a message of 3998 bytes"),
    "zero": ([Remote(0, 99, 0)], b"", "an offer of 0 bytes at address 0x63"),
    "end": ([Remote(99, (1 << 64) - 9, 0)], b"", "at address 0xfffffffffffffff7"),
    "overflow": ([Remote((1 << 64) - 1, 9, 0)] * 2, b"", "at most 2000 are taken"),
}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("what", BODIES)
async def test_a_table_that_lies_ends_it(ctx: Context, what: str, elsewhere: bool) -> None:
    remotes, small, words = BODIES[what]
    async with hostile_client(ctx, ConnectionOptions(max_message=2000)) as (raw, server):
        frame = offer(remotes, small)
        if elsewhere:
            body = frame[wire.OFFER_SIZE :]
            raw.mr.write(body, 64 * SIZE - 1000)
            where = raw.mr.addr + 64 * SIZE - 1000
            frame = offer_elsewhere(len(remotes), Remote(len(body), where, raw.mr.rkey))
        await raw.send(frame)
        with pytest.raises(ProtocolError, match=words.replace("(", ".")):
            await server.recv(timeout=SOON)
        await refused(raw, server, words)


async def test_an_offer_of_many_small_frames_ends_it(ctx: Context) -> None:
    """Each would be read into pages of its own: 65,536 of one byte into 260 MB."""
    count = 65536
    async with hostile_client(ctx, ConnectionOptions(max_message=1 << 20)) as (raw, server):
        table = bytearray(count * wire.ENTRY_SIZE)
        wire.put_body(memoryview(table), 0, [Remote(1, raw.mr.addr, raw.mr.rkey)] * count, [])
        with MR(raw.pd, len(table), access=AccessFlags.REMOTE_READ) as body:
            body.write(bytes(table))
            await raw.send(offer_elsewhere(count, Remote(len(table), body.addr, body.rkey)))
            with pytest.raises(ProtocolError, match="a frame|frame of 1 bytes"):
                await server.recv(timeout=SOON)
            await refused(raw, server, "frames of less than 32768 bytes do")
            assert server.stats.memory.registered < 1 << 20


async def test_memory_that_was_not_granted_ends_it(ctx: Context) -> None:
    """The peer's device refuses the read; nobody else is concerned."""
    async with hostile_client(ctx) as (raw, server):
        with suppress(AsyncEventError):  # the device may report the wrong key (QP_ACCESS_ERR) first
            await raw.send(offer([Remote(100000, raw.mr.addr, raw.mr.rkey + 1)]))
        with pytest.raises(ConnectionLostError):
            await server.recv(timeout=SOON)
        await server.aclose()


async def test_more_messages_than_credits_end_it(ctx: Context) -> None:
    async with hostile_client(ctx, ConnectionOptions(credits=2)) as (raw, server):
        for _ in range(3):
            await raw.send(data(b"1"))
        await refused_after(server, 2)
        await refused(raw, server, "message 3 was sent without a credit")


async def refused_after(server: Connection, count: int) -> None:
    """What came before is received."""
    await eventually(lambda: server.closed)
    for _ in range(count):
        assert took(await server.recv()) == [b"1"]


async def test_an_end_that_closes_twice_ends_it(ctx: Context) -> None:
    async with hostile_client(ctx) as (raw, server):
        for _ in range(2):
            await raw.send(header(Kind.ACK, wire.CLOSING))
        await refused(raw, server, "a second CLOSING")


async def test_an_offer_that_is_read_behind_the_last_ends_it(ctx: Context) -> None:
    """Its memory is not granted any more: the sender was told that the peer reads nothing."""
    async with hostile_client(ctx) as (raw, server):
        sending = await start(server.send(bytes(100000)))
        await raw.recv_kind(Kind.OFFER)
        await raw.send(header(Kind.ACK, wire.CLOSING))
        with pytest.raises(PeerClosedError):
            await sending
        await raw.send(header(Kind.ACK, returned=1, read=1))
        await refused(raw, server, "offers were read behind a CLOSING")


async def test_closing_with_unread_offers_is_an_error(ctx: Context) -> None:
    async with hostile_client(ctx) as (raw, server):
        await raw.send(offer([Remote(100, raw.mr.addr, raw.mr.rkey)]))
        await raw.send(header(Kind.CLOSE))
        await refused(raw, server, "a CLOSE before all messages were read")


async def test_done_for_what_was_offered_once(ctx: Context) -> None:
    async with hostile_client(ctx) as (raw, server):
        sending = await start(server.send(data_of(100000)))
        await raw.recv_kind(Kind.OFFER)
        await raw.send(header(Kind.ACK, read=1))
        await sending
        await raw.send(header(Kind.ACK, read=2))
        await refused(raw, server, "the number of offers read is 2, and cannot be more than 1")


async def test_the_peers_words_are_told(ctx: Context) -> None:
    async with hostile_client(ctx) as (raw, server):
        taking = await start(server.recv())
        await raw.send(header(Kind.ERROR) + b"your\n fault\xff")
        with pytest.raises(
            ProtocolError, match="the peer has closed the connection: your\\? fault"
        ):
            await taking
        await server.aclose()


REFUSES = "a read or write that is refused ends the connection, without saying so"
# What is refused is flushed, if our end hears of it and hangs up before its device has answered.
PEER_CLOSING = (WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR)


@pytest.mark.not_on_iwarp(REFUSES)
async def test_a_peer_reads_what_was_offered_and_nothing_else(ctx: Context) -> None:
    """Neither behind it, nor after it is done, nor memory of the connection; and writes nothing."""
    secret = data_of(200000)
    async with hostile_client(ctx, ConnectionOptions(cache=0)) as (raw, server):
        sending = await start(server.send(memoryview(secret)[:100000]))
        frame = memoryview(await raw.recv_kind(Kind.OFFER))
        (remote,) = (ENTRY.unpack_from(frame, wire.OFFER_SIZE),)
        length, addr, rkey = remote
        await raw.acq.read(raw.qp, raw.mr[:100], addr + length - 100, rkey)
        assert raw.mr.read(100) == secret[99900:100000]
        await raw.send(header(Kind.ACK, read=1))
        await sending
        with pytest.raises(CompletionError) as e:
            await raw.acq.read(raw.qp, raw.mr[:100], addr, rkey)
        assert e.value.status in PEER_CLOSING
        await eventually(lambda: server.closed)


@pytest.mark.not_on_iwarp(REFUSES)
@pytest.mark.parametrize("action", ["read behind", "write", "write slab", "read slab", "other"])
async def test_a_peer_that_reaches_for_more_is_lost(ctx: Context, action: str) -> None:
    alone = ConnectionOptions(isolated=True)
    async with (
        hostile_client(ctx, alone) as (raw, server),
        hostile_client(ctx, alone) as (other, second),
    ):
        victim = second if action == "other" else server
        thief = other if action == "other" else raw
        sending = await start(victim.send(bytes(100000)))
        frame = memoryview(await thief.recv_kind(Kind.OFFER))
        length, addr, rkey = ENTRY.unpack_from(frame, wire.OFFER_SIZE)
        slab = server._session.resources.mr
        with pytest.raises(CompletionError) as e:
            if action == "read behind":
                await raw.acq.read(raw.qp, raw.mr[:100], addr + length - 99, rkey)
            elif action == "write":
                await raw.acq.write(raw.qp, raw.mr[:100], addr, rkey)
            elif action == "other":  # what was granted to another peer
                await raw.acq.read(raw.qp, raw.mr[:100], addr, rkey)
            elif action == "write slab":
                await raw.acq.write(raw.qp, raw.mr[:100], slab.addr, slab.rkey)
            else:
                await raw.acq.read(raw.qp, raw.mr[:100], slab.addr, slab.rkey)
        assert e.value.status in PEER_CLOSING
        assert raw.conn is not None
        raw.conn.close()  # its queue pair has failed
        await eventually(lambda: server.closed)
        if action == "other":
            assert not sending.done()
            assert not second.closed
            second.abort()
        with pytest.raises((MessagesError, ValueError)):
            await sending


@pytest.mark.not_on_iwarp("where nothing tells what the peer grants")
async def test_a_peer_that_lets_nothing_be_read_is_told_so(ctx: Context) -> None:
    """It would be a large message, later, that could not be read."""
    with pytest.raises(ProtocolError, match="the peer grants no RDMA reads"):
        async with hostile_server(ctx, responder_resources=0):
            pass
