# SPDX-License-Identifier: MIT
"""The programs of docs/pyverbs.md run, and those of a task print the same with both libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from doc_support import DOCS, read

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


def test_there_are_ten_tasks_and_nearly_each_is_shorter_with_cqnotify() -> None:
    assert len(TASKS) == 10
    assert sum(map(len, sections.values())) == 2 * (1 + len(TASKS))
    for title, (theirs, ours) in [("Set-up", SETUP), *TASKS.items()]:
        if title.startswith("6."):  # pyverbs' leaves unread what the device reports of the peer
            continue
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


INVENTORY = """
import importlib, inspect, os, pyverbs

found, top = {}, os.path.dirname(pyverbs.__file__)
for folder, _, files in os.walk(top):
    for file in files:
        name = os.path.relpath(os.path.join(folder, file), top).split(".")[0].replace("/", ".")
        if file.endswith(".so") or file.endswith(".py") and file != "__init__.py":
            module = importlib.import_module("pyverbs." + name)
            public = {n: v for n, v in vars(module).items() if not n.startswith("_")}
            classes = {n for n, v in public.items() if inspect.isclass(v)}
            own = {n for n in classes if public[n].__module__ == module.__name__}
            calls = {n for n in set(public) - classes if callable(public[n])}
            helper = name in ("mem_alloc", "fork", "dma_util")
            found[module.__name__] = sorted(own | (calls if helper else set()))
print(found)
"""


def read_inventory() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The names of the page's rows by module: those of rdma-core 44, and the later ones."""
    now: dict[str, set[str]] = {}
    later: dict[str, set[str]] = {}
    text = (DOCS / "pyverbs.md").read_text().partition("## Everything that pyverbs has\n")[2]
    for section in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, table = section.partition("\n")
        modules = re.findall(r"`(pyverbs\.[\w.]+)`", heading)
        for row in re.findall(r"^\| (.*?) \|", table, re.M):
            where = later if "*(later)*" in row or "*(later)*" in heading else now
            for module in modules:
                where.setdefault(module, set()).update(re.findall(r"`(\w+)`", row))
    return now, later


def test_the_page_has_every_module_and_class_of_pyverbs() -> None:
    now, later = read_inventory()
    installed: dict[str, list[str]] = ast.literal_eval(run([DEBIAN], INVENTORY))
    assert len(installed) > 30
    assert installed.keys() <= now.keys() | later.keys()
    for module, names in installed.items():
        assert set(names) <= now.get(module, set()) | later.get(module, set()), module
    real = {name for names in installed.values() for name in names}
    for module, names in now.items():
        classes = {name for name in names if name[0].isupper()} - {"PyverbsRDMAErrno"}  # a function
        assert classes <= real, module
