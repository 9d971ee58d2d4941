# SPDX-License-Identifier: MIT
"""cqnotify-lab, the wheel with the kernel that is a process: packaging/lab. It is made here of the
kernel that was built on this machine."""

from __future__ import annotations

import email.message
import email.parser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributions import KERNEL_WHEEL, build_kernel_wheel, isolated
from lab_runs import CACHE, PATIENCE, PROJECT, built, show

import cqnotify
from cqnotify.lab import backend, uml

LARGEST = 12_000_000  # bytes
COMPILERS = ("cc", "gcc", "ld", "make", "flex", "bison", "qemu-system-x86_64")
pytestmark = built


@pytest.fixture
def contents(kernel_wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(kernel_wheel) as opened:
        yield opened


@pytest.fixture
def metadata(contents: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in contents.namelist() if name.endswith(".dist-info/METADATA"))
    return email.parser.BytesParser().parsebytes(contents.read(name))


def version() -> str:
    """The kernel's."""
    found = uml.choose(CACHE, uml.DEFAULT_SERIES)
    assert found
    return found


def folder() -> str:
    """The kernel's folder in the package."""
    return f"cqnotify_lab/{version()}-{uml.config_key()}"


# ---- what is in it ------------------------------------------------------------------------


def test_it_has_the_kernel_of_the_cache_and_what_must_come_with_it(
    kernel_wheel: Path, contents: zipfile.ZipFile
) -> None:
    info = f"cqnotify_lab-{cqnotify.__version__}.dist-info"
    licenses = {f"{info}/licenses/{n}" for n in ("LICENSE", "COPYING", "GPL-2.0")}
    licenses.add(f"{info}/licenses/Linux-syscall-note")
    package = {f"{folder()}/{n}" for n in ("linux", "config", "SOURCE.md")}
    about = {f"{info}/{n}" for n in ("METADATA", "WHEEL", "RECORD", "sboms/cqnotify-lab.cdx.json")}
    assert set(contents.namelist()) == {"cqnotify_lab/__init__.py"} | package | licenses | about
    image = uml.folder(CACHE) / folder().partition("/")[2] / "linux"
    assert contents.read(f"{folder()}/linux") == image.read_bytes()
    assert contents.getinfo(f"{folder()}/linux").external_attr >> 16 & 0o111 == 0o111
    assert kernel_wheel.stat().st_size < LARGEST


def test_the_configuration_is_the_one_that_the_kernel_was_built_with(
    contents: zipfile.ZipFile,
) -> None:
    made = contents.read(f"{folder()}/config").decode().splitlines()
    named = ("HOSTFS", "RDMA_RXE", "RDMA_SIW", "UML_NET_VECTOR", "UML_TIME_TRAVEL_SUPPORT")
    wanted = {f"CONFIG_{name}=y" for name in named}
    assert wanted <= set(uml.CONFIG.read_text().splitlines())
    assert wanted <= set(made)
    assert f"Linux/um {version()} Kernel Configuration" in "\n".join(made)


def test_the_licences_are_those_of_the_kernels_source(contents: zipfile.ZipFile) -> None:
    texts = {Path(n).name: contents.read(n).decode() for n in contents.namelist() if "/lic" in n}
    assert "GNU GENERAL PUBLIC LICENSE" in texts["GPL-2.0"]
    assert "NO WARRANTY" in texts["GPL-2.0"]
    assert "SPDX-Exception-Identifier: Linux-syscall-note" in texts["Linux-syscall-note"]
    assert "GPL-2.0 WITH Linux-syscall-note" in texts["COPYING"]
    assert texts["LICENSE"] == (PROJECT / "LICENSE").read_text()


def test_it_says_which_source_the_kernel_was_built_from(contents: zipfile.ZipFile) -> None:
    said = contents.read(f"{folder()}/SOURCE.md").decode()
    (debian,) = re.findall(r"`linux-source-7\.2` (\S+):", said)
    assert debian.startswith(f"{version()}-")
    assert f"https://snapshot.debian.org/package/linux/{debian}/" in said
    assert f" linux-source-7.2_{debian}_all.deb, https://snapshot.debian.org/file/" in said
    assert len(re.findall(r"SHA-256: [0-9a-f]{64}\n", said)) == 1
    for replaced in uml.MENDED.values():
        for old, new in replaced:
            assert f"```\n{old}\n```\n\nis now\n\n```\n{new}\n```" in said


def test_the_metadata_name_the_version_and_the_licence(
    metadata: email.message.Message, kernel_wheel: Path
) -> None:
    assert metadata["Version"] == cqnotify.__version__
    assert metadata["License-Expression"] == "MIT AND GPL-2.0-only WITH Linux-syscall-note"
    assert len(metadata.get_all("License-File", [])) == 4
    check = [sys.executable, "-m", "twine", "check", "--strict", kernel_wheel]
    assert subprocess.run(check, capture_output=True).returncode == 0


def test_it_installs_where_glibc_has_all_that_the_kernel_needs(kernel_wheel: Path) -> None:
    image = uml.folder(CACHE) / folder().partition("/")[2] / "linux"
    said = subprocess.run(
        ["readelf", "--wide", "--version-info", image], capture_output=True, text=True, check=True
    ).stdout
    versions = {(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)}
    major, minor = max(versions)
    assert kernel_wheel.name.endswith(f"-py3-none-manylinux_{major}_{minor}_x86_64.whl")


def test_the_bill_of_materials_names_the_kernel(contents: zipfile.ZipFile) -> None:
    (name,) = (n for n in contents.namelist() if n.endswith(".cdx.json"))
    (component,) = json.loads(contents.read(name))["components"]
    assert (component["name"], component["version"]) == ("linux", version())
    image = contents.read(f"{folder()}/linux")
    assert component["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(image).hexdigest()}]


def test_the_same_kernel_makes_the_same_bytes(kernel_wheel: Path, tmp_path: Path) -> None:
    """From a copy of the sources, whose files have other dates and another order."""
    copy = tmp_path / "copy"
    for name in ("cqnotify", "packaging", "LICENSE"):
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, copy / name)
    again = build_kernel_wheel(tmp_path, CACHE, copy / KERNEL_WHEEL.relative_to(PROJECT))
    assert again.name == kernel_wheel.name
    assert again.read_bytes() == kernel_wheel.read_bytes()


def test_the_kernel_bears_no_name_of_the_machine_that_built_it() -> None:
    image = (uml.folder(CACHE) / folder().partition("/")[2] / "linux").read_bytes()
    banner = re.findall(rb"Linux version [^\0]+", image)
    assert banner
    assert all(b" (lab@cqnotify) " in line for line in banner)
    assert os.uname().nodename.encode() not in b"".join(banner).replace(b"lab@cqnotify", b"")


def test_without_a_kernel_in_the_cache_the_build_says_what_to_do(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, KERNEL_WHEEL]
    env = isolated() | {"CQNOTIFY_LAB_CACHE": str(tmp_path)}
    done = subprocess.run(pip, env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"there is no kernel 7.2 in {tmp_path}: ./lab kernels build" in done.stdout + done.stderr


# ---- where it is installed ----------------------------------------------------------------


class Machine:
    """A home with nothing in it, where compilers say that they were called."""

    def __init__(self, home: Path, python: Path) -> None:
        self.home, self.python = home, python
        self.called = home / "called"
        self.cache = home / "cache"
        tools = home / "tools"
        tools.mkdir()
        for name in COMPILERS:
            (tools / name).write_text(f"#!/bin/sh\necho {name} >>{self.called}\nexit 1\n")
            (tools / name).chmod(0o755)
        (home / "work").mkdir()
        self.path = f"{tools}:{python.parent}:/usr/bin:/bin"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            cwd=self.home / "work",
            env={
                "HOME": str(self.home),
                "PATH": self.path,
                "CQNOTIFY_LAB_CACHE": str(self.cache),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        show(done.stdout.encode(), done.stderr.encode())
        return done

    def built(self) -> list[str]:
        """The kernels and programs that were built or fetched, and the tools that were called."""
        called = self.called.read_text().split() if self.called.exists() else []
        patterns = ("uml/*/linux", "kernels/*", "guest-*", "uml/.build")
        return called + [str(p) for name in patterns for p in self.cache.glob(name)]


@pytest.fixture
def machine(tmp_path: Path, lab_python: Path) -> Machine:
    return Machine(tmp_path, lab_python)


def test_a_command_has_devices_and_nothing_is_built(machine: Machine) -> None:
    done = machine.run("cqnotify", "lab", "--uml", "run", "--", "cqnotify", "devices")
    assert done.returncode == 0
    assert re.findall(r"^(\w+): CA, IB", done.stdout, re.M) == ["rxe0", "rxe1"]
    assert f"kernel {version()}, as a process of this machine" in done.stderr
    assert machine.built() == []


def test_hosts_use_it_too(machine: Machine) -> None:
    done = machine.run("cqnotify", "lab", "--uml", "hosts", "2", "--", "uname", "-r")
    assert done.returncode == 0
    assert done.stdout.count(version()) == 2
    assert machine.built() == []


def test_kernels_build_has_nothing_to_do_and_needs_no_compiler(machine: Machine) -> None:
    done = machine.run("cqnotify", "lab", "kernels", "build")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{version()}: ")
    assert machine.run("cqnotify", "lab", "kernels").stdout == (
        f"{version()} (as a process, with --uml)\n"
    )
    assert machine.built() == []


# ---- whether it is the right one ----------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package cqnotify_lab without a kernel."""
    package = tmp_path / "site/cqnotify_lab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    return package


def put(package: Path, name: str) -> Path:
    image = package / name / "linux"
    image.parent.mkdir()
    image.touch()
    return image


def test_a_kernel_of_another_configuration_is_not_used(installed: Path, tmp_path: Path) -> None:
    put(installed, "7.2.99-0123456789ab")
    assert uml.present(tmp_path) == []
    why = uml.unfit()
    assert why is not None
    assert "is for another version of cqnotify" in why
    assert why in uml.not_built(None)
    image = put(installed, f"7.2.98-{uml.config_key()}")
    assert uml.present(tmp_path) == ["7.2.98"]
    assert uml.image(tmp_path, "7.2.98") == image
    assert uml.unfit() is None
    assert why not in uml.not_built("6.1")


def test_the_newest_is_used_wherever_it_is(installed: Path, tmp_path: Path) -> None:
    put(installed, f"7.2.9-{uml.config_key()}")
    (tmp_path / "uml").mkdir()
    here = put(tmp_path / "uml", f"7.2.10-{uml.config_key()}")
    assert uml.image(tmp_path, uml.choose(tmp_path, "7.2") or "") == here
    there = put(installed, f"7.2.11-{uml.config_key()}")
    assert uml.image(tmp_path, uml.choose(tmp_path, "7.2") or "") == there
    assert uml.choose(tmp_path, "6.1") is None


@pytest.mark.usefixtures("installed")
def test_emulation_for_want_of_the_right_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unbuilt = backend.Backend("tcg", "6.1.0-99-amd64", uml.ADVICE)
    monkeypatch.setattr(backend, "foresee", lambda options: unbuilt)
    backend.settle(None, pytest.fail)  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"lab: {uml.unfit()}\nlab: {uml.ADVICE}\n"
