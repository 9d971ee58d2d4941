# SPDX-License-Identifier: MIT
"""Chrome's trace format, for Perfetto and chrome://tracing: a timeline's lanes as tracks.

https://ui.perfetto.dev opens such a file without sending it anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .timeline import Lane, Process, Row, Timeline

# Tracks are numbered as threads are: from here on, where no thread's number is.
FIRST_TRACK: Final = 1 << 24


def chrome(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as Chrome's trace format has it, for json.dump()."""
    events: list[dict[str, Any]] = []
    for number, process in enumerate(timeline.processes):
        events += _process(number, process)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"source": "cqnotify trace", "started_ns": str(timeline.started)},
    }


def _process(number: int, process: Process) -> Iterator[dict[str, Any]]:
    pid = process.summary.pid
    yield _name("process_name", pid, 0, process.name)
    yield {**_name("process_sort_index", pid, 0, ""), "args": {"sort_index": number}}
    for index, row in enumerate(process.rows):
        for line, lane in enumerate(row.lanes):
            yield from _lane(number, pid, (index, row), (line, lane))
    for found in process.findings:
        yield {"ph": "i", "s": "g", "name": found.text, "cat": "finding", **_at(found.time, pid, 0)}


def _lane(
    number: int, pid: int, place: tuple[int, Row], line: tuple[int, Lane]
) -> Iterator[dict[str, Any]]:
    """Yield a lane's events: a track of spans and marks, or a counter."""
    index, row = place
    lane = line[1]
    track = FIRST_TRACK + (number << 20) + index * 8 + line[0]
    if lane.spans or lane.marks:
        yield _name("thread_name", pid, track, f"{row.name}: {lane.label}")
        sort = {"args": {"sort_index": index * 8 + line[0]}}
        yield {**_name("thread_sort_index", pid, track, ""), **sort}
    for span in lane.spans:
        length = {"dur": (span.end - span.start) / 1000, "args": {"text": span.text}}
        event = {"ph": "X", "name": span.kind, "cat": row.kind, **length}
        yield {**event, **_at(span.start, pid, track)}
    for mark in lane.marks:
        event = {"ph": "i", "s": "t", "name": mark.kind, "cat": row.kind}
        yield {**event, "args": {"text": mark.text}, **_at(mark.time, pid, track)}
    for step in lane.steps:
        counter = {"ph": "C", "name": f"{row.name}: {lane.label}", "args": {lane.label: step.value}}
        yield {**counter, **_at(step.time, pid, 0)}


def _at(time: int, pid: int, track: int) -> dict[str, Any]:
    return {"ts": time / 1000, "pid": pid, "tid": track}


def _name(what: str, pid: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": track, "args": {"name": name}}
