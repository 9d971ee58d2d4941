# SPDX-License-Identifier: MIT
"""`cqnotify trace`: a timeline of a verbs program, as a page, a trace or figures."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import (
    OK,
    USAGE,
    CommandError,
    add_command,
    add_program,
    log_folder,
    note,
    print_json,
    take_program,
    whole,
)

if TYPE_CHECKING:
    from ..trace import Recording

DESCRIPTION: Final = """\
Record what a verbs program does with its completions, and show it as a timeline: when each thread
slept and woke, when each CQ was armed, raised an event, was acknowledged and polled.

The page needs no network and no other file. --chrome writes the same for https://ui.perfetto.dev.
"""
DEFAULT_OUTPUT: Final = "trace.html"
DEFAULT_RECORDS: Final = 250_000


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "show when a verbs program sleeps, wakes and polls: a timeline"
    parser = add_command(commands, "trace", what, run, DESCRIPTION)
    add_program(parser, "trace")
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        type=Path,
        help=f"write the page here (default: {DEFAULT_OUTPUT}); FILE.svg: a still picture instead",
    )
    parser.add_argument(
        "--chrome", metavar="FILE", type=Path, help="also write Chrome's trace format, for Perfetto"
    )
    parser.add_argument(
        "--summary", action="store_true", help="print only the figures, and write no page"
    )
    parser.add_argument(
        "--records",
        metavar="N",
        type=whole(1000, 100_000_000),
        default=DEFAULT_RECORDS,
        help="how many of the last records to keep for each process, 64 to 80 bytes each "
        f"(default: {DEFAULT_RECORDS})",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--keep", metavar="FOLDER", help="keep the timelines in this new folder")
    instead.add_argument(
        "--from",
        dest="source",
        metavar="PATH",
        type=Path,
        help="show this timeline, or those of this folder, instead of running a program",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    command = take_program(args)
    if bool(command) == (args.source is not None):
        args.parser.error("--from runs no program" if command else "a program is missing")
    if args.summary and args.output is not None:
        raise CommandError("--summary writes no page: leave out --output or --summary", USAGE)
    if args.source is not None:
        _show(args, args.source)
        return OK
    with log_folder(args.keep, "trace") as folder:
        code = _record(args, Path(folder))
        ended = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        _show(args, Path(folder), ended)
    return code


def _record(args: argparse.Namespace, folder: Path) -> int:
    """Run the program, so that its timelines are in the folder; return its exit code."""
    from ..check.report import Logs
    from ..check.running import RunError, run_observed

    try:
        return run_observed(args.command, Logs(folder), timeline_records=args.records)
    except RunError as e:
        raise CommandError(str(e), e.code) from e


def _show(args: argparse.Namespace, source: Path, ended: int = 0) -> None:
    """Write what the options ask for, and print the figures."""
    from .. import trace

    try:
        recordings = trace.read(source, ended)
        summaries = [trace.summarize(recording) for recording in recordings if recording.records]
        if args.json:
            print_json({"processes": [summary.as_dict() for summary in summaries]})
        else:
            print(trace.format_summary(summaries))
        _write_all(args, recordings)
    except trace.NoRecordsError as e:
        why = "the program left no timeline: it used no verbs, or could not be observed"
        raise CommandError(why if args.command else str(e)) from e
    except trace.TraceError as e:
        raise CommandError(str(e)) from e


def _write_all(args: argparse.Namespace, recordings: list[Recording]) -> None:
    """Write the files that the options ask for, and say where they are."""
    from .. import trace

    if args.summary and args.chrome is None:
        return
    timeline = trace.build(recordings)
    if args.chrome is not None:
        _write(args.chrome, lambda: json.dumps(trace.chrome(timeline)))
    if not args.summary:
        output = args.output or Path(DEFAULT_OUTPUT)
        if output.suffix != ".svg":
            _write(output, lambda: trace.page(timeline))
            return
        try:
            _write(output, lambda: trace.picture(timeline))
        except trace.TraceError:  # a page has no limit, and the records of this run end with it
            _write(output.with_suffix(".html"), lambda: trace.page(timeline))
            raise


def _write(path: Path, make: Callable[[], str]) -> None:
    text = make()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise CommandError(f"cannot write {path}: {e.strerror}") from e
    note(f"wrote {path}, {len(text) / 1e6:.1f} MB" if len(text) > 1e5 else f"wrote {path}")
