# SPDX-License-Identifier: MIT
"""The verbs objects of connections: how they are made, shared and closed.

All connections over one device share its context, and a protection domain, so that an array for
several peers is registered once: see cqnotify/_registered. Those of an event loop share a
completion channel.
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
    _registered,
)
from .._registered import Pool
from .._timeouts import left_until
from ..aio import AsyncCQ
from . import _wire as wire
from ._errors import ConnectionLostError, ProtocolError
from ._memory import Registrations, own_memory
from ._options import LEAST_EAGER, ConnectionOptions
from ._wire import Header, Kind

if TYPE_CHECKING:
    from .. import cm

Address = tuple[str, int]

MAX_READS = 8  # under way at a time
MAX_FRAMES_IN_FLIGHT = 64  # in the send queue, besides the reads; and at most
FRAMES_PER_CREDIT = 8  # of our own: an end with few of them is to take little memory
INLINE = 96  # bytes of a frame that the device takes from the work request: of 64, with its header
SEND_BUFFERS = 4  # times `eager`: the memory from which frames are sent
PEER_ACCESS = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE  # the latter for keepalives
ERROR_TIMEOUT = 1.0  # seconds, for an ERROR to arrive


class Device:
    """A device in an event loop: a completion channel for it, and what the process shares. It is
    closed when the loop's last connection is."""

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
        self._shared = _registered.Device.of(name)
        self.name = name
        self.context: Context = self._shared.context
        self.max_msg_sz: int = self._shared.max_msg_sz
        self.is_iwarp: bool = self._shared.is_iwarp
        self.sink: AccessFlags = self._shared.sink
        try:
            self.channel: CompletionChannel = CompletionChannel(self.context)
        except BaseException:
            self._shared.leave()
            raise

    def pool(self, options: ConnectionOptions) -> Pool:
        """The registrations of a connection, with one more user. Isolated connections have a
        protection domain of their own; so have those on iWARP, where each peer could write to what
        another one sends."""
        if not self.is_private(options):
            return self._shared.pool(options.cache)
        pool = self._shared.new_pool(PD(self.context), options.cache)
        pool.join()
        return pool

    def is_private(self, options: ConnectionOptions) -> bool:
        return options.isolated or self.is_iwarp

    def leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        key = id(self._loop), self.name
        if self._known.get(key) is self:
            del self._known[key]
        with contextlib.suppress(VerbsError):
            self.channel.close()
        self._shared.leave()


class Resources:
    """Those of one connection. The first part of its memory receives, the rest sends.

    The end that connects makes the memory before it sends its request. The end that accepts makes
    it when the peer's initial ACK has arrived. Until then it has only the memory of the handshake,
    for that ACK, and for an ERROR if there is no more memory. So a peer that does not complete its
    connection costs a queue pair, two CQs and a page.
    """

    def __init__(self, device: Device, options: ConnectionOptions) -> None:
        self.device = device
        self.options = options
        self.conn: cm.Connection | None = None
        self.local: Address = ("", 0)
        self.peer: Address = ("", 0)
        self.is_closed: bool = False
        self.max_reads: int = 1  # how many can be under way
        self._created: list[CQ | QP] = []
        try:
            self._make(device, options)
        except BaseException:
            self.close()
            raise

    def _make(self, device: Device, options: ConnectionOptions) -> None:
        self._pool: Pool = device.pool(options)
        self.pd: PD = self._pool.pd
        self.registrations: Registrations = Registrations(self._pool)
        frames = min(MAX_FRAMES_IN_FLIGHT, FRAMES_PER_CREDIT * options.credits)
        self.send_depth: int = frames + MAX_READS
        self.send_cq: CQ = CQ(
            device.context, self.send_depth, channel=device.channel, name=f"{options.name}: sends"
        )
        self._created.append(self.send_cq)
        self.recv_cq: CQ = CQ(
            device.context,
            options.receives,
            channel=device.channel,
            name=f"{options.name}: receives",
        )
        self._created.append(self.recv_cq)
        try:
            self.qp: QP = self._make_qp(options.receives, INLINE)
        except VerbsError:  # of a device that has no room for that
            self.qp = self._make_qp(options.receives, 0)
        self._created.append(self.qp)
        self.send_acq: AsyncCQ = AsyncCQ(self.send_cq)
        self.recv_acq: AsyncCQ = AsyncCQ(self.recv_cq)

    def _make_qp(self, receives: int, inline: int) -> QP:
        return QP(
            self.pd,
            QPType.RC,
            send_cq=self.send_cq,
            recv_cq=self.recv_cq,
            max_send_wr=self.send_depth + 1,  # and a keepalive
            max_recv_wr=receives,
            max_inline_data=inline,
        )

    def make_handshake_memory(self) -> None:
        self.handshake_mr: MR = own_memory(self.pd, LEAST_EAGER, AccessFlags.LOCAL_WRITE)

    def close_handshake_memory(self) -> None:
        if hasattr(self, "handshake_mr"):
            self.registrations.pinning.close(self.handshake_mr)
            del self.handshake_mr

    def make_memory(self) -> None:
        receives, eager = self.options.receives, self.options.eager
        self.send_offset: int = receives * eager
        size = self.send_offset + SEND_BUFFERS * eager
        self.mr: MR = own_memory(self.pd, size, AccessFlags.LOCAL_WRITE)
        self.memory: memoryview = memoryview(self.mr)
        self.receives: list[RecvWR] = [
            RecvWR(self.mr[i * eager : (i + 1) * eager], wr_id=i) for i in range(receives)
        ]

    def post_receives(self, qp: QP) -> None:
        """Fits `on_init`."""
        qp.post_recv(self.receives)

    def post_handshake_receive(self, qp: QP) -> None:
        """Fits `on_init`."""
        qp.post_recv(self.handshake_mr)

    async def wait_first_frame(self, end: float | None) -> None:
        """Wait for the peer's initial ACK. Raises ConnectionLostError, ProtocolError and
        TimeoutError."""
        async with asyncio.timeout(left_until(end)):
            (wc,) = await self.recv_acq.wait(1)
        if not wc.ok:
            raise ConnectionLostError("the peer has not opened the connection")
        frame = memoryview(self.handshake_mr)[: wc.byte_len or 0]
        if wire.parse_header(frame) != Header(Kind.ACK, 0, 0, 0):
            raise ProtocolError("the first frame is not an ACK of nothing")

    async def send_error(self, text: str) -> None:
        """Send an ERROR, out of the memory of the handshake."""
        data = wire.error_text(text)
        length = wire.HEADER_SIZE + len(data)
        with contextlib.suppress(OSError, MemoryError, CompletionError, AsyncEventError):
            frame = memoryview(self.handshake_mr)
            wire.put_header(frame, Header(Kind.ERROR, 0, 0, 0))
            wire.put_error_text(frame, data)
            async with asyncio.timeout(ERROR_TIMEOUT):
                await self.send_acq.send(self.qp, self.handshake_mr[:length])
                await self.wait_delivered()

    async def wait_delivered(self) -> None:
        """Wait until the last frame has arrived. On iWARP its completion does not say that, and the
        peer disconnects when it has the frame."""
        if self.device.is_iwarp and self.conn is not None:
            await self.conn.wait_closed(ERROR_TIMEOUT)

    def on_connected(self, conn: cm.Connection) -> None:
        self.conn = conn
        self.local, self.peer = conn.local, conn.peer
        depth = self.qp.query().max_rd_atomic
        if depth == 0 and not self.device.is_iwarp:  # where it is not known
            raise ProtocolError(
                "the peer grants no RDMA reads (its responder_resources is 0): messages need them"
            )
        self.max_reads = max(1, min(MAX_READS, depth - 1))  # one is left for a probe

    def received_frame(self, number: int, length: int) -> memoryview:
        """Return the frame that a receive has brought."""
        at = number * self.options.eager
        return self.memory[at : at + length]

    def close(self) -> None:
        """Disconnect, and close everything at once. Twice is fine."""
        if self.conn is not None:
            _close(self.conn)
        self._close_rest()

    async def aclose(self) -> None:
        """Do the same in a turn of the event loop that has time for it."""
        if self.conn is not None:
            with contextlib.suppress(VerbsError):
                await self.conn.aclose()
        self._close_rest()
        if hasattr(self, "registrations"):
            await self.registrations.pinning.wait_idle()

    def _close_rest(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for acq in (getattr(self, "send_acq", None), getattr(self, "recv_acq", None)):
            if acq is not None:
                acq.close()
        while self._created:
            _close(self._created.pop())
        if not hasattr(self, "registrations"):
            self.device.leave()
            return
        self.close_handshake_memory()
        if hasattr(self, "mr"):  # views of received messages keep the memory
            self.registrations.pinning.close(self.mr)
        self.registrations.pinning.in_loop(self._close_shared)

    def _close_shared(self) -> None:
        """Close what other connections use as well."""
        self.registrations.close()
        self.registrations.pinning.when_idle(self._close_last)

    def _close_last(self) -> None:
        if self.device.is_private(self.options):
            _close(self.pd)
        self.device.leave()


def _close(one: CQ | PD | QP | cm.Connection) -> None:
    with contextlib.suppress(VerbsError):  # of a device that is gone
        one.close()
