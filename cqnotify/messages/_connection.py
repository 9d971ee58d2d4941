# SPDX-License-Identifier: MIT
"""A connection, as the program has it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import ClosedError
from .._timeouts import check_timeout, deadline
from ._errors import PeerClosedError, ProtocolError, fresh
from ._event_loop import call_in, check_loop, wait
from ._incoming import Destination, Fetch, Frame, Incoming, copy
from ._memory import MemoryStats, bytes_of
from ._rdma_read import MessageRead
from ._sender import Outgoing

if TYPE_CHECKING:
    from typing import Self

    from .._core import _Buffer as AnyBuffer
    from ._inbox import Numbered
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
        self._waits = self._received = 0
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
        sent = self._session.flow.sent
        return Stats(sent, self._received, self._waits, wakeups, memory)

    def __repr__(self) -> str:
        state = "open" if self.error is None else type(self.error).__name__
        return f"<Connection: {self.local} to {self.peer}, {state}>"

    # ---- sending ----

    async def send(self, *buffers: AnyBuffer, timeout: float | None = None) -> None:
        """Send a message of as many frames as there are buffers, of any sizes.

        buffers: bytes-like objects, contiguous in memory. The caller may use them again when this
            has returned.
        timeout: in seconds.

        A small message is copied, and is on its way when this returns; this waits only until the
        peer's program has received enough of those before. A larger one is read by the peer when
        its program receives it, and this returns when the peer has it all.

        Raises TimeoutError; ValueError for a message that is larger than the peer takes;
        ClosedError after close; PeerClosedError, ConnectionLostError or ProtocolError when the
        connection is over; VerbsError (ENOMEM) where the limit of locked memory, which it names,
        leaves no room to register the buffers.

        A message of which nothing was sent when the task is cancelled, or the time is up, never
        will be. Otherwise it goes on, and keeps the buffers until the peer has them.
        """
        check_timeout(timeout)
        session = self._session
        check_loop(session.loop, "this connection")
        session.check_open()
        views = [bytes_of(buffer) for buffer in buffers]
        nbytes = sum([view.nbytes for view in views])
        session.sender.check_size(len(views), nbytes)
        if session.try_send(views, nbytes):
            return
        outgoing = Outgoing(views, nbytes)
        del views  # the traceback of what this raises would keep the buffers
        session.sender.waiting[outgoing] = None
        session.post_pending()
        if session.flow.is_low:
            session.poll_received()  # perhaps credits have come without an event
        if not outgoing.is_over:
            await self._sent(outgoing, timeout)
        elif outgoing.error is not None:
            raise outgoing.error

    async def _sent(self, outgoing: Outgoing, timeout: float | None) -> None:
        self._waits += 1
        outgoing.future = asyncio.get_running_loop().create_future()
        try:
            why = partial(self._session.timeout_reason, outgoing)
            await wait(outgoing.future, deadline(timeout), why)
        except BaseException:
            self._session.sender.withdraw(outgoing)
            self._session.wake()
            raise

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
        check_timeout(timeout)
        if into is not None and allocate is not None:
            raise TypeError("give into or allocate, not both")
        check_loop(self._session.loop, "this connection")
        end = deadline(timeout)
        destination = Destination(into, allocate)
        numbered = await self._next_message(end)
        incoming = numbered.item
        try:
            if incoming.offer is None:
                frames = copy(incoming, destination)
            else:
                frames = await self._read(incoming, destination, end)
        except ProtocolError as e:
            self._session.inbox.put_back(numbered)
            self._session.protocol_error(e)
            raise fresh(self._session.error or e) from None
        except BaseException:
            self._session.inbox.put_back(numbered)
            raise
        self._received += 1
        self._session.message_taken(incoming)
        return frames

    async def _next_message(self, end: float | None) -> Numbered[Incoming]:
        inbox = self._session.inbox
        if self._session.is_closing:
            raise ClosedError("this connection was closed")
        if len(inbox):
            return inbox.pop()
        self._session.check_open()
        return await inbox.get(end)

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
            session.reader.start(reading)
            session.post_pending()
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
        """End it at once: what is under way may be lost, and the peer gets a ConnectionLostError.
        Twice is fine.

        May be called in any thread; while the connection's event loop runs in another one, it ends
        in that loop's next turn.
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
