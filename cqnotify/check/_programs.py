# SPDX-License-Identifier: MIT
"""Programs that the dynamic linker does not let the observer into, by their ELF headers."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Final

from ._elf import BITS_32, interpreter, read_elf

__all__ = ["find_program", "why_not_observed"]

LONGEST_SHEBANG: Final = 256
DEEPEST: Final = 4  # scripts whose interpreters are scripts
CLEANERS: Final = ("sudo", "doas", "su", "runuser", "pkexec")


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """Return the file that execvp() would run; OSError where there is none."""
    if "/" in name:
        paths = [name]
    else:
        folders = environment.get("PATH", os.defpath).split(os.pathsep)
        paths = [os.path.join(folder or ".", name) for folder in folders]
    there = [path for path in paths if name and os.path.exists(path)]
    if not there:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    for path in there:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)


def why_not_observed(path: str) -> str | None:
    """Say why the observer cannot get into a program: a clause about it. None if nothing is known.

    For a script the interpreter is what counts.
    """
    if os.path.basename(path) in CLEANERS:
        name = os.path.basename(path)
        return f"{name} takes LD_AUDIT out of the environment: run {name} cqnotify check -- PROGRAM"
    try:
        return next(filter(None, map(_obstacle, _chain(path))), None)
    except OSError:  # execute-only, or gone: running it tells
        return None


def _chain(path: str) -> Iterator[str]:
    """The file, and the interpreters that run it."""
    for _ in range(DEEPEST):
        yield path
        with open(path, "rb") as file:
            line = file.read(LONGEST_SHEBANG).partition(b"\n")[0]
        if not line.startswith(b"#!"):
            return
        words = os.fsdecode(line[2:]).split()
        if words and os.path.basename(words[0]) == "env":
            words = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        found = shutil.which(words[0]) if words else None
        if found is None:
            return
        path = found


def _obstacle(path: str) -> str | None:
    elf = read_elf(path)
    if elf is None:
        return None
    if privileged := _gains_privileges(path):
        return f"{path} {privileged}: the dynamic linker ignores LD_AUDIT there"
    if elf.bits == BITS_32:
        return f"{path} is a 32-bit program, the observer is a library of 64 bits"
    ours = read_elf("/proc/self/exe")
    if ours is not None and elf.machine != ours.machine:
        return f"{path} is for another architecture than the observer"
    linker = interpreter(path, elf)
    if linker is None and not os.path.basename(path).startswith("ld"):
        return f"{path} is statically linked: no dynamic linker loads the observer"
    if linker is not None and "ld-musl" in linker:
        return f"{path} is linked to musl, whose dynamic linker has no LD_AUDIT: it needs glibc"
    return None


def _gains_privileges(path: str) -> str | None:
    mode = os.stat(path)
    if mode.st_mode & stat.S_ISUID and mode.st_uid != os.getuid():
        return "is setuid"
    if mode.st_mode & stat.S_ISGID and mode.st_mode & stat.S_IXGRP and mode.st_gid != os.getgid():
        return "is setgid"
    try:
        os.getxattr(path, "security.capability")
    except OSError:  # it has none, or the file system has none
        return None
    return "has file capabilities" if os.getuid() else None
