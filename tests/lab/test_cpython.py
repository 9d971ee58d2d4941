# SPDX-License-Identifier: MIT
"""Pythons that the lab builds, on a source that takes no time: what is not the published one is not
built, and what failed leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path

import cpython
import pytest

PROJECT = Path(__file__).resolve().parents[2]
CONFIGURE = """#!/bin/sh
echo "altinstall:" >Makefile
printf '\\tmkdir -p %s/bin && echo "%s" >%s/bin/python3.14t\\n' "${2#*=}" "$*" "${2#*=}" >>Makefile
"""


def published(folder: Path, configure: str, *more: str) -> str:
    """The address of a source that consists of one script, and of files that are empty."""
    path = folder / "source.tar.xz"
    files = {"configure": configure, "Makefile": "all:\n", **dict.fromkeys(more, "")}
    with tarfile.open(path, "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"Python-3.14.0/{name}")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return path.as_uri()


def wanted(address: str, monkeypatch: pytest.MonkeyPatch, cache: Path, *flags: str) -> None:
    data = Path(address.removeprefix("file://")).read_bytes()
    source = cpython.Source("3.14.0", "nowhere", hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(cpython.SOURCES, "3.14", source)
    monkeypatch.setattr(sys, "argv", ["cpython.py", str(cache), "3.14t", *flags])


def from_addresses(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(cpython, "addresses", lambda series, source: list(found))


def test_the_second_address_is_asked_where_the_first_fails_and_it_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address, cache = published(tmp_path, CONFIGURE), tmp_path / "cache"
    wanted(address, monkeypatch, cache)
    from_addresses(monkeypatch, "file:///not/there", address)
    assert cpython.main() == 0
    built = cache / "cpython-3.14t/bin/python3.14t"
    assert capsys.readouterr().out == f"{built}\n"
    assert "--disable-gil" in built.read_text()
    from_addresses(monkeypatch)
    assert cpython.main() == 0
    assert [path.name for path in cache.iterdir()] == ["cpython-3.14t"]


def test_with_thread_sanitizer_it_is_in_a_folder_of_its_own_with_what_is_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, cache = published(tmp_path, CONFIGURE, cpython.SUPPRESSIONS), tmp_path / "cache"
    wanted(address, monkeypatch, cache, cpython.THREAD_SANITIZER)
    from_addresses(monkeypatch, address)
    assert cpython.main() == 0
    made = cache / "cpython-3.14t-with-thread-sanitizer"
    assert {path.name for path in made.iterdir()} == {"bin", "suppressions_free_threading.txt"}
    assert "--disable-gil --with-thread-sanitizer --" in (made / "bin/python3.14t").read_text()


def test_a_source_that_is_not_what_was_published_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address, cache = published(tmp_path, CONFIGURE), tmp_path / "cache"
    wanted(address, monkeypatch, cache)
    from_addresses(monkeypatch, published(tmp_path, CONFIGURE + "echo something else\n"))
    assert cpython.main() == 125
    assert "SHA-256 differs" in capsys.readouterr().err
    assert list(cache.iterdir()) == []


def test_a_build_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address, cache = (
        published(tmp_path, "#!/bin/sh\necho no compiler\nexit 1\n"),
        tmp_path / "cache",
    )
    wanted(address, monkeypatch, cache)
    from_addresses(monkeypatch, address)
    assert cpython.main() == 125
    said = capsys.readouterr().err
    assert "no compiler" in said
    assert "configure failed (1)" in said
    assert list(cache.iterdir()) == []


def test_the_lab_and_its_help_know_the_same_pythons() -> None:
    text = (PROJECT / "lab").read_text()
    known = re.search(r"^python_is_built\(\) \{ \[\[ \$python_wanted =~ (\S+) \]\]", text, re.M)
    assert known
    assert [n for n in cpython.NAMES if not re.fullmatch(known[1].replace("\\.", "[.]"), n)] == []
    shown = re.search(r"--python PATH(.*?)--mem", text, re.S)
    assert shown
    assert {name for name in cpython.NAMES if not re.search(rf"\b{name}\b", shown[1])} == set()
