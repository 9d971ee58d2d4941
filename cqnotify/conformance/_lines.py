# SPDX-License-Identifier: MIT
"""Rows that behave alike, as one line: for whom it holds, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ..enums import QPType, SendFlags
from ._cases import Arm, Outcome, Queue
from ._report import Row


class Line(NamedTuple):
    """What completes, and whether it raises an event, for each way to arm.

    `which` says for which operations and send flags. "!" marks what is not as expected; of a
    completion, `expected` is what is.
    """

    outcome: Outcome
    queue: Queue
    qp_types: tuple[QPType, ...]
    completion: str
    expected: str
    events: tuple[str, ...]
    which: str


def lines(rows: Iterable[Row]) -> Iterator[Line]:
    """The lines of what was done, by outcome and CQ."""
    groups: dict[tuple[Outcome, Queue], list[Row]] = defaultdict(list)
    for row in rows:
        if row.refusal is None:
            groups[row.case.outcome, row.queue].append(row)
    for outcome in Outcome:
        for queue in Queue:
            yield from _lines(outcome, queue, groups[outcome, queue])


# Whom a line is about: operations of a QP type, with these values of sq_sig_all and send_flags.
_Operation = tuple[QPType, str]
_Variant = tuple[bool, SendFlags]
_Variants = Mapping[_Operation, set[_Variant]]


def _lines(outcome: Outcome, queue: Queue, rows: Iterable[Row]) -> Iterator[Line]:
    by_arm: dict[tuple[_Operation, _Variant], dict[Arm, Row]] = defaultdict(dict)
    known: dict[_Operation, set[_Variant]] = defaultdict(set)
    for row in rows:
        case = row.case
        operation, variant = (case.qp_type, case.operation), (case.sq_sig_all, case.send_flags)
        by_arm[operation, variant][case.armed] = row
        known[operation].add(variant)
    alike: dict[tuple[str, str, tuple[str, ...]], dict[_Operation, set[_Variant]]] = {}
    for (operation, variant), of_arms in by_arm.items():
        completion = " / ".join(dict.fromkeys(map(_completion, of_arms.values())))
        expected = next(filter(None, map(_expected, of_arms.values())), "")
        events = tuple(_event(of_arms[arm]) if arm in of_arms else "" for arm in Arm)
        key = completion, expected, events
        alike.setdefault(key, defaultdict(set))[operation].add(variant)
    for (completion, expected, events), members in alike.items():
        for qp_types, which in _in_words(members, known):
            yield Line(outcome, queue, qp_types, completion, expected, events, which)


def _completion(row: Row) -> str:
    seen = " + ".join(str(getattr(status, "name", status)) for status in row.statuses) or "none"
    return f"{seen}!" if _expected(row) else seen


def _expected(row: Row) -> str:
    """The status that should have come, if another one came."""
    if all(deviation.of_events for deviation in row.deviations):
        return ""
    status = row.expected_statuses[0]
    return "none" if status is None else status.name


def _event(row: Row) -> str:
    seen = ("-", "event")[row.events] if row.events < 2 else f"{row.events} events"
    if row.events == row.expected_events:
        return seen
    return f"{seen}!" if row.events else "none!"


def _in_words(members: _Variants, known: _Variants) -> Iterator[tuple[tuple[QPType, ...], str]]:
    by_flags: dict[str, dict[QPType, list[str]]] = {}
    for (qp_type, name), variants in members.items():
        flags = _flags(variants, known[qp_type, name])
        by_flags.setdefault(flags, defaultdict(list))[qp_type].append(name)
    for flags, names in by_flags.items():
        for qp_types in _united(names, known):
            yield qp_types, ", ".join([*_names(qp_types, names, known), *filter(None, [flags])])


def _united(names: Mapping[QPType, list[str]], known: _Variants) -> list[tuple[QPType, ...]]:
    """All types together if each has those operations that it can have; else those together that
    have all, and the rest one by one."""
    union = {name for of in names.values() for name in of}
    if all(of == [n for n in _all_of(known, t) if n in union] for t, of in names.items()):
        return [tuple(names)]
    full = tuple(qp_type for qp_type, of in names.items() if of == _all_of(known, qp_type))
    return [*filter(None, [full]), *((qp_type,) for qp_type in names if qp_type not in full)]


def _names(
    qp_types: Iterable[QPType], names: Mapping[QPType, list[str]], known: _Variants
) -> list[str]:
    union = {name for qp_type in qp_types for name in names[qp_type]}
    if len(union) > 1 and all(names[qp_type] == _all_of(known, qp_type) for qp_type in qp_types):
        return ["all"]
    ordered = dict.fromkeys(name for _, name in known if name in union)
    return [_short(name) for name in ordered]


def _short(operation: str) -> str:
    return operation.removeprefix("RDMA_").removeprefix("ATOMIC_").replace("_WITH_", "_")


def _all_of(known: _Variants, qp_type: QPType) -> list[str]:
    return [name for of_type, name in known if of_type == qp_type]


_CONDITIONS: Final[dict[str, Callable[[bool, SendFlags], bool]]] = {
    "": lambda sq_sig_all, flags: True,
    "signaled": lambda sq_sig_all, flags: sq_sig_all or SendFlags.SIGNALED in flags,
    "not signaled": lambda sq_sig_all, flags: not (sq_sig_all or SendFlags.SIGNALED in flags),
    "SOLICITED": lambda sq_sig_all, flags: SendFlags.SOLICITED in flags,
    "not SOLICITED": lambda sq_sig_all, flags: SendFlags.SOLICITED not in flags,
}


def _flags(variants: set[_Variant], known: set[_Variant]) -> str:
    for words, holds in _CONDITIONS.items():
        if variants == {variant for variant in known if holds(*variant)}:
            return words
    return " or ".join(f"sq_sig_all={s:d} with {_flag_names(f)}" for s, f in sorted(variants))


def _flag_names(flags: SendFlags) -> str:
    return "|".join(str(flag.name) for flag in SendFlags if flag in flags) or "no flag"
