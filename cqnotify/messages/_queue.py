# SPDX-License-Identifier: MIT
"""The send queue of a connection: frames from a ring of registered memory, and reads.

The queue completes in order, so a completion stands for all that was posted before it, and few
frames ask for one. What fails always has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from .. import QP, SGE, SendFlags, WROpcode

if TYPE_CHECKING:
    from .. import MR
    from ._wire import Remote

SIGNAL_EACH: Final = 8  # frames; and each quarter of the ring's memory
ALIGN: Final = 64
# By whether it is solicited, and then signaled: combining flags is slow.
FLAGS: Final = (
    (SendFlags(0), SendFlags.SIGNALED),
    (SendFlags.SOLICITED, SendFlags.SOLICITED | SendFlags.SIGNALED),
)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class Ring:
    """Places in memory, which are freed in the order in which they were taken."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = self._freed = 0  # in all; the difference is in use

    def _needed(self, nbytes: int) -> tuple[int, int]:
        """Where so many bytes in one piece would be, and how far the ring were taken then."""
        at = self._taken % self._size
        skipped = self._size - at if at + nbytes > self._size else 0
        taken = self._taken + skipped + _aligned(nbytes)
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

    def shorten(self, nbytes: int, to: int) -> None:
        """The latest place, of `nbytes`, needs less."""
        self._taken -= _aligned(nbytes) - _aligned(to)

    def take_back(self, mark: int) -> None:
        """Nothing that was taken since is used."""
        self._taken = mark

    @property
    def mark(self) -> int:
        """For free_to(), of what was taken so far."""
        return self._taken

    def free_to(self, mark: int) -> None:
        self._freed = mark


class Done(Protocol):
    """What is told that its work request has completed."""

    def completed(self) -> None: ...


class _Signaled(NamedTuple):
    """A work request that has a completion.

    places: those in the queue of this one, and of those before it that have none.
    mark: of the ring, with all of them.
    """

    number: int
    places: int
    mark: int
    done: Done | None


class SendQueue:
    def __init__(self, qp: QP, mr: MR, start: int, places: int) -> None:
        """start: where in `mr` the ring begins. places: how many work requests there can be."""
        self._qp, self._mr, self._start = qp, mr, start
        self._memory = memoryview(mr)[start:]
        self._ring = Ring(len(self._memory))
        self._places = places
        self._posted: deque[_Signaled] = deque()
        self._number = 0
        self._taken = 0  # places
        self._unsignaled = 0  # the last so many work requests
        self._signaled_to = 0  # of the ring
        self._at = self._length = 0  # of the frame that is being written
        self._before = 0  # the ring's mark without that frame

    @property
    def is_empty(self) -> bool:
        """Whether the completion of everything in it is known."""
        return not self._taken

    @property
    def oldest(self) -> int:
        """Which work request completes next, of those that have a completion."""
        return self._posted[0].number if self._posted else self._number + 1

    @property
    def places_left(self) -> int:
        return self._places - self._taken

    @property
    def has_place(self) -> bool:
        return self._taken < self._places

    def has_room(self, length: int) -> bool:
        return self.has_place and self._ring.has_room(length)

    def frame(self, length: int) -> memoryview | None:
        """Memory for a frame, which the caller writes and then posts. None if there is no room."""
        if not self.has_place:
            return None
        self._before = self._ring.mark
        at = self._ring.place(length)
        if at is None:
            return None
        self._at, self._length = at, length
        return self._memory[at : at + length]

    def shorten(self, length: int) -> None:
        """The frame that is being written has become shorter than the memory for it."""
        self._ring.shorten(self._length, length)
        self._length = length

    def drop_frame(self) -> None:
        """Nothing is to be sent after all."""
        self._ring.take_back(self._before)

    def post_frame(self, *, solicited: bool, done: Done | None = None) -> None:
        """Send the frame; `done` hears of its completion."""
        self._before = mark = self._ring.mark
        is_quarter = 4 * (mark - self._signaled_to) >= len(self._memory)
        is_signaled = done is not None or is_quarter or self._unsignaled >= SIGNAL_EACH - 1
        self._count(is_signaled, done)
        start = self._start + self._at
        sge = self._mr[start : start + self._length]
        self._qp.post_send(sge, wr_id=self._number, send_flags=FLAGS[solicited][is_signaled])

    def post_reads(self, reads: Sequence[tuple[SGE, Remote]], done: Done) -> None:
        """For which there are places; `done` hears of the completion of the last one."""
        last = len(reads) - 1
        for i, (sge, remote) in enumerate(reads):
            is_last = i == last
            self._count(is_last, done if is_last else None)
            self._qp.post_send(
                sge,
                wr_id=self._number,
                opcode=WROpcode.RDMA_READ,
                remote_addr=remote.addr,
                rkey=remote.rkey,
                send_flags=FLAGS[0][is_last],
            )

    def post_question(self) -> None:
        """Ask the peer's device for a sign of life. Nothing is done if the queue is full: all of
        that finds out by itself."""
        if self.has_place:
            self._count(True, None)
            number = self._number
            self._qp.post_send(
                None, wr_id=number, opcode=WROpcode.RDMA_WRITE, remote_addr=0, rkey=0
            )

    def _count(self, is_signaled: bool, done: Done | None) -> None:
        """Another work request is about to be posted."""
        self._number += 1
        self._taken += 1
        self._unsignaled += 1
        if is_signaled:
            self._signaled_to = self._ring.mark
            posted = _Signaled(self._number, self._unsignaled, self._signaled_to, done)
            self._posted.append(posted)
            self._unsignaled = 0

    def completed(self, number: int) -> None:
        """By the wr_id of a completion that succeeded."""
        while self._posted and self._posted[0].number <= number:
            one = self._posted.popleft()
            self._taken -= one.places
            self._ring.free_to(one.mark)
            if one.done is not None:
                one.done.completed()
