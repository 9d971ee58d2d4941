# SPDX-License-Identifier: MIT
"""spin="auto" where operations take time: on the fake library of the benchmarks, in programs of
their own. On software devices they mostly complete as they are posted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import DEADLINE

from benchmarks.harness import compiled

OPS = 100
PROGRAM = f"""
import json, sys
from benchmarks import spin
spin.OPS, spin.WARM_UP = {OPS}, 0
spin.DELAYS = {{"short": 20_000, "long": 20_000_000, "short again": 20_000}}
print(json.dumps(getattr(spin, sys.argv[1])("auto")()))
"""


EMPTY = """
import json
from benchmarks.endpoints import Loopback
cq, polls, spun = Loopback().cq, 0, []
for _ in range(400):
    assert cq.poll(spin="auto") == []
    spun.append(cq._spin[2] > polls)
    polls = cq._spin[2]
print(json.dumps(spun))
"""


WAITS = """
import asyncio, json
from benchmarks.endpoints import Loopback
from cqnotify.aio import AsyncCQ

async def waits():
    async with AsyncCQ(Loopback().cq, spin="auto") as acq:
        spun = []
        for _ in range(100):
            before = acq.stats.spins
            task = asyncio.ensure_future(acq.wait())
            await asyncio.wait([task], timeout=0.001)  # nothing is ready when it may spin
            spun.append(acq.stats.spins > before)
            task.cancel()
            await asyncio.wait([task])
    polls = acq.cq._spin[2]
    assert acq.cq.poll(spin="auto") == []
    return spun, acq.cq._spin[2] > polls

print(json.dumps(asyncio.run(waits())))
"""


@pytest.fixture(scope="module")
def fake_verbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fake_verbs") / "fake_verbs.so"
    compiled.compile_c(compiled.SOURCES / "fake_verbs.c", library)
    return library


def run(library: Path, program: str, *arguments: str, cpus: int) -> Any:
    """What the program prints, on a machine with so many CPUs."""
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()  # ASan's wants to be first
    env = {"BENCH_DEVICE": "fake0", "LD_PRELOAD": preload, "FAKE_CPUS": str(cpus)}
    command = [sys.executable, "-c", program, *arguments]
    options: dict[str, Any] = {"timeout": DEADLINE, "stdout": subprocess.PIPE, "check": True}
    return json.loads(subprocess.run(command, env={**os.environ, **env}, **options).stdout)


def wakeups(library: Path, how: str, cpus: int) -> dict[str, int]:
    """How many of the operations were not served by spinning."""
    figures = run(library, PROGRAM, how, cpus=cpus)
    return {case: figures[case]["wakeups"] for case in figures}


@pytest.mark.parametrize("how", ["awaits", "in_thread"])
def test_it_spins_where_that_pays_and_follows_a_change(fake_verbs: Path, how: str) -> None:
    slept = wakeups(fake_verbs, how, cpus=2)
    assert slept["short"] < OPS / 2
    assert slept["long"] > OPS / 2  # all, but where the machine stalls for so long
    assert slept["short again"] < OPS  # since a rare wait looks whether it pays


@pytest.mark.parametrize("how", ["awaits", "in_thread"])
def test_on_one_cpu_what_takes_time_is_slept_for(fake_verbs: Path, how: str) -> None:
    assert wakeups(fake_verbs, how, cpus=1)["long"] > OPS / 2


def test_polls_that_find_nothing_soon_do_not_spin(fake_verbs: Path) -> None:
    spun = run(fake_verbs, EMPTY, cpus=2)
    assert spun[:4] == [True] * 4  # as long as nothing is known
    assert sum(spun) <= 4 + 4
    assert sum(spun[300:]) <= 1
    assert not any(run(fake_verbs, EMPTY, cpus=1))


def test_waits_that_find_nothing_soon_do_not_spin(fake_verbs: Path) -> None:
    """Nor do polls then, since both are for what a peer does."""
    spun, polls_spin = run(fake_verbs, WAITS, cpus=2)
    assert spun[:4] == [True] * 4  # as long as nothing is known
    assert sum(spun) <= 4 + 3
    assert not polls_spin
    spun, polls_spin = run(fake_verbs, WAITS, cpus=1)
    assert not any(spun)
    assert not polls_spin
