# SPDX-License-Identifier: MIT
"""The projects of examples/ci pass their tests in the lab, by the commands of their workflows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab_runs import PROJECT, built
from workflow_runs import Runner

import cqnotify

PROJECTS = sorted(path.name for path in (PROJECT / "examples/ci").iterdir())
ACTION = f"OWNER/cqnotify/.github/actions/lab@v{cqnotify.__version__}"
pytestmark = built
each_project = pytest.mark.parametrize("name", PROJECTS)


def steps(name: str) -> list[dict[str, Any]]:
    workflow = PROJECT / "examples/ci" / name / ".github/workflows/rdma.yml"
    found: list[dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]["test"]["steps"]
    return found


def tools(name: str) -> list[Path]:
    """The folder of a cargo that is not the system's. That of rustup is a link, which needs a home:
    so the folder that it leads to."""
    cargo = shutil.which("cargo") if name == "cargo" else None
    if cargo and shutil.which("rustup"):
        which = ["rustup", "which", "cargo"]
        cargo = subprocess.run(which, check=True, capture_output=True, text=True).stdout.strip()
    return [Path(cargo).parent] if cargo else []


def run(name: str, folder: Path, python: Path, change: tuple[str, str] = ("", "")) -> list[Any]:
    """Run the steps of the workflow that are commands, up to one that fails; return the results."""
    project = folder / name
    shutil.copytree(PROJECT / "examples/ci" / name, project)
    file, text = change
    if file:
        (project / file).write_text(text)
    runner = Runner(folder, python.parent, *tools(name))
    env = {"CQNOTIFY_LAB_CACHE": str(folder / "cache")}
    results: list[subprocess.CompletedProcess[str]] = []
    for step in steps(name):
        if "run" in step and all(done.returncode == 0 for done in results):
            results.append(runner.bash(step["run"], env, project))
    return results


SAID = {"pytest": "1 passed", "ctest": "100% tests passed", "cargo": "1 passed; 0 failed"}


@each_project
def test_a_project_passes_its_tests_in_the_lab(name: str, lab_python: Path, tmp_path: Path) -> None:
    results = run(name, tmp_path, lab_python)
    assert [done.returncode for done in results] == [0] * len(results)
    assert SAID[name] in results[-1].stdout
    assert ", as a process of this machine" in results[-1].stderr
    assert not list((tmp_path / "cache").glob("uml/*/linux"))  # it is cqnotify-lab's


FAULTS = {
    "pytest": ("test_ping.py", "def test(rdma_device):\n    assert rdma_device.name == 'mlx5_0'\n"),
    "ctest": ("ping.c", "int main(void)\n{\n    return 1;\n}\n"),
    "cargo": ("tests/devices.rs", '#[test]\nfn fails() {\n    panic!("rxe0");\n}\n'),
}


@each_project
def test_a_test_that_fails_fails_the_last_step(name: str, lab_python: Path, tmp_path: Path) -> None:
    *before, last = run(name, tmp_path, lab_python, FAULTS[name])
    assert [done.returncode for done in before] == [0] * len(before)
    assert last.returncode not in (0, 125)


@each_project
def test_a_workflow_uses_the_action(name: str) -> None:
    assert [step["uses"] for step in steps(name) if "cqnotify" in step.get("uses", "")] == [ACTION]
    assert "cqnotify lab run -- " in steps(name)[-1]["run"]
