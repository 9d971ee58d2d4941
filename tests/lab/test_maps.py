# SPDX-License-Identifier: MIT
"""Each folder of csrc/ has a map of its files, and what tests that finds where one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from layers import FAULTS, FOLDERS, OTHER
from maps import (
    CSRC,
    MAIN,
    PACKAGES,
    PAGE,
    faults,
    faults_of_package,
    gone_from,
    gone_modules,
)

MAP = "/* SPDX-License-Identifier: MIT */\n/*\n * Work.\n *\n{}\n * More.\n */\n"
GOOD = " *   one.c     what it does\n *   longer.c  the same"


def folder(tmp_path: Path, lines: str, name: str = "work") -> Path:
    """A tree with one folder, which has one.c, longer.c, and a header with that map."""
    (tmp_path / name).mkdir()
    for file in ("one.c", "longer.c", "one.h"):
        (tmp_path / name / file).write_text("")
    (tmp_path / name / MAIN.get(name, "main.h")).write_text(MAP.format(lines))
    return tmp_path


def test_each_folder_has_a_map() -> None:
    assert MAIN.keys() == {*FOLDERS, FAULTS, OTHER}


def test_the_maps_are_those_of_the_folders() -> None:
    assert faults(CSRC) == []


@pytest.mark.parametrize("more", ["", "\n *   one.h     a header may have a line"])
def test_a_map_that_names_each_file_is_fine(tmp_path: Path, more: str) -> None:
    assert faults(folder(tmp_path, GOOD + more)) == []


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        pytest.param(GOOD.partition("\n")[0], "has no line for longer.c", id="missing"),
        pytest.param(f"{GOOD}\n *   old.c     gone", "has old.c, which is gone", id="gone"),
        pytest.param(f"{GOOD}\n *   old.h     gone", "has old.h, which is gone", id="header"),
        pytest.param(f"{GOOD}\n *   one.c     again", "has 2 lines for one.c", id="twice"),
        pytest.param(
            " *   one.c     what it does longer.c  the same",
            "has no line for longer.c",
            id="run together",
        ),
        pytest.param(" *   one.c\n *   longer.c  the same", "has no line for one.c", id="no text"),
    ],
)
def test_a_wrong_map_is_found(tmp_path: Path, lines: str, wrong: str) -> None:
    assert faults(folder(tmp_path, lines)) == [f"wr.h: the map of work/ {wrong}"]


def test_a_line_that_is_too_long_is_found(tmp_path: Path) -> None:
    line = f" *   one.c     {'a' * 90}"
    found = faults(folder(tmp_path, f"{line}\n *   longer.c  the same"))
    assert found == [f"wr.h: this line of the map is longer than 100 characters: {line}"]


def test_a_header_without_a_map_is_found(tmp_path: Path) -> None:
    csrc = folder(tmp_path, GOOD)
    (csrc / "work/wr.h").unlink()
    assert len(faults(csrc)) == 2


def test_a_folder_that_nobody_knows_is_found(tmp_path: Path) -> None:
    assert faults(folder(tmp_path, GOOD, "new")) == ["new/ has no main header in MAIN"]


def test_the_page_names_what_is_there() -> None:
    assert list(gone_from(PAGE, [CSRC, CSRC.parent / "cqnotify/lab"])) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("See one.c, and [it](../csrc/work/old.c).", None),
        ("`work()` (one.c) and `work()`, one.c", None),
        ("See old.c.", "page.md names old.c, which is gone"),
        ("`rest()` (one.c)", "page.md names rest(), which is not in one.c"),
        ("`rest()`,\none.c", "page.md names rest(), which is not in one.c"),
    ],
)
def test_a_name_that_is_gone_is_found(tmp_path: Path, text: str, wrong: str | None) -> None:
    csrc = folder(tmp_path, GOOD)
    (csrc / "work/one.c").write_text("int work(void);\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert list(gone_from(page, [csrc])) == [wrong][: wrong is not None]


# ---- packages -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
def test_the_map_of_a_package_names_its_modules(name: str) -> None:
    assert faults_of_package(CSRC.parent / "cqnotify" / name) == []


@pytest.mark.parametrize("indent", ["#   ", "    "])
def test_a_wrong_map_of_a_package_is_found(tmp_path: Path, indent: str) -> None:
    lines = (f"{indent}{name}.py  text\n" for name in ("_one", "_one", "_old"))
    (tmp_path / "__init__.py").write_text("".join(lines))
    for name in ("_one", "_new"):
        (tmp_path / f"{name}.py").write_text("")
    where = f"{tmp_path.name}/__init__.py: the map has"
    assert faults_of_package(tmp_path) == [
        f"{where} no line for _new.py",
        f"{where} _old.py, which is gone",
        f"{where} 2 lines for _one.py",
    ]


def test_a_module_that_a_page_names_is_there(tmp_path: Path) -> None:
    (tmp_path / "_one.py").write_text("")
    (tmp_path / "page.md").write_text("`_one.py` and _two.py, but not test_three.py")
    assert gone_modules(tmp_path / "page.md", tmp_path) == ["page.md names _two.py, which is gone"]
    assert gone_modules(PAGE, CSRC.parent / "cqnotify") == []
