# SPDX-License-Identifier: MIT
"""How far a test is that may run for long, and its end if it gets stuck."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import time
from collections.abc import Callable, Iterator

import pytest
from support import DEADLINE

NO_PROGRESS = 120.0  # seconds: then all stacks are shown, and it ends


class Progress:
    """Ends what gets stuck, however long the whole of it takes. A long run shows how far it is."""

    def __init__(self, wanted: int, is_long: bool) -> None:
        self.wanted = wanted
        self.done = 0
        self.state: Callable[[], object] = str  # what to say when it is stuck
        self._is_long = is_long
        self._start = time.monotonic()

    def add(self, n: int) -> None:
        step = max(500, self.wanted // 100)
        if self.done // step != (self.done + n) // step and self._is_long:
            # In place of pytest's limit for a whole test.
            faulthandler.dump_traceback_later(NO_PROGRESS, exit=True)
            print(f"\r{self.done + n} of {self.wanted}", end="", flush=True)
        self.done += n

    async def watch(self) -> None:
        """Fails when nothing moves any more: a hang is a failure with a name."""
        before = -1
        while self.done != before:
            before = self.done
            await asyncio.sleep(DEADLINE)
        pytest.fail(f"stuck after {self.done} of {self.wanted}: {self.state()}")

    def report(self) -> str:
        seconds = time.monotonic() - self._start
        return f"{self.done} in {seconds:.0f} s, {seconds * 1e4 / self.done:.1f} s for each 10,000"

    @contextlib.contextmanager
    def shown(self, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
        """A long run: on the terminal, and without pytest's limit for a whole test."""
        if not self._is_long:
            yield
            return
        with capfd.disabled():
            try:
                faulthandler.dump_traceback_later(NO_PROGRESS, exit=True)
                print()
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
