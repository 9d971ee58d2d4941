# SPDX-License-Identifier: MIT
"""What users of cqnotify.messages await has the types that are promised; see test_types.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from types_support import DEADLINE

from cqnotify import Context, messages
from cqnotify.cm import local_addresses

if TYPE_CHECKING:
    from typing import assert_type
else:
    from runtime_types import assert_type


async def test_messages(rdma_context: Context) -> None:
    async with messages.listen(local_addresses(rdma_context)[0], 0) as listener:
        client = await messages.connect(*listener.local)
        server = await listener.accept(DEADLINE)
        assert_type(server, messages.Connection)
        async with client, server:
            large = bytearray(100_000)
            sending = asyncio.ensure_future(client.send(b"small", large))
            assert_type(await server.recv(timeout=DEADLINE), list[bytearray | memoryview])
            await sending
            sending = asyncio.ensure_future(client.send(b"small", large))
            async for frames in server:
                assert_type(frames, list[bytearray | memoryview])
                break
            await sending
            assert_type(server.stats, messages.Stats)
