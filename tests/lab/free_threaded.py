# SPDX-License-Identifier: MIT
"""A free-threaded CPython: Debian's own source of it, configured with --disable-gil.

Debian hands out none ready-made. It is fetched and built once, below the cache folder, and prints
where it is. Its patches are left out: they move the places of packages, which are right as they are
for a Python that is not the system's.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import kernel
from kernel import LabError, note, run

SUITE, SOURCE = "trixie", "python3.13"


def fetch(cache: Path, folder: Path) -> Path:
    """The unpacked source."""
    config = kernel.private_apt(cache, SUITE, "deb-src")
    run("apt-get", "update", apt_config=config)
    run("apt-get", "source", "--download-only", SOURCE, cwd=folder, apt_config=config)
    description = next(folder.glob("*.dsc"))
    tree = folder / "source"
    run("dpkg-source", "--skip-patches", "-x", description, tree)
    return tree


def build(cache: Path, target: Path, sanitizer: str) -> None:
    folder = cache / "apt" / "source"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        tree = fetch(cache, folder)
        flags = ["--disable-gil", f"--prefix={target}"]
        flags += [f"--with-{sanitizer}-sanitizer"] if sanitizer else []
        run("./configure", "-q", *flags, cwd=tree)
        run("make", "-s", f"-j{os.cpu_count()}", cwd=tree)
        run("make", "-s", "altinstall", cwd=tree)
    except LabError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(cache / "apt")


def main() -> int:
    cache, sanitizer = Path(sys.argv[1]), "".join(sys.argv[2:])
    target = cache / f"free-threaded{'-' if sanitizer else ''}{sanitizer}"
    python = target / "bin/python3.13t"
    try:
        if not python.exists():
            note(f"building a free-threaded {SOURCE} (once; some minutes)")
            build(cache, target, sanitizer)
    except LabError as error:
        note(str(error))
        return error.code
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
