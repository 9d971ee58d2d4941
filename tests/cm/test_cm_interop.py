# SPDX-License-Identifier: MIT
"""Connections with rdma-core's own programs, which are at either end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from cm_support import SOON, Side, address_of
from support import is_iwarp

from cqnotify import AH, MR, QP, AccessFlags, CompletionError, Context, QPType, WCStatus, cm
from cqnotify.aio import AsyncCQ

REMOTE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
INFO = struct.Struct("!QII")  # of rping: address, key and size of a buffer
SIZE = 64  # of rping's messages
UDADDY = 7174  # the port that it always has
GRH = 40
QKEY = 0x01234567  # of all datagrams of rdma_cm


@contextlib.asynccontextmanager
async def started(*command: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of rdma-core's programs. It ends by itself, and successfully."""
    program = shutil.which(str(command[0]))
    assert program is not None, command[0]
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, command[1:]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        yield process
        output, _ = await asyncio.wait_for(process.communicate(), SOON)
        assert process.returncode == 0, output.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def connect_patiently(
    side: Side, host: str, port: int, on_init: Callable[[QP], object] | None = None
) -> cm.Connection:
    """The program may not listen yet."""
    access = AccessFlags(0) if side.qp.qp_type == QPType.UD else REMOTE
    while True:
        try:
            return await cm.connect(side.qp, host, port, access=access, on_init=on_init)
        except cm.RejectedError:
            side.qp.close()
            side.renew()
            await asyncio.sleep(0.02)


class Pinger:
    """Our end of an rping: messages of 16 bytes say where a buffer is."""

    def __init__(self, ctx: Context) -> None:
        self.side = Side(ctx)
        self.info = MR(self.side.pd, 64)
        self.data = MR(self.side.pd, SIZE, access=REMOTE)

    async def tell(self, acq: AsyncCQ) -> None:
        self.info.write(INFO.pack(self.data.addr, self.data.rkey, SIZE))
        await acq.send(self.side.qp, self.info[: INFO.size])

    def post(self, _: object = None) -> None:
        self.side.qp.post_recv(self.info[32 : 32 + INFO.size], wr_id=5)

    async def hear(self, acq: AsyncCQ) -> tuple[int, int, int]:
        await acq.completion(5)
        where: tuple[int, int, int] = INFO.unpack(self.info.read(INFO.size, 32))
        self.post()
        return where


async def test_our_client_pings_rping(ctx: Context) -> None:
    host = address_of(ctx)
    async with started("rping", "-s", "-a", host, "-p", 7472, "-C", 5, "-S", SIZE, "-V"):
        ours = Pinger(ctx)
        conn = await connect_patiently(ours.side, host, 7472, ours.post)
        async with conn, AsyncCQ(ours.side.cq) as acq:
            for i in range(5):
                ping = bytes(65 + (i + j) % 26 for j in range(SIZE - 1)) + b"\0"
                ours.data.write(ping)
                await ours.tell(acq)  # it reads our buffer
                await ours.hear(acq)
                ours.data.write(bytes(SIZE))
                await ours.tell(acq)  # and writes the same into it
                await ours.hear(acq)
                assert ours.data.read(SIZE) == ping
            await conn.disconnect()


@contextlib.contextmanager
def last_word(conn: cm.Connection) -> Iterator[None]:
    """A peer that disconnects as soon as it has our message can be faster than the acknowledgement:
    then the send is flushed."""
    try:
        yield
    except CompletionError as e:
        if e.status != WCStatus.WR_FLUSH_ERR or not isinstance(conn.error, cm.DisconnectedError):
            raise


async def test_rping_pings_our_server(ctx: Context) -> None:
    host = address_of(ctx)
    ours = Pinger(ctx)
    async with cm.listen(host, 0) as listener:
        port = listener.local[1]
        async with started("rping", "-c", "-a", host, "-p", port, "-C", 5, "-S", SIZE, "-V"):
            request = await listener.get_request(SOON)
            conn = await request.accept(ours.side.qp, on_init=ours.post)
            async with conn, AsyncCQ(ours.side.cq) as acq:
                for _ in range(5):
                    addr, rkey, size = await ours.hear(acq)
                    await acq.read(ours.side.qp, ours.data[:size], addr, rkey)
                    await ours.tell(acq)
                    addr, rkey, size = await ours.hear(acq)
                    await acq.write(ours.side.qp, ours.data[:size], addr, rkey)
                    with last_word(conn):
                        await ours.tell(acq)
                await conn.wait_closed(SOON)
                assert isinstance(conn.error, cm.DisconnectedError)


def refuse_if_the_server_sends_first(ctx: Context) -> None:
    """As ucmatose's does. On iWARP the connection fails, if that is before the client knows."""
    if is_iwarp(ctx):
        pytest.skip("on iWARP the side that has connected sends first, and ucmatose's does not")


async def test_our_client_and_ucmatose(ctx: Context) -> None:
    """It sends ten messages, and awaits as many."""
    refuse_if_the_server_sends_first(ctx)
    host = address_of(ctx)
    async with started("ucmatose", "-b", host, "-p", 7475):
        side = Side(ctx)
        conn = await connect_patiently(side, host, 7475, side.post_ten)
        async with conn, AsyncCQ(side.cq) as acq:
            for i in range(10):
                assert (await acq.completion(i)).byte_len == 100
            with last_word(conn):
                for _ in range(10):
                    await acq.send(side.qp, side.mr[:100])
            await conn.wait_closed(SOON)


async def test_ucmatose_and_our_server(ctx: Context) -> None:
    refuse_if_the_server_sends_first(ctx)
    side = Side(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        host, port = listener.local
        async with started("ucmatose", "-s", host, "-p", port):
            request = await listener.get_request(SOON)
            conn = await request.accept(side.qp, on_init=side.post_ten)
            async with conn, AsyncCQ(side.cq) as acq:
                for _ in range(10):
                    await acq.send(side.qp, side.mr[:100])
                for i in range(10):
                    assert (await acq.completion(i)).byte_len == 100
                await conn.disconnect()
                await conn.wait_closed(SOON)


async def test_our_client_and_udaddy(ctx: Context) -> None:
    """It awaits ten datagrams that have our QP's number, and answers them."""
    host = address_of(ctx)
    async with started("udaddy", "-b", host):
        side = Side(ctx, QPType.UD)
        conn = await connect_patiently(side, host, UDADDY)
        async with conn, AsyncCQ(side.cq) as acq:
            side.post_ten()
            path: dict[str, Any] = {
                "remote_qpn": conn.remote_qpn,
                "remote_qkey": conn.remote_qkey,
            }
            for _ in range(10):
                imm = side.qp.qp_num
                ah = conn.make_ah(side.pd)
                await acq.send(side.qp, side.mr[3000:3100], ah=ah, imm_data=imm, **path)
            for i in range(10):
                assert (await acq.completion(i)).byte_len == 100 + GRH


async def test_udaddy_and_our_server(ctx: Context) -> None:
    side = Side(ctx, QPType.UD)
    host = address_of(ctx)
    async with (
        cm.listen(host, UDADDY, datagrams=True) as listener,
        started("udaddy", "-s", host),
    ):
        request = await listener.get_request(SOON)
        conn = await request.accept(side.qp, on_init=side.post_ten)
        async with conn, AsyncCQ(side.cq) as acq:
            wcs = [await acq.completion(i) for i in range(10)]
            ah = AH.from_wc(side.pd, wcs[0], side.mr.read(GRH))
            path: dict[str, Any] = {"ah": ah, "remote_qpn": wcs[0].src_qp, "remote_qkey": QKEY}
            for _ in range(10):
                await acq.send(side.qp, side.mr[3000:3100], **path)
