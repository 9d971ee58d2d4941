# SPDX-License-Identifier: MIT
"""The lab as its tests run it, from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cqnotify.lab import uml

PROJECT = Path(__file__).resolve().parents[2]
LAB = str(PROJECT / "lab")
PATIENCE = 300  # seconds that only a hang takes
CACHE = Path(
    os.environ.get("CQNOTIFY_LAB_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cqnotify-lab")
)
REFUSAL = uml.refusal(None)
built = pytest.mark.skipif(
    bool(REFUSAL) or not uml.present(CACHE),
    reason=REFUSAL or "no kernel was built here: ./lab kernels build",
)
# Where a kernel is a process, the microVM, which most machines emulate, is for releases.
ENGINES: list[Any] = ["--vm"]
if not REFUSAL and uml.present(CACHE):
    ENGINES = [
        pytest.param("--vm", marks=pytest.mark.release, id="microVM"),
        pytest.param("--uml", id="process"),
    ]


def lab(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    settings: dict[str, object] = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE * 2}
    settings |= options
    if "input" in settings:
        del settings["stdin"]
    try:
        result = subprocess.run([LAB, *words], capture_output=True, **settings)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired as e:
        show(e.stdout, e.stderr)
        raise
    show(result.stdout, result.stderr)
    return result  # type: ignore[no-any-return]


def show(*streams: bytes | None) -> None:
    """For the report of a test that fails: pytest has all of it, and cuts an assertion's bytes."""
    for stream in streams:
        print((stream or b"").decode(errors="replace"), end="")


def shell(script: str, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab(*words, "run", "sh", "-c", script, **options)


@contextlib.contextmanager
def speaking(
    *command: str, said: bytes, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said this line; it is killed at the end."""
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == said
            yield process
        finally:
            process.kill()


def on_signal(number: int, then: str) -> list[str]:
    """A command that says "ready", and does this in Python when the signal has come.

    It is no loop of a shell with a trap: a bash that SIGINT reaches as it begins to wait for a
    child, which is just after the line before, sends itself that signal for ever.
    """
    wait = f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{number:d}}}); print('ready', flush=True)"
    return ["python3", "-c", f"import signal; {wait}; signal.sigwait({{{number:d}}}); {then}"]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)


def of_process(pid: int, file: str) -> str:
    """What the kernel tells of it; nothing when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_text()
    return ""


def name_of(pid: int) -> str:
    return of_process(pid, "comm").strip()


def descendants(pid: int) -> list[int]:
    children = of_process(pid, f"task/{pid}/children").split()
    return [pid for child in children for pid in (int(child), *descendants(int(child)))]


def running(pid: int) -> bool:
    return of_process(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def own_words(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    """What the lab said on stderr, without the line that is always there, the advice for machines
    on which no kernel was built, and the one that other runs on this machine bring."""
    usual = (", emulated", ", KVM", ", as a process", uml.ADVICE, "waiting for another ./lab")
    lines = result.stderr.decode().splitlines()
    return [s for s in lines if s.startswith("lab: ") and not any(word in s for word in usual)]
