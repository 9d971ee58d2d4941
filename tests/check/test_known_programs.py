# SPDX-License-Identifier: MIT
"""Programs of rdma-core run clean under the command, both ends of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import DEADLINE, until

from cqnotify import Context


def listens(port: int) -> bool:
    """Whether anybody does; a connection to try it would be the one that is served."""
    return f":{port:04X} 00000000:0000 0A " in Path("/proc/net/tcp").read_text() or (
        f":{port:04X} {'0' * 32}:0000 0A " in Path("/proc/net/tcp6").read_text()
    )


def start(report: Path, *command: object) -> subprocess.Popen[str]:
    check = [sys.executable, "-m", "cqnotify", "check", "--json", str(report), "--"]
    return subprocess.Popen([*check, *map(str, command)], stdout=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("service", ["rc", "uc", "ud", "srq"])
def test_a_pingpong_of_rdma_core_is_not_accused(ctx: Context, service: str, tmp_path: Path) -> None:
    port = 18600
    gid = ctx.find_gid().index
    command = (f"ibv_{service}_pingpong", "-e", "-n", 100, "-g", gid, "-d", ctx.name, "-p", port)
    reports = [tmp_path / "server.json", tmp_path / "client.json"]
    with start(reports[0], *command) as server:
        until(lambda: listens(port), "it listens")
        with start(reports[1], *command, "127.0.0.1") as client:
            codes = [end.wait(DEADLINE) for end in (client, server)]
    assert codes == [0, 0]
    for report in reports:
        found: dict[str, Any] = json.loads(report.read_text())
        rules = {f["rule"] for f in found["findings"] if f["severity"] != "information"}
        assert rules == set()
        assert found["counts"]["events"] > 0
