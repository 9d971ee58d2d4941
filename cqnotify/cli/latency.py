# SPDX-License-Identifier: MIT
"""`cqnotify latency`: the latency of sends, writes, reads and atomic operations."""

from __future__ import annotations

import argparse
from typing import Any, Final

from .perf._options import add_options, plan_of

WHAT: Final = "measure the latency of sends, writes, reads or atomic operations"
DETAILS: Final = """\
Measure the latency of sends, writes, reads or atomic operations, in Python. Of sends and writes it
is half the round trip. A write alone does not wake the peer: with --events it has immediate data.
"""
SIZE: Final = 2


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    add_options(commands, "latency", WHAT, DETAILS, ("send", "write", "read", "atomic"), run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .perf import _latency_report as report
    from .perf._command import Command
    from .perf._command import run as run_command
    from .perf._latency import DEPTH, measure

    plan = plan_of(
        args,
        SIZE,
        num_qp=1,
        tx_depth=DEPTH,
        rx_depth=DEPTH,
        bidirectional=False,
        immediate=args.immediate or (args.op == "write" and args.events),
    )
    command = Command(measure, report.head, report.row, report.to_dict, report.save_plot)
    return run_command(command, plan, args)
