# SPDX-License-Identifier: MIT
"""One end of a connection: it dispatches what completes, and sends ACK, CLOSE and ERROR frames.

All of it happens in the thread of the event loop, and between two awaits it is consistent. Two
tasks wait for completions, of sends and of receives; they end when the resources are closed.
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
from ._liveness import LivenessTimer
from ._queue import SendQueue
from ._rdma_read import Reader
from ._resources import ERROR_TIMEOUT
from ._sender import Outgoing, Sender
from ._wire import ACK, CLOSE, CLOSING, DATA, OFFER, Hello, Kind, Limits

if TYPE_CHECKING:
    from ..aio import AsyncCQ
    from ._resources import Resources

BATCH: Final = 64
CLOSED: Final = "this connection was closed"
NOT_READY: Final = "the peer has accepted, and has not posted its receives"
PEER_CLOSING: Final = "the peer closes the connection, and receives no more"


class _LastFrame:
    """A CLOSE or an ERROR, after which no frames are sent."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.has_arrived = False

    def completed(self) -> None:
        self.has_arrived = True
        self._wake()


class Session:
    """One end of a connection.

    loop: the event loop that it belongs to.
    error: why it is over; None while it is not.
    is_closing: whether the program closes it, so that it sends and receives no more messages.
    active_recvs: how many tasks are in recv() whose message is being read.
    teardown: the task that closes the resources, once it is over.
    """

    def __init__(self, resources: Resources, peer: Hello) -> None:
        options = resources.options
        self.resources = resources
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        eager = min(options.eager, peer.eager)  # a smaller frame follows the table of its offer
        self.limits: Limits = Limits(options.max_frames, options.max_message, eager)
        self.flow: Flow = Flow(options.credits, peer.credits)
        self._queue = SendQueue(
            resources.qp, resources.mr, resources.send_offset, resources.send_depth
        )
        self.sender: Sender = Sender(resources, self.flow, self._queue, peer, self.post_pending)
        self.reader: Reader = Reader(self._queue, resources.max_reads)
        self.inbox: Inbox[Incoming] = Inbox("no message came in time")
        self.error: MessagesError | ClosedError | None = None
        self.is_closing: bool = False
        self.active_recvs: int = 0
        self.teardown: asyncio.Task[None] | None = None
        self._is_open = False  # this end knows that both have posted their receives
        self._has_sent_closing = False  # so offers of the peer may remain unread
        self._close_frame: _LastFrame | None = None
        self._sleepers: list[asyncio.Future[None]] = []
        self._liveness = LivenessTimer(options.keepalive, self._awaits_peer, self._probe)
        # An iWARP device need not report solicited events: siw does not.
        solicited = not resources.device.is_iwarp
        self._pumps = [
            asyncio.ensure_future(self._pump(resources.recv_acq, self._on_received, solicited)),
            asyncio.ensure_future(self._pump(resources.send_acq, self._on_sent, False)),
        ]

    # ---- beginning ----

    async def open_as_connector(self, end: float | None) -> None:
        """Send the initial ACK, and wait for the peer's, which has posted its receives then."""
        self._send_initial_ack()
        self.check_open()
        host, port = self.resources.peer
        what = f"connecting to {host} port {port}: no answer in time; {NOT_READY}"
        await self._wait_until(lambda: self._is_open, end, what)
        if not self._is_open:
            self.check_open()  # if it was open, recv() raises what has ended it
        self._liveness.stop()  # it was started for the peer's ACK
        self._liveness.update()

    def open_as_acceptor(self) -> None:
        """Send the initial ACK, with which the peer may send: the receives are posted."""
        self._is_open = True
        self._send_initial_ack()

    def _send_initial_ack(self) -> None:
        self.flow.is_ack_due = self.flow.is_ack_urgent = True
        self.post_pending()

    # ---- completions ----

    async def _pump(
        self,
        acq: AsyncCQ,
        handle: Callable[[list[WorkCompletion]], None],
        solicited_only: bool,
    ) -> None:
        """Handle completions until the AsyncCQ is closed."""
        try:
            while True:
                handle(await acq.wait(BATCH, solicited_only=solicited_only))
        except ClosedError:
            pass
        except asyncio.CancelledError:  # the event loop ends
            self.abort()
            raise
        except Exception as e:  # the device fails, or there is no memory
            self._connection_lost(str(e) or type(e).__name__, e)

    def poll_received(self) -> None:
        """Handle receives that have completed without an event: ACKs that return credits."""
        if self.error is None:
            with contextlib.suppress(ClosedError, AsyncEventError):  # which end the task, too
                self._on_received(self.resources.recv_acq.poll(BATCH))

    def _on_received(self, wcs: list[WorkCompletion]) -> None:
        for wc in wcs:
            if self.error is not None:
                return
            if not wc.ok:
                # Once it has our CLOSE, the peer disconnects. _on_sent() gets its completion.
                if self._close_frame is None:
                    self._on_failed(wc)
                return
            try:
                self._on_frame(wc.wr_id, self.resources.received_frame(wc.wr_id, wc.byte_len or 0))
            except ProtocolError as e:
                self.protocol_error(e)
                return
        self.post_pending()

    def _on_frame(self, slot: int, frame: memoryview) -> None:
        header = wire.parse_header(frame)
        if newly := self.flow.on_header(header):
            self.sender.offers_read(newly)
        if header.kind is DATA:
            self.inbox.put(Incoming(slot, frame, wire.parse_data(frame, self.limits)))
        elif header.kind is OFFER:
            offer = wire.parse_offer(frame, self.limits)
            self.inbox.put(Incoming(slot, frame, [], offer, self.flow.offers_received - 1))
        elif header.kind is ACK:
            self._is_open = True
            self.resources.repost(slot)
            if header.flags & CLOSING:
                self.sender.peer_closing(PeerClosedError(PEER_CLOSING))
        elif header.kind is CLOSE:
            if self.flow.offers_received > self.flow.offers_read and not self._has_sent_closing:
                raise ProtocolError("a CLOSE before all messages were read")
            self._finish(PeerClosedError("the peer has closed the connection"))
        else:
            self._finish(self._peer_error(wire.parse_error(frame)))

    def _peer_error(self, text: str) -> MessagesError:
        """Return the exception for an ERROR of the peer."""
        if self._is_open:
            return ProtocolError(f"the peer has closed the connection: {text}")
        host, port = self.resources.peer
        return RefusedError(f"{host} port {port} has refused the connection: {text}")

    def _on_sent(self, wcs: list[WorkCompletion]) -> None:
        for wc in wcs:
            if not wc.ok:
                self._on_failed(wc)
                return
            self._queue.completed(wc.wr_id)
        self.post_pending()

    def _on_failed(self, wc: WorkCompletion) -> None:
        """A work request has failed, and so the queue pair."""
        if self.error is not None:
            self.wake()
            return
        if wc.status == WCStatus.WR_FLUSH_ERR:
            with contextlib.suppress(ClosedError, AsyncEventError):
                others = self.resources.send_acq.poll(BATCH)
                wc = next((one for one in others if one.status != WCStatus.WR_FLUSH_ERR), wc)
        self._connection_lost(f"the queue pair has failed: {getattr(wc.status, 'name', wc.status)}")

    # ---- posting ----

    def post_pending(self) -> None:
        """Post what can be posted: messages, reads, and an ACK if no message has carried it."""
        if self.error is None:
            try:
                if self.sender.waiting:
                    self.sender.post()
                if not self.reader.is_idle:
                    self.reader.post()
                if self.flow.is_ack_due:
                    self._send_ack()
            except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
                self._connection_lost(str(e), e)
        self._liveness.update()
        if self._sleepers:
            self.wake()

    def try_send(self, views: Sequence[memoryview], nbytes: int) -> bool:
        """Send a message that is copied and need not wait. Return False if it is not so."""
        try:
            is_sent = self.sender.try_post(views, nbytes)
        except (OSError, ClosedError, RuntimeError) as e:
            self._connection_lost(str(e), e)
            self.check_open()  # raises
            raise
        if is_sent and self.flow.is_low:
            self.poll_received()  # perhaps credits have come without an event
        elif is_sent and self.resources.options.keepalive is not None:
            self._liveness.update()
        return is_sent

    def _awaits_peer(self) -> bool:
        """Whether something can be ended only by the peer, so that its device must be probed.

        Not on iWARP, where a write completes before the peer has it.
        """
        if self.error is not None or self.resources.device.is_iwarp:
            return False
        if self.flow.unread_offers or self.sender.waiting:
            return True
        if not self.reader.is_idle or not self._is_open:
            return True
        may_wait = self.is_closing or self.resources.options.keepalive is not None
        return may_wait and not self._queue.is_empty

    def _probe(self) -> None:
        try:
            if not self.reader.probe():
                self._queue.post_probe()
        except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
            self._connection_lost(str(e), e)

    def _send_ack(self, flags: int = 0) -> None:
        frame = self._queue.reserve_frame(wire.HEADER_SIZE)
        if frame is None:
            return  # it remains due
        is_urgent = self.flow.is_ack_urgent or flags != 0
        wire.put_header(frame, self.flow.header(ACK)._replace(flags=flags))
        self._queue.post_frame(solicited=is_urgent)

    def message_taken(self, incoming: Incoming) -> None:
        """The program has received the message: post its memory again, and return the credit."""
        if self.error is None:
            self.resources.repost(incoming.slot)
            self.flow.return_credit()
            if incoming.offer is not None:
                self.flow.mark_read(incoming.number)
            if self.flow.is_ack_due:
                self.post_pending()

    def wake(self) -> None:
        """Wake the tasks in _wait_until()."""
        for future in self._sleepers:
            if not future.done():
                future.set_result(None)

    async def _wait_until(
        self, condition: Callable[[], bool], end: float | None, what: str
    ) -> None:
        """Sleep until the condition holds, or the connection is over for another reason."""
        before = self.error
        while not condition() and self.error is before and not self.resources.is_closed:
            future = asyncio.get_running_loop().create_future()
            self._sleepers.append(future)
            try:
                await wait(future, end, what)
            finally:
                self._sleepers.remove(future)

    def timeout_reason(self, outgoing: Outgoing) -> str:
        """Return the text of the TimeoutError of a send()."""
        flow, what = self.flow, "the message was not sent in time"
        if outgoing not in self.sender.waiting:
            return f"{what}; the peer's program has not received it"
        if flow.credits < 1:
            return f"{what}; the peer's program has not received the {flow.unreceived} before it"
        if flow.unread_offers:
            large = f"{flow.unread_offers} large ones"
            return f"{what}; the peer's program has not received {large} before it"
        return f"{what}; {self.resources.send_acq.cq._why_silent()}"

    # ---- ends ----

    def check_open(self) -> None:
        if self.error is not None:
            raise fresh(self.error)
        if self.is_closing:
            raise ClosedError(CLOSED)

    async def close_gracefully(self, end: float | None) -> None:
        """Send a CLOSE when the peer has received everything, and wait until that has arrived."""
        self.is_closing = True
        self.inbox.fail(ClosedError(CLOSED))
        what = "the peer has not received everything in time, so the connection was aborted"
        self.poll_received()
        await self._stop_receiving(end, what)
        await self._wait_until(lambda: self.sender.is_idle, end, what)
        if self.error is None:
            await self._send_last_frame(CLOSE, b"", end, what)
        if isinstance(self.error, ConnectionLostError | ProtocolError):
            raise fresh(self.error)
        self._finish(ClosedError(CLOSED))

    async def _stop_receiving(self, end: float | None, what: str) -> None:
        """Wait for the reads that have begun. If the peer still has to read something of ours,
        send a CLOSING: the peer may be closing, too, and wait for us."""

        def may_close() -> bool:
            is_reading = self.active_recvs or not self.reader.is_idle
            return not is_reading and self._queue.has_room(wire.HEADER_SIZE)

        self.post_pending()  # so that reads which were cancelled leave the reader
        await self._wait_until(may_close, end, what)
        if self.error is None and not self.sender.is_idle:
            self._has_sent_closing = True
            self._send_ack(CLOSING)

    async def _send_last_frame(self, kind: Kind, text: bytes, end: float | None, what: str) -> None:
        """Send a CLOSE or an ERROR, with its text, and wait until it has arrived."""
        length = wire.HEADER_SIZE + len(text)
        await self._wait_until(lambda: self._queue.has_room(length), end, what)
        if self.resources.is_closed or (frame := self._queue.reserve_frame(length)) is None:
            return
        wire.put_header(frame, self.flow.header(kind))
        wire.put_error_text(frame, text)
        last = _LastFrame(self.wake)
        if kind is CLOSE:
            self._close_frame = last
        self._queue.post_frame(solicited=True, done=last)
        await self._wait_until(lambda: last.has_arrived, end, what)

    def drop(self) -> None:
        """Close the resources of a connection that was dropped, perhaps in another thread, by the
        garbage collector. A timer that still runs finds that it is over."""
        if self.error is None:
            self.error = ClosedError("this connection was dropped")
        self.resources.registrations.pinning.is_dropped = True
        self.resources.close()

    def abort(self) -> None:
        if self.error is None:
            self.error = ClosedError("this connection was aborted")
        self.resources.close()
        if not self.loop.is_closed():  # otherwise no task waits any more
            self._fail_waiters()

    def _connection_lost(self, text: str, why: BaseException | None = None) -> None:
        host, port = self.resources.peer
        if self.resources.conn is not None and self.resources.conn.error is not None:
            why = self.resources.conn.error  # rdma_cm knows better
            text = str(why)
        if self._close_frame is not None and isinstance(why, DisconnectedError):
            # Everything before the CLOSE has arrived. The peer disconnects when it has the CLOSE,
            # and that event can come before the completion of the CLOSE.
            self._finish(ClosedError(CLOSED))
            return
        error = ConnectionLostError(f"the connection to {host} port {port} is lost: {text}")
        error.__cause__ = why
        self._finish(error)

    def protocol_error(self, error: ProtocolError) -> None:
        """End the connection. The peer gets an ERROR, unless a CLOSE was sent, the last frame."""
        self._finish(error, wire.error_text(str(error)) if self._close_frame is None else b"")

    def _finish(self, error: MessagesError | ClosedError, text: bytes = b"") -> None:
        """End it, for this reason, unless it is over; `text`: of an ERROR to send."""
        if self.error is not None:
            return
        self.error = error
        self.inbox.fail(error)
        self.wake()
        self.teardown = asyncio.ensure_future(self._tear_down(text))

    async def _tear_down(self, text: bytes) -> None:
        """Close the resources, and then fail the tasks whose messages are under way."""
        try:
            with contextlib.suppress(TimeoutError, OSError, ClosedError):
                if text:
                    await self._send_last_frame(Kind.ERROR, text, deadline(ERROR_TIMEOUT), "")
                if text or isinstance(self.error, ClosedError):
                    await self.resources.wait_delivered()
            await self.resources.aclose()
        finally:
            self.resources.close()
            self._fail_waiters()

    def _fail_waiters(self) -> None:
        """Fail what waits: the queue pair is closed, and the device uses no memory any more."""
        assert self.error is not None, "it is over"
        self._liveness.stop()
        self.inbox.fail(self.error)
        self.sender.fail(self.error)
        self.reader.fail(self.error)
        self.wake()
