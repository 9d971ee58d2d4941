# SPDX-License-Identifier: MIT
"""CPythons that no Debian hands out ready-made: those without a GIL.

Debian's own source of a version is fetched and built once, below the cache folder; prints where it
is. Debian's patches are left out: they move the places of packages, which are right as they are for
a Python that is not the system's.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import kernel
from kernel import LabError, note, run

SUITES = {"3.13": "trixie"}


def fetch(cache: Path, version: str, folder: Path) -> Path:
    """The unpacked source."""
    config = kernel.private_apt(cache, SUITES[version], "deb-src")
    run("apt-get", "update", apt_config=config)
    source = ("apt-get", "source", "--download-only", f"python{version}")
    run(*source, cwd=folder, apt_config=config)
    tree = folder / "source"
    run("dpkg-source", "--skip-patches", "-x", next(folder.glob("*.dsc")), tree)
    return tree


def build(cache: Path, version: str, flags: list[str], target: Path) -> None:
    folder = cache / "apt" / "source"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        tree = fetch(cache, version, folder)
        run("./configure", "-q", f"--prefix={target}", *flags, cwd=tree)
        run("make", "-s", f"-j{os.cpu_count()}", cwd=tree)
        run("make", "-s", "altinstall", cwd=tree)
    except LabError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(cache / "apt")


def main() -> int:
    """Arguments: the cache, a version such as 3.13t, and what else configure is told."""
    cache, name, *flags = sys.argv[1:]
    version = name.removesuffix("t")
    target = Path(cache, "-".join(["cpython", name, *(flag.strip("-") for flag in flags)]))
    python = target / f"bin/python{name}"
    try:
        if not python.exists():
            note(f"building CPython {name} (once; some minutes)")
            free = ["--disable-gil"] if name.endswith("t") else []
            build(Path(cache), version, [*free, *flags], target)
    except LabError as error:
        note(str(error))
        return error.code
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
