# SPDX-License-Identifier: MIT
"""The example's cluster of processes, one of which is killed, computes what is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE

EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_cluster.py"


@pytest.mark.usefixtures("ctx")
def test_a_cluster_of_processes_survives_the_death_of_one(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLE, "--megabytes", "8", "--port", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=4 * DEADLINE, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dashboard: http://", done.stdout, re.M)
    assert re.search(r"^2 workers at rdma://", done.stdout, re.M)
    assert re.search(r"^killed a worker, with what it had: rdma://", done.stdout, re.M)
    assert "[################] 16 of 16 parts" in done.stdout
    assert re.search(r"^the sum is \d+: right$", done.stdout, re.M)
