# SPDX-License-Identifier: MIT
"""Debian's packages, fetched and read without apt and dpkg: see debian.py."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import lzma
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cqnotify.lab import debian, kernel
from cqnotify.lab.base import LabError

VERSION = "6.1.0-99-amd64"


def package(files: dict[str, bytes], damage: int = 0) -> bytes:
    """A .deb; `damage`: so many bytes are missing of its data."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    out = b"!<arch>\n"
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    for name, content in parts.items():
        out += b"%-16s%-12d%-6d%-6d%-8o%-10d`\n" % (name.encode(), 0, 0, 0, 0o100644, len(content))
        out += content + b"\n" * (len(content) % 2)
    return out[: len(out) - damage]


class Mirror:
    """One that serves a folder, and can say in its lists what is not true."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lists: dict[str, str] = {}
        for suite in ("debian/dists/bookworm", "debian-security/dists/bookworm-security"):
            self.publish(suite, "")

    def put(self, name: str, data: bytes) -> str:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def publish(self, suite: str, packages: str) -> None:
        name = "main/binary-amd64/Packages.xz"
        data = lzma.compress(packages.encode())
        digest = self.put(f"{suite}/{name}", data)
        self.put(f"{suite}/InRelease", f"SHA256:\n {digest}  {len(data)} {name}\n".encode())

    def add(self, place: str, version: str, data: bytes) -> None:
        """A kernel of some version, and the empty package that depends on it."""
        image = f"linux-image-{version}-amd64"
        digest = self.put(f"{place}/pool/{image}.deb", data)
        entries = (
            f"Package: linux-image-amd64\nVersion: {version}\nDepends: {image} (= {version})\n"
            f"Filename: pool/meta.deb\nSHA256: {'0' * 64}\n\n"
            f"Package: {image}\nVersion: {version}\n"
            f"Filename: pool/{image}.deb\nSHA256: {digest}\n\n"
        )
        suite = "bookworm-security" if place == "debian-security" else "bookworm"
        self.publish(f"{place}/dists/{suite}", entries)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """On a machine that has no apt."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Handler, directory=tmp_path / "mirror")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/debian"
        monkeypatch.setenv("CQNOTIFY_LAB_MIRROR", address)
        monkeypatch.setattr(debian, "MIRROR", address)
        monkeypatch.setattr(debian, "KEYRING", tmp_path / "none")
        yield Mirror(tmp_path / "mirror")
        server.shutdown()
        thread.join()


def fetch(folder: Path) -> Path:
    return debian.fetch(folder, "bookworm", "linux-image-amd64")


def test_the_newest_is_fetched_be_it_a_security_update(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.add("debian", "6.1.99", b"older")
    mirror.add("debian-security", "6.1.100", b"newer")
    assert fetch(tmp_path).read_bytes() == b"newer"
    assert "neither https nor Debian's keys" in capsys.readouterr().err


def test_what_is_not_what_was_published_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    mirror.add("debian", "6.1.99", b"published")
    mirror.put("debian/pool/linux-image-6.1.99-amd64.deb", b"forged")
    with pytest.raises(LabError, match="not the file that was published"):
        fetch(tmp_path)
    mirror.put("debian/dists/bookworm/main/binary-amd64/Packages.xz", lzma.compress(b"forged"))
    with pytest.raises(LabError, match="not the file that was published"):
        fetch(tmp_path)


def test_what_is_not_there_is_said(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="bookworm has no package linux-image-amd64"):
        fetch(tmp_path)
    with pytest.raises(LabError, match=r"cannot fetch .*/sid/InRelease: HTTP Error 404"):
        debian.fetch(tmp_path, "sid", "linux-image-amd64")


# ---- what is in a package ----------------------------------------------------------------


def test_the_files_of_a_package_are_read(tmp_path: Path) -> None:
    files = {"etc/a": b"1", "usr/lib/b": b"x" * 100_000}
    (tmp_path / "a.deb").write_bytes(package(files))
    assert {name: data.read() for name, data in debian.contents(tmp_path / "a.deb")} == files


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"!<arch>\n", package({"a": b"1" * 1000}, damage=40)]
)
def test_what_is_no_package_or_damaged_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.deb").write_bytes(data)
    with pytest.raises(LabError, match="not a Debian package"):
        for _, content in debian.contents(tmp_path / "a.deb"):
            content.read()


def test_a_package_cannot_write_elsewhere(tmp_path: Path) -> None:
    files = {"boot/vmlinuz-1": b"", "lib/modules/../../../../escaped": b"", "etc/passwd": b""}
    (tmp_path / "a.deb").write_bytes(package(files))
    with pytest.raises(LabError):
        kernel.unpack(tmp_path / "in/cache", tmp_path / "a.deb")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a.deb"}
