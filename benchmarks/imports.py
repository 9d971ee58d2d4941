# SPDX-License-Identifier: MIT
"""Importing a package, in a process of its own, from compiled bytecode.

Measured is CPU time, which does not include waiting for files.
"""

from __future__ import annotations

import subprocess
import sys

from .harness.plan import Benchmark, Figures, Round, Subject

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
        "asyncio": importing("asyncio"),
        "cqnotify": importing("cqnotify"),
        "cqnotify.aio": importing("cqnotify.aio"),
    },
)
