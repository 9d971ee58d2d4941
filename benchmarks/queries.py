# SPDX-License-Identifier: MIT
"""Queries that a program makes often: one GID, and the state of a port."""

from __future__ import annotations

from collections.abc import Callable

from cqnotify import Context

from .endpoints import ibverbs_context
from .harness.plan import Benchmark, Figures, Limit, Round
from .harness.subject import DEVICE, clock

ASKED = 200


def asked(ask: Callable[[], object]) -> Figures:
    ask()
    start = clock()
    for _ in range(ASKED):
        ask()
    return {"ops": ASKED, "total": clock() - start}


def cqnotify() -> Round:
    ctx = Context(DEVICE)
    return lambda: {
        "GID": asked(lambda: ctx.query_gid(0)),
        "port": asked(lambda: ctx.query_port(1)),
    }


def pyverbs() -> Round:
    from pyverbs.device import Context as PyverbsContext

    ctx = PyverbsContext(name=DEVICE)
    return lambda: {
        "GID": asked(lambda: ctx.query_gid(1, 0)),
        "port": asked(lambda: ctx.query_port(1)),
    }


def ibverbs() -> Round:
    ctx = ibverbs_context()
    return lambda: {
        "GID": asked(lambda: ctx.query_gid(1, 0)),
        "port": asked(lambda: ctx.query_port(1)),
    }


BENCHMARK = Benchmark(
    title="Querying one GID, and the state of a port",
    op="question",
    subjects={"pyverbs": pyverbs, "ibverbs": ibverbs, "cqnotify": cqnotify},
    limits=(
        Limit("cqnotify", case="GID", over="pyverbs", at_most=0.44),
        Limit("cqnotify", case="GID", over="ibverbs", at_most=0.79),
        # On a busy machine a run can count 3 % more here.
        Limit("cqnotify", case="port", over="pyverbs", at_most=0.46),
        Limit("cqnotify", case="port", over="ibverbs", at_most=1.04),
    ),
    quick=True,
)
