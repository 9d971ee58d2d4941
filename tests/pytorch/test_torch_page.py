# SPDX-License-Identifier: MIT
"""What docs/torch.md shows is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_support import Program, matches, read
from support import python

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("ctx")]


@pytest.mark.parametrize(
    "program", read("torch.md").programs, ids=lambda program: str(program.line)
)
def test_a_program_runs_and_prints_what_stands_below_it(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "page_torch.py"
    path.write_text(program.source)
    done = python("-W", "error", path.name, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert matches(done.stdout, program.output), done.stdout
