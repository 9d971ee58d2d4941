# SPDX-License-Identifier: MIT
"""The parts in C: the floors, the peers and the fake library, built into build/benchmarks."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "c"
BUILD = SOURCES.parents[1] / "build" / "benchmarks"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
SHARED = ("bench", "end")  # linked into all programs
FAKE_VERBS = BUILD / "fake_verbs.so"
FAKE_VERBS_AS_LIBRARY = BUILD / "fake_verbs" / "libibverbs.so.1"
"""The same by the library's name, for a subject that looks for functions in the library alone."""


def build(*names: str) -> None:
    """Build all of them, or only those."""
    BUILD.mkdir(parents=True, exist_ok=True)
    inputs = [*SOURCES.glob("*.[ch]"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in inputs)
    for source in sorted(SOURCES.glob("*.c")):
        target = BUILD / source.with_suffix(".so" if source.stem == FAKE_VERBS.stem else "").name
        old = not target.exists() or target.stat().st_mtime < newest
        wanted = source.stem in names if names else source.stem not in SHARED
        if wanted and old:
            compile_c(source, target)
    FAKE_VERBS_AS_LIBRARY.parent.mkdir(exist_ok=True)
    if not FAKE_VERBS_AS_LIBRARY.is_symlink():
        FAKE_VERBS_AS_LIBRARY.symlink_to(FAKE_VERBS)


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
