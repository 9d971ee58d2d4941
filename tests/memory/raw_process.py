# SPDX-License-Identifier: MIT
"""A process that speaks the protocol byte by byte, and need not keep to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support import DEADLINE, address_of

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
)
from cqnotify.aio import AsyncCQ
from cqnotify.memory import READ, Access, Descriptor
from cqnotify.memory import _wire as wire
from cqnotify.memory._connection import Connection
from cqnotify.memory._process import current
from cqnotify.memory._wire import Answer, Kind

RECEIVES = 64
SIZE = 4096
AT = RECEIVES * SIZE  # of the frame that is sent
ALL = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


class Raw:
    """A QP, and memory into which it receives, from which it sends, and which its peer may read."""

    def __init__(self, ctx: Context, receives: int = RECEIVES) -> None:
        self.id = os.urandom(16)
        self.receives = receives
        self.pd = PD(ctx)
        self.cq = CQ(ctx, 512, channel=CompletionChannel(ctx))
        self.qp = QP(self.pd, QPType.RC, send_cq=self.cq, max_send_wr=128, max_recv_wr=RECEIVES)
        self.mr = MR(self.pd, (RECEIVES + 2) * SIZE, access=ALL)
        self.acq = AsyncCQ(self.cq)
        self.conn: cm.Connection | None = None
        self.revoked: list[list[int]] = []  # tokens of frames that were passed over
        self._next = 0

    def post_all(self, qp: QP) -> None:
        for i in range(self.receives):
            qp.post_recv(self.mr[i * SIZE : (i + 1) * SIZE], wr_id=i)

    async def send(self, frame: bytes) -> None:
        self.mr.write(frame, AT)
        flags = SendFlags.SIGNALED | SendFlags.SOLICITED
        await self.acq.send(self.qp, self.mr[AT : AT + len(frame)], send_flags=flags)

    async def recv(self) -> bytes:
        """The next frame of the peer; its receive is posted again."""
        slot, self._next = self._next, (self._next + 1) % self.receives
        wc = await asyncio.wait_for(self.acq.completion(slot), DEADLINE)
        wc.raise_for_status()
        frame = self.mr.read(wc.byte_len or 0, slot * SIZE)
        self.qp.post_recv(self.mr[slot * SIZE : (slot + 1) * SIZE], wr_id=slot)
        return frame

    async def recv_kind(self, kind: Kind) -> bytes:
        while True:
            frame = await self.recv()
            found = wire.parse_kind(memoryview(frame))
            if found is kind:
                return frame
            if found is Kind.REVOKED:
                self.revoked.append(wire.parse_tokens(memoryview(frame)))

    async def open(self, *tokens: int) -> list[Answer]:
        """Has the peer grant tokens."""
        await self.send(wire.tokens_frame(Kind.OPEN, tokens))
        return wire.parse_grant(memoryview(await self.recv_kind(Kind.GRANT)))

    async def asked(self) -> list[int]:
        """The tokens that the peer opens."""
        frame = memoryview(await self.recv())
        assert wire.parse_kind(frame) is Kind.OPEN
        return wire.parse_tokens(frame)

    async def grant(self, *answers: Answer) -> None:
        await self.send(wire.grant_frame(answers))

    def answer(self, token: int, **other: int) -> Answer:
        """What grants the page behind those of the frames."""
        page = AT + SIZE
        return Answer(token, self.mr.addr + page, SIZE, self.mr.rkey, 0)._replace(**other)

    async def read(self, addr: int, nbytes: int, rkey: int) -> bytes:
        await self.acq.read(self.qp, self.mr[AT : AT + nbytes], addr, rkey)
        return self.mr.read(nbytes, AT)

    async def write(self, addr: int, data: bytes, rkey: int) -> None:
        self.mr.write(data, AT)
        await self.acq.write(self.qp, self.mr[AT : AT + len(data)], addr, rkey)

    async def close(self) -> None:
        self.acq.close()
        if self.conn is not None:
            await self.conn.aclose()
        for thing in (self.qp, self.mr, self.cq, self.cq.channel, self.pd):
            assert thing is not None
            thing.close()


@asynccontextmanager
async def raw_client(
    ctx: Context, hello: bytes | None = None, receives: int = RECEIVES
) -> AsyncIterator[tuple[Raw, Connection]]:
    """One that has connected to this process, which exposes something; and our end of that."""
    raw, process = Raw(ctx, receives), current()
    before = set(process._all)
    try:
        raw.conn = await cm.connect(
            raw.qp,
            process.table.hosts[0],
            process.table.port,
            private_data=wire.hello(raw.id, process.id) if hello is None else hello,
            on_init=raw.post_all,
            access=ALL,
        )
        while raw.id.hex() not in process.connections:
            await asyncio.sleep(0.001)
        (ours,) = set(process._all) - before
        yield raw, ours
    finally:
        await raw.close()


class RawServer:
    """A process that listens, and answers as the test wants."""

    def __init__(self, ctx: Context, listener: cm.Listener) -> None:
        self.ctx, self._listener = ctx, listener
        self.id = os.urandom(16)
        self.raws: list[Raw] = []

    def descriptor(self, token: int = 1, length: int = SIZE, access: Access = READ) -> Descriptor:
        host, port = self._listener.local
        return Descriptor((host,), port, self.id.hex(), token, length, access)

    async def request(self) -> cm.Request:
        return await self._listener.get_request(DEADLINE)

    async def accept(self, hello: bytes | None = None, request: Any = None) -> Raw:
        raw = Raw(self.ctx)
        self.raws.append(raw)
        if request is None:
            request = await self.request()
        peer, _ = wire.parse_hello(request.private_data)
        raw.conn = await request.accept(
            raw.qp,
            private_data=wire.hello(self.id, peer) if hello is None else hello,
            on_init=raw.post_all,
            access=ALL,
        )
        return raw


@asynccontextmanager
async def raw_server(ctx: Context) -> AsyncIterator[RawServer]:
    async with cm.listen(address_of(ctx), 0) as listener:
        server = RawServer(ctx, listener)
        try:
            yield server
        finally:
            for raw in server.raws:
                await raw.close()
