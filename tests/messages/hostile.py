# SPDX-License-Identifier: MIT
"""An end that speaks the protocol byte by byte, and need not keep to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from messages_support import SOON, address_of

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlags,
    CompletionChannel,
    Context,
    QPType,
    SendFlags,
    cm,
    messages,
)
from cqnotify.aio import AsyncCQ
from cqnotify.messages import Connection, ConnectionOptions
from cqnotify.messages import _wire as wire
from cqnotify.messages._wire import Header, Kind, Remote

RECEIVES = 64
HEADER = struct.Struct("<BBHII")  # kind, flags, 0, credits_returned, offers_read
ENTRY = struct.Struct("<QQI")  # length, address and rkey of a frame
SIZE = 32768
REMOTE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


class Raw:
    """A QP with memory that its peer may read and write."""

    def __init__(self, ctx: Context) -> None:
        self.pd = PD(ctx)
        self.cq = CQ(ctx, 256, channel=CompletionChannel(ctx))
        self.qp = QP(self.pd, QPType.RC, send_cq=self.cq, max_send_wr=64, max_recv_wr=RECEIVES)
        self.mr = MR(self.pd, (RECEIVES + 1) * SIZE, access=REMOTE)
        self.acq = AsyncCQ(self.cq)
        self.conn: cm.Connection | None = None
        self._next = 0

    def post_all(self, qp: QP) -> None:
        for i in range(RECEIVES):
            self.qp.post_recv(self.mr[i * SIZE : (i + 1) * SIZE], wr_id=i)

    async def open(self) -> None:
        """As the end that connects does first."""
        await self.send(header(Kind.ACK))

    async def begin(self) -> None:
        """The same, until the peer is ready to receive."""
        await self.open()
        assert wire.parse_header(memoryview(await self.recv())) == Header(Kind.ACK, 0, 0, 0)

    async def let_begin(self) -> None:
        """As the end that accepts does."""
        assert await self.recv() == header(Kind.ACK)
        await self.send(header(Kind.ACK))

    async def send(self, frame: bytes) -> None:
        at = RECEIVES * SIZE
        self.mr.write(frame, at)
        flags = SendFlags.SIGNALED | SendFlags.SOLICITED
        await self.acq.send(self.qp, self.mr[at : at + len(frame)], send_flags=flags)

    async def recv(self) -> bytes:
        """The next frame of the peer."""
        slot, self._next = self._next, self._next + 1
        wc = await asyncio.wait_for(self.acq.completion(slot), SOON)
        wc.raise_for_status()
        return self.mr.read(wc.byte_len, slot * SIZE)

    async def recv_kind(self, kind: Kind) -> bytes:
        while True:
            frame = await self.recv()
            if wire.parse_header(memoryview(frame)).kind == kind:
                return frame

    async def close(self) -> None:
        self.acq.close()
        if self.conn is not None:
            await self.conn.aclose()


def header(kind: int, flags: int = 0, returned: int = 0, read: int = 0, zero: int = 0) -> bytes:
    return HEADER.pack(kind, flags, zero, returned & wire.MASK, read & wire.MASK)


def data(*frames: bytes, returned: int = 0, read: int = 0) -> bytes:
    lengths = struct.pack(f"<{1 + len(frames)}I", len(frames), *map(len, frames))
    return header(Kind.DATA, 0, returned, read) + lengths + b"".join(frames)


def offer(remotes: list[Remote], small: bytes = b"", length: int | None = None) -> bytes:
    """With its table in the frame."""
    own = len(remotes) * wire.ENTRY_SIZE + len(small)
    body = Remote(own if length is None else length, 0, 0)
    frame = bytearray(wire.OFFER_SIZE + own)
    wire.put_header(memoryview(frame), Header(Kind.OFFER, 0, 0, 0))
    wire.put_offer(memoryview(frame), len(remotes), body)
    wire.put_body(memoryview(frame), wire.OFFER_SIZE, remotes, [memoryview(small)])
    return bytes(frame)


def offer_elsewhere(frames: int, body: Remote) -> bytes:
    frame = bytearray(wire.OFFER_SIZE)
    wire.put_header(memoryview(frame), Header(Kind.OFFER, 0, 0, 0))
    wire.put_offer(memoryview(frame), frames, body)
    return bytes(frame)


@asynccontextmanager
async def hostile_client(
    ctx: Context, options: ConnectionOptions | None = None, hello: bytes | None = None
) -> AsyncIterator[tuple[Raw, Connection]]:
    """And the server's end, which is ours."""
    raw = Raw(ctx)
    said = wire.hello(ConnectionOptions()) if hello is None else hello
    async with messages.listen(address_of(ctx), 0, options=options) as listener:
        raw.conn = await cm.connect(
            raw.qp, *listener.local, private_data=said, on_init=raw.post_all, access=REMOTE
        )
        await raw.begin()
        server = await listener.accept(SOON)
    async with both(raw, server):
        yield raw, server


@asynccontextmanager
async def hostile_server(
    ctx: Context, options: ConnectionOptions | None = None, **accept: Any
) -> AsyncIterator[tuple[Raw, Connection]]:
    """And the client's end, which is ours."""
    async with answered(ctx, options, **accept) as (raw, connecting):
        beginning = asyncio.ensure_future(raw.let_begin())
        try:
            client = await connecting
            await beginning
        finally:
            beginning.cancel()
    async with both(raw, client):
        yield raw, client


@asynccontextmanager
async def answered(
    ctx: Context, options: ConnectionOptions | None = None, timeout: float = SOON, **accept: Any
) -> AsyncIterator[tuple[Raw, asyncio.Future[Connection]]]:
    """A server that has accepted, and says nothing; and the client's end, which waits."""
    raw = Raw(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        connecting = asyncio.ensure_future(
            messages.connect(*listener.local, options=options, timeout=timeout)
        )
        request = await listener.get_request()
        raw.conn = await request.accept(
            raw.qp,
            private_data=wire.hello(ConnectionOptions()),
            on_init=raw.post_all,
            access=REMOTE,
            **accept,
        )
        yield raw, connecting


@asynccontextmanager
async def both(raw: Raw, ours: Connection) -> AsyncIterator[None]:
    try:
        yield
    finally:
        ours.abort()
        await ours.aclose()
        await raw.close()
