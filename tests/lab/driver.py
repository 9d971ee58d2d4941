# SPDX-License-Identifier: MIT
"""What ./lab hands over to when all is set up: runs a command where there is an RDMA device."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import kernel
import vm
from kernel import LabError, note

# Taken along from the caller's environment; everything else only with -e.
KEPT = ("TERM", "COLORTERM", "NO_COLOR", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "CI")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NETWORK = str(kernel.HERE / "network.sh")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("action", choices=("run", "prepare", "fetch", "kernels"))
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--mode", choices=("vm", "native", "device"), default="vm")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--kernel")
    parser.add_argument("--userland", choices=tuple(kernel.SERIES))
    parser.add_argument("--mem", type=int, default=2048)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument("--icount", action="store_true")
    parser.add_argument("--timeout", type=float, default=0)
    parser.add_argument("--boot-timeout", type=float, default=90)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("-e", dest="env", action="append", default=[])
    split = arguments.index("--")
    options = parser.parse_args(arguments[:split])
    options.command = arguments[split + 1 :]
    return options


def environment(options: argparse.Namespace) -> dict[str, str]:
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env.setdefault("HOME", "/root")
    env["PATH"] = SYSTEM_PATH
    if options.venv:
        env["PATH"] = f"{options.venv}/bin:{SYSTEM_PATH}"
        env["VIRTUAL_ENV"] = str(options.venv)
    env["CQNOTIFY_LAB"] = options.mode
    if options.mode != "device":
        env["CQNOTIFY_LAB_NETDEVS"] = "v0 v1"
    for setting in options.env:
        name, equals, value = setting.partition("=")
        if equals:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
    return env


# ---- on the machine's own devices --------------------------------------------------------


def unlimited() -> None:
    """In the child. What only root may raise stays as it is."""
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        hard = resource.getrlimit(limit)[1]
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            resource.setrlimit(limit, (hard, hard))


def run_here(options: argparse.Namespace) -> int:
    """Runs the command as a child in our own process group: the terminal's signals reach it."""
    env = environment(options)
    os.environ["PATH"] = env["PATH"]  # where Popen looks the command up
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        child = subprocess.Popen(options.command, env=env, preexec_fn=unlimited)
    except OSError as error:
        note(f"{options.command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGHUP, forward)
    try:
        status = child.wait(options.timeout or None)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        raise LabError(f"the command took longer than {options.timeout:g} s", 124) from None
    return 128 - status if status < 0 else status


def network(action: str) -> None:
    command = ["sh", NETWORK, action]
    env = {**os.environ, "PATH": SYSTEM_PATH}
    try:
        result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=60)
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)} hangs: is a device still in use?") from None
    if result.returncode != 0:
        raise LabError(f"{' '.join(command)} failed")


def run_native(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise LabError("--native loads modules and makes network devices: it needs root")
    note("--native: making v0, v1, rxe0 and rxe1 on this machine; they go away afterwards")
    try:
        network("up")
        return run_here(options)
    finally:
        network("down")


def run_in_vm(options: argparse.Namespace) -> int:
    version = kernel.choose(options.cache, options.kernel, options.userland)
    root = options.cache / "userland" / options.userland if options.userland else Path("/")
    machine = vm.Machine(
        cache=options.cache,
        kernel=version,
        root=root,
        memory=options.mem,
        cpus=1 if options.icount else options.cpus,
        accel=options.accel,
        icount=options.icount,
        boot_timeout=options.boot_timeout,
        timeout=options.timeout or None,
        verbose=options.verbose,
    )
    shares = [
        vm.Share(str(kernel.modules(options.cache, version)), f"/lib/modules/{version}", False),
        vm.Share(f"{root}/{options.project}", str(options.project)),
    ]
    job = vm.Job(options.command, environment(options), os.getcwd(), shares)
    return vm.run(machine, job)


# ---- the door ----------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> int:
    if options.mode == "vm":
        version = kernel.choose(options.cache, options.kernel, options.userland)
        kernel.initramfs(options.cache, version)
    return 0


def fetch(options: argparse.Namespace) -> int:
    for source in options.command or [kernel.DEFAULT_SUITE]:
        with kernel.locked(options.cache):
            version = kernel.fetch(options.cache, source)
        print(f"{version}: run it with --kernel {version}")
    return 0


def kernels(options: argparse.Namespace) -> int:
    for version in kernel.present(options.cache):
        print(version)
    return 0


def run(options: argparse.Namespace) -> int:
    runners = {"vm": run_in_vm, "native": run_native, "device": run_here}
    return runners[options.mode](options)


def main() -> int:
    for fd in range(3):  # a closed standard stream would be taken by the next open()
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
    options = parse(sys.argv[1:])
    actions = {"run": run, "prepare": prepare, "fetch": fetch, "kernels": kernels}
    try:
        return actions[options.action](options)
    except LabError as error:
        note(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
