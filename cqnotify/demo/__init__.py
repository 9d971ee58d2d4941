# SPDX-License-Identifier: MIT
"""The demo: what it costs to sleep until a completion comes, compared with polling for it.

Several receivers do the same two jobs: a ping-pong with rdma-core's ibv_rc_pingpong in event mode,
and receiving a one-way stream that a second process sends at a slow pace. In the lab, whose two
software devices are on one wire, the demo delays the frames on that wire.
"""

from ._report import Report, format_report
from ._run import run
from ._traffic import CannotRunError, DemoError

__all__ = ["CannotRunError", "DemoError", "Report", "format_report", "run"]
