# SPDX-License-Identifier: MIT
"""Ends of connections by rdma_cm, and where they listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support import DEADLINE, is_iwarp, until
from support import address_of as address_of

from cqnotify import CQ, MR, PD, QP, AccessFlags, CompletionChannel, Context, QPState, QPType, cm
from cqnotify.cm import blocking
from cqnotify.cm._event_reader import LoopReader, ThreadReader

SOON = DEADLINE  # a peer's process, too, has begun by then
GIVEN_UP = 20.0  # when an attempt has: siw takes 10 s for one that the peer does not answer
NOBODY = "10.99.0.77"  # an address of the same network that no host has


def link_local(ctx: Context, interface: str | None = None) -> str:
    """The device's address of the link, by its own interface, or as it is reached by another."""
    for host in cm.local_addresses(ctx):
        address, _, own = host.partition("%")
        if own:
            return f"{address}%{interface or own}"
    raise AssertionError("the device has no address of the link")


def padded(ctx: Context, data: bytes, size: int) -> bytes:
    """As private data arrives: of iWARP with its own length."""
    return data if is_iwarp(ctx) else data.ljust(size, b"\0")


class Side:
    """What one end of a connection is made of."""

    def __init__(self, ctx: Context, qp_type: QPType = QPType.RC) -> None:
        self.pd = PD(ctx)
        self.qp_type = qp_type
        self.renew()
        self.mr = MR(self.pd, 4096, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)

    def renew(self) -> None:
        """With another QP, and a CQ that knows nothing of the former."""
        self.cq = CQ(self.pd.context, 64, channel=CompletionChannel(self.pd.context))
        self.qp = QP(self.pd, self.qp_type, send_cq=self.cq)

    def post_recv(self, qp: QP | None = None) -> None:
        """With a wr_id of 5. Fits `on_init`."""
        self.qp.post_recv(self.mr[2048:4096], wr_id=5)

    def post_ten(self, qp: QP | None = None) -> None:
        """Their wr_ids are 0 to 9. Fits `on_init`."""
        for i in range(10):
            self.qp.post_recv(self.mr[200 * i : 200 * (i + 1)], wr_id=i)

    def check_flushed(self) -> None:
        """The QP has failed, or does so now, and what was posted comes back."""
        until(lambda: self.qp.state == QPState.ERR, "the QP fails")
        found: list[Any] = []
        until(lambda: found.extend(self.cq.poll(16)) or bool(found), "the receive is flushed")
        assert [(wc.wr_id, wc.status.name) for wc in found] == [(5, "WR_FLUSH_ERR")]


def asleep() -> int:
    """How many calls of cqnotify.cm are asleep, in this thread's event loop and in threads: what
    happens from now on must wake them."""
    readers: list[Any] = [*LoopReader._readers.values(), *filter(None, [ThreadReader._reader])]
    links = [link for reader in readers for link in reader.channel.conns]
    return sum(link.asleep for link in links) + sum(
        len(link.notifier._condition._waiters) for link in links if link.notifier is not None
    )


@asynccontextmanager
async def connected(
    ctx: Context, **options: Any
) -> AsyncIterator[tuple[Side, cm.Connection, Side, cm.Connection]]:
    """A client and a server, each with a receive posted."""
    client, server = Side(ctx), Side(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(client.qp, *listener.local, **options))
        request = await listener.get_request(SOON)
        accepted = await request.accept(server.qp, on_init=server.post_recv)
        conn = await asking
    client.post_recv()
    async with conn, accepted:
        yield client, conn, server, accepted


async def check_gone(ctx: Context, request: cm.Request) -> None:
    """Its client has given up. On iWARP that may be noticed when the connection is made."""
    later = (cm.DisconnectedError,) if is_iwarp(ctx) else ()
    with pytest.raises((cm.RequestExpiredError, *later)):
        conn = await request.accept(Side(ctx).qp)
        await conn.wait_closed(SOON)
        assert conn.error is not None
        raise conn.error


def serve_once(listener: blocking.Listener, side: Side, into: list[Any]) -> None:
    """For a thread: accepts one connection."""
    into.append(listener.get_request(SOON).accept(side.qp, on_init=side.post_recv))
