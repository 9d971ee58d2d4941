# SPDX-License-Identifier: MIT
"""Which completions raise an event on a device, compared with ibv_req_notify_cq(3)."""

from ._cases import QP_TYPES, Arm, Case, Outcome, Queue, cases
from ._deviation import Deviation
from ._measure import measure
from ._report import Report, Row
from ._rules import expected_events, expected_statuses, is_solicited
from ._sequence_report import SequenceRow
from ._sequence_rules import expected_in_sequence
from ._sequences import Action, Sequence, Step, sequences
from ._text import format_report

__all__ = [
    "QP_TYPES",
    "Action",
    "Arm",
    "Case",
    "Deviation",
    "Outcome",
    "Queue",
    "Report",
    "Row",
    "Sequence",
    "SequenceRow",
    "Step",
    "cases",
    "expected_events",
    "expected_in_sequence",
    "expected_statuses",
    "format_report",
    "is_solicited",
    "measure",
    "sequences",
]
