# SPDX-License-Identifier: MIT
"""Output for terminals only: colours, and a line of progress."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from types import TracebackType
from typing import Final, TextIO

CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
FIRST, NEXT = 1.0, 0.1  # seconds
WIDEST: Final = 100


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal; it is None where a program is started without it."""
    return stream is not None and stream.isatty()


def colored(stream: TextIO | None) -> bool:
    """Whether to use colours on this stream, see no-color.org."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not dull and is_terminal(stream)


def paint(text: str, color: str) -> str:
    """Return `text` in a colour, if stdout is a terminal."""
    return _colored(text, color) if colored(sys.stdout) else text


def paint_error(text: str, color: str) -> str:
    """Return `text` in a colour, if stderr is a terminal."""
    return _colored(text, color) if colored(sys.stderr) else text


def print_error(text: str) -> None:
    """Write to stderr in one piece: a program that was started writes to the same terminal."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _colored(text: str, color: str) -> str:
    return f"\033[{CODES[color]}m{text}\033[0m"


def columns() -> int:
    """Return the width of a line on stdout."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


class Progress:
    """A line on stderr that shows the progress of anything that takes over a second."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._shown = False
        self._due = time.monotonic() + FIRST if is_terminal(sys.stderr) else float("inf")

    def show(self, done: int, what: str | None = None) -> None:
        """Show how many are done, if the line is due; at once if `what` has changed."""
        now = time.monotonic()
        if what not in (None, self._what):
            self._what = what or ""
            self._due = now if is_terminal(sys.stderr) else self._due
        if now >= self._due:
            self._due = now + NEXT
            self._shown = True
            print(f"\r{self._what}: {done} of {self._total}\033[K", end="", file=sys.stderr)
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
