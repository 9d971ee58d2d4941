# SPDX-License-Identifier: MIT
"""A still picture of a short timeline: SVG, for a page or a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Final

from .records import TraceError
from .timeline import COUNTS, MARKS, SPANS, Found, Lane, Mark, Row, Span, Timeline
from .words import duration

MOST_MARKS: Final = 400
WIDTH, NAMES, RIGHT, AXIS, PAD = 960, 190, 24, 30, 9
STATE, GAP = 28, 20
LETTER: Final = 6.4  # the width of a letter, on average and a little more

LIGHT, DARK = ":root", ':root[data-theme="dark"]'
_STYLES: Final = (*MARKS.values(), *SPANS.values(), *COUNTS.values())
_SHAPES: Final = {
    "up": '<path d="M0-5.5 5 5H-5z"/>',
    "down": '<path d="M0 5.5 5-5H-5z"/>',
    "diamond": '<path d="M0-6 6 0 0 6-6 0z"/>',
    "dot": '<circle r="5"/>',
    "ring": '<circle r="4.2" class="hollow"/>',
    "tick": '<path d="M-1-7h2V7h-2z"/>',
    "cross": '<path d="M-4.5-4.5 4.5 4.5M4.5-4.5-4.5 4.5" class="hollow"/>',
    "flag": '<path d="M-1-10 9-6.5 1-3v13h-2z"/>',
}


def picture(timeline: Timeline) -> str:
    """Return a timeline as SVG; TraceError if it has more marks than one can tell apart."""
    rows = [row for process in timeline.processes for row in process.rows]
    marks = sum(len(lane.marks) for row in rows for lane in row.lanes)
    if marks > MOST_MARKS:
        raise TraceError(
            f"a still picture shows up to {MOST_MARKS} marks, and this timeline has {marks:,}: "
            "write a page, a file named *.html"
        )
    return _Picture(timeline, rows).svg()


class _Picture:
    def __init__(self, timeline: Timeline, rows: list[Row]) -> None:
        self._timeline = timeline
        self._rows = rows
        self._margin = timeline.duration * 0.03
        self._scale = (WIDTH - NAMES - RIGHT) / (timeline.duration + 2.5 * self._margin)

    def _x(self, time: float) -> float:
        return NAMES + (time + self._margin) * self._scale

    def svg(self) -> str:
        body: list[str] = []
        y = AXIS
        for row in self._rows:
            body += self._row(row, y)
            y += self._height(row)
        height = y + 8
        findings = [found for process in self._timeline.processes for found in process.findings]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img"',
                "     font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\" "
                'font-size="12">',
                f"  <title>{escape(self._timeline.processes[0].name)}</title>",
                f"  <style>\n{_style()}  </style>",
                f'  <rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
                'rx="10"/>',
                *(f"  {line}" for line in self._axis(height)),
                *(f"  {line}" for line in body),
                *(f"  {self._finding(found, height)}" for found in findings),
                "</svg>",
                "",
            ]
        )

    def _finding(self, found: Found, height: int) -> str:
        line = f"M{self._x(found.time):.1f} {AXIS}V{height - 8}"
        return f'<path class="{MARKS[found.severity].color} finding" d="{line}"/>'

    def _axis(self, height: int) -> Iterator[str]:
        step = _round_step(self._timeline.duration / 6)
        for number in range(int(self._timeline.duration // step) + 1):
            x = self._x(number * step)
            yield f'<path class="grid" d="M{x:.1f} {AXIS - 6}V{height - 8}"/>'
            label = duration(number * step) if number else "0"
            yield f'<text class="muted" x="{x + 4:.1f}" y="{AXIS - 10}">{label}</text>'

    @staticmethod
    def _height(row: Row) -> int:
        return 2 * PAD + sum(_lane_height(lane) for lane in row.lanes)

    def _row(self, row: Row, top: int) -> Iterator[str]:
        yield f'<path class="grid" d="M8 {top + 0.5}H{WIDTH - 8}"/>'
        y = top + PAD
        yield f'<text class="name" x="14" y="{y + STATE / 2 + 4.5}">{escape(row.name)}</text>'
        if row.note and len(row.lanes) > 1:
            y_note = y + STATE * 1.5
            yield f'<text class="muted small" x="14" y="{y_note:.1f}">{escape(row.note)}</text>'
        for lane in row.lanes:
            middle = y + _lane_height(lane) / 2
            label = escape(lane.label)
            yield f'<text class="muted small end" x="{NAMES - 8}" y="{middle + 4}">{label}</text>'
            yield from self._spans(lane, middle)
            yield from self._steps(lane, y)
            if lane.marks:
                yield from self._marks(lane, middle)
            y += _lane_height(lane)

    def _spans(self, lane: Lane, middle: float) -> Iterator[str]:
        for span in lane.spans:
            style = SPANS[span.kind]
            x, end = self._x(span.start), WIDTH - 10 if span.open else self._x(span.end)
            width = max(end - x, 2)
            tall = 10 if style.shape == "gap" else 20
            outline = " outlined" if span.kind in ("armed", "came", "solicited") else ""
            yield (
                f'<rect class="{style.color}{outline}" x="{x:.1f}" y="{middle - tall / 2:.1f}" '
                f'width="{width:.1f}" height="{tall}" rx="3">'
                f"<title>{escape(span.text)}</title></rect>"
            )
            yield from self._span_text(span, lane, middle, (x, x + width))

    @staticmethod
    def _span_text(
        span: Span, lane: Lane, middle: float, place: tuple[float, float]
    ) -> Iterator[str]:
        left, right = place
        is_gap = SPANS[span.kind].shape == "gap"
        text = duration(span.end - span.start) if is_gap else span.kind
        if is_gap and not span.open and right - left < len(text) * LETTER + 8:
            yield f'<text class="small" x="{right + 5:.1f}" y="{middle + 4:.1f}">{text}</text>'
        elif right - left > len(text) * LETTER + 10 and not is_gap:
            x = (left + right) / 2
            yield f'<text class="small middle" x="{x:.1f}" y="{middle + 4:.1f}">{text}</text>'

    def _steps(self, lane: Lane, top: float) -> Iterator[str]:
        if not lane.steps:
            return
        bottom = top + STATE - 4
        most = max(step.value for step in lane.steps)
        last = self._x(self._timeline.duration)
        path = f"M{self._x(lane.steps[0].time):.1f} {bottom:.1f}"
        for index, step in enumerate(lane.steps):
            behind = lane.steps[index + 1 :]
            end = self._x(behind[0].time) if behind else last
            y = bottom - (STATE - 10) * step.value / max(most, 1)
            path += f"V{y:.1f}H{end:.1f}"
        yield f'<path class="{COUNTS[lane.label].color} area" d="{path}V{bottom:.1f}z"/>'

    def _marks(self, lane: Lane, middle: float) -> Iterator[str]:
        ends = [self._x(mark.time) for mark in lane.marks[1:]] + [float(WIDTH)]
        for mark, end in zip(lane.marks, ends, strict=True):
            x = self._x(mark.time)
            style = MARKS[mark.kind]
            yield (
                f'<g class="{style.color}" transform="translate({x:.1f} {middle:.1f})">'
                f"<title>{escape(mark.text)}</title>{_SHAPES[style.shape]}</g>"
            )
            label = _label(mark)
            if label and x + 8 + len(label) * LETTER < end - 6:
                place = f'x="{x + 9:.1f}" y="{middle + 4:.1f}"'
                yield f'<text class="small" {place}>{label}</text>'


def _lane_height(lane: Lane) -> int:
    return GAP if lane.spans and SPANS[lane.spans[0].kind].shape == "gap" else STATE


def _label(mark: Mark) -> str:
    if MARKS[mark.kind].shape == "flag":
        return mark.text.partition(":")[0]
    short = MARKS[mark.kind].short
    return f"{short} {mark.number}" if mark.number > 1 else short


def _round_step(rough: float) -> int:
    """Return the next step of 1, 2 or 5 times a power of ten."""
    power = 1
    while power * 10 <= rough:
        power *= 10
    return next(n * power for n in (1, 2, 5, 10) if n * power >= rough or n == 10)


def _style() -> str:
    fixed = """\
    .finding { stroke: var(--c); stroke-dasharray: 5 4; fill: none }
    .panel { fill: var(--panel); stroke: var(--line) }
    .grid { stroke: var(--line); fill: none }
    .hollow { fill: var(--panel); stroke: var(--c); stroke-width: 2 }
    .outlined { fill-opacity: .22; stroke: var(--c) }
    .area { fill-opacity: .35; stroke: var(--c) }
    text { fill: var(--ink) }
    .name { font-weight: 600; font-size: 13px } .muted { fill: var(--muted) }
    .small { font-size: 11px } .end { text-anchor: end } .middle { text-anchor: middle }
"""
    used = dict.fromkeys(style.color for style in _STYLES)
    kinds = "".join(f"    .{name} {{ --c: var(--{name}); fill: var(--c) }}\n" for name in used)
    dark = f"    @media (prefers-color-scheme: dark) {{ svg {{ {_variables(DARK)} }} }}\n"
    return f"    svg {{ {_variables(LIGHT)} }}\n{dark}{kinds}{fixed}"


def _variables(selector: str) -> str:
    """Return the colours that the page's style sheet has for this selector."""
    css = (files("cqnotify.trace") / "web" / "page.css").read_text(encoding="utf-8")
    block = css.partition(f"{selector} {{")[2].partition("}")[0]
    colors = dict(re.findall(r"--([\w-]+): (#\w+);", block))
    used = ("panel", "ink", "muted", "line", *(style.color for style in _STYLES))
    return "; ".join(f"--{name}: {colors[name]}" for name in dict.fromkeys(used))
