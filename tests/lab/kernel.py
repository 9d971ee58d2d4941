# SPDX-License-Identifier: MIT
"""The guest's kernels: fetched as Debian packages, unpacked below the cache folder.

cache/kernels/VERSION/ holds vmlinuz, vmlinux (the same, uncompressed), lib/modules/VERSION
and initrd-HASH. Nothing is installed: apt runs with a configuration and a state of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT_SUITE = "bookworm"
SERIES = {"bookworm": "6.1", "trixie": "6.12"}
MIRROR = os.environ.get("CQNOTIFY_LAB_MIRROR", "http://deb.debian.org/debian")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DISK_MB = 1000  # while a package is being unpacked; half of it stays

# What the guest's /init and network.sh use. More is loaded on demand, from lib/modules.
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "virtio_console", "overlay", "virtio_rng"]
MODULES += ["crc32_generic", "veth", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
# Drivers of hardware that the guest does not have: three quarters of a package's files.
LEFT_OUT = ["drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/net/ethernet", "sound"]


class LabError(Exception):
    """One line for the user; the lab ends with `code`."""

    def __init__(self, message: str, code: int = 125) -> None:
        super().__init__(message)
        self.code = code


def note(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr, flush=True)


# ---- which there are ---------------------------------------------------------------------


def version_key(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def present(cache: Path) -> list[str]:
    found = (p.name for p in (cache / "kernels").glob("*") if (p / "vmlinuz").exists())
    return sorted(found, key=version_key)


def matching(cache: Path, wanted: str) -> list[str]:
    pattern = re.compile(re.escape(wanted) + r"(?!\d)")
    return [v for v in present(cache) if v == wanted or pattern.match(v)]


def newest(cache: Path, wanted: str | None, suite: str | None = None) -> str | None:
    """Of those that are here: the newest whose version starts with `wanted`, by default with the
    series of the suite, so that other kernels here do not change a plain run."""
    return next(reversed(matching(cache, wanted or SERIES[suite or DEFAULT_SUITE])), None)


def choose(cache: Path, wanted: str | None, suite: str | None = None) -> str:
    """newest(), and the suite's own is fetched if need be."""
    if wanted is None and not newest(cache, wanted, suite):
        with locked(cache):
            if not newest(cache, wanted, suite):
                fetch(cache, suite or DEFAULT_SUITE)
    found = newest(cache, wanted, suite)
    if found is None:
        raise LabError(
            f"no kernel {wanted} here; there are: {', '.join(present(cache)) or 'none'}. "
            "More: ./lab kernels fetch bookworm|bookworm-backports|trixie|FILE.deb"
        )
    return found


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Set-up is done by one lab at a time; ./lab takes the same lock."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- fetching ----------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path | None = None, apt_config: Path | None = None) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    if apt_config:
        env["APT_CONFIG"] = str(apt_config)
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if result.returncode != 0:
        for line in result.stdout.splitlines()[-10:]:
            print(f"    {line}", file=sys.stderr)
        raise LabError(f"{Path(str(command[0])).name} failed ({result.returncode})")
    return result.stdout


def private_apt(cache: Path, suite: str) -> Path:
    """An apt configuration that reads and writes nothing of the system's but its proxy."""
    if not KEYRING.exists():
        raise LabError(
            f"{KEYRING} is missing; install it with: apt-get install debian-archive-keyring"
        )
    base = cache / "apt" / suite
    for folder in ("state/lists/partial", "cache/archives/partial", "etc"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    sources = f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n"
    if "-" not in suite:
        security = MIRROR.rstrip("/") + "-security"
        sources += f"deb [signed-by={KEYRING}] {security} {suite}-security main\n"
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


def download(cache: Path, suite: str) -> Path:
    config = private_apt(cache, suite)
    run("apt-get", "update", apt_config=config)
    depends = run("apt-cache", "depends", "linux-image-amd64", apt_config=config)
    images = re.findall(r"Depends: (linux-image-\S+)", depends)
    if not images:
        raise LabError(f"{suite} has no package linux-image-amd64")
    folder = cache / "apt" / suite / "debs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run("apt-get", "download", images[-1], cwd=folder, apt_config=config)
    return next(folder.glob("*.deb"))


def fetch(cache: Path, source: str) -> str:
    """Fetches the kernel of a suite, or unpacks a package; returns its version. Hold the lock."""
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free // 2**20
    if free < DISK_MB:
        raise LabError(f"a kernel needs {DISK_MB} MB in {cache}, and {free} MB are free")
    if source.endswith(".deb"):
        if not Path(source).is_file():
            raise LabError(f"no such file: {source}")
        return unpack(cache, Path(source).resolve())
    note(f"fetching the kernel of Debian {source} (once)")
    package = download(cache, source)
    try:
        return unpack(cache, package)
    finally:
        shutil.rmtree(cache / "apt")  # the package lists alone are 60 MB


def unpack(cache: Path, package: Path) -> str:
    new = cache / "kernels" / f".new-{os.getpid()}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        version = unpack_into(new, package)
        target = cache / "kernels" / version
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
        return version
    finally:
        shutil.rmtree(new, ignore_errors=True)


def unpack_into(folder: Path, package: Path) -> str:
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as deb:
        skip = [f"--exclude=*/kernel/{name}" for name in LEFT_OUT]
        tar = ["tar", "-x", "--no-same-owner", "-C", str(folder), *skip]
        unpacked = subprocess.run(tar, stdin=deb.stdout, stderr=subprocess.DEVNULL)
    images = list(folder.glob("boot/vmlinuz-*"))
    if deb.returncode or unpacked.returncode or len(images) != 1:
        raise LabError(f"{package.name} is not a Debian kernel package (or the disk is full)")
    version = images[0].name.removeprefix("vmlinuz-")
    if (folder / "usr/lib/modules").exists():  # since Debian 13
        (folder / "usr/lib").rename(folder / "lib")
    run("depmod", "-b", folder, version)
    if "rdma_rxe" not in dependencies(folder / "lib/modules" / version):
        raise LabError(f"kernel {version} comes without the module rdma_rxe")
    (folder / "vmlinux").write_bytes(uncompressed(images[0].read_bytes()) or images[0].read_bytes())
    images[0].rename(folder / "vmlinuz")
    for rest in ("usr", "boot"):
        shutil.rmtree(folder / rest, ignore_errors=True)
    return version


# ---- what is in them ---------------------------------------------------------------------


def zstd(data: bytes) -> bytes:
    if not shutil.which("zstd"):
        raise LabError("this kernel is packed with zstd; install it with: apt-get install zstd")
    # The payload is followed by its length, which zstd calls garbage after having done its work.
    command = ["zstd", "-dcq"]
    return subprocess.run(
        command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


def uncompressed(image: bytes) -> bytes | None:
    """The kernel inside a bzImage: QEMU boots it without firmware, seconds sooner."""
    offset, size = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    payload = image[start : start + size]
    if payload[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(payload)
    if payload[:4] == b"\x28\xb5\x2f\xfd":
        return zstd(payload) or None
    return None


def module_name(path: str) -> str:
    return re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path)).replace("-", "_")


def dependencies(modules: Path) -> dict[str, list[str]]:
    """Module name -> its file and the files it needs, in the order of modules.dep."""
    table = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        table[module_name(path)] = [path, *needs.split()]
    return table


def modules(cache: Path, version: str) -> Path:
    return cache / "kernels" / version / "lib/modules" / version


def has_module(cache: Path, version: str, name: str) -> bool:
    return name in dependencies(modules(cache, version))


def load_order(modules: Path) -> list[Path]:
    table = dependencies(modules)
    order: dict[Path, None] = {}
    for name in MODULES:  # one that is built in is not in the table
        order.update((modules / path, None) for path in reversed(table.get(name, [])))
    return list(order)


def module_data(path: Path) -> bytes:
    data = path.read_bytes()
    match path.suffix:
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".zst":
            return zstd(data)
    return data


def cpio(entries: list[tuple[str, int, bytes]]) -> bytes:
    """An initramfs archive; several may follow each other."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        label = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(label), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + label
        for part in (head, data):
            out += part + b"\0" * (-len(part) % 4)
    return bytes(out)


def guest_program(cache: Path) -> Path:
    source = HERE / "guest.c"
    program = cache / f"guest-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        part = program.with_suffix(f".{os.getpid()}")
        run("gcc", "-static", "-O2", "-std=c11", "-Wall", "-Wextra", "-o", part, source)
        part.rename(program)
    return program


def initramfs(cache: Path, version: str) -> Path:
    """The part of the initramfs that is the same for every run."""
    program = guest_program(cache)
    key = hashlib.sha256(f"{program.name} {MODULES}".encode()).hexdigest()[:16]
    path = cache / "kernels" / version / f"initrd-{key}"
    if not path.exists():
        entries = [("m", 0o40755, b""), ("init", 0o100755, program.read_bytes())]
        for number, module in enumerate(load_order(modules(cache, version))):
            name = f"m/{number:02}-{module_name(module.name)}"
            entries.append((name, 0o100644, module_data(module)))
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(cpio(entries))
        part.rename(path)
    return path
