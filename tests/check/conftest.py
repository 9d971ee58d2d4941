# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from report_support import stand_in

from cqnotify.check import running


@pytest.fixture
def no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run without the observer: a library in its place does nothing."""
    monkeypatch.setattr(running, "find_observer", stand_in)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chaos") / "chaos_program"
    source = Path(__file__).parent / "chaos_program.c"
    flags = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", out, source, "-libverbs"], check=True)
    return out


@pytest.fixture
def program(built: Path, conversation: None) -> Path:
    return built
