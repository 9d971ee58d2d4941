# SPDX-License-Identifier: MIT
"""A connection by address whose port goes down and comes back: kept, it goes on, and others are
made after it. (One that ends while the port is down can keep the kernel from making any other.)"""

from __future__ import annotations

import asyncio

import pytest
from cm_support import SOON, Side, link_local
from support import ip_link, until, until_addresses_are_back

from cqnotify import Context, PortState, QPState, cm
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.not_on_iwarp("TCP has retries of its own")


async def connect(
    client: Side, server: Side, host: str, interface: str
) -> tuple[cm.Connection, cm.Connection]:
    """Over the wire, from the interface of the other device."""
    async with cm.listen(host, 0) as listener:
        address, port = host.partition("%")[0], listener.local[1]
        asking = asyncio.create_task(cm.connect(client.qp, f"{address}%{interface}", port))
        request = await listener.get_request(SOON)
        accepted = await request.accept(server.qp, on_init=server.post_recv)
        return await asking, accepted


async def ping(client: Side, server: Side) -> None:
    async with AsyncCQ(client.cq) as a, AsyncCQ(server.cq) as b:
        await a.send(client.qp, client.mr[:4])
        await asyncio.wait_for(b.completion(5), SOON)


async def test_a_connection_outlives_its_port_and_another_one_is_made_afterwards(
    ctx: Context, ctx2: Context, netdev: str
) -> None:
    host = link_local(ctx2)
    interface = next(entry.netdev for entry in ctx.query_gid_table() if entry.netdev)
    client, server = Side(ctx), Side(ctx2)
    conn, accepted = await connect(client, server, host, interface)
    ip_link(netdev, "down")
    until(lambda: ctx2.query_port().state == PortState.DOWN, "the port is down")
    ip_link(netdev, "up")
    contexts = (ctx, ctx2)
    until(lambda: all(one.query_port().state == PortState.ACTIVE for one in contexts), "it is back")
    for one in contexts:
        until_addresses_are_back(one)
    assert conn.error is accepted.error is None
    assert client.qp.state is server.qp.state is QPState.RTS
    await ping(client, server)
    await conn.aclose()
    await accepted.aclose()
    client, server = Side(ctx), Side(ctx2)
    conn, accepted = await connect(client, server, host, interface)
    async with conn, accepted:
        await ping(client, server)
