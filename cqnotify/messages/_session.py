# SPDX-License-Identifier: MIT
"""What goes on between two ends: frames that arrive, work that completes, and the end of it.

All of it happens in the thread of the event loop, and between two awaits it is consistent. Two
tasks wait for completions, of what was sent and of what has arrived; they end when the parts are
closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from .. import AsyncEventError, ClosedError, WCStatus, WorkCompletion
from .._timeouts import deadline
from ..cm import DisconnectedError
from . import _wire as wire
from ._errors import (
    ConnectionLostError,
    MessagesError,
    PeerClosedError,
    ProtocolError,
    RefusedError,
    fresh,
)
from ._event_loop import wait
from ._flow import Flow
from ._inbox import Inbox
from ._incoming import Incoming
from ._liveness import Asking
from ._queue import SendQueue
from ._rdma_read import Reader
from ._resources import LAST_WORDS
from ._sender import Outgoing, Sender
from ._wire import ACK, CLOSE, CLOSING, DATA, OFFER, Hello, Kind, Limits

if TYPE_CHECKING:
    from ..aio import AsyncCQ
    from ._resources import Parts

BATCH: Final = 64
CLOSED: Final = "this connection was closed"
UNREADY: Final = "the peer has accepted, and has not posted its receives"
REFUSED: Final = "the peer closes the connection, and receives no more"


class _LastWords:
    """A frame after which no more are sent."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.have_arrived = False

    def completed(self) -> None:
        self.have_arrived = True
        self._wake()


class Session:
    """One end of a connection.

    loop: that it belongs to.
    error: why it is over.
    is_ending: whether the program has closed it, so that nothing more is sent or received.
    readers: how many tasks are in recv() whose message is being read.
    """

    def __init__(self, parts: Parts, peer: Hello) -> None:
        options = parts.options
        self.parts = parts
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        eager = min(options.eager, peer.eager)  # a smaller frame follows the table of its offer
        self.limits: Limits = Limits(options.max_frames, options.max_message, eager)
        self.flow: Flow = Flow(options.credits, peer.credits)
        self._queue = SendQueue(parts.qp, parts.mr, parts.sending_from, parts.places)
        self.sender: Sender = Sender(parts, self.flow, self._queue, peer, self.go_on)
        self.reader: Reader = Reader(self._queue, parts.reads)
        self.inbox: Inbox[Incoming] = Inbox("no message came in time")
        self.error: MessagesError | ClosedError | None = None
        self.is_ending: bool = False
        self.readers: int = 0
        self.settling: asyncio.Task[None] | None = None  # which closes the parts
        self._is_open = False  # both ends have posted their receives, as far as this one knows
        self._has_refused = False  # what the peer sends: it was told that nothing is received
        self._farewell: _LastWords | None = None
        self._sleepers: list[asyncio.Future[None]] = []
        self._asking = Asking(options.keepalive, self._waits_for_peer, self._ask)
        # iWARP devices need not tell what is solicited: siw does not.
        solicited = not parts.device.is_iwarp
        self._pumps = [
            asyncio.ensure_future(self._pump(parts.received, self._on_received, solicited)),
            asyncio.ensure_future(self._pump(parts.sent, self._on_sent, False)),
        ]

    # ---- beginning ----

    async def open(self, end: float | None) -> None:
        """Open the connection, as the end that connects does, and wait until the peer has posted
        its receives."""
        self._send_first_ack()
        self.check_open()
        host, port = self.parts.peer
        what = f"connecting to {host} port {port}: no answer in time; {UNREADY}"
        await self._until(lambda: self._is_open, end, what)
        if not self._is_open:
            self.check_open()  # the end of one that was open is for recv() to tell
        self._asking.end()  # that was for the answer
        self._asking.look()

    def answer_opening(self) -> None:
        """Let the peer send, as the end that accepts does: the receives are posted."""
        self._is_open = True
        self._send_first_ack()

    def _send_first_ack(self) -> None:
        self.flow.is_ack_due = self.flow.is_ack_urgent = True
        self.go_on()

    # ---- what the device tells ----

    async def _pump(
        self,
        acq: AsyncCQ,
        handle: Callable[[list[WorkCompletion]], None],
        solicited_only: bool,
    ) -> None:
        """Hand on what completes, until the AsyncCQ is closed."""
        try:
            while True:
                handle(await acq.wait(BATCH, solicited_only=solicited_only))
        except ClosedError:
            pass
        except asyncio.CancelledError:  # the event loop ends
            self.abort()
            raise
        except Exception as e:  # the device fails, or there is no memory
            self._lose(str(e) or type(e).__name__, e)

    def look(self) -> None:
        """Have taken in soon what has completed without an event: credits, for example."""
        if self.error is None:
            with contextlib.suppress(ClosedError, AsyncEventError):  # the tasks hear of it as well
                self._on_received(self.parts.received.poll(BATCH))  # or they get them

    def _on_received(self, wcs: list[WorkCompletion]) -> None:
        for wc in wcs:
            if self.error is not None:
                return
            if not wc.ok:
                # The peer closes when it has heard our farewell, of which its completion tells.
                if self._farewell is None:
                    self._failed(wc)
                return
            try:
                self._arrived(wc.wr_id, self.parts.slot(wc.wr_id, wc.byte_len or 0))
            except ProtocolError as e:
                self.violated(e)
                return
        self.go_on()

    def _arrived(self, slot: int, frame: memoryview) -> None:
        header = wire.parse_header(frame)
        if newly := self.flow.on_header(header):
            self.sender.done(newly)
        if header.kind is DATA:
            self.inbox.put(Incoming(slot, frame, wire.parse_data(frame, self.limits)))
        elif header.kind is OFFER:
            offer = wire.parse_offer(frame, self.limits)
            self.inbox.put(Incoming(slot, frame, [], offer, self.flow.offers_received - 1))
        elif header.kind is ACK:
            self._is_open = True
            self.parts.repost(slot)
            if header.flags & CLOSING:
                self.sender.refuse(PeerClosedError(REFUSED))
        elif header.kind is CLOSE:
            if self.flow.offers_received > self.flow.offers_read and not self._has_refused:
                raise ProtocolError("a CLOSE before all messages were read")
            self._end(PeerClosedError("the peer has closed the connection"))
        else:
            self._end(self._told(wire.parse_error(frame)))

    def _told(self, words: str) -> MessagesError:
        """By the peer, why it has closed the connection."""
        if self._is_open:
            return ProtocolError(f"the peer has closed the connection: {words}")
        host, port = self.parts.peer
        return RefusedError(f"{host} port {port} has refused the connection: {words}")

    def _on_sent(self, wcs: list[WorkCompletion]) -> None:
        for wc in wcs:
            if not wc.ok:
                self._failed(wc)
                return
            self._queue.completed(wc.wr_id)
        self.go_on()

    def _failed(self, wc: WorkCompletion) -> None:
        """A work request has failed, and so the queue pair."""
        if self.error is not None:
            self.wake()
            return
        if wc.status == WCStatus.WR_FLUSH_ERR:
            with contextlib.suppress(ClosedError, AsyncEventError):
                others = self.parts.sent.poll(BATCH)
                wc = next((one for one in others if one.status != WCStatus.WR_FLUSH_ERR), wc)
        self._lose(f"the queue pair has failed: {getattr(wc.status, 'name', wc.status)}")

    # ---- going on ----

    def go_on(self) -> None:
        """Send what can be sent: messages, reads, and an ACK if no message has carried it."""
        if self.error is None:
            try:
                if self.sender.waiting:
                    self.sender.post()
                if not self.reader.is_idle:
                    self.reader.post()
                if self.flow.is_ack_due:
                    self._acknowledge()
            except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
                self._lose(str(e), e)
        self._asking.look()
        if self._sleepers:
            self.wake()

    def send_now(self, views: Sequence[memoryview], nbytes: int) -> bool:
        """Send a message at once, if that is possible."""
        try:
            is_sent = self.sender.post_now(views, nbytes)
        except (OSError, ClosedError, RuntimeError) as e:
            self._lose(str(e), e)
            self.check_open()  # raises
            raise
        if is_sent and self.flow.is_low:
            self.look()  # perhaps credits have come without an event
        elif is_sent and self.parts.options.keepalive is not None:
            self._asking.look()
        return is_sent

    def _waits_for_peer(self) -> bool:
        """Whether it has to ask from time to time if the peer is alive. On iWARP a write completes
        before the peer has it, and tells nothing."""
        if self.error is not None or self.parts.device.is_iwarp:
            return False
        if self.flow.unread_offers or self.sender.waiting:
            return True
        if not self.reader.is_idle or not self._is_open:
            return True
        may_wait = self.is_ending or self.parts.options.keepalive is not None
        return may_wait and not self._queue.is_empty

    def _ask(self) -> None:
        try:
            if not self.reader.ask():
                self._queue.post_question()
        except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
            self._lose(str(e), e)

    def _acknowledge(self, flags: int = 0) -> None:
        frame = self._queue.frame(wire.HEADER_SIZE)
        if frame is None:
            return  # it is due still, and goes when there is room
        is_urgent = self.flow.is_ack_urgent or flags != 0
        wire.put_header(frame, self.flow.header(ACK)._replace(flags=flags))
        self._queue.post_frame(solicited=is_urgent)

    def taken(self, incoming: Incoming) -> None:
        """The program has the message: its memory awaits another one."""
        if self.error is None:
            self.parts.repost(incoming.slot)
            self.flow.return_credit()
            if incoming.offer is not None:
                self.flow.mark_read(incoming.number)
            if self.flow.is_ack_due:
                self.go_on()

    def wake(self) -> None:
        """Something has changed, for tasks that close the connection."""
        for future in self._sleepers:
            if not future.done():
                future.set_result(None)

    async def _until(self, condition: Callable[[], bool], end: float | None, what: str) -> None:
        """Sleep until the condition holds, or the connection is over for another reason."""
        before = self.error
        while not condition() and self.error is before and not self.parts.is_closed:
            future = asyncio.get_running_loop().create_future()
            self._sleepers.append(future)
            try:
                await wait(future, end, what)
            finally:
                self._sleepers.remove(future)

    def why_not_sent(self, outgoing: Outgoing) -> str:
        """For a send() that has timed out."""
        flow, what = self.flow, "the message was not sent in time"
        if outgoing not in self.sender.waiting:
            return f"{what}; the peer's program has not received it"
        if flow.credits < 1:
            return f"{what}; the peer's program has not received the {flow.unreceived} before it"
        if flow.unread_offers:
            large = f"{flow.unread_offers} large ones"
            return f"{what}; the peer's program has not received {large} before it"
        return f"{what}; {self.parts.sent.cq._why_silent()}"

    # ---- ends ----

    def check_open(self) -> None:
        if self.error is not None:
            raise fresh(self.error)
        if self.is_ending:
            raise ClosedError(CLOSED)

    async def say_farewell(self, end: float | None) -> None:
        """When all that was sent has arrived."""
        self.is_ending = True
        self.inbox.fail(ClosedError(CLOSED))
        what = "the peer has not received everything in time, so the connection was aborted"
        self.look()
        await self._receive_no_more(end, what)
        await self._until(lambda: self.sender.is_idle, end, what)
        if self.error is None:
            await self._send_last(CLOSE, b"", end, what)
        if isinstance(self.error, ConnectionLostError | ProtocolError):
            raise fresh(self.error)
        self._end(ClosedError(CLOSED))

    async def _receive_no_more(self, end: float | None, what: str) -> None:
        """What tasks have begun to read they get first. The peer is told where it is to read
        something of ours: it may close, too, and wait for us."""

        def can_tell() -> bool:
            is_reading = self.readers or not self.reader.is_idle
            return not is_reading and self._queue.has_room(wire.HEADER_SIZE)

        self.go_on()  # what was given up is no more to be read
        await self._until(can_tell, end, what)
        if self.error is None and not self.sender.is_idle:
            self._has_refused = True
            self._acknowledge(CLOSING)

    async def _send_last(self, kind: Kind, words: bytes, end: float | None, what: str) -> None:
        """Send a frame after which there are no more, and wait until it has arrived."""
        length = wire.HEADER_SIZE + len(words)
        await self._until(lambda: self._queue.has_room(length), end, what)
        if self.parts.is_closed or (frame := self._queue.frame(length)) is None:
            return
        wire.put_header(frame, self.flow.header(kind))
        wire.put_error_text(frame, words)
        last = _LastWords(self.wake)
        if kind is CLOSE:
            self._farewell = last
        self._queue.post_frame(solicited=True, done=last)
        await self._until(lambda: last.have_arrived, end, what)

    def forget(self) -> None:
        """The program has dropped the connection; perhaps the collector did, in another thread.
        A timer that still runs finds that it is over."""
        if self.error is None:
            self.error = ClosedError("this connection was dropped")
        self.parts.registrations.pinning.is_forsaken = True
        self.parts.close()

    def abort(self) -> None:
        if self.error is None:
            self.error = ClosedError("this connection was aborted")
        self.parts.close()
        if not self.loop.is_closed():  # otherwise no task waits any more
            self._release()

    def _lose(self, text: str, why: BaseException | None = None) -> None:
        host, port = self.parts.peer
        if self.parts.conn is not None and self.parts.conn.error is not None:
            why = self.parts.conn.error  # rdma_cm knows better
            text = str(why)
        if self._farewell is not None and isinstance(why, DisconnectedError):
            # Of what was sent before the farewell all has arrived. A peer that has heard it closes,
            # which can be known here before the device has told that it has arrived.
            self._end(ClosedError(CLOSED))
            return
        error = ConnectionLostError(f"the connection to {host} port {port} is lost: {text}")
        error.__cause__ = why
        self._end(error)

    def violated(self, error: ProtocolError) -> None:
        """The peer is told why, as far as it listens, which it does not behind a farewell; and
        that is the end."""
        self._end(error, wire.error_text(str(error)) if self._farewell is None else b"")

    def _end(self, error: MessagesError | ClosedError, words: bytes = b"") -> None:
        """It is over, for the first reason that there is; the task that closes it goes on."""
        if self.error is not None:
            return
        self.error = error
        self.inbox.fail(error)
        self.wake()
        self.settling = asyncio.ensure_future(self._settle(words))

    async def _settle(self, words: bytes) -> None:
        """Close what it is made of, and then tell the tasks whose messages are under way."""
        try:
            with contextlib.suppress(TimeoutError, OSError, ClosedError):
                if words:
                    await self._send_last(Kind.ERROR, words, deadline(LAST_WORDS), "unheard")
                if words or isinstance(self.error, ClosedError):
                    await self.parts.is_heard()
            await self.parts.aclose()
        finally:
            self.parts.close()
            self._release()

    def _release(self) -> None:
        """The queue pair is closed: the device does nothing any more."""
        assert self.error is not None, "it is over"
        self._asking.end()
        self.inbox.fail(self.error)
        self.sender.fail(self.error)
        self.reader.fail(self.error)
        self.wake()
