# SPDX-License-Identifier: MIT
"""One end of a connection, as far as it is rare: ends, failures, CLOSE and ERROR.

The core dispatches completions and frames, in the thread of the event loop: see csrc/messages. It
calls a method here for each of these.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from .. import ClosedError, WCStatus, _core
from .._printable import printable
from .._registered import SLOW
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
from ._event_loop import check_loop, wait
from ._flow import Flow
from ._incoming import largest_read, reads_together
from ._liveness import LivenessTimer
from ._memory import READABLE
from ._queue import SendQueue
from ._rdma_read import Reader
from ._resources import ERROR_TIMEOUT
from ._sender import Outgoing, Sender
from ._wire import CLOSE, CLOSING, Hello, Kind, Limits

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer
    from ._incoming import Frame, Message
    from ._resources import Resources

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


class Session(_core.MessageSession):
    """One end of a connection; the core has what is frequent.

    loop: the event loop that it belongs to.
    error: why it is over; None while it is not.
    is_closing: whether the program closes it, so that it sends and receives no more messages.
    active_recvs: how many tasks are in recv() whose message is being read.
    teardown: the task that closes the resources, once it is over.
    """

    error: MessagesError | ClosedError | None

    def __init__(self, resources: Resources, peer: Hello) -> None:
        options = resources.options
        self.resources = resources
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        eager = min(options.eager, peer.eager)  # a smaller frame follows the table of its offer
        self.limits: Limits = Limits(options.max_frames, options.max_message, eager)
        self.flow: Flow = Flow(options.credits, peer.credits)
        super().__init__(
            qp=resources.qp,
            mr=resources.mr,
            send_acq=resources.send_acq,
            recv_acq=resources.recv_acq,
            loop=self.loop,
            flow=self.flow,
            ring=_core.MessageRing(resources.mr.length - resources.send_offset),
            receives=options.receives,
            slot_size=options.eager,
            send_depth=resources.send_depth,
            eager=eager,
            limits=self.limits,
            peer_limits=(peer.max_frames, peer.max_message),
            registrations=resources.registrations,
            readable=READABLE,
            sink=resources.device.sink,
            slow=SLOW,
            offers=options.offers,
        )
        self._queue = SendQueue(self, resources.memory)
        self.sender: Sender = Sender(
            resources, self, self.flow, self._queue, peer, self.post_pending
        )
        self.reader: Reader = Reader(self._queue, resources.max_reads)
        self.active_recvs: int = 0
        self.teardown: asyncio.Task[None] | None = None
        self._has_sent_closing = False  # so offers of the peer may remain unread
        self._close_frame: _LastFrame | None = None
        self._sleepers: list[asyncio.Future[None]] = []
        self._liveness = LivenessTimer(self, options.keepalive, self._awaits_peer, self._probe)
        self.is_watched: bool = options.keepalive is not None
        self.has_pending: bool = True
        # An iWARP device need not report solicited events: siw does not.
        self._start(not resources.device.is_iwarp)
        self._is_over: asyncio.Future[None] = self.loop.create_future()
        self._keeper = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        """Sleep until the connection is over, or its event loop ends, which cancels all tasks."""
        try:
            await self._is_over
        except asyncio.CancelledError:
            self.abort()
            raise

    def _end_keeper(self) -> None:
        if not self._is_over.done():
            self._is_over.set_result(None)

    # ---- beginning ----

    async def open_as_connector(self, end: float | None) -> None:
        """Send the initial ACK, and wait for the peer's, which has posted its receives then."""
        self._send_initial_ack()
        self.check_open()
        host, port = self.resources.peer
        what = f"connecting to {host} port {port}: no answer in time; {NOT_READY}"
        await self._wait_until(lambda: self.is_open, end, what)
        if not self.is_open:
            self.check_open()  # if it was open, recv() raises what has ended it
        self._liveness.stop()  # it was started for the peer's ACK
        self._liveness.update()

    def open_as_acceptor(self) -> None:
        """Send the initial ACK, with which the peer may send: the receives are posted."""
        self.is_open = True
        self._send_initial_ack()

    def _send_initial_ack(self) -> None:
        self.flow.is_ack_due = self.flow.is_ack_urgent = True
        self.post_pending()

    # ---- called by the core ----

    def _breaks(self, breach: str) -> None:
        """The peer has broken the protocol."""
        self.protocol_error(ProtocolError(breach))

    def _failed(self, error: Exception) -> None:
        """The device fails, or there is no memory. A ClosedError is the end of the resources."""
        if not isinstance(error, ClosedError):
            self._connection_lost(str(error) or type(error).__name__, error)

    def _post_offer(self, outgoing: Outgoing) -> bool | Exception:
        return self.sender.post_offer(outgoing)

    def _release(self, outgoing: Outgoing) -> None:
        outgoing.release(self.resources)

    def _timeout(self, is_waiting: bool) -> TimeoutError:
        """Return the TimeoutError of a send(), which still waits to be sent, or to be read."""
        return TimeoutError(f"the message was not sent in time; {self._why_not_sent(is_waiting)}")

    def _on_closing(self, _: None) -> None:
        """The peer has sent a CLOSING."""
        try:
            self.sender.peer_closing(PeerClosedError(PEER_CLOSING))
        except ProtocolError as e:
            self.protocol_error(e)

    def _on_close(self, _: None) -> None:
        if self.flow.offers_received > self.flow.offers_read and not self._has_sent_closing:
            self.protocol_error(ProtocolError("a CLOSE before all messages were read"))
            return
        self._finish(PeerClosedError("the peer has closed the connection"))

    def _on_error(self, text: bytes) -> None:
        self._finish(self._peer_error(printable(text)))

    def _peer_error(self, text: str) -> MessagesError:
        """Return the exception for an ERROR of the peer."""
        if self.is_open:
            return ProtocolError(f"the peer has closed the connection: {text}")
        host, port = self.resources.peer
        return RefusedError(f"{host} port {port} has refused the connection: {text}")

    def _on_failed_receive(self, status: int) -> None:
        # Once it has our CLOSE, the peer disconnects. _on_failed_send() gets its completion.
        if self._close_frame is None:
            self._on_failed_send(status)

    def _on_failed_send(self, status: int) -> None:
        """A work request has failed, and so the queue pair."""
        if self.error is not None:
            self.wake()
            return
        try:
            name = WCStatus(status).name
        except ValueError:
            name = str(status)
        self._connection_lost(f"the queue pair has failed: {name}")

    def _refuse_to_receive(self) -> None:
        raise ClosedError(CLOSED)

    def _check_loop(self) -> None:
        check_loop(self.loop, "this connection")

    def _fresh(self, error: Exception) -> Exception:
        return fresh(error)

    def _update(self) -> None:
        """Something was sent."""
        self._liveness.update()

    # ---- posting ----

    def post_pending(self) -> None:
        """Post what can be posted: messages, reads, and an ACK if no message has carried it."""
        if self.error is None:
            try:
                self.post_waiting()
                if not self.reader.is_idle:
                    self.reader.post()
                if self.flow.is_ack_due:
                    self.send_ack(0)
            except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
                self._connection_lost(str(e), e)
        self._liveness.update()
        if self._sleepers:
            self.wake()
        self._note_pending()

    def _note_pending(self) -> None:
        """Tell the core whether post_pending() has something to do when anything happens."""
        pending = bool(self._sleepers or self.is_closing or not self.reader.is_idle)
        if pending != self.has_pending:
            self.has_pending = pending

    @property
    def _is_reading(self) -> bool:
        return not self.reader.is_idle or self.reads_in_flight > 0

    def read_into(
        self, message: Message, into: Sequence[AnyBuffer] | None
    ) -> list[Frame] | _core.MessageReading | None:
        """Have the core read an offered message into buffers, if that is simple."""
        together = min(reads_together(self.resources), self.reader.free)
        if into is None or together < 1 or not message[-1] or self.error is not None:
            return None
        return self.read(message, into, largest_read(self.resources), together)

    def _awaits_peer(self) -> bool:
        """Whether something can be ended only by the peer, so that its device must be probed.

        Not on iWARP, where a write completes before the peer has it.
        """
        if self.error is not None or self.resources.device.is_iwarp:
            return False
        if self.flow.unread_offers or self.sends_waiting:
            return True
        if self._is_reading or not self.is_open:
            return True
        may_wait = self.is_closing or self.resources.options.keepalive is not None
        return may_wait and not self._queue.is_empty

    def _probe(self) -> None:
        try:
            if not self.reader.probe() and not self.probe_reads():
                self._queue.post_probe()
        except (OSError, ClosedError, RuntimeError) as e:  # of the queue pair
            self._connection_lost(str(e), e)

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
            self.has_pending = True
            try:
                await wait(future, end, what)
            finally:
                self._sleepers.remove(future)

    def _why_not_sent(self, is_waiting: bool) -> str:
        flow = self.flow
        if not is_waiting:
            return "the peer's program has not received it"
        if flow.credits < 1:
            return f"the peer's program has not received the {flow.unreceived} before it"
        if flow.unread_offers:
            large = f"{flow.unread_offers} large ones"
            return f"the peer's program has not received {large} before it"
        return self.resources.send_acq.cq._why_silent()

    # ---- ends ----

    def check_open(self) -> None:
        if self.error is not None:
            raise fresh(self.error)
        if self.is_closing:
            raise ClosedError(CLOSED)

    async def close_gracefully(self, end: float | None) -> None:
        """Send a CLOSE when the peer has received everything, and wait until that has arrived."""
        self.is_closing = self.has_pending = True
        self.fail_receives(ClosedError(CLOSED))
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
            is_reading = self.active_recvs or self._is_reading
            return not is_reading and self._queue.has_room(wire.HEADER_SIZE)

        self.post_pending()  # so that reads which were cancelled leave the reader
        await self._wait_until(may_close, end, what)
        if self.error is None and not self.sender.is_idle:
            self._has_sent_closing = True
            self.send_ack(CLOSING)

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
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self._end_keeper)

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
        self.fail_receives(error)
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
        self.fail_receives(self.error)
        self.fail_sends(self.error)
        self.reader.fail(self.error)
        self.fail_reads(self.error)
        self.wake()
        self._end_keeper()
