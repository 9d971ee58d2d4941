# SPDX-License-Identifier: MIT
"""Exposing memory that is registered already, and revoking that. C registers it, and deregisters
it: see c/exposing.c."""

from __future__ import annotations

import numpy

from cqnotify import memory

from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

SIZE = 4096
N = 500


def cqnotify() -> Round:
    array = numpy.zeros(SIZE, numpy.uint8)
    first = memory.expose(array)  # which keeps it registered

    def run() -> dict[str, Figures]:
        exposed = [first] * N
        start = clock()
        for i in range(N):
            exposed[i] = memory.expose(array)
        middle = clock()
        for each in exposed:
            each.close()
        end = clock()
        return {
            "expose": {"ops": N, "total": middle - start},
            "close": {"ops": N, "total": end - middle},
        }

    return run


BENCHMARK = Benchmark(
    title="Exposing 4 KiB that are registered",
    op="exposure",
    subjects={"C, registering": InC("exposing"), "cqnotify": cqnotify},
    limits=(Limit("cqnotify", case="expose", at_most=2_500),),
    seconds=5,
)
