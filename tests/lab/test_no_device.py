# SPDX-License-Identifier: MIT
"""On a machine without RDMA: the package imports, and says what is missing."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cqnotify
from cqnotify._core import why_no_device
from cqnotify.cli import COMMANDS, OBSERVERS

pytestmark = pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices"
)


def test_it_imports_and_there_is_no_device() -> None:
    assert cqnotify.devices() == []


@pytest.mark.parametrize("name", [None, "rxe0"])
def test_opening_one_says_how_to_get_one(name: str | None) -> None:
    with pytest.raises(cqnotify.VerbsError, match="no RDMA device.*rdma_rxe") as e:
        cqnotify.Context(name)
    assert e.value.errno == errno.ENODEV


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in OBSERVERS])
def test_the_command_line_says_so_too(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cqnotify", command], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"cqnotify: {why_no_device()}\n"


def test_both_say_the_same_and_name_every_way_out() -> None:
    for way in ("ibverbs-providers", "modprobe rdma_rxe", "rdma link add", "cqnotify lab run"):
        assert way in why_no_device()
    with pytest.raises(cqnotify.VerbsError, match=re.escape(why_no_device())):
        cqnotify.Context()


def test_a_test_that_needs_one_is_skipped_or_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(rdma_rc_pair): pass\n")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    for option, status, words in (("-q", 0, "1 skipped"), ("--rdma-required", 1, "1 error")):
        done = subprocess.run([*command, option], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stdout
        assert "rdma: there is no RDMA device" in done.stdout
        assert words in done.stdout
