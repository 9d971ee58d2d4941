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

The files, from above:
    _endpoints.py       connect(), listen() and Listener: the handshake of both ends
    _connection.py      Connection: send(), recv(), aclose()
    _session.py         ends and failures; writes CLOSE and ERROR frames
    _sender.py          messages to offer, if a frame takes long to register
    _inbox.py           connections that were made, and the tasks that wait for one
    _incoming.py        where the frames of a message go; cuts an offered one into pieces to read
    _rdma_read.py       posts these reads, several at a time
    _liveness.py        decides when the peer's device is probed while this end waits for it
    _flow.py            credits
    _resources.py       the verbs objects of a connection; those that connections share
    _queue.py           the send queue, for what is rare
    _memory.py          the registrations that the messages of a connection use
    _pinning.py         what threads register for a connection
    _wire.py            the format of hellos and frames
    _options.py         ConnectionOptions, and their limits
    _errors.py          the exceptions
    _event_loop.py      waiting in the loop that an object belongs to
What is frequent is in csrc/messages: frames, credits, sending, waiting, offering and reading.
The keepalive of an idle connection is that of rdma_cm: cqnotify/cm/_keepalive.py.
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
