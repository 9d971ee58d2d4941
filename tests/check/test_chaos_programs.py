# SPDX-License-Identifier: MIT
"""The right twins of the programs in programs/ survive the faults that are harmless."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE

from cqnotify.check.chaos import HARMLESS

pytestmark = [
    pytest.mark.usefixtures("ctx"),
    pytest.mark.not_on_iwarp("its QPs are connected by rdma_cm alone", only=r"\[(?!.*rdma_cm)"),
]
PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = ("-libverbs", "-lrdmacm", "-lpthread")
SEEDS = 2


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.c")))
def test_a_right_program_survives_what_is_harmless(name: str, tmp_path: Path) -> None:
    twin, runs = tmp_path / name, tmp_path / "runs.json"
    libraries = () if name == "lost_dlopen" else LIBRARIES
    build = ["gcc", "-std=gnu11", "-g", "-DRIGHT", "-o", twin, PROGRAMS / f"{name}.c", *libraries]
    subprocess.run(build, check=True)
    options = ["--seeds", str(SEEDS), "--rate", "2", "--json", runs, "--", twin]
    command = [sys.executable, "-m", "cqnotify", "chaos", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SEEDS * DEADLINE)
    assert done.returncode == 0, done.stderr
    made = [run["faults"] for run in json.loads(runs.read_text())["runs"]]
    assert len(made) == SEEDS
    assert any(made)
    assert {fault for faults in made for fault in faults} <= set(HARMLESS)
