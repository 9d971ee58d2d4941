# SPDX-License-Identifier: MIT
"""Two programs that talk to each other, each under the command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from support import DEADLINE, until


class End(NamedTuple):
    """What became of one of the programs."""

    code: int
    text: str
    report: dict[str, Any]

    @property
    def accusations(self) -> list[dict[str, Any]]:
        """The findings that are errors or warnings."""
        return [f for f in self.report["findings"] if f["severity"] != "information"]

    @property
    def rules(self) -> set[str]:
        return {finding["rule"] for finding in self.accusations}

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.report["counts"]
        return counts


class Running:
    """A program under the command, whose report is read as it is printed."""

    def __init__(self, report: Path, command: Iterable[object], seen: Callable[[str], None]):
        self.report = report
        self.lines: list[str] = []
        check = [sys.executable, "-m", "cqnotify", "check", "--json", report, "--", *command]
        self.process = subprocess.Popen(
            [str(word) for word in check],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.read, args=(seen,))
        self.reader.start()

    def read(self, seen: Callable[[str], None]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            seen(line)

    def wait(self) -> End:
        self.reader.join()
        code = self.process.wait()
        return End(code, "".join(self.lines), json.loads(self.report.read_text()))

    def close(self) -> None:
        self.process.terminate()
        self.reader.join()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def converse(
    folder: Path,
    server: Iterable[object],
    client: Iterable[object],
    listens: Callable[[], bool],
    end_at: str = "",
) -> tuple[End, End]:
    """Run a server, and a client once the server listens; end both when either reports `end_at`."""
    running: list[Running] = []
    first = threading.Lock()  # a second signal would end the command while it writes its report

    def end() -> None:
        if first.acquire(blocking=False):
            for each in running:
                each.process.terminate()

    def seen(line: str) -> None:
        if end_at and f"[{end_at}]" in line:
            end()

    deadline = threading.Timer(DEADLINE, end)
    deadline.start()
    try:
        running.append(Running(folder / "server.json", server, seen))
        until(listens, "the server listens")
        running.append(Running(folder / "client.json", client, seen))
        ends = [each.wait() for each in running]
    finally:
        deadline.cancel()
        for each in running:
            each.close()
    return ends[0], ends[1]


def listens_by_tcp(port: int) -> bool:
    """Whether anybody does; a connection to try it would be the one that is served."""
    tables = [path.read_text() for path in Path("/proc/net").glob("tcp*")]
    return any(
        f":{port:04X} {'0' * zeros}:0000 0A " in table for table in tables for zeros in (8, 32)
    )


def listens_by_rdma_cm(port: int) -> bool:
    command = ["rdma", "-j", "resource", "show", "cm_id"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ids = json.loads(shown or "[]")
    return any(i["state"] == "LISTEN" and i["src-addr"].endswith(f":{port}") for i in ids)
