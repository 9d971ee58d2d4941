# SPDX-License-Identifier: MIT
"""`cqnotify bandwidth`: the bandwidth and the message rate of sends, writes and reads."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from . import whole
from .perf._options import add_options, plan_of

WHAT: Final = "measure the bandwidth of sends, writes or reads"
DETAILS: Final = """\
Measure the bandwidth and the message rate of sends, writes or reads, in Python. The client sends,
or reads; with --bidirectional both ends do, and the figures are sums.
"""
SIZE: Final = 65536
MOST_QPS: Final = 256


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = add_options(commands, "bandwidth", WHAT, DETAILS, ("send", "write", "read"), run)
    numbers: dict[tuple[str, str], tuple[str, Any, int, str]] = {
        ("-q", "--qp"): ("num_qp", whole(1, MOST_QPS), 1, "number of QPs"),
        ("-t", "--tx-depth"): ("tx_depth", whole(), 128, "messages under way on each QP"),
        ("-r", "--rx-depth"): ("rx_depth", whole(), 512, "receives posted on each QP"),
    }
    for names, (dest, kind, default, text) in numbers.items():
        parser.add_argument(
            *names,
            dest=dest,
            metavar="N",
            type=kind,
            default=default,
            help=f"{text} (default: {default})",
        )
    parser.add_argument(
        *("-b", "--bidirectional"), action="store_true", help="both ends send, or read"
    )
    parser.add_argument(
        "--report_gbits", action="store_true", help="bandwidths in Gb/sec instead of MiB/sec"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .perf._bandwidth import measure
    from .perf._bandwidth_report import GBIT, MIB, head, row, save_plot, to_dict
    from .perf._command import Command, measured

    own = ("num_qp", "tx_depth", "rx_depth", "bidirectional", "immediate")
    plan = plan_of(args, SIZE, **{name: getattr(args, name) for name in own})
    unit = GBIT if args.report_gbits else MIB
    command = Command(
        measure,
        partial(head, unit=unit),
        partial(row, unit=unit, loses=plan.loses),
        to_dict,
        partial(save_plot, unit=unit),
    )
    return measured(command, plan, args)
