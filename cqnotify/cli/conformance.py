# SPDX-License-Identifier: MIT
"""`cqnotify conformance`: which completions raise an event on this device."""

from __future__ import annotations

import argparse
from typing import Any, Final

from ..context import Context
from ..enums import QPType
from . import (
    CANNOT_RUN,
    FAILED,
    OK,
    CommandError,
    add_command,
    add_device,
    add_port,
    check_port,
    device_names,
    print_json,
)
from ._terminal import Progress, columns, paint

DESCRIPTION: Final = """\
Measure which completions raise an event on this device, and compare that with
ibv_req_notify_cq(3).

The command posts work requests of every operation between queue pairs of one port, and makes them
succeed and fail in every way, with CQs that are not armed, armed for any completion, or armed for
solicited ones only. Rows that behave alike are printed as one line. Below the table are the
deviations from the manual, and what they mean for a program. --json prints every row.

Each of these cases arms a CQ once. A second table has sequences of the steps that programs do
before they sleep: they arm a CQ again, before or after they poll, resize it, or let it overflow.

A deviation is a result, not a failure: the exit code is 0, or 1 with --strict.
"""


TYPES: Final = ("rc", "uc", "ud")


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "measure which completions raise an event"
    parser = add_command(commands, "conformance", what, run, DESCRIPTION)
    add_device(parser)
    parser.add_argument(
        "--type",
        action="append",
        choices=TYPES,
        help="type of the queue pairs; may be given several times (default: all)",
    )
    add_port(parser, "-g", "--gid-idx")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--cases", action="store_true", help="leave the sequences out")
    only.add_argument("--sequences", action="store_true", help="leave the other cases out")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit code 1 if anything deviates from what is expected",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .. import conformance

    device_names(args.device)
    with Context(args.device) as context:
        device = context.name
        check_port(context, args.port_num)
    types = [QPType[name.upper()] for name in TYPES if name in (args.type or TYPES)]
    chosen = [] if args.sequences else list(conformance.cases(types))
    sequences = [] if args.cases else list(conformance.sequences(types))
    with Progress("cases and sequences", len(chosen) + len(sequences)) as progress:
        report = conformance.measure(
            device,
            chosen,
            sequences=sequences,
            port_num=args.port_num,
            gid_index=args.gid_index,
            progress=progress.show,
        )
    refusals = [row.refusal for row in report.rows]
    refusals += [row.refusal for row in report.sequences]
    if all(refusals):
        raise CommandError(f"{device} supports none of it: {refusals[0]}", CANNOT_RUN)
    if args.json:
        print_json(report.as_dict())
    else:
        print(conformance.format_report(report, paint, columns()))
    deviates = report.deviating or report.deviating_sequences
    return FAILED if args.strict and deviates else OK
