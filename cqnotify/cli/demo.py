# SPDX-License-Identifier: MIT
"""`cqnotify demo`: the cost of sleeping until a completion comes, compared with polling."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import CANNOT_RUN, FAILED, OK, CommandError, add_command, add_device, note, print_json, whole
from ._terminal import Progress, is_terminal


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "compare sleeping until a completion comes with polling for it"
    parser = add_command(commands, "demo", what, run, DESCRIPTION)
    add_device(parser)
    parser.add_argument(
        "--peer-device", metavar="D2", help="the peers' device (default: the same; lab: the second)"
    )
    parser.add_argument(
        "--messages",
        metavar="N",
        type=whole(),
        default=1000,
        help="messages of each run (default: 1000)",
    )
    parser.add_argument(
        "--interval",
        metavar="MS",
        type=_milliseconds,
        default=0.004,
        help="milliseconds between the stream's messages (default: 4)",
    )


DESCRIPTION = """\
Measure the cost of sleeping until a completion comes, compared with polling.

Several receivers do the same two jobs: a ping-pong with rdma-core's ibv_rc_pingpong in event mode,
and receiving a one-way stream that a second process sends at a slow pace. In the lab, whose two
software devices are on one wire, the demo delays the frames on that wire, and it also fails if a
receiver did not sleep.
"""


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from .. import demo

    try:
        with Progress("", args.messages) as line:
            report = demo.run(
                args.device,
                args.peer_device,
                args.messages,
                args.interval,
                _shown_by(line, args.messages),
            )
    except demo.DemoError as e:
        code = CANNOT_RUN if isinstance(e, demo.CannotRunError) else FAILED
        raise CommandError(str(e), code) from e
    if args.json:
        print_json(report.as_dict())
    else:
        print(demo.format_report(report))
    return FAILED if report.problems else OK


def _shown_by(line: Progress, messages: int) -> Callable[[str, int], None]:
    """Return a function that shows the progress on a terminal, and elsewhere prints one line."""
    told = is_terminal(sys.stderr)

    def show(run: str, received: int) -> None:
        nonlocal told
        if not told:
            told = True
            note(f"run {run} begins; each has {messages} messages, the figures come after the last")
        line.show(received, f"run {run}, messages")

    return show


def _milliseconds(text: str) -> float:
    with suppress(ValueError):
        value = float(text)
        if 0 <= value < 60_000:
            return value / 1000
    raise argparse.ArgumentTypeError(f"'{text}' is not 0 to 60000 milliseconds")
