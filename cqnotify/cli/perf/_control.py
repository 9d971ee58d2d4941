# SPDX-License-Identifier: MIT
"""Messages between the ends, apart from those that are measured: JSON over a queue pair of its own.

So the ends communicate in the same way however they have met. Each can also probe whether the other
one is alive: by an empty write, which the peer's device acknowledges as long as its queue pair
exists, whatever its program does.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from ..._core import CQ, MR, PD, CompletionChannel, CompletionError, RecvWR, SendWR, VerbsError
from ...enums import AccessFlags, QPType, WCOpcode, WROpcode
from ...qp import QP
from .. import CommandError

ROOM: Final = 32768  # bytes of a message
SLOTS: Final = 8  # receives, and messages that can be on their way
SLICE: Final = 1.0  # seconds of silence until the peer is probed
PATIENCE: Final = 10.0  # seconds until a peer that does not acknowledge is taken for gone
PROBE: Final = SLOTS  # the wr_id of an empty write; that of a message is its slot
GONE: Final = "the peer has gone"


class PeerGoneError(CommandError):
    """The peer has gone."""


class Talk(Protocol):
    """Messages to and from the peer, apart from those that are measured; see Control."""

    @property
    def cq(self) -> CQ | None: ...
    def arm_if_empty(self) -> bool: ...
    def send(self, message: dict[str, Any], /) -> None: ...
    def poll(self) -> Any: ...
    def keep(self, message: Any, /) -> None: ...
    def wait(self, timeout: float | None, /) -> Any: ...
    def swap(self, message: dict[str, Any], first: bool, timeout: float, /) -> Any: ...
    def ask(self) -> None: ...
    def has_gone(self) -> bool: ...
    def flush(self) -> None: ...


class Control:
    """Our end of these messages. Its CQ is on the channel of the data, so that a message wakes."""

    access = AccessFlags.REMOTE_WRITE

    def __init__(self, pd: PD, channel: CompletionChannel) -> None:
        self._channel = channel
        self.cq = CQ(channel.context, 4 * SLOTS, channel=channel)
        self._mr = MR(pd, 2 * SLOTS * ROOM)
        self.qp = QP(
            *(pd, QPType.RC),
            send_cq=self.cq,
            max_send_wr=2 * SLOTS,
            max_recv_wr=SLOTS,
        )
        pieces = [self._mr[start : start + ROOM] for start in range(0, 2 * SLOTS * ROOM, ROOM)]
        self._receives = [RecvWR(sg, wr_id=slot) for slot, sg in enumerate(pieces[:SLOTS])]
        self._probe = SendWR(None, opcode=WROpcode.RDMA_WRITE, wr_id=PROBE, remote_addr=0, rkey=0)
        self._sent = 0
        self._acknowledged = 0
        self._asked = False  # a probe is not acknowledged yet
        self._failed = False
        self._messages: deque[Any] = deque()

    def start(self) -> None:
        """Post the receives: the QP is at least in INIT."""
        self.qp.post_recv(self._receives)

    def arm_if_empty(self) -> bool:
        """Arm the CQ, and return whether nothing has come."""
        return self.cq.arm_if_empty()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. The peer answers before SLOTS messages are in flight."""
        data = json.dumps(message).encode()
        if len(data) > ROOM:
            raise CommandError(f"a message to the peer has {len(data)} bytes: the limit is {ROOM}")
        start = (SLOTS + self._sent % SLOTS) * ROOM
        self._mr.write(data, start)
        self._sent += 1
        self.qp.post_send(self._mr[start : start + len(data)])

    def poll(self) -> Any:
        """Return the next message that has come, or None. Raises PeerGoneError."""
        for wc in self.cq.poll(2 * SLOTS):
            try:
                done = wc.raise_for_status()
            except CompletionError:
                self._failed = True
                break
            if done.opcode == WCOpcode.RECV:
                self._messages.append(self._parse(done.wr_id, done.byte_len))
                self.qp.post_recv(self._receives[done.wr_id])
            elif done.wr_id == PROBE:
                self._asked = False
            else:
                self._acknowledged += 1
        if self._messages:  # the last one may have come before the peer ended
            return self._messages.popleft()
        if self._failed:
            raise PeerGoneError(GONE)
        return None

    def _parse(self, slot: int, length: int) -> Any:
        try:
            return json.loads(self._mr.read(length, slot * ROOM))
        except ValueError as e:
            raise CommandError("the peer sent no JSON: it is another program") from e

    def keep(self, message: Any) -> None:
        """Put a message back, to be the next one."""
        self._messages.appendleft(message)

    def ask(self) -> None:
        """Probe the peer; `poll` raises PeerGoneError if it does not acknowledge."""
        if not self._asked:
            self._asked = True
            try:
                self.qp.post_send(self._probe)
            except VerbsError:  # the QP has failed
                self._failed = True

    def wait(self, timeout: float | None) -> Any:
        """Sleep until a message comes, and return it; without a timeout until the peer has gone.

        Raises PeerGoneError, and TimeoutError.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (message := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"the peer sent nothing for {timeout:g} s")
            self._nap()
        return message

    def _nap(self) -> None:
        if not self.cq.arm_if_empty():
            return
        try:
            self._channel.get_event(SLICE).ack()
        except TimeoutError:
            self.ask()

    def swap(self, message: dict[str, Any], first: bool, timeout: float) -> Any:
        """Send a message and return the peer's; one end is the first to send."""
        if first:
            self.send(message)
        answer = self.wait(timeout)
        if not first:
            self.send(message)
        return answer

    def flush(self) -> None:
        """Sleep until the peer has all our messages, or has gone, which it may do then."""
        self._settle(lambda: self._acknowledged == self._sent)

    def has_gone(self) -> bool:
        """Probe the peer, and return whether it has gone; this can take seconds."""
        self.ask()
        self._settle(lambda: not self._asked)
        return self._failed or self._asked

    def _settle(self, is_settled: Callable[[], bool]) -> None:
        """Sleep until `is_settled`, or the peer has gone; keep messages that come meanwhile."""
        end = time.monotonic() + PATIENCE
        kept = []
        with suppress(PeerGoneError):
            while not is_settled() and time.monotonic() < end:
                self._nap()
                if (message := self.poll()) is not None:
                    kept.append(message)
        self._messages.extendleft(reversed(kept))
