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
import functools
import types
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, cast

from .._core import CMID, ClosedError, VerbsError
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
    from ._hub import Bell, Hub

Steps = Generator[Any, None, Any]
Address = tuple[str, int]

OPTION_TOS, OPTION_REUSEADDR, OPTION_AFONLY, OPTION_ACK_TIMEOUT = range(4)
AS_MANY = 255  # of responder_resources and initiator_depth: what the device has

# A neighbour that does not answer so long is not there. The caller's deadline does not shorten it:
# the kernel's answer would come as the deadline ends, and either could be first.
RESOLVE_MS = 4000

# Of one try. Where two ask for a neighbour at once, the kernel can miss its answer for one of them,
# and looks again when the try is over.
RESOLVE_TRY_MS = 500

# More than the program's own: what does not fit there the kernel drops without a word, and the peer
# asks again after seconds.
KERNELS_BACKLOG = 1024

# What the kernel says of a request whose peer has gone; no event does.
GONE = (errno.EINVAL, errno.ENOTCONN)

# What a call fails with that can be tried again, or is too late.
FAILURES = (OSError, ClosedError, RuntimeError)

# What ends an attempt. UNREACHABLE is no end of what is established, only a hint.
UNREACHABLE, DISCONNECTED = CMEventType.UNREACHABLE, CMEventType.DISCONNECTED
ADDR_RESOLVED, ESTABLISHED = CMEventType.ADDR_RESOLVED, CMEventType.ESTABLISHED
ENDS = {
    CMEventType.ADDR_ERROR,
    CMEventType.ROUTE_ERROR,
    CMEventType.CONNECT_ERROR,
    UNREACHABLE,
    CMEventType.REJECTED,
    DISCONNECTED,
    CMEventType.DEVICE_REMOVAL,
    CMEventType.MULTICAST_ERROR,
}

# What tells that the peer has accepted: ESTABLISHED of datagrams, and of iWARP.
ANSWERS = (CMEventType.CONNECT_RESPONSE, ESTABLISHED)

# What tells that a peer wants to connect.
REQUEST = (CMEventType.CONNECT_REQUEST,)

# What tells of the end of what was established.
OVER = {DISCONNECTED, CMEventType.DEVICE_REMOVAL, CMEventType.MULTICAST_ERROR}

# What nothing follows from.
NOTHING = {CMEventType.TIMEWAIT_EXIT, CMEventType.ADDR_CHANGE}


P = ParamSpec("P")


class AwaitedSteps(Generator[Any, None, Any], Awaitable[Any]):
    """The type of steps that a task awaits, and a thread runs."""


def awaited(steps: Callable[P, Steps]) -> Callable[P, AwaitedSteps]:
    return cast("Callable[P, AwaitedSteps]", types.coroutine(steps))


class Options(NamedTuple):
    """Of a connection, besides its addresses."""

    private_data: bytes = b""
    access: AccessFlags | int = 0
    responder_resources: int = AS_MANY
    initiator_depth: int = AS_MANY
    retry_count: int = 6
    rnr_retry_count: int = 7
    ack_timeout: int | None = None
    tos: int | None = None
    keepalive: float | None = None


class Link:
    """An identifier, the queue pair that goes with it, and what is known of it."""

    qp: QP | None = None
    why: Exception | Event | None = None  # it is over, or is about to be
    ended: bool = False  # and its QP has failed
    doing: str = "rdma_cm"  # for messages, with the address
    address: Address | None = None
    troubles: int = 0
    answer: str | None = None  # of a request: how it was answered
    backlog: int = 0  # of a listener: how many requests may wait
    group: tuple[bytes, int] | None = None  # that of its QP
    hung_up: bool = False
    is_whole: bool = False  # it was made, and its identifier not closed: there is an end to come

    def __init__(
        self,
        hub: Hub,
        cmid: CMID | None = None,
        *,
        datagrams: bool = False,
        end: float | None = None,
    ) -> None:
        self.hub: Hub = hub
        self.bell: Bell = hub.bell()
        self.events: list[Event] = []
        self.datagrams: bool = datagrams
        self.end: float | None = end  # of what it is asked for, by time.monotonic()
        try:
            hub.add(self)
            self.id: CMID = CMID(hub.channel, datagrams) if cmid is None else cmid
        except BaseException:
            hub.remove(self)
            raise
        self.is_whole = True
        ref: weakref.ref[Link] = weakref.ref(self)
        self.id.user_data = ref
        self.id.add_close_callback(functools.partial(self._id_closed, ref))

    @property
    def where(self) -> str:
        """For messages."""
        if self.address is None:
            return self.doing
        host, port = self.address
        return f"{self.doing} {host} port {port}" if port else f"{self.doing} {host}"

    @property
    def error(self) -> Exception | None:
        """Why it is over, or is about to be. Few ask for that of an event."""
        if isinstance(self.why, Event):
            self.why = error_of(self.why, self.where)
        return self.why

    # ---- what happens to it ----

    def deliver(self, event: Event) -> None:
        """Take in an event, in the thread that reads them."""
        kind = event.event
        if kind in NOTHING:
            return
        if kind == UNREACHABLE and self.id.state == "ESTABLISHED":
            self.troubles += 1
            return
        if kind in OVER:
            # First, so that whoever sees the flush finds out why.
            self.why = self.why or event
            if kind == DISCONNECTED:
                self.hang_up()
            self.ended = True
            self.bell.ring_at_once()
            return
        if event.request is not None and len(self.events) >= self.backlog:
            event.request.close()  # and so rejected
            return
        self.events.append(event)
        if self.id.closed:  # since the event was read
            self._reject_waiting()
        self.bell.ring_at_once(self.events)

    def hang_up(self) -> None:
        """Tell the peer, and end what was posted: nothing of it can succeed any more. Once."""
        if self.hung_up:
            return
        self.hung_up = True  # what fails is tried again by the next hang_up()
        try:
            if self.qp is not None and not self.datagrams:
                self.qp._fail()
        except FAILURES:
            self.hung_up = False
        try:
            self.id.disconnect()
        except FAILURES:
            self.hung_up = False

    def lose(self, why: str) -> None:
        """The peer is taken for dead; called by the thread that has found out."""
        self.why = self.why or UnreachableError(f"{self.where}: {why}")
        self.hang_up()
        self.ended = True
        self.bell.ring()

    def fail(self, error: Exception) -> None:
        """The channel has failed, of which there is one error for each link."""
        own = CMError(f"{self.where}: {error}")
        own.__cause__ = error
        self.why = self.why or own
        self.ended = True
        self.bell.ring()

    @staticmethod
    def _id_closed(ref: weakref.ref[Link]) -> None:
        """The link, its queue pair or its context was closed; in the thread that did it. The CMID
        keeps no link alive."""
        self = ref()
        if self is None:
            return
        self.is_whole = False
        self.why = self.why or ClosedError(f"{self.where}: closed")
        if self.events:
            self._reject_waiting()
        self.hub.remove(self)
        if not self.ended:  # else nobody sleeps any more, or is being woken
            self.ended = True
            self.bell.ring()

    def _reject_waiting(self) -> None:
        """The requests that nobody will answer; in any thread."""
        while self.events:
            with contextlib.suppress(IndexError):  # another thread was faster
                request = self.events.pop(0).request
                if request is not None:
                    request.close()

    def close(self) -> None:
        """End it, without waiting for anything."""
        if self.id.closed:
            return
        # Before the goodbye, of which an event of our own may tell.
        self.why = self.why or ClosedError(f"{self.where}: closed")
        if self.group is not None and self.qp is not None:
            with contextlib.suppress(OSError, ClosedError):
                self.qp.detach_mcast(*self.group)
        elif self.qp is not None and not self.hung_up:
            self.hang_up()
        if self.id.is_iwarp and self.id.state == "CONNECTING":
            # The kernel waits for the peer's host until it lets go of the identifier.
            self.ended = True
            self.bell.ring()
            Closing.begin(self.id)
        else:
            self.id.close()

    def __del__(self) -> None:
        # Where __init__() has failed there may be no identifier. The collector has dropped the weak
        # references by now, so that no callback has told the hub.
        if self.is_whole:
            if not self.id.closed:
                self.close()
            elif self.why is None:  # closed by the collector, a moment ago
                self.hang_up()
            self.hub.remove(self)

    def say_goodbye(self) -> None:
        """Begin to end it, unless it is over."""
        if self.why is None:
            self.hang_up()

    def listen(
        self, address: Address, backlog: int, *, reuse_address: bool, only_ipv6: bool
    ) -> None:
        self.doing, self.address = "listening on", address
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
        if self.hub.channel.closed and self.error is not None:  # since the event was taken in
            raise self.error
        return Link(self.hub, event.request, datagrams=self.datagrams)

    def begin_answer(self, answer: str, qp: QP | None = None) -> None:
        """A request is answered once; not by a queue pair that cannot do it."""
        if self.answer is not None:
            raise ValueError(f"this request was {self.answer} already")
        if self.why is not None:
            raise ClosedError("this request was closed, and so rejected")
        if qp is not None:
            check_device(self.id, qp.context.name)
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

    def expect(self, *wanted: CMEventType) -> Steps:
        """Wait for one of these events; raise what ends the attempt."""
        return self.expect_until(self.end, wanted)

    @awaited
    def expect_until(self, end: float | None, wanted: tuple[CMEventType, ...]) -> Steps:
        while True:
            while self.events:
                try:
                    event = self.events.pop(0)
                except IndexError:  # another thread was faster
                    break
                if event.error is not None:
                    if self.peer_has_gone():
                        continue
                    raise event.error
                if event.event in wanted:
                    return event
                if event.event in ENDS:
                    raise error_of(event, self.where)
            if self.why is not None and self.error is not None:
                raise self.error.with_traceback(None)  # which would grow with each raise
            if not (yield from self.bell.sleep(self.has_news, end)):
                raise self.no_answer()

    @awaited
    def over(self, end: float | None) -> Steps:
        """Wait until it is over."""
        while not self.ended:
            if not (yield from self.bell.sleep(self.is_over, end)):
                raise self.no_answer()

    def peer_has_gone(self) -> bool:
        """Why a step has failed: an event tells of it, or will."""
        return self.id.state in ("DISCONNECTED", "FAILED")

    def no_answer(self) -> TimeoutError:
        return TimeoutError(f"{self.where}: no answer in time")

    def resolve(
        self, source: Address | None, peer: Address, goal: str, *wanted: CMEventType
    ) -> Steps:
        """Find the way to an address, and go on to the goal, of which one of the events tells."""
        left = RESOLVE_MS
        while True:
            self.id.resolve_addr(source, peer, min(left, RESOLVE_TRY_MS), goal)
            left -= RESOLVE_TRY_MS
            try:
                event = yield from self.expect(ADDR_RESOLVED, *wanted)
            except UnreachableError as e:
                if left <= 0 or (e.event, e.status) != (CMEventType.ADDR_ERROR, -errno.ETIMEDOUT):
                    raise
            else:
                break
        if event.event == ADDR_RESOLVED and self.qp is not None:
            check_device(self.id, self.qp.context.name)
        return event

    @awaited
    def find(self, source: Address | None, peer: Address) -> Steps:
        """No more than the way."""
        self.doing, self.address = "the way to", peer
        yield from self.resolve(source, peer, "ROUTE_RESOLVED", CMEventType.ROUTE_RESOLVED)

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
        self.doing, self.address = "connecting to", peer
        self.take(qp, options)
        try:
            if on_init is None:
                event = yield from self.resolve(source, peer, "ESTABLISHED", *ANSWERS)
            else:
                event = yield from self.connect_in_steps(qp, source, peer, options, on_init)
        except VerbsError as e:
            # Of an iWARP device the call itself may connect to the peer's host, by TCP.
            error = error_of_tcp(e.errno or 0, self.where) if self.id.is_iwarp else None
            if error is None or e.verb != "rdma_connect":
                raise
            self.qp = None  # which is as before, and can try again
            raise error from e
        self.begin("the connection to", options)
        return event

    def connect_in_steps(
        self, qp: QP, source: Address | None, peer: Address, options: Options, on_init: Any
    ) -> Steps:
        """The same, where the program has a say once the queue pair is in INIT."""
        route = CMEventType.ROUTE_RESOLVED
        yield from self.resolve(source, peer, "ROUTE_RESOLVED", route)
        if self.datagrams or self.id.is_iwarp:  # it is ready before the peer is asked
            self.to_init(qp, options, on_init)
            self.id.connect("ESTABLISHED")
            return (yield from self.expect(*ANSWERS))
        self.id.connect("RESPONDED")
        event = yield from self.expect(*ANSWERS)
        try:
            self.to_init(qp, options, on_init)
            self.id.establish()
        except (OSError, RuntimeError):
            if self.peer_has_gone():
                yield from self.expect()
            raise
        return event

    def to_init(self, qp: QP, options: Options, on_init: Any) -> None:
        if on_init is not None and qp._own_state != QPState.RTS:
            self.id.modify_qp(QPState.INIT, options.access)
            on_init(qp)

    @awaited
    def join(self, qp: QP, source: Address | None, group: Address) -> Steps:
        """Become a member of a multicast group, and its queue pair as well."""
        self.doing, self.address = "joining", group
        self.take(qp)
        yield from self.resolve(source, group, "ADDR_RESOLVED")
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            if qp._own_state < state:
                self.id.modify_qp(state, 0)
        self.id.join_multicast(group)
        event = yield from self.expect(CMEventType.MULTICAST_JOIN)
        path = event.parameters["ah_attr"]
        known = path["dgid"], path["dlid"]
        qp.attach_mcast(*known)
        self.group = known
        self.doing = "the multicast group"
        return event

    @awaited
    def accept(self, qp: QP, options: Options, on_init: Any = None) -> Steps:
        """Answer the request of a peer."""
        self.take(qp, options)
        try:
            self.to_init(qp, options, on_init)
            self.id.accept()
        except VerbsError as e:
            if e.verb.startswith("ibv_"):  # the QP's own
                raise
            raise PeerGoneError(f"{self.where}: the peer has gone, or given up: {e}") from e
        if not self.datagrams:
            try:
                yield from self.expect(ESTABLISHED)
            except CMError as e:
                raise PeerGoneError(f"{self.where}: the peer has gone, or given up: {e}") from e
        self.begin("the connection from", options)

    def begin(self, what: str, options: Options) -> None:
        """It is established."""
        self.doing = what
        if options.keepalive is not None:
            Keepalives.add(self, options.keepalive)

    def has_news(self) -> bool:
        """For steps that wait."""
        return bool(self.events) or self.why is not None

    def is_over(self) -> bool:
        """For those that wait for its end."""
        return self.ended

    def take(self, qp: QP, options: Options | None = None) -> None:
        """From now on the link goes along with that queue pair, which is connected as the options
        say."""
        if options is not None and (options.ack_timeout, options.tos) != (None, None):
            set_options(self.id, options)
        self.id.bind_qp(qp)
        self.qp = qp
        if options is not None:
            self.id.prepare(*parameters(options))


def check_device(cmid: CMID, device: str) -> None:
    if cmid.device != device:
        peer = cmid.peer[0] if cmid.peer else "the address"
        raise ValueError(
            f"the way to {peer} leads over device {cmid.device}, and the QP is of {device}: make "
            f"it on a Context of {cmid.device}"
        )


def set_options(cmid: CMID, options: Options) -> None:
    if options.ack_timeout is not None:
        cmid.set_option(OPTION_ACK_TIMEOUT, options.ack_timeout)
    if options.tos is not None:
        cmid.set_option(OPTION_TOS, options.tos)


def parameters(options: Options) -> tuple[Any, ...]:
    """What CMID.prepare() takes."""
    return options[:6]
