# SPDX-License-Identifier: MIT
"""`pytest --rdma-check`: the process of the tests under the observer, and its log.

pytest executes itself again, with the observer: the same process, so nothing else changes. Workers
of pytest-xdist inherit the observer, and each reads its own log.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ._log import Logs, Process
from ._programs import why_not_observed
from ._symbols import Symbols
from .report import Report
from .rules import ERROR, WARNING
from .running import RunError, find_observer, observed_environment
from .text import Writer

__all__ = ["NotObservedError", "Watch", "observe"]

OWNER = "CQNOTIFY_CHECK_OWNER"  # the process that made the folder of the logs, and removes it


class NotObservedError(Exception):
    """The tests cannot be run under the observer."""


def observe(arguments: Sequence[str]) -> Watch:
    """Execute pytest again under the observer, or return the watch if it is there already.

    Args:
        arguments: those of this run of pytest.
    """
    try:
        if find_observer() in os.environ.get("LD_AUDIT", "").split(":"):
            return Watch(os.environ.get("CQNOTIFY_CHECK", ""))
        if list(arguments) != sys.argv[1:]:
            raise NotObservedError("start pytest itself, not a program that calls it")
        folder = tempfile.mkdtemp(prefix="cqnotify-pytest-")
        env = observed_environment(folder)
    except RunError as e:
        raise NotObservedError(str(e)) from None
    env[OWNER] = str(os.getpid())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


class Watch:
    """The log of this process, read after each phase of a test."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._logs = Logs(folder)
        self._symbols = Symbols()
        self._all = Report(symbols=self._symbols)
        self._writer = Writer()
        self._logs.read()
        if not any(process.pid == os.getpid() for process in self._logs.processes):
            why = why_not_observed(sys.executable) or f"it wrote no log to '{folder}'"
            raise NotObservedError(f"the observer is not in this Python: {why}")

    def errors(self) -> str:
        """Return the errors that this process and its children made since the last call."""
        report = Report(symbols=self._symbols)
        for finding in self._logs.read():
            if self._is_ours(finding.process):
                report.take(finding)
                self._all.take(finding)
        return "\n".join(self._writer.finding(group) for group in report.of(ERROR))

    def warnings(self) -> str:
        """Return all warnings so far."""
        return "\n".join(self._writer.finding(group) for group in self._all.of(WARNING))

    def close(self) -> None:
        """Remove the logs, if they were made for this process."""
        if os.environ.get(OWNER) == str(os.getpid()):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ours(self, process: Process) -> bool:
        parents = {other.pid: other.parent for other in self._logs.processes}
        pid, seen = process.pid, set[int]()
        while pid in parents and pid not in seen:
            if pid == os.getpid():
                return True
            seen.add(pid)
            pid = parents[pid]
        return False
