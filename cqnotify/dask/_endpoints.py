# SPDX-License-Identifier: MIT
"""Making connections: what listens, and what connects."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from .. import messages
from ._addresses import (
    ANY,
    PREFIX,
    addresses,
    check_security,
    means_in_use,
    own_address,
    parse,
    url,
    where_to_listen,
)
from ._comm import Comm
from ._distributed import BaseConnector, BaseListener, CommClosedError, config
from ._options import options

logger: Final = logging.getLogger(__name__)


class Connector(BaseConnector):
    """Makes a connection to a listener."""

    def __init__(self) -> None:
        self._lookup: asyncio.Task[list[str]] | None = None

    async def connect(self, address: str, deserialize: bool = True, **given: Any) -> Comm:
        """Connect to rdma://address. The caller sets the time for it, and tries again."""
        check_security(address, given)
        host, port = parse(address)
        hosts = await self._addresses(address, host)
        conn = await messages.connect(hosts, port, timeout=None, options=options())
        return Comm(conn, url(*conn.local), PREFIX + address, deserialize=deserialize)

    async def _addresses(self, address: str, host: str) -> list[str]:
        """Asked for once, though the name servers may take longer than an attempt may."""
        if self._lookup is None:
            self._lookup = asyncio.ensure_future(addresses(address, host))
            self._lookup.add_done_callback(_seen)
        try:
            return await asyncio.shield(self._lookup)
        except OSError:
            self._lookup = None  # perhaps they know it later
            raise


def _seen(lookup: asyncio.Task[list[str]]) -> None:
    """Perhaps nobody waits for it any more."""
    if not lookup.cancelled():
        lookup.exception()


class Listener(BaseListener):
    """Where peers connect to: it hands each connection to Dask, after the handshake of both."""

    prefix: Final = PREFIX  # a worker shows it

    def __init__(
        self,
        loc: str,
        handle_comm: Callable[[Comm], Any],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **given: Any,
    ) -> None:
        super().__init__()
        check_security(loc, given)
        self._loc = loc
        self._host, self._port = where_to_listen(loc, default_port)
        self._default_host = default_host
        self._handle_comm = handle_comm
        self._deserialize, self._allow_offload = deserialize, allow_offload
        self._listener: messages.Listener | None = None
        self._local: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- addresses ----

    def get_host_port(self) -> tuple[str, int]:
        """Return what it listens on. ValueError before the start."""
        if self._local is None:
            raise ValueError("this listener was not started")
        return self._local

    @property
    def listen_address(self) -> str:
        """What it listens on, with rdma://."""
        return url(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        """The address to which peers connect, with rdma://."""
        host, port = self.get_host_port()
        if host in ANY:
            host = self._default_host or own_address(host)
        return url(host, port)

    # ---- connections ----

    async def start(self) -> None:
        """Begin to listen. OSError (EADDRINUSE, EADDRNOTAVAIL) if that is not possible."""
        host = (await addresses(self._loc, self._host))[0]
        listener = messages.listen(
            host or "0.0.0.0",
            self._port,
            options=options(),
            backlog=int(config.get("distributed.comm.socket-backlog")),
        )
        try:
            await listener.__aenter__()
        except OSError as e:
            if not means_in_use(e, host):
                raise
            where = url(host, self._port)
            raise OSError(errno.EADDRINUSE, f"{where}: the port is in use ({e})") from e
        self._listener, self._local = listener, listener.local
        self._run(self._serve(listener))

    def stop(self) -> None:
        """Listen no more. The connections that there are go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()  # which ends _serve()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, listener: messages.Listener) -> None:
        try:
            async for conn in listener:
                self._run(self._handshake(conn))
        except OSError:
            logger.exception("Nobody can connect to %s any more", self.listen_address)

    async def _handshake(self, conn: messages.Connection) -> None:
        peer = url(*conn.peer)
        comm = Comm(
            conn,
            url(*conn.local),
            peer,
            deserialize=self._deserialize,
            allow_offload=self._allow_offload,
        )
        if self._listener is None:
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", peer)
            return
        except Exception:  # it speaks our protocol, but not Dask's
            logger.exception("Connection from %s is refused", peer)
            comm.abort()
            return
        handled = self._handle_comm(comm)
        if inspect.isawaitable(handled):
            await handled
