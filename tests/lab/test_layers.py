# SPDX-License-Identifier: MIT
"""Dependencies in csrc/ point down, and only down: what tests that finds what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from layers import CSRC, FAULTS, FOLDERS, OTHER, compile_all, faults, single

CALL = "void cqn_{0}(void);\nvoid cqn_{1}(void);\nvoid cqn_{0}(void)\n{{\n    cqn_{1}();\n}}\n"
TABLE_USER = (
    "extern int cqn_table;\nint cqn_a(void);\nint cqn_a(void)\n{\n    return cqn_table;\n}\n"
)
LEAF = "void cqn_{0}(void);\nvoid cqn_{0}(void)\n{{\n}}\n"


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_each_folder_of_the_core_is_a_layer() -> None:
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} == {*FOLDERS, FAULTS, OTHER}
    assert [path.name for path in CSRC.glob("*.[ch]")] == ["module.c"]


def test_the_core_has_no_arrow_upward_and_no_circle() -> None:
    assert faults(CSRC) == []


def test_arrows_downward_are_fine(tmp_path: Path) -> None:
    files = {
        "module.c": '#include "verbs/high.h"\n' + CALL.format("module", "high"),
        "verbs/high.c": '#include "base/low.h"\n' + CALL.format("high", "low"),
        "verbs/high.h": "",
        "base/low.c": LEAF.format("low"),
        "base/low.h": "",
    }
    assert faults(tree(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("low", "high"), [("base", "work"), ("notify", "await"), ("await", "verbs")]
)
def test_a_call_upward_is_found(tmp_path: Path, low: str, high: str) -> None:
    files = {f"{low}/a.c": CALL.format("a", "b"), f"{high}/b.c": LEAF.format("b")}
    assert faults(tree(tmp_path, files)) == [f"{low}/a.c points up to {high}/b.c: cqn_b"]


def test_a_call_of_the_module_is_upward(tmp_path: Path) -> None:
    files = {"verbs/a.c": CALL.format("a", "module"), "module.c": LEAF.format("module")}
    assert faults(tree(tmp_path, files)) == ["verbs/a.c points up to module.c: cqn_module"]


def test_data_is_used_like_functions(tmp_path: Path) -> None:
    files = {
        "base/a.c": TABLE_USER,
        "work/b.c": "int cqn_table;\n",
    }
    assert faults(tree(tmp_path, files)) == ["base/a.c points up to work/b.c: cqn_table"]


def test_an_include_of_a_higher_header_is_found(tmp_path: Path) -> None:
    files = {"base/a.h": '#include "notify/b.h"\n', "notify/b.h": ""}
    assert faults(tree(tmp_path, files)) == ["base/a.h points up to notify/b.h: #include"]


def test_the_core_needs_nothing_that_is_built_for_tests(tmp_path: Path) -> None:
    files = {
        "base/a.c": '#include "faults/faults.h"\n#include "faults/b.h"\n' + CALL.format("a", "b"),
        "faults/b.c": CALL.format("b", "a"),
        "faults/b.h": "",
        "faults/faults.h": '#include "faults/b.h"\n',
    }
    assert faults(tree(tmp_path, files)) == [
        "base/a.c points up to faults/b.c: cqn_b",
        "base/a.c points up to faults/b.h: #include",
    ]


@pytest.mark.parametrize("folder", [*FOLDERS, FAULTS])
def test_a_circle_within_a_folder_is_found(tmp_path: Path, folder: str) -> None:
    files = {
        f"{folder}/a.c": CALL.format("a", "b"),
        f"{folder}/b.c": CALL.format("b", "c"),
        f"{folder}/c.c": CALL.format("c", "a"),
    }
    wanted = f"a circle: {folder}/a.c -> {folder}/b.c -> {folder}/c.c -> {folder}/a.c"
    assert faults(tree(tmp_path, files)) == [wanted]


def test_what_one_other_file_of_the_folder_uses_is_listed(tmp_path: Path) -> None:
    files = {
        "base/a.c": LEAF.format("a"),
        "base/b.c": CALL.format("b", "a"),
        "work/c.c": CALL.format("c", "b"),  # of another folder
        "base/d.c": LEAF.format("d"),
        "base/e.c": CALL.format("e", "d"),
        "base/f.c": CALL.format("f", "d"),  # a second user
    }
    found = list(single(compile_all(tree(tmp_path, files), tmp_path)))
    assert found == [
        "base/a.c exports cqn_a for base/b.c",
        "base/e.c exports cqn_e for no other file",
        "base/f.c exports cqn_f for no other file",
        "work/c.c exports cqn_c for no other file",
    ]
