# SPDX-License-Identifier: MIT
"""The results of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..enums import QPType
from ._cases import Queue
from ._deviation import Deviation
from ._sequences import Action, Sequence, Step


class SequenceRow(NamedTuple):
    """The result of one sequence.

    sequence: what was done.
    expected_events: of each step that takes events, how many must come; None: nothing is demanded.
    events: how many came; shorter if the device refused a step before.
    posted, completed, failed: how many completions are due, and how many came that were successful,
        and that were not.
    overflows: how often the device reported CQ_ERR for the CQs.
    refusal: the device's error if it refused the sequence, or a step of it.
    """

    sequence: Sequence
    expected_events: tuple[int | None, ...]
    events: tuple[int, ...]
    posted: int
    completed: int
    failed: int = 0
    overflows: int = 0
    refusal: str | None = None

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """In which ways it differs from what is demanded; each is named once."""
        if self.refusal is not None:
            return ()
        found = [deviation for each in range(len(self.events)) if (deviation := self.at(each))]
        if None not in self.expected_events:
            found += self._of_completions()
        return tuple(dict.fromkeys(found))

    def _of_completions(self) -> Iterator[Deviation]:
        came = self.completed + self.failed
        if came != self.posted:
            yield Deviation.NO_COMPLETION if came < self.posted else Deviation.SURPLUS_COMPLETION
        if self.failed:
            yield Deviation.OTHER_STATUS

    def at(self, taken: int) -> Deviation | None:
        """Return how the events differ that a step has taken, or None.

        taken: which step, counted from 0 among those that take events.
        """
        expected, came = self.expected_events[taken], self.events[taken]
        if expected is None or came == expected:
            return None
        return Deviation.NO_EVENT if came < expected else Deviation.SURPLUS_EVENT

    def as_dict(self) -> dict[str, Any]:
        """Return the row as `--json` prints it, with names for enums."""
        name, qp_type, queue, steps = self.sequence
        return {
            "name": name,
            "qp_type": qp_type.name,
            "queue": queue.name,
            "steps": [{**step._asdict(), "action": step.action.name} for step in steps],
            "expected_events": list(self.expected_events),
            "events": list(self.events),
            "posted": self.posted,
            "completed": self.completed,
            "failed": self.failed,
            "overflows": self.overflows,
            "refusal": self.refusal,
            "deviations": [deviation.name for deviation in self.deviations],
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> SequenceRow:
        """Return the row that `as_dict` was called on.

        row: what that returned.
        """
        steps = (Step(Action[step["action"]], step["n"], step["cq"]) for step in row["steps"])
        kind = QPType[row["qp_type"]], Queue[row["queue"]]
        return cls(
            Sequence(row["name"], *kind, tuple(steps)),
            tuple(row["expected_events"]),
            tuple(row["events"]),
            *(row[name] for name in cls._fields[3:]),
        )
