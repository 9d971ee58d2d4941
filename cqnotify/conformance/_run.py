# SPDX-License-Identifier: MIT
"""Running the cases of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from .._core import CQ, SGE, CompletionError, VerbsError
from .._qp_connect import ConnectOptions
from ..enums import AccessFlags, QPState, WCStatus, WROpcode
from ..testing import Endpoint, connect
from ._bench import (
    COMPLETE,
    GRH,
    LACKS_COMPLETION,
    LACKS_EVENT,
    RECV_AT,
    REFUSALS,
    REMOTE_AT,
    SEND_AT,
    SIZE,
    TIMERS,
    Bench,
)
from ._cases import OPERATIONS, RECV, UD, Arm, Case, Outcome, Queue
from ._deviation import Deviation
from ._report import Row
from ._rules import expected_events, expected_statuses

__all__ = ["play_cases", "stays_in_flight"]

_WRONG: Final = 0xFF  # makes a key a wrong one, by exclusive or

_DEPTH: Final = 16  # of a QP's queues
_BINDING: Final = 5.0  # seconds for a window to be bound

# Outcomes in which the receiver is not connected; and those in which it has no receive.
_ALONE: Final = (Outcome.NO_PEER, Outcome.FLUSH, Outcome.POSTED_IN_ERR)
_NO_RECEIVE: Final = (Outcome.NO_RECEIVE, *_ALONE)

_TIMERS_OF: Final[dict[Outcome, ConnectOptions]] = {
    Outcome.NO_PEER: {"ack_timeout": 8, "retry_cnt": 1},  # 1 ms, or the device's minimum
    Outcome.FLUSH: {"ack_timeout": 0},  # stays in flight forever
}


def stays_in_flight(case: Case) -> bool:
    """On iWARP nothing does: a QP has a peer from its first state on, and TCP takes all."""
    return case.operation != RECV.name and case.outcome in (Outcome.NO_PEER, Outcome.FLUSH)


def play_cases(bench: Bench, batch: Sequence[Case]) -> list[Row]:
    """Run the cases of a batch at the same time, and return their rows."""
    trials = [Trial(bench, case) for case in batch]
    for trial in trials:
        trial.prepare()
    if any(case.outcome is Outcome.POSTED_IN_ERR for case in batch):
        time.sleep(COMPLETE)  # a flush that still goes on would include what is posted now
    for trial in trials:
        trial.act()
    _collect(bench, trials)
    return [row for trial in trials for row in trial.rows()]


def _collect(bench: Bench, trials: Sequence[Trial]) -> None:
    """Take completions and events until nothing new comes.

    The absence of an event cannot be proved. An event may follow its completion: rxe of Linux 6.1
    first shows the completion to the program, and raises the event in a tasklet. A later event
    proves nothing either: events of one CQ may be merged, and those of different CQs overtake each
    other. So each CQ is armed only once, completions and events of a trial may come at any time
    during the batch, and the batch ends after a time in which nothing came.
    """
    last = time.monotonic()
    while True:
        came = [trial.poll() for trial in trials]
        if bench.drain() or any(came):
            last = time.monotonic()
        quiet = time.monotonic() - last
        if quiet > COMPLETE and quiet > _patience(trials):
            return
        time.sleep(0.01)


def _patience(trials: Iterable[Trial]) -> float:
    deviations = {d for trial in trials for row in trial.rows() for d in row.deviations}
    if Deviation.NO_COMPLETION in deviations:
        return LACKS_COMPLETION
    return LACKS_EVENT if Deviation.NO_EVENT in deviations else COMPLETE


class Trial:
    """A case on queue pairs and CQs of its own, whose completions and events all belong to it.

    `prepare()` and `act()` post without waiting, except for a window to be bound; `poll()` takes
    the completions.
    """

    def __init__(self, bench: Bench, case: Case) -> None:
        self.case = case
        self._refusal: str | None = None
        self._statuses: dict[Queue, list[WCStatus | int]] = {queue: [] for queue in Queue}
        self._bench = bench
        self._operation = OPERATIONS[case.operation]
        self._cqs = {queue: CQ(bench.context, 4, channel=bench.channel) for queue in Queue}
        self._ends: dict[Queue, Endpoint] = {}
        self._rkey = 0  # of the window, once it is bound

    def prepare(self) -> None:
        """Create the QPs, and bring them into the state in which the case begins."""
        with self._refusal_noted():
            self._make_ends()
            self._connect()
            if self._operation.invalidates and self.case.outcome is Outcome.SUCCESS:
                self._bind(self._operation.invalidates)
            if self.case.outcome is Outcome.POSTED_IN_ERR:
                self._fail()
            elif self._operation is not RECV and self.case.outcome not in _NO_RECEIVE:
                self._post_recv()

    def act(self) -> None:
        """Arm the CQs, and post what the case is about."""
        if self._refusal is not None:
            return
        with self._refusal_noted():
            if self.case.armed is not Arm.NOT:
                for cq in self._cqs.values():
                    cq.req_notify(solicited_only=self.case.armed is Arm.SOLICITED)
            if self._operation is RECV:
                self._post_recv()
            else:
                self._post_send()
            if self.case.outcome is Outcome.FLUSH:
                self._fail()

    def poll(self) -> bool:
        """Take the completions that have come; return whether there were any."""
        any_came = False
        for queue, cq in self._cqs.items():
            if wcs := cq.poll():
                self._statuses[queue] += [wc.status for wc in wcs]
                any_came = True
        return any_came

    def rows(self) -> list[Row]:
        """Return the results so far, with the events that the bench has taken."""
        return [self._row(queue) for queue in self.case.queues]

    def _row(self, queue: Queue) -> Row:
        case, statuses = self.case, tuple(self._statuses[queue])
        return Row(
            case,
            queue,
            expected_statuses(case, queue),
            statuses,
            expected_events(queue, case.armed, statuses, case.send_flags),
            self._cqs[queue].stats.events,
            self._refusal,
        )

    @contextmanager
    def _refusal_noted(self) -> Iterator[None]:
        """Note in the rows what the device does not support, instead of raising."""
        try:
            yield
        except VerbsError as e:
            if e.errno not in REFUSALS:
                raise
            self._refusal = str(e)
        except (CompletionError, TimeoutError) as e:  # in preparation
            self._refusal = str(e)

    def _make_ends(self) -> None:
        bench = self._bench
        for queue in Queue:
            watched = self._cqs[queue]
            self._ends[queue] = bench.new_end(
                self.case.qp_type,
                send_cq=watched if queue is Queue.SEND else bench.unwatched,
                recv_cq=watched if queue is Queue.RECV else bench.unwatched,
                depth=_DEPTH,
                sq_sig_all=self.case.sq_sig_all,
            )

    def _connect(self) -> None:
        sender, receiver = self._ends[Queue.SEND], self._ends[Queue.RECV]
        if self._bench.is_iwarp:
            connect(sender, receiver)
            return
        self._to_rts(sender, receiver)
        if self._operation is RECV or self.case.outcome not in _ALONE:
            self._to_rts(receiver, sender)

    def _to_rts(self, end: Endpoint, peer: Endpoint) -> None:
        options: ConnectOptions = {**TIMERS, **_TIMERS_OF.get(self.case.outcome, {})}
        if self.case.qp_type != UD:
            options["access"] = self._bench.access
        self._bench.to_rts(end, peer, options)

    def _bind(self, owner: Queue) -> None:
        qp = self._ends[owner].qp
        mw, sge = self._bench.new_window()
        qp.bind_mw(mw, sge, access=AccessFlags.REMOTE_READ)
        wcs = qp.send_cq.poll(spin=_BINDING)
        if not wcs:
            raise TimeoutError(f"a memory window was not bound within {_BINDING:g} s")
        wcs[0].raise_for_status()
        self._rkey = mw.rkey

    def _fail(self) -> None:
        queue = Queue.RECV if self._operation is RECV else Queue.SEND
        self._ends[queue].qp.modify(qp_state=QPState.ERR)

    def _post_recv(self) -> None:
        header = GRH if self.case.qp_type == UD else 0
        room = SIZE // 2 if self.case.outcome is Outcome.TOO_SMALL else SIZE
        sge = self._sge(RECV_AT, header + room, wrong=self.case.outcome is Outcome.BAD_RECV_LKEY)
        self._ends[Queue.RECV].qp.post_recv(sge)

    def _post_send(self) -> None:
        operation, bench, case = self._operation, self._bench, self.case
        sender = self._ends[Queue.SEND]
        if operation.opcode == WROpcode.BIND_MW:
            mw, sge = bench.new_window()
            sender.qp.bind_mw(mw, sge, access=AccessFlags.REMOTE_READ, send_flags=case.send_flags)
            return
        options: dict[str, Any] = {**operation.arguments, **sender.to_peer}
        if operation.remote:
            wrong = _WRONG if case.outcome is Outcome.BAD_RKEY else 0
            options["remote_addr"] = bench.mr.addr + REMOTE_AT
            options["rkey"] = bench.mr.rkey ^ wrong
        if operation.invalidates:
            options["invalidate_rkey"] = self._rkey
        wrong_lkey = case.outcome is Outcome.BAD_LKEY
        sg = None if operation.local else self._sge(SEND_AT, SIZE, wrong=wrong_lkey)
        assert operation.opcode is not None
        sender.qp.post_send(sg, opcode=operation.opcode, send_flags=case.send_flags, **options)

    def _sge(self, start: int, length: int, wrong: bool) -> SGE:
        sge = self._bench.mr[start : start + length]
        return sge.with_lkey(sge.lkey ^ _WRONG) if wrong else sge
