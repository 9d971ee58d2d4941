# SPDX-License-Identifier: MIT
"""The send queue of a connection: frames from a ring of registered memory, and reads.

The queue completes in order, so a completion stands for all that was posted before it, and few
frames ask for one. What fails always has one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from .. import QP, SGE, SendFlags, WROpcode

if TYPE_CHECKING:
    from .. import MR
    from ._wire import Remote

SIGNAL_EACH: Final = 8  # frames; and each quarter of the ring's memory
ALIGN: Final = 64


class Ring:
    """Places in memory, which are freed in the order in which they were taken."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = self._freed = 0  # in all; the difference is in use

    def _needed(self, nbytes: int) -> tuple[int, int]:
        """Where so many bytes in one piece would be, and how far the ring were taken then."""
        at = self._taken % self._size
        skipped = self._size - at if at + nbytes > self._size else 0
        taken = self._taken + skipped + -(-nbytes // ALIGN) * ALIGN
        return (0 if skipped else at), taken

    def has_room(self, nbytes: int) -> bool:
        return self._needed(nbytes)[1] - self._freed <= self._size

    def place(self, nbytes: int) -> int | None:
        """Take room for `nbytes` in one piece. None if there is none."""
        at, taken = self._needed(nbytes)
        if taken - self._freed > self._size:
            return None
        self._taken = taken
        return at

    @property
    def mark(self) -> int:
        """For free_to(), of what was taken so far."""
        return self._taken

    def free_to(self, mark: int) -> None:
        self._freed = mark


class Done(Protocol):
    """What is told that its work request has completed."""

    def completed(self) -> None: ...


class _Posted(NamedTuple):
    number: int
    mark: int
    done: Done | None


class SendQueue:
    def __init__(self, qp: QP, mr: MR, start: int, places: int) -> None:
        """start: where in `mr` the ring begins. places: how many work requests there can be."""
        self._qp, self._mr, self._start = qp, mr, start
        self._memory = memoryview(mr)[start:]
        self._ring = Ring(len(self._memory))
        self._places = places
        self._posted: deque[_Posted] = deque()
        self._number = 0
        self._unsignaled = 0
        self._signaled_to = 0  # of the ring
        self._at = self._length = 0  # of the frame that is being written

    @property
    def has_place(self) -> bool:
        return len(self._posted) < self._places

    def has_room(self, length: int) -> bool:
        return self.has_place and self._ring.has_room(length)

    def frame(self, length: int) -> memoryview | None:
        """Memory for a frame, which the caller writes and then posts. None if there is no room."""
        if not self.has_place:
            return None
        at = self._ring.place(length)
        if at is None:
            return None
        self._at, self._length = at, length
        return self._memory[at : at + length]

    def shorten(self, length: int) -> None:
        """The frame that is being written has become shorter than the memory for it."""
        self._length = length

    def post_frame(self, *, solicited: bool, done: Done | None = None) -> None:
        """Send the frame; `done` hears of its completion."""
        self._unsignaled += 1
        flags = SendFlags.SOLICITED if solicited else SendFlags(0)
        is_quarter = 4 * (self._ring.mark - self._signaled_to) >= len(self._memory)
        if done is not None or is_quarter or self._unsignaled >= SIGNAL_EACH:
            self._signals()
            flags |= SendFlags.SIGNALED
        start = self._start + self._at
        sge = self._mr[start : start + self._length]
        self._post(done)
        self._qp.post_send(sge, wr_id=self._number, send_flags=flags)

    def post_read(self, sge: SGE, remote: Remote, done: Done) -> None:
        self._signals()
        self._post(done)
        self._qp.post_send(
            sge,
            wr_id=self._number,
            opcode=WROpcode.RDMA_READ,
            remote_addr=remote.addr,
            rkey=remote.rkey,
        )

    def _signals(self) -> None:
        self._unsignaled = 0
        self._signaled_to = self._ring.mark

    def _post(self, done: Done | None) -> None:
        self._number += 1
        self._posted.append(_Posted(self._number, self._ring.mark, done))

    def completed(self, number: int) -> None:
        """By the wr_id of a completion that succeeded."""
        while self._posted and self._posted[0].number <= number:
            one = self._posted.popleft()
            self._ring.free_to(one.mark)
            if one.done is not None:
                one.done.completed()
