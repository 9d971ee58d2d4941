# SPDX-License-Identifier: MIT
"""What `import cqnotify` finds."""

from __future__ import annotations

import pickle
import shutil
from importlib.machinery import EXTENSION_SUFFIXES
from modulefinder import ModuleFinder
from pathlib import Path

import pytest
from support import python

import cqnotify
from cqnotify import enums, hw
from cqnotify.cli import COMMANDS

SOURCES = Path(__file__).parents[2] / "cqnotify"


def test_where_the_sources_are_in_the_way_the_import_says_so(tmp_path: Path) -> None:
    shutil.copytree(
        SOURCES, tmp_path / "cqnotify", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # -S: without what is installed
    done = python("-S", "-c", "import cqnotify", cwd=tmp_path)
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {tmp_path}/cqnotify has cqnotify's sources" in done.stderr


def test_importing_the_package_brings_no_module_that_takes_long_and_is_not_needed_yet() -> None:
    # -I -S: what the environment imports at its start is left out.
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCES.parent)!r}); before = {{*sys.modules}}\n"
        "import cqnotify; print(*sorted({*sys.modules} - before))"
    )
    done = python("-I", "-S", "-c", program)
    brought = set(done.stdout.split())
    assert "cqnotify.context" in brought
    late = {"enum", "typing", "re", "ipaddress", "dataclasses", "inspect", "asyncio"}
    assert not brought & {*late, "cqnotify.attrs", "cqnotify.hw"}


def test_names_that_come_later_are_the_same_from_wherever_they_are_asked_for() -> None:
    assert cqnotify.QPAddress is cqnotify.qp.QPAddress
    assert cqnotify.DeviceAttr is cqnotify.attrs.DeviceAttr
    assert hw.TSOCaps is cqnotify.attrs.TSOCaps
    for module in (cqnotify, hw):
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'nothing'"):
            module.nothing  # noqa: B018


def test_an_enum_is_built_when_it_is_first_asked_for_and_no_other_with_it() -> None:
    program = (
        "import cqnotify, cqnotify.enums as enums, sys\n"
        "def built(): return [name for name in enums.__all__ if name in vars(enums)]\n"
        "print(built())\n"
        "assert cqnotify.QPType is enums.QPType is cqnotify.QPType\n"
        "print(built())"
    )
    done = python("-c", program)
    assert (done.stdout, done.stderr) == ("['enum_or_int']\n['QPType', 'enum_or_int']\n", "")


def test_all_threads_that_ask_for_an_enum_first_get_the_same_class() -> None:
    program = """
import sys, threading
from cqnotify import enums, hw
from cqnotify.cli import COMMANDS
sys.setswitchinterval(1e-6)
n, names = 4, [name for name in enums.__all__ if name != "enum_or_int"]
together, found = threading.Barrier(n), [[] for _ in range(n)]
def ask(mine):
    for name in names:
        together.wait()
        mine.append(getattr(enums, name))
threads = [threading.Thread(target=ask, args=(mine,)) for mine in found]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found[0]) == len(names) and all(mine == found[0] for mine in found)
assert found[0] == [getattr(enums, name) for name in names]
"""
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_process_that_has_not_built_an_enum_unpickles_its_members(protocol: int) -> None:
    members = [enums.QPType.UD, enums.SendFlags.SIGNALED | enums.SendFlags.FENCE, enums.MTU]
    program = (
        f"import pickle; a, b, c = pickle.loads({pickle.dumps(members, protocol)!r})\n"
        "print(a, b == 3, type(b).__name__, c.MTU_256.bytes)"
    )
    done = python("-c", program)
    assert (done.stdout, done.stderr) == ("QPType.UD True SendFlags 256\n", "")


def test_a_star_import_brings_enums_that_were_not_built_yet() -> None:
    done = python("-c", "from cqnotify import *; print(QPType.RC, WCStatus(0))")
    assert (done.stdout, done.stderr) == ("QPType.RC WCStatus.SUCCESS\n", "")


def test_the_core_of_another_python_is_named_with_this_python(tmp_path: Path) -> None:
    shutil.copytree(
        SOURCES, tmp_path / "cqnotify", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (tmp_path / "cqnotify/_core.cpython-39-x86_64-linux-gnu.so").touch()
    done = python("-S", "-c", "import cqnotify", cwd=tmp_path)
    assert done.returncode == 1
    assert "core for another Python, _core.cpython-39-x86_64-linux-gnu.so: this is " in done.stderr
    assert f"which needs _core{EXTENSION_SUFFIXES[0]}" in done.stderr


def test_in_an_archive_the_import_says_that_the_core_is_not_loaded_from_there(
    tmp_path: Path,
) -> None:
    archive = shutil.make_archive(
        str(tmp_path / "all"), "zip", root_dir=SOURCES.parent, base_dir="cqnotify"
    )
    done = python(
        "-S", "-c", f"import sys; sys.path[:0] = [{archive!r}]; import cqnotify", cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {archive}/cqnotify is in an archive" in done.stderr


def test_what_comes_later_is_imported_by_name_somewhere_so_that_frozen_programs_have_it() -> None:
    finder = ModuleFinder(path=[str(SOURCES.parent)], excludes=["asyncio", "multiprocessing"])
    finder.import_hook("cqnotify")
    finder.import_hook("cqnotify.hw")
    finder.import_hook("cqnotify.cli")
    modules = {
        "attrs",
        "enums",
        "hw._flow",
        "hw._wq",
        "wc",
        "_qp_connect",
        "_attr_conversion",
        "_named",
        "_no_core",
    }
    modules |= {f"cli.{name}" for name in ("lab", *COMMANDS)}
    assert {f"cqnotify.{name}" for name in modules} <= set(finder.modules)
