# SPDX-License-Identifier: MIT
"""Clusters under faults that a seed chooses, in virtual time.

python tests/clusters/run.py --seeds 20                  # seeds 0 to 19
python tests/clusters/run.py --first 17 --record         # seed 17 again, and all that it told
python tests/clusters/run.py --first 17 --shrink         # the shortest list of faults that fails
python tests/clusters/run.py --first 17 --faults FILE    # with other faults than the seed's

The files, on this machine:
    cluster.py          a run: hosts in virtual time, the faults of power and network, the record
    faults.py           faults: drawn by a seed, written and read as text
    shrink.py           the shortest list of them with which a run fails
and on each host:
    node.py             keeps the workload's process alive, kills and stops it, finds what it leaves
    bank.py, replicated_log.py, dask_sum.py     the workloads, each with the judge of its record
    numbered.py         messages that are numbered
    journal.py          a file that survives when the host loses its power
    plants.py           bugs that are planted to see that they are found

A seed boots hosts of its own, and repeats exactly: the same frames at the same nanosecond. With
another list of faults, or with other sources, it is another run.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
MOST = 10  # lines of what is wrong, without --record
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests/lab")]


def parse_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="how many (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (%(default)s)")
    parser.add_argument("--workload", help="bank, replicated_log or dask_sum; by default by seed")
    parser.add_argument("--faults", type=Path, help="a list of faults for all seeds")
    parser.add_argument("--plant", default="", help="a bug: see plants.py")
    parser.add_argument("--record", action="store_true", help="print what the hosts told")
    parser.add_argument("--log", type=Path, help="a folder for a log of each seed, with its frames")
    parser.add_argument("--shrink", action="store_true", help="of the first seed that fails")
    return parser.parse_args()


def in_environment() -> None:
    """Of the lab, which has the built package, numpy and distributed."""
    if importlib.util.find_spec("distributed"):
        return
    built = subprocess.run(
        [PROJECT / "lab", "build"], check=True, stdout=subprocess.PIPE, text=True
    )
    python = Path(built.stdout.split()[-1], "bin/python")
    os.execv(python, [str(python), "-B", *sys.argv])


def main() -> int:
    from cluster import Outcome, processes, run, workload_of
    from faults import Fault, draw, parse, text
    from lab_runs import CACHE
    from plants import NAMES

    options = parse_words()
    if options.plant not in NAMES:
        raise SystemExit(f"--plant wants one of {', '.join(filter(None, NAMES))}")
    if options.log:
        options.log.mkdir(parents=True, exist_ok=True)
    given = parse(options.faults.read_text()) if options.faults else None

    def faults_of(seed: int) -> list[Fault]:
        return draw(seed) if given is None else given

    failed: list[Outcome] = []
    counts: collections.Counter[str] = collections.Counter()
    with processes(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        runs = [
            pool.submit(
                run,
                CACHE,
                seed,
                options.workload or workload_of(seed),
                faults_of(seed),
                options.plant,
                options.log and options.log / str(seed),
            )
            for seed in seeds
        ]
        for each in concurrent.futures.as_completed(runs):
            outcome = each.result()
            show(outcome, options.record)
            counts.update(fault.kind for fault in outcome.faults)
            failed += [outcome] if outcome.wrong else []
    print(f"{len(failed)} of {len(runs)} seeds failed; faults: {dict(counts.most_common())}")
    if failed and options.shrink:
        first = min(failed, key=lambda outcome: outcome.seed)
        print(text(shrunk(CACHE, first, options.plant)), end="")
    return bool(failed)


def show(outcome: Any, record: bool) -> None:
    print(outcome.summary(), flush=True)
    if record:
        for told in outcome.record:
            print("   ", json.dumps(told))
        print(outcome.said, end="")
    if outcome.wrong or record:
        print("".join(f"    {fault}\n" for fault in outcome.faults), end="")
        shown = outcome.wrong if record else outcome.wrong[:MOST]
        print("".join(f"  ! {line}\n" for line in shown), end="", flush=True)


def shrunk(cache: Path, outcome: Any, plant: str) -> list[Any]:
    from cluster import run
    from faults import Fault
    from shrink import shrink

    def fails(faults: list[Any]) -> bool:
        again = run(cache, outcome.seed, outcome.workload, sorted(faults), plant)
        print(f"# {len(faults)} faults: {again.wrong[:1] or 'right'}", flush=True)
        return bool(again.wrong)

    return shrink(outcome.faults, fails, Fault.simpler)


if __name__ == "__main__":
    in_environment()
    sys.exit(main())
