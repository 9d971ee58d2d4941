# SPDX-License-Identifier: MIT
"""What is handed out has in it what it should, and works where it is installed."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from distributions import (
    PROJECT,
    Distributions,
    build,
    debug_sections,
    isolated,
    linked,
    project_files,
    verbs_needed,
)

import cqnotify
from cqnotify._core import NO_DEVICE

# The core works with a libibverbs that has this, whatever it was built with: rdma-core 32 was the
# first. Debian 12's, 44, has up to IBVERBS_1.14. What would demand more belongs behind dlsym(3).
NEWEST_VERBS = (1, 11)

LARGEST_CORE = 420_000  # bytes; four times that with what is for debuggers

DEVICES = Path("/sys/class/infiniband")


WHERE_THE_CORE_IS = "import cqnotify._core as core; print(core.__file__, end='')"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Distributions:
    folder = pytestconfig.getoption("--distributions")
    return Distributions.of(Path(folder)) if folder else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def core(made: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C core in the wheel."""
    (name,) = (n for n in made.wheel_names() if n.endswith(".so"))
    with zipfile.ZipFile(made.wheel) as wheel:
        return Path(wheel.extract(name, tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="session")
def python(made: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the package, made from its sources, and nothing else."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    found = venv / "bin/python"
    install = [found, "-m", "pip", "install", made.sdist]
    subprocess.run(install, check=True, env=isolated())
    return found


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """In another folder: here the sources are in the way."""
    merged = os.environ | (env or {})
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=merged)


# ---- what is in them ----------------------------------------------------------------------


def test_the_source_distribution_is_the_project_and_nothing_else(made: Distributions) -> None:
    generated = re.compile(r"PKG-INFO|setup\.cfg|cqnotify\.egg-info/.*")
    names = {name for name in made.sdist_names() if not generated.fullmatch(name)}
    assert names == project_files() - {".gitignore"}


def test_the_wheel_is_the_package_and_nothing_else(made: Distributions) -> None:
    names = {name for name in made.wheel_names() if ".dist-info/" not in name}
    (core,) = (name for name in names if name.endswith(".so"))
    assert re.fullmatch(r"cqnotify/_core\.cpython-\w+-[\w-]+\.so", core)
    package = {name for name in project_files() if name.startswith("cqnotify/")}
    assert names - {core} == package | {"pytest_cqnotify.py"}
    assert package >= {"cqnotify/py.typed", "cqnotify/_core.pyi"}


def test_an_index_takes_them(made: Distributions, tmp_path: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    done = run(*check, made.sdist, made.wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


# ---- the core in the wheel ----------------------------------------------------------------


def test_the_wheel_links_the_machines_own_libibverbs(made: Distributions, core: Path) -> None:
    libraries, folders = linked(core)
    assert "libibverbs.so.1" in libraries
    glibc = {"libc", "libpthread", "ld-linux-x86-64"}  # the last one gives a thread its variables
    assert {name.split(".")[0] for name in libraries} <= {"libibverbs", *glibc}
    assert folders == set()
    assert "manylinux" in made.wheel.name


def test_the_core_has_nothing_for_debuggers_in_it_but_names(core: Path) -> None:
    assert debug_sections(core) == set()
    assert core.stat().st_size < LARGEST_CORE
    assert b"wc_raise_for_status" in core.read_bytes()  # static: a backtrace says where it was


def test_what_pip_makes_of_the_sources_is_as_small(python: Path, tmp_path: Path) -> None:
    core = Path(run(python, "-c", WHERE_THE_CORE_IS, cwd=tmp_path).stdout)
    assert debug_sections(core) == set()
    assert core.stat().st_size < LARGEST_CORE


def test_a_debugger_finds_the_lines_of_what_is_built_in_place() -> None:
    core = importlib.import_module("cqnotify._core").__file__
    assert core is not None
    assert {".debug_info", ".debug_line"} <= debug_sections(Path(core))


def test_who_asks_for_debug_information_gets_it(made: Distributions, tmp_path: Path) -> None:
    """As the tools of Linux distributions do, which keep it in packages of its own."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, made.sdist]
    subprocess.run(build, check=True, env=isolated() | {"CFLAGS": "-g -O2"})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".so"))
        core = Path(archive.extract(name, tmp_path))
    assert {".debug_info", ".debug_line"} <= debug_sections(core)


def test_the_wheel_needs_no_newer_libibverbs_than_it_says(core: Path) -> None:
    verbs = dict(verbs_needed(core))
    assert "ibv_open_device" in verbs
    private = {verb for verb, version in verbs.items() if "PRIVATE" in version}
    assert private == set()  # they change with each release of rdma-core
    numbers = {v: tuple(map(int, re.findall(r"\d+", version))) for v, version in verbs.items()}
    assert {verb: n for verb, n in numbers.items() if n > NEWEST_VERBS} == {}
    assert max(numbers.values()) == NEWEST_VERBS


# ---- what was installed -------------------------------------------------------------------


def test_the_version_is_the_same_everywhere(
    made: Distributions, python: Path, tmp_path: Path
) -> None:
    version = cqnotify.__version__
    for said in ("__import__('cqnotify').__version__", "metadata.version('cqnotify')"):
        program = f"from importlib import metadata; print({said})"
        assert run(python, "-c", program, cwd=tmp_path).stdout == f"{version}\n"
    for command in ([python.parent / "cqnotify"], [python, "-m", "cqnotify"]):
        assert run(*command, "--version", cwd=tmp_path).stdout == f"cqnotify {version}\n"
    assert made.sdist.name == f"cqnotify-{version}.tar.gz"
    assert made.wheel.name.startswith(f"cqnotify-{version}-")
    headings = re.findall(r"^## \[(.*?)\]", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version


def test_what_pip_made_of_the_sources_runs(python: Path, tmp_path: Path) -> None:
    there = DEVICES.exists() and any(DEVICES.iterdir())
    done = run(python, "-m", "cqnotify", "devices", cwd=tmp_path)
    assert done.returncode == (0 if there else 3)
    assert done.stderr == ("" if there else f"cqnotify: {NO_DEVICE}\n")


def test_what_pip_made_of_the_sources_is_typed(python: Path, tmp_path: Path) -> None:
    program = "from importlib.metadata import files; print(*files('cqnotify'), sep='\\n')"
    names = set(run(python, "-c", program, cwd=tmp_path).stdout.splitlines())
    assert names >= {"cqnotify/py.typed", "cqnotify/_core.pyi"}


# ---- where a library is missing -----------------------------------------------------------

IMPORT = """
try:
    import cqnotify
except ImportError as e:
    print(e, repr(e.__cause__), sep="\\n")
"""


@pytest.fixture(scope="session")
def hide_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("audit") / "hide_library.so"
    source = Path(__file__).with_name("hide_library.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def import_without(library: str, python: Path, hide_library: Path, tmp_path: Path) -> list[str]:
    hidden = {"LD_AUDIT": str(hide_library), "HIDDEN_LIBRARY": library}
    done = run(python, "-c", IMPORT, cwd=tmp_path, env=hidden)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_without_libibverbs_the_import_says_what_to_install(
    python: Path, hide_library: Path, tmp_path: Path
) -> None:
    said, cause = import_without("libibverbs.so.1", python, hide_library, tmp_path)
    assert said.startswith("cqnotify needs libibverbs.so.1, which is not installed here. ")
    assert "Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers;" in said
    assert "Fedora, RHEL: dnf install libibverbs" in said
    assert cause.startswith("ImportError('libibverbs.so.1: cannot open shared object file: ")


def test_what_else_is_missing_is_said_as_it_is(
    python: Path, hide_library: Path, tmp_path: Path
) -> None:
    said, cause = import_without("libnl-3.so.200", python, hide_library, tmp_path)
    assert said.startswith("libnl-3.so.200: cannot open shared object file: ")
    assert cause == "None"
