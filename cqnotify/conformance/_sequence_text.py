# SPDX-License-Identifier: MIT
"""The sequences of a report as text: what each step found, and what deviations mean."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ..enums import QPType
from ._cases import QP_TYPES, Queue
from ._deviation import Deviation
from ._sequence_report import SequenceRow
from ._sequences import Action, Sequence, Step

__all__ = ["SEQUENCES_LEGEND", "of_sequences", "refused_sequences", "sequence_table"]

_HEAD: Final = ("CQ", "QP", "steps: the events that came")
_SPACE: Final = "\u00a0"  # where no line may end

SEQUENCES_LEGEND: Final = """\
behind a colon, the events that came: - for none; !: the manual or InfiniBand demands otherwise
in brackets: after an overflow, when nothing is demanded; A, B: CQs that share a channel"""

Paint = Callable[[str, str], str]


class _Line(NamedTuple):
    """What queue pairs of some types do alike."""

    queues: tuple[Queue, ...]
    qp_types: tuple[QPType, ...]
    steps: str

    def cells(self) -> tuple[str, str, str]:
        queues = " ".join(queue.name.lower() for queue in self.queues)
        return queues, " ".join(qp_type.name for qp_type in self.qp_types), self.steps


def sequence_table(rows: Iterable[SequenceRow], paint: Paint, width: int) -> str:
    """Return the table, with a line for all that is alike."""
    by_name: dict[str, list[SequenceRow]] = defaultdict(list)
    for row in rows:
        if row.refusal is None:
            by_name[row.sequence.name].append(row)
    found = {name: _lines(of_name) for name, of_name in by_name.items()}
    every = [_HEAD, *(line.cells() for lines in found.values() for line in lines)]
    widths = [max(len(cells[column]) for cells in every) for column in (0, 1)]
    text = [_layout(_HEAD, widths, width)]
    for name, lines in found.items():
        text.append(paint(name, "bold"))
        text += [_painted(_layout(line.cells(), widths, width), paint) for line in lines]
    return "\n".join(text)


def _layout(cells: tuple[str, ...], widths: list[int], width: int) -> str:
    start = "".join(f"  {cell:<{room}}" for cell, room in zip(cells, widths, strict=False)) + "  "
    return textwrap.fill(
        cells[-1], width, initial_indent=start, subsequent_indent=" " * len(start)
    ).replace(_SPACE, " ")


def _painted(line: str, paint: Paint) -> str:
    return re.sub(r"(\d+ of )?(\d+ )?\w+!", lambda found: paint(found[0], "red"), line)


def _lines(rows: Iterable[SequenceRow]) -> list[_Line]:
    alike: dict[str, dict[Queue, list[QPType]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        alike[_steps(row)][row.sequence.queue].append(row.sequence.qp_type)
    lines = []
    for steps, by_queue in alike.items():
        by_types: dict[tuple[QPType, ...], list[Queue]] = defaultdict(list)
        for queue, qp_types in by_queue.items():
            by_types[tuple(t for t in QP_TYPES if t in qp_types)].append(queue)
        lines += [_Line(tuple(queues), types, steps) for types, queues in by_types.items()]
    order = list(Queue)
    return sorted(lines, key=lambda line: order.index(line.queues[0]))


# ---- the steps of a row ---------------------------------------------------------------------


def _steps(row: SequenceRow) -> str:
    """Return the steps, with what came behind a colon: "arm any, complete 1: event; ..."."""
    done: list[str] = []  # since events were last taken
    text = ""
    taken = 0
    for step in row.sequence.steps:
        if not step.action.takes_events:
            done.append(_in_words(step, row.sequence))
            continue
        text += f"; {', '.join(done)}:" if done else ","
        text += f"{_SPACE}{_result(row, taken, step)}"
        done, taken = [], taken + 1
    return text.removeprefix("; ") + _completions(row)


def _in_words(step: Step, sequence: Sequence) -> str:
    words = step.action.value
    if step.action in (Action.COMPLETE, Action.COMPLETE_SOLICITED, Action.POLL):
        verb, _, kind = words.partition(" ")
        words = f"{verb} {step.n or 'all'} {kind}".rstrip()
    if sequence.cqs > 1:
        words += f" {_letter(step)}"
    return words.replace(" ", _SPACE)


def _letter(step: Step) -> str:
    return chr(ord("A") + step.cq)


def _result(row: SequenceRow, taken: int, step: Step) -> str:
    came = row.events[taken]
    word = ("-", "event")[came] if came < 2 else f"{came} events"
    if row.at(taken):
        word = f"{word}!" if came else "none!"
    if row.expected_events[taken] is None:
        word = f"({word})"
    if row.sequence.cqs > 1:
        word = f"{_letter(step)} {word}"
    if step.action is Action.EVENTS_WITHOUT_ACK:
        word += ", not acked"
    return word.replace(" ", _SPACE)


def _completions(row: SequenceRow) -> str:
    """Return how many completions came, where that is not plain."""
    notes = []
    if row.completed != row.posted:
        mark = "" if None in row.expected_events else "!"
        notes.append(f"{row.completed} of {row.posted} completions{mark}")
    if row.failed:
        notes.append(f"{row.failed} failed")
    if row.overflows:
        notes.append(f"{row.overflows} CQ_ERR")
    return "".join(f"; {note.replace(' ', _SPACE)}" for note in notes)


# ---- what deviations mean for a program -----------------------------------------------------

_SLEEP_LESS: Final = "Do not sleep until a completion comes: poll."
_WAKES: Final = "It wakes more often than it should: poll, and sleep again."
_ONE_KIND: Final = "Arm for any completion, and for nothing else."

# If an event is missing, by the name of the sequence.
_ADVICE: Final[dict[str, str]] = {
    "armed again and again while the CQ is empty": "Do not arm a CQ that is armed already.",
    "armed after each event, never polled": "Poll before you arm again.",
    "polled after the event, then armed twice": "Do not arm a CQ that is armed already.",
    "polled until empty while the event is unread": "Read the event before you poll.",
    "armed again while the event is unread": "Read the event before you arm again.",
    "armed again while the event is not acknowledged": "Acknowledge it before you arm again.",
    "armed when some completions are polled and others are not": "Poll until the CQ is empty.",
    "armed while the CQ is full": "Poll before you arm, and create larger CQs.",
    "resized while armed": "Arm a CQ again when it was resized, and poll; CQ.resize() does that.",
    "armed for any, then for solicited": "An arm for solicited completions takes the place of one "
    "for any, unless CQ.req_notify() knows of that one.",
    "armed for solicited, then for any": _ONE_KIND,
    "armed for solicited: a plain completion, then a solicited one": _ONE_KIND,
    "armed for solicited while a solicited completion waits": _ONE_KIND,
    "armed for solicited and for any in turn": _ONE_KIND,
    "two CQs of a channel, both armed": "Give each CQ a channel of its own.",
    "two CQs of a channel, one armed": "Give each CQ a channel of its own.",
    "two CQs of a channel, both events unread": "Give each CQ a channel of its own.",
}


def of_sequences(rows: Iterable[SequenceRow]) -> Iterator[str]:
    """Yield a line for each kind of deviation of a sequence."""
    counts: Counter[tuple[str, Queue, Deviation]] = Counter()
    for row in rows:
        for deviation in row.deviations:
            counts[row.sequence.name, row.sequence.queue, deviation] += 1
    for (name, queue, deviation), n in counts.items():
        yield f"{queue.value}, {name}: {deviation.value} ({n}). {_advice(name, deviation)}"


def _advice(name: str, deviation: Deviation) -> str:
    if deviation is Deviation.NO_EVENT:
        return _ADVICE.get(name, _SLEEP_LESS)
    if deviation is Deviation.SURPLUS_EVENT:
        return _WAKES
    if deviation is Deviation.SURPLUS_COMPLETION:
        return "Identify completions by their wr_id."
    if deviation is Deviation.OTHER_STATUS:
        return "Messages fail that should not: the rest of the row says little."
    return "Wait with a timeout."


def refused_sequences(rows: Iterable[SequenceRow]) -> list[str]:
    """Return a line for each refusal, with what got it."""
    refused: dict[str, list[Sequence]] = defaultdict(list)
    for row in rows:
        if row.refusal is not None:
            refused[row.refusal].append(row.sequence)
    return [f"{_which(found)}: {why}" for why, found in refused.items()]


def _which(found: list[Sequence]) -> str:
    types = " ".join(dict.fromkeys(sequence.qp_type.name for sequence in found))
    names = list(dict.fromkeys(sequence.name for sequence in found))
    return f"{types}, {names[0] if len(names) == 1 else f'{len(names)} sequences'}"
