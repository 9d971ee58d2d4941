# SPDX-License-Identifier: MIT
"""The command line as a user runs it: commands as processes, and what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[int, str, str]  # an exit code, stdout, stderr
LIMIT = 150.0  # seconds for a command that does some work in an emulated machine


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "cqnotify", *map(str, args)]


def cqnotify(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=LIMIT, **options)


@contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in the background, gone at the end."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(argv, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def server(*args: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A ping-pong server of ours that listens, and its TCP port."""
    with started(command("pingpong", "--port", 0, *args)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(
            r"cqnotify: listening on 127\.0\.0\.1 port (\d+), for \S+ s at most "
            r"\(--timeout; Ctrl-C ends it\)\n",
            line,
        )
        assert found, line
        yield process, int(found[1])


def outcome(process: subprocess.Popen[str]) -> Outcome:
    """What it has ended with, and said from now on."""
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def figures(code: int, out: str, err: str) -> dict[str, Any]:
    """The figures of a ping-pong that went well."""
    assert (code, err) == (0, ""), err
    found: dict[str, Any] = json.loads(out)
    return found
