# SPDX-License-Identifier: MIT
"""What the tests of the commands share."""

from __future__ import annotations

import io
import os
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest
from cli_support import command, started
from support import DEADLINE, until

from cqnotify.cli import main
from cqnotify.cli.pingpong._end import Plan
from cqnotify.cli.pingpong._report import Report

in_lab = pytest.mark.skipif(
    os.environ.get("CQNOTIFY_LAB") not in ("vm", "native"), reason="needs the lab's two devices"
)
Capture = pytest.CaptureFixture[str]


def plan(**options: Any) -> Plan:
    defaults: dict[str, Any] = {
        **{"service": "rc", "host": None, "port": 0, "bind": "127.0.0.1", "device": None},
        **{
            "port_num": 1,
            "gid_index": None,
            "size": 64,
            "path_mtu": 1024,
            "rx_depth": 8,
            "iters": 10,
        },
        **{"sl": 0, "num_qp": 1, "events": True, "check": True, "timeout": DEADLINE},
    }
    return Plan(**{**defaults, **options})


def usage_of(capsys: Capture, *args: str) -> str:
    """What is said of wrong usage."""
    try:
        code: Any = main(args)
    except SystemExit as e:
        code = e.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return str(err)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


# ---- watch ----------------------------------------------------------------------------------


def watching(*args: object, **options: Any) -> Any:
    return started(command("watch", *args), **options)


def asleep(process: subprocess.Popen[str]) -> None:
    """Returns when it watches and sleeps."""
    assert process.stderr is not None
    assert process.stderr.readline().startswith("cqnotify: watching ")
    until(lambda: state_of(process) == "S", "it sleeps")


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[0]


# ---- figures --------------------------------------------------------------------------------


def report(latencies: list[int], **options: Any) -> Report:
    return Report(
        plan=plan(**{"iters": len(latencies), **options}),
        device="rxe0",
        gid_index=0,
        local=[],
        remote=[],
        nanoseconds=10**9,
        latencies=array("q", latencies),
        events=2 * len(latencies),
        wakeups=len(latencies),
        spurious=0,
        checked=None,
    )
