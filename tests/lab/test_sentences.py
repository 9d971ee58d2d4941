# SPDX-License-Identifier: MIT
"""The prose of the project has none of the phrases that read as translated, and what tests that
finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentences import PROJECT, found

FINE = """\
Keepalives probe the peer. What does it cost? Each of them wakes nobody. A device can do it
alone. In other words, a list of words.
"""
PHRASES = [
    "What it sends is counted by the peer.",
    "A page: what follows. What both of them need has a number.",
    "It goes to whoever asks.",
    "A list, of which the last one is signaled.",
    "It is refused in words.",
    "All are closed, but for those in use.",
    "Of a list the last one completes.",
    "Who calls it gets an error.",
]


def in_file(tmp_path: Path, name: str, text: str) -> list[str]:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return found(tmp_path)


def test_no_page_and_no_comment_has_one() -> None:
    assert found(PROJECT) == []


@pytest.mark.parametrize("sentence", PHRASES)
def test_one_is_found_in_a_page_a_comment_and_a_string(tmp_path: Path, sentence: str) -> None:
    first, rest = sentence.split(" ", 1)
    places = {
        "docs/a.md": f"# A page\n\nIt is so. {first}\n{rest}\n",
        "csrc/a/b.c": f"int a;\n\n/* It is so. {first}\n * {rest} */\n",
        "csrc/a/c.c": f'int b;\nchar *a =\n    "It is so. {first} "\n    "{rest}\\n\\n";\n',
        "cqnotify/a.py": f'def a():\n    """Call.\n\n    It is so. {first}\n    {rest}\n    """\n',
        "cqnotify/b.py": f"a = 1\n\n# It is so. {first}\n# {rest}\n",
    }
    for name, text in places.items():
        path = tmp_path / name
        (line,) = in_file(tmp_path, name, text)
        _, number, words = line.split(":", 2)
        assert line.startswith(name)
        assert words.split("'")[1].split()[0] in text.splitlines()[int(number) - 1]
        path.unlink()


@pytest.mark.parametrize("name", ["docs/a.md", "README.md"])
def test_other_sentences_and_code_are_fine(tmp_path: Path, name: str) -> None:
    assert in_file(tmp_path, name, FINE + "\n```\nWhat it sends is counted.\n```\n") == []
