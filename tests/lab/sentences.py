# SPDX-License-Identifier: MIT
"""Turns of phrase that prose of this project does not use: a reader has to read them twice.

Run as a program it prints each place, with what to write instead, and fails if there is any. It
reads pages, docstrings, comments, and the strings of C and Python, which have help texts and error
messages.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "cqnotify", "csrc", "docs", "examples")


class Phrase(NamedTuple):
    pattern: re.Pattern[str]
    instead: str


START = r"(?:^|(?<=[.:;!?] )|(?<=: ))"  # of a sentence
SOME_WORDS = r"(?: [\w'()*`/-]+)*? "
VERB = (
    r"\b(?:is|are|was|were|has|have|can|must|may|will|comes?|goes|go|stays?|remains?|costs?"
    r"|needs?|ends?|waits?|counts?|fails?|takes?|follows|breaks|uses?|leaves?|gets?|brings?)\b"
)
PHRASES = (
    Phrase(re.compile(r"\b[Ww]ho(m|se)?ever\b"), "name the person or the thing"),
    Phrase(re.compile(r"\bof (?:which|whom)\b"), "a second sentence, or 'with', 'whose'"),
    Phrase(re.compile(r"\bin words\b"), "an error message, or what it says"),
    Phrase(re.compile(r"\bbut (?:for|those)\b"), "'except'"),
    Phrase(
        re.compile(START + rf"What{SOME_WORDS}(?:\w+s\b|{VERB}){SOME_WORDS}{VERB}(?![^.:;]*\?)"),
        "the thing is the subject: not 'What it sends is ...', but 'The sent bytes are ...'",
    ),
    Phrase(
        re.compile(START + r"Of (?:an?|the|those|these|all|each|several|two) "),
        "the thing first, not 'Of a list the last'",
    ),
    Phrase(re.compile(START + r"Who [a-z]+s\b(?![^.:;]*\?)"), "name who it is"),
    Phrase(re.compile(r"\b(?:that|those) (?:which|who)\b"), "'what', or the thing itself"),
)

# ---- prose, with the numbers of its lines ----


def paragraphs(lines: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    part: list[tuple[int, str]] = []
    for number, line in [*lines, (0, "")]:
        text = line.strip().removeprefix("*").strip()
        if text:
            part.append((number, text))
        elif part:
            yield part
            part = []


def of_page(text: str) -> Iterator[list[tuple[int, str]]]:
    lines, is_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith(("|", "#")):
            item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
            if item:
                lines.append((number, ""))
            lines.append((number, line[item.end() :] if item else line))
            continue
        lines.append((number, ""))
    yield from paragraphs(lines)


C_PROSE = re.compile(r'/\*.*?\*/|(?:"(?:[^"\\\n]|\\.)*"\s*)+', re.DOTALL)


def of_c(text: str) -> Iterator[list[tuple[int, str]]]:
    for match in C_PROSE.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        is_string = match[0][0] == '"'
        prose = match[0] if is_string else match[0].removeprefix("/*").removesuffix("*/")
        lines = []
        for number, line in enumerate(prose.splitlines(), first):
            for part in line.strip().strip('"').split("\\n\\n") if is_string else [line]:
                lines += [(number, part.replace("\\n", " ")), (number, "")]
            lines.pop()
        yield from paragraphs(lines)


def of_python(text: str) -> Iterator[list[tuple[int, str]]]:
    comment: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != comment[-1][0] + 1:
                yield from paragraphs(comment)
                comment = []
            comment.append((token.start[0], token.string.lstrip("#! ")))
    yield from paragraphs(comment)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from paragraphs(list(enumerate(node.value.splitlines(), node.lineno)))


READERS = {".md": of_page, ".c": of_c, ".h": of_c, ".py": of_python, ".pyi": of_python}

# ---- the places ----


def places(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, the words found, and what to write instead."""
    for part in READERS[path.suffix](path.read_text()):
        text = " ".join(line for _, line in part)
        starts = []
        at = 0
        for number, line in part:
            starts.append((at, number))
            at += len(line) + 1
        for pattern, instead in PHRASES:
            for match in pattern.finditer(text):
                where = max(number for start, number in starts if start <= match.start())
                yield where, text[match.start() : match.end() + 30], instead


def found(root: Path, folders: tuple[str, ...] = FOLDERS) -> list[str]:
    paths = [*root.glob("*.md")]
    for folder in folders:
        paths += (path for path in (root / folder).rglob("*") if path.suffix in READERS)
    return [
        f"{path.relative_to(root)}:{line}: '{words}': {instead}"
        for path in sorted(paths)
        for line, words, instead in sorted(places(path))
    ]


if __name__ == "__main__":
    sys.exit("\n".join(found(PROJECT)) or None)
