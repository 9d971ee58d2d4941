# SPDX-License-Identifier: MIT
"""Schedules that a seed decides: no program fails in any, and a seed repeats its schedule. Their
steps are those that the model allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import FREE_THREADED

if FREE_THREADED:
    pytest.skip("the scheduler passes the GIL on", allow_module_level=True)

HERE = Path(__file__).resolve().parent
EXPLORE = HERE / "explore.py"
REPLAY = HERE.parent / "model/replay.py"
SEEDS = 50
MANY, SLICE = 10_000, 1_000


TABLES = [path.read_text().partition("PROGRAMS = (")[2] for path in HERE.glob("programs_*.py")]
NAMES = sorted(re.findall(r"^    (\w+),$", "".join(TABLES), re.M))


def explore(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXPLORE), *map(str, words)]
    return subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_schedule_fails(name: str, tmp_path: Path) -> None:
    done = explore("-n", SEEDS, name, CQNOTIFY_STEPS=str(tmp_path / "steps"))
    assert done.returncode == 0, done.stderr
    command = [sys.executable, REPLAY, *tmp_path.iterdir()]  # one file for each process
    replayed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, MANY, SLICE))
@pytest.mark.parametrize("name", NAMES)
def test_none_of_many_schedules_fails(name: str, first: int) -> None:
    done = explore("-n", SLICE, "--first", first, name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["two_threads_and_two_cqs", "operations", "two_loops"])
def test_a_seed_repeats_its_schedule(name: str) -> None:
    one, same, other = (explore("--seed", seed, name) for seed in (7, 7, 8))
    assert one.returncode == 0, one.stderr
    assert one.stdout == same.stdout
    assert one.stdout != other.stdout
    choices, *points = one.stdout.splitlines()[1:]
    assert 10 < int(choices) < len(points)
    assert {point.partition(" ")[0] for point in points} >= {"0", "1", "32"}  # 32: the device


def test_a_lost_wake_up_is_reported_with_its_seed_and_where_all_threads_are() -> None:
    done = explore("-n", 1, "a_wake_up_is_lost")
    assert done.returncode == 1
    assert "a_wake_up_is_lost --seed 0 fails, status -6" in done.stderr
    assert "schedule: nobody can go on\nschedule: thread 0 waits in ppoll:0\n" in done.stderr
    assert re.search(r'programs_threads.py", line \d+ in serve_all', done.stderr)
