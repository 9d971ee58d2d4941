# SPDX-License-Identifier: MIT
"""The programs of docs/ibverbs.md run, with both libraries, and print what the page says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest
from doc_support import PAGES, Section, matches, read

from cqnotify import Context

# It has wheels only, none for a Python without a GIL; see install_ibverbs() of the lab.
needs_ibverbs = pytest.mark.skipif(
    importlib.util.find_spec("ibverbs") is None, reason="there is no ibverbs for this Python here"
)

sections = {s.heading: s for s in read("ibverbs.md").sections if s.of("python")}
(SETUP,) = (s.of("python") for title, s in sections.items() if title.startswith("Set-up"))
TASKS = {title: s for title, s in sections.items() if title[0].isdigit()}
DIFFER = {title: s for title, s in sections.items() if s.of("text")}


def run(*parts: str) -> str:
    # Nothing closes what ibverbs has opened in an order, and a thread may wait for ever.
    end = "import os, sys; sys.stdout.flush(); os._exit(0)"
    command = [sys.executable, "-c", "\n".join([*parts, end])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def both(section: Section) -> tuple[str, str]:
    """Run the program of each library after its set-up; return what they print."""
    theirs, ours = section.of("python")
    return run(SETUP[0].text, theirs.text), run(SETUP[1].text, ours.text)


def test_each_heading_has_the_programs_of_both_libraries() -> None:
    assert len(TASKS) == 9
    assert set(sections) == {*TASKS, *DIFFER, "Set-up: two connected queue pairs of one device"}
    assert all(len(section.of("python")) == 2 for section in sections.values())


@needs_ibverbs
def test_the_page_is_of_the_version_that_is_compared_with() -> None:
    page = PAGES["ibverbs.md"].read_text()
    assert f"ibverbs/) {importlib.metadata.version('ibverbs')} " in page


@needs_ibverbs
@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("title", TASKS)
def test_both_programs_of_a_task_print_the_same(ctx: Context, title: str) -> None:
    theirs, ours = both(TASKS[title])
    assert ours
    assert sorted(theirs.split("\n")) == sorted(ours.split("\n"))


@needs_ibverbs
@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("title", DIFFER)
def test_each_library_behaves_as_the_page_says(ctx: Context, title: str) -> None:
    for printed, shown in zip(both(DIFFER[title]), DIFFER[title].of("text"), strict=True):
        assert matches(printed, shown.text), printed
