# SPDX-License-Identifier: MIT
"""Pairs of comms, and listeners that need no Dask behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from distributed.comm import connect, listen
from support import DEADLINE, address_of

from cqnotify import Context
from cqnotify.dask import Comm, Listener

SOON = DEADLINE


def url_of(ctx: Context, port: int = 0) -> str:
    host = address_of(ctx)
    return f"rdma://[{host}]:{port}" if ":" in host else f"rdma://{host}:{port}"


@asynccontextmanager
async def listening(
    ctx: Context, url: str = "", **options: Any
) -> AsyncIterator[tuple[Listener, asyncio.Queue[Comm]]]:
    """A listener, and the comms of those that have connected."""
    accepted: asyncio.Queue[Comm] = asyncio.Queue()
    async with listen(url or url_of(ctx), accepted.put, **options) as listener:
        yield listener, accepted


@asynccontextmanager
async def connected(ctx: Context, **options: Any) -> AsyncIterator[tuple[Comm, Comm]]:
    """The end that has connected, and the other one."""
    async with listening(ctx, **options) as (listener, accepted):
        client = await connect(listener.contact_address, **options)
        server = await asyncio.wait_for(accepted.get(), SOON)
    try:
        yield client, server
    finally:
        client.abort()
        server.abort()
