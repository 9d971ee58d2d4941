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
    """Memory that is freed in the order in which it was allocated."""

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

    def allocate(self, nbytes: int) -> int | None:
        """Return where `nbytes` in one piece begin; None if they are not free."""
        at, taken = self._needed(nbytes)
        if taken - self._freed > self._size:
            return None
        self._taken = taken
        return at

    def shorten(self, nbytes: int, to: int) -> None:
        """Return a part of the latest allocation, of `nbytes`."""
        self._taken -= _aligned(nbytes) - _aligned(to)

    def roll_back(self, mark: int) -> None:
        """Return what was allocated since that mark."""
        self._taken = mark

    @property
    def mark(self) -> int:
        """The argument of free_to() for what was allocated so far."""
        return self._taken

    def free_to(self, mark: int) -> None:
        self._freed = mark


class CompletionHandler(Protocol):
    """What is called when its work request has completed."""

    def completed(self) -> None: ...


class _Signaled(NamedTuple):
    """A work request that has a completion.

    slots: how many slots of the queue it frees, with those before it that have no completion.
    mark: the ring's mark with all of them.
    """

    number: int
    slots: int
    mark: int
    done: CompletionHandler | None


class SendQueue:
    def __init__(self, qp: QP, mr: MR, start: int, depth: int) -> None:
        """start: where in `mr` the ring begins. depth: how many work requests there can be."""
        self._qp, self._mr, self._start = qp, mr, start
        self._memory = memoryview(mr)[start:]
        self._ring = Ring(len(self._memory))
        self._depth = depth
        self._posted: deque[_Signaled] = deque()
        self._number = 0
        self._taken = 0  # slots
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
    def free_slots(self) -> int:
        return self._depth - self._taken

    @property
    def has_free_slot(self) -> bool:
        return self._taken < self._depth

    def has_room(self, length: int) -> bool:
        return self.has_free_slot and self._ring.has_room(length)

    def reserve_frame(self, length: int) -> memoryview | None:
        """Return memory for a frame, which the caller writes and posts; None if there is none."""
        if not self.has_free_slot:
            return None
        self._before = self._ring.mark
        at = self._ring.allocate(length)
        if at is None:
            return None
        self._at, self._length = at, length
        return self._memory[at : at + length]

    def shorten(self, length: int) -> None:
        """The frame that is being written has become shorter than the memory for it."""
        self._ring.shorten(self._length, length)
        self._length = length

    def drop_frame(self) -> None:
        """Return the memory of the frame that was reserved."""
        self._ring.roll_back(self._before)

    def post_frame(self, *, solicited: bool, done: CompletionHandler | None = None) -> None:
        """Send the frame; `done` is called when it has completed."""
        self._before = mark = self._ring.mark
        is_quarter = 4 * (mark - self._signaled_to) >= len(self._memory)
        is_signaled = done is not None or is_quarter or self._unsignaled >= SIGNAL_EACH - 1
        self._count(is_signaled, done)
        start = self._start + self._at
        sge = self._mr[start : start + self._length]
        self._qp.post_send(sge, wr_id=self._number, send_flags=FLAGS[solicited][is_signaled])

    def post_reads(self, reads: Sequence[tuple[SGE, Remote]], done: CompletionHandler) -> None:
        """Post reads, for which there are slots; `done` is called when the last has completed."""
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

    def post_probe(self) -> None:
        """Post an empty RDMA write, which fails if the peer's device does not answer. In a full
        queue the others fail then."""
        if self.has_free_slot:
            self._count(True, None)
            number = self._number
            self._qp.post_send(
                None, wr_id=number, opcode=WROpcode.RDMA_WRITE, remote_addr=0, rkey=0
            )

    def _count(self, is_signaled: bool, done: CompletionHandler | None) -> None:
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
        """Free what a completion stands for that succeeded, by its wr_id."""
        while self._posted and self._posted[0].number <= number:
            one = self._posted.popleft()
            self._taken -= one.slots
            self._ring.free_to(one.mark)
            if one.done is not None:
                one.done.completed()
