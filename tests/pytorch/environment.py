# SPDX-License-Identifier: MIT
"""Makes a folder with the torch that the tests of cqnotify.torch run with, for PYTHONPATH.

    python tests/pytorch/environment.py FOLDER [--torch REQUIREMENT] [PIP OPTIONS]

pip installs a torch for this Python, without its dependencies, most of which are for CUDA: so it
must be a build for CPUs, which the options of pip say where to find (--index-url, --find-links). If
it is older than 2.15, the Python files of torch.distributed._transport are added as 2.15.0 has
them. They are read out of that wheel where it lies, some 100 KB of its 540 MB.

pytorch's own tests of a transport are in no wheel. Copy test/distributed/transport_test_utils.py of
its repository into FOLDER; without it, test_torch_mixin.py is skipped.
"""

from __future__ import annotations

import argparse
import compileall
import io
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

INTERFACE = "2.15.0"
FILES = "torch/distributed/_transport/"


class Remote(io.RawIOBase):
    """A file behind a URL, of which only the ranges that are read are transferred."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        ranges = {"Range": f"bytes={self._at}-{self._at + length - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self._url, headers=ranges)) as answer:
            if answer.status != 206:
                raise OSError(f"{self._url} cannot be read in parts")
            data: bytes = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def pip(*words: str) -> str:
    """What pip prints."""
    command = [sys.executable, "-m", "pip", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def url_of_wheel(name: str, version: str, options: list[str]) -> str:
    """Where pip would download it from, for this Python. (`--dry-run --report` downloads it.)"""
    printed = pip("index", "versions", "-vv", *options, name)
    found = re.search(rf"Found link (\S+\.whl) .*version: {re.escape(version)}$", printed, re.M)
    if found is None:
        sys.exit(f"pip finds no wheel of {name} {version}: perhaps a constraint excludes it")
    return found[1]


def add_interface(folder: Path, options: list[str]) -> None:
    remote = Remote(url_of_wheel("torch", INTERFACE, options))
    with zipfile.ZipFile(io.BufferedReader(remote, 1 << 17)) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(FILES)])


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", default="torch==2.13.0", metavar="REQUIREMENT")
    known, options = parser.parse_known_args()
    pip(
        "install",
        "--quiet",
        "--no-deps",
        "--upgrade",
        "--target",
        str(known.folder),
        *options,
        known.torch,
    )
    if not (known.folder / FILES).exists():
        add_interface(known.folder, options)
    compileall.compile_dir(known.folder, quiet=2)  # a guest cannot write there


if __name__ == "__main__":
    main()
