# SPDX-License-Identifier: MIT
"""Importing a package, in a process of its own, from compiled bytecode.

Measured is CPU time, which does not include waiting for files.
"""

from __future__ import annotations

import subprocess
import sys

from .harness.plan import Benchmark, Figures, Limit, Round, Subject

IMPORT = """
import sys, time
sys.path[:] = {path!r}
start = time.process_time_ns()
import {modules}
print(time.process_time_ns() - start)
"""


def importing(modules: str) -> Subject:
    def start() -> Round:
        program = IMPORT.format(path=sys.path, modules=modules)

        def run() -> dict[str, Figures]:
            command = [sys.executable, "-I", "-c", program]
            total = int(subprocess.check_output(command))
            return {"import": {"ops": 1, "total": total}}

        return run

    return start


BENCHMARK = Benchmark(
    title="Importing the package",
    op="import",
    subjects={
        "pyverbs": importing("pyverbs.device, pyverbs.pd, pyverbs.mr, pyverbs.cq, pyverbs.qp"),
        "ibverbs": importing("ibverbs"),
        "asyncio": importing("asyncio"),
        "asyncio, ibverbs": importing("asyncio, ibverbs"),
        "cqnotify": importing("cqnotify"),
        "cqnotify, and what comes later": importing("cqnotify; from cqnotify import *"),
        "cqnotify.aio": importing("cqnotify.aio"),
    },
    limits=(
        Limit("cqnotify", at_most=11e6),
        Limit("cqnotify", over="ibverbs", at_most=0.2),
    ),
    quick=True,
)
