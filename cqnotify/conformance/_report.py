# SPDX-License-Identifier: MIT
"""The results: rows, and their deviations from the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from ..enums import QPType, SendFlags, WCStatus
from ._cases import Arm, Case, Outcome, Queue
from ._deviation import Deviation
from ._sequence_report import SequenceRow


class Row(NamedTuple):
    """The result of one case on one CQ.

    case, queue: the case and the CQ.
    expected_statuses: the statuses that are right; None stands for no completion.
    statuses: those of the completions that came.
    expected_events: how many events the manual demands for these completions.
    events: how many events came.
    refusal: the device's error if it refused the case; nothing came, then.
    """

    case: Case
    queue: Queue
    expected_statuses: tuple[WCStatus | None, ...]
    statuses: tuple[WCStatus | int, ...]
    expected_events: int
    events: int
    refusal: str | None = None

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """The row's deviations: at most one of its events and one of its completions."""
        if self.refusal is not None:
            return ()
        found = []
        if self.events != self.expected_events:
            too_few = self.events < self.expected_events
            found.append(Deviation.NO_EVENT if too_few else Deviation.SURPLUS_EVENT)
        if not self.statuses:
            if None not in self.expected_statuses:
                found.append(Deviation.NO_COMPLETION)
        elif len(self.statuses) > 1 or self.expected_statuses == (None,):
            found.append(Deviation.SURPLUS_COMPLETION)
        elif set(self.statuses).isdisjoint(self.expected_statuses):
            found.append(Deviation.OTHER_STATUS)
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as `--json` prints it, with names for enums."""
        fields = {**self.case._asdict(), **self._asdict(), "deviations": self.deviations}
        del fields["case"]
        return {name: _plain(value) for name, value in fields.items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Row:
        """Return the row that `as_dict` was called on.

        row: what that returned.
        """
        fields = {name: _READ[name](value) for name, value in row.items() if name in _READ}
        case = Case(*(fields.get(name, row[name]) for name in Case._fields))
        return cls(case, *(fields.get(name, row[name]) for name in cls._fields[1:]))


def _plain(value: Any) -> Any:
    """Turn enums into names, flags into lists of names, and tuples into lists."""
    if isinstance(value, SendFlags):
        return [flag.name for flag in SendFlags if flag in value]
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.name if isinstance(value, Enum) else value


def _flags(names: Iterable[str]) -> SendFlags:
    flags = SendFlags(0)
    for name in names:
        flags |= SendFlags[name]
    return flags


def _statuses(found: Iterable[str | int | None]) -> tuple[WCStatus | int | None, ...]:
    return tuple(WCStatus[each] if isinstance(each, str) else each for each in found)


# How `from_dict` reads the fields of a row and its case that are not plain.
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "qp_type": QPType.__getitem__,
    "outcome": Outcome.__getitem__,
    "send_flags": _flags,
    "armed": Arm.__getitem__,
    "queue": Queue.__getitem__,
    "expected_statuses": _statuses,
    "statuses": _statuses,
}


class Report(NamedTuple):
    """All rows of one measurement, with the device and the kernel; and those of the sequences."""

    device: str
    kernel: str
    rows: tuple[Row, ...]
    sequences: tuple[SequenceRow, ...] = ()

    @property
    def deviating(self) -> tuple[Row, ...]:
        """The rows that have deviations."""
        return tuple(row for row in self.rows if row.deviations)

    @property
    def deviating_sequences(self) -> tuple[SequenceRow, ...]:
        """The rows of sequences that have deviations."""
        return tuple(row for row in self.sequences if row.deviations)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "device": self.device,
            "kernel": self.kernel,
            "rows": [row.as_dict() for row in self.rows],
            "sequences": [row.as_dict() for row in self.sequences],
        }

    @classmethod
    def from_dict(cls, report: Mapping[str, Any]) -> Report:
        """Return the report that `as_dict` was called on; older ones have no sequences.

        report: what that returned.
        """
        rows = tuple(map(Row.from_dict, report["rows"]))
        sequences = tuple(map(SequenceRow.from_dict, report.get("sequences", ())))
        return cls(report["device"], report["kernel"], rows, sequences)
