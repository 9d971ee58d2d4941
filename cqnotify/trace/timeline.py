# SPDX-License-Identifier: MIT
"""What a picture shows: a row for each thread, task, CQ, QP and SRQ of each process.

A row has lanes, one above the other. A lane has spans (states that last), marks (calls, and what
they returned) and steps (a count that changes). Times are ns since the start of the timeline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .gaps import Analysis, Gap, GapKind, analyse
from .outstanding import Outstanding
from .records import Flag, Record, Recording, What, task_name
from .summary import Summary, summarize, title_of
from .words import awaited, describe, status_of


class Style(NamedTuple):
    """How a kind is shown: its name in the legend, colour and shape; its name beside a mark."""

    label: str
    color: str
    shape: str
    short: str = ""


# The colours are names of the page's style sheet.
MARKS: Final = {
    "arm": Style("arm", "arm", "up", "arm"),
    "solicited": Style("arm, solicited only", "solicited", "up", "arm, solicited"),
    "event": Style("event", "event", "diamond", "event"),
    "ack": Style("acknowledge", "ack", "tick", "ack"),
    "poll": Style("poll", "poll", "dot", "poll"),
    "empty": Style("poll, nothing there", "poll", "ring", "poll 0"),
    "seen": Style("seen by the observer", "waiting", "down", "seen"),
    "completion": Style("completion", "poll", "down", "completion"),
    "failed": Style("failed", "bad", "cross", "failed"),
    "send": Style("post a send", "send", "up", "post send"),
    "recv": Style("post a receive", "recv", "up", "post recv"),
    "sleep": Style("sleep", "sleep", "tick", "sleep"),
    "wake": Style("wake", "wake", "dot", "wake"),
    "async": Style("asynchronous event", "other", "diamond", "async"),
    "cm": Style("rdma_cm event", "other", "diamond", "rdma_cm"),
    "fault": Style("fault, injected", "bad", "ring", "fault"),
    "object": Style("created, destroyed", "other", "tick"),
    "error": Style("error found", "bad", "flag"),
    "warning": Style("hazard found", "waiting", "flag"),
    "information": Style("information", "sleep", "flag"),
}
SPANS: Final = {
    "running": Style("running", "running", "bar"),
    "asleep": Style("asleep", "asleep", "bar"),
    "armed": Style("armed", "arm", "bar"),
    "solicited": Style("armed for solicited only", "solicited", "bar"),
    "task": Style("a task awaits a completion", "task", "bar"),
    "came": Style("a completion came in between", "waiting", "bar"),
    **{kind.value: Style(kind.value, f"gap-{kind.name.lower()}", "gap") for kind in GapKind},
}
OWN_ROWS: Final = 64  # so many tasks have a row each
COUNTS: Final = {
    "waiting": Style("completions that wait in the CQ", "waiting", "area"),
    "unacknowledged": Style("events not acknowledged", "ack", "area"),
    "sends": Style("sends in flight", "send", "area"),
    "receives": Style("receives posted", "recv", "area"),
}


class Span(NamedTuple):
    """A state that lasts; `open` if it had not ended when the timeline did."""

    start: int
    end: int
    kind: str
    text: str
    open: bool = False


class Mark(NamedTuple):
    """One moment. `number` stands beside it where there is space: completions, events."""

    time: int
    kind: str
    text: str
    number: int = 0


class Step(NamedTuple):
    """A count from this time on."""

    time: int
    value: int


@dataclass
class Lane:
    """One line of a row."""

    label: str
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.spans or self.marks or self.steps)


@dataclass
class Row:
    """A thread, a task or an object; `kind` is "thread", "task", "CQ", "QP" or "SRQ"."""

    kind: str
    name: str
    note: str = ""
    lanes: list[Lane] = field(default_factory=list)


class Found(NamedTuple):
    """A finding: when, what, how bad, and the index of the process' row that it is about.

    What led to it began at `since`.
    """

    since: int
    time: int
    text: str
    severity: str
    row: int

    @property
    def rule(self) -> str:
        return self.text.partition(": ")[0]

    @property
    def what(self) -> str:
        return self.text.partition(": ")[2]


@dataclass
class Process:
    """The rows of a process, its findings and its figures."""

    name: str
    rows: list[Row]
    findings: list[Found]
    summary: Summary


@dataclass
class Timeline:
    """Several processes of one machine, on one clock."""

    processes: list[Process]
    duration: int
    started: int
    """CLOCK_REALTIME of the start, in ns."""


def build(recordings: Sequence[Recording]) -> Timeline:
    """Return the timeline of these recordings; at least one has records."""
    recorded = [recording for recording in recordings if recording.records]
    start = min(recording.start for recording in recorded)
    end = max(recording.end for recording in recorded)
    return Timeline(
        processes=[_Builder(recording, start, end).build() for recording in recorded],
        duration=max(end - start, 1),
        started=start + recorded[0].clock_offset,
    )


@dataclass
class _Thread:
    state: Lane
    calls: Lane
    last: int
    """When its state began."""
    seen: int = 0
    """Its last record."""
    asleep: Record | None = None


@dataclass
class _CQ:
    row: Row
    armed: Lane
    calls: Lane
    came: Lane
    waiting: Lane
    unacknowledged: Lane
    arm: Record | None = None
    seen: int = 0
    events: int = 0
    emptied: list[int] = field(default_factory=lambda: [0])
    """When it was known to be empty."""


@dataclass
class _QP:
    row: Row
    requests: Lane
    outstanding: Outstanding
    cqs: tuple[int, ...] = ()


class _Builder:
    """Sorts the records of one process into its rows."""

    def __init__(self, recording: Recording, start: int, end: int) -> None:
        self._recording = recording
        self._start = start
        self._end = end - start
        self._threads: dict[int, _Thread] = {}
        self._cqs: dict[int, _CQ] = {}
        self._qps: dict[int, _QP] = {}
        self._srqs: dict[int, Row] = {}
        self._tasks: list[Row] = []
        self._running: dict[int, tuple[int, str]] = {}  # by thread: the task's id and name
        self._task_rows: dict[tuple[int, str], int] = {}  # those that one task has
        self._shared_rows: list[int] = []
        self._awaiting: dict[int, tuple[int, int, str]] = {}  # by what: row, since when, a text
        self._fresh: dict[tuple[int, int], int] = {}  # completions that precede their poll
        self._silent: dict[int, list[tuple[int, int]]] = {}  # by CQ: no event for a completion
        self._gap_spans: dict[tuple[GapKind, int], list[Span]] = {}  # by CQ; of tasks by thread
        self._several = len({record.tid for record in recording.records}) > 1

    def build(self) -> Process:
        analysis = analyse(self._recording)
        for gap in analysis.gaps:
            if gap.kind is GapKind.UNNOTICED:
                self._silent.setdefault(gap.cq, []).append((gap.start, gap.end))
        summary = summarize(self._recording, analysis)
        for record in self._recording.records:
            self._thread(record)
            if handler := _HANDLERS.get(record.what):
                handler(self, record)
        self._finish()
        self._add_gaps(analysis)
        rows = [*self._thread_rows(), *self._tasks, *self._object_rows()]
        findings = [*self._findings(rows)]
        for row in rows:
            row.lanes = [lane for lane in row.lanes if lane]
        return Process(title_of(summary), rows, findings, summary)

    # ---- helpers ---------------------------------------------------------------------------

    def _at(self, record: Record) -> int:
        return record.time - self._start

    def _text(self, record: Record) -> str:
        thread = f" (thread {record.tid})" if self._several else ""
        return describe(record) + thread

    def _mark(self, record: Record, kind: str, *lanes: Lane, number: int = 0) -> None:
        mark = Mark(self._at(record), kind, self._text(record), number)
        for lane in lanes:
            lane.marks.append(mark)

    # ---- threads ---------------------------------------------------------------------------

    def _thread(self, record: Record) -> _Thread:
        thread = self._threads.get(record.tid)
        if thread is None:
            thread = _Thread(Lane("state"), Lane("calls"), self._at(record))
            if record.what == What.WAKE:
                thread.asleep = record
                thread.last = self._recording.start - self._start
            self._threads[record.tid] = thread
        thread.seen = self._at(record)
        return thread

    def _to_now(self, thread: _Thread, record: Record, kind: str, text: str) -> None:
        """End the thread's state at this record."""
        now = self._at(record)
        if now > thread.last:
            thread.state.spans.append(Span(thread.last, now, kind, text))
        thread.last = now

    def _sleep(self, record: Record) -> None:
        thread = self._threads[record.tid]
        self._to_now(thread, record, "running", "running")
        self._mark(record, "sleep", thread.calls)
        thread.asleep = record

    def _wake(self, record: Record) -> None:
        thread = self._threads[record.tid]
        if thread.asleep is not None:
            how = "" if thread.asleep is record else f"{describe(thread.asleep)}; "
            self._to_now(thread, record, "asleep", how + describe(record))
            thread.asleep = None
        self._mark(record, "wake", thread.calls)

    def _thread_rows(self) -> Iterable[Row]:
        pid = self._recording.pid
        for tid, thread in sorted(self._threads.items(), key=lambda item: item[0] != pid):
            note = "main" if tid == pid else ""
            gaps = [lane for lane in self._task_gaps(tid) if lane]
            yield Row("thread", f"thread {tid}", note, [thread.state, thread.calls, *gaps])

    def _task_gaps(self, tid: int) -> Iterable[Lane]:
        yield Lane(GapKind.TASK.value, self._gap_spans.get((GapKind.TASK, tid), []))

    # ---- tasks -----------------------------------------------------------------------------

    def _task(self, record: Record) -> None:
        self._running[record.tid] = record.value, task_name(record)

    def _task_sleep(self, record: Record) -> None:
        task = self._running.get(record.tid)
        name = "a task" if task is None else task[1] or "a task"
        text = f"{name} awaits {awaited(record)}"
        self._awaiting[record.value] = self._row_of(task, name), self._at(record), text

    def _row_of(self, task: tuple[int, str] | None, name: str) -> int:
        """Return the task's own row. Of many tasks, the later ones share rows."""
        if task is not None and (own := self._task_rows.get(task)) is not None:
            return own
        if task is not None and len(self._task_rows) < OWN_ROWS:
            self._task_rows[task] = len(self._tasks)
        else:
            busy = {row for row, *_ in self._awaiting.values()}
            for row in self._shared_rows:
                if row not in busy:
                    return row
            self._shared_rows.append(len(self._tasks))
            name = f"task {len(self._shared_rows)}"
        self._tasks.append(Row("task", name, "", [Lane("awaits")]))
        return len(self._tasks) - 1

    def _task_wake(self, record: Record) -> None:
        if (awaiting := self._awaiting.pop(record.value, None)) is not None:
            self._task_span(*awaiting, self._at(record))

    def _task_span(
        self, row: int, since: int, text: str, until: int, is_open: bool = False
    ) -> None:
        self._tasks[row].lanes[0].spans.append(Span(since, until, "task", text, is_open))

    # ---- CQs -------------------------------------------------------------------------------

    def _cq(self, number: int) -> _CQ:
        if number not in self._cqs:
            armed, calls, came = Lane("armed"), Lane("calls"), Lane("came")
            lanes = armed, calls, came, Lane("waiting"), Lane("unacknowledged")
            self._cqs[number] = _CQ(Row("CQ", f"CQ {number}", "", [*lanes]), *lanes)
        return self._cqs[number]

    def _calls(self, record: Record) -> Lane:
        return self._threads[record.tid].calls

    def _cq_created(self, record: Record) -> None:
        cq = self._cq(record.object)
        channel = f"channel {record.other}" if record.other else "no channel"
        cq.row.note = f"{channel}, {record.number:,} entries"
        cq.emptied.append(self._at(record))
        self._mark(record, "object", self._calls(record), cq.calls)

    def _cq_destroyed(self, record: Record) -> None:
        cq = self._cq(record.object)
        self._disarm(cq, self._at(record))
        cq.seen = 0
        self._step(cq.waiting, record, 0)
        self._mark(record, "object", self._calls(record), cq.calls)

    def _arm(self, record: Record) -> None:
        cq = self._cq(record.object)
        kind = "solicited" if record.detail else "arm"
        self._mark(record, kind, self._calls(record), cq.calls)
        if cq.arm is None or (cq.arm.detail and not record.detail):
            self._disarm(cq, self._at(record))
            cq.arm = record

    def _disarm(self, cq: _CQ, now: int, is_open: bool = False) -> None:
        if cq.arm is None:
            return
        kind, text = ("solicited", "armed for solicited completions only")
        if not cq.arm.detail:
            kind, text = "armed", "armed"
        cq.armed.spans.append(Span(self._at(cq.arm), now, kind, text, is_open))
        cq.arm = None

    def _arm_failed(self, record: Record) -> None:
        self._mark(record, "failed", self._calls(record), self._cq(record.object).calls)

    def _event(self, record: Record) -> None:
        cq = self._cq(record.object)
        self._disarm(cq, self._at(record))
        self._mark(record, "event", self._calls(record), cq.calls)
        cq.events += 1
        self._step(cq.unacknowledged, record, cq.events)

    def _ack(self, record: Record) -> None:
        cq = self._cq(record.object)
        self._mark(record, "ack", self._calls(record), cq.calls, number=record.number)
        cq.events = max(cq.events - record.number, 0)
        self._step(cq.unacknowledged, record, cq.events)

    def _step(self, lane: Lane, record: Record, value: int) -> None:
        if (lane.steps[-1].value if lane.steps else 0) != value:
            lane.steps.append(Step(self._at(record), value))

    def _completion(self, record: Record) -> None:
        cq = self._cq(record.object)
        if record.flags & Flag.SEEN:
            cq.seen += 1
            since = self._came(cq, record)
            steps = cq.waiting.steps
            if steps and steps[-1].time > since:
                since = self._at(record)
            steps.append(Step(since, cq.seen))
            self._mark(record, "seen", cq.waiting)
        else:
            key = record.tid, record.object
            self._fresh[key] = self._fresh.get(key, 0) + 1
        failed = status_of(record) != 0
        if number := record.other or self._qp_that_has(record):
            qp = self._qp(number)
            self._mark(record, "failed" if failed else "completion", qp.requests)
            qp.outstanding.complete(self._at(record), record)
        elif failed:
            self._mark(record, "failed", cq.calls)

    def _came(self, cq: _CQ, record: Record) -> int:
        """Show between which moments a completion came that raised no event; return the second.

        The observer sees it later. Had it come after the arm, it had raised an event.
        """
        now = self._at(record)
        silent = self._silent.get(record.object, ())
        if not any(start <= record.time <= end for start, end in silent):
            return now
        until = now
        if cq.arm is not None and not cq.arm.detail:
            until = self._at(cq.arm)
        since = cq.emptied[bisect_right(cq.emptied, until) - 1]
        text = f"a completion of CQ {record.object} came in between, and raised no event"
        span = Span(since, until, "came", text)
        if span not in cq.came.spans[-1:]:
            cq.came.spans.append(span)
        return until

    def _qp_that_has(self, record: Record) -> int:
        """Return the QP of a completion that was seen: of its CQ the only one with this wr_id."""
        found = [
            number
            for number, qp in self._qps.items()
            if record.object in qp.cqs and record.value in qp.outstanding
        ]
        return found[0] if len(found) == 1 else 0

    def _poll(self, record: Record) -> None:
        cq = self._cq(record.object)
        fresh = self._fresh.pop((record.tid, record.object), 0)
        cq.seen = max(cq.seen - max(record.number - fresh, 0), 0)
        self._step(cq.waiting, record, cq.seen)
        if record.number < record.detail:
            cq.emptied.append(self._at(record))
        kind = "poll" if record.number else "empty"
        self._mark(record, kind, self._calls(record), cq.calls, number=record.number)

    # ---- QPs and SRQs ----------------------------------------------------------------------

    def _qp(self, number: int) -> _QP:
        if number not in self._qps:
            requests, outstanding = Lane("requests"), Outstanding()
            row = Row("QP", f"QP {number}", "", [requests])
            self._qps[number] = _QP(row, requests, outstanding)
        return self._qps[number]

    def _qp_created(self, record: Record) -> None:
        qp = self._qp(record.object)
        receives = f", {record.value}" if record.value != record.other else ""
        qp.cqs = record.other, record.value
        qp.row.note = f"number {record.number}, CQ {record.other}{receives}"
        self._mark(record, "object", self._calls(record), qp.requests)

    def _qp_destroyed(self, record: Record) -> None:
        qp = self._qp(record.object)
        qp.outstanding.clear(self._at(record))
        self._mark(record, "object", self._calls(record), qp.requests)

    def _post(self, record: Record) -> None:
        qp = self._qp(record.object)
        is_send = record.what == What.POST_SEND
        self._mark(record, "send" if is_send else "recv", self._calls(record), qp.requests)
        qp.outstanding.post(self._at(record), record)

    def _post_refused(self, record: Record) -> None:
        self._mark(record, "failed", self._calls(record), self._qp(record.object).requests)

    def _cm_event(self, record: Record) -> None:
        lanes = [self._qp(record.object).requests] if record.object else []
        self._mark(record, "cm", self._calls(record), *lanes)

    def _srq(self, record: Record) -> Lane:
        if record.object not in self._srqs:
            row = Row("SRQ", f"SRQ {record.object}", "", [Lane("requests")])
            self._srqs[record.object] = row
        return self._srqs[record.object].lanes[0]

    def _srq_record(self, record: Record) -> None:
        kind = "recv" if record.what == What.POST_SRQ_RECV else "object"
        self._mark(record, kind, self._calls(record), self._srq(record))

    def _other(self, record: Record) -> None:
        kinds = {What.ASYNC_EVENT: "async", What.FAULT: "fault"}
        self._mark(record, kinds.get(What(record.what), "object"), self._calls(record))

    # ---- the end ---------------------------------------------------------------------------

    def _finish(self) -> None:
        """End what was not over when the timeline was."""
        for thread in self._threads.values():
            if thread.asleep is not None:
                text = f"{describe(thread.asleep)}; still asleep at the end"
                span = Span(thread.last, self._end, "asleep", text, True)
                thread.state.spans.append(span)
            elif thread.seen > thread.last:
                thread.state.spans.append(Span(thread.last, thread.seen, "running", "running"))
        for row, since, text in self._awaiting.values():
            self._task_span(row, since, text, self._end, True)
        for cq in self._cqs.values():
            self._disarm(cq, self._end, True)
            if all(step.value <= 1 for step in cq.unacknowledged.steps) and not cq.events:
                cq.unacknowledged.steps = []
        for qp in self._qps.values():
            for label, counts in qp.outstanding.counts():
                lane = Lane(label, steps=[Step(*count) for count in counts])
                qp.row.lanes.append(lane)

    def _add_gaps(self, analysis: Analysis) -> None:
        """Give each CQ a lane for each kind of gap that it has."""
        for gap in analysis.gaps:
            key = gap.kind, (gap.tid if gap.kind is GapKind.TASK else gap.cq)
            self._gap_spans.setdefault(key, []).append(self._gap_span(gap))
        for kind in GapKind:
            for number, cq in self._cqs.items():
                if kind is not GapKind.TASK and (kind, number) in self._gap_spans:
                    cq.row.lanes.append(Lane(kind.value, self._gap_spans[kind, number]))

    def _gap_span(self, gap: Gap) -> Span:
        end = self._end if gap.open else gap.end - self._start
        return Span(gap.start - self._start, end, gap.kind.value, gap.kind.value, gap.open)

    def _object_rows(self) -> Iterable[Row]:
        for number in sorted(self._cqs):
            yield self._cqs[number].row
        for number in sorted(self._qps):
            yield self._qps[number].row
        for number in sorted(self._srqs):
            yield self._srqs[number]

    def _findings(self, rows: list[Row]) -> Iterable[Found]:
        places = {row.name: index for index, row in enumerate(rows)}
        for finding in self._recording.findings:
            names = [f"CQ {finding.cq}"] * bool(finding.cq) + [f"thread {finding.tid}"]
            index = next((places[name] for name in names if name in places), 0)
            at = max(finding.time - self._start, 0)
            self._flag(rows[index], Mark(at, finding.severity, finding.text))
            emptied = self._cq(finding.cq).emptied if finding.cq else [at]
            since = emptied[bisect_right(emptied, at) - 1]
            yield Found(since, at, finding.text, finding.severity, index)

    @staticmethod
    def _flag(row: Row, mark: Mark) -> None:
        calls = [lane for lane in row.lanes if lane.label == "calls"]
        marks = (calls or row.lanes)[0].marks
        marks.append(mark)
        marks.sort(key=lambda mark: mark.time)


_HANDLERS: Final[dict[int, Callable[[_Builder, Record], None]]] = {
    What.CHANNEL_CREATED: _Builder._other,
    What.CHANNEL_DESTROYED: _Builder._other,
    What.CQ_CREATED: _Builder._cq_created,
    What.CQ_DESTROYED: _Builder._cq_destroyed,
    What.QP_CREATED: _Builder._qp_created,
    What.QP_DESTROYED: _Builder._qp_destroyed,
    What.SRQ_CREATED: _Builder._srq_record,
    What.SRQ_DESTROYED: _Builder._srq_record,
    What.POST_SEND: _Builder._post,
    What.POST_RECV: _Builder._post,
    What.POST_SRQ_RECV: _Builder._srq_record,
    What.POST_REFUSED: _Builder._post_refused,
    What.COMPLETION: _Builder._completion,
    What.POLL: _Builder._poll,
    What.ARM: _Builder._arm,
    What.ARM_FAILED: _Builder._arm_failed,
    What.EVENT: _Builder._event,
    What.ACK: _Builder._ack,
    What.ASYNC_EVENT: _Builder._other,
    What.CM_EVENT: _Builder._cm_event,
    What.SLEEP: _Builder._sleep,
    What.WAKE: _Builder._wake,
    What.FAULT: _Builder._other,
    What.TASK: _Builder._task,
    What.TASK_SLEEP: _Builder._task_sleep,
    What.TASK_WAKE: _Builder._task_wake,
}
