# SPDX-License-Identifier: MIT
"""Which of memcheck's errors are the core's; with a library of its name, in a program in C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab_runs import PATIENCE, PROJECT

LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
int NAME_branches(void) { volatile int *field = malloc(4); return *field > 3 ? 1 : 2; }
int NAME_reads(void) { volatile char *field = malloc(4); return field[4] == 1; }
int NAME_compares(void) { char *a = malloc(4), b[4] = "abc"; return memcmp(a, b, 4) > 0; }
void *NAME_makes(void) { return malloc(4); }
int NAME_looks_at(const volatile int *field) { return *field > 3 ? 1 : 2; }
"""
PROGRAM = r"""
#include <stdlib.h>
int NAME_branches(void), NAME_reads(void), NAME_compares(void), NAME_looks_at(void *);
int other_branches(void), other_reads(void), other_looks_at(void *);
void *NAME_makes(void), *other_makes(void);
int main(void) { return CALL ? 0 : 0; }
"""


@pytest.mark.release  # which has valgrind
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("core_branches()", "UninitCondition"),
        ("core_reads()", "InvalidRead"),
        ("core_compares()", "UninitCondition"),
        ("other_looks_at(core_makes())", "UninitCondition"),
        ("core_looks_at(other_makes())", "UninitCondition"),
        ("other_branches()", ""),
        ("other_looks_at(other_makes())", ""),
        ("other_reads()", ""),
        ("core_looks_at(calloc(1, 4))", ""),
    ],
)
def test_an_error_counts_that_the_core_makes_or_meets(call: str, kind: str, tmp_path: Path) -> None:
    gcc = ["gcc", "-g", "-O0", "-fno-builtin"]
    program, libraries = tmp_path / "program", []
    for name, file in (("core", "_core.so"), ("other", "other.so")):
        (tmp_path / f"{name}.c").write_text(LIBRARY.replace("NAME", name))
        command = [*gcc, "-shared", "-fPIC", "-o", file, f"{name}.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        libraries.append(tmp_path / file)
    (tmp_path / "main.c").write_text(PROGRAM.replace("NAME", "core").replace("CALL", call))
    subprocess.run([*gcc, "-o", program, tmp_path / "main.c", *libraries], check=True)
    out = tmp_path / "errors.xml"
    options = ["-q", "--track-origins=yes", "--xml=yes", f"--xml-file={out}"]
    subprocess.run(["valgrind", *options, program], check=True, timeout=PATIENCE)
    judge = [sys.executable, PROJECT / "tests/lab/memcheck.py", out]
    done = subprocess.run(judge, capture_output=True, text=True)
    assert done.returncode == (1 if kind else 0), done.stdout
    said = done.stdout.splitlines()[0]
    assert said.startswith(f"{kind}: " if kind else "memcheck reports nothing about the core")
