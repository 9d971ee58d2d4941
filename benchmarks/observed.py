# SPDX-License-Identifier: MIT
"""The cost of the observer of `cqnotify check` and `cqnotify trace` to the observed program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping

from cqnotify.check.running import observed_environment

from .harness.compiled import BUILD
from .harness.plan import Benchmark, Figures, Limit, Round
from .harness.subject import DEVICE, GID_INDEX

RECORDS = 100_000  # of the timeline
ITERATIONS = 1000  # of ibv_rc_pingpong

PING_PONG = ["ibv_rc_pingpong", "-e", "-d", DEVICE, "-n", str(ITERATIONS)]
if GID_INDEX is not None:
    PING_PONG += ["-g", str(GID_INDEX)]


def ping_pong(env: Mapping[str, str]) -> Figures:
    """Run both ends; each says how long an iteration took, without start and end."""
    with subprocess.Popen(PING_PONG, env=env, stdout=subprocess.DEVNULL) as server:
        client = None
        while client is None or (client.returncode != 0 and server.poll() is None):
            client = subprocess.run(  # which fails until the server listens
                [*PING_PONG, "localhost"],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
    found = re.search(r"= ([\d.]+) usec/iter", client.stdout)
    assert found is not None, client.stdout
    return {"ops": ITERATIONS, "total": float(found[1]) * 1000 * ITERATIONS}


def drain(env: Mapping[str, str]) -> Figures:
    """Run the floor of the benchmark of the same name."""
    command = [str(BUILD / "drain")]
    ran = subprocess.run(
        command, env=env, input="\n\n", stdout=subprocess.PIPE, text=True, check=True
    )
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])["256/16"]
    return figures


def rounds(*, observed: bool, timeline_records: int | None = None) -> Round:
    def run() -> dict[str, Figures]:
        with tempfile.TemporaryDirectory() as folder:
            env: Mapping[str, str] = os.environ
            if observed:
                env = observed_environment(folder, timeline_records=timeline_records)
            return {"ibv_rc_pingpong -e": ping_pong(env), "drain 256/16": drain(env)}

    return run


BENCHMARK = Benchmark(
    title="A program under the observer: ibv_rc_pingpong, and draining a CQ in batches of 16",
    op="iteration or completion",
    subjects={
        "C": lambda: rounds(observed=False),
        "C, checked": lambda: rounds(observed=True),
        "C, with a timeline": lambda: rounds(observed=True, timeline_records=RECORDS),
    },
    limits=(  # 2 to 5 % above what was measured
        Limit("C, checked", case="ibv_rc_pingpong -e", over="C", at_most=1.1),
        Limit("C, with a timeline", case="ibv_rc_pingpong -e", over="C", at_most=1.1),
        Limit("C, checked", case="drain 256/16", over="C", at_most=1.52),
        Limit("C, with a timeline", case="drain 256/16", over="C", at_most=3.1),
    ),
    seconds=35,
)
