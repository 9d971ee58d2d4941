# SPDX-License-Identifier: MIT
"""The action that gives a workflow the lab: .github/actions/lab. Its scripts run as on a runner;
only, no packages of the system are installed, and the wheels are at hand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributions import Distributions
from lab_runs import CACHE, PROJECT, built
from workflow_runs import Runner

import cqnotify
from cqnotify.lab import uml

FOLDER = PROJECT / ".github/actions/lab"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SCRIPTS = [step for step in STEPS if "run" in step]
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
each_script = pytest.mark.parametrize("step", SCRIPTS, ids=lambda step: step["name"])


# ---- what stands there --------------------------------------------------------------------


@each_script
def test_a_script_is_bash_that_shellcheck_takes(step: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "step.sh"
    script.write_text(f"#!/usr/bin/env bash\n{step['run']}")
    for check in (["bash", "-n"], ["shellcheck"]):
        done = subprocess.run([*check, script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert step["shell"] == "bash"
    assert not EXPRESSION.search(step["run"])  # what a caller writes is never part of a script


@each_script
def test_a_script_uses_what_it_is_given(step: dict[str, Any]) -> None:
    given = set(step.get("env", {}))
    runner = {"GITHUB_ACTION_PATH", "GITHUB_OUTPUT"}
    assert set(re.findall(r"\$\{?#?([A-Z_]{3,})", step["run"])) - runner == given


def test_expressions_name_inputs_and_outputs_that_there_are() -> None:
    text = (FOLDER / "action.yml").read_text()
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    made = {
        f"{step['id']}.{name}"
        for step in SCRIPTS
        if "id" in step
        for name in re.findall(r'echo "(\w+)=', step["run"])
    }
    assert set(re.findall(r"steps\.(\w+\.outputs\.\w[\w-]*)", text)) == {
        name.replace(".", ".outputs.") for name in made
    } | {"cache.outputs.cache-hit"}


def test_the_kernels_that_it_can_have_are_those_of_the_lab() -> None:
    said = ACTION["inputs"]["kernels"]
    assert set(re.findall(r"\d+\.\d+", said["description"])) == set(uml.SUITES)
    assert said["default"] == uml.DEFAULT_SERIES


# ---- what its steps do --------------------------------------------------------------------


class Action(Runner):
    """The action on a machine, with these inputs, and a Python for it in the folder venv."""

    def __init__(self, home: Path, inputs: dict[str, str]) -> None:
        super().__init__(home, home / "venv/bin")
        self.inputs = {name: about["default"] for name, about in ACTION["inputs"].items()} | inputs
        self.outputs: dict[str, str] = {}  # by "STEP.outputs.NAME"

    def value(self, text: str) -> str:
        known = {f"inputs.{name}": value for name, value in self.inputs.items()}
        known |= {f"steps.{name}": value for name, value in self.outputs.items()}
        return EXPRESSION.sub(lambda found: known[found[1]], str(text))

    def wanted(self, step: dict[str, Any]) -> bool:
        """Whether a condition holds, as these steps have it."""
        conditions = re.findall(r"steps\.(\S+) != '(\w*)'", step.get("if", ""))
        assert len(conditions) == step.get("if", "").count("=")
        return all(self.outputs.get(name, "") != value for name, value in conditions)

    def run(self, *only: str) -> list[str]:
        """Run the steps, or those with a name among `only`; return the names of those that ran."""
        ran = []
        for step in STEPS:
            if (only and step["name"] not in only) or not self.wanted(step):
                continue
            ran.append(step["name"])
            if "run" in step:
                done = self.script(step)
                assert done.returncode == 0, done.stdout + done.stderr
        return ran

    def script(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        made = self.home / "output"
        made.write_text("")
        env = {name: self.value(text) for name, text in step.get("env", {}).items()}
        env |= {"GITHUB_ACTION_PATH": str(FOLDER), "GITHUB_OUTPUT": str(made)}
        done = self.bash(step["run"], env, self.home)
        for line in made.read_text().splitlines():
            name, _, value = line.partition("=")
            self.outputs[f"{step['id']}.outputs.{name}"] = value
        return done

    def with_python(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", self.home / "venv"], check=True)


def step(name: str) -> dict[str, Any]:
    return next(step for step in STEPS if step["name"] == name)


@built
def test_with_the_wheels_nothing_is_compiled_and_there_are_devices(
    made: Distributions, kernel_wheel: Path, tmp_path: Path
) -> None:
    shutil.copy(made.wheel, tmp_path)
    shutil.copy(kernel_wheel, tmp_path)
    runner = Action(tmp_path, {"path": "cqnotify-*.whl cqnotify_lab-*.whl"})
    runner.with_python()
    assert runner.run() == ["packages", "cqnotify", "which kernels are missing", "devices"]
    assert runner.packages() == {"iproute2", "ibverbs-providers", "librdmacm1"}
    assert runner.outputs["kernels.outputs.missing"] == ""
    done = runner.script(step("devices"))
    assert re.findall(r"^link (\w+)/1 ", done.stdout, re.M) == ["rxe0", "rxe1"]


@built
def test_a_kernel_that_is_in_no_package_comes_from_the_cache(
    made: Distributions, tmp_path: Path
) -> None:
    shutil.copy(made.wheel, tmp_path)
    runner = Action(tmp_path, {"path": "cqnotify-*.whl"})
    runner.with_python()
    runner.run("packages", "cqnotify", "which kernels are missing")
    assert runner.outputs["kernels.outputs.missing"] == "7.2"
    assert re.fullmatch(r"cqnotify-lab--7\.2-[0-9a-f]{16}", runner.outputs["kernels.outputs.key"])
    restored = uml.image(CACHE, uml.choose(CACHE, "7.2") or "").parent
    shutil.copytree(restored, tmp_path / ".cache/cqnotify-lab/uml" / restored.name)
    runner.outputs["cache.outputs.cache-hit"] = "true"
    rest = ["the cache", "the missing kernels", "devices"]
    assert runner.run(*rest, "packages to build a kernel") == rest
    assert "flex" not in runner.packages()


def test_where_a_kernel_is_built_its_tools_are_installed(tmp_path: Path) -> None:
    runner = Action(tmp_path, {"kernels": "7.2 6.1"})
    runner.program("cqnotify", 'echo "$*" >>~/called')
    ran = runner.run(
        "which kernels are missing", "packages to build a kernel", "the missing kernels"
    )
    assert len(ran) == 3
    assert runner.packages() >= {"gcc", "make", "flex", "bison", "bc", "xz-utils", "libc6-dev"}
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["lab kernels", "lab kernels build 7.2 6.1"]


@pytest.mark.parametrize(
    ("inputs", "command"),
    [
        ({}, [f"-m pip install {FOLDER}/../../.."]),
        ({"version": "0.1.0"}, ["-m pip install cqnotify[lab]==0.1.0"]),
        ({"path": "here there"}, ["-m pip install here there"]),
        ({"installer": "pipx", "version": "0.1.0"}, ["install cqnotify[lab]==0.1.0"]),
        ({"installer": "pipx"}, [f"install {FOLDER}/../../.."]),
        (
            {"installer": "pipx", "path": "dist/cqnotify_lab-1.whl dist/cqnotify-1.whl"},
            ["install dist/cqnotify-1.whl", "inject cqnotify dist/cqnotify_lab-1.whl"],
        ),
    ],
)
def test_what_is_installed(inputs: dict[str, str], command: list[str], tmp_path: Path) -> None:
    runner = Action(tmp_path, inputs)
    for name in ("python3", "pipx"):
        runner.program(name, 'echo "$*" >>~/called')
    runner.run("packages", "cqnotify")
    assert (tmp_path / "called").read_text().splitlines() == command
    from_sources = not inputs.get("version") and not inputs.get("path", "").endswith(".whl")
    assert ("libibverbs-dev" in runner.packages()) == from_sources
    assert (FOLDER / "../../../pyproject.toml").resolve() == PROJECT / "pyproject.toml"


def test_another_installer_is_an_error(tmp_path: Path) -> None:
    runner = Action(tmp_path, {"installer": "npm"})
    done = runner.script(step("cqnotify"))
    assert (done.returncode, done.stdout) == (
        1,
        "::error::installer is pip or pipx, not 'npm'\n",
    )


def test_the_page_shows_the_action_with_inputs_that_it_has() -> None:
    page = (PROJECT / "docs/ci.md").read_text()
    used = re.findall(r"uses: OWNER/cqnotify/(\S+)@v(\S+)", page)
    assert used
    assert set(used) == {(".github/actions/lab", cqnotify.__version__)}
    inputs = page.partition("## The action")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", inputs, re.M)) == set(ACTION["inputs"])


def test_actions_of_others_are_named_by_commit_and_version() -> None:
    files = [FOLDER / "action.yml", *(PROJECT / ".github/workflows").glob("*.yml")]
    uses = [line for file in files for line in re.findall(r"uses: (.*)", file.read_text())]
    others = [name for name in uses if not name.startswith("./")]
    assert len(others) > 10
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    # The one that publishes is followed on its branch, which keeps up with what PyPI takes.
    assert {name for name in others if not pinned.fullmatch(name)} == {
        "pypa/gh-action-pypi-publish@release/v1"
    }


# ---- the tools of contributors ------------------------------------------------------------


def test_each_tool_of_the_dependency_groups_is_in_the_lock_with_its_sums() -> None:
    groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["dependency-groups"]
    lock = (PROJECT / "tests/lab/lock.txt").read_text()
    entries = re.findall(
        r"^([\w.-]+)==(\S+)(?: ;.*?)? \\\n((?:    --hash=sha256:\S+.*\n)+)", lock, re.M
    )
    assert len(entries) == len(re.findall(r"^\w", lock, re.M))
    locked = {name: version for name, version, _ in entries}
    for group, tools in groups.items():
        assert f"--group {group}" in lock
        for tool in tools:
            name, _, version = tool.partition("==")
            assert locked[name].startswith(version)


def test_the_lab_installs_each_group() -> None:
    text = (PROJECT / "lab").read_text() + (PROJECT / "tests/lab/wheels.py").read_text()
    groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["dependency-groups"]
    installed = re.findall(r'install_group "\S+" (\w+)|"--group", "(\w+)"', text)
    assert {a or b for a, b in installed} == set(groups)
