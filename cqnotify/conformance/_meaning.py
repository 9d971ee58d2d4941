# SPDX-License-Identifier: MIT
"""What each kind of deviation means for a program, in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..enums import WCStatus
from ._cases import Arm, Outcome, Queue
from ._report import Deviation, Row


def of_events(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each way in which ibv_req_notify_cq(3) is departed from."""
    endings: dict[tuple[Queue, Arm, Deviation, str], Counter[str]] = {}
    for row in rows:
        for deviation in row.deviations:
            if deviation.of_events:
                advice = _event_advice(row, deviation)
                key = row.queue, row.case.armed, deviation, advice
                endings.setdefault(key, Counter())[_ending(row)] += 1
    for (queue, armed, deviation, advice), counts in endings.items():
        case = f"{queue.value}, {' or '.join(sorted(counts))}, armed for {armed.value}"
        yield f"{case}: {deviation.value} ({_rows(counts.total())}). {advice}"


def of_completions(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each way in which completions are not those that InfiniBand asks for."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for deviation in row.deviations:
            if not deviation.of_events:
                counts[_completion_advice(row, deviation)] += 1
    for (what, advice), n in counts.items():
        yield f"{what} ({_rows(n)}). {advice}"


def _ending(row: Row) -> str:
    if not row.statuses:
        return "nothing completed"
    status = row.statuses[0]
    if status == WCStatus.SUCCESS:
        return "success"
    return "flushed" if status == WCStatus.WR_FLUSH_ERR else "failed"


def _event_advice(row: Row, deviation: Deviation) -> str:
    armed = row.case.armed
    if deviation is Deviation.SURPLUS_EVENT:
        if armed is Arm.SOLICITED:
            return "It wakes more often than it should: look what came, and sleep again."
        return "Expect events with nothing new behind them."
    if armed is Arm.ANY:
        return "Do not sleep until a completion comes: poll."
    if row.queue is Queue.SEND:
        return "Arm send CQs for any completion."
    if row.statuses[0] == WCStatus.SUCCESS:
        return "The sender can not wake the receiver: arm for any completion."
    return "Whoever waits for solicited messages alone sleeps on: look at QP.state, too."


def _completion_advice(row: Row, deviation: Deviation) -> tuple[str, str]:
    if deviation is Deviation.NO_COMPLETION:
        what = f"{row.queue.value}, {row.case.outcome.value}: no completion"
        if row.case.outcome is Outcome.POSTED_IN_ERR:
            return what, "Do not wait for a last marker to be flushed: close the QP."
        return what, "Wait with a timeout."
    if deviation is Deviation.SURPLUS_COMPLETION:
        return f"{row.queue.value}: one too many", "Know completions by their wr_id."
    if (row.statuses[0] == WCStatus.SUCCESS) or WCStatus.SUCCESS in row.expected_statuses:
        return f"{row.queue.value}, {row.case.outcome.value}: {_ending(row)}", "Do not rely on it."
    return "another status", "Ask whether it succeeded; take the status for a hint at the cause."


def _rows(n: int) -> str:
    return f"{n} row{'s' if n != 1 else ''}"
