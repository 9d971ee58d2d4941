# SPDX-License-Identifier: MIT
"""A connection, as Dask uses it: objects in, objects out."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Any, Final, NoReturn

from .. import ClosedError
from ..messages import Connection, MessagesError
from ._distributed import BaseComm, CommClosedError, from_frames, host_array, to_frames

logger: Final = logging.getLogger(__name__)

CLOSE_TIMEOUT: Final = 10.0  # seconds, for the peer to read what it was offered


def _drop(conn: Connection, what: str) -> None:
    """Dask has forgotten a comm; nothing waits for it any more."""
    if not conn.closed:
        logger.warning("Closing a dangling %s", what)
    conn.abort()


class Comm(BaseComm):
    """One end of a connection. A task reads and a task writes; as with TCP, `write()` returns when
    the message is under way, and a `read()` that is cancelled aborts the connection.
    """

    def __init__(
        self,
        conn: Connection,
        local: str,
        peer: str,
        *,
        deserialize: bool = True,
        allow_offload: bool = True,
    ) -> None:
        """local, peer: addresses, rdma://host:port."""
        self._conn = conn
        self._local_addr, self._peer_addr = local, peer
        self._is_closed = False
        self._failure: Exception | None = None  # of a message that was under way
        self._sending: set[asyncio.Task[None]] = set()
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(
            self, _drop, conn, repr(conn)
        )
        self._finalizer.atexit = False
        super().__init__(deserialize=deserialize)
        self.allow_offload = allow_offload

    @property
    def local_address(self) -> str:
        """Our own address, with rdma://."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The peer's address, with rdma://."""
        return self._peer_addr

    @property
    def same_host(self) -> bool:
        """Whether the peer is on this host, by the addresses that they are connected by: Dask would
        ask the name servers here."""
        return self._conn.local[0] == self._conn.peer[0]

    def closed(self) -> bool:
        """Return whether it is over, for whatever reason."""
        return self._is_closed or self._conn.closed

    def _raise_closed(self, error: Exception) -> NoReturn:
        why = self._failure or error
        raise CommClosedError(f"in {self!r}: {type(why).__name__}: {why}") from why

    # ---- writing ----

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send an object; return how many bytes it takes."""
        if self.closed():
            self._raise_closed(self._conn.error or ClosedError("this end has closed it"))
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
        )
        task = asyncio.ensure_future(self._conn.send(*frames))
        self._sending.add(task)
        # The task has begun when this one goes on, so the order is that of the calls. A small
        # message is sent then; Dask does not wait until the peer has read a large one.
        try:
            await asyncio.sleep(0)
        finally:
            if not task.done():
                task.add_done_callback(self._sent)
        if task.done():
            self._sending.discard(task)
            self._check_sent(task)
        return sum(memoryview(frame).nbytes for frame in frames)

    def _check_sent(self, task: asyncio.Task[None]) -> None:
        try:
            task.result()
        except (MessagesError, ClosedError) as e:
            self._raise_closed(e)

    def _sent(self, task: asyncio.Task[None]) -> None:
        """A message that was under way has arrived, or never will."""
        self._sending.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self.closed():
            # Those that follow it must not arrive without it.
            logger.error("A message was not sent, so %r is aborted: %s", self, error)
            self._failure = error
            self.abort()

    # ---- reading ----

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next object."""
        if self._is_closed:
            self._raise_closed(ClosedError("this end has closed it"))
        try:
            # Each frame has memory of its own, which is free when its array is.
            frames = await self._conn.recv(allocate=host_array)
        except (MessagesError, ClosedError) as e:
            self._raise_closed(e)
        except BaseException:
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as e:
            self.abort()
            raise CommClosedError(f"in {self!r}: the message is truncated") from e

    # ---- ends ----

    async def close(self) -> None:
        """Close it when what was written has arrived; what the peer does not read within
        10 s is given up."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._conn.aclose(CLOSE_TIMEOUT)
        except (TimeoutError, OSError, ClosedError) as e:
            logger.debug("%r was not closed gracefully: %s", self, e)

    def abort(self) -> None:
        """End it at once: the peer loses the connection."""
        self._is_closed = True
        self._conn.abort()
