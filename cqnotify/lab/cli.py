# SPDX-License-Identifier: MIT
"""`cqnotify lab`: the front of an installed package, for the programs and tests of other projects.

The command runs with this process's Python environment, in the current folder, which is writable.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any, Final

from . import backend, driver, prerequisites, uml
from .base import HERE, LabError, current_folder, note

COMMANDS: Final = ("run", "shell", "hosts", "kernels", "clean")
MADE: Final = ("kernels", "uml", "apt", "kvm", "lock", "guest-*", "seeded-*")  # in the cache
SUITES: Final = ("bookworm", "bookworm-backports", "trixie")

HELP: Final = """\
usage: cqnotify lab [OPTION]... COMMAND

Runs a command on the machine's RDMA device or, without one, on a Linux kernel that has two in
software, Soft-RoCE. That kernel runs in QEMU or as an ordinary process, needs no root, and sees the
files of this machine. (On x86-64 only.)

  run [--] COMMAND...          a command, with the Python environment of this cqnotify first in PATH
  shell                        an interactive shell
  hosts N [--seed S] [--net FAULTS] [--] COMMAND [--- COMMAND]...
                               a command on each of N hosts (up to 8), or one on all of them, with
                               a switch in between
  kernels                      lists the kernels that were fetched or built
  kernels fetch [SUITE|FILE.deb]...
                               fetches one for QEMU, from Debian: bookworm, bookworm-backports or
                               trixie
  kernels build [7.2|6.1]      builds one that runs as a process, ten times faster than QEMU
                               without KVM; cqnotify[lab] includes 7.2
  clean                        removes everything that the lab has created

options, before or after the first word of the command:
"""
FOOT: Final = """
Only files that the command writes below the current folder are kept. Its streams, terminal, signals
and exit code are passed through.

exit codes:
  the command's own, 128+N for signal N
  124  after a timeout
  125  the lab itself failed, with one line on stderr that says why
  130  interrupted by Ctrl-C

CQNOTIFY_LAB_CACHE    the lab's folder (default: cqnotify-lab below XDG_CACHE_HOME or ~/.cache)
CQNOTIFY_LAB_MIRROR   the Debian mirror for kernels (default: deb.debian.org/debian)
"""

FLAG: Final[dict[str, Any]] = {"action": "store_true"}
EACH: Final[dict[str, Any]] = {"action": "append", "default": []}
NUMBER: Final[dict[str, Any]] = {"metavar": "N", "type": int}
SECONDS: Final[dict[str, Any]] = {"metavar": "S", "type": float}

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "-e": {
        **EACH,
        "dest": "env",
        "metavar": "NAME[=VALUE]",
        "help": "set NAME in the command's environment, or pass yours on",
    },
    "--writable": {
        **EACH,
        "metavar": "FOLDER",
        "help": "another folder below which files are kept",
    },
    "--install": {**FLAG, "help": "install packages that are missing, as root, by apt"},
    "--uml": {**FLAG, "help": "use the kernel that runs as a process; it has one CPU"},
    "--vm": {**FLAG, "help": "use QEMU, even where the machine has a device"},
    "--accel": {
        "choices": ("auto", "kvm", "tcg"),
        "help": "use QEMU: with KVM if a guest boots with it, always with KVM, or emulated",
    },
    "--device": {
        "choices": ("rxe", "siw"),
        "help": "the devices in software: Soft-RoCE (rxe), or Soft-iWARP (siw), which needs --uml",
    },
    "--kernel": {
        "metavar": "VERSION",
        "help": "which kernel, of those fetched or built, e.g. 6.12; or the path of a User Mode "
        "Linux",
    },
    "--mem": {**NUMBER, "metavar": "MB", "help": "memory of the guest (2048; of each host: 640)"},
    "--cpus": {**NUMBER, "help": "CPUs of the guest in QEMU (2)"},
    "--virtual-time": {
        **FLAG,
        "help": "as a process whose clock skips idle time: waiting takes no time",
    },
    "--icount": {**FLAG, "help": "for measurements, in QEMU: time counts instructions"},
    "--timeout": {**SECONDS, "help": "longest run, with the boot (none)"},
    "--boot-timeout": {**SECONDS, "help": "longest boot of the kernel (90)"},
    "--verbose": {**FLAG, "help": "show the guest's console as it boots"},
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise LabError(f"{message} (see cqnotify lab --help)")


def parser() -> Parser:
    options = Parser(prog="cqnotify lab", add_help=False, allow_abbrev=False)
    for name, details in OPTIONS.items():
        options.add_argument(name, **details)
    return options


def usage() -> str:
    lines = []
    for name, details in OPTIONS.items():
        value = details.get("metavar") or "|".join(details.get("choices", ()))
        label, *rest = f"  {name} {value}".rstrip(), *textwrap.wrap(details["help"], 74)
        lines += [f"{label:<23} {rest[0]}" if len(label) < 24 else label]
        lines += [f"{'':24}{line}" for line in (rest[1:] if len(label) < 24 else rest)]
    return HELP + "\n".join(lines) + "\n" + FOOT


def split(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The lab's own options, its command, and the command's words: those behind `--`, or from the
    first one that is no option of the lab."""
    own: list[str] = []
    action, rest = "", list(words)
    while rest:
        word = rest[0]
        name, equals, _ = word.partition("=")
        if word in ("-h", "--help"):
            own, action, rest = [], "help", []
        elif name in OPTIONS:
            count = 1 if equals or OPTIONS[name].get("action") == "store_true" else 2
            own, rest = own + rest[:count], rest[count:]
        elif word == "--" and action:
            return own, action, rest[action != "hosts" :]
        elif word.startswith("-"):
            raise LabError(f"there is no option '{word}' (see cqnotify lab --help)")
        elif action:
            break
        elif word in COMMANDS:
            action, rest = word, rest[1:]
        else:
            raise LabError(f"there is no command '{word}' (see cqnotify lab --help)")
    return own, action, rest


def main(words: list[str]) -> int:
    """Runs a command of the lab; returns its exit code."""
    try:
        own, action, rest = split(words)
        os.environ["PATH"] = path()  # of users, it often has no /sbin
        if action == "help":
            print(usage(), end="")
            return 0
        if not action:
            raise LabError(f"a command is missing: {', '.join(COMMANDS)} (see cqnotify lab --help)")
        return ACTIONS[action](parser().parse_args(own), rest)
    except LabError as error:
        note(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


# ---- where a command runs ----------------------------------------------------------------


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = os.environ.get("CQNOTIFY_LAB_CACHE")
    if not named and home.startswith("~"):
        raise LabError("this user has no home; CQNOTIFY_LAB_CACHE names a folder to keep things in")
    cache = Path(named or Path(home, "cqnotify-lab"))
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"cannot make the cache folder {cache} ({error.strerror}); CQNOTIFY_LAB_CACHE names "
            "another one"
        ) from None
    return cache.resolve()


def path() -> str:
    """The command's: this Python's programs first, then what the caller has, then the system's."""
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    folders += os.environ.get("PATH", "").split(":") + driver.SYSTEM_PATH.split(":")
    return ":".join(dict.fromkeys(folder for folder in folders if folder))


def mode(options: argparse.Namespace) -> str:
    guest = options.vm or options.uml or options.virtual_time or options.accel or options.icount
    if guest or not has_device():
        return "vm"
    if options.device:
        raise LabError("--device is for devices that the lab makes: with --vm or --uml")
    return "device"


def has_device() -> bool:
    return any(Path("/sys/class/infiniband").glob("*"))


def accel(options: argparse.Namespace) -> str | None:
    if options.uml or options.virtual_time:
        if options.accel or options.vm:
            raise LabError("--uml and --virtual-time cannot be combined with --vm and --accel")
        return "uml"
    return options.accel or ("auto" if options.vm else None)


def kernel(wanted: str | None) -> str | None:
    """Its version, or the path of one that runs as a process, built by somebody else."""
    if wanted is None or "/" not in wanted:
        return wanted
    if not os.path.isfile(wanted) or not os.access(wanted, os.X_OK):
        raise LabError(f"--kernel {wanted}: there is no such file, or it is no program")
    return os.path.realpath(wanted)


def writable(options: argparse.Namespace) -> list[str]:
    """The current folder and those of --writable. One below another comes after it."""
    folders = {os.path.realpath(folder) for folder in [current_folder(), *options.writable]} - {"/"}
    if missing := [folder for folder in sorted(folders) if not os.path.isdir(folder)]:
        raise LabError(f"--writable: there is no folder {missing[0]}")
    return sorted(folders)


def driver_words(action: str, options: argparse.Namespace, command: list[str]) -> list[str]:
    named = {
        "--cache": cache_folder(),
        "--mode": mode(options),
        "--path": path(),
        "--venv": sys.prefix if sys.prefix != sys.base_prefix else None,
        "--accel": accel(options),
        "--kernel": kernel(options.kernel),
        "--device": options.device,
        "--mem": options.mem,
        "--cpus": options.cpus,
        "--timeout": options.timeout,
        "--boot-timeout": options.boot_timeout,
    }
    words = [action]
    for name, value in named.items():
        words += [] if value is None else [name, str(value)]
    for flag in ("icount", "virtual_time", "verbose"):
        words += [f"--{flag.replace('_', '-')}"] if getattr(options, flag) else []
    for folder in writable(options):
        words += ["--writable", folder]
    for setting in options.env:
        words += ["-e", setting]
    return [*words, "--", *command]


def start(action: str, options: argparse.Namespace, command: list[str]) -> int:
    words = driver_words(action, options, command)
    parsed = driver.parse(words)
    if parsed.mode == "vm":
        if platform.machine() != "x86_64":
            raise LabError(
                f"the lab's kernels are for x86-64; this machine is {platform.machine()}"
            )
        prerequisites.see_to(
            prerequisites.of_guest(parsed, backend.foresee(parsed)), options.install
        )
    return driver.main(words)


# ---- commands ----------------------------------------------------------------------------


def run(options: argparse.Namespace, command: list[str]) -> int:
    if not command:
        raise LabError("run: COMMAND is missing (see cqnotify lab --help)")
    return start("run", options, command)


def shell(options: argparse.Namespace, words: list[str]) -> int:
    refuse(words, "shell")
    command = ["bash", "--rcfile", str(HERE / "shellrc"), "-i"] if shutil.which("bash") else ["sh"]
    return start("run", options, command)


def hosts(options: argparse.Namespace, words: list[str]) -> int:
    return start("hosts", options, words)


def kernels(options: argparse.Namespace, words: list[str]) -> int:
    cache = cache_folder()
    action, *names = words or ["list"]
    if action == "build":
        for name in names:
            if name not in uml.SUITES:
                raise LabError(f"build is for {' or '.join(uml.SUITES)}, not '{name}'")
        if not all(uml.choose(cache, name) for name in names or [uml.DEFAULT_SERIES]):
            prerequisites.see_to(prerequisites.of_build(), options.install)
    elif action == "fetch":
        for name in names:
            if name not in SUITES and not Path(name).is_file():
                raise LabError(
                    f"there is no such suite or file: {name} (suites: {', '.join(SUITES)})"
                )
        prerequisites.see_to(prerequisites.of_programs("depmod"), options.install)
    elif action != "list":
        raise LabError("kernels knows only 'fetch' and 'build' (see cqnotify lab --help)")
    return driver.main(
        ["kernels" if action == "list" else action, "--cache", str(cache), "--", *names]
    )


def clean(options: argparse.Namespace, words: list[str]) -> int:
    refuse(words, "clean")
    cache = cache_folder()
    for name in MADE:  # the folder may be shared
        for made in cache.glob(name):
            shutil.rmtree(made) if made.is_dir() else made.unlink()
    if not any(cache.iterdir()):
        cache.rmdir()
    return 0


def refuse(words: list[str], command: str) -> None:
    if words:
        raise LabError(f"{command} takes no argument '{words[0]}'")


ACTIONS: Final = {"run": run, "shell": shell, "hosts": hosts, "kernels": kernels, "clean": clean}
