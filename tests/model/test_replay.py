# SPDX-License-Identifier: MIT
"""What the core does in a part of the suite is what its model allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPLAY = Path(__file__).with_name("replay.py")
PART = [
    "base/test_wait.py",
    "notify/test_channel.py",
    "notify/test_solicited.py",
    "engine/test_engine.py",
    "aio/test_foreign_polls.py",
]
STEPS = {"arm", "event", "ack", "poll", "route", "wake", "sleep", "cancel", "take", "waits", "woke"}


def test_the_steps_of_the_core_are_those_of_the_model(tmp_path: Path) -> None:
    env = {**os.environ, "CQNOTIFY_STEPS": str(tmp_path / "steps")}
    tests = [str(TESTS / path) for path in PART]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    files = list(tmp_path.glob("steps.*"))
    words = {line.split()[0] for file in files for line in file.read_text().splitlines()}
    assert words > STEPS
    replayed = subprocess.run(
        [sys.executable, REPLAY, *files], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 0, replayed.stdout
