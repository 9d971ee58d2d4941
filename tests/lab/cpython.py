# SPDX-License-Identifier: MIT
"""CPythons that this machine may not have, and those without a GIL: "3.14", "3.14t".

The source of one release of each is fetched from a distribution's archive or from python.org. It
must be what was published, and is built once, below the cache folder; prints where the Python is.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

if __name__ == "__main__":  # by any Python, for which no core is built
    bare = ModuleType("cqnotify")
    bare.__path__ = [str(Path(__file__).resolve().parents[2] / "cqnotify")]
    sys.modules["cqnotify"] = bare

from cqnotify.lab.base import LabError, note, run
from cqnotify.lab.debian import MIRROR

UBUNTU = "http://archive.ubuntu.com/ubuntu/pool"


class Source(NamedTuple):
    release: str
    archive: str  # the component of a distribution that keeps this release as long as it lives
    sha256: str


# 3.11 is what Debian 12 has. Of 3.15 mirrors keep the second release candidate, which has the ABI
# and the grammar of the release.
SOURCES = {
    "3.12": Source(
        "3.12.3",
        f"{UBUNTU}/main",
        "56bfef1fdfc1221ce6720e43a661e3eb41785dd914ce99698d8c7896af4bdaa1",
    ),
    "3.13": Source(
        "3.13.5",
        f"{MIRROR}/pool/main",
        "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640",
    ),
    "3.14": Source(
        "3.14.4",
        f"{UBUNTU}/main",
        "d923c51303e38e249136fc1bdf3568d56ecb03214efdef48516176d3d7faaef8",
    ),
    "3.15": Source(
        "3.15.0~rc2",
        f"{UBUNTU}/universe",
        "8d93af5eaaaea5adfd41bd786a7ba3f03f2ad1ab57c6a65e0b963deab91d5ad7",
    ),
}
WITHOUT_GIL = ("3.14t", "3.15t")
NAMES = (*SOURCES, *WITHOUT_GIL)
THREAD_SANITIZER = "--with-thread-sanitizer"
# The reports on CPython itself that it knows of; copied beside the Python.
SUPPRESSIONS = "Tools/tsan/suppressions_free_threading.txt"


def addresses(series: str, source: Source) -> list[str]:
    name = f"python{series}"
    folder = source.release.partition("~")[0]
    release = source.release.replace("~", "")
    return [
        f"{source.archive}/p/{name}/{name}_{source.release}.orig.tar.xz",
        f"https://www.python.org/ftp/python/{folder}/Python-{release}.tar.xz",
    ]


def fetch(series: str, source: Source) -> bytes:
    said = []
    for address in addresses(series, source):
        try:
            with urllib.request.urlopen(address, timeout=60) as response:
                data: bytes = response.read()
        except (OSError, http.client.HTTPException) as error:
            said.append(f"{address}: {error}")
            continue
        if hashlib.sha256(data).hexdigest() == source.sha256:
            return data
        said.append(f"{address}: not the file that was published (its SHA-256 differs)")
    raise LabError(f"no source of CPython {source.release}: {'; '.join(said)}")


def build(folder: Path, name: str, flags: list[str], target: Path) -> None:
    series = name.removesuffix("t")
    if name in WITHOUT_GIL:
        flags = ["--disable-gil", *flags]
    source = SOURCES[series]
    note(f"building CPython {source.release}{name[len(series) :]} (once; some minutes)")
    with tarfile.open(fileobj=io.BytesIO(fetch(series, source))) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not in all 3.11
        tar.extractall(folder)
    (tree,) = folder.iterdir()
    few: list[str] = []
    if THREAD_SANITIZER in flags:  # which is slow: it installs and compiles no more than it needs
        flags = [*flags, "--without-ensurepip", "--disable-test-modules"]
        few = ["COMPILEALL_OPTS=-r 0"]
    run("./configure", "-q", f"--prefix={target}", *flags, cwd=tree)
    run("make", "-s", f"-j{os.cpu_count()}", cwd=tree)
    run("make", "-s", "altinstall", *few, cwd=tree)
    if THREAD_SANITIZER in flags:
        shutil.copy(tree / SUPPRESSIONS, target)


def main() -> int:
    """Arguments: the cache, one of NAMES, and what else configure is told."""
    cache, name, *flags = sys.argv[1:]
    target = Path(cache, "-".join(["cpython", name, *(flag.strip("-") for flag in flags)]))
    python = target / f"bin/python{name}"
    folder = Path(f"{target}.source")
    try:
        if not python.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            build(folder, name, flags, target)
    except LabError as error:
        shutil.rmtree(target, ignore_errors=True)
        note(str(error))
        return error.code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
