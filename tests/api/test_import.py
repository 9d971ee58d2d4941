# SPDX-License-Identifier: MIT
"""What `import cqnotify` finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import python

import cqnotify

SOURCES = Path(__file__).parents[2] / "cqnotify"


def test_where_the_sources_are_in_the_way_the_import_says_so(tmp_path: Path) -> None:
    shutil.copytree(
        SOURCES, tmp_path / "cqnotify", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # -S: without what is installed
    done = python("-S", "-c", "import cqnotify", cwd=tmp_path)
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {tmp_path}/cqnotify has cqnotify's sources" in done.stderr


def test_importing_the_package_brings_no_module_that_takes_long_and_is_not_needed_yet() -> None:
    # -I -S: what the environment imports at its start is left out.
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCES.parent)!r}); before = {{*sys.modules}}\n"
        "import cqnotify; print(*sorted({*sys.modules} - before))"
    )
    done = python("-I", "-S", "-c", program)
    brought = set(done.stdout.split())
    assert "cqnotify.enums" in brought
    late = {"typing", "re", "ipaddress", "dataclasses", "inspect", "asyncio", "cqnotify.attrs"}
    assert not brought & late


def test_names_that_come_later_are_the_same_from_wherever_they_are_asked_for() -> None:
    assert cqnotify.QPAddress is cqnotify.qp.QPAddress
    assert cqnotify.DeviceAttr is cqnotify.attrs.DeviceAttr
    assert set(cqnotify.__all__) <= set(dir(cqnotify))
    with pytest.raises(AttributeError, match="module 'cqnotify' has no attribute 'nothing'"):
        cqnotify.nothing  # noqa: B018
