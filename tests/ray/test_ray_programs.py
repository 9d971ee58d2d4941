# SPDX-License-Identifier: MIT
"""Programs with a cluster: the example, that of the page, and what Ray does in the middle of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_support import matches, read
from support import DEADLINE

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ctx")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_arrays.py"
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # no file, no network


def run(folder: Path, *words: str | Path) -> str:
    """What a program prints. Ray starts many processes, each of which imports a lot."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
        cwd=folder,
        env={**os.environ, **QUIET},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_arrays_and_survives_a_killed_actor(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLE, "--rows", "100", "--passes", "3")
    for way in ("the object store", "RDMA"):
        assert re.search(rf"^0\.8 MB by {way}, 1 host: [\d.]+ ms, \d+ MB/s, right$", printed, re.M)
    assert "\nexposed afterwards: 0 bytes\n" in printed
    assert re.search(r"^the actor was killed: .*object \w+ was not fetched over RDMA", printed, re.M)
    assert printed.endswith("from another one: right\n")


def test_the_program_of_the_page_prints_what_stands_below_it(tmp_path: Path) -> None:
    (program,) = read("ray.md").programs
    path = tmp_path / "page_ray.py"
    path.write_text(program.source)
    assert matches(run(tmp_path, path), program.output)
