# SPDX-License-Identifier: MIT
"""Logs as the observer writes them, made by hand; and a library that stands in for it."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

LOST = {
    "cq": 1,
    "channel": 1,
    "completions": 200,
    "armed": "before",
    "call": "ibv_get_cq_event",
    "arms": 3,
    "events": 2,
    "polls": 12,
}


def process(pid: int = 77, *command: str, **more: Any) -> dict[str, Any]:
    line = {"kind": "process", "pid": pid, "parent": 1, "time": 1, "libc": "2.36"}
    return {**line, "command": list(command or ["./receiver"]), **more}


def module(base: int, path: object) -> dict[str, Any]:
    return {"kind": "module", "base": hex(base), "path": str(path)}


def place(what: str, *frames: int, tid: int = 77) -> dict[str, Any]:
    return {"what": what, "tid": tid, "frames": [hex(frame) for frame in frames]}


def finding(
    rule: str = "lost-wakeup",
    number: int = 1,
    values: dict[str, Any] | None = None,
    where: list[dict[str, Any]] | None = None,
    tid: int = 77,
) -> dict[str, Any]:
    return {
        "kind": "finding",
        "rule": rule,
        "time": 5,
        "tid": tid,
        "number": number,
        "values": LOST if values is None else values,
        "where": where or [],
    }


def withdrawn(number: int = 1) -> dict[str, Any]:
    return {"kind": "withdrawn", "number": number, "time": 6}


def counts(**values: int) -> dict[str, Any]:
    return {"kind": "counts", "time": 9, **values}


def text(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def write_log(folder: Path, *lines: dict[str, Any], name: str = "77.1.log") -> Path:
    path = folder / name
    path.write_text(text(*lines))
    return path


def program(folder: Path, *lines: dict[str, Any], then: str = "", name: str = "program") -> str:
    """A program that writes such a log, and goes on with some Python."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable} -S\n"
        "import os, signal, sys, time\n"
        "def log(text, name='77.1.log'):\n"
        "    with open(os.environ['CQNOTIFY_CHECK'] + '/' + name, 'a') as file:\n"
        "        file.write(text)\n"
        f"log({text(*lines)!r})\n"
        f"{then}\n"
    )
    path.chmod(0o755)
    return str(path)


@cache
def stand_in() -> str:
    """A library for LD_AUDIT that does nothing."""
    folder = Path(mkdtemp(prefix="cqnotify-test-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "observer.c").write_text("unsigned la_version(unsigned v) { return v; }\n")
    compile_c(folder / "observer.c", folder / "observer.so", "-shared", "-fPIC")
    return str(folder / "observer.so")


def compile_c(source: Path, target: Path, *options: str) -> Path:
    subprocess.run(["gcc", *options, "-o", str(target), str(source)], check=True)
    return target


MAIN = """\
import sys
from cqnotify.check import running
from cqnotify.cli import main
running.find_observer = lambda: {library!r}
sys.exit(main(sys.argv[1:]))
"""


def check_command(*arguments: object) -> list[str]:
    """`cqnotify check` as a process, with the library that does nothing."""
    code = MAIN.format(library=stand_in())
    return [sys.executable, "-c", code, "check", *map(str, arguments)]
