# SPDX-License-Identifier: MIT
"""The core of the released wheels: CQNOTIFY_PGO=1 builds it for what the benchmarks run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import (
    LARGEST_CORE,
    LINKER,
    PROJECT,
    Distributions,
    copy_sources,
    core_of,
    debug_sections,
)

JOINED = b".lto_priv"  # in the name of a function that link-time optimisation made static

Done = subprocess.CompletedProcess[str]


def setup(folder: Path, *command: str) -> Done:
    env = os.environ | {"CQNOTIFY_PGO": "1", "LDSHARED": LINKER}
    whole = [sys.executable, "setup.py", "-q", *command]
    return subprocess.run(whole, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)


def build(folder: Path) -> Path:
    """Build it in a new folder, and return the core."""
    copy_sources(folder)
    done = setup(folder, "build")
    assert done.returncode == 0, done.stderr
    (core,) = folder.glob("build/lib*/cqnotify/_core*.so")
    return core


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pgo") / "source")


def empty_core(folder: Path) -> None:
    """What setup.py reads, and a core that has nothing in it, not even a module."""
    (folder / "csrc").mkdir()
    (folder / "csrc/module.c").touch()
    (folder / "cqnotify").mkdir()
    for name in ("setup.py", "README.md", "cqnotify/__init__.py"):
        shutil.copy(PROJECT / name, folder / name)
    shutil.copytree(PROJECT / "benchmarks", folder / "benchmarks")


@pytest.mark.release
def test_each_source_of_the_core_was_trained(core: Path) -> None:
    (temp,) = core.parents[2].glob("temp*")
    built = {path.with_suffix("") for path in (temp / "csrc").rglob("*.o")}
    counted = {path.with_suffix("") for path in (temp / "csrc").rglob("*.gcda")}
    assert counted == {path for path in built if path.parent.name != "check"}


@pytest.mark.release
def test_the_core_is_one_unit_and_a_build_without_it_is_plain(
    core: Path, made: Distributions, tmp_path: Path
) -> None:
    assert JOINED in core.read_bytes()
    assert JOINED not in core_of(made, tmp_path).read_bytes()


@pytest.mark.release
def test_the_core_is_no_larger_than_a_plain_one_may_be(core: Path) -> None:
    assert debug_sections(core) == set()
    assert core.stat().st_size < LARGEST_CORE


@pytest.mark.release
def test_the_core_drains_the_fake_library(core: Path) -> None:
    (folder,) = core.parents[2].glob("temp*/training")
    subject = [sys.executable, "-m", "benchmarks.harness.subject", "drain", "cqnotify"]
    env = os.environ | {
        "PYTHONPATH": str(core.parents[1]),
        "LD_PRELOAD": str(folder / "build/benchmarks/fake_verbs.so"),
        "BENCH_DEVICE": "fake0",
    }
    shutil.rmtree(folder / "cqnotify")  # the core that counted
    done = subprocess.run(
        subject, check=True, cwd=folder, env=env, input="\n", stdout=subprocess.PIPE, text=True
    )
    assert {case["ops"] for case in json.loads(done.stdout).values()} == {1024}


@pytest.mark.release
def test_two_builds_give_the_same_core(core: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "another/place")
    assert again.read_bytes() == core.read_bytes()


def test_a_training_that_fails_fails_the_build(tmp_path: Path) -> None:
    empty_core(tmp_path)
    done = setup(tmp_path, "build_ext")
    assert done.returncode != 0
    assert "benchmarks.training" in done.stderr
    assert list(tmp_path.glob("build/lib*/cqnotify/_core*")) == []


def test_what_is_built_in_place_is_plain(tmp_path: Path) -> None:
    empty_core(tmp_path)
    done = setup(tmp_path, "build_ext", "--inplace")
    assert done.returncode != 0
    assert "CQNOTIFY_PGO is not for builds in place or for tests." in done.stderr
