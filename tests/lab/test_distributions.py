# SPDX-License-Identifier: MIT
"""What is handed out has in it what it should, and works where it is installed."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from distributions import (
    LARGEST_CORE,
    PROJECT,
    Distributions,
    core_of,
    debug_sections,
    dynamic_symbols,
    isolated,
    linked,
    project_files,
)

import cqnotify
from cqnotify._core import why_no_device

LARGEST_LAB = 150_000  # bytes of the wheel
LAB_PROGRAMS = ("guest", "seeded") if platform.machine() == "x86_64" else ()

DEVICES = Path("/sys/class/infiniband")


WHERE_THE_CORE_IS = "import cqnotify._core as core; print(core.__file__, end='')"


@pytest.fixture(scope="session")
def core(made: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C core in the wheel."""
    return core_of(made, tmp_path_factory.mktemp("wheel"))


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
    libraries = {name for name in names if name.endswith(".so")}
    built = r"(cqnotify/\w+)\.cpython-\w+-[\w-]+\.so"
    stems = sorted(re.sub(built, r"\1", name) for name in libraries)
    assert stems == ["cqnotify/_core", "cqnotify/_observer"]
    package = {name for name in project_files() if name.startswith("cqnotify/")}
    programs = {f"cqnotify/lab/{name}" for name in LAB_PROGRAMS}
    assert names - libraries == package | programs | {"pytest_cqnotify.py"}
    assert package >= {"cqnotify/py.typed", "cqnotify/_core.pyi"}


def test_the_list_of_components_is_the_compiled_files_of_the_wheel(made: Distributions) -> None:
    with zipfile.ZipFile(made.wheel) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".cdx.json"))
        listed = json.loads(wheel.read(name))
        compiled = {
            name: hashlib.sha256(data).hexdigest()
            for name in wheel.namelist()
            if (data := wheel.read(name))[:4] == b"\x7fELF"
        }
    assert name == f"cqnotify-{cqnotify.__version__}.dist-info/sboms/cqnotify.cdx.json"
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert listed["metadata"]["component"]["version"] == cqnotify.__version__
    hashes = {each["name"]: each["hashes"][0]["content"] for each in listed["components"]}
    assert hashes == compiled
    assert len(compiled) == 2 + len(LAB_PROGRAMS)


def test_the_lab_is_a_small_part_of_the_wheel(made: Distributions) -> None:
    with zipfile.ZipFile(made.wheel) as wheel:
        lab = [e.compress_size for e in wheel.infolist() if e.filename.startswith("cqnotify/lab/")]
    assert sum(lab) < LARGEST_LAB


def test_an_index_takes_them(made: Distributions, tmp_path: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    done = run(*check, made.sdist, made.wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)")


def page(metadata: bytes) -> str:
    return metadata.decode().partition("\n\n")[2]


def test_the_page_of_an_index_has_no_link_to_files_beside_it(made: Distributions) -> None:
    with zipfile.ZipFile(made.wheel) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        said = page(wheel.read(name))
    assert said.startswith("# cqnotify\n")
    assert RELATIVE_LINK.search(said) is None


def test_with_the_repositorys_address_the_pages_links_lead_there(
    made: Distributions, tmp_path: Path
) -> None:
    with tarfile.open(made.sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    program = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    url = "https://git.example.org/it/cqnotify"
    done = run(sys.executable, "-c", program, cwd=source, env={"CQNOTIFY_URL": f"{url}/"})
    metadata = source / done.stdout.splitlines()[-1] / "METADATA"
    said = metadata.read_text()
    assert f"Project-URL: Source, {url}\n" in said
    assert RELATIVE_LINK.search(said) is None
    linked = re.findall(re.escape(f"]({url}/blob/v{cqnotify.__version__}/") + r"([^)#]*)", said)
    assert "docs/lab.md" in linked
    assert [name for name in linked if not (PROJECT / name).exists()] == []


# ---- the core in the wheel ----------------------------------------------------------------


def test_the_wheel_links_nothing_but_libc(made: Distributions, core: Path) -> None:
    """libibverbs belongs to the machine, with the providers of its devices: it is found there."""
    libraries, folders = linked(core)
    glibc = {"libc", "libpthread", "ld-linux-x86-64"}  # the last one gives a thread its variables
    assert {name.split(".")[0] for name in libraries} <= glibc
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


@pytest.mark.release
def test_who_asks_for_debug_information_gets_it(made: Distributions, tmp_path: Path) -> None:
    """As the tools of Linux distributions do, which keep it in packages of its own."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, made.sdist]
    subprocess.run(build, check=True, env=isolated() | {"CFLAGS": "-g -O2"})
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"cqnotify/_core.*\.so", n))
        core = Path(archive.extract(name, tmp_path))
    assert {".debug_info", ".debug_line"} <= debug_sections(core)


def test_the_wheel_needs_no_libibverbs_and_hides_its_own_functions(core: Path) -> None:
    symbols = dynamic_symbols(core)
    assert {"PyInit__core", "dlsym"} <= symbols
    assert {name for name in symbols if "ibv_" in name or "rdma_" in name} == set()


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
    recipe = (PROJECT / "packaging/conda/recipe.yaml").read_text()
    assert re.findall(r"^  version: (.*)", recipe, re.MULTILINE)[0] == version
    kernel = tomllib.loads((PROJECT / "packaging/lab/pyproject.toml").read_text())
    assert kernel["project"]["version"] == version
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    (extra,) = project["optional-dependencies"]["lab"]
    assert extra.startswith(f"cqnotify-lab=={version}; platform_machine == 'x86_64'")
    entry = (PROJECT / "packaging/debian/changelog").read_text()
    assert entry.startswith(f"cqnotify ({version}-")


def test_what_pip_made_of_the_sources_runs(python: Path, tmp_path: Path) -> None:
    there = DEVICES.exists() and any(DEVICES.iterdir())
    done = run(python, "-m", "cqnotify", "devices", cwd=tmp_path)
    assert done.returncode == (0 if there else 3)
    assert done.stderr == ("" if there else f"cqnotify: {why_no_device()}\n")


def test_what_pip_made_of_the_sources_is_typed(python: Path, tmp_path: Path) -> None:
    program = "from importlib.metadata import files; print(*files('cqnotify'), sep='\\n')"
    names = set(run(python, "-c", program, cwd=tmp_path).stdout.splitlines())
    assert names >= {"cqnotify/py.typed", "cqnotify/_core.pyi"}


# ---- where a library is missing -----------------------------------------------------------


@pytest.fixture(scope="session")
def hide_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("audit") / "hide_library.so"
    source = Path(__file__).with_name("hide_library.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def devices_without(library: str, python: Path, hide_library: Path, tmp_path: Path) -> str:
    hidden = {"LD_AUDIT": str(hide_library), "HIDDEN_LIBRARY": library}
    assert run(python, "-c", "import cqnotify", cwd=tmp_path, env=hidden).returncode == 0
    done = run(python, "-m", "cqnotify", "devices", cwd=tmp_path, env=hidden)
    assert (done.returncode, done.stdout) == (3, "")
    return done.stderr


def test_without_libibverbs_it_imports_and_says_what_to_install(
    python: Path, hide_library: Path, tmp_path: Path
) -> None:
    said = devices_without("libibverbs.so.1", python, hide_library, tmp_path)
    assert "cqnotify needs libibverbs.so.1 (" in said
    assert "Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers;" in said
    assert "Fedora, RHEL: dnf install libibverbs)" in said
    assert ": libibverbs.so.1: cannot open shared object file: " in said


def test_what_else_is_missing_is_said_as_it_is(
    python: Path, hide_library: Path, tmp_path: Path
) -> None:
    said = devices_without("libnl-3.so.200", python, hide_library, tmp_path)
    assert ": libnl-3.so.200: cannot open shared object file: " in said
