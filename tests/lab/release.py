# SPDX-License-Identifier: MIT
"""./lab release: everything that must hold for a release, from a clean clone of what is committed.

One step fails, the others go on; each has a log of its own. It takes hours: names of steps do less.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cpython

PROJECT = Path(__file__).resolve().parents[2]
OLDEST = (3, 11)
SUITES = ("bookworm", "trixie")
COUNTED = ("tests/engine", "tests/base")  # whose times may be instructions


def pythons() -> dict[str, str]:
    """The newest patch release of each Python 3 that is found, by "3.11" and so on."""
    names = [f"{folder}/python3.[0-9]*" for folder in os.environ["PATH"].split(os.pathsep)]
    names.append(os.path.expanduser("~/.pyenv/versions/*/bin/python3.[0-9]*"))
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for path in (path for name in names for path in glob.glob(name)):
        if not re.fullmatch(r"python3\.\d+", os.path.basename(path)):
            continue
        said = subprocess.run([path, "-V"], capture_output=True, text=True)
        numbers = re.fullmatch(r"Python (\d+)\.(\d+)\.(\d+)", said.stdout.strip())
        if numbers:
            version = tuple(map(int, numbers.groups()))
            series = f"{version[0]}.{version[1]}"
            if version[:2] >= OLDEST and version > found.get(series, ((0,), ""))[0]:
                found[series] = (version, path)
    return {series: path for series, (_, path) in sorted(found.items(), key=lambda item: item[1])}


def steps() -> dict[str, list[str]]:
    """Each step's name and its command, in a clone of the project."""
    table = {
        "lint": ["./lab", "lint"],
        "analyze": ["./lab", "analyze"],
        "selftest": ["./lab", "selftest", "-q", "-m", ""],
        "docs": ["./lab", "docs"],
        "test": ["./lab", "test", "-q"],
        "microvm": ["./lab", "--vm", "test", "-q"],  # another kernel, if that was a process
        "siw": ["./lab", "--uml", "--device", "siw", "test", "-q"],
        "bench": ["./lab", "bench"],
        "coverage": ["./lab", "test", "--coverage", "-q"],
        "asan": ["./lab", "test", "--asan", "-q"],
        "refleak": ["./lab", "test", "--refleak", "-q"],
        "clock": ["./lab", "test", "-j", "1", "-q", "-m", "clock"],
        "instructions": ["./lab", "--icount", "test", "-q", "-m", "clock", *COUNTED],
        "schedules": [
            *["./lab", "--timeout", "36000", "test", "--asan", "-q", "-m", "soak"],
            "tests/schedules",
        ],
        "soak": ["./lab", "--timeout", "14400", "test", "-q", "-m", "soak"],
    }
    # What is not found here, the lab builds.
    for series, path in {**{name: name for name in cpython.NAMES}, **pythons()}.items():
        table[f"python{series}"] = ["./lab", "--python", path, "test", "-q"]
    for suite in SUITES:
        table[suite] = ["./lab", "--userland", suite, "test", "-q"]
        table[f"newcomer-{suite}"] = ["tests/lab/newcomer.sh", suite]
        table[f"bare-{suite}"] = ["tests/lab/bare.sh", suite]
        table[f"debian-{suite}"] = ["tests/lab/debian.sh", suite]
    bare = [word for suite in (*SUITES, "jammy") for word in ("--bare", suite)]
    table["wheels"] = [sys.executable, "-B", "tests/lab/wheels.py", "build/wheels", *bare]
    table["torch"] = ["tests/lab/torch.sh"]
    table["ray"] = ["tests/lab/ray.sh", "-q"]
    table["rdma-core-39"] = ["tests/lab/older.sh"]
    return table


def run(name: str, command: list[str], clone: Path, logs: Path) -> tuple[bool, float, str]:
    start = time.monotonic()
    with (logs / f"{name}.log").open("w+") as log:
        status = subprocess.call(
            command, cwd=clone, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.seek(0)
        lines = [line.strip(" =\n") for line in log if line.strip(" =\n")]
    said = next(
        (line for line in reversed(lines) if re.search(r"\b(passed|hold|took)\b", line)), ""
    )
    return status == 0, time.monotonic() - start, said


def main() -> int:
    table = steps()
    parser = argparse.ArgumentParser(prog="./lab release", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of: {', '.join(table)}")
    chosen = parser.parse_args().steps or list(table)
    for name in chosen:
        if name not in table:
            parser.error(f"there is no step '{name}'; there are {', '.join(table)}")
    if subprocess.run(["git", "status", "--porcelain"], cwd=PROJECT, capture_output=True).stdout:
        print("lab: what is not committed is not checked", file=sys.stderr)
    logs = PROJECT / "build/release"
    clone = logs / "clone"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", PROJECT, clone], check=True)
    failed = 0
    for name in chosen:
        print(f"{name:18}", end="", flush=True)
        holds, seconds, said = run(name, table[name], clone, logs)
        failed += not holds
        verdict = "holds" if holds else f"FAILS: see {logs.relative_to(PROJECT)}/{name}.log"
        print(f"{seconds / 60:6.1f} min  {verdict}{'  ' if said else ''}{said}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
