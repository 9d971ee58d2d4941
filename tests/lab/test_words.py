# SPDX-License-Identifier: MIT
"""Words that are gone stay away from csrc/ and cqnotify/, and what tests that finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from words import PROJECT, WORDS, Word, used

GONE = (Word("bell bells", "a notifier", ("csrc/cm",)),)


def tree(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return root


def test_no_word_that_is_gone_is_used() -> None:
    assert used(PROJECT) == []


def test_each_word_has_a_folder_and_another_word() -> None:
    for word in WORDS:
        assert word.forms
        assert word.instead
        assert all((PROJECT / folder).is_dir() for folder in word.folders), word


@pytest.mark.parametrize(
    "line",
    ["void ring_bell(void);", "class ThreadBell:", "/* Bells are rung. */", "#define BELL 1"],
)
def test_a_word_that_is_gone_is_found(tmp_path: Path, line: str) -> None:
    (found,) = used(tree(tmp_path, "csrc/cm/a.c", f"int a;\n{line}\n"), GONE)
    assert found.startswith("csrc/cm/a.c:2: 'bell")
    assert found.endswith("is gone: a notifier")


@pytest.mark.parametrize("line", ["int label;", "int belly, libellous;", "void notify(void);"])
def test_other_words_are_fine(tmp_path: Path, line: str) -> None:
    assert used(tree(tmp_path, "csrc/cm/a.c", line), GONE) == []


def test_a_word_is_gone_from_its_folders_only(tmp_path: Path) -> None:
    assert used(tree(tmp_path, "csrc/work/a.c", "int bell;"), GONE) == []
