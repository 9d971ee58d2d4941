# SPDX-License-Identifier: MIT
"""The programs of docs/pyverbs.md run, and those of a task print the same with both libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from doc_support import read

from cqnotify import Context

DEBIAN = "/usr/bin/python3"  # whose package python3-pyverbs is

sections = {
    s.heading: [block.text for block in s.of("python")] for s in read("pyverbs.md").sections
}
(SETUP,) = (blocks for title, blocks in sections.items() if title.startswith("Set-up"))
TASKS = {title: blocks for title, blocks in sections.items() if title[0].isdigit()}


def run(python: list[str], *parts: str) -> str:
    command = [*python, "-c", "\n".join(parts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def code_lines(text: str) -> int:
    return sum(
        1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    )


def test_there_are_ten_tasks_and_each_is_shorter_with_cqnotify() -> None:
    assert len(TASKS) == 10
    assert sum(map(len, sections.values())) == 2 * (1 + len(TASKS))
    for title, (theirs, ours) in [("Set-up", SETUP), *TASKS.items()]:
        assert code_lines(ours) <= code_lines(theirs), title
        assert len(ours) < len(theirs), title


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("title", TASKS)
def test_both_programs_of_a_task_print_the_same(ctx: Context, title: str) -> None:
    theirs, ours = TASKS[title]
    printed = run([sys.executable], SETUP[1], ours)
    assert printed
    # Nothing closes its objects in an order, and some ends hang.
    end = "import os, sys; sys.stdout.flush(); os._exit(0)"
    assert sorted(printed.split("\n")) == sorted(run([DEBIAN], SETUP[0], theirs, end).split("\n"))
