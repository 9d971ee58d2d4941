# SPDX-License-Identifier: MIT
"""A lock for state that the garbage collector and weak references' callbacks change, too.

These can run in the middle of anything, also in a thread that holds the lock. So they never wait
for it: they leave a call, which whoever holds the lock does when it is released.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

Call = Callable[[], Any]


class Guard:
    """`with guard:` holds it. What is to be done without the lock, as it can run any code or enter
    the kernel, goes to after()."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._later: deque[Call] = deque()
        self._after: deque[Call] = deque()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it: code interrupts that which does."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._holder = None
        self._lock.release()
        self._settle()

    def later(self, call: Call) -> None:
        """Call it under the lock: now, or when that is released. Never waits."""
        self._later.append(call)
        self._settle()

    def after(self, call: Call) -> None:
        """Call it without the lock; for the holder."""
        self._after.append(call)

    def _settle(self) -> None:
        # A thread that finds the lock taken leaves its call to the holder, which looks again
        # after the release.
        while self._later and self._lock.acquire(blocking=False):
            self._holder = threading.get_ident()
            try:
                while self._later:
                    self._later.popleft()()
            finally:
                self._holder = None
                self._lock.release()
        if not self.is_mine:
            while self._after:
                try:
                    call = self._after.popleft()
                except IndexError:  # another thread has it
                    break
                call()
