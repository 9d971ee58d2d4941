# SPDX-License-Identifier: MIT
"""`cqnotify check`: runs a program, and says why it sleeps through its completions."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final

from . import (
    FAILED,
    MISUSE,
    OK,
    USAGE,
    CommandError,
    add_command,
    add_program,
    log_folder,
    take_program,
    whole,
    write_json,
)
from ._terminal import columns, paint_error, print_error

if TYPE_CHECKING:
    from ..check.report import Finding, Group, Logs, Suppression

DESCRIPTION: Final = """\
Run a program, and report how it misuses completion queues and channels: why it sleeps although
completions wait, why ibv_destroy_cq() hangs, which CQ is too small.

The program may be written in any language, and needs no change. An error is printed as soon as it
is certain, even while the program hangs; warnings are printed at the end. Both go to stderr.
docs/check.md explains each rule.

If a launcher such as mpirun starts the programs, on this machine or others:

    env $(cqnotify check --print-env FOLDER) mpirun -x LD_AUDIT -x CQNOTIFY_CHECK PROGRAM
    cqnotify check --from FOLDER
"""


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "run a program, and report why it sleeps through its completions"
    parser = add_command(commands, "check", what, run, DESCRIPTION, json_help=None)
    add_program(parser, "check")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON to FILE as well")
    parser.add_argument(
        "--error-exitcode",
        metavar="N",
        type=whole(0, 255),
        default=MISUSE,
        help=f"exit code if there is an error; 0: that of the program (default: {MISUSE})",
    )
    parser.add_argument(
        "--suppress",
        metavar="RULE[:FUNCTION]",
        action="append",
        default=[],
        help="leave out findings of this rule, with this function in a backtrace; * in names",
    )
    parser.add_argument(
        "--suppressions", metavar="FILE", help="file with such a suppression in each line"
    )
    parser.add_argument(
        "--gen-suppressions",
        action="store_true",
        help="print the suppression of each finding at the end",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="explain information, too, and show whole backtraces",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="keep the logs in this new folder")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--from",
        dest="source",
        metavar="FOLDER",
        help="run nothing, report on the logs in this folder",
    )
    instead.add_argument(
        "--print-env",
        metavar="FOLDER",
        help="run nothing, print the variables by which programs write logs to this folder",
    )


def run(args: argparse.Namespace) -> int:
    """Run the program and report; or one of the two without a program."""
    from ..check.running import RunError

    command = take_program(args)
    if bool(command) == bool(args.source or args.print_env):
        args.parser.error(
            "--from and --print-env run no program" if command else "a program to run is missing"
        )
    try:
        if args.print_env:
            return _print_environment(args.print_env)
        if args.source:
            return _report_on(args.source, args)
        return _run(command, args)
    except RunError as e:
        raise CommandError(str(e), e.code) from None


def _print_environment(folder: str) -> int:
    from ..check.running import observed_environment

    os.makedirs(folder, exist_ok=True)
    env = observed_environment(folder, environment={})
    for name in ("LD_AUDIT", "CQNOTIFY_CHECK"):
        print(f"{name}={env[name]}")
    return OK


def _report_on(folder: str, args: argparse.Namespace) -> int:
    from ..check.report import Logs

    if not os.path.isdir(folder):
        raise CommandError(f"there is no folder {folder}", FAILED)
    session = _Session(args)
    logs = Logs(folder)
    for finding in logs.read():
        session.take(finding)
    return session.end(logs, [], None)


def _run(command: list[str], args: argparse.Namespace) -> int:
    from ..check.report import Logs
    from ..check.running import run_observed

    with log_folder(args.keep, "check") as folder:
        session = _Session(args)
        logs = Logs(folder)
        code = run_observed(command, logs, on_finding=session.show, note=session.note)
        return session.end(logs, command, code)


class _Session:
    """A run: shows errors as they come, and the rest at the end."""

    def __init__(self, args: argparse.Namespace) -> None:
        from ..check.report import Report
        from ..check.text import Writer

        self._args = args
        self._shown: list[Group] = []
        self._explained = False  # a line has said why the program cannot be observed
        self._report = Report(_suppressions(args))
        self._writer = Writer(paint_error, columns(), args.verbose)

    def note(self, line: str) -> None:
        """Print why the program cannot be observed."""
        self._explained = True
        print_error(self._writer.line(line))

    def take(self, finding: Finding) -> Group | None:
        """Add a finding to the report."""
        return self._report.take(finding)

    def show(self, finding: Finding) -> None:
        """Add a finding, and print it if it is an error of a new kind."""
        from ..check.rules import ERROR

        group = self.take(finding)
        if group is None or group.rule.severity != ERROR:
            return
        if finding.withdrawn:
            print_error(self._writer.withdrawn(group, finding))
            self._shown = [other for other in self._shown if other is not group]
        else:
            print_error(self._writer.finding(group))
            self._shown.append(group)

    def end(self, logs: Logs, command: list[str], code: int | None) -> int:
        """Write the report, and return the exit code."""
        report = self._report
        print_error(self._writer.end(report, logs.processes, self._shown, self._explained))
        if self._args.gen_suppressions:
            print_error("".join(f"{group.suppression}\n" for group in report.groups))
        if self._args.json:
            write_json(self._args.json, report.as_json(logs.processes, command, code))
        if report.has_errors and self._args.error_exitcode:
            return int(self._args.error_exitcode)
        return OK if code is None else code


def _suppressions(args: argparse.Namespace) -> list[Suppression]:
    from ..check.report import Suppression, read_suppressions

    try:
        found = [Suppression.parse(text) for text in args.suppress]
        return found + (read_suppressions(args.suppressions) if args.suppressions else [])
    except ValueError as e:
        raise CommandError(str(e), USAGE) from None
