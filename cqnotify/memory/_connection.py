# SPDX-License-Identifier: MIT
"""A connection to another process: one queue pair, used in both directions.

The thread of the service owns it, receives the frames of the peer, and answers them. Its send CQ is
awaited in the event loop that uses the connection: the program's, as long as only one does; else,
and for threads, that of the service. So a get in the program's loop takes no other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import (
    CQ,
    MR,
    MW,
    QP,
    AccessFlags,
    AsyncEventError,
    AsyncEventType,
    ClosedError,
    CompletionChannel,
    CompletionError,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    VerbsError,
    WCStatus,
    WROpcode,
)
from ..aio import AsyncCQ
from . import _wire as wire
from ._errors import ConnectionLostError, RevokedError, TransferError
from ._wire import Answer, Kind, ProtocolError, Status

if TYPE_CHECKING:
    from .. import cm
    from .._registered import Device, Registration
    from ._exposure import Table
    from ._service import Service

UNDER_WAY: Final = 64  # reads and writes in the send queue; more wait
# The frames that may be in flight, twice, since the completions of the first may not be polled yet;
# and the windows that are bound for these OPENs.
FRAMES: Final = 2 * wire.RECEIVES
RESERVED: Final = FRAMES + (wire.OPENS + 1) * wire.TOGETHER
SETTLING: Final = 0.1  # seconds, for the peer's device to acknowledge a frame
# Seconds between two probes of a peer for which this end waits: nothing else would tell that its
# host has died before it has answered. And newer Soft-RoCE can forget what it has to repeat until
# the next request is posted; with each it restarts its timer, so they must not come faster than
# that takes to give up, 3.8 s by default.
PROBE_INTERVAL: Final = 5.0
STANDING: Final = 1.0  # seconds that an event loop may stand still which another one waits for
PEER_ACCESS: Final = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


class Again(Exception):
    """The connection has ended, perhaps because of another transfer: go on over the next."""

    def __init__(self, lost: ConnectionLostError) -> None:
        super().__init__(lost)
        self.lost = lost


class Grant(NamedTuple):
    """Where the memory of a token is, for one connection."""

    addr: int
    length: int
    rkey: int


class Home:
    """The event loop in which the send CQ of a connection is awaited."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, cq: CQ, probe: Callable[[], object]
    ) -> None:
        self.loop = loop
        self.acq: AsyncCQ = AsyncCQ(cq)
        self.active: int = 0  # transfers
        self.leaving: asyncio.Future[None] | None = None  # of the service, which waits for it
        self.read: tuple[int, Grant] | None = None  # the token that was read last, and its grant
        self._probe = probe
        self._timer: asyncio.TimerHandle | None = None

    # The methods below are called in the thread of the loop; or when that is closed.

    def enter(self) -> bool:
        """Begin a transfer. Return False if it must go elsewhere."""
        if self.leaving is not None:
            return False
        self.active += 1
        if self._timer is None:
            self._timer = self.loop.call_later(PROBE_INTERVAL, self._on_timer)
        return True

    def _on_timer(self) -> None:
        """Probe the peer while there are transfers. The timer outlives them: a short one needs none
        of its own."""
        self._timer = None
        if self.active and not self.acq.closed:
            self._probe()
            self._timer = self.loop.call_later(PROBE_INTERVAL, self._on_timer)

    def left(self) -> None:
        """A transfer has ended."""
        self.active -= 1
        if self.leaving is not None and not self.active:
            self._leave()

    def leave(self, future: asyncio.Future[None]) -> None:
        """Close the AsyncCQ as soon as no transfer uses it, and then set a future of the
        service."""
        if self.leaving is None:
            self.leaving = future
            if not self.active or self.loop.is_closed():
                self._leave()

    def _leave(self) -> None:
        self.acq.close()
        future = self.leaving
        assert future is not None, "the service has asked for it"
        with contextlib.suppress(RuntimeError):  # the service has ended
            future.get_loop().call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[Any], value: object = None) -> None:
    if not future.done():
        future.set_result(value)


class Connection:
    """One end.

    grants: by token, what the peer has granted.
    windows: by token, the windows that the peer may use.
    error: why it is over; None while it is not.
    is_retired: whether it is about to be closed, since neither end uses it.
    uses: how many transfers have begun, to find out whether it is idle.
    """

    def __init__(self, device: Device, service: Service, table: Table) -> None:
        self.device = device
        self.peer = b""
        self.grants: dict[int, Grant] = {}
        self.windows: dict[int, MW | None] = {}
        self.error: Exception | None = None
        self._again = False
        self.is_retired: bool = False
        self.uses: int = 0
        self.home: Home | None = None
        self.ended: asyncio.Future[None] = service.loop.create_future()
        self._service, self._table = service, table
        self._lock = threading.RLock()  # around the change of `home` and of `error`
        self._moving: asyncio.Future[None] | None = None  # set when the home was left
        self._conn: cm.Connection | None = None
        self._opening: dict[int, asyncio.Future[Grant]] = {}
        self._unsent: deque[int] = deque()  # tokens to open
        self._opens = 0  # without an answer
        self._revoked: deque[int] = deque()  # tokens that the peer must forget
        self._revokeds = 0
        self._is_flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self.idle_answer: asyncio.Future[bool] | None = None
        self._slots: deque[int] = deque(range(FRAMES))
        self._bind_ids = itertools.count(FRAMES)
        self._binding: dict[int, int] = {}  # tokens, by wr_id
        self._make()

    def _make(self) -> None:
        device, ctx = self.device, self.device.context
        self._made: list[Any] = []
        try:
            self._made += [channel := CompletionChannel(ctx), control := CompletionChannel(ctx)]
            depth = UNDER_WAY + RESERVED
            self._made.append(send_cq := CQ(ctx, depth, channel=channel, name="memory: sends"))
            recv_cq = CQ(ctx, wire.RECEIVES, channel=control, name="memory: receives")
            self._made.append(recv_cq)
            size = wire.FRAME_SIZE
            self._mr = MR(device.pd, (wire.RECEIVES + FRAMES) * size)
            self._made.append(self._mr)
            self._memory = memoryview(self._mr)
            self.qp: QP = QP(
                device.pd,
                QPType.RC,
                send_cq=send_cq,
                recv_cq=recv_cq,
                max_send_wr=depth,
                max_recv_wr=wire.RECEIVES,
            )
            self._made.append(self.qp)
            self.qp._reserved_sends = self.qp.max_send_wr - UNDER_WAY
            self._receives = [
                RecvWR(self._mr[i * size : (i + 1) * size], wr_id=i) for i in range(wire.RECEIVES)
            ]
            self._recv_acq = AsyncCQ(recv_cq)
            self._made.append(self._recv_acq)
        except BaseException:
            self._unmake()
            raise

    def _unmake(self) -> None:
        self._memory = memoryview(b"")
        if self._timer is not None:
            self._timer.cancel()
        while self._made:
            with contextlib.suppress(VerbsError, ClosedError):  # of a device that is gone
                self._made.pop().close()
        self._binding.clear()

    def post_receives(self, qp: QP) -> None:
        """Fits `on_init` of cqnotify.cm."""
        qp.post_recv(self._receives)

    # ---- the life of a connection; in the thread of the service ----

    def begin(self, conn: cm.Connection, peer: bytes) -> None:
        """It was made."""
        self._conn, self.peer = conn, peer
        if self.error is not None:
            with contextlib.suppress(VerbsError):
                conn.close()
            return
        self._service.start(self._receive())
        self._service.start(self._watch())

    async def _watch(self) -> None:
        assert self._conn is not None, "it was made"
        await self._conn.wait_closed()
        self.lose(f"the connection has ended: {self._conn.error}", again=True)

    def lose(self, why: str, *, again: bool = False) -> None:
        """It is over. Called in any thread, more than once. again: another may do better."""
        with self._lock:
            if self.error is not None:
                return
            self.error = ConnectionLostError(why)
            self._again = again
        self._service.call(self._end)

    def _end(self) -> None:
        if self.ended.done():
            return
        if self._binding:
            with contextlib.suppress(VerbsError, ClosedError, ValueError):
                self.qp.modify(qp_state=QPState.ERR)  # so that all complete
            self._poll_while(lambda: bool(self._binding))
        tokens = self._table.end(self)
        if self._conn is not None:
            with contextlib.suppress(VerbsError):
                self._conn.close()
        if self.home is not None:
            self.home.acq.close()
        self._unmake()
        self._table.forget(self, tokens)
        for future in self._opening.values():
            if not future.done():
                future.set_exception(self.over())
                future.exception()  # perhaps nobody waits any more
        self._opening.clear()
        if self.idle_answer is not None:
            _set(self.idle_answer, False)
        _set(self.ended)

    def over(self) -> Exception:
        """What to raise in a transfer that has not begun: the connection has ended."""
        lost = ConnectionLostError(str(self.error))
        return Again(lost) if self._again or self.is_retired else lost

    def fail(self) -> None:
        """Close it without having been made."""
        with self._lock:
            if self.error is not None:
                return
            self.error = ConnectionLostError("no connection was made")
        self._end()

    # ---- the event loop that uses it ----

    def acquire(self, loop: asyncio.AbstractEventLoop) -> Home | None:
        """The home for a transfer in the running loop, which ends with Home.left(); None if the
        transfer must run in the service."""
        home = self.home
        if home is None or home.loop is not loop:
            home = self._move_home(home, loop)
        return home if home is not None and home.enter() else None

    def _move_home(self, home: Home | None, loop: asyncio.AbstractEventLoop) -> Home | None:
        """Make the running loop the home, if there is none or that of a closed loop."""
        if home is None or home.loop.is_closed():
            with self._lock:
                if self.home is home and self.error is None:
                    if home is not None:
                        home.acq.close()
                    self.home = Home(loop, self.qp.send_cq, self.probe)
        home = self.home
        return home if home is not None and home.loop is loop else None

    async def acquire_here(self) -> Home:
        """The same in the service, into which the send CQ moves, for good."""
        loop = self._service.loop
        while (home := self.acquire(loop)) is None:
            if self.error is not None:
                raise self.over()
            home = self.home
            assert home is not None, "acquire() would have made one"
            if self._moving is None or self._moving.done():
                self._moving = loop.create_future()
                try:
                    home.loop.call_soon_threadsafe(home.leave, self._moving)
                except RuntimeError:  # it is closed
                    home.leave(self._moving)
            moving = home.leaving or self._moving
            await asyncio.wait(
                [moving, self.ended], timeout=STANDING, return_when=asyncio.FIRST_COMPLETED
            )
            with self._lock:
                if self.home is home and moving.done() and self.error is None:
                    self.home = Home(loop, self.qp.send_cq, self.probe)
            if not (moving.done() or home.loop.is_running() or home.loop.is_closed()):
                self.is_retired = True  # nobody knows when that loop goes on
                if not home.active:
                    self.lose("the event loop that has used it stands still")
                raise Again(ConnectionLostError(str(self.error)))
        return home

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave the running loop, which a call is about to block."""
        home = self.home
        if home is None or home.loop is not loop or home.leaving is not None:
            return
        if home.active:
            raise RuntimeError(
                "transfers are under way in the event loop of this thread, which this call would "
                "block: await get() and put() of cqnotify.memory there"
            )
        home.leave(self._service.loop.create_future())

    # ---- failures of transfers ----

    def failed(self, error: Exception) -> TransferError:
        """Why a transfer has failed: the device, or the queue pair, has raised `error`."""
        status = error.wc.status if isinstance(error, CompletionError) else None
        if status == WCStatus.REM_ACCESS_ERR:
            self.lose("the peer has revoked memory that another transfer used", again=True)
            return RevokedError("the memory is not exposed any more")
        self._lose_by(error)
        return ConnectionLostError(str(self.error))

    def _lose_by(self, error: Exception) -> None:
        """It is over. Perhaps another transfer, of either end, has broken it: then again."""
        again, why = isinstance(error, VerbsError) and error.errno == errno.EINVAL, str(error)
        if again or is_flushed(error):
            self.poll()  # for what has ended the queue pair before
        if isinstance(error, CompletionError):
            again = error.wc.status in (WCStatus.WR_FLUSH_ERR, WCStatus.REM_ACCESS_ERR)
            if not again and isinstance(error.wc.status, WCStatus):
                why = f"the peer does not answer, or has failed: {error.wc.status.name}"
        elif isinstance(error, AsyncEventError):
            again = error.event.event_type == AsyncEventType.QP_ACCESS_ERR
        self.lose(why, again=again)

    # ---- tokens of the peer ----

    async def open(self, token: int) -> Grant:
        """Have the peer grant us a token. Raises RevokedError if it does not."""
        grant = self.grants.get(token)
        if grant is not None:
            return grant
        if self.error is not None:
            raise self.over()
        future = self._opening.get(token)
        if future is None:
            future = self._opening[token] = self._service.loop.create_future()
            self._unsent.append(token)
            self._flush_soon()
        return await asyncio.shield(future)

    def _flush_soon(self) -> None:
        """Tokens that are opened in one turn of the loop go together."""
        if not self._is_flushing and self.error is None:
            self._is_flushing = True
            self._service.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self.error is not None:
            return
        while self._unsent and self._opens < wire.OPENS:
            self._opens += 1
            self._send(wire.tokens_frame(Kind.OPEN, _take(self._unsent)))
        while self._revoked and self._revokeds < wire.REVOKEDS:
            self._revokeds += 1
            self._send(wire.tokens_frame(Kind.REVOKED, _take(self._revoked)))

    def revoked(self, token: int) -> None:
        """An exposure that the peer has opened was closed."""
        if self.error is None:
            self._revoked.append(token)
            self._flush_soon()

    def bind(self, mw: MW, token: int, registration: Registration, access: AccessFlags) -> None:
        """Bind a window. Until the completion was polled the device needs the registration."""
        wr_id = next(self._bind_ids)
        sge = registration.sge(0, registration.nbytes)
        self._binding[wr_id] = token  # first: another thread may poll the completion
        try:
            self.qp.bind_mw(mw, sge, access=access, wr_id=wr_id)
        except BaseException:
            del self._binding[wr_id]
            raise

    def settle(self, token: int) -> None:
        """Wait until the window of a token is bound, so that it can be closed; the connection is
        lost if that takes long. Called in any thread."""
        self._poll_while(lambda: self._is_binding(token))
        if self._is_binding(token):
            self.lose("the peer does not answer")
            if self._service.is_here:
                self._end()
            else:
                with contextlib.suppress(ClosedError, CancelledError):  # the service ends
                    self._service.run(self._wait_ended()).result()

    def _is_binding(self, token: int) -> bool:
        return token in self._binding.copy().values()

    def _poll_while(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SETTLING
        while condition() and time.monotonic() < end:
            self.poll(0.001)

    async def _wait_ended(self) -> None:
        await self.ended

    def poll(self, spin: float = 0.0) -> None:
        """Poll the completions of frames and binds."""
        try:
            wcs = self.qp.send_cq.poll(RESERVED, spin=spin)
        except ClosedError:  # it has ended
            return
        except VerbsError as e:
            self.lose(str(e))
            return
        for wc in wcs:
            if wc.wr_id >= FRAMES:
                self._binding.pop(wc.wr_id, None)
            elif wc.ok:
                self._slots.append(wc.wr_id)
            elif wc.status != WCStatus.WR_FLUSH_ERR:
                try:
                    wc.raise_for_status()
                except CompletionError as e:
                    self._lose_by(e)

    # ---- frames ----

    def ask_idle(self) -> asyncio.Future[bool]:
        """Ask the peer whether it uses the connection. The future says whether it does not."""
        self.is_retired = True
        self.idle_answer = answer = self._service.loop.create_future()
        self._send(wire.frame(Kind.IDLE))
        return answer

    def _send(self, frame: bytes) -> None:
        self.poll()
        slot = self._slot()
        if slot is None:
            self.lose("the device completes no sends")
            return
        at = (wire.RECEIVES + slot) * wire.FRAME_SIZE
        self._memory[at : at + len(frame)] = frame
        try:
            sge = self._mr[at : at + len(frame)]
            self.qp.post_send(sge, wr_id=slot, send_flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
        except (VerbsError, ClosedError, ValueError) as e:
            self._lose_by(e)
        if self._timer is None:
            self._timer = self._service.loop.call_later(PROBE_INTERVAL, self._on_timer)

    def _slot(self) -> int | None:
        try:
            return self._slots.popleft()
        except IndexError:
            return None

    def _on_timer(self) -> None:
        """Probe the peer while this end waits for an answer, of it or of its device."""
        self._timer = None
        if self.error is None:
            self.poll()
            if self._opening or self.idle_answer or len(self._slots) < FRAMES:
                self.probe()
                self._timer = self._service.loop.call_later(PROBE_INTERVAL, self._on_timer)

    def probe(self) -> None:
        """Post what fails if the peer's device does not answer. In any thread.

        While reads are under way that is a read of a byte, else an empty write: with that, newer
        Soft-RoCE refuses a read that it has to repeat."""
        self.poll()
        if self.device.is_iwarp or self.error is not None or (slot := self._slot()) is None:
            return
        home, sge, opcode, addr, rkey = self.home, None, WROpcode.RDMA_WRITE, 0, 0
        if home is not None and home.active and home.read is not None:
            token, grant = home.read
            if self.grants.get(token) is grant:
                at = (wire.RECEIVES + slot) * wire.FRAME_SIZE
                sge, opcode = self._mr[at : at + 1], WROpcode.RDMA_READ
                addr, rkey = grant.addr, grant.rkey
        try:
            self.qp.post_send(sge, opcode=opcode, wr_id=slot, remote_addr=addr, rkey=rkey)
        except (VerbsError, ClosedError) as e:
            self._lose_by(e)

    async def _receive(self) -> None:
        try:
            async for wcs in self._recv_acq.batches(wire.RECEIVES):
                for wc in wcs:
                    wc.raise_for_status()
                    at = wc.wr_id * wire.FRAME_SIZE
                    frame = bytes(self._memory[at : at + (wc.byte_len or 0)])
                    self.qp.post_recv(self._receives[wc.wr_id])
                    self._received(memoryview(frame))
        except (VerbsError, ClosedError, CompletionError, AsyncEventError, ValueError) as e:
            self._lose_by(e)

    def _received(self, frame: memoryview) -> None:
        kind = wire.parse_kind(frame)
        if kind is Kind.OPEN:
            tokens = wire.parse_tokens(frame)
            self._send(wire.grant_frame([self._table.open(token, self) for token in tokens]))
        elif kind is Kind.GRANT:
            self._opens -= 1
            for answer in wire.parse_grant(frame):
                self._answered(answer)
            self._flush_soon()
        elif kind is Kind.REVOKED:
            for token in wire.parse_tokens(frame):
                self.grants.pop(token, None)
            self._send(wire.frame(Kind.SEEN))
        elif kind is Kind.SEEN:
            self._revokeds -= 1
            self.poll()
            self._flush_soon()
        elif kind is Kind.IDLE:
            self.is_retired = not self.is_used()
            self._send(wire.frame(Kind.BYE if self.is_retired else Kind.STAY))
        elif self.idle_answer is None:
            raise ProtocolError(f"{kind.name} without a question")
        else:
            _set(self.idle_answer, kind is Kind.BYE)
            self.idle_answer = None
        if self._opens < 0 or self._revokeds < 0:
            raise ProtocolError(f"{kind.name} without a question")

    def _answered(self, answer: Answer) -> None:
        future = self._opening.get(answer.token)
        if future is None:
            raise ProtocolError("a GRANT of a token that was not asked for")
        if answer.status == Status.GRANTED:
            if answer.addr + answer.length > 1 << 64:
                raise ProtocolError("a GRANT of memory beyond the end of all memory")
            grant = Grant(answer.addr, answer.length, answer.rkey)
            self.grants[answer.token] = grant
            _set(future, grant)
        else:
            if answer.status == Status.NO_ROOM:
                text = "the process that exposes the memory has no room for another window of it"
                future.set_exception(TransferError(text))
            else:
                text = "the memory is not exposed: the token is unknown, was revoked or has expired"
                future.set_exception(RevokedError(text))
            future.exception()  # perhaps nobody waits any more
        del self._opening[answer.token]

    # ---- idle ----

    def is_used(self) -> bool:
        """Whether this end uses it, or has used it since the last call."""
        used = (
            self.uses > 0 or bool(self._opening) or (self.home is not None and self.home.active > 0)
        )
        self.uses = 0
        return used


def is_flushed(error: BaseException) -> bool:
    """Whether the queue pair had failed before, for another transfer or another reason."""
    return isinstance(error, CompletionError) and error.wc.status == WCStatus.WR_FLUSH_ERR


def _take(tokens: deque[int]) -> list[int]:
    return [tokens.popleft() for _ in range(min(len(tokens), wire.TOGETHER))]
