# SPDX-License-Identifier: MIT
"""The send queue of a connection, for what is rare: see csrc/messages/send_queue.c."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from .. import SGE, _core
    from ._wire import Remote

SIGNAL_EACH: Final = 16  # frames have one completion; and each quarter of the ring's memory


class CompletionHandler(Protocol):
    """Called when its work request has completed."""

    def completed(self) -> None: ...


class SendQueue:
    def __init__(self, session: _core.MessageSession, memory: memoryview) -> None:
        self._session, self._memory = session, memory

    @property
    def is_empty(self) -> bool:
        """Whether the completion of everything in it is known."""
        return not self._session._slots_taken

    @property
    def oldest(self) -> int:
        """Which work request completes next, of those that have a completion."""
        return self._session._oldest

    @property
    def reads_in_flight(self) -> int:
        """How many reads are under way that the core has begun by itself."""
        return self._session.reads_in_flight

    @property
    def free_slots(self) -> int:
        return self._session._free_slots

    @property
    def has_free_slot(self) -> bool:
        return self._session._free_slots > 0

    def has_room(self, length: int) -> bool:
        return self._session._has_room(length)

    def reserve_frame(self, length: int) -> memoryview | None:
        """Return memory for a frame, which the caller writes and posts; None if there is none."""
        at = self._session._reserve(length)
        return None if at is None else self._memory[at : at + length]

    def shorten(self, length: int) -> None:
        """The frame that is being written has become shorter than the memory for it."""
        self._session._shorten(length)

    def drop_frame(self) -> None:
        """Return the memory of the frame that was reserved."""
        self._session._drop_frame()

    def post_frame(self, *, solicited: bool, done: CompletionHandler | None = None) -> None:
        """Send the frame; `done` is called when it has completed."""
        self._session._post_frame(solicited, done)

    def post_reads(self, reads: list[tuple[SGE, Remote]], done: CompletionHandler) -> None:
        """Post reads, for which there are slots; `done` is called when the last has completed."""
        self._session._post_reads(reads, done)

    def post_probe(self) -> None:
        """Post an empty RDMA write, which fails if the peer's device does not answer. In a full
        queue the others fail then."""
        self._session._post_probe()
