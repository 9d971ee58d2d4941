# SPDX-License-Identifier: MIT
"""`cqnotify lab` for the tests of other projects: the example project's, where all is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributions import Distributions, isolated
from lab_runs import CACHE, PATIENCE, PROJECT, built, show

from cqnotify.lab import uml

NOBODY = 65534
pytestmark = built


@dataclass
class User:
    """Somebody with a home, where the package and the example project are installed."""

    home: Path
    uid: int | None  # another one's than ours

    @property
    def project(self) -> Path:
        return self.home / "tally"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """In the project's folder."""
        result = subprocess.run(
            words,
            cwd=self.project,
            env={"HOME": str(self.home), "PATH": f"{self.home}/venv/bin:/usr/bin:/bin"},
            user=self.uid,
            group=self.uid,
            extra_groups=None if self.uid is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        show(result.stdout.encode(), result.stderr.encode())
        return result


def python_for(uid: int | None) -> str:
    """A Python of our version that this user can start."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/python{wanted}"):
        check = [python, "-c", "import ensurepip, venv"]
        try:
            if subprocess.run(check, user=uid, cwd="/", capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip(f"no Python {wanted} here that user {uid} can start")


@pytest.fixture(scope="module", params=[None, NOBODY], ids=["me", "without_privileges"])
def user(request: pytest.FixtureRequest, made: Distributions) -> Iterator[User]:
    if request.param and os.geteuid() != 0:
        pytest.skip("we have no privileges, either")
    python = python_for(request.param)
    with tempfile.TemporaryDirectory(prefix="lab-user-") as name:  # pytest's own are for us alone
        user = User(Path(name), request.param)
        user.home.chmod(0o755)
        shutil.copytree(PROJECT / "examples/tally", user.project)
        image = uml.image(CACHE, uml.present(CACHE)[-1])
        kernels = user.home / ".cache/cqnotify-lab/uml" / image.parent.name
        kernels.mkdir(parents=True)
        shutil.copy(image, kernels)
        subprocess.run([python, "-m", "venv", user.home / "venv"], check=True)
        install = [user.home / "venv/bin/pip", "install", "-q", made.wheel, f"{user.project}[test]"]
        subprocess.run(install, check=True, env=isolated())
        if user.uid:
            for path in (user.home, *user.home.rglob("*")):
                os.chown(path, user.uid, user.uid, follow_symlinks=False)
        yield user


def test_the_projects_tests_run_on_devices(user: User) -> None:
    result = user.run("cqnotify", "lab", "run", "--", "pytest", "-q", "--junitxml=report.xml")
    assert result.returncode == 0
    assert "4 passed" in result.stdout
    assert "skipped" not in result.stdout
    assert ", as a process of this machine" in result.stderr
    report = (user.project / "report.xml").stat()  # what is written there comes back
    assert report.st_uid == (user.uid or os.geteuid())


def test_a_test_that_fails_does_so_on_a_real_device(user: User) -> None:
    test = "def test(rdma_device):\n    assert rdma_device.name == 'mlx5_0'\n"
    (user.project / "test_fails.py").write_text(test)
    result = user.run("cqnotify", "lab", "run", "--", "pytest", "-q", "test_fails.py")
    assert result.returncode == 1
    assert "assert 'rxe0' == 'mlx5_0'" in result.stdout


def test_nothing_is_written_elsewhere(user: User, tmp_path: Path) -> None:
    script = "echo forgotten >../here; echo kept >kept; echo kept >~/shared/kept"
    (user.home / "shared").mkdir()
    os.chown(user.home / "shared", user.uid or -1, -1)
    lab = ["cqnotify", "lab", "run", "--writable", str(user.home / "shared"), "sh", "-c", script]
    assert user.run(*lab).returncode == 0
    assert not (user.home / "here").exists()
    assert (user.project / "kept").read_text() == "kept\n"
    assert (user.home / "shared/kept").read_text() == "kept\n"


def test_hosts_need_no_checkout(user: User) -> None:
    test = (
        "def test(hosts):\n"
        "    assert [host.run('hostname').stdout for host in hosts] == ['host1\\n', 'host2\\n']\n"
    )
    (user.project / "test_hosts.py").write_text(test)
    result = user.run("pytest", "-q", "test_hosts.py")
    assert result.returncode == 0
    assert "1 passed" in result.stdout
