# SPDX-License-Identifier: MIT
"""The program behind ./lab bench: python -m benchmarks [OPTIONS] [NAME...] -- COMMAND...

It runs on this machine. COMMAND runs a command given to it where there is a device.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import NAMES
from .harness import compiled, parts, report, results
from .harness.plan import Benchmark, Place, load
from .harness.results import Result, Run, Table

PLACES: tuple[Place, ...] = ("native", "device")
ROUNDS = {"native": 35, "device": 3}  # besides the first one, which warms up


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    split = list(arguments).index("--")
    parser = argparse.ArgumentParser(
        prog="./lab bench",
        description="Measure the cost of cqnotify, C, pyverbs and ibverbs on the same work in one "
        "run. The exit code is 1 if a limit is broken or two boots differ by more than 1 %, 2 if a "
        "subject fails.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only these (default: all)")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and exit")
    parser.add_argument("--json", action="store_true", help="print everything that was measured")
    parser.add_argument("--markdown", metavar="FILE", help="also update the tables in FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the costs into an SVG or PNG file")
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--quick", action="store_true", help="run only the most telling ones, in one boot"
    )
    some.add_argument(
        "--part",
        type=parts.parse,
        metavar="K/N",
        help="run the K-th of N parts of those that --quick leaves out, in one boot",
    )
    parser.add_argument(
        "--boots", type=int, metavar="N", help="boot the microVM N times (default: 2)"
    )
    options = parser.parse_args(arguments[:split])
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(NAMES)}")
    if options.names and options.part:
        parser.error("--part chooses the benchmarks: it takes no names")
    options.brief = options.quick or options.part is not None
    if options.boots is None:
        options.boots = 1 if options.brief else 2
    if options.boots < 1:
        parser.error("--boots must be 1 or more")
    return options, list(arguments[split + 1 :])


def measure(command: Sequence[str], place: Place, rounds: int, names: Sequence[str]) -> Run:
    """Start the runner there, and show its progress on stderr."""
    runner = ["python", "-m", "benchmarks.harness.runner", place, str(rounds), *names]
    if place == "native":
        runner[0] = sys.executable
    with subprocess.Popen([*command, *runner], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        run = Run(json.loads(child.stdout.readline() or "{}"), list(progress(child.stdout)))
    if child.returncode != 0:
        raise SystemExit(child.returncode)
    return run


def progress(lines: Iterator[str]) -> Iterator[Result]:
    for line in lines:
        result: Result = json.loads(line)
        print(f"bench: {result['benchmark']}: {result['subject']}", file=sys.stderr)
        yield result


def run_all(
    benchmarks: dict[str, Benchmark], command: Sequence[str], boots: int, brief: bool
) -> dict[Place, list[Run]]:
    runs: dict[Place, list[Run]] = {"native": [], "device": []}
    for place in PLACES:
        names = [name for name, benchmark in benchmarks.items() if place in benchmark.places]
        rounds = 1 if brief and place == "device" else ROUNDS[place]
        for _ in range(boots if names else 0):
            run = measure(command if place == "device" else (), place, rounds, names)
            runs[place].append(run)
            if not run.in_instructions:
                break  # in real time two boots would hardly agree
    return runs


def main() -> int:
    options, command = parse(sys.argv[1:])
    benchmarks = {name: load(name) for name in options.names or NAMES}
    if options.quick and not options.names:
        benchmarks = {name: each for name, each in benchmarks.items() if each.quick}
    if options.part:
        benchmarks = parts.choose(benchmarks, options.part)
    if options.list:
        for name, benchmark in benchmarks.items():
            print(f"{name:12} {benchmark.title}")
        return 0
    compiled.build()
    runs = run_all(benchmarks, command, options.boots, options.brief)
    made = [results.table(n, b, runs[place]) for n, b in benchmarks.items() for place in PLACES]
    tables = [table for table in made if table is not None]
    show(tables, runs, options)
    return 0 if all(table.good for table in tables) else 1


def show(
    tables: Sequence[Table], runs: dict[Place, list[Run]], options: argparse.Namespace
) -> None:
    if options.json:
        print(json.dumps(report.raw(tables, runs), indent=1))
    else:
        print("\n\n".join(map(report.text, tables)))
    print(f"\n{report.summary(tables)}", file=sys.stderr)
    if options.markdown:
        page = Path(options.markdown)
        page.write_text(report.renew(page.read_text(), tables))
    if options.plot:
        from .harness import plot

        plot.save(tables, options.plot)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
