# SPDX-License-Identifier: MIT
"""Connections for event loops; blocking.py has the same for threads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._core import ClosedError
from .._several import none_works, share_of
from .._timeouts import deadline, left_until
from ..enums import AccessFlags
from ..qp import QP
from . import _arguments as check
from ._base import (
    BaseConnection,
    BaseListener,
    BaseMulticastGroup,
    BaseRequest,
    HasLink,
    Resolved,
    event_of,
    resolved_by,
)
from ._event_reader import LoopReader, in_asyncio
from ._link import FAILS, REQUEST, Address, Link

if TYPE_CHECKING:
    from typing import Self

    from ._link import AwaitedSteps


async def addresses(host: object, port: int, end: float | None = None) -> list[Address]:
    """Resolve a name without stopping the event loop; `end`: until when, by time.monotonic()."""
    known = check.numeric(host, port)
    if known is not None:
        return [known]
    name = check.host_name(host)
    try:
        return check.addresses_of(await within(end, getaddrinfo(name, port)))
    except socket.gaierror as e:
        raise check.unresolved(name, e) from None
    except TimeoutError:  # the same from Python 3.11 on
        raise TimeoutError(f"{name!r} was not resolved in time") from None


async def getaddrinfo(name: str, port: int) -> list[Any]:
    if in_asyncio():
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    import trio

    return await trio.socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)


async def within(end: float | None, call: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    left = left_until(end)
    if in_asyncio():
        return await asyncio.wait_for(call, left)
    import trio

    with trio.move_on_after(float("inf") if left is None else left):
        return await call
    raise TimeoutError


def new_link(datagrams: bool, end: float | None = None) -> Link:
    link = LoopReader.of_running_loop().new_link(None, datagrams)
    link.end = end
    return link


async def of_the_first(
    found: list[Address],
    end: float | None,
    datagrams: bool,
    steps: Callable[..., AwaitedSteps],
) -> tuple[Link, Any, Address]:
    """Run steps for one address after the other until they succeed; each has a link of its own,
    and a share of the time."""
    failures: list[tuple[str, Exception]] = []
    for address in found:
        link = new_link(datagrams, share_of(end, len(found) - len(failures)))
        try:
            return link, await steps(link, peer=address), address
        except FAILS as e:
            link.close()
            failures.append((address[0], e))
        except BaseException:
            link.close()
            raise
    raise none_works(failures)


class _Closes(HasLink):
    """An object that is closed at the end of its `async with` block."""

    async def aclose(self) -> None:
        """Close it in a later turn of the event loop, if this one has closed many: the kernel takes
        long to close a connection, and closing hundreds at once would block the loop."""
        await self._link.channel.throttled(self._link.close)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class Connection(_Closes, BaseConnection):
    """A connection that was made."""

    async def disconnect(self) -> None:
        """End the connection: move the QP to ERR, which flushes its work requests, and notify the
        peer. `wait_closed` waits for the peer's answer.

        Does nothing if the connection is over already. Wraps rdma_disconnect(3).
        """
        await self._link.channel.throttled(self._link.disconnect)

    async def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the connection is over: the peer has disconnected, or has answered our
        `disconnect`, its process has ended, or this end was closed.

        timeout: in seconds; None waits for ever.

        The death of the peer's host is noticed only with `keepalive`. Raises TimeoutError.
        """
        await self._link.over(deadline(timeout))

    async def __aenter__(self) -> Self:
        return self


async def connect(
    qp: QP,
    host: str,
    port: int,
    *,
    private_data: bytes = b"",
    timeout: float | None = 10.0,
    on_init: Callable[[QP], object] | None = None,
    source: str | None = None,
    access: AccessFlags | int = AccessFlags.REMOTE_WRITE,
    ack_timeout: int | None = None,
    tos: int | None = None,
    retry_count: int = 6,
    rnr_retry_count: int = 7,
    responder_resources: int | None = None,
    initiator_depth: int | None = None,
    keepalive: float | None = None,
) -> Connection:
    """Connect a QP to the program that listens on an address.

    qp: an RC or a UD QP in RESET, on the device to which the address leads; this call makes its
        transitions. A UD QP may be in RTS, since it can have many peers. A QP of an iWARP device
        must be new.
    host: an IP address (a link-local one with its interface: fe80::1%eth0) or a name, whose
        addresses that lead to the QP's device are tried one after the other, each with its share of
        the time; the error has the message of each.
    port: 1 to 65535.
    private_data: for the peer's program, which gets it with the request, padded with zeros: at most
        56 bytes, or 180 with datagrams; on iWARP 251, without padding.
    timeout: the seconds until the connection is established; with None the kernel's own limits.
    on_init: called with the QP in INIT, to post receives before the peer can send. On iWARP a
        message without a receive ends the connection.
    source: our own address, if several lead to the peer.
    access: what the peer may do to our memory through this QP, if the memory region allows it, too.
        Keepalives of the peer need REMOTE_WRITE, the default, and write nothing.
    ack_timeout: how long the QP waits for an acknowledgement, `4.096 us * 2**ack_timeout`, 0 to 31.
        By default the kernel chooses, 0.5 to 2 s; with `keepalive` it is so short that the QP gives
        up a send within half of that time.
    tos: the type of service of the packets, 0 to 255.
    retry_count: how often the QP sends again without an acknowledgement, 0 to 7. On rxe 7 is
        forever.
    rnr_retry_count: how often the peer sends again when we had no receive posted, 0 to 7; 7 is
        forever. Our sends are repeated as often as the peer's accept() says.
    responder_resources, initiator_depth: how many RDMA reads and atomics can be in flight to us,
        and from us, 0 to the device's max_qp_rd_atom and max_qp_init_rd_atom; by default as many as
        both devices support. From us there can be no more than the peer's `responder_resources`; if
        these are 0, posting refuses them (ValueError).
    keepalive: in seconds, for RC: the connection ends with an UnreachableError when the peer's
        device has given no sign of life for this time. While nothing is sent, an empty RDMA write,
        which takes one place in the send queue, probes it every half of the time. By default there
        are no probes, and only a send finds out that the peer's host is dead.

    Raises ValueError for a QP that cannot be connected, or that is on another device than the one
    to which the address leads; TimeoutError; RejectedError, UnreachableError or another CMError if
    connecting fails; VerbsError for what the kernel refuses at once, such as an address without a
    route; OSError if librdmacm is missing. A task that is cancelled gives up at once. After a
    failure the QP may have to be reset.

    Wraps rdma_resolve_addr(3), rdma_resolve_route(3), rdma_connect(3), rdma_init_qp_attr(3) and
    rdma_establish(3).
    """
    check.check_port(port, 1)
    counts = retry_count, rnr_retry_count, responder_resources, initiator_depth
    given = (access, ack_timeout, tos, *counts, keepalive)
    options = check.connection_options(qp, private_data, check.CONNECT, timeout, given)
    end = deadline(timeout)
    own = None if source is None else check.own(await addresses(source, 0, end))
    datagrams = check.is_datagrams(qp)
    address = check.numeric(host, port)
    if address is None:
        found = await addresses(host, port, end)
        steps = partial(Link.connect, qp=qp, source=own, options=options, on_init=on_init)
        link, event, _ = await of_the_first(found, end, datagrams, steps)
        return Connection(link, qp, event)
    link = new_link(datagrams, end)
    try:
        event = await link.connect(qp, own, address, options, on_init)
    except BaseException:
        link.close()
        raise
    return Connection(link, qp, event)


async def lookup(host: str, *, timeout: float | None = 10.0) -> list[str]:
    """Return the addresses of a name, in the order in which to try them.

    host: a name, or an IP address (a link-local one with its interface: fe80::1%eth0), which is
        returned as it is.
    timeout: in seconds; with None as long as the name servers take.

    For a client that makes a QP for each address, on the device that `resolve` returns. Raises
    socket.gaierror and TimeoutError. Wraps getaddrinfo(3), which is called in a thread.
    """
    return [address for address, _ in await addresses(host, 0, deadline(timeout))]


async def resolve(
    host: str, *, timeout: float | None = 10.0, source: str | None = None
) -> Resolved:
    """Find out which device leads to an address, for a client that makes its QP on that device.

    host: an IP address or a name, as in `connect`. It does not matter whether a program listens.
    timeout: in seconds; with None the kernel's own limits.
    source: our own address, if several lead to the peer.

    Raises UnreachableError if no host has the address; VerbsError for what the kernel refuses at
    once, such as an address without a route; TimeoutError. Wraps rdma_resolve_addr(3) and
    rdma_resolve_route(3).
    """
    check.check_timeout(timeout)
    end = deadline(timeout)
    own = None if source is None else check.own(await addresses(source, 0, end))
    link, _, address = await of_the_first(
        await addresses(host, 0, end), end, False, lambda link, peer: link.find(own, peer)
    )
    return resolved_by(link, address)


class MulticastGroup(_Closes, BaseMulticastGroup):
    """The membership of a QP in a multicast group, until it is closed."""

    async def __aenter__(self) -> Self:
        return self


async def join_multicast(
    qp: QP, group: str, *, source: str | None = None, timeout: float | None = 10.0
) -> MulticastGroup:
    """Make a QP a member of a multicast group: it receives all datagrams for it, our own, too.

    qp: a UD QP in RESET, or in RTS with the Q_Key of the group, on the device that leads there.
    group: a multicast address (a link-local one with its interface: ff12::c0:1%eth0). On RoCE the
        kernel joins only groups of IPv4.
    source: our own address, if no route leads to the group, or several do.
    timeout: in seconds; with None the kernel's own limits.

    Raises ValueError for a QP that cannot be a member, and for an address that is not a group's;
    TimeoutError; CMError if joining fails; VerbsError for what the kernel refuses at once.

    Wraps rdma_join_multicast(3); closing it, rdma_leave_multicast(3).
    """
    check.check_member(qp, timeout)
    end = deadline(timeout)
    own = None if source is None else check.own(await addresses(source, 0, end))
    address = (await addresses(group, 0, end))[0]
    check.check_group(address[0])
    link, event, _ = await of_the_first(
        [address], end, True, lambda link, peer: link.join_multicast(qp, own, peer)
    )
    return MulticastGroup(link, qp, event)


class Request(BaseRequest):
    """A peer that wants to connect. It is rejected if it is dropped or closed."""

    async def accept(
        self,
        qp: QP,
        *,
        private_data: bytes = b"",
        timeout: float | None = 10.0,
        on_init: Callable[[QP], object] | None = None,
        access: AccessFlags | int = AccessFlags.REMOTE_WRITE,
        ack_timeout: int | None = None,
        rnr_retry_count: int = 7,
        responder_resources: int | None = None,
        initiator_depth: int | None = None,
        keepalive: float | None = None,
    ) -> Connection:
        """Accept the connection with a QP in RESET, on the device that the request names.

        private_data: for the peer's program: at most 196 bytes, or 136 with datagrams; on iWARP
            251.
        timeout: the seconds until the peer has confirmed the connection; None waits for ever.
        on_init: called with the QP in INIT, to post receives before the peer can send.

        The other parameters are those of `cqnotify.cm.connect`.

        Raises RequestExpiredError if the peer has given up, which nothing reports earlier;
        VerbsError (EMSGSIZE) if the MTU of the peer's port is larger than that of ours (the request
        can still be rejected then); ValueError for a QP that cannot be connected, and for a request
        that was answered already; TimeoutError. Wraps rdma_accept(3).
        """
        event = event_of(self)
        counts = event.retry_count, rnr_retry_count, responder_resources, initiator_depth
        given = (access, ack_timeout, None, *counts, keepalive)
        options = check.connection_options(qp, private_data, check.ACCEPT, timeout, given)
        link = self._link
        link.begin_answer("accepted", qp)
        link.end = deadline(timeout)
        try:
            await link.accept(qp, options, on_init)
        except BaseException:
            link.close()
            raise
        return Connection(link, qp, event)

    async def reject(self, private_data: bytes = b"") -> None:
        """Reject the connection.

        private_data: for the peer's program, see RejectedError: at most 148 bytes, or 136 with
            datagrams; 251 on iWARP.

        Without `await` nothing is sent: the peer is rejected when the request is dropped or closed,
        without `private_data`, and Python warns that the coroutine was never awaited. Wraps
        rdma_reject(3).
        """
        link = self._link
        link.reject(check.rejection(private_data, link.id.is_iwarp, self.is_datagrams))


class Listener(_Closes, BaseListener):
    """Accepts connections at an address: `async with` starts it, `async for` yields its requests.

    `local` has the port that was chosen if `listen` was given 0.
    """

    def __init__(self, make: Callable[[], Link], where: tuple[str, int], **how: Any) -> None:
        self._make, self._where, self._how = make, where, how
        self._entered: Link | None = None

    @property
    def _link(self) -> Link:
        if self._entered is None:
            raise RuntimeError("this listener does not listen yet: enter its `async with` block")
        return self._entered

    @_link.setter
    def _link(self, link: Link) -> None:
        self._entered = link

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has failed; False before its block is entered."""
        return self._entered is not None and self._entered.ended

    def close(self) -> None:
        if self._entered is not None:
            super().close()

    close.__doc__ = BaseListener.close.__doc__

    def __repr__(self) -> str:
        host, port = self._where
        where = f"{host} port {port}"
        return f"<Listener: {where}, not entered>" if self._entered is None else super().__repr__()

    async def __aenter__(self) -> Self:
        check.check_port(self._where[1])
        address = check.own(await addresses(*self._where))
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

        timeout: in seconds; None waits for ever.

        `async for request in listener` does the same until the listener is closed. Raises
        TimeoutError, and ClosedError once the listener was closed.
        """
        link = self._entered or self._link
        event = await link.expect(REQUEST, deadline(timeout))
        return Request(link.of_request(event), event)

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

    host: an IP address (a link-local one with its interface: fe80::1%eth0), or a name; "0.0.0.0"
        and "::" are all addresses, "::" those of IPv4, too (not on iWARP).
    port: 0 chooses one, see `Listener.local`.
    backlog: how many requests may wait; more are rejected.
    datagrams: for UD QPs.
    reuse_address: whether others may listen on the port with another address.
    only_ipv6: whether "::" leaves out IPv4.

    Raises VerbsError (EADDRINUSE, EADDRNOTAVAIL; EOPNOTSUPP for datagrams on iWARP) as the block is
    entered. Wraps rdma_bind_addr(3) and rdma_listen(3).
    """
    check.check_backlog(backlog)

    def make() -> Link:
        return new_link(datagrams)

    how = {"backlog": backlog, "reuse_address": reuse_address, "only_ipv6": only_ipv6}
    return Listener(make, (host, port), **how)
