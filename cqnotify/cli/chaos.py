# SPDX-License-Identifier: MIT
"""`cqnotify chaos`: runs a program, and makes go wrong what the verbs allow to go wrong."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from dataclasses import dataclass
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
    from ..check.report import Finding

DESCRIPTION: Final = """\
Run a program, and inject faults that the verbs allow: completions come late or one by one, a signal
ends a sleep, a request is refused. Misuse of completion queues is reported as by cqnotify check.
docs/chaos.md explains each fault.

The default faults are those that a correct program survives without an error. A seed chooses the
calls that have a fault; with the same seed, a program with one thread gets the same faults again.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "run a program with faults that the verbs allow"
    parser = add_command(commands, "chaos", what, run, DESCRIPTION, json_help=None)
    add_program(parser, "chaos")
    largest = whole(0, 2**63 - 1)
    parser.add_argument("--seed", metavar="S", type=largest, default=0, help="seed (default: 0)")
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=whole(1, 1_000_000),
        help="run the program with N seeds, from S on; print the failures, and the one with the "
        "fewest faults",
    )
    parser.add_argument(
        "--faults",
        metavar="LIST",
        default="harmless",
        help="faults, separated by commas: 'harmless' (the default), which are split, hold, eintr, "
        "late, destroy; the others: arm, create, register, post, fail, async; or 'all'",
    )
    parser.add_argument(
        "--rate",
        metavar="N",
        type=whole(2, 1_000_000),
        help="one in N calls has a fault (default: each fault has its own)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=whole(1, 2_000_000),
        help="end a run that takes longer, as a failure (default: none)",
    )
    parser.add_argument("--json", metavar="FILE", help="write how each run ended as JSON to FILE")


@dataclass(frozen=True)
class Outcome:
    """How a run with one seed ended."""

    seed: int
    code: int
    errors: int  # findings that are certain
    faults: dict[str, int]
    timed_out: bool

    @property
    def failed(self) -> bool:
        return self.code != 0 or self.errors > 0 or self.timed_out

    def __str__(self) -> str:
        made = ", ".join(f"{fault} {count}" for fault, count in self.faults.items())
        end = "it took too long" if self.timed_out else f"exit code {self.code}"
        errors = f", errors: {self.errors}" if self.errors else ""
        return f"seed {self.seed}: {end}{errors}; faults: {made or 'none'}"


def run(args: argparse.Namespace) -> int:
    """Run the program with one seed, or with many."""
    from ..check.chaos import parse_faults

    if not take_program(args):
        args.parser.error("a program to run is missing")
    try:
        faults = parse_faults(args.faults)
    except ValueError as e:
        raise CommandError(str(e), USAGE) from None
    if args.seeds is None:
        outcome = _run(args, faults, args.seed)
        _say(str(outcome))
        _write_json(args.json, [outcome])
        if outcome.code == 0 and outcome.failed:
            return FAILED if outcome.timed_out else MISUSE
        return outcome.code
    outcomes = []
    for seed in range(args.seed, args.seed + args.seeds):
        outcome = _run(args, faults, seed)
        outcomes.append(outcome)
        if outcome.failed:
            _say(str(outcome))
    _write_json(args.json, outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    _say(f"{args.seeds} seeds, {len(failed)} failed")
    if not failed:
        return OK
    shortest = min(failed, key=lambda outcome: sum(outcome.faults.values()))
    _say(f"the fewest faults: {shortest}")
    _say(f"again: {_again(args, shortest.seed)}")
    return FAILED


def _run(args: argparse.Namespace, faults: tuple[str, ...], seed: int) -> Outcome:
    from ..check.chaos import VARIABLE, injected, setting
    from ..check.report import Logs, Report
    from ..check.rules import ERROR
    from ..check.running import RunError, run_observed
    from ..check.text import Writer

    report = Report()
    writer = Writer(paint_error, columns())
    late = False

    def show(finding: Finding) -> None:
        group = report.take(finding)
        if group is not None and group.rule.severity == ERROR:
            withdrawn = finding.withdrawn
            print_error(writer.withdrawn(group, finding) if withdrawn else writer.finding(group))

    def end() -> None:
        nonlocal late
        late = True

    env = dict(os.environ)
    env[VARIABLE] = setting(seed, faults, args.rate)
    with log_folder(None, "chaos") as folder:
        logs = Logs(folder)
        try:
            code = run_observed(
                args.command,
                logs,
                environment=env,
                on_finding=show,
                timeout=args.timeout,
                on_timeout=end,
            )
        except RunError as e:
            raise CommandError(str(e), e.code) from None
        return Outcome(seed, code, len(report.of(ERROR)), injected(logs), late)


def _again(args: argparse.Namespace, seed: int) -> str:
    options = ["--seed", str(seed), "--faults", args.faults]
    if args.rate is not None:
        options += ["--rate", str(args.rate)]
    if args.timeout is not None:
        options += ["--timeout", str(args.timeout)]
    return shlex.join(["cqnotify", "chaos", *options, "--", *args.command])


def _write_json(path: str | None, outcomes: list[Outcome]) -> None:
    if path is None:
        return
    runs = [{**dataclasses.asdict(outcome), "failed": outcome.failed} for outcome in outcomes]
    write_json(path, {"runs": runs})


def _say(line: str) -> None:
    print_error(f"cqnotify chaos: {line}\n")
