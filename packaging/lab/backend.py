# SPDX-License-Identifier: MIT
"""Builds the wheel of cqnotify-lab, by PEP 517: `pip wheel packaging/lab`, in a checkout.

It has the kernel that is in the lab's cache, with the licence, the configuration and the pointer to
the source that a kernel must come with. The same kernel makes the same bytes of a wheel.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[1]
SERIES: Final = "7.2"
NEW_YEAR: Final = (1980, 1, 1, 0, 0, 0)  # the first date that a zip file can have
LICENSES: Final = ("COPYING", "GPL-2.0", "Linux-syscall-note")


def lab() -> ModuleType:
    """cqnotify.lab.uml of these sources, whose core need not be built; see its __main__.py."""
    bare = ModuleType("cqnotify")
    bare.__path__ = [str(PROJECT / "cqnotify")]
    sys.modules["cqnotify"] = bare
    return importlib.import_module("cqnotify.lab.uml")


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("CQNOTIFY_LAB_CACHE") or Path(home, "cqnotify-lab"))


def kernel(uml: ModuleType) -> Path:
    """The folder of the newest kernel in the cache."""
    built = uml.folder(cache()).glob(f"{SERIES}.*-{uml.config_key()}/linux")
    found = sorted(built, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)])
    if not found:
        sys.exit(f"there is no kernel {SERIES} in {cache()}: ./lab kernels build builds it")
    return Path(found[-1].parent)


# ---- what is in the wheel ----------------------------------------------------------------


def package(folder: Path, known: dict[str, str]) -> dict[str, bytes]:
    """The package, by the names that its files have where it is installed."""
    named = f"cqnotify_lab/{folder.name}"
    return {
        "cqnotify_lab/__init__.py": (HERE / "cqnotify_lab/__init__.py").read_bytes(),
        f"{named}/SOURCE.md": (HERE / "SOURCE.md").read_text().format(**known).encode(),
        f"{named}/config": (folder / "config").read_bytes(),
        f"{named}/linux": (folder / "linux").read_bytes(),
    }


def facts(project: dict[str, Any], folder: Path, uml: ModuleType) -> dict[str, str]:
    """What SOURCE.md and the list of components say of the kernel."""
    return {
        **json.loads((folder / "source.json").read_text()),
        "release": project["version"],
        "series": SERIES,
        "linux": folder.name.rpartition("-")[0],
        "linux_sha256": hashlib.sha256((folder / "linux").read_bytes()).hexdigest(),
        "changes": changes(uml),
    }


def changes(uml: ModuleType) -> str:
    parts = []
    for name, replaced in uml.MENDED.items():
        for old, new in replaced:
            parts.append(f"In `{name}`:\n\n```\n{old}\n```\n\nis now\n\n```\n{new}\n```\n")
    return "\n".join(parts)


def tag(image: bytes) -> str:
    """The glibc that the kernel needs: the newest version that it names."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", image)
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"py3-none-manylinux_{major}_{minor}_x86_64"


def metadata(project: dict[str, Any], tag: str) -> dict[str, bytes]:
    """The files of .dist-info."""
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", project["name"]),
        ("Version", project["version"]),
        ("Summary", project["description"]),
        ("Keywords", ",".join(project["keywords"])),
        ("License-Expression", project["license"]),
        *(("License-File", name) for name in ("LICENSE", *LICENSES)),
        *(("Classifier", name) for name in project["classifiers"]),
        ("Requires-Python", project["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
    ]
    if url := os.environ.get("CQNOTIFY_URL", "").rstrip("/"):
        fields.append(("Project-URL", f"Source, {url}"))
    head = "".join(f"{name}: {value}\n" for name, value in fields)
    page = (HERE / project["readme"]).read_text()
    wheel = f"Wheel-Version: 1.0\nGenerator: cqnotify-lab\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {"METADATA": f"{head}\n{page}".encode(), "WHEEL": wheel.encode()}


def sbom(project: dict[str, Any], known: dict[str, str]) -> bytes:
    """The components, as CycloneDX has them, for PEP 770."""
    linux = {
        "type": "operating-system",
        "name": "linux",
        "version": known["linux"],
        "purl": f"pkg:deb/debian/linux@{quote(known['version'])}?arch=source",
        "hashes": [{"alg": "SHA-256", "content": known["linux_sha256"]}],
        "licenses": [{"expression": "GPL-2.0-only WITH Linux-syscall-note"}],
    }
    name, version = project["name"], project["version"]
    whole = {"type": "library", "name": name, "version": version}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**whole, "purl": f"pkg:pypi/{name}@{version}"}},
        "components": [linux],
    }
    return json.dumps(document, indent=2).encode() + b"\n"


# ---- the wheel ---------------------------------------------------------------------------


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    uml = lab()
    folder = kernel(uml)
    known = facts(project, folder, uml)
    stem, made_for = f"cqnotify_lab-{project['version']}", tag((folder / "linux").read_bytes())
    licenses = {"LICENSE": PROJECT / "LICENSE", **{name: folder / name for name in LICENSES}}
    about = {
        **metadata(project, made_for),
        **{f"licenses/{name}": path.read_bytes() for name, path in licenses.items()},
        "sboms/cqnotify-lab.cdx.json": sbom(project, known),
    }
    entries = package(folder, known)
    entries |= {f"{stem}.dist-info/{name}": data for name, data in about.items()}
    listed = f"{stem}.dist-info/RECORD"
    entries[listed] = record(entries, listed)
    name = f"{stem}-{made_for}.whl"
    write(Path(wheel_directory, name), entries)
    return name


def record(entries: dict[str, bytes], own: str) -> bytes:
    lines = []
    for name, data in entries.items():
        coded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={coded},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"]).encode()


def write(path: Path, entries: dict[str, bytes]) -> None:
    """A zip file without anything of this machine: dates, users, the order of a folder."""
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name, NEW_YEAR)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, which has modes
            entry.external_attr = (0o100755 if name.endswith("/linux") else 0o100644) << 16
            wheel.writestr(entry, data, compresslevel=9)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    sys.exit("cqnotify-lab has no source distribution: its kernel's source is Debian's")
