# SPDX-License-Identifier: MIT
"""Explores the schedules of programs, in a core built with CQNOTIFY_DEBUG=faults:

    python tests/schedules/explore.py [-n SEEDS] [--first SEED] [-j JOBS] [PROGRAM ...]

prints the first seed of each program whose schedule fails, with what it said, and fails if there is
one. A program is a job. `--seed SEED PROGRAM` repeats a schedule, and prints its points.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import functools
import os
import resource
import subprocess
import sys

import programs_tasks
import programs_threads
from scheduler import PROJECT, Program, horizon_of, run


def a_wake_up_is_lost(_: object) -> None:
    """Fails in each schedule: it shows what is said then."""
    programs_threads.World().serve_all()


PROGRAMS: dict[str, Program] = {
    program.__name__: program for program in (*programs_threads.PROGRAMS, *programs_tasks.PROGRAMS)
}
FAILING: dict[str, Program] = {a_wake_up_is_lost.__name__: a_wake_up_is_lost}


def work(program: Program, first: int, last: int) -> None:
    """Run these seeds, in a process of its own: a schedule that fails leaves its threads behind."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    horizon = horizon_of(program)
    for seed in range(first, last):
        print(seed, flush=True)
        run(program, seed, horizon)


def explore(first: int, last: int, name: str) -> str | None:
    """Return what the first schedule that fails said, or None."""
    command = [sys.executable, __file__, "--work", str(first), str(last), name]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    seed = (done.stdout.split() or ["0"])[-1]
    return f"{name} --seed {seed} fails, status {done.returncode}:\n{done.stderr}"


def main() -> None:
    known = PROGRAMS | FAILING
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("-n", type=int, default=50, help="seeds of each program")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    processors = len(os.sched_getaffinity(0))
    parser.add_argument("-j", type=int, default=processors, help="jobs at a time (%(default)s)")
    parser.add_argument("--seed", type=int, help="the only one; prints its points")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := {*options.programs} - {*known}:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    names = options.programs or [*PROGRAMS]
    if options.work:
        work(known[names[0]], *options.work)
    elif options.seed is not None:
        faulthandler.enable()
        for name in names:
            done = run(known[name], options.seed, horizon_of(known[name]))
            print(name, done.choices, *done.points, sep="\n")
    else:
        one = functools.partial(explore, options.first, options.first + options.n)
        with concurrent.futures.ThreadPoolExecutor(options.j) as jobs:
            said = list(jobs.map(one, names))
        sys.exit("\n".join(filter(None, said)) or None)


if __name__ == "__main__":
    main()
