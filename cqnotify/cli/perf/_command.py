# SPDX-License-Identifier: MIT
"""What both commands do: they meet the peer, measure each size, and show the figures.

The ends meet over TCP or by rdma_cm. Only the QP of the control is connected first: through it the
ends tell each other what they need alike, and over TCP the addresses of the other QPs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import OK, device_names, print_json
from .._plots import need_matplotlib
from . import _perftest, _rdma_cm, _tcp
from ._end import PerfEnd
from ._plan import Plan


class Command(NamedTuple):
    """What differs: how a size is measured, and how the figures look.

    head, row: the lines above the table, and that of a size.
    to_dict: what `--json` prints.
    save_plot: draws the figures into a file.
    """

    measure: Callable[[PerfEnd, int], Any]
    head: Callable[[PerfEnd], str]
    row: Callable[[Any], str]
    to_dict: Callable[[PerfEnd, list[Any]], dict[str, Any]]
    save_plot: Callable[[PerfEnd, list[Any], str], None]


def measured(command: Command, plan: Plan, args: argparse.Namespace) -> int:
    """Measure all sizes, and return the exit code; CommandError if the ends do not fit."""
    if args.plot:
        need_matplotlib()
    device_names(plan.device)
    meet = (_perftest if plan.perftest else _rdma_cm if plan.rdma_cm else _tcp).meet
    done = []
    with meet(plan) as end:
        if not args.json:
            print(command.head(end), flush=True)
        for size in end.plan.sizes:
            done.append(command.measure(end, size))
            if not args.json:
                print(command.row(done[-1]), flush=True)
        end.control.flush()
        if args.json:
            print_json(command.to_dict(end, done))
        if args.plot:
            command.save_plot(end, done, args.plot)
    return OK
