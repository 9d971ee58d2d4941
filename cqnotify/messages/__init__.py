# SPDX-License-Identifier: MIT
"""Messages of any size between two programs, for asyncio (uvloop, too), over cqnotify.cm.

    async with messages.listen("10.99.0.1", 7471) as listener:
        async for conn in listener:
            async for frames in conn:
                await conn.send(b"thanks for", *frames)

    conn = await messages.connect("10.99.0.1", 7471)
    async with conn:
        await conn.send(b"a header", array)
        header, data = await conn.recv()

A message is a list of frames. A small one is copied, and sent into memory that the receiver has
ready; a large one is read by the receiver, out of the sender's buffers into its own, and nobody
copies it.
"""

from ._connection import Connection, Stats
from ._endpoints import Listener, connect, listen
from ._errors import (
    ConnectionLostError,
    MessagesError,
    PeerClosedError,
    ProtocolError,
    RefusedError,
)
from ._memory import MemoryStats
from ._options import ConnectionOptions

__all__ = [
    "Connection",
    "ConnectionLostError",
    "ConnectionOptions",
    "Listener",
    "MemoryStats",
    "MessagesError",
    "PeerClosedError",
    "ProtocolError",
    "RefusedError",
    "Stats",
    "connect",
    "listen",
]
