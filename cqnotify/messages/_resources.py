# SPDX-License-Identifier: MIT
"""The objects of the verbs that connections are made of, and the end of them.

All connections of an event loop over one device share its context and a completion channel, and
those that keep as much memory registered share a protection domain, so that an array for several
peers is registered once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar

from .. import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlags,
    AsyncEventError,
    CompletionChannel,
    CompletionError,
    Context,
    QPType,
    RecvWR,
    VerbsError,
)
from .._timeouts import left_until
from ..aio import AsyncCQ
from ..context import is_iwarp
from . import _wire as wire
from ._errors import ConnectionLostError, ProtocolError
from ._memory import Registrations, own_memory
from ._options import LEAST_EAGER, ConnectionOptions
from ._pool import Pool
from ._wire import Header, Kind

if TYPE_CHECKING:
    from .. import cm

Address = tuple[str, int]

READS = 8  # under way at a time
FRAMES_UNDER_WAY = 64  # in the send queue, besides the reads; and at most
FRAMES_PER_CREDIT = 8  # of our own: an end with few of them is to take little memory
SENDING = 4  # times `eager`: the memory from which frames are sent
PEER = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE  # the latter for keepalives
LAST_WORDS = 1.0  # seconds, for why a connection is closed to reach the peer


class Device:
    """A device in an event loop. It is closed when the last connection is."""

    _known: ClassVar[dict[tuple[int, str], Device]] = {}

    @classmethod
    def of(cls, name: str) -> Device:
        loop = asyncio.get_running_loop()
        device = cls._known.get((id(loop), name))
        if device is None or device.context.closed:
            device = cls(loop, name)
            cls._known[id(loop), name] = device
        device._users += 1
        return device

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._users = 0
        self._loop = loop  # so that no other loop gets its id
        self.name = name
        self.context: Context = Context(name)
        try:
            self.channel: CompletionChannel = CompletionChannel(self.context)
            self.max_msg_sz: int = self.context.query_port().max_msg_sz
        except BaseException:
            self.context.close()
            raise
        self.is_iwarp: bool = is_iwarp(self.context)
        # Where the device puts what it reads from a peer: iWARP sees this as writes of the peer.
        self.sink: AccessFlags = AccessFlags.LOCAL_WRITE
        if self.is_iwarp:
            self.sink |= AccessFlags.REMOTE_WRITE
        self._pools: dict[int, Pool] = {}

    def pool(self, options: ConnectionOptions) -> Pool:
        """The registrations of a connection."""
        if (
            options.isolated or self.is_iwarp
        ):  # where each peer could write to what another one sends
            return Pool(PD(self.context), options.cache)
        pool = self._pools.get(options.cache)
        if pool is None or pool.is_closed:
            pool = self._pools[options.cache] = Pool(PD(self.context), options.cache)
        return pool

    def leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        key = id(self._loop), self.name
        if self._known.get(key) is self:
            del self._known[key]
        try:
            self.context.close()
        except VerbsError:  # what is still open can be closed by another call
            with contextlib.suppress(VerbsError):
                self.context.close()


class Parts:
    """Those of one connection. Of its memory the first part receives, the rest sends.

    The end that connects makes the memory before it asks the peer. The end that accepts makes it
    when the opening has arrived, the peer's first ACK. Until then it has small memory, for the
    opening, and to tell the peer why there is no more. So a peer that does not complete its
    connection costs a queue pair, two CQs and a page.
    """

    def __init__(self, device: Device, options: ConnectionOptions) -> None:
        self.device = device
        self.options = options
        self.conn: cm.Connection | None = None
        self.local: Address = ("", 0)
        self.peer: Address = ("", 0)
        self.is_closed: bool = False
        self.reads: int = 1  # how many can be under way
        self._made: list[CQ | QP] = []
        try:
            self._make(device, options)
        except BaseException:
            self.close()
            raise

    def _make(self, device: Device, options: ConnectionOptions) -> None:
        self._pool: Pool = device.pool(options)
        self.pd: PD = self._pool.pd
        self.registrations: Registrations = Registrations(self._pool)
        frames = min(FRAMES_UNDER_WAY, FRAMES_PER_CREDIT * options.credits)
        self.places: int = frames + READS
        self.send_cq: CQ = CQ(
            device.context, self.places, channel=device.channel, name=f"{options.name}: sends"
        )
        self._made.append(self.send_cq)
        self.recv_cq: CQ = CQ(
            device.context,
            options.receives,
            channel=device.channel,
            name=f"{options.name}: receives",
        )
        self._made.append(self.recv_cq)
        self.qp: QP = QP(
            self.pd,
            QPType.RC,
            send_cq=self.send_cq,
            recv_cq=self.recv_cq,
            max_send_wr=self.places + 1,  # and a keepalive
            max_recv_wr=options.receives,
        )
        self._made.append(self.qp)
        self.sent: AsyncCQ = AsyncCQ(self.send_cq)
        self.received: AsyncCQ = AsyncCQ(self.recv_cq)

    def make_small_memory(self) -> None:
        self.small_mr: MR = own_memory(self.pd, LEAST_EAGER, AccessFlags.LOCAL_WRITE)

    def close_small_memory(self) -> None:
        if hasattr(self, "small_mr"):
            self.registrations.pinning.close(self.small_mr)
            del self.small_mr

    def make_memory(self) -> None:
        receives, eager = self.options.receives, self.options.eager
        self.sending_from: int = receives * eager
        size = self.sending_from + SENDING * eager
        self.mr: MR = own_memory(self.pd, size, AccessFlags.LOCAL_WRITE)
        self.memory: memoryview = memoryview(self.mr)
        self.receives: list[RecvWR] = [
            RecvWR(self.mr[i * eager : (i + 1) * eager], wr_id=i) for i in range(receives)
        ]

    def post_receives(self, qp: QP) -> None:
        """Fits `on_init`."""
        qp.post_recv(self.receives)

    def post_opening_receive(self, qp: QP) -> None:
        """Fits `on_init`."""
        qp.post_recv(self.small_mr)

    async def wait_for_opening(self, end: float | None) -> None:
        """Raises ConnectionLostError, ProtocolError and TimeoutError."""
        async with asyncio.timeout(left_until(end)):
            (wc,) = await self.received.wait(1)
        if not wc.ok:
            raise ConnectionLostError("the peer has not opened the connection")
        frame = memoryview(self.small_mr)[: wc.byte_len or 0]
        if wire.parse_header(frame) != Header(Kind.ACK, 0, 0, 0):
            raise ProtocolError("the first frame is not an ACK of nothing")

    async def refuse(self, text: str) -> None:
        """Tell the peer that has opened the connection why it is closed."""
        words = wire.error_text(text)
        length = wire.HEADER_SIZE + len(words)
        with contextlib.suppress(OSError, MemoryError, CompletionError, AsyncEventError):
            frame = memoryview(self.small_mr)
            wire.put_header(frame, Header(Kind.ERROR, 0, 0, 0))
            wire.put_error_text(frame, words)
            async with asyncio.timeout(LAST_WORDS):
                await self.sent.send(self.qp, self.small_mr[:length])
                await self.is_heard()

    async def is_heard(self) -> None:
        """On iWARP what was sent need not have arrived: the peer closes when it has."""
        if self.device.is_iwarp and self.conn is not None:
            await self.conn.wait_closed(LAST_WORDS)

    def repost(self, slot: int) -> None:
        self.qp.post_recv(self.receives[slot])

    def connected(self, conn: cm.Connection) -> None:
        self.conn = conn
        self.local, self.peer = conn.local, conn.peer
        depth = self.qp.query().max_rd_atomic
        if depth == 0 and not self.device.is_iwarp:  # where nothing tells it
            raise ProtocolError(
                "the peer grants no RDMA reads (its responder_resources is 0): messages need them"
            )
        self.reads = max(1, min(READS, depth - 1))  # and one that asks whether the peer is alive

    def slot(self, number: int, length: int) -> memoryview:
        """What a receive has brought."""
        at = number * self.options.eager
        return self.memory[at : at + length]

    def close(self) -> None:
        """At once; the peer is told that this is the end. Twice is fine."""
        if self.conn is not None:
            _close(self.conn)
        self._close_rest()

    async def aclose(self) -> None:
        """The same, in turns of the event loop that have time for it."""
        if self.conn is not None:
            with contextlib.suppress(VerbsError):
                await self.conn.aclose()
        self._close_rest()
        if hasattr(self, "registrations"):
            await self.registrations.pinning.idle()

    def _close_rest(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for acq in (getattr(self, "sent", None), getattr(self, "received", None)):
            if acq is not None:
                acq.close()
        while self._made:
            _close(self._made.pop())
        if not hasattr(self, "registrations"):
            self.device.leave()
            return
        self.close_small_memory()
        if hasattr(self, "mr"):  # that which messages lie in remains, while there are views of it
            self.registrations.pinning.close(self.mr)
        self.registrations.pinning.in_loop(self._close_shared)

    def _close_shared(self) -> None:
        """What other connections use as well."""
        self.registrations.close()
        self.registrations.pinning.when_idle(self._close_last)

    def _close_last(self) -> None:
        self._pool.close_if_last()
        self.device.leave()


def _close(one: CQ | QP | cm.Connection) -> None:
    with contextlib.suppress(VerbsError):  # of a device that is gone
        one.close()
