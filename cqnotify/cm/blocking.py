# SPDX-License-Identifier: MIT
"""Connections by address, with rdma_cm, for threads: what `cqnotify.cm` has for event loops.

    conn = blocking.connect(qp, "10.99.0.1", 7471, timeout=10)

    with blocking.listen("10.99.0.1", 7471) as listener:
        for request in listener:
            conn = request.accept(make_qp(request.device))

A call that waits releases the GIL, runs the handlers of signals, and ends when another thread
closes what it waits for. One thread of the module's own reads the events of all connections: so a
peer that disconnects is noticed at once, whatever the program waits for.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._core import ClosedError
from .._parameters import parameters_of, parameters_of_method
from .._several import none_works, share_of
from .._timeouts import deadline
from ..qp import QP
from . import _arguments as check
from . import _async
from ._base import (
    BaseConnection,
    BaseListener,
    BaseMulticastGroup,
    BaseRequest,
    HasLink,
    Resolved,
    event_of,
    link_of,
    resolved_by,
)
from ._event_reader import ThreadReader
from ._link import FAILS, REQUEST, Address, Link

if TYPE_CHECKING:
    from typing import Self

    from ._link import Steps

__all__ = [
    "Connection",
    "Listener",
    "MulticastGroup",
    "Request",
    "connect",
    "join_multicast",
    "listen",
    "resolve",
]


def _run(steps: Steps) -> Any:
    """Run steps to their end; none yields, since a thread sleeps in them, by its notifier."""
    try:
        next(steps)
    except StopIteration as e:
        return e.value
    raise AssertionError("a step has yielded, in a thread")


def _run_or_close(link: Link, steps: Steps) -> Any:
    """Run steps, and close the link if they fail."""
    try:
        return _run(steps)
    except BaseException:
        link.close()
        raise


def _addresses(host: object, port: int) -> list[Address]:
    name = check.host_name(host)
    try:
        return check.addresses_of(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
    except socket.gaierror as e:
        raise check.unresolved(name, e) from None


def _of_the_first(
    found: list[Address],
    timeout: float | None,
    datagrams: bool,
    steps: Callable[[Link, Address], Steps],
) -> tuple[Link, Any, Address]:
    """Run steps for one address after the other until they succeed; each has a link of its own,
    and a share of the time."""
    end = deadline(timeout)
    failures: list[tuple[str, Exception]] = []
    for address in found:
        link = ThreadReader.get().new_link(None, datagrams)
        link.end = share_of(end, len(found) - len(failures))
        try:
            return link, _run_or_close(link, steps(link, address)), address
        except FAILS as e:
            failures.append((address[0], e))
    raise none_works(failures)


class _Closes(HasLink):
    """An object that is closed at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class Connection(_Closes, BaseConnection):
    """A connection that was made."""

    def disconnect(self) -> None:
        """See `cqnotify.cm.Connection.disconnect`."""
        link_of(self).disconnect()

    def wait_closed(self, timeout: float | None = None) -> None:
        """Wait until the connection is over.

        The parameters are those of `cqnotify.cm.Connection.wait_closed`.
        """
        _run(link_of(self).over(deadline(timeout)))


@parameters_of(_async.connect)
def connect(qp: QP, host: str, port: int, **given: Any) -> Connection:
    """Connect a QP to the program that listens on an address.

    The parameters are those of `cqnotify.cm.connect`. The timeout does not bound the time that a
    name takes to resolve.
    """
    check.check_port(port, 1)
    options = check.options_by_name(qp, check.CONNECT, given)
    source, timeout, on_init = (given[name] for name in ("source", "timeout", "on_init"))
    datagrams = check.is_datagrams(qp)
    own = None if source is None else check.own(_addresses(source, 0))
    link, event, _ = _of_the_first(
        _addresses(host, port),
        timeout,
        datagrams,
        lambda link, address: link.connect(qp, own, address, options, on_init),
    )
    return Connection(link, qp, event)


@parameters_of(_async.resolve)
def resolve(host: str, **given: Any) -> Resolved:
    """Find out which device leads to an address.

    The parameters are those of `cqnotify.cm.resolve`. The timeout does not bound the time that a
    name takes to resolve.
    """
    source, timeout = given["source"], given["timeout"]
    check.check_timeout(timeout)
    own = None if source is None else check.own(_addresses(source, 0))
    link, _, address = _of_the_first(
        _addresses(host, 0), timeout, False, lambda link, address: link.find(own, address)
    )
    return resolved_by(link, address)


class MulticastGroup(_Closes, BaseMulticastGroup):
    """The membership of a QP in a multicast group, see `cqnotify.cm.MulticastGroup`."""


@parameters_of(_async.join_multicast)
def join_multicast(qp: QP, group: str, **given: Any) -> MulticastGroup:
    """Make a QP a member of a multicast group.

    The parameters are those of `cqnotify.cm.join_multicast`. The timeout does not bound the time
    that a name takes to resolve.
    """
    source, timeout = given["source"], given["timeout"]
    check.check_member(qp, timeout)
    own = None if source is None else check.own(_addresses(source, 0))
    address = _addresses(group, 0)[0]
    check.check_group(address[0])
    link, event, _ = _of_the_first(
        [address], timeout, True, lambda link, address: link.join_multicast(qp, own, address)
    )
    return MulticastGroup(link, qp, event)


class Request(BaseRequest):
    """A peer that wants to connect. It is rejected if it is dropped or closed."""

    @parameters_of_method(_async.Request.accept)
    def accept(self, qp: QP, **given: Any) -> Connection:
        """Accept the connection.

        The parameters are those of `cqnotify.cm.Request.accept`.
        """
        event = event_of(self)
        given |= {"tos": None, "retry_count": event.retry_count}
        options = check.options_by_name(qp, check.ACCEPT, given)
        link = link_of(self)
        link.begin_answer("accepted", qp)
        link.end = deadline(given["timeout"])
        _run_or_close(link, link.accept(qp, options, given["on_init"]))
        return Connection(link, qp, event)

    def reject(self, private_data: bytes = b"") -> None:
        """Reject the connection.

        The parameters are those of `cqnotify.cm.Request.reject`.
        """
        link = link_of(self)
        link.reject(check.rejection(private_data, link.id.is_iwarp, self.is_datagrams))


class Listener(_Closes, BaseListener):
    """Accepts connections at an address, see `cqnotify.cm.Listener`."""

    def get_request(self, timeout: float | None = None) -> Request:
        """Wait for the next peer that wants to connect; a loop over the listener does the same.

        The parameters are those of `cqnotify.cm.Listener.get_request`. Raises TimeoutError, and
        ClosedError once the listener was closed.
        """
        event = _run(link_of(self).expect(REQUEST, deadline(timeout)))
        return Request(link_of(self).of_request(event), event)

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        try:
            return self.get_request()
        except ClosedError:
            raise StopIteration from None


def listen(
    host: str,
    port: int,
    *,
    backlog: int = 64,
    datagrams: bool = False,
    reuse_address: bool = False,
    only_ipv6: bool = False,
) -> Listener:
    """Listen on an address, at once.

    The parameters are those of `cqnotify.cm.listen`.
    """
    check.check_backlog(backlog)
    check.check_port(port)
    address = check.own(_addresses(host, port))
    link = ThreadReader.get().new_link(None, datagrams)
    try:
        link.listen(address, backlog, reuse_address=reuse_address, only_ipv6=only_ipv6)
    except BaseException:
        link.close()
        raise
    return Listener(link)
