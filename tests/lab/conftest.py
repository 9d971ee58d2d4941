# SPDX-License-Identifier: MIT
"""What the lab's own tests have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from again import pytest_configure as pytest_configure
from again import pytest_runtest_protocol as pytest_runtest_protocol
from again import pytest_terminal_summary as pytest_terminal_summary
from distributions import Distributions, build, build_kernel_wheel, isolated
from lab_runs import CACHE, ENGINES, LAB, PROJECT, lab


@pytest.fixture(scope="session")
def all_is_set_up() -> None:
    subprocess.run([LAB, "--vm", "build"], check=True, cwd=PROJECT)
    assert lab("--vm", "run", "true").returncode == 0  # KVM has been tried after this


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The option for each of them."""
    return str(request.param)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Distributions:
    folder = pytestconfig.getoption("--distributions")
    return Distributions.of(Path(folder)) if folder else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def kernel_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of cqnotify-lab; for tests that are run where a kernel has been built."""
    return build_kernel_wheel(tmp_path_factory.mktemp("kernel"), CACHE)


@pytest.fixture(scope="session")
def lab_python(
    made: Distributions, kernel_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A Python with `cqnotify[lab]`, whose two wheels pip finds by itself."""
    venv = tmp_path_factory.mktemp("lab")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    places = [f"--find-links={wheel.parent}" for wheel in (made.wheel, kernel_wheel)]
    pip = [venv / "bin/python", "-m", "pip", "install", "-q", *places, "cqnotify[lab]"]
    subprocess.run(pip, check=True, env=isolated())
    return venv / "bin/python"


@pytest.fixture
def folder() -> Iterator[Path]:
    path = PROJECT / f".lab-selftest-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


# In the background of a script, or under nohup, these are ignored, and the lab would inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--distributions",
        metavar="FOLDER",
        help="test the source distribution and the wheel that are there, instead of new ones",
    )
