# SPDX-License-Identifier: MIT
"""What an identifier of rdma_cm goes through, from the first call to its end.

The steps of each call are generators: they ask librdmacm for something, and yield until something
has happened to the link. An event loop or a thread runs them, and sleeps meanwhile. So deadlines
and cancellation are not theirs: whatever ends them early closes the link. Steps between which no
program has a say are not here: the core takes them, see csrc/cm/connect.c.
"""

from __future__ import annotations

import contextlib
import errno
import weakref
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core import CMID, ClosedError, VerbsError
from ..aio._reader import weak_callback
from ..enums import AccessFlags, QPState, QPType
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
    from ._hub import Hub

Steps = Generator[None, None, Any]
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
ANSWERS = (CMEventType.CONNECT_RESPONSE, CMEventType.ESTABLISHED)

# What tells of the end of what was established.
OVER = {DISCONNECTED, CMEventType.DEVICE_REMOVAL, CMEventType.MULTICAST_ERROR}

# What nothing follows from.
NOTHING = {CMEventType.TIMEWAIT_EXIT, CMEventType.ADDR_CHANGE}


class Options(NamedTuple):
    """Of a connection, besides its addresses."""

    private_data: bytes = b""
    access: AccessFlags | int = 0
    ack_timeout: int | None = None
    tos: int | None = None
    retry_count: int = 6
    rnr_retry_count: int = 7
    responder_resources: int | None = None
    initiator_depth: int | None = None
    keepalive: float | None = None


class Link:
    """An identifier, the queue pair that goes with it, and what is known of it."""

    def __init__(self, hub: Hub, cmid: CMID | None = None, *, datagrams: bool = False) -> None:
        self.hub: Hub = hub
        self.bell: Any = hub.bell()
        self.events: deque[Event] = deque()
        self.qp: QP | None = None
        self.datagrams: bool = datagrams
        self.error: Exception | None = None  # why it is over, or is about to be
        self.ended: bool = False  # and its QP has failed
        self.where: str = "rdma_cm"  # for messages
        self.troubles: int = 0
        self.answer: str | None = None  # of a request: how it was answered
        self.backlog: int = 0  # of a listener: how many requests may wait
        self.group: tuple[bytes, int] | None = None  # that of its QP
        self.hung_up: bool = False
        try:
            hub.add(self)
            self.id: CMID = CMID(hub.channel, datagrams) if cmid is None else cmid
        except BaseException:
            hub.remove(self)
            raise
        self._on_id_closed = weak_callback(self._id_closed)
        self.id.user_data = weakref.ref(self)
        self.id.add_close_callback(self._on_id_closed)

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
            self.error = self.error or error_of(event, self.where)
            if kind == DISCONNECTED:
                self.hang_up()
            self.ended = True
        if event.request is not None and len(self.events) >= self.backlog:
            event.request.close()  # and so rejected
            return
        self.events.append(event)
        if self.id.closed:  # since the event was read
            self._reject_waiting()
        self.bell.ring_at_once(self.has_news)

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
        self.error = self.error or UnreachableError(f"{self.where}: {why}")
        self.hang_up()
        self.ended = True
        self.bell.ring()

    def fail(self, error: Exception) -> None:
        """The channel has failed, of which there is one error for each link."""
        own = CMError(f"{self.where}: {error}")
        own.__cause__ = error
        self.error = self.error or own
        self.ended = True
        self.bell.ring()

    def _id_closed(self) -> None:
        """The link, its queue pair or its context was closed; in the thread that did it."""
        self.error = self.error or ClosedError(f"{self.where}: closed")
        self._reject_waiting()
        self.hub.remove(self)
        self.ended = True
        self.bell.ring()

    def _reject_waiting(self) -> None:
        """The requests that nobody will answer; in any thread."""
        while self.events:
            with contextlib.suppress(IndexError):  # another thread was faster
                request = self.events.popleft().request
                if request is not None:
                    request.close()

    def close(self) -> None:
        """End it, without waiting for anything."""
        if self.id.closed:
            return
        # Before the goodbye, of which an event of our own may tell.
        self.error = self.error or ClosedError(f"{self.where}: closed")
        if self.group is not None and self.qp is not None:
            with contextlib.suppress(OSError, ClosedError):
                self.qp.detach_mcast(*self.group)
        elif self.qp is not None:
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
        if hasattr(self, "_on_id_closed"):
            if not self.id.closed:
                self.close()
            elif self.error is None:  # closed by the collector, a moment ago
                self.hang_up()
            self.hub.remove(self)

    def say_goodbye(self) -> None:
        """Begin to end it, unless it is over."""
        if self.error is None:
            self.hang_up()

    def listen(
        self, address: Address, backlog: int, *, reuse_address: bool, only_ipv6: bool
    ) -> None:
        self.where = f"listening on {address[0]} port {address[1]}"
        self.backlog = backlog
        if reuse_address:
            self.id.set_option(OPTION_REUSEADDR, 1)
        if only_ipv6:
            self.id.set_option(OPTION_AFONLY, 1)
        self.id.bind_addr(address)
        if self.id.local is not None:  # where a port was chosen
            self.where = f"listening on {address[0]} port {self.id.local[1]}"
        if self.datagrams and self.id.is_iwarp:
            device = self.id.device
            raise VerbsError(errno.EOPNOTSUPP, f"{device} is an iWARP device, without datagrams")
        self.id.listen(KERNELS_BACKLOG)

    def of_request(self, event: Event) -> Link:
        """The link of a peer that wants to connect to this one."""
        if self.error is not None and self.hub.channel.closed:  # since the event was taken in
            raise self.error
        return Link(self.hub, event.request, datagrams=self.datagrams)

    def begin_answer(self, answer: str, qp: QP | None = None) -> None:
        """A request is answered once; not by a queue pair that cannot do it."""
        if self.answer is not None:
            raise ValueError(f"this request was {self.answer} already")
        if self.error is not None:
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
        while True:
            while self.events:
                event = self.events.popleft()
                if event.error is not None:
                    if self.id.state in ("DISCONNECTED", "FAILED"):
                        continue  # the peer has gone meanwhile, of which an event tells
                    raise event.error
                if event.event in wanted:
                    return event
                if event.event in ENDS:
                    raise error_of(event, self.where)
            if self.error is not None:
                raise self.error.with_traceback(None)  # which would grow with each raise
            yield

    def resolve(
        self, source: Address | None, peer: Address, goal: str, *wanted: CMEventType
    ) -> Steps:
        """Find the way to an address, and go on to the goal, of which one of the events tells."""
        left = RESOLVE_MS
        while True:
            self.id.resolve_addr(source, peer, min(left, RESOLVE_TRY_MS), goal)
            left -= RESOLVE_TRY_MS
            try:
                event = yield from self.expect(CMEventType.ADDR_RESOLVED, *wanted)
            except UnreachableError as e:
                if left <= 0 or (e.event, e.status) != (CMEventType.ADDR_ERROR, -errno.ETIMEDOUT):
                    raise
            else:
                break
        if event.event == CMEventType.ADDR_RESOLVED and self.qp is not None:
            check_device(self.id, self.qp.context.name)
        return event

    def find(self, source: Address | None, peer: Address) -> Steps:
        """No more than the way."""
        self.where = f"the way to {peer[0]}"
        yield from self.resolve(source, peer, "ROUTE_RESOLVED", CMEventType.ROUTE_RESOLVED)

    def connect(
        self,
        qp: QP,
        source: Address | None,
        peer: Address,
        options: Options,
        on_init: Any = None,
    ) -> Steps:
        """Ask the peer for a connection, and make the queue pair part of it."""
        self.where = f"connecting to {peer[0]} port {peer[1]}"
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
        self.begin(f"the connection to {peer[0]} port {peer[1]}", options)
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
            if self.id.state in ("DISCONNECTED", "FAILED"):  # the peer has gone meanwhile
                yield from self.expect()
            raise
        return event

    def to_init(self, qp: QP, options: Options, on_init: Any) -> None:
        if on_init is not None and qp._own_state != QPState.RTS:
            self.id.modify_qp(QPState.INIT, options.access)
            on_init(qp)

    def join(self, qp: QP, source: Address | None, group: Address) -> Steps:
        """Become a member of a multicast group, and its queue pair as well."""
        self.where = f"joining {group[0]}"
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
        self.where = f"the multicast group {group[0]}"
        return event

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
        if qp.qp_type != QPType.UD:
            try:
                yield from self.expect(CMEventType.ESTABLISHED)
            except CMError as e:
                raise PeerGoneError(f"{self.where}: the peer has gone, or given up: {e}") from e
        self.begin(self.where.replace("accepting", "the connection from", 1), options)

    def begin(self, where: str, options: Options) -> None:
        """It is established."""
        self.where = where
        if options.keepalive is not None:
            Keepalives.add(self, options.keepalive)

    def request(self) -> Steps:
        """Wait for the next peer that wants to connect."""
        return (yield from self.expect(CMEventType.CONNECT_REQUEST))

    def has_news(self) -> bool:
        """For steps that wait."""
        return bool(self.events) or self.error is not None

    def is_over(self) -> bool:
        return self.ended

    def take(self, qp: QP, options: Options | None = None) -> None:
        """From now on the link goes along with that queue pair, which is connected as the options
        say."""
        if options is not None:
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
    responder, initiator = options.responder_resources, options.initiator_depth
    return (
        options.private_data,
        options.access,
        AS_MANY if responder is None else responder,
        AS_MANY if initiator is None else initiator,
        options.retry_count,
        options.rnr_retry_count,
    )
