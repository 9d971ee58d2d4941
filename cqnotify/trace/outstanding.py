# SPDX-License-Identifier: MIT
"""How many work requests of a QP are in flight, as far as its posts and completions say."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from .records import Flag, Record, What

RECV_OPCODE = 128  # IBV_WC_RECV: the bit that opcodes of receives have


class _Queue:
    """Work requests in flight, in the order of their posts."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, bool]] = deque()
        self._have: Counter[tuple[int, bool]] = Counter()
        self.counts: list[tuple[int, int]] = []

    def __contains__(self, wr_id: int) -> bool:
        return self._have[wr_id, True] > 0 or self._have[wr_id, False] > 0

    def push(self, time: int, wr_id: int, signaled: bool) -> None:
        self._requests.append((wr_id, signaled))
        self._have[wr_id, signaled] += 1
        self._note(time)

    def retire(self, time: int, wr_id: int, failed: bool) -> None:
        """Take out the first one that can have completed, and those before it.

        These completed unsignaled. One that failed completes even if it is not signaled.
        """
        wanted = [(wr_id, True), (wr_id, False)] if failed else [(wr_id, True)]
        if not any(self._have[request] for request in wanted):
            return
        while True:
            first = self._requests.popleft()
            self._have[first] -= 1
            if not self._have[first]:
                del self._have[first]
            if first in wanted:
                break
        self._note(time)

    def clear(self, time: int) -> None:
        self._requests.clear()
        self._have.clear()
        self._note(time)

    def _note(self, time: int) -> None:
        if (self.counts[-1][1] if self.counts else 0) != len(self._requests):
            self.counts.append((time, len(self._requests)))


class Outstanding:
    """The sends and receives of a QP that are in flight."""

    def __init__(self) -> None:
        self._sends = _Queue()
        self._receives = _Queue()

    def post(self, time: int, record: Record) -> None:
        """Add the work request of a POST_SEND or POST_RECV."""
        if record.what == What.POST_SEND:
            self._sends.push(time, record.value, bool(record.flags & Flag.SIGNALED))
        else:
            self._receives.push(time, record.value, True)

    def complete(self, time: int, record: Record) -> None:
        """Take out the work request of a COMPLETION; a failed one does not say its direction."""
        failed = record.detail >> 16 != 0
        is_receive = bool(record.detail & RECV_OPCODE)
        if failed:
            is_receive = record.value not in self._sends
        (self._receives if is_receive else self._sends).retire(time, record.value, failed)

    def __contains__(self, wr_id: int) -> bool:
        return wr_id in self._sends or wr_id in self._receives

    def clear(self, time: int) -> None:
        """Forget all: the QP is destroyed."""
        self._sends.clear(time)
        self._receives.clear(time)

    def counts(self) -> Iterable[tuple[str, list[tuple[int, int]]]]:
        """Yield the two directions, and for each the times at which its count changed."""
        yield "sends", self._sends.counts
        yield "receives", self._receives.counts
