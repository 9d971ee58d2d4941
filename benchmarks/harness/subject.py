# SPDX-License-Identifier: MIT
"""The process of a subject: python -m benchmarks.harness.subject BENCHMARK SUBJECT

For each line on stdin it runs one round, and prints the figures as a line of JSON. The programs in
C do the same, see c/bench.c.
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

# Debian's folder of pyverbs; last, since the environment's own packages take precedence.
sys.path.append("/usr/lib/python3/dist-packages")

FAKE_DEVICE = "fake0"
DEVICE = os.environ.get("BENCH_DEVICE", "")
_INDEX = int(os.environ.get("BENCH_GID_INDEX", "-1"))
GID_INDEX = None if _INDEX < 0 else _INDEX  # None on InfiniBand


def importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the module's package does not exist
        return False


def clock_cost() -> int:
    """Return what the clock itself adds to a measurement."""

    def pair() -> int:
        start = clock()
        return clock() - start

    return min(pair() for _ in range(1000))


def settle(posted: int) -> None:
    """Let the device complete what was posted, so that only handling is measured."""
    if DEVICE != FAKE_DEVICE:
        time.sleep(100e-6 + posted * 20e-6)


def peer() -> socket.socket:
    """Return the socket to the peer, for addresses and orders."""
    return socket.socket(fileno=int(os.environ["BENCH_PEER"]))


def main() -> None:
    name, variant = sys.argv[1:]
    start = plan.load(name).subjects[variant]
    assert not isinstance(start, plan.InC)
    run = start()
    gc.collect()
    gc.freeze()  # so that the collector skips the objects of the set-up in the rounds
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


if __name__ == "__main__":
    main()
