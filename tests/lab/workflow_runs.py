# SPDX-License-Identifier: MIT
"""The scripts of workflows and actions, run on this machine as on a runner."""

from __future__ import annotations

import subprocess
from pathlib import Path

from distributions import isolated
from lab_runs import PATIENCE, show


class Runner:
    """A home and a PATH, where `sudo` runs its command, and `apt-get` only notes its arguments."""

    def __init__(self, home: Path, *folders: Path) -> None:
        self.home = home
        self.tools = home / "tools"
        self.tools.mkdir()
        self.program("apt-get", 'echo "$*" >>~/apt')
        self.program("sudo", '"$@"')
        system = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
        self.path = ":".join(map(str, (self.tools, *folders, *system)))

    def program(self, name: str, script: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def bash(self, script: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a script; pip finds what it needs without a network."""
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=cwd,
            env={
                **{name: value for name, value in isolated().items() if name.startswith("PIP_")},
                "HOME": str(self.home),
                "PATH": self.path,
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        show(done.stdout.encode(), done.stderr.encode())
        return done

    def packages(self) -> set[str]:
        """The packages that apt-get was to install."""
        calls = (self.home / "apt").read_text().splitlines()
        words = {word for line in calls if " install " in line for word in line.split()}
        return {word for word in words if not word.startswith("-")} - {"install"}
