# SPDX-License-Identifier: MIT
"""The parts in C: the floors, the peers and the stand-in library, built into build/benchmarks."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "c"
BUILD = SOURCES.parents[1] / "build" / "benchmarks"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
SHARED = ("bench", "end")  # linked into all programs
STAND_IN = BUILD / "stand_in.so"
STAND_IN_AS_LIBRARY = BUILD / "stand_in" / "libibverbs.so.1"
"""The same by the library's name, for a subject that looks for functions in the library alone."""


def build() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    inputs = [*SOURCES.glob("*.[ch]"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in inputs)
    for source in sorted(SOURCES.glob("*.c")):
        target = BUILD / source.with_suffix(".so" if source.stem == STAND_IN.stem else "").name
        old = not target.exists() or target.stat().st_mtime < newest
        if source.stem not in SHARED and old:
            compile_c(source, target)
    STAND_IN_AS_LIBRARY.parent.mkdir(exist_ok=True)
    if not STAND_IN_AS_LIBRARY.is_symlink():
        STAND_IN_AS_LIBRARY.symlink_to(STAND_IN)


def compile_c(source: Path, target: Path) -> None:
    """Compile a program, together with the shared sources, or a library."""
    if target.suffix == ".so":
        end = ["-shared", "-fPIC", str(source)]
    else:
        end = [
            str(source),
            *(str(SOURCES / f"{name}.c") for name in SHARED),
            "-libverbs",
            "-lrdmacm",
        ]
    subprocess.run(["gcc", *FLAGS, "-o", str(target), *end], check=True)
