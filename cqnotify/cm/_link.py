# SPDX-License-Identifier: MIT
"""An identifier of rdma_cm with its queue pair, from the first call to its end.

The steps of each call are generators: they call librdmacm, and then wait until something happens to
the link. A task runs them as a part of itself, and is resumed in them as the event is handled; a
thread runs them in one go, and sleeps in them. Whatever ends them early closes the link. Steps in
which the program takes no part are not here: the core makes them, see csrc/cm/connect.c.
"""

from __future__ import annotations

import contextlib
import errno
import types
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, cast

from .._core import CMID, ClosedError, CMConn, CMWait, VerbsError
from ..enums import AccessFlags, QPState
from ..qp import QP
from ._closing import Closing
from ._errors import (
    CMError,
    CMEventType,
    Event,
    RequestExpiredError,
    UnreachableError,
    error_of,
    error_of_tcp,
)
from ._keepalive import Keepalives

if TYPE_CHECKING:
    from ._event_reader import EventReader


class WrongDevice(ValueError):
    """The address leads to another device than that of the queue pair."""


Steps = Generator[Any, None, Any]
Address = tuple[str, int]

OPTION_REUSEADDR, OPTION_AFONLY = 1, 2  # of the identifier
AS_MANY = 255  # of responder_resources and initiator_depth: what the device has

# After this time without an answer a neighbour is taken for absent. The caller's deadline does not
# shorten it: the kernel's answer would come as the deadline ends, and either could be first.
RESOLVE_MS = 4000

# More than the program's own backlog: the kernel silently drops a request for which there is no
# room, and the peer repeats it only after seconds.
KERNELS_BACKLOG = 1024

# The errors of accepting a request whose peer has gone; no event reports that.
GONE = (errno.EINVAL, errno.ENOTCONN, errno.ECONNRESET)


def bits(*events: CMEventType) -> int:
    """Return a set of events as CMConn.expect() takes it."""
    return sum(1 << event for event in events)


# The events by which the peer accepts: ESTABLISHED for datagrams, and on iWARP.
ANSWERS = bits(CMEventType.CONNECT_RESPONSE, CMEventType.ESTABLISHED)

ADDR_RESOLVED = CMEventType.ADDR_RESOLVED
RESOLVED = bits(ADDR_RESOLVED)

# The events that the steps below wait for.
REQUEST = bits(CMEventType.CONNECT_REQUEST)
ESTABLISHED = bits(CMEventType.ESTABLISHED)
ROUTE = bits(CMEventType.ROUTE_RESOLVED)
JOIN = bits(CMEventType.MULTICAST_JOIN)
NONE = bits()  # only those that end the attempt


# The errors after which the next address of a name is tried; it may lead to another device.
FAILS = (OSError, WrongDevice)


P = ParamSpec("P")


class AwaitedSteps(Generator[Any, None, Any], Awaitable[Any]):
    """The type of steps that a task awaits, and a thread runs."""


def awaited(steps: Callable[P, Steps]) -> Callable[P, AwaitedSteps]:
    return cast("Callable[P, AwaitedSteps]", types.coroutine(steps))


class Options(NamedTuple):
    """The options of a connection, in the order in which CMID.prepare() takes them."""

    private_data: bytes = b""
    access: AccessFlags | int = 0
    responder_resources: int = AS_MANY
    initiator_depth: int = AS_MANY
    retry_count: int = 6
    rnr_retry_count: int = 7
    ack_timeout: int | None = None
    tos: int | None = None
    keepalive: float | None = None


# Why a wait has timed out, by the state of the identifier.
SILENCE: Final = {
    "RESOLVING_ADDR": "no host has answered that the address is its own",
    "RESOLVING_ROUTE": "the way to the peer's device was not found",
    "CONNECTING": "the peer's host is silent, or its program has not accepted",
    "ACCEPTING": "the peer has not confirmed the connection",
    "JOINING": "the multicast group has not admitted the queue pair",
    "LISTENING": "no peer has asked to connect",
    "ESTABLISHED": "the peer has not disconnected",
    "DISCONNECTING": "the peer has not answered the disconnect",
}


class Link(CMConn):
    """An identifier of rdma_cm and its queue pair. The core has the waiting for its events."""

    __slots__ = ("__weakref__",)

    qp: QP | None
    reason: Exception | Event | type[ClosedError] | None
    ended: bool
    has_keepalive: bool
    reader: EventReader
    end: float | None
    phase: str | None
    address: Address | None
    answer: str | None
    group: tuple[bytes, int] | None

    @property
    def where(self) -> str:
        """The call and the address, for messages. That of a request is queried only here."""
        address = self.address or self.id.last_peer
        doing = self.phase or "rdma_cm"
        if address is None:
            return doing
        host, port = address
        return f"{doing} {host} port {port}" if port else f"{doing} {host}"

    @property
    def error(self) -> Exception | None:
        """Why it is over, or about to be. An event is made an exception when this is called."""
        why = self.reason
        if isinstance(why, Event):
            self.reason = error_of(why, self.where)
        elif isinstance(why, type):
            self.reason = why(f"{self.where}: closed")
        return cast("Exception | None", self.reason)

    # ---- called by the core ----

    def _error_of(self, event: Event) -> Exception:
        """Return the exception for an event that ends the attempt."""
        return error_of(event, self.where)

    def _no_answer(self) -> TimeoutError:
        why = SILENCE.get(self.id.state)
        return TimeoutError(f"{self.where}: no answer in time{f'; {why}' if why else ''}")

    def has_news(self) -> bool:
        """Whether a thread that waits for an event has to look."""
        return bool(self.events) or self.reason is not None

    def is_over(self) -> bool:
        """Whether a thread that waits for the end can go on."""
        return self.ended

    def lose(self, why: str) -> None:
        """End the connection: the peer is taken for dead. Called by the thread that found out."""
        self.reason = self.reason or UnreachableError(f"{self.where}: {why}")
        self.shut_down()
        self.ended = True
        self.notify()

    def fail(self, error: Exception) -> None:
        """End the link, since its channel has failed. Each link gets an exception of its own."""
        own = CMError(f"{self.where}: {error}")
        own.__cause__ = error
        self.reason = self.reason or own
        self.ended = True
        self.notify()

    # As the interpreter ends, the names of this module can be None here.
    def _end_keepalive(self, keepalives: type[Keepalives] = Keepalives) -> None:
        """End the keepalive. Called as the link, its queue pair or its context is closed."""
        self.has_keepalive = False
        keepalives.drop(self)

    def _was_last(self) -> None:
        """Let the reader close its channel: this was its last link."""
        self.reader.leave_unused()

    def _leave_group(self) -> None:
        """End the connection; a link of a multicast group makes its queue pair leave the group."""
        if self.group is None or self.qp is None:
            self.shut_down()
            return
        with contextlib.suppress(OSError, ClosedError):
            self.qp.detach_mcast(*self.group)

    def _close_slowly(self) -> None:
        """Close the identifier in a thread: closing it waits for the peer's host."""
        Closing.begin(self.id)

    def listen(
        self, address: Address, backlog: int, *, reuse_address: bool, only_ipv6: bool
    ) -> None:
        self.phase, self.address = "listening on", address
        self.backlog = backlog
        if reuse_address:
            self.id.set_option(OPTION_REUSEADDR, 1)
        if only_ipv6:
            self.id.set_option(OPTION_AFONLY, 1)
        self.id.bind_addr(address)
        if self.id.local is not None:  # where a port was chosen
            self.address = address[0], self.id.local[1]
        if self.datagrams and self.id.is_iwarp:
            device = self.id.device
            raise VerbsError(errno.EOPNOTSUPP, f"{device} is an iWARP device, without datagrams")
        self.id.listen(KERNELS_BACKLOG)

    def of_request(self, event: Event) -> Link:
        """Return a link for a peer that wants to connect to this listener."""
        if self.channel.closed and self.error is not None:  # it was closed since the event
            raise self.error
        return self.reader.new_link(event.request, self.datagrams)

    def begin_answer(self, answer: str, qp: QP | None = None) -> None:
        """Check that the request can be answered, with this queue pair; it is answered once."""
        if self.answer is not None:
            raise ValueError(f"this request was {self.answer} already")
        if self.reason is not None:
            raise ClosedError("this request was closed, and so rejected")
        if qp is not None and not self.id.is_for(qp):
            raise leads_elsewhere(self.id, qp)
        if qp is not None:
            self.id.check_mtu()
        self.answer = answer

    def reject(self, private_data: bytes) -> None:
        self.begin_answer("rejected")
        try:
            self.id.reject(private_data)
        except VerbsError as e:
            if e.errno not in GONE:
                raise
        finally:
            self.close()

    # ---- steps ----

    def peer_has_gone(self) -> bool:
        """Whether a step has failed because the peer has gone."""
        return self.id.state in ("DISCONNECTED", "FAILED")

    def resolve(self, source: Address | None, peer: Address, goal: str, wanted: int) -> CMWait:
        """Resolve an address, and go on to the goal state; return what waits for a wanted event.

        The event is ADDR_RESOLVED where the address leads to another device than the queue pair's.
        """
        self.id.resolve_addr(source, peer, RESOLVE_MS, goal)
        return self.expect(wanted | RESOLVED, self.end)

    @awaited
    def find(self, source: Address | None, peer: Address) -> Steps:
        """Resolve an address, and no more."""
        self.phase, self.address = "the way to", peer
        yield from self.resolve(source, peer, "ROUTE_RESOLVED", ROUTE)

    @awaited
    def connect(
        self,
        qp: QP,
        source: Address | None,
        peer: Address,
        options: Options,
        on_init: Any = None,
    ) -> Steps:
        """Connect the queue pair to the peer."""
        self.phase, self.address = "connecting to", peer
        self.take(qp, options)
        try:
            if on_init is None:
                event = yield from self.resolve(source, peer, "ESTABLISHED", ANSWERS)
            else:
                event = yield from self.connect_in_steps(qp, source, peer, options, on_init)
        except VerbsError as e:
            # On iWARP the call itself may connect to the peer's host, over TCP.
            error = error_of_tcp(e.errno or 0, self.where) if self.id.is_iwarp else None
            if error is None or e.verb != "rdma_connect":
                raise
            self.qp = None  # it is in RESET still, and can try again
            raise error from e
        if event.event == ADDR_RESOLVED:
            raise leads_elsewhere(self.id, qp)
        self.begin("the connection to", options)
        return event

    def connect_in_steps(
        self, qp: QP, source: Address | None, peer: Address, options: Options, on_init: Any
    ) -> Steps:
        """Connect it with `on_init`, which is called once the queue pair is in INIT."""
        event = yield from self.resolve(source, peer, "ROUTE_RESOLVED", ROUTE)
        if event.event == ADDR_RESOLVED:
            return event
        if self.datagrams or self.id.is_iwarp:  # it is ready before the peer is asked
            self.to_init(qp, options, on_init)
            self.id.connect("ESTABLISHED")
            return (yield from self.expect(ANSWERS, self.end))
        self.id.connect("RESPONDED")
        event = yield from self.expect(ANSWERS, self.end)
        try:
            self.to_init(qp, options, on_init)
            self.id.establish()
        except (OSError, RuntimeError):
            if self.peer_has_gone():  # an event reports it, or will
                yield from self.expect(NONE, self.end)
            raise
        return event

    def to_init(self, qp: QP, options: Options, on_init: Any) -> None:
        if on_init is not None and qp._own_state != QPState.RTS:
            self.id.modify_qp(QPState.INIT, options.access)
            on_init(qp)

    @awaited
    def join_multicast(self, qp: QP, source: Address | None, group: Address) -> Steps:
        """Join a multicast group, and attach the queue pair to it."""
        self.phase, self.address = "joining", group
        self.take(qp)
        yield from self.resolve(source, group, "ADDR_RESOLVED", NONE)
        if not self.id.is_for(qp):
            raise leads_elsewhere(self.id, qp)
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            if qp._own_state < state:
                self.id.modify_qp(state, 0)
        self.id.join_multicast(group)
        event = yield from self.expect(JOIN, self.end)
        path = event.parameters["ah_attr"]
        known = path["dgid"], path["dlid"]
        qp.attach_mcast(*known)
        self.group = known
        self.phase = "the multicast group"
        return event

    @awaited
    def accept(self, qp: QP, options: Options, on_init: Any = None) -> Steps:
        """Answer the request of a peer."""
        self.take(qp, options)
        try:
            self.to_init(qp, options, on_init)
            self.id.accept()
        except VerbsError as e:
            if e.errno not in GONE or e.verb.startswith("ibv_"):  # an error of the QP
                raise
            raise self.expired(e) from e
        if not self.datagrams:
            try:
                yield from self.expect(ESTABLISHED, self.end)
            except CMError as e:
                if e.event in (None, CMEventType.DEVICE_REMOVAL):  # this end has failed
                    raise
                raise self.expired(e) from e
        self.begin("the connection from", options)

    def expired(self, error: Exception) -> RequestExpiredError:
        return RequestExpiredError(f"{self.where}: the peer has gone, or given up: {error}")

    def begin(self, what: str, options: Options) -> None:
        """Begin the keepalive: the connection is established."""
        self.phase = what
        if options.keepalive is not None:
            self.has_keepalive = True
            Keepalives.add(self, options.keepalive)

    def take(self, qp: QP, options: Options | None = None) -> None:
        """Bind the link to a queue pair, which will be connected with these options."""
        self.id.bind_qp(qp)
        if options is not None:
            self.id.prepare(options)
        self.qp = qp


def leads_elsewhere(cmid: CMID, qp: QP) -> ValueError:
    peer = cmid.peer[0] if cmid.peer else "the address"
    return WrongDevice(
        f"the way to {peer} leads over device {cmid.device}, and the QP is of {qp.context.name}: "
        f"make it on a Context of {cmid.device}"
    )
