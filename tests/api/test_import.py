# SPDX-License-Identifier: MIT
"""What `import cqnotify` finds."""

from __future__ import annotations

import shutil
from pathlib import Path

from support import python

SOURCES = Path(__file__).parents[2] / "cqnotify"


def test_where_the_sources_are_in_the_way_the_import_says_so(tmp_path: Path) -> None:
    shutil.copytree(
        SOURCES, tmp_path / "cqnotify", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # -S: without what is installed
    done = python("-S", "-c", "import cqnotify", cwd=tmp_path)
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {tmp_path}/cqnotify has cqnotify's sources" in done.stderr
