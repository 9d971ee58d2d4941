# SPDX-License-Identifier: MIT
"""What a guest needs of this machine, judged by what is there, and the packages that have it."""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
from typing import NamedTuple

from . import kernel, uml
from .backend import Backend
from .base import LabError, note

LIBRARIES = ("/usr/lib/*", "/usr/lib", "/usr/lib64", "/lib/*", "/lib64", "/usr/local/lib")
APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


class Package(NamedTuple):
    """By its names in Debian and Ubuntu, and in Fedora and RHEL."""

    debian: str
    fedora: str


PROVIDERS = Package("ibverbs-providers", "libibverbs")
RDMACM = Package("librdmacm1", "librdmacm")
TRAFFIC = Package("iproute2", "iproute-tc")
GCC = (Package("gcc", "gcc"), Package("libc6-dev", "glibc-devel"))
PROGRAMS = {
    "ip": Package("iproute2", "iproute"),
    "rdma": Package("iproute2", "iproute"),
    "tc": TRAFFIC,
    "depmod": Package("kmod", "kmod"),
    "modprobe": Package("kmod", "kmod"),
    "qemu-system-x86_64": Package("qemu-system-x86", "qemu-system-x86-core"),
    "bash": Package("bash", "bash"),
    **{name: Package(name, name) for name in ("gcc", "make", "flex", "bison", "bc", "tar")},
    "xz": Package("xz-utils", "xz"),
}


def of_guest(options: argparse.Namespace, backend: Backend) -> list[Package]:
    """What is missing for a guest with this backend."""
    programs = ["ip", "rdma", "tc"]
    if backend.accel != "uml":
        programs += ["qemu-system-x86_64", "modprobe", "depmod"]
    missing = of_programs(*programs)
    if not library(f"libibverbs/lib{options.device}-rdmav*.so"):
        missing.append(PROVIDERS)
    if not library("librdmacm.so.1"):
        missing.append(RDMACM)
    if not kernel.place_of(options.cache, "guest").exists() and not shutil.which("gcc"):
        missing += GCC
    return missing


def of_build() -> list[Package]:
    """What is missing to build a kernel that runs as a process."""
    missing = of_programs(*uml.TOOLS)
    return missing if os.path.exists("/usr/include/stdio.h") else [*missing, GCC[1]]


def of_programs(*names: str) -> list[Package]:
    return [PROGRAMS[name] for name in names if not shutil.which(name)]


def library(pattern: str) -> bool:
    return any(glob.glob(f"{folder}/{pattern}") for folder in LIBRARIES)


def see_to(missing: list[Package], install: bool) -> None:
    """Nothing if nothing is missing; else installs it, or says in one line what to install."""
    if not missing:
        return
    debian, fedora = (
        " ".join(dict.fromkeys(names)) for names in zip(*missing, strict=True)
    )  # each once
    if not install:
        raise LabError(
            f"packages are missing here; as root: apt-get install --no-install-recommends {debian}"
            f" (Fedora, RHEL: dnf install {fedora})"
        )
    if not shutil.which("apt-get"):
        raise LabError(f"--install is for Debian and Ubuntu; here: dnf install {fedora}")
    if os.geteuid() != 0:
        raise LabError(f"--install needs root, to install {debian}")
    note(f"installing {debian}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--no-install-recommends", *debian.split()]):
        done = subprocess.run(
            [*APT, *words], env=env, capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            said = "".join(f"\n    {s}" for s in (done.stdout + done.stderr).splitlines()[-10:])
            raise LabError(f"apt-get {words[0]} failed:{said}")
