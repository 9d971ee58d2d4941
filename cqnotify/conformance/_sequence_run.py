# SPDX-License-Identifier: MIT
"""Running the sequences of a batch, all at the same time, one step after another."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from .._core import CQ, CompletionChannel, CompletionError, VerbsError
from .._qp_connect import ConnectOptions
from ..enums import SendFlags
from ..testing import Endpoint, connect
from ._bench import (
    COMPLETE,
    GRH,
    LACKS_COMPLETION,
    LACKS_EVENT,
    RECV_AT,
    REFUSALS,
    SEND_AT,
    SIZE,
    TIMERS,
    Bench,
)
from ._cases import NONE, SIGNALED, SOLICITED, UD, Queue
from ._sequence_report import SequenceRow
from ._sequence_rules import expected_in_sequence
from ._sequences import Action, Sequence, Step

__all__ = ["play_sequences"]

_FEW: Final = 4  # entries of a CQ that is to be filled
_SPARE: Final = 8  # entries of a QP's queues, besides those of the CQ
_TURN: Final = 0.03  # seconds that a turn of a wait counts at most: a guest may have stood still

# Where a CQ overflows, the peer of a QP does not answer any more.
_IMPATIENT: Final[ConnectOptions] = {"ack_timeout": 14, "retry_cnt": 2}  # 0.2 s

_POSTS: Final = (Action.COMPLETE, Action.COMPLETE_SOLICITED, Action.FILL, Action.OVERFLOW)


def play_sequences(bench: Bench, batch: Iterable[Sequence]) -> list[SequenceRow]:
    """Run the sequences of a batch at the same time, and return their rows."""
    trials = [SequenceTrial(bench, sequence) for sequence in batch]
    going = {trial: trial.play() for trial in trials}
    while going := {trial: steps for trial, steps in going.items() if _goes_on(steps)}:
        _settle(bench, going)
    for trial in trials:
        trial.poll_rest()
    return [trial.row() for trial in trials]


def _goes_on(steps: Iterator[None]) -> bool:
    return next(steps, steps) is None


def _settle(bench: Bench, trials: Collection[SequenceTrial]) -> None:
    """Wait until nothing new comes: what the trials have posted has completed, and raised events.

    A program that polled for a completion would take it out of the CQ, which a sequence may forbid.
    So its witness is polled: the completion of the same message at the other end. What a witness
    does not tell, and whether an event is still to come, only a time tells in which nothing came;
    see `_collect()` in _run.py. All trials of a batch spend that time together.
    """
    quiet, before = 0.0, time.monotonic()
    while quiet <= max(trial.patience() for trial in trials):
        time.sleep(0.01)
        now = time.monotonic()
        quiet, before = quiet + min(now - before, _TURN), now
        bench.count_overflows()
        came = [trial.look() for trial in trials]
        if any(came):
            quiet = 0.0


def _may_be_under_way(step: Step | None) -> bool:
    """Whether messages may be, while this step is done: it posts others, or waits itself."""
    return step is not None and (step.action in _POSTS or step.action.takes_events)


def _entries(sequence: Sequence) -> int:
    """Return how many entries its CQs need: all completions have room, unless that is the point."""
    actions = [step.action for step in sequence.steps]
    if Action.FILL in actions or Action.OVERFLOW in actions:
        return _FEW
    return max(_FEW, sum(step.n for step in sequence.steps if step.action in _POSTS))


class _Pair(NamedTuple):
    sender: Endpoint
    receiver: Endpoint


class _Watched:
    """A CQ whose events are watched, with queue pairs; what completes there has a witness."""

    def __init__(self, bench: Bench, sequence: Sequence, channel: CompletionChannel) -> None:
        self._bench = bench
        self._sequence = sequence
        self.cq = CQ(bench.context, _entries(sequence), channel=channel)
        self._depth = self.cq.cqe + _SPARE
        self._witness = CQ(bench.context, self._depth)
        self.missing = 0  # witnesses
        self.posted = 0
        self.polled = 0
        self.completed = self.failed = 0
        self.unread = 0  # events that were taken while those of another CQ were due
        self.connect()

    def connect(self) -> None:
        """Create queue pairs, which use the CQ instead of those before, if there were any."""
        is_sender = self._sequence.queue is Queue.SEND
        send_cq, recv_cq = (self.cq, self._witness) if is_sender else (self._witness, self.cq)
        bench, qp_type = self._bench, self._sequence.qp_type
        idle = bench.unwatched
        self.ends = _Pair(
            bench.new_end(qp_type, send_cq=send_cq, recv_cq=idle, depth=self._depth),
            bench.new_end(qp_type, send_cq=idle, recv_cq=recv_cq, depth=self._depth),
        )
        if bench.is_iwarp:
            connect(*self.ends)
            return
        overflows = any(step.action is Action.OVERFLOW for step in self._sequence.steps)
        options: ConnectOptions = {**TIMERS, **_IMPATIENT} if overflows else TIMERS
        for end, peer in (self.ends, reversed(self.ends)):
            bench.to_rts(end, peer, options)

    def post(self, action: Action, count: int) -> None:
        room = self.cq.cqe - (self.posted - self.polled)
        n = {Action.FILL: room, Action.OVERFLOW: room + 1}.get(action, count)
        header = GRH if self._sequence.qp_type == UD else 0
        for _ in range(n):
            receive = self._bench.mr[RECV_AT : RECV_AT + header + SIZE]
            self.ends.receiver.qp.post_recv(receive)
            self._send(SOLICITED if action is Action.COMPLETE_SOLICITED else NONE)

    def _send(self, flags: SendFlags) -> None:
        message = self._bench.mr[SEND_AT : SEND_AT + SIZE]
        sender = self.ends.sender
        sender.qp.post_send(message, send_flags=SIGNALED | flags, **sender.to_peer)
        self.posted += 1
        self.missing += 1

    def look(self) -> bool:
        """Poll the witnesses; return whether there were any."""
        came = len(self._witness.poll(self._depth)) if self.missing else 0
        self.missing -= came
        return came > 0

    def poll(self, count: int) -> None:
        """Take so many completions, or all for 0."""
        left = count
        while wcs := self.cq.poll(left or 16):
            self.polled += len(wcs)
            failed = sum(not wc.ok for wc in wcs)
            self.completed += len(wcs) - failed
            self.failed += failed
            left -= len(wcs) if count else 0
            if count and not left:
                return


class SequenceTrial:
    """A sequence on queue pairs, CQs and a channel of its own.

    `play()` does the steps, and yields whenever it must wait; meanwhile `look()` sees what comes,
    and `patience()` tells for how long it has to be quiet.
    """

    def __init__(self, bench: Bench, sequence: Sequence) -> None:
        self._bench = bench
        self._sequence = sequence
        self._expected = expected_in_sequence(sequence)
        self._events: list[int] = []
        self._watched: list[_Watched] = []
        self._reading: Step | None = None
        self._has_acted = False  # since the last wait
        self._refusal: str | None = None

    def play(self) -> Iterator[None]:
        """Do the steps, and yield whenever it must wait for what they bring about."""
        try:
            self._channel = CompletionChannel(self._bench.context)
            for _ in range(self._sequence.cqs):
                self._watched.append(_Watched(self._bench, self._sequence, self._channel))
            for step, following in zip(
                self._sequence.steps, (*self._sequence.steps[1:], None), strict=True
            ):
                yield from self._do(step, following)
        except VerbsError as e:
            if e.errno not in REFUSALS and not self._is_free():
                raise
            self._refusal = str(e)
        except (CompletionError, TimeoutError) as e:  # in connecting
            self._refusal = str(e)

    def look(self) -> bool:
        """See what has come; return whether there was anything."""
        came = [watched.look() for watched in self._watched]
        return self._read_events() or any(came)

    def patience(self) -> float:
        """Return for how many seconds nothing must come before the trial goes on."""
        if any(watched.missing for watched in self._watched):
            return LACKS_EVENT if self._is_free() else LACKS_COMPLETION
        return LACKS_EVENT if self._lacks_event() else COMPLETE

    def poll_rest(self) -> None:
        """Take the completions that are left at the end."""
        for watched in self._watched:
            watched.poll(0)

    def row(self) -> SequenceRow:
        """Return the result."""
        return SequenceRow(
            self._sequence,
            self._expected,
            tuple(self._events),
            sum(watched.posted for watched in self._watched),
            sum(watched.completed for watched in self._watched),
            sum(watched.failed for watched in self._watched),
            sum(self._bench.overflows[watched.cq] for watched in self._watched),
            self._refusal,
        )

    def _do(self, step: Step, following: Step | None) -> Iterator[None]:
        watched = self._watched[step.cq]
        if step.action.takes_events:
            yield from self._take(step, watched)
            return
        self._act(step, watched)
        self._has_acted = self._has_acted or step.action is not Action.POLL
        if step.action in _POSTS and not _may_be_under_way(following):
            yield
            self._has_acted = False

    def _act(self, step: Step, watched: _Watched) -> None:
        action = step.action
        if action in _POSTS:
            watched.post(action, step.n)
        elif action is Action.POLL:
            watched.poll(step.n)
        elif action is Action.RESIZE:
            watched.cq.resize(2 * watched.cq.cqe)
        elif action is Action.NEW_QPS:
            watched.connect()
        else:
            watched.cq.req_notify(solicited_only=action is Action.ARM_SOLICITED)

    def _take(self, step: Step, watched: _Watched) -> Iterator[None]:
        self._reading = step
        self._read_events()
        if self._has_acted or self._lacks_event():
            yield
            self._has_acted = False
        self._reading = None
        self._events.append(watched.unread)
        watched.unread = 0

    def _read_events(self) -> bool:
        """Read the events, if that is the step that is being done."""
        if self._reading is None:
            return False
        any_came = False
        while (cq := self._channel.try_get_event()) is not None:
            (watched,) = (each for each in self._watched if each.cq is cq)
            watched.unread += 1
            if self._reading.action is Action.EVENTS:
                cq.ack()
            any_came = True
        return any_came

    def _is_free(self) -> bool:
        """Whether nothing is demanded of the device any more."""
        done = len(self._events)
        return done < len(self._expected) and self._expected[done] is None

    def _lacks_event(self) -> bool:
        if self._reading is None:
            return False
        expected = self._expected[len(self._events)]
        return expected is not None and self._watched[self._reading.cq].unread < expected
