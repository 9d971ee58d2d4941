# SPDX-License-Identifier: MIT
"""Debian's packages: fetched from its mirror, and read. Nothing is installed.

Where apt and the archive's keys are here, apt fetches a package, with a configuration and a state
of its own, and checks the archive's signature. Elsewhere Python does, by https: the release's
SHA-256 sums are those of the mirror then.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from .base import LabError, note, run, version_key

MIRROR = os.environ.get("CQNOTIFY_LAB_MIRROR", "http://deb.debian.org/debian")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SECONDS = 60  # without a byte from the mirror
CHUNK = 1 << 20


def fetch(folder: Path, suite: str, name: str) -> Path:
    """Fetches the newest package of this name into the folder. `name` may be that of a package
    whose one purpose is to depend on the right one; then it is that."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("apt-get") and KEYRING.exists():
        return fetch_by_apt(folder, suite, name)
    return fetch_by_https(folder, suite, name)


def security(suite: str) -> str:
    """The mirror of the suite's security updates."""
    return MIRROR.rstrip("/") + "-security"


# ---- by apt ------------------------------------------------------------------------------


def fetch_by_apt(folder: Path, suite: str, name: str) -> Path:
    config = {"APT_CONFIG": str(private_apt(folder / "apt", suite))}
    run("apt-get", "update", env=config)
    depends = run("apt-cache", "depends", name, env=config)
    run("apt-get", "download", real_name(name, depends), cwd=folder, env=config)
    return next(folder.glob("*.deb"))


def private_apt(base: Path, suite: str) -> Path:
    """An apt configuration that reads and writes nothing of the system's but its proxy."""
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    sources = f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n"
    if "-" not in suite:
        sources += f"deb [signed-by={KEYRING}] {security(suite)} {suite}-security main\n"
    (base / "etc/sources.list").write_text(sources)
    acquire = [line for line in run("apt-config", "dump").splitlines() if "Acquire::" in line[:9]]
    settings = {
        "Dir::Etc": base / "etc",
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::State": base / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": base / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    config = base / "apt.conf"
    config.write_text("\n".join(acquire + [f'{k} "{v}";' for k, v in settings.items()]) + "\n")
    return config


def real_name(name: str, depends: str) -> str:
    """linux-image-amd64 is empty, and depends on the image."""
    images = re.findall(r"Depends: (linux-image-[^\s(]+)", depends)
    if name.startswith("linux-image-") and not images:
        raise LabError(f"there is no package {name}")
    return images[-1] if images else name


# ---- by https ----------------------------------------------------------------------------


class Entry(NamedTuple):
    """A package in the list of packages."""

    mirror: str
    version: str
    file: str
    sha256: str
    depends: str


def fetch_by_https(folder: Path, suite: str, name: str) -> Path:
    places = [(MIRROR, suite)]
    if "-" not in suite:
        places.append((security(suite), f"{suite}-security"))
    if "CQNOTIFY_LAB_MIRROR" not in os.environ:
        places = [(mirror.replace("http:", "https:", 1), suite) for mirror, suite in places]
    elif MIRROR.startswith("http:"):
        note(f"nothing vouches for what comes from {MIRROR}: neither https nor Debian's keys")
    entry = newest(places, name)
    if (real := real_name(name, entry.depends)) != name:
        entry = newest(places, real)
    target = folder / entry.file.rpartition("/")[2]
    with target.open("wb") as out:
        download(f"{entry.mirror}/{entry.file}", out, entry.sha256)
    return target


def newest(places: list[tuple[str, str]], name: str) -> Entry:
    found = [entry for mirror, suite in places for entry in entries(mirror, suite, name)]
    if not found:
        raise LabError(f"Debian {places[0][1]} has no package {name}")
    return max(found, key=lambda entry: version_key(entry.version))


def entries(mirror: str, suite: str, name: str) -> Iterator[Entry]:
    """The packages of this name in a suite's list."""
    release, packages = io.BytesIO(), io.BytesIO()
    download(f"{mirror}/dists/{suite}/InRelease", release)
    listed = re.search(
        rb"^ ([0-9a-f]{64}) +\d+ (main/binary-amd64/Packages\.xz)$", release.getvalue(), re.M
    )
    if not listed:
        raise LabError(f"{mirror} has no list of the packages of {suite}")
    download(f"{mirror}/dists/{suite}/{listed[2].decode()}", packages, listed[1].decode())
    text = lzma.decompress(packages.getvalue())
    for at in re.finditer(rb"^Package: %s\n" % re.escape(name.encode()), text, re.M):
        entry = text[at.start() : text.find(b"\n\n", at.start())].decode()
        fields = dict(re.findall(r"^([\w-]+): (.*)$", entry, re.M))
        depends = f"Depends: {fields.get('Depends', '')}"
        yield Entry(mirror, fields["Version"], fields["Filename"], fields["SHA256"], depends)


def download(address: str, out: IO[bytes], sha256: str | None = None) -> None:
    import http.client  # which take longer than all else that the lab imports
    import urllib.request

    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as response:
            while data := response.read(CHUNK):
                digest.update(data)
                out.write(data)
    except (OSError, http.client.HTTPException) as error:
        raise LabError(f"cannot fetch {address}: {error}") from None
    if sha256 and digest.hexdigest() != sha256:
        raise LabError(f"{address} is not the file that was published (its SHA-256 differs)")


# ---- what is in a package ----------------------------------------------------------------


class Slice(io.RawIOBase):
    """So many bytes of a file, from where it stands."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.file.read(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


def contents(package: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a package, by name, in their order; each is to be read before the next.

    Raises LabError for what is no package."""
    damage = (tarfile.TarError, lzma.LZMAError, EOFError)
    with contextlib.suppress(*damage), package.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise LabError(f"{package.name} is not a Debian package")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            if name.startswith("data.tar"):
                part = uncompressed(io.BufferedReader(Slice(file, size)), name)
                with tarfile.open(fileobj=part, mode="r|") as tar:
                    for member in tar:
                        if member.isreg() and (data := tar.extractfile(member)):
                            yield os.path.normpath(member.name), data
                return
            file.seek(size + size % 2, os.SEEK_CUR)
    raise LabError(f"{package.name} is damaged, or not a Debian package")


def uncompressed(data: io.BufferedReader, name: str) -> IO[bytes] | gzip.GzipFile:
    match Path(name).suffix:
        case ".xz":
            return lzma.open(data)
        case ".gz":
            return gzip.open(data)
        case ".zst":  # Ubuntu's
            return io.BytesIO(zstd(data.read()))
    return data


def zstd(data: bytes) -> bytes:
    if not shutil.which("zstd"):
        raise LabError("this kernel is packed with zstd; install it with: apt-get install zstd")
    # The payload may be followed by its length, which zstd calls garbage after its work.
    command = ["zstd", "-dcq"]
    return subprocess.run(
        command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout
