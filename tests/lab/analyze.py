# SPDX-License-Identifier: MIT
"""Reports of the static analyzers of gcc and clang on the C of csrc, except those explained.

Each file is analyzed as users get it, csrc/faults as tests get it, with its assertions. Another
release of an analyzer reports other things, so these are Debian 12's. analysis.txt explains.
"""

from __future__ import annotations

import json
import os
import plistlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("analysis.txt")
GCC, CLANG = "gcc-12", "clang-14"


class Key(NamedTuple):
    file: str
    function: str
    checker: str


class Report(NamedTuple):
    key: Key
    line: int
    message: str

    def __str__(self) -> str:
        file, function, checker = self.key
        return f"{file}:{self.line}: {function}(): {self.message} [{checker}]"


def run(*command: str | Path) -> tuple[str, str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed on {command[-1]}:\n{done.stderr or done.stdout}")
    return done.stdout, done.stderr


def flags(source: Path) -> list[str]:
    folder = source.parent.name
    include = sysconfig.get_path("include")
    faults = ["-DCQN_FAULTS"] if folder == "faults" else []
    return ["-std=c11", "-D_GNU_SOURCE", f"-I{PROJECT / 'csrc'}", f"-I{include}", *faults]


def of_project(path: str) -> str:
    full = Path(path).resolve()
    return str(full.relative_to(PROJECT)) if full.is_relative_to(PROJECT) else path


def gcc_reports(source: Path) -> Iterator[Report]:
    _, said = run(
        GCC,
        "-fanalyzer",
        "-fdiagnostics-format=json",
        "-S",
        "-o",
        "/dev/null",
        *flags(source),
        source,
    )
    found: list[dict[str, Any]] = json.loads(said)
    for report in found:
        caret = report["locations"][0]["caret"]
        function = report["path"][-1]["function"] if "path" in report else ""
        checker = report.get("option", "").removeprefix("-W")
        yield Report(
            Key(of_project(caret["file"]), function, checker), caret["line"], report["message"]
        )


def clang_reports(source: Path) -> Iterator[Report]:
    command = [CLANG, "--analyze", "-Xclang", "-analyzer-output=plist", "-o", "-", *flags(source)]
    if b"<gcov.h>" in source.read_bytes():  # which gcc alone has, among headers that clang has, too
        behind, _ = run(GCC, "-print-file-name=include")
        command += ["-idirafter", behind.strip()]
    said, _ = run(*command, source)
    found = plistlib.loads(said.encode())
    for report in found["diagnostics"]:
        place = report["location"]
        key = Key(
            of_project(found["files"][place["file"]]), report["issue_context"], report["check_name"]
        )
        yield Report(key, place["line"], report["description"])


def explained(text: str) -> set[Key]:
    keys = set()
    for line in text.splitlines():
        words = line.split(None, 3)
        if not words or words[0] == "#":
            continue
        if len(words) < 4:
            sys.exit(f"{EXPLAINED.name} wants FILE FUNCTION CHECKER WHY, not {line!r}")
        keys.add(Key(*words[:3]))
    return keys


def problems(found: set[Report], known: set[Key]) -> list[str]:
    """What stands on one side only."""
    new = [str(report) for report in sorted(found) if report.key not in known]
    stale = sorted(known - {report.key for report in found})
    return new + [f"{EXPLAINED.name}: not reported any more: {' '.join(key)}" for key in stale]


def main() -> int:
    """Arguments: the files; without any, all of csrc."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]]
    sources = chosen or sorted((PROJECT / "csrc").rglob("*.c"))
    tasks = [(reports, source) for reports in (clang_reports, gcc_reports) for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        each = list(pool.map(lambda task: list(task[0](task[1])), tasks))
    found = {report for reports in each for report in reports}
    known = explained(EXPLAINED.read_text())
    if chosen:
        known = {key for key in known if PROJECT / key.file in chosen}
    said = problems(found, known)
    print(*said, sep="\n", end="\n" * bool(said))
    if not said:
        print(f"{len(sources)} files hold, with {len(found)} reports that are explained")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
