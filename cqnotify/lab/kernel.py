# SPDX-License-Identifier: MIT
"""The guest's kernels: fetched as Debian packages, unpacked below the cache folder.

cache/kernels/VERSION/ holds vmlinuz, vmlinux (the same, uncompressed), lib/modules/VERSION
and initrd-HASH.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from . import debian
from .base import FRONT, HERE, LabError, locked, note, run, version_key
from .debian import zstd

DEFAULT_SUITE = "bookworm"
SERIES = {"bookworm": "6.1", "trixie": "6.12"}
DISK_MB = 1000  # while a package is being unpacked; half of it stays

# What the guest's /init and network.sh use. More is loaded on demand, from lib/modules.
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "virtio_console", "overlay", "virtio_rng"]
MODULES += ["crc32_generic", "veth", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
# Drivers of hardware that the guest does not have: three quarters of a package's files.
LEFT_OUT = re.compile("/kernel/(drivers/(gpu|media|net/wireless|net/ethernet)|sound)/")


# ---- which there are ---------------------------------------------------------------------


def present(cache: Path) -> list[str]:
    found = (p.name for p in (cache / "kernels").glob("*") if (p / "vmlinuz").exists())
    return sorted(found, key=version_key)


def matching(cache: Path, wanted: str) -> list[str]:
    pattern = re.compile(re.escape(wanted) + r"(?!\d)")
    return [v for v in present(cache) if v == wanted or pattern.match(v)]


def newest(cache: Path, wanted: str | None, suite: str | None = None) -> str | None:
    """Return the newest kernel here whose version starts with `wanted`, by default with the series
    of the suite, so that other kernels here do not change a plain run."""
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
            f"More: {FRONT} kernels fetch bookworm|bookworm-backports|trixie|FILE.deb"
        )
    return found


# ---- fetching ----------------------------------------------------------------------------


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
    folder = cache / "apt"
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
    try:
        return unpack(cache, debian.fetch(folder, source, "linux-image-amd64"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the package lists alone are 60 MB


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
    except OSError as error:
        raise LabError(f"cannot unpack {package.name}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def unpack_into(folder: Path, package: Path) -> str:
    for name, data in debian.contents(package):
        name = name.removeprefix("usr/")  # since Debian 13
        if name.startswith(("boot/vmlinuz-", "lib/modules/")) and not LEFT_OUT.search(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as out:
                shutil.copyfileobj(data, out)
    images = list(folder.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise LabError(f"{package.name} is not a Debian kernel package")
    version = images[0].name.removeprefix("vmlinuz-")
    run("depmod", "-b", folder, version)
    if "rdma_rxe" not in dependencies(folder / "lib/modules" / version):
        raise LabError(f"kernel {version} comes without the module rdma_rxe")
    (folder / "vmlinux").write_bytes(uncompressed(images[0].read_bytes()) or images[0].read_bytes())
    images[0].rename(folder / "vmlinuz")
    (folder / "boot").rmdir()
    return version


# ---- what is in them ---------------------------------------------------------------------


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


# ---- programs of the guest ---------------------------------------------------------------


def program(cache: Path, name: str, *flags: str) -> Path:
    """What is built from NAME.c: it comes with an installed package; elsewhere gcc makes it."""
    made = place_of(cache, name, *flags)
    if not made.exists():
        part, source = made.with_suffix(f".{os.getpid()}"), HERE / f"{name}.c"
        run("gcc", *flags, "-O2", "-std=c11", "-Wall", "-Wextra", "-o", part, source)
        part.rename(made)
    return made


def place_of(cache: Path, name: str, *flags: str) -> Path:
    if (HERE / name).exists():
        return HERE / name
    source = (HERE / f"{name}.c").read_bytes() + str(flags).encode()
    return cache / f"{name}-{hashlib.sha256(source).hexdigest()[:16]}"


def guest_program(cache: Path) -> Path:
    return program(cache, "guest")


def libc() -> Iterator[tuple[str, Path]]:
    """This machine's C library and its loader, since the guest's program has none in it: those of
    this process, by the names that it asks for."""
    names = {"ld-linux": "ld-linux-x86-64.so.2", "ld-2": "ld-linux-x86-64.so.2"}
    names |= {"libc.so": "libc.so.6", "libc-2": "libc.so.6", "ld-musl": "ld-musl-x86_64.so.1"}
    mapped = re.findall(r"(/\S*/(ld-linux|ld-2|libc\.so|libc-2|ld-musl)\S*)$", maps(), re.M)
    yield from {names[kind]: Path(path) for path, kind in mapped}.items()


def maps() -> str:
    return Path("/proc/self/maps").read_text()


def init(cache: Path) -> list[tuple[str, int, bytes]]:
    """The guest's init, and what it needs to run, for cpio()."""
    entries = [("lib", 0o40755, b""), ("lib64", 0o120777, b"lib")]
    entries += [(f"lib/{name}", 0o100755, path.read_bytes()) for name, path in libc()]
    return [*entries, ("init", 0o100755, guest_program(cache).read_bytes())]


def initramfs(cache: Path, version: str) -> Path:
    """The part of the initramfs that is the same for every run."""
    entries = init(cache)
    key = hashlib.sha256(cpio(entries) + str(MODULES).encode()).hexdigest()[:16]
    path = cache / "kernels" / version / f"initrd-{key}"
    if not path.exists():
        entries.append(("m", 0o40755, b""))
        for number, module in enumerate(load_order(modules(cache, version))):
            name = f"m/{number:02}-{module_name(module.name)}"
            entries.append((name, 0o100644, module_data(module)))
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(cpio(entries))
        part.rename(path)
    return path
