# SPDX-License-Identifier: MIT
"""Words that csrc/ and cqnotify/ no longer use, in names and comments, since the field has others.

Run as a program it prints where one is used, with the word to use, and fails if any is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[2]


class Word(NamedTuple):
    forms: str
    """All of them, with spaces between."""
    instead: str
    folders: tuple[str, ...] = ("csrc",)


LOW = ("csrc/base", "csrc/notify", "csrc/cm")
CM = ("csrc/cm", "cqnotify/cm")
VERBS = ("csrc/verbs", "csrc/work")
MESSAGES = ("cqnotify/messages",)

WORDS = (
    Word("trash", "deferred references: cqn_decref_later()"),
    Word("spares", "a freelist, as CPython calls kept memory"),
    Word("gate gates", "a wait queue, as kernels call it"),
    Word("landing landed lands", "the spin buffer"),
    Word("boast boasts boasting", "the fake device, which is used or not"),
    Word("died", "destroyed, as the verbs say of handles"),
    Word("born", "created, as the verbs say of handles", LOW),
    Word("goodbye", "disconnect, as rdma_cm says"),
    Word("farewell", "disconnect, as rdma_cm says; a CLOSE frame", (*CM, *MESSAGES)),
    Word("forsaken told hears", "dropped; reported, sent; receives", MESSAGES),
    Word("bell bells rung ringing", "notify: a notifier, notified", CM),
    Word("hung hang", "shut down", CM),
    Word("goal goals", "the target state", ("csrc/cm",)),
    Word("plan plans", "the connection parameters", CM),
    Word("hub", "the reader", CM),
    Word("troubles", "path errors", ("csrc/cm",)),
    Word("concern concerns concerned", "affects; how suspect something is", LOW + VERBS),
    Word(
        "settle settles settled", "drain a CQ, retire work requests, normalize fields", LOW + VERBS
    ),
    Word("told tell tells", "notify, or the serial that was seen", LOW),
    Word("told tells", "notify, report", VERBS),
    Word("books", "a WR queue: the work requests in flight"),
    Word("room", "capacity, free slots", ("csrc/await", "csrc/work")),
    Word("turns", "iterations of the loop"),
    Word("turn", "an iteration of the loop", ("csrc/await", "csrc/notify")),
    Word("tally tallies", "the counters of closed CQs"),
    Word("look looks looked looking", "poll, check, read or search", ("csrc/notify", "csrc/cm")),
)

# The words of a name: snake_case, CamelCase, CONSTANTS.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def files(root: Path, folder: str) -> Iterator[Path]:
    for suffix in ("c", "h", "py", "pyi"):
        yield from sorted((root / folder).rglob(f"*.{suffix}"))


def used(root: Path, words: tuple[Word, ...] = WORDS) -> list[str]:
    """Where a word is used that is gone, a line each."""
    found = []
    for forms, instead, folders in words:
        gone = set(forms.split())
        for path in (path for folder in folders for path in files(root, folder)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                parts = {part.lower() for part in PART.findall(line)}
                found += [
                    f"{path.relative_to(root)}:{number}: '{word}' is gone: {instead}"
                    for word in sorted(gone & parts)
                ]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(used(PROJECT)) or None)
