# SPDX-License-Identifier: MIT
"""The base of the lab's modules: its errors, its notes, its lock, commands of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What users call: the project's own front, or that of the installed package.
FRONT = "./lab" if (HERE.parents[1] / "lab").is_file() else "cqnotify lab"


class LabError(Exception):
    """One line for the user; the lab ends with `code`."""

    def __init__(self, message: str, code: int = 125) -> None:
        super().__init__(message)
        self.code = code


def note(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr, flush=True)


def current_folder() -> str:
    """Return the folder in which commands run."""
    try:
        return os.getcwd()
    except OSError as error:
        raise LabError(
            f"the current folder is not there any more ({error.strerror}): change to another"
        ) from None


def version_key(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Set-up is done by one lab at a time; ./lab takes the same lock."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command of the set-up, and returns what it prints; `env` is added to ours."""
    try:
        result = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise LabError(f"{command[0]} is missing here") from None
    if result.returncode != 0:
        for line in result.stdout.splitlines()[-10:]:
            print(f"    {line}", file=sys.stderr)
        raise LabError(f"{Path(str(command[0])).name} failed ({result.returncode})")
    return result.stdout
