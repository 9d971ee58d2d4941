# SPDX-License-Identifier: MIT
"""The programs in docs/recipes.md print what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE

TEXT = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()
RECIPES = re.findall(r"^## (.*?)\n.*?```python\n(.*?)```\n\n```\n(.*?)```\n", TEXT, re.M | re.S)


def test_every_recipe_is_run() -> None:
    assert len(RECIPES) == TEXT.count("\n## ") == TEXT.count("```python")


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize(
    ("program", "printed"), [r[1:] for r in RECIPES], ids=[r[0] for r in RECIPES]
)
def test_a_recipe_prints_what_stands_below_it(program: str, printed: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
