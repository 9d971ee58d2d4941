# SPDX-License-Identifier: MIT
"""Pairs of connections, and peers that keep to no protocol."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from support import DEADLINE
from support import address_of as address_of

from cqnotify import Context, messages
from cqnotify.messages import Connection, ConnectionOptions
from cqnotify.messages import _wire as wire
from cqnotify.messages._incoming import Reads
from cqnotify.messages._queue import CompletionHandler

SOON = DEADLINE
PATTERN = bytes(i * i % 251 for i in range(65521))
SMALL = ConnectionOptions(credits=2, eager=256, offers=1)  # what is used up soon


@asynccontextmanager
async def connected(
    ctx: Context, options: ConnectionOptions | None = None, peers: ConnectionOptions | None = None
) -> AsyncIterator[tuple[Connection, Connection]]:
    """A client, with the options, and the server's end; the peer's options are the same unless
    they are given."""
    async with messages.listen(address_of(ctx), 0, options=peers or options) as listener:
        client = await messages.connect(*listener.local, options=options)
        server = await listener.accept(SOON)
    try:
        yield client, server
    finally:
        client.abort()
        server.abort()
        await asyncio.gather(client.aclose(), server.aclose())


@functools.cache
def data_of(size: int) -> bytes:
    """No two places near each other look alike."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def eager_limit(conn: Connection, frames: int = 1) -> int:
    """The largest message of so many frames that is copied."""
    return conn._session.resources.options.eager - wire.data_size(frames, 0)


def took(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def receives_posted(conn: Connection) -> int:
    """With those that are posted again before the next frame, which the peer needs them for."""
    return conn._session.resources.qp.outstanding_recvs + conn._session._receives_to_post


async def reads(conn: Connection) -> None:
    """Until it reads a message from the peer's memory, which takes many turns of the loop."""
    while not conn._session.reader._in_flight:
        await asyncio.sleep(0)


def read_a_part(conn: Connection) -> Callable[[], None]:
    """Its next read is the last one, until what this returns is called."""
    session, queue, reader = conn._session, conn._session._queue, conn._session.reader
    post_reads, most = queue.post_reads, reader._max_in_flight

    def post(reads: Reads, done: CompletionHandler) -> None:
        post_reads(reads, done)
        reader._max_in_flight = 0

    def post_pending() -> None:
        queue.post_reads, reader._max_in_flight = post_reads, most  # type: ignore[method-assign]
        session.post_pending()

    queue.post_reads = post  # type: ignore[method-assign]
    return post_pending


def read_slowly(conn: Connection) -> None:
    """In many parts, of which each waits for the one before."""
    resources = conn._session.resources
    resources.device.max_msg_sz = 4096
    resources.max_reads = conn._session.reader._max_in_flight = 1
