# SPDX-License-Identifier: MIT
"""./lab analyze: what an analyzer reports is explained, and what is explained is reported."""

from __future__ import annotations

from pathlib import Path

import analyze
import pytest
from analyze import Key, Report
from lab_runs import lab

KEY = Key("csrc/a.c", "f", "core.NullDereference")
REPORT = Report(KEY, 7, "Dereference of null pointer")


def test_a_report_that_is_not_explained_is_said() -> None:
    assert analyze.problems({REPORT}, {KEY}) == []
    other = REPORT._replace(key=KEY._replace(function="g"))
    assert analyze.problems({REPORT, other}, {KEY}) == [
        "csrc/a.c:7: g(): Dereference of null pointer [core.NullDereference]"
    ]


def test_an_explanation_that_no_report_needs_is_said() -> None:
    assert analyze.problems(set(), {KEY}) == [
        "analysis.txt: not reported any more: csrc/a.c f core.NullDereference"
    ]


def test_each_explanation_says_why() -> None:
    assert analyze.explained("# comment\n\ncsrc/a.c f core.NullDereference  never\n") == {KEY}
    with pytest.raises(SystemExit, match=r"wants FILE FUNCTION CHECKER WHY, not 'csrc/a.c f x'"):
        analyze.explained("csrc/a.c f x\n")


PLANTED = """
#include <stdlib.h>
int uninitialized(int which) { int value; if (which) value = 1; return value; }
int leaks(size_t size) { char *memory = malloc(size); return memory ? 1 : 0; }
"""


@pytest.mark.release
def test_both_analyzers_find_what_is_planted(tmp_path: Path) -> None:
    (tmp_path / "planted.c").write_text(PLANTED)
    (tmp_path / "right.c").write_text("int right(void) { return 0; }\n")
    result = lab("analyze", str(tmp_path / "planted.c"), str(tmp_path / "right.c"))
    said = result.stdout.decode().splitlines()
    assert result.returncode == 1
    assert {line.split(":")[0] for line in said} == {str(tmp_path / "planted.c")}
    found = {(line.split()[1], line.rpartition("[")[2].rstrip("]")) for line in said}
    assert found >= {
        ("uninitialized():", "core.uninitialized.UndefReturn"),
        ("leaks():", "unix.Malloc"),
        ("uninitialized():", "analyzer-use-of-uninitialized-value"),
        ("leaks():", "analyzer-malloc-leak"),
    }
    assert lab("analyze", str(tmp_path / "right.c")).returncode == 0
