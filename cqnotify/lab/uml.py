# SPDX-License-Identifier: MIT
"""User Mode Linux: a kernel that is an ordinary process, with rxe in it.

cache/uml/VERSION-HASH/linux is built here, from the source package of a Debian release and from
uml.config; HASH stands for the latter, and for what is mended in the source. Beside it are its
configuration, its licence, and source.json, which says what it was built from. The distribution
cqnotify-lab (packaging/lab) installs such a folder, built.

It needs neither KVM nor root, no image and no module: hostfs shows this machine's files with the
user's own rights. vm.py runs it as it runs QEMU.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import debian, kernel
from .base import FRONT, HERE, LabError, locked, note, run, version_key

if TYPE_CHECKING:
    from .vm import Machine

CONFIG = HERE / "uml.config"
SUITES = {"6.1": "bookworm", "7.2": "trixie-backports"}
DEFAULT_SERIES = "7.2"
SECCOMP_SINCE = [6, 16]  # before, programs were driven by ptrace alone
ADVICE = (
    f"a kernel that runs as a process is faster than emulation: {FRONT} kernels build builds one"
)
# What 6.1 wants besides: all network devices are behind one option; tinyconfig's allocator knew
# nothing of alignment, on which the compiler relies; and a task's floating-point registers, twice,
# are on its stack.
OLDER_CONFIG = (
    "CONFIG_UML_NET=y\n# CONFIG_SLOB is not set\nCONFIG_SLUB=y\nCONFIG_KERNEL_STACK_ORDER=4\n"
)
WINDOW = 2048  # bytes to a serial line that nobody has read; it holds 4096
DISK_MB = 3000  # while it is being built
TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "tar")
# Sources that are not even configured: most of what there is to write to the disk.
LEFT_OUT = ["Documentation/*.rst", "arch/*/boot/dts/*", "sound/*.[ch]", "tools/testing/*"]
LEFT_OUT += [f"drivers/{name}/*.[ch]" for name in ("gpu", "media", "staging", "net/ethernet")]
# What the kernel says of its builder, in the place of this machine's name and user.
BUILT_BY = ("KBUILD_BUILD_USER=lab", "KBUILD_BUILD_HOST=cqnotify")
KEPT = {  # beside the kernel, from its source
    "config": ".config",
    "COPYING": "COPYING",
    "GPL-2.0": "LICENSES/preferred/GPL-2.0",
    "Linux-syscall-note": "LICENSES/exceptions/Linux-syscall-note",
}
LIBC = ctypes.CDLL(None, use_errno=True)

# In virtual time a program that computes after the guest was idle is not interrupted, and one that
# often reads the clock slows it down: there the instant of the next timer is not what it is taken
# for. What stands in the source, and what must stand there.
MENDED = {
    "arch/um/kernel/time.c": [
        (
            "time_travel_timer_event.time - next)",
            "time_travel_timer_event.time - time_travel_time)",
        ),
        (
            "time_travel_set_time(time_travel_next_event);",
            "if (time_travel_timer_event.pending &&"
            " time_travel_timer_event.time > time_travel_time)"
            " time_travel_set_time(time_travel_timer_event.time);",
        ),
    ]
}
# This machine restores floating-point registers only as a whole: 2,696 bytes of a processor with
# AVX-512, 11,008 with AMX. Later kernels ask it how many there are.
OLDER_MENDED = {
    "arch/x86/um/user-offsets.c": [
        ("DEFINE_LONGS(HOST_FP_SIZE, 2696);", "DEFINE_LONGS(HOST_FP_SIZE, 12288);"),
    ]
}


# ---- which there are ---------------------------------------------------------------------


def folder(cache: Path) -> Path:
    return cache / "uml"


def config_key() -> str:
    recipe = f"{MENDED}{OLDER_CONFIG}{OLDER_MENDED}{BUILT_BY}".encode()
    return hashlib.sha256(CONFIG.read_bytes() + recipe).hexdigest()[:12]


def packaged() -> list[Path]:
    """The folder of the kernels of cqnotify-lab, if that is installed."""
    spec = importlib.util.find_spec("cqnotify_lab")
    return [Path(path) for path in spec.submodule_search_locations or ()] if spec else []


def present(cache: Path) -> list[str]:
    """The versions that have been built, here or for cqnotify-lab, from the configuration of
    today."""
    folders = [folder(cache), *packaged()]
    found = {p.parent.name for each in folders for p in each.glob(f"*-{config_key()}/linux")}
    return sorted((name.rpartition("-")[0] for name in found), key=version_key)


def unfit() -> str | None:
    """Explain why the kernel of cqnotify-lab is not used, if that is installed and has another."""
    folders = packaged()
    if not folders or any(p for each in folders for p in each.glob(f"*-{config_key()}/linux")):
        return None
    return (
        "the kernel of the installed cqnotify-lab is for another version of cqnotify; "
        "cqnotify[lab] names the right one"
    )


def choose(cache: Path, wanted: str | None) -> str | None:
    """The newest that has been built whose version starts with `wanted`, or None. A path is that
    of a kernel which others have built."""
    if wanted and "/" in wanted:
        return wanted
    pattern = re.compile(re.escape(wanted) + r"(?!\d)" if wanted else "")
    return next((v for v in reversed(present(cache)) if pattern.match(v)), None)


def image(cache: Path, version: str) -> Path:
    if "/" in version:
        return Path(version)
    name = f"{version}-{config_key()}"
    places = [each / name / "linux" for each in (folder(cache), *packaged())]
    return next((place for place in places if place.exists()), places[0])


def not_built(wanted: str | None) -> str:
    series = wanted if wanted in SUITES else DEFAULT_SERIES
    why = unfit()
    return (
        f"no kernel {wanted or series} that runs as a process has been built here; "
        f"{FRONT} kernels build {series} builds one, in some minutes"
    ) + (f" ({why})" if why else "")


# ---- whether this machine lets one run ---------------------------------------------------


def refusal(version: str | None) -> str | None:
    """Why a kernel of this version, or the one that would be built, can't be a process here."""
    if platform.machine() != "x86_64":
        return f"User Mode Linux is for x86-64 only, and this machine is {platform.machine()}"
    if succeeds(be_traced):
        return None
    if version and "/" not in version and version_key(version) < SECCOMP_SINCE:
        return f"Linux {version} as a process needs ptrace(2), which this machine forbids"
    if succeeds(be_filtered):
        return None
    return "a kernel that is a process needs ptrace(2) or seccomp(2); this machine forbids both"


def succeeds(call: Callable[[], int]) -> bool:
    """Whether a system call returns 0, in a child of its own."""
    pid = os.fork()
    if pid == 0:
        os._exit(call() != 0)
    return os.waitpid(pid, 0)[1] == 0


def be_traced() -> int:
    return int(LIBC.ptrace(0, 0, None, None))  # PTRACE_TRACEME


def be_filtered() -> int:
    """By a filter of one instruction: "return SECCOMP_RET_ALLOW"."""
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return int(LIBC.prctl(22, 2, program, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def memory_folder(megabytes: int) -> str:
    """Where the file is to be that is the guest's memory; containers have a small /dev/shm."""
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    if shm and not shm.f_flag & os.ST_NOEXEC and shm.f_bavail * shm.f_frsize >> 20 > megabytes:
        return "/dev/shm"
    return tempfile.gettempdir()


# ---- building ----------------------------------------------------------------------------


def build(cache: Path, series: str) -> str:
    """Builds the kernel of a series, unless it is there; returns its version."""
    with locked(folder(cache)):
        return choose(cache, series) or build_now(cache, series)


def build_now(cache: Path, series: str) -> str:
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise LabError(f"building a kernel needs {', '.join(missing)}: install these first")
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free // 2**20
    if free < DISK_MB:
        raise LabError(f"a build needs {DISK_MB} MB in {cache}, and {free} MB are free")
    work = folder(cache) / ".build"
    shutil.rmtree(work, ignore_errors=True)  # of one that was killed
    work.mkdir()
    try:
        progress = Progress(f"building Linux {series} as a process (once)")
        package = download(work, series, progress)
        unpack(package, work, progress)
        (work / "source.json").write_text(json.dumps(source(package), indent=4) + "\n")
        older = series == "6.1"
        mend(work, MENDED | OLDER_MENDED if older else MENDED)
        configure(
            work, CONFIG.read_text() + OLDER_CONFIG if older else CONFIG.read_text(), progress
        )
        compile_all(work, progress)
        version = (work / "include/config/kernel.release").read_text().strip()
        target = folder(cache) / f"{version}-{config_key()}"
        target.mkdir(exist_ok=True)
        for name, path in {**KEPT, "source.json": "source.json", "linux": "linux"}.items():
            (work / path).rename(target / name)
        progress.end(f"built Linux {version} in {time.monotonic() - progress.started:.0f} s")
        return version
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Progress:
    """One line that is written again and again on a terminal; elsewhere a line for each step."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = self.told = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def step(self, text: str, again: bool = False) -> None:
        """`again`: the same step goes on, which is said now and then."""
        now = time.monotonic()
        if again and now - self.told < (0.2 if self.terminal else 30):
            return
        self.told = now
        line = f"lab: {self.what}: {text}"
        print(
            f"\r{line:<78}" if self.terminal else f"{line}\n", end="", file=sys.stderr, flush=True
        )

    def end(self, text: str) -> None:
        print("\r" + " " * 78 + "\r" if self.terminal else "", end="", file=sys.stderr)
        note(text)


def download(work: Path, series: str, progress: Progress) -> Path:
    suite = SUITES[series]
    progress.step(f"fetching its source, of Debian {suite}")
    return debian.fetch(work, suite, f"linux-source-{series}")


def source(package: Path) -> dict[str, str]:
    """Name the source that a kernel is built from. Debian's archive of old packages finds files by
    SHA-1."""
    data = package.read_bytes()
    return {
        "file": package.name,
        "version": package.name.split("_")[1],
        "sha1": hashlib.sha1(data).hexdigest(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def unpack(package: Path, work: Path, progress: Progress) -> None:
    progress.step("unpacking")
    skip = [f"--exclude=linux-source-*/{name}" for name in LEFT_OUT]
    tar = ["tar", "-xJ", "--no-same-owner", "--strip-components=1", "-C", str(work), *skip]
    for name, data in debian.contents(package):
        if re.search(r"/linux-source-[^/]*\.tar\.xz$", name):
            with subprocess.Popen(tar, stdin=subprocess.PIPE) as inner:
                assert inner.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    shutil.copyfileobj(data, inner.stdin)
            if inner.returncode:
                raise LabError(f"cannot unpack {package.name} (is the disk full?)")
            return
    raise LabError(f"{package.name} has no source of a kernel in it")


def mend(work: Path, mended: dict[str, list[tuple[str, str]]]) -> None:
    for name, changes in mended.items():
        text = (work / name).read_text()
        for old, new in changes:
            if text.count(old) != 1:
                raise LabError(f"{name} of this kernel is not what the lab knows: no '{old}'")
            text = text.replace(old, new)
        (work / name).write_text(text)


def make(work: Path, *words: str) -> list[str]:
    date = time.strftime("%Y-%m-%d", time.gmtime((work / "Makefile").stat().st_mtime))
    settings = ["ARCH=um", *BUILT_BY, f"KBUILD_BUILD_TIMESTAMP={date}"]
    return ["make", "-C", str(work), f"-j{os.cpu_count() or 1}", *settings, *words]


def configure(work: Path, wanted: str, progress: Progress) -> None:
    """uml.config on top of as little as there can be; what the kernel does not take is an error."""
    progress.step("configuring")
    run(*make(work, "tinyconfig"))
    with open(work / ".config", "a") as config:
        config.write(wanted)
    run(*make(work, "olddefconfig"))
    made = (work / ".config").read_text().splitlines()
    if "CONFIG_RDMA_RXE=y" not in made:  # one of what it needs has another name by now
        raise LabError("this kernel cannot be configured with rxe by uml.config")


def compile_all(work: Path, progress: Progress) -> None:
    process = subprocess.Popen(
        make(work, "linux"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    compiled = 0
    last: collections.deque[str] = collections.deque(maxlen=15)
    for line in process.stdout:
        last.append(line.rstrip())
        if line.startswith("  CC "):
            compiled += 1
            progress.step(f"{compiled} of some 1,000 files compiled", again=True)
    if process.wait() != 0:
        for line in last:
            print(f"    {line}", file=sys.stderr)
        raise LabError("the kernel does not build here")


# ---- running -----------------------------------------------------------------------------


def initramfs(cache: Path) -> bytes:
    """The guest's init alone: this kernel has no modules."""
    return kernel.cpio(kernel.init(cache))


def frequency() -> str | None:
    """Of this machine's CPU in MHz, as it says itself."""
    found = re.search(r"^cpu MHz\s*: (\S+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else None


def run_folder(cache: Path) -> Path:
    """For the file with its number that it insists on; see tidy_up()."""
    folder(cache).mkdir(parents=True, exist_ok=True)  # not there if others have built the kernel
    return folder(cache) / f"run-{os.getpid()}"


def tidy_up(cache: Path) -> None:
    """Of this process, and of those that were killed before they could."""
    for left in folder(cache).glob("run-*"):
        pid = left.name.removeprefix("run-")
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


def most_mappings() -> int:
    return int(Path("/proc/sys/vm/max_map_count").read_text())


def stuck(pid: int) -> str | None:
    """Why a program of the kernel with this process id does not go on, or None. The program's
    pages are mappings of this machine's, and there is a limit on these; the kernel does not
    notice that it is reached, and tries for ever."""
    most = most_mappings()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
            if pages < most * 0.9:  # one that has fewer need not be asked for all of them
                continue
            with open(f"/proc/{child}/maps", "rb") as maps:
                if sum(1 for _ in maps) >= most:
                    return (
                        f"a program here has its memory in {most} pieces, and this machine allows "
                        "no more: --vm does without, or as root sysctl vm.max_map_count=1000000"
                    )
    return None


def environment(machine: Machine) -> dict[str, str]:
    return {**os.environ, "TMPDIR": memory_folder(machine.memory)}


def command(
    machine: Machine, initrd: int, console: int, lines: list[int], folder: str | None = None
) -> list[str]:
    """Return the command of a kernel whose serial lines are the given descriptors, in the order of
    guest.c's ports; `folder` stands in for run_folder()."""
    words = [str(image(machine.cache, machine.kernel)), f"mem={machine.memory}M", "seccomp=auto"]
    words += [f"initrd=/proc/self/fd/{initrd}", "quiet", "panic=-1", "oops=panic"]
    words += [f"uml_dir={folder or run_folder(machine.cache)}", "umid=lab"]
    words += ["time-travel"] if machine.virtual_time else []
    words += ["con=null", f"con0=null,fd:{console}", "ssl=null"]
    if machine.place:
        words.append(f"vec0:transport=fd,fd={machine.place.cable},mac={machine.place.mac}")
    return words + [f"ssl{number}=fd:{fd}" for number, fd in enumerate(lines)]
