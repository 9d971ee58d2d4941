# SPDX-License-Identifier: MIT
"""The demo: what it costs to sleep until a completion comes, against polling for it.

Two jobs, each done by several receivers: a ping-pong with ibv_rc_pingpong, rdma-core's own program
in event mode, and a one-way stream that a second process sends at a slow pace. In the lab, where
two software devices sit on one wire, the wire is given a delay for the duration.
"""

from ._report import Report, format_report
from ._run import run
from ._traffic import CannotRunError, DemoError

__all__ = ["CannotRunError", "DemoError", "Report", "format_report", "run"]
