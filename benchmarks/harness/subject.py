# SPDX-License-Identifier: MIT
"""A subject's process: python -m benchmarks.harness.subject BENCHMARK SUBJECT

For each line on stdin it runs one round, and prints its figures as a line of JSON. What is written
in C does the same, see c/bench.c.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import socket
import sys
import time

from . import plan

clock = time.perf_counter_ns

# Where Debian has pyverbs; last, since an environment's own packages go first.
sys.path.append("/usr/lib/python3/dist-packages")

STAND_IN_DEVICE = "stand_in0"
DEVICE = os.environ.get("BENCH_DEVICE", "")
_INDEX = int(os.environ.get("BENCH_GID_INDEX", "-1"))
GID_INDEX = None if _INDEX < 0 else _INDEX  # none on InfiniBand


def importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of its package
        return False


def clock_cost() -> int:
    """What the clock itself adds to a measurement."""

    def pair() -> int:
        start = clock()
        return clock() - start

    return min(pair() for _ in range(1000))


def settle(posted: int) -> None:
    """Lets a device do what was posted, before it is measured what to do with the completions."""
    if DEVICE != STAND_IN_DEVICE:
        time.sleep(100e-6 + posted * 20e-6)


def peer() -> socket.socket:
    """The other end is there: lines to exchange addresses and to say when to start and end."""
    return socket.socket(fileno=int(os.environ["BENCH_PEER"]))


def main() -> None:
    name, variant = sys.argv[1:]
    start = plan.load(name).subjects[variant]
    assert not isinstance(start, plan.InC)
    run = start()
    gc.collect()
    gc.freeze()  # what the set-up left is not looked at in the rounds
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


if __name__ == "__main__":
    main()
