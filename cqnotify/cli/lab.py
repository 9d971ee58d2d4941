# SPDX-License-Identifier: MIT
"""`cqnotify lab`: runs commands where there is an RDMA device."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "run a command where there is an RDMA device: on a kernel of its own if need be"
    parser = commands.add_parser("lab", help=what, add_help=False)
    parser.takes_words = True
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; most words are another command's."""
    from ..lab import cli

    return cli.main(args.words)
