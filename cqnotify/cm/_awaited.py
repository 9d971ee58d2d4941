# SPDX-License-Identifier: MIT
"""Connections for event loops; blocking.py has the same for threads."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._core import ClosedError
from ..enums import AccessFlags, QPType
from ..qp import QP
from . import _arguments as check
from ._ends import BaseConnection, BaseListener, BaseRequest, End, link_of
from ._hub import LoopHub
from ._link import Address, Link

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._link import Steps


async def run(link: Link, steps: Steps, timeout: float | None) -> Any:
    """Run steps, which end within the timeout."""
    end = None if timeout is None else time.monotonic() + timeout
    try:
        predicate = next(steps)
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if await link.bell.wait_for(predicate, left):
                predicate = steps.send(None)
            else:
                raise TimeoutError(f"{link.where}: no answer in time")
    except StopIteration as e:
        return e.value


async def run_or_close(link: Link, steps: Steps, timeout: float | None) -> Any:
    """The same; a link whose steps did not come to their end is closed."""
    try:
        return await run(link, steps, timeout)
    except BaseException:
        link.close()
        raise


async def addresses(host: object, port: int) -> list[Address]:
    """Resolve a name without stopping the event loop."""
    name = check.host_name(host)
    address = check.numeric(name, port)
    if address is not None:
        return [address]
    try:
        hub = LoopHub.of_running_loop()
        if hub.loop.asyncio is not None:
            loop = asyncio.get_running_loop()
            found: list[Any] = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        else:
            import trio

            found = await trio.socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as e:
        raise check.unresolved(name, e) from None
    return check.addresses_of(found)


class _Closes(End):
    """At the end of its `async with` block."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class Connection(_Closes, BaseConnection):
    """A connection that was made."""

    async def disconnect(self) -> None:
        """End the connection: the QP moves to ERR, which flushes what is posted, and the peer is
        told. `closed` waits for the peer's answer.

        Does nothing if it is over already. Wraps rdma_disconnect(3).
        """
        link_of(self).say_goodbye()

    async def closed(self, timeout: float | None = None) -> None:
        """Wait until the connection is over: the peer has disconnected, or answered our
        `disconnect`, its process has ended, or this end was closed.

        The death of the peer's host ends nothing: see `keepalive`. Raises TimeoutError.
        """
        check.check_timeout(timeout)
        await run(link_of(self), link_of(self).ended(), timeout)

    async def __aenter__(self) -> Self:
        return self


async def connect(
    qp: QP,
    host: str,
    port: int,
    *,
    private_data: bytes = b"",
    timeout: float | None = 10.0,
    source: str | None = None,
    access: AccessFlags | int = 0,
    ack_timeout: int | None = None,
    tos: int | None = None,
    retry_count: int = 6,
    rnr_retry_count: int = 7,
    responder_resources: int | None = None,
    initiator_depth: int | None = None,
) -> Connection:
    """Connect a QP to the program that listens on an address.

    qp: an RC or a UD QP in RESET, of the device that the address leads to. Its transitions are made
        here. A UD QP may be in RTS: it can have many peers.
    host, port: an IP address (of the link, with its interface: fe80::1%eth0) or a name.
    private_data: for the peer's program, which sees it in its request, padded with zeros: at most
        56 bytes, or 180 of datagrams.
    timeout: in seconds, until the connection is made; None is as long as the kernel tries.
    source: our own address, where several lead to the peer.
    access: what the peer may do to our memory through this QP; nothing by default.
    ack_timeout: how long the QP waits for an acknowledgement, `4.096 us * 2**ack_timeout`. By
        default it is the kernel's, some 2 s or less.
    tos: the type of service of the packets.
    retry_count: how often the QP sends again without an acknowledgement, 0 to 7. On rxe 7 is
        forever.
    rnr_retry_count: how often the peer sends again when we had no receive posted; 7 is forever. For
        our sends, what the peer gives as this in accept() holds.
    responder_resources, initiator_depth: how many RDMA reads and atomics can be in flight to us,
        and from us; by default as many as both devices can have.

    Raises ValueError for a QP that cannot be connected, or is of another device than that to which
    the address leads; TimeoutError; RejectedError, UnreachableError or another CMError where it
    fails; VerbsError for what the kernel refuses at once, such as an address without a route.
    Cancelling gives up at once. A QP that was not connected may have to be reset.

    Wraps rdma_resolve_addr(3), rdma_resolve_route(3), rdma_connect(3), rdma_init_qp_attr(3) and
    rdma_establish(3).
    """
    check.check_port(port, 1)
    options = check.connection_options(
        qp,
        private_data,
        check.CONNECT,
        timeout,
        access=access,
        ack_timeout=ack_timeout,
        tos=tos,
        retry_count=retry_count,
        rnr_retry_count=rnr_retry_count,
        responder_resources=responder_resources,
        initiator_depth=initiator_depth,
    )
    datagrams = qp.qp_type == QPType.UD
    end = None if timeout is None else time.monotonic() + timeout
    own = None if source is None else (await addresses(source, 0))[0]
    found = await addresses(host, port)
    for i, address in enumerate(found):
        link = Link(LoopHub.of_running_loop(), datagrams=datagrams)
        left = None if end is None else max(0.0, end - time.monotonic())
        link.resolve_within(left)
        try:
            event = await run_or_close(link, link.connect(qp, own, address, options), left)
            return Connection(link, qp, (event.private_data, event.parameters))
        except OSError:
            if i == len(found) - 1:
                raise
    raise AssertionError("there is an address")


class Request(BaseRequest):
    """A peer that wants to connect. It is rejected if it is dropped or closed."""

    async def accept(
        self,
        qp: QP,
        *,
        private_data: bytes = b"",
        timeout: float | None = 10.0,
        on_init: Callable[[QP], object] | None = None,
        access: AccessFlags | int = 0,
        ack_timeout: int | None = None,
        rnr_retry_count: int = 7,
        responder_resources: int | None = None,
        initiator_depth: int | None = None,
    ) -> Connection:
        """Accept the connection with a QP in RESET, of the device `device`.

        private_data: for the peer's program: at most 196 bytes, or 136 of datagrams.
        timeout: in seconds, until the peer has taken note; None waits for ever.
        on_init: is called with the QP in INIT, to post receives before the peer can send.

        The other parameters are those of `connect`.

        Raises PeerGoneError where the peer has given up, of which there is no earlier notice;
        ValueError for a QP that cannot be connected, and for a request that was answered already;
        TimeoutError. Wraps rdma_accept(3).
        """
        options = check.connection_options(
            qp,
            private_data,
            check.ACCEPT,
            timeout,
            access=access,
            ack_timeout=ack_timeout,
            rnr_retry_count=rnr_retry_count,
            responder_resources=responder_resources,
            initiator_depth=initiator_depth,
        )
        link = link_of(self)
        link.begin_answer("accepted", qp)
        await run_or_close(link, link.accept(qp, options, on_init), timeout)
        return Connection(link, qp, (self.private_data, self.parameters))

    async def reject(self, private_data: bytes = b"") -> None:
        """Reject the connection.

        private_data: for the peer's program, see RejectedError: at most 148 bytes.

        Wraps rdma_reject(3).
        """
        data = check.check_private_data(private_data, check.REJECT, self.is_datagrams)
        link_of(self).reject(data)


class Listener(_Closes, BaseListener):
    """Where peers connect to: `async with` starts it, `async for` gives its requests.

    Its `local` has the port that was chosen if 0 was asked for.
    """

    def __init__(self, make: Callable[[], Link], where: tuple[str, int], **how: Any) -> None:
        self._make, self._where, self._how = make, where, how

    async def __aenter__(self) -> Self:
        check.check_port(self._where[1])
        address = (await addresses(*self._where))[0]
        link = self._make()
        super().__init__(link)
        try:
            link.listen(address, **self._how)
        except BaseException:
            self.close()
            raise
        return self

    async def get_request(self, timeout: float | None = None) -> Request:
        """Wait for the next peer that wants to connect.

        Raises TimeoutError, and ClosedError once the listener was closed.
        """
        check.check_timeout(timeout)
        event = await run(link_of(self), link_of(self).request(), timeout)
        link = link_of(self)
        new = Link(link.hub, event.request, datagrams=link.datagrams)
        return Request(new, event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Request:
        try:
            return await self.get_request()
        except ClosedError:
            raise StopAsyncIteration from None


def listen(
    host: str,
    port: int,
    *,
    backlog: int = 64,
    datagrams: bool = False,
    reuse_address: bool = False,
    only_ipv6: bool = False,
) -> Listener:
    """Listen on an address, in an `async with` block.

    host: an IP address, or a name; "0.0.0.0" and "::" are all addresses, "::" those of IPv4, too.
    port: 0 chooses one, see `Listener.local`.
    backlog: how many requests may wait; more are rejected.
    datagrams: for UD QPs.
    reuse_address: whether others may listen on the port with another address.
    only_ipv6: whether "::" leaves out IPv4.

    Raises VerbsError (EADDRINUSE, EADDRNOTAVAIL) as the block is entered. Wraps rdma_bind_addr(3)
    and rdma_listen(3).
    """
    check.check_backlog(backlog)

    def make() -> Link:
        return Link(LoopHub.of_running_loop(), datagrams=datagrams)

    how = {"backlog": backlog, "reuse_address": reuse_address, "only_ipv6": only_ipv6}
    return Listener(make, (host, port), **how)
