# SPDX-License-Identifier: MIT
"""Ends of connections by rdma_cm, and where they listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support import until

from cqnotify import CQ, MR, PD, QP, AccessFlags, CompletionChannel, Context, QPState, QPType, cm
from cqnotify.cm import blocking

SOON = 10.0
NOBODY = "10.99.0.77"  # an address of the same network that no host has


def address_of(ctx: Context) -> str:
    """The IPv4 address that leads to the device of this context."""
    for entry in ctx.gid_table():
        if entry.gid.ipv4_mapped is not None:
            return str(entry.gid.ipv4_mapped)
    raise AssertionError("the device has no IPv4 address")


class Side:
    """What one end of a connection is made of."""

    def __init__(self, ctx: Context, qp_type: QPType = QPType.RC) -> None:
        self.pd = PD(ctx)
        self.cq = CQ(ctx, 64, channel=CompletionChannel(ctx))
        self.qp = QP(self.pd, qp_type, send_cq=self.cq)
        self.mr = MR(self.pd, 4096, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)

    def post_recv(self, qp: QP | None = None) -> None:
        """With a wr_id of 5. Fits `on_init`."""
        self.qp.post_recv(self.mr[2048:4096], wr_id=5)

    def check_flushed(self) -> None:
        """The QP has failed, and what was posted has come back."""
        assert self.qp.state == QPState.ERR
        found: list[Any] = []
        until(lambda: found.extend(self.cq.poll(16)) or bool(found), "the receive is flushed")
        assert [(wc.wr_id, wc.status.name) for wc in found] == [(5, "WR_FLUSH_ERR")]


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


def serve_once(listener: blocking.Listener, side: Side, into: list[Any]) -> None:
    """For a thread: accepts one connection."""
    into.append(listener.get_request(SOON).accept(side.qp, on_init=side.post_recv))
