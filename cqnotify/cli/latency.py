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
    from .perf._command import Command, measured
    from .perf._latency import DEPTH, measure
    from .perf._latency_report import head, row, save_plot, to_dict

    plan = plan_of(
        args,
        SIZE,
        num_qp=1,
        tx_depth=DEPTH,
        rx_depth=DEPTH,
        bidirectional=False,
        immediate=args.immediate or (args.op == "write" and args.events),
    )
    return measured(Command(measure, head, row, to_dict, save_plot), plan, args)
