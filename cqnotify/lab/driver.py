# SPDX-License-Identifier: MIT
"""Run a command where there is an RDMA device: the last step of the fronts, when all is set up."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

from . import backend, hosts_run, kernel, uml, virtual_run, vm
from .base import HERE, LabError, current_folder, locked, note, version_key

# Taken along from the caller's environment; everything else only with -e.
KEPT = (
    *("TERM", "COLORTERM", "NO_COLOR", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "CI"),
    "PYTHONPATH",  # of a package in a folder of its own; ./lab clears it
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_MEMORY = 640  # MB of one of several hosts
SAME_MHZ = "1000.000"  # of hosts in virtual time, whose runs are the same on each machine
NETWORK = str(HERE / "network.sh")
PROGRAM = str(HERE / "__main__.py")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("action", choices=tuple(ACTIONS))
    parser.add_argument("--writable", type=Path, action="append", default=[])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--mode", choices=("vm", "native", "device"), default="vm")
    parser.add_argument("--device", choices=("rxe", "siw"), default="rxe")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--path", default=SYSTEM_PATH)
    parser.add_argument("--kernel")
    parser.add_argument("--userland", choices=tuple(kernel.SERIES))
    parser.add_argument("--mem", type=int, default=2048)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg", "uml"))
    parser.add_argument("--icount", action="store_true")
    parser.add_argument("--virtual-time", action="store_true")
    parser.add_argument("--timeout", type=float, default=0)
    parser.add_argument("--boot-timeout", type=float, default=90)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--place", type=place)
    parser.add_argument("-e", dest="env", action="append", default=[])
    split = arguments.index("--")
    options = parser.parse_args(arguments[:split])
    options.words = arguments[1:split]  # for drivers of the same kind
    options.command = arguments[split + 1 :]
    return options


def place(text: str) -> vm.Place:
    """Of one of several hosts: NUMBER/COUNT/DESCRIPTOR."""
    return vm.Place(*(int(number) for number in text.split("/")))


def environment(options: argparse.Namespace) -> dict[str, str]:
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env.setdefault("HOME", "/root")
    env["PATH"] = options.path
    if options.venv:
        env["PATH"] = f"{options.venv}/bin:{options.path}"
        env["VIRTUAL_ENV"] = str(options.venv)
    env["CQNOTIFY_LAB"] = options.mode
    if options.place:
        env["CQNOTIFY_LAB_NETDEVS"] = "v0"
        env["CQNOTIFY_LAB_HOST"] = str(options.place.number)
        env["CQNOTIFY_LAB_HOSTS"] = str(options.place.count)
    elif options.mode != "device":
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
    """In the child. Limits that only root may raise stay as they are."""
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


def network(action: str, device: str) -> None:
    command = ["sh", NETWORK, action]
    env = {**os.environ, "PATH": SYSTEM_PATH, "LAB_DEVICE": device}
    try:
        result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=60)
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(command)} hangs: is a device still in use?") from None
    if result.returncode != 0:
        raise LabError(f"{' '.join(command)} failed")


def run_native(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise LabError("--native loads modules and makes network devices: it needs root")
    kind = options.device
    note(f"--native: making v0, v1, {kind}0 and {kind}1 on this machine; they go away afterwards")
    try:
        network("up", kind)
        return run_here(options)
    finally:
        network("down", kind)


def machine(options: argparse.Namespace, accel: str, version: str) -> vm.Machine:
    return vm.Machine(
        cache=options.cache,
        kernel=version,
        root=options.cache / "userland" / options.userland if options.userland else Path("/"),
        memory=options.mem,
        cpus=1 if options.icount or accel == "uml" else options.cpus or 2,
        accel=accel,
        icount=options.icount,
        virtual_time=options.virtual_time,
        boot_timeout=options.boot_timeout,
        timeout=options.timeout or None,
        verbose=options.verbose,
        place=options.place,
    )


def settled(options: argparse.Namespace, may_build: bool = False) -> backend.Backend:
    def try_kvm(version: str) -> None:
        vm.try_kvm(machine(options, "kvm", version))

    def build() -> None:
        uml.build(options.cache, uml.DEFAULT_SERIES)

    return backend.settle(options, try_kvm, build if may_build else None)


def network_of(options: argparse.Namespace) -> dict[str, str]:
    """What network.sh is told."""
    told = {"LAB_DEVICE": options.device}
    if options.place:
        told["LAB_HOST"] = f"{options.place.number} {options.place.count}"
    return told


def check_device(options: argparse.Namespace, accel: str, version: str) -> None:
    if accel == "uml" or options.device == "rxe":
        return
    if not kernel.has_module(options.cache, version, options.device):
        raise LabError(
            f"--device {options.device}: kernel {version} has no such device; the kernels that run "
            "as a process have (--uml)"
        )


def job(options: argparse.Namespace, guest: vm.Machine) -> vm.Job:
    shares = [vm.Share(f"{guest.root}/{path}", str(path)) for path in options.writable]
    if guest.accel != "uml":  # which has no modules
        modules = str(kernel.modules(options.cache, guest.kernel))
        shares.insert(0, vm.Share(modules, f"/lib/modules/{guest.kernel}", False))
    mhz = uml.frequency() if guest.accel == "uml" else None
    cwd, network = current_folder(), network_of(options)
    return vm.Job(options.command, environment(options), cwd, shares, network, mhz)


def virtual_job(options: argparse.Namespace, guest: vm.Machine) -> vm.Job:
    """One for hosts in virtual time: no terminal, one frequency, and no bytecode that a run writes
    and the next one finds."""
    made = job(options, guest)
    env = {"PYTHONDONTWRITEBYTECODE": "1", **made.env}
    return replace(made, env=env, is_tty=[False] * 3, mhz=SAME_MHZ)


def compile_bytecode(options: argparse.Namespace, *folders: Path) -> None:
    """Compiles our package, and the programs in these folders, for hosts in virtual time. A host
    that finds the bytecode of a module makes another run than one that has to compile it, and any
    process on this machine that imports the module writes it."""
    if options.venv and (python := options.venv / "bin/python").exists():
        words = [str(python), "-m", "compileall", "-q", str(HERE.parent), *map(str, folders)]
        quiet = subprocess.DEVNULL  # a folder that we may not write to stays as it is
        subprocess.run(words, stdout=quiet, stderr=quiet)


def run_in_vm(options: argparse.Namespace) -> int:
    accel, version, _ = settled(options)
    assert version is not None
    check_device(options, accel, version)
    guest = machine(options, accel, version)
    return vm.run(guest, job(options, guest))


def refuse_other_clocks(options: argparse.Namespace) -> None:
    """Virtual time is for one backend."""
    if options.icount:
        raise LabError("--icount has a clock of its own: it cannot be combined with --virtual-time")
    if options.accel != "uml" or options.mode != "vm":
        raise LabError("--virtual-time is for a kernel that runs as a process: use it with --uml")


# ---- the door ----------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> int:
    """All that the next run would set up, and nothing that it would not use."""
    if options.mode != "vm":
        return 0
    if backend.foresee(options).accel == "uml":
        kernel.guest_program(options.cache)
    else:
        version = kernel.choose(options.cache, options.kernel, options.userland)
        kernel.initramfs(options.cache, version)
    return 0


def foresee(options: argparse.Namespace) -> int:
    """For ./lab, which installs what that backend needs."""
    foreseen = backend.foresee(options)
    print("unbuilt" if foreseen.unbuilt else foreseen.accel)
    return 0


def settle(options: argparse.Namespace) -> int:
    """For ./lab, which starts several guests with the same backend."""
    print(settled(options, may_build=options.action == "settle-and-build").accel)
    return 0


def fetch(options: argparse.Namespace) -> int:
    for source in options.command or [kernel.DEFAULT_SUITE]:
        with locked(options.cache):
            version = kernel.fetch(options.cache, source)
        print(f"{version}: run it with --kernel {version}")
    return 0


def build(options: argparse.Namespace) -> int:
    for series in options.command or [uml.DEFAULT_SERIES]:
        print(f"{uml.build(options.cache, series)}: run it with --uml --kernel {series}")
    return 0


def kernels(options: argparse.Namespace) -> int:
    for version in kernel.present(options.cache):
        print(version)
    for version in uml.present(options.cache):
        print(f"{version} (as a process, with --uml)")
    return 0


def run(options: argparse.Namespace) -> int:
    runners = {"vm": run_in_vm, "native": run_native, "device": run_here}
    return runners[options.mode](options)


def hosts(options: argparse.Namespace) -> int:
    """Each host has a driver like this one, with a guest of less memory."""
    if options.mode != "vm":
        raise LabError(
            "hosts need guests: leave out --native, and on a machine with a device add --vm"
        )
    accel, version, _ = settled(options)
    assert version is not None
    check_device(options, accel, version)
    ours = options.words
    if options.virtual_time:
        options.mem = options.mem if "--mem" in ours else HOST_MEMORY
        return virtual_hosts(options, version)
    few = ["--mem", str(HOST_MEMORY), "--cpus", "1"]
    same = ["--accel", accel, "--kernel", version, "--timeout", "0"]
    command = [sys.executable, "-B", PROGRAM, "run", *few, *ours, *same]
    return hosts_run.main(options.command, command, options.timeout)


def virtual_hosts(options: argparse.Namespace, version: str) -> int:
    """One process for all of them, which is their clock."""
    if "/" not in version and version_key(version) < [7]:
        raise LabError(f"hosts in virtual time need Linux 7.2, not {version}")
    guest = replace(machine(options, "uml", version), virtual_time=False)

    def job_at(place: vm.Place, command: list[str]) -> vm.Job:
        there = argparse.Namespace(**{**vars(options), "place": place, "command": command})
        return virtual_job(there, guest)

    compile_bytecode(options)
    return virtual_run.main(options.command, guest, job_at, options.timeout)


ACTIONS = {
    **{"run": run, "hosts": hosts, "prepare": prepare, "foresee": foresee},
    **{"settle": settle, "settle-and-build": settle},
    **{"fetch": fetch, "build": build, "kernels": kernels},
}


def main(arguments: list[str]) -> int:
    """ACTION OPTION... -- WORD..."""
    for fd in range(3):  # a closed standard stream would be taken by the next open()
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
    options = parse(arguments)
    try:
        if options.virtual_time:
            refuse_other_clocks(options)
        return ACTIONS[options.action](options)
    except LabError as error:
        note(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
