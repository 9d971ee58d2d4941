# SPDX-License-Identifier: MIT
"""`cqnotify bandwidth`: the bandwidth and the message rate of sends, writes and reads."""

from __future__ import annotations

import argparse
from typing import Any, Final

from . import OK, print_json, whole
from ._plots import need_matplotlib
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
    from .perf._bandwidth import Bandwidth, measure
    from .perf._bandwidth_report import GBIT, MIB, head, row, save_plot, to_dict
    from .perf._meeting import meet

    fields = ("num_qp", "tx_depth", "rx_depth", "bidirectional", "immediate")
    plan = plan_of(args, SIZE, **{name: getattr(args, name) for name in fields})
    if args.plot:
        need_matplotlib()
    unit = GBIT if args.report_gbits else MIB
    done: list[Bandwidth] = []
    with meet(plan) as end:
        if not args.json:
            print(head(end, unit), flush=True)
        for size in end.plan.sizes:
            done.append(measure(end, size))
            if not args.json:
                print(row(done[-1], unit, plan.loses), flush=True)
        end.control.flush()
        if args.json:
            print_json(to_dict(end, done))
        if args.plot:
            save_plot(end, done, unit, args.plot)
    return OK
