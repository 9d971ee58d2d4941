# SPDX-License-Identifier: MIT
"""What an identifier of rdma_cm goes through, from the first call to its end.

The steps of each call are generators: they ask librdmacm for something, and sleep until something
has happened to the link. A task runs them as a part of itself, and goes on in them as the event is
handled; a thread runs them in one go, and sleeps in them. Whatever ends them early closes the link.
Steps between which no program has a say are not here: the core takes them, see csrc/cm/connect.c.
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
    PeerGoneError,
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

# A neighbour that does not answer so long is not there. The caller's deadline does not shorten it:
# the kernel's answer would come as the deadline ends, and either could be first.
RESOLVE_MS = 4000

# More than the program's own: what does not fit there the kernel drops without a word, and the peer
# asks again after seconds.
KERNELS_BACKLOG = 1024

# What the kernel says of a request whose peer has gone; no event does.
GONE = (errno.EINVAL, errno.ENOTCONN, errno.ECONNRESET)


def bits(*events: CMEventType) -> int:
    """As CMConn.expect() takes them."""
    return sum(1 << event for event in events)


# What tells that the peer has accepted: ESTABLISHED of datagrams, and of iWARP.
ANSWERS = bits(CMEventType.CONNECT_RESPONSE, CMEventType.ESTABLISHED)

ADDR_RESOLVED = CMEventType.ADDR_RESOLVED
RESOLVED = bits(ADDR_RESOLVED)

# What tells that a peer wants to connect; that the connection is there for both; and so on.
REQUEST = bits(CMEventType.CONNECT_REQUEST)
ESTABLISHED = bits(CMEventType.ESTABLISHED)
ROUTE = bits(CMEventType.ROUTE_RESOLVED)
JOIN = bits(CMEventType.MULTICAST_JOIN)
NONE = bits()  # but what ends the attempt


# What fails with one address of a name may succeed with another one; that leads to another device.
FAILS = (OSError, WrongDevice)


P = ParamSpec("P")


class AwaitedSteps(Generator[Any, None, Any], Awaitable[Any]):
    """The type of steps that a task awaits, and a thread runs."""


def awaited(steps: Callable[P, Steps]) -> Callable[P, AwaitedSteps]:
    return cast("Callable[P, AwaitedSteps]", types.coroutine(steps))


class Options(NamedTuple):
    """Of a connection, besides its addresses; in the order in which CMID.prepare() takes them."""

    private_data: bytes = b""
    access: AccessFlags | int = 0
    responder_resources: int = AS_MANY
    initiator_depth: int = AS_MANY
    retry_count: int = 6
    rnr_retry_count: int = 7
    ack_timeout: int | None = None
    tos: int | None = None
    keepalive: float | None = None


# Of a wait that timed out, by the state in which it did.
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
    """An identifier, the queue pair that goes with it, and what is known of it; how to wait for
    what happens to it is the core's."""

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
        """For messages. That of a request is asked for here alone, since few need it."""
        address = self.address or self.id.last_peer
        doing = self.phase or "rdma_cm"
        if address is None:
            return doing
        host, port = address
        return f"{doing} {host} port {port}" if port else f"{doing} {host}"

    @property
    def error(self) -> Exception | None:
        """Why it is over, or is about to be. Few ask for that of an event."""
        why = self.reason
        if isinstance(why, Event):
            self.reason = error_of(why, self.where)
        elif isinstance(why, type):
            self.reason = why(f"{self.where}: closed")
        return cast("Exception | None", self.reason)

    # ---- what happens to it: what the core leaves to this class ----

    def _error_of(self, event: Event) -> Exception:
        """That of an event which ends the attempt."""
        return error_of(event, self.where)

    def _no_answer(self) -> TimeoutError:
        why = SILENCE.get(self.id.state)
        return TimeoutError(f"{self.where}: no answer in time{f'; {why}' if why else ''}")

    def has_news(self) -> bool:
        """For a thread that waits for an event."""
        return bool(self.events) or self.reason is not None

    def is_over(self) -> bool:
        """For one that waits for the end."""
        return self.ended

    def lose(self, why: str) -> None:
        """The peer is taken for dead; called by the thread that has found out."""
        self.reason = self.reason or UnreachableError(f"{self.where}: {why}")
        self.shut_down()
        self.ended = True
        self.notify()

    def fail(self, error: Exception) -> None:
        """The channel has failed, of which there is one error for each link."""
        own = CMError(f"{self.where}: {error}")
        own.__cause__ = error
        self.reason = self.reason or own
        self.ended = True
        self.notify()

    # When the interpreter ends, the names of this module can be None here.
    def _end_keepalive(self, keepalives: type[Keepalives] = Keepalives) -> None:
        """The link, its queue pair or its context was closed; in the thread that did it."""
        self.has_keepalive = False
        keepalives.drop(self)

    def _was_last(self) -> None:
        """The same of the last link whose events the reader brings."""
        self.reader.leave_unused()

    def _leave_group(self) -> None:
        """Its datagrams end with it: of a group its queue pair leaves that."""
        if self.group is None or self.qp is None:
            self.shut_down()
            return
        with contextlib.suppress(OSError, ClosedError):
            self.qp.detach_mcast(*self.group)

    def _close_slowly(self) -> None:
        """Closing it would wait for the peer's host."""
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
        """The link of a peer that wants to connect to this one."""
        if self.channel.closed and self.error is not None:  # since the event was taken in
            raise self.error
        return self.reader.new_link(event.request, self.datagrams)

    def begin_answer(self, answer: str, qp: QP | None = None) -> None:
        """A request is answered once; not by a queue pair that cannot do it."""
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
        """Why a step has failed."""
        return self.id.state in ("DISCONNECTED", "FAILED")

    def resolve(self, source: Address | None, peer: Address, goal: str, wanted: int) -> CMWait:
        """Find the way to an address, and go on to the goal, of which one of the events tells; or
        ADDR_RESOLVED, where the way leads to another device than that of the queue pair."""
        self.id.resolve_addr(source, peer, RESOLVE_MS, goal)
        return self.expect(wanted | RESOLVED, self.end)

    @awaited
    def find(self, source: Address | None, peer: Address) -> Steps:
        """No more than the way."""
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
        """Ask the peer for a connection, and make the queue pair part of it."""
        self.phase, self.address = "connecting to", peer
        self.take(qp, options)
        try:
            if on_init is None:
                event = yield from self.resolve(source, peer, "ESTABLISHED", ANSWERS)
            else:
                event = yield from self.connect_in_steps(qp, source, peer, options, on_init)
        except VerbsError as e:
            # Of an iWARP device the call itself may connect to the peer's host, by TCP.
            error = error_of_tcp(e.errno or 0, self.where) if self.id.is_iwarp else None
            if error is None or e.verb != "rdma_connect":
                raise
            self.qp = None  # which is as before, and can try again
            raise error from e
        if event.event == ADDR_RESOLVED:
            raise leads_elsewhere(self.id, qp)
        self.begin("the connection to", options)
        return event

    def connect_in_steps(
        self, qp: QP, source: Address | None, peer: Address, options: Options, on_init: Any
    ) -> Steps:
        """The same, where the program has a say once the queue pair is in INIT."""
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
            if self.peer_has_gone():  # an event tells of it, or will
                yield from self.expect(NONE, self.end)
            raise
        return event

    def to_init(self, qp: QP, options: Options, on_init: Any) -> None:
        if on_init is not None and qp._own_state != QPState.RTS:
            self.id.modify_qp(QPState.INIT, options.access)
            on_init(qp)

    @awaited
    def join(self, qp: QP, source: Address | None, group: Address) -> Steps:
        """Become a member of a multicast group, and its queue pair as well."""
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
            if e.errno not in GONE or e.verb.startswith("ibv_"):  # the QP's own
                raise
            raise PeerGoneError(f"{self.where}: the peer has gone, or given up: {e}") from e
        if not self.datagrams:
            try:
                yield from self.expect(ESTABLISHED, self.end)
            except CMError as e:
                if e.event in (None, CMEventType.DEVICE_REMOVAL):  # that is on our side
                    raise
                raise PeerGoneError(f"{self.where}: the peer has gone, or given up: {e}") from e
        self.begin("the connection from", options)

    def begin(self, what: str, options: Options) -> None:
        """It is established."""
        self.phase = what
        if options.keepalive is not None:
            self.has_keepalive = True
            Keepalives.add(self, options.keepalive)

    def take(self, qp: QP, options: Options | None = None) -> None:
        """From now on the link goes along with that queue pair, which is connected as the options
        say."""
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
