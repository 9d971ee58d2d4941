# SPDX-License-Identifier: MIT
"""A connection, as the program has it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import ClosedError
from .._timeouts import check_timeout, deadline, left_until
from ._errors import PeerClosedError, ProtocolError, fresh
from ._event_loop import call_in, check_loop, wait
from ._incoming import Destination, Fetch, Frame, Incoming, Message, copy
from ._memory import MemoryStats, bytes_of
from ._rdma_read import MessageRead
from ._sender import Outgoing

if TYPE_CHECKING:
    from typing import Self

    from .. import _core
    from .._core import _Buffer as AnyBuffer
    from ._resources import Address
    from ._session import Session

CLOSE_TIMEOUT: Final = 10.0  # seconds


class Stats(NamedTuple):
    """messages_sent, messages_received: how many there were.
    waits: how often a message had to wait, for credits or for the peer to read it.
    wakeups: how often completions have woken this end.
    memory: what was registered, see MemoryStats.
    """

    messages_sent: int
    messages_received: int
    waits: int
    wakeups: int
    memory: MemoryStats


class Connection:
    """Carries messages to a peer, and the peer's messages to us.

    It belongs to the event loop in which it was made, where any number of tasks use it; elsewhere,
    and when that loop is closed, its coroutines raise RuntimeError. The end of its `async with`
    block closes it as `aclose` does, or aborts it if the block raises.
    """

    def __init__(self, session: Session) -> None:
        # The session does not know the connection, and so does not keep it alive.
        self._session = session
        # Reads that a recv() has begun and given up, by the number of the offer.
        self._begun: dict[int, MessageRead] = {}

    # ---- what is known of it ----

    @property
    def local(self) -> Address:
        """Our own address: a tuple of an IP address and a port."""
        return self._session.resources.local

    @property
    def peer(self) -> Address:
        """The peer's address: a tuple of an IP address and a port."""
        return self._session.resources.peer

    @property
    def error(self) -> Exception | None:
        """Why it is over; None while it is open. A PeerClosedError, ConnectionLostError or
        ProtocolError; a ClosedError if this end has closed it."""
        return self._session.error

    @property
    def closed(self) -> bool:
        """Whether it is over: closed by either end, lost or failed. `error` says why."""
        return self._session.error is not None

    @property
    def stats(self) -> Stats:
        """Counters since it was made."""
        resources = self._session.resources
        wakeups = resources.send_acq.stats.wakeups + resources.recv_acq.stats.wakeups
        memory = resources.registrations.stats
        session = self._session
        return Stats(session.flow.sent, session.messages_received, session.waits, wakeups, memory)

    def __repr__(self) -> str:
        state = "open" if self.error is None else type(self.error).__name__
        return f"<Connection: {self.local} to {self.peer}, {state}>"

    # ---- sending ----

    async def send(self, *buffers: AnyBuffer, timeout: float | None = None) -> None:
        """Send a message of as many frames as there are buffers, of any sizes.

        buffers: bytes-like objects, contiguous in memory. The caller may use them again when this
            has returned.
        timeout: in seconds; None waits for ever.

        A small message is copied, and sent in this iteration of the event loop; the call waits only
        until the peer's program has received enough of the earlier ones. A larger message is read
        by the peer when its program receives it; the call returns when the peer has all of it.

        Raises TimeoutError; ValueError for a message that is larger than the peer takes;
        ClosedError after close; PeerClosedError, ConnectionLostError or ProtocolError when the
        connection is over; VerbsError (ENOMEM) if registering the buffers would exceed the limit of
        locked memory, which it names.

        If the task is cancelled, or the time is up, before any part of the message was sent, the
        message is dropped. Otherwise it goes on, and keeps the buffers until the peer has them.
        """
        if timeout is None:
            sending = self._session.send(buffers)
            if sending is True:
                return
            if sending is not False:
                await sending
                return
        await self._send(buffers, timeout)

    async def _send(self, buffers: Sequence[AnyBuffer], timeout: float | None) -> None:
        """Send a message that is not simple, or is to be read by the peer, or is refused."""
        check_timeout(timeout)
        session = self._session
        check_loop(session.loop, "this connection")
        session.check_open()
        views = tuple([bytes_of(buffer) for buffer in buffers])
        nbytes = sum([view.nbytes for view in views])
        session.sender.check_size(len(views), nbytes)
        sending = session.send(views)
        if sending is False:
            sending = session.offer(Outgoing(views, nbytes))
        del views  # the traceback of what this raises would keep the buffers
        if sending is True:
            return
        if timeout is None:
            await sending
            return
        timer = session.loop.call_later(left_until(deadline(timeout)) or 0, sending.expire)
        try:
            await sending
        finally:
            timer.cancel()

    # ---- receiving ----

    async def recv(
        self,
        *,
        into: Sequence[AnyBuffer] | None = None,
        allocate: Callable[[int], AnyBuffer] | None = None,
        timeout: float | None = None,
    ) -> list[Frame]:
        """Return the next message: a list of its frames, writable buffers that are the caller's.

        into: a writable buffer for each frame, at least as large; the frames are memoryviews of
            them. ValueError, and the message remains, if they do not fit.
        allocate: is called with the size of each frame, and returns a buffer for it, the same.
        timeout: in seconds.

        A small frame is a bytearray, a large one a memoryview of its own memory, into which the
        device has read it.

        Raises TimeoutError; PeerClosedError when the peer has closed the connection and everything
        that it sent before was received; ConnectionLostError or ProtocolError when the connection
        has ended otherwise; ClosedError after close. Cancelling it loses no message, and after that
        or a timeout the next call goes on with a read that has begun, unless one of the two calls
        has `into` or `allocate`.
        """
        if timeout is None and allocate is None:
            session = self._session
            got = session.try_receive(into)
            if got is None:
                got = await session.receive(into, True)
            if isinstance(got, list):
                return got
            return await self._take(got, Destination(into, allocate), None)
        check_timeout(timeout)
        if into is not None and allocate is not None:
            raise TypeError("give into or allocate, not both")
        end = deadline(timeout)
        got = await self._receive(into, allocate is None, end)
        if isinstance(got, list):
            return got
        return await self._take(got, Destination(into, allocate), end)

    async def _receive(
        self, into: Sequence[AnyBuffer] | None, copies: bool, end: float | None
    ) -> list[Frame] | Message:
        """The next message, unless none comes until `end`."""
        receiving = self._session.receive(into, copies)
        if end is None:
            return await receiving
        timer = self._session.loop.call_later(left_until(end) or 0, receiving.expire)
        try:
            return await receiving
        finally:
            timer.cancel()

    async def _take(
        self, message: Message, destination: Destination, end: float | None
    ) -> list[Frame]:
        """Receive a message that the core does not copy."""
        session = self._session
        try:
            reading = None
            if message[1] not in self._begun:
                reading = session.read_into(message, destination.into)
            if reading is None:
                incoming = Incoming.of(message, session.resources, session.limits)
                if incoming.offer is None:
                    frames = copy(incoming, destination)
                else:
                    frames = await self._read(incoming, destination, end)
            elif isinstance(reading, list):
                frames = reading
            else:
                frames = await self._wait_read(reading, end)
        except ProtocolError as e:
            session.put_back(*message)
            session.protocol_error(e)
            raise fresh(session.error or e) from None
        except BaseException:
            session.put_back(*message)
            raise
        session.message_taken(*message)
        return frames

    async def _wait_read(self, reading: _core.MessageReading, end: float | None) -> list[Frame]:
        """Wait for a read into buffers of the caller, which the core does."""
        session = self._session
        timer = None
        if end is not None:
            timer = session.loop.call_later(left_until(end) or 0, reading.expire)
        session.active_recvs += 1
        try:
            return await reading
        finally:
            if timer is not None:
                timer.cancel()
            session.active_recvs -= 1
            if session.is_closing:
                session.post_pending()

    async def _read(
        self, incoming: Incoming, destination: Destination, end: float | None
    ) -> list[Frame]:
        """The next call goes on with a read into memory of its own that this one gives up."""
        session = self._session
        session.check_open()
        reading = self._begun.pop(incoming.number, None)
        if reading is not None and destination.is_given:
            reading.cancel()
            reading = None
        if reading is None:
            fetch = Fetch(session.resources, incoming, destination, session.limits)
            reading = MessageRead(fetch, session.post_pending)
            session.reader.add(reading)
            session.post_pending()
            session.poll_sent()  # perhaps the device has read it at once
        if reading.is_done:
            return reading.frames()
        session.active_recvs += 1
        try:
            return await wait(reading.result(), end, "the message was not read in time")
        except BaseException:
            if reading.is_reusable and not destination.is_given and not session.is_closing:
                self._begun[incoming.number] = reading
            else:
                reading.cancel()
            raise
        finally:
            session.active_recvs -= 1
            if session.is_closing:
                session.post_pending()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Frame]:
        try:
            return await self.recv()
        except PeerClosedError:
            raise StopAsyncIteration from None
        except ClosedError:
            if not self._session.is_closing:
                raise
            raise StopAsyncIteration from None

    # ---- ends ----

    async def aclose(self, timeout: float | None = CLOSE_TIMEOUT) -> None:
        """Close it gracefully: the peer receives everything that was sent, and then is notified.

        timeout: in seconds, for the peer to receive what it reads itself. Then the connection is
            aborted, and TimeoutError is raised; ConnectionLostError if it is lost meanwhile.

        Tasks that wait in recv() get ClosedError. The peer's send() raises PeerClosedError for what
        this end has not received; if both ends close, each drops what the other has not received.
        Does nothing if it is over already.
        """
        check_timeout(timeout)
        session = self._session
        check_loop(session.loop, "this connection")
        if session.error is None and not session.is_closing:
            for reading in self._begun.values():
                reading.cancel()
            self._begun.clear()
            try:
                await session.close_gracefully(deadline(timeout))
            except BaseException:
                session.abort()
                raise
        if session.teardown is not None:
            await asyncio.shield(session.teardown)
        await session.resources.registrations.pinning.wait_idle()

    def abort(self) -> None:
        """End it at once: messages in flight may be lost, and the peer gets a ConnectionLostError.
        A second call does nothing.

        May be called in any thread; while the connection's event loop runs in another one, it ends
        in that loop's next iteration.
        """
        call_in(self._session.loop, self._session.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.abort()
        await self.aclose()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        session: Session | None = getattr(self, "_session", None)
        if session is not None and not session.resources.is_closed:
            warn(f"unclosed {self!r}", ResourceWarning, source=self)
            session.drop()
