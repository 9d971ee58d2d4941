# SPDX-License-Identifier: MIT
"""Which completions raise an event on a device, compared with ibv_req_notify_cq(3)."""

from ._cases import QP_TYPES, Arm, Case, Outcome, Queue, cases
from ._report import Deviation, Report, Row
from ._rules import expected_events, expected_statuses, is_solicited
from ._run import measure
from ._text import format_report

__all__ = [
    "QP_TYPES",
    "Arm",
    "Case",
    "Deviation",
    "Outcome",
    "Queue",
    "Report",
    "Row",
    "cases",
    "expected_events",
    "expected_statuses",
    "format_report",
    "is_solicited",
    "measure",
]
