# SPDX-License-Identifier: MIT
"""Gaps: the times between a completion, its event, the wake-up and the poll; and what was in vain.

The program's records say when ibv_get_cq_event() returned an event and when a thread woke. Which of
the two came first depends on the program: a thread in ibv_get_cq_event() returns with the event; an
event loop wakes in epoll_wait() and reads the event afterwards. The gap between them is the time
from the earlier to the later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .records import Flag, Record, Recording, What


class GapKind(Enum):
    """What a gap lies between."""

    EVENT = "completion to event"
    WAKE = "event to wake"
    POLL = "wake to poll"
    TASK = "event to task"
    UNNOTICED = "no event until polled"


class Gap(NamedTuple):
    """A time between two steps. `open`: the second one never came, and `end` is the trace's."""

    kind: GapKind
    start: int
    end: int
    cq: int
    tid: int
    open: bool = False


@dataclass
class Counts:
    """How often what happened."""

    completions: int = 0
    failed: int = 0
    polls: int = 0
    empty_polls: int = 0
    sleeps: int = 0
    wakeups: int = 0
    """Wake-ups by a channel; an event loop has others."""
    events: int = 0
    acked: int = 0
    spurious: int = 0
    """Events after which the first poll found nothing."""
    arms: int = 0
    arms_without_event: int = 0
    """Arms that were followed by another one, or by the end of the CQ, with no event between."""
    still_armed: int = 0
    """CQs that are armed at the end."""


@dataclass
class Analysis:
    """The gaps of a recording, by their start, and its counts."""

    gaps: list[Gap]
    counts: Counts


def analyse(recording: Recording) -> Analysis:
    """Return the gaps and counts of a recording."""
    return _Analyser(recording).run()


@dataclass
class _Wakeup:
    """The time between two sleeps of a thread. `time` is None before it has woken."""

    time: int | None = None
    by_channel: bool = False
    first_event: int | None = None
    cqs: list[int] = field(default_factory=list)
    """Those it read an event of, in this order."""
    task_woken: bool = False


@dataclass
class _CQ:
    armed: bool = False
    seen: deque[int] = field(default_factory=deque)
    """When the completions came that wait in the CQ, as far as the observer knows."""
    noticed: int = 0
    """So many of these came before the last event."""
    wakeup: _Wakeup | None = None
    """The one whose event is followed by no poll yet."""
    event_pending: bool = False


class _Analyser:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._gaps: list[Gap] = []
        self._counts = Counts()
        self._threads: dict[int, _Wakeup] = {}
        self._cqs: dict[int, _CQ] = {}
        self._fresh: dict[tuple[int, int], int] = {}  # completions that precede their poll

    def run(self) -> Analysis:
        handlers: dict[int, Callable[[Record], None]] = {
            What.COMPLETION: self._completion,
            What.POLL: self._poll,
            What.ARM: self._arm,
            What.EVENT: self._event,
            What.ACK: self._ack,
            What.SLEEP: self._sleep,
            What.WAKE: self._wake,
            What.CQ_DESTROYED: self._destroyed,
            What.TASK_WAKE: self._task_wake,
        }
        for record in self._recording.records:
            if handler := handlers.get(record.what):
                handler(record)
        for number, cq in self._cqs.items():
            self._counts.still_armed += cq.armed
            if len(cq.seen) > cq.noticed:
                start = cq.seen[cq.noticed]
                self._add(GapKind.UNNOTICED, start, self._recording.end, number, 0, True)
        self._gaps.sort(key=lambda gap: (gap.start, gap.end))
        return Analysis(self._gaps, self._counts)

    def _add(
        self, kind: GapKind, start: int, end: int, cq: int, tid: int, is_open: bool = False
    ) -> None:
        self._gaps.append(Gap(kind, min(start, end), max(start, end), cq, tid, is_open))

    def _cq(self, number: int) -> _CQ:
        return self._cqs.setdefault(number, _CQ())

    def _completion(self, record: Record) -> None:
        self._counts.failed += record.detail >> 16 != 0
        if record.flags & Flag.SEEN:
            self._cq(record.object).seen.append(record.time)
        else:
            key = record.tid, record.object
            self._fresh[key] = self._fresh.get(key, 0) + 1

    def _poll(self, record: Record) -> None:
        self._counts.polls += 1
        self._counts.empty_polls += record.number == 0
        self._counts.completions += record.number
        cq = self._cq(record.object)
        self._hand_out(cq, record)
        if not cq.event_pending:
            return
        self._counts.spurious += record.number == 0
        if cq.wakeup is not None and cq.wakeup.time is not None:
            self._add(GapKind.POLL, cq.wakeup.time, record.time, record.object, record.tid)
        cq.event_pending, cq.wakeup = False, None

    def _hand_out(self, cq: _CQ, record: Record) -> None:
        """Take out of the CQ what the poll found there and the observer had seen before."""
        fresh = self._fresh.pop((record.tid, record.object), 0)
        taken = [cq.seen.popleft() for _ in range(min(record.number - fresh, len(cq.seen)))]
        if len(taken) > cq.noticed:
            start = taken[cq.noticed]
            self._add(GapKind.UNNOTICED, start, record.time, record.object, record.tid)
        cq.noticed = max(cq.noticed - len(taken), 0)

    def _arm(self, record: Record) -> None:
        self._counts.arms += 1
        cq = self._cq(record.object)
        self._counts.arms_without_event += cq.armed
        cq.armed = True

    def _event(self, record: Record) -> None:
        self._counts.events += 1
        cq = self._cq(record.object)
        if len(cq.seen) > cq.noticed:
            self._add(GapKind.EVENT, cq.seen[cq.noticed], record.time, record.object, record.tid)
            cq.noticed = len(cq.seen)
        cq.armed = False
        cq.event_pending, cq.wakeup = True, None
        wakeup = self._threads.get(record.tid)
        if wakeup is None or record.object in wakeup.cqs:
            return
        cq.wakeup = wakeup
        wakeup.cqs.append(record.object)
        if wakeup.first_event is None:
            wakeup.first_event = record.time
            self._pair(wakeup, record.tid)

    def _pair(self, wakeup: _Wakeup, tid: int) -> None:
        """Mark the gap, if the thread has both woken and read an event."""
        if wakeup.time is None or wakeup.first_event is None:
            return
        if not wakeup.by_channel:
            wakeup.by_channel = True
            self._counts.wakeups += 1
        self._add(GapKind.WAKE, wakeup.first_event, wakeup.time, wakeup.cqs[0], tid)

    def _ack(self, record: Record) -> None:
        self._counts.acked += record.number

    def _sleep(self, record: Record) -> None:
        self._counts.sleeps += 1
        self._threads[record.tid] = _Wakeup()

    def _wake(self, record: Record) -> None:
        wakeup = self._threads.setdefault(record.tid, _Wakeup())
        if wakeup.time is not None:  # its sleep was lost
            wakeup = self._threads[record.tid] = _Wakeup()
        wakeup.time = record.time
        if record.object:
            wakeup.by_channel = True
            self._counts.wakeups += 1
        self._pair(wakeup, record.tid)

    def _task_wake(self, record: Record) -> None:
        wakeup = self._threads.get(record.tid)
        if wakeup is None or wakeup.first_event is None or wakeup.task_woken:
            return
        wakeup.task_woken = True
        self._add(GapKind.TASK, wakeup.first_event, record.time, 0, record.tid)

    def _destroyed(self, record: Record) -> None:
        cq = self._cqs.pop(record.object, None)
        if cq is not None:
            self._counts.arms_without_event += cq.armed
            if len(cq.seen) > cq.noticed:
                start = cq.seen[cq.noticed]
                self._add(GapKind.UNNOTICED, start, record.time, record.object, record.tid)
