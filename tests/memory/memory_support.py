# SPDX-License-Identifier: MIT
"""A process that exposes memory, and does what it is told; see peer_program.py."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cqnotify.memory import Descriptor
from cqnotify.memory._connection import Connection
from cqnotify.memory._process import current

PROGRAM = Path(__file__).with_name("peer_program.py")


class Peer:
    """Another process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, name: str, *args: Any) -> Any:
        """Have it call a function of its program, and return the result."""
        self.begin(name, *args)
        return self.answer()

    def begin(self, name: str, *args: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps([name, *args]), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer has ended"
        return json.loads(line)

    def expose(self, nbytes: int, access: str = "READ", **how: Any) -> Descriptor:
        """Memory whose bytes are those of pattern(nbytes)."""
        return Descriptor.from_dict(self.tell("expose", nbytes, access, how))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait() in (0, -9)


@contextlib.contextmanager
def peer() -> Iterator[Peer]:
    one = Peer()
    try:
        yield one
    finally:
        one.end()


PATTERN = bytes(i * i % 251 for i in range(65521))


def pattern(nbytes: int) -> bytes:
    """No two places near each other look alike."""
    return (PATTERN * (nbytes // len(PATTERN) + 1))[:nbytes]


def connection_to(one: Any) -> Connection:
    """The only connection of this process to that of a descriptor."""
    return current().connections[one.process]


def connections() -> int:
    return len(current()._all)
