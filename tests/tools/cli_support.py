# SPDX-License-Identifier: MIT
"""The command line as a user runs it: commands as processes, and what they say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support import DEADLINE, python, until

from cqnotify.cli import main
from cqnotify.cli.pingpong._end import Plan
from cqnotify.cli.pingpong._report import Report

Capture = pytest.CaptureFixture[str]
Outcome: TypeAlias = tuple[int, str, str]  # an exit code, stdout, stderr
LIMIT = 600.0  # seconds for a command that does some work: only a hang reaches them


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "cqnotify", *map(str, args)]


def cqnotify(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "cqnotify", *map(str, args), **{"timeout": LIMIT, **options})


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
def server(*args: object, name: str = "pingpong") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of ours that listens, and its port."""
    with started(command(name, "--port", 0, *args)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(
            r"cqnotify: listening on (?:127\.0\.0\.1|0\.0\.0\.0|::) port (\d+), for \S+ s at most "
            r"\(--timeout; Ctrl-C ends it\)\n",
            line,
        )
        assert found, line
        yield process, int(found[1])


def both(
    capsys: Capture,
    server_args: list[object],
    client_args: list[object],
    host: str = "127.0.0.1",
    name: str = "pingpong",
) -> tuple[Outcome, Outcome]:
    """The outcomes of a server and a client of ours; the client needs no process of its own."""
    with server(*server_args, name=name) as (process, port):
        capsys.readouterr()
        code = main([name, "-p", str(port), *map(str, client_args), host])
        return outcome(process), (code, *capsys.readouterr())


def counted_yields(monkeypatch: pytest.MonkeyPatch, cpus: int) -> list[None]:
    """This host seems to have so many CPUs; what is returned grows with each call that yields."""
    yields: list[None] = []
    sched_yield = os.sched_yield

    def counted() -> None:
        yields.append(None)
        sched_yield()

    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(os, "sched_yield", counted)
    return yields


def outcome(process: subprocess.Popen[str]) -> Outcome:
    """What it has ended with, and said from now on."""
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def figures(code: int, out: str, err: str) -> dict[str, Any]:
    """The figures of a command that went well."""
    said = re.sub(r"\Acqnotify: waiting for .* to answer, .*\n", "", err)  # as it was slow to come
    assert (code, said) == (0, ""), err
    found: dict[str, Any] = json.loads(out)
    return found


def measured(
    capsys: Capture, name: str, *args: object, host: str = "127.0.0.1"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server and a client have measured."""
    ends = both(capsys, [*args, "--json"], [*args, "--json"], host, name=name)
    ours, theirs = (figures(*end) for end in ends)
    assert (ours["role"], theirs["role"]) == ("server", "client")
    return ours, theirs


@contextmanager
def measuring(
    name: str, *args: object
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """A server and a client that have met, and measure until something ends it."""
    args = ("-D", 600, *args)
    with (
        server(*args, name=name) as (us, port),
        started(command(name, "-p", port, *args, "127.0.0.1")) as client,
    ):
        for process in (us, client):
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.readline()
        yield us, client


in_lab = pytest.mark.skipif(
    os.environ.get("CQNOTIFY_LAB") not in ("vm", "native"), reason="needs the lab's two devices"
)
each_signal = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)


def plan(**options: Any) -> Plan:
    defaults: dict[str, Any] = {
        **{"service": "rc", "host": None, "port": 0, "bind": "127.0.0.1", "device": None},
        **{"port_num": 1, "gid_index": None, "size": 64, "path_mtu": 1024},
        **{"rx_depth": 8, "iters": 10},
        **{"sl": 0, "num_qp": 1, "events": True, "check": True, "timeout": DEADLINE},
    }
    return Plan(**{**defaults, **options})


def refusal(capsys: Capture, code: int, *args: str) -> str:
    """What is said by a command that does nothing else, and exits with this code."""
    try:
        ended: Any = main(args)
    except SystemExit as e:
        ended = e.code
    out, err = capsys.readouterr()
    assert (ended, out) == (code, "")
    return str(err)


def usage_of(capsys: Capture, *args: str) -> str:
    """What is said of wrong usage."""
    return refusal(capsys, 2, *args)


def read_terminal(master: int) -> str:
    """What is shown on a terminal until nobody has its other end, which is then closed here."""
    shown = b""
    with contextlib.suppress(OSError):  # the process has gone, and with it the other end
        while select.select([master], [], [], LIMIT)[0]:
            shown += os.read(master, 65536)
    os.close(master)
    return shown.decode()


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
        path_mtu=1024,
        local=[],
        remote=[],
        nanoseconds=10**9,
        latencies=array("q", latencies),
        events=2 * len(latencies),
        wakeups=len(latencies),
        spurious=0,
        checked=None,
    )
