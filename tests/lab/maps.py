# SPDX-License-Identifier: MIT
"""The maps of csrc/: the main header of each folder begins with one line for each of its files; the
__init__.py of some packages likewise. And docs/internals.md names files and functions that exist.

Run as a program it prints where a map differs from its folder, and which names of the page are
gone; it fails if there is anything. With --print it prints the maps.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from layers import CSRC

# By folder: the header that has its map.
MAIN = {
    "base": "base.h",
    "work": "wr.h",
    "notify": "cq.h",
    "await": "await.h",
    "verbs": "verbs.h",
    "cm": "cm.h",
    "memory": "registered.h",
    "messages": "messages.h",
    "check": "check.h",
    "faults": "faults.h",
}

# clang-format leaves such a line alone, see CommentPragmas in .clang-format.
ENTRY = re.compile(r"^ \*   (\w+\.[ch]) {2,}\S", re.M)
WIDTH = 100

PACKAGES = ("aio", "cm", "exchange", "messages")
MODULE = re.compile(r"^(?:#   |    )(\w+\.py) {2,}\S", re.M)

PAGE = CSRC.parent / "docs/internals.md"
LINK = re.compile(r"\]\([^)]*\)")
FILE = re.compile(r"(?<![/\w])\w+\.[ch]\b")
PYTHON = re.compile(r"(?<![/\w])_\w+\.py\b")
FUNCTION = re.compile(r"`(\w+)\(\)`(?:,| \()\s*(\w+\.[ch])\b")  # and the file that it is in


def head(header: Path) -> str:
    """The comment that a header begins with, behind that of its licence."""
    return header.read_text().partition("*/")[2].partition("*/")[0] if header.exists() else ""


def faults_of(folder: Path, header: Path) -> Iterator[str]:
    text = head(header)
    named = Counter(ENTRY.findall(text))
    there = {path.name for path in folder.glob("*.[ch]")}
    for name in sorted(there):
        if name.endswith(".c") and not named[name]:
            yield f"{header.name}: the map of {folder.name}/ has no line for {name}"
    for name, times in sorted(named.items()):
        if name not in there:
            yield f"{header.name}: the map of {folder.name}/ has {name}, which is gone"
        if times > 1:
            yield f"{header.name}: the map of {folder.name}/ has {times} lines for {name}"
    for line in text.splitlines():
        if ENTRY.match(line) and len(line) > WIDTH:
            yield f"{header.name}: this line of the map is longer than {WIDTH} characters: {line}"


def faults(csrc: Path) -> list[str]:
    """Where maps differ from their folders, a line each."""
    folders = sorted(path for path in csrc.iterdir() if path.is_dir())
    without = [
        f"{path.name}/ has no main header in MAIN" for path in folders if path.name not in MAIN
    ]
    known = [path for path in folders if path.name in MAIN]
    return [*without, *(line for path in known for line in faults_of(path, path / MAIN[path.name]))]


def faults_of_package(package: Path) -> list[str]:
    """Where the map of a package differs from its modules, a line each."""
    named = Counter(MODULE.findall((package / "__init__.py").read_text()))
    there = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    where = f"{package.name}/__init__.py: the map"
    return [
        *(f"{where} has no line for {name}" for name in sorted(there - named.keys())),
        *(f"{where} has {name}, which is gone" for name in sorted(named.keys() - there)),
        *(f"{where} has {n} lines for {name}" for name, n in sorted(named.items()) if n > 1),
    ]


def gone_modules(page: Path, cqnotify: Path) -> list[str]:
    """What a page names that is no module of the package."""
    there = {path.name for path in cqnotify.rglob("*.py")}
    named = set(PYTHON.findall(LINK.sub("]", page.read_text())))
    return [f"{page.name} names {name}, which is gone" for name in sorted(named - there)]


def gone_from(page: Path, folders: list[Path]) -> Iterator[str]:
    """What a page names that is in none of the folders' C files."""
    prose = LINK.sub("]", page.read_text())
    texts: dict[str, str] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.[ch]"))):
        texts[path.name] = texts.get(path.name, "") + path.read_text()
    for name in sorted(set(FILE.findall(prose)) - texts.keys()):
        yield f"{page.name} names {name}, which is gone"
    for function, name in FUNCTION.findall(prose):
        if name in texts and not re.search(rf"\b{function}\(", texts[name]):
            yield f"{page.name} names {function}(), which is not in {name}"


def print_maps(csrc: Path) -> None:
    for folder, header in MAIN.items():
        print(f"{folder}/, by {header}")
        lines = head(csrc / folder / header).splitlines()
        print(*(line.removeprefix(" *") for line in lines if ENTRY.match(line)), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print_maps(CSRC)
    else:
        cqnotify = CSRC.parent / "cqnotify"
        gone = [*gone_from(PAGE, [CSRC, cqnotify / "lab"]), *gone_modules(PAGE, cqnotify)]
        modules = [line for name in PACKAGES for line in faults_of_package(cqnotify / name)]
        sys.exit("\n".join([*faults(CSRC), *modules, *gone]) or None)
