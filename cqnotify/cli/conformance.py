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
    add_connection,
    add_device,
    check_connects,
    check_port,
    device_names,
    print_json,
)
from ._terminal import Progress, columns, paint

DESCRIPTION: Final = """\
Which completions raise an event on this device, against ibv_req_notify_cq(3).

Posts work requests of every operation between queue pairs of one port, lets them succeed and fail
in every way, with CQs armed for nothing, for any completion and for solicited ones only, and
compares what comes with what the manual says. Rows that behave alike are printed as one line; then
what departs from the manual, and what that means for a program. --json gives every row.

Departing from the manual is a result, not a failure: the exit code is 0, unless --strict asks
for 1.
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
        help="of the queue pairs; may be given several times (default: all)",
    )
    add_connection(parser, "port_num", "gid_index")
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 if anything is not as it should be"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .. import conformance

    device = device_names(args.device)[0]
    with Context(device) as context:
        check_connects(context)
        check_port(context, args.port_num)
    names = args.type or TYPES
    chosen = list(conformance.cases([QPType[name.upper()] for name in TYPES if name in names]))
    with Progress("cases", len(chosen)) as progress:
        report = conformance.measure(
            device,
            chosen,
            port_num=args.port_num,
            gid_index=args.gid_index,
            progress=progress.show,
        )
    if all(row.refusal for row in report.rows):
        raise CommandError(f"{device} can do none of it: {report.rows[0].refusal}", CANNOT_RUN)
    if args.json:
        print_json(report.as_dict())
    else:
        print(conformance.format_report(report, paint, columns()))
    return FAILED if args.strict and report.deviating else OK
