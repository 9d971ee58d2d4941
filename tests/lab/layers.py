# SPDX-License-Identifier: MIT
"""The layers of csrc/: which file uses which, by the object files' symbols and by the includes.

Run as a program it prints what points upward or in a circle, and fails if anything does. With
--single it prints what a file exports for one other file of its folder, or for none: it could keep
that to itself if the two were one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# From the lowest to the highest. A file that is in none of them, module.c, is above all.
FOLDERS = ("base", "work", "notify", "await", "verbs", "cm", "memory", "messages")
# A library of its own, which shares nothing with the core.
OTHER = "check"
# Its sources are built for tests only, and use what they like; the core uses none of them. But all
# may include its header, which is empty in an ordinary build.
FAULTS = "faults"
FAULTS_HEADER = "faults/faults.h"

INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)

# By file, by the file that it uses: the names of what it uses.
Arrows = dict[str, dict[str, set[str]]]


def height(file: str) -> int:
    folder = file.rpartition("/")[0]
    if folder == FAULTS:
        return len(FOLDERS) + 1
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


def compile_all(csrc: Path, out: Path) -> dict[str, Path]:
    """The object file of each source; without optimization, which could drop a call."""
    sources = sorted(path for path in csrc.rglob("*.c") if path.parent.name != OTHER)
    objects = {str(source.relative_to(csrc)): out / f"{i}.o" for i, source in enumerate(sources)}
    command = ["gcc", "-std=c11", "-O0", "-c", f"-I{csrc}", f"-I{sysconfig.get_path('include')}"]

    def compile_one(name: str) -> None:
        flags = ["-DCQN_FAULTS"] if height(name) > len(FOLDERS) else []
        subprocess.run([*command, *flags, csrc / name, "-o", objects[name]], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, objects))
    return objects


def symbols(obj: Path) -> tuple[set[str], set[str]]:
    """What an object file defines for others, and what it asks of them."""
    listed = subprocess.run(["nm", obj], check=True, capture_output=True, text=True).stdout
    pairs = [line.split()[-2:] for line in listed.splitlines()]
    asked = {name for kind, name in pairs if kind == "U"}
    return {name for kind, name in pairs if kind.isupper() and kind != "U"}, asked


def arrows_by_symbols(objects: dict[str, Path]) -> Arrows:
    both = {name: symbols(obj) for name, obj in objects.items()}
    home = {symbol: name for name, (defined, _) in both.items() for symbol in defined}
    arrows: Arrows = {name: {} for name in both}
    for name, (_, asked) in both.items():
        for symbol in asked & home.keys():
            arrows[name].setdefault(home[symbol], set()).add(symbol)
    return arrows


def arrows_by_includes(csrc: Path) -> Arrows:
    return {
        str(path.relative_to(csrc)): {
            name: {"#include"} for name in INCLUDE.findall(path.read_text())
        }
        for path in sorted(csrc.rglob("*.[ch]"))
        if path.parent.name != OTHER
    }


def upward(arrows: Arrows) -> Iterator[str]:
    for file, used in arrows.items():
        for other, names in used.items():
            if height(other) > height(file) and other != FAULTS_HEADER:
                yield f"{file} points up to {other}: {', '.join(sorted(names))}"


def circle_from(start: str, arrows: Arrows, inside: set[str]) -> list[str] | None:
    """A way from a file back to it, through files of one folder."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        for other in sorted(arrows[way[-1]]):
            if other == start:
                return [*way, start]
            if other in inside and other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return None


def circles(arrows: Arrows) -> Iterator[str]:
    for folder in (*FOLDERS, FAULTS):
        inside = {file for file in arrows if file.rpartition("/")[0] == folder}
        for file in sorted(inside):
            way = circle_from(file, arrows, inside)
            if way is not None:
                yield f"a circle: {' -> '.join(way)}"
                break


def faults(csrc: Path) -> list[str]:
    """What is wrong with the layers, a line each."""
    with tempfile.TemporaryDirectory() as out:
        by_symbols = arrows_by_symbols(compile_all(csrc, Path(out)))
    by_includes = arrows_by_includes(csrc)
    return [*upward(by_symbols), *circles(by_symbols), *upward(by_includes)]


def single(objects: dict[str, Path]) -> Iterator[str]:
    """What a file exports although at most one other file uses it, of the same folder."""
    both = {name: symbols(obj) for name, obj in objects.items()}
    for home, (defined, _) in both.items():
        folder = home.rpartition("/")[0]
        for name in sorted(defined) if folder not in ("", FAULTS) else ():
            users = [file for file, (_, asked) in both.items() if name in asked]
            if not users:
                yield f"{home} exports {name} for no other file"
            elif len(users) == 1 and users[0].rpartition("/")[0] == folder:
                yield f"{home} exports {name} for {users[0]}"


def print_single(csrc: Path) -> None:
    with tempfile.TemporaryDirectory() as out:
        found = list(single(compile_all(csrc, Path(out))))
    print(*found, f"{len(found)} in all", sep="\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--single"]:
        print_single(CSRC)
    else:
        sys.exit("\n".join(faults(CSRC)) or None)
