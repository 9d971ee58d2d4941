# SPDX-License-Identifier: MIT
"""Calls that take the kernel some time, so few in one turn of an event loop that other tasks don't
notice, however many connections are closed at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .._core import Wakeup
    from ..aio._loops import Loop
    from ..aio._trio import TrioWakeup

TURN: Final = 0.003  # seconds for which calls are made before the loop gets its turn


class _Call:
    """One that waits in line, and the task that waits for it."""

    __slots__ = ("call", "error", "is_done", "wakeup")

    def __init__(self, call: Callable[[], None], wakeup: Wakeup | TrioWakeup) -> None:
        self.call, self.wakeup = call, wakeup
        self.is_done = False
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            self.call()
        except BaseException as e:
            self.error = e
        self.is_done = True


class Turns:
    """Those of one event loop; used in its thread, but for calls that another loop makes now."""

    def __init__(self, loop: Loop, new_wakeup: Callable[[Loop], Wakeup | TrioWakeup]) -> None:
        self._loop = loop
        self._new_wakeup = new_wakeup
        self._line: deque[_Call] = deque()
        self._is_scheduled = False
        self._spent = 0.0  # in calls, since the last turn that began with a call from the line

    def make_now(self, call: Callable[[], None]) -> bool:
        """Make the call, if this turn has time for it, and return whether it has."""
        if (self._line or self._spent >= TURN) and self._loop.runs_here():
            return False  # a task of a loop that did not make the connection has no turn here
        start = time.monotonic()
        try:
            call()
        finally:
            self._spent += time.monotonic() - start
        return True

    async def make_later(self, call: Callable[[], None]) -> None:
        """Make the call in a later turn; if the task is cancelled meanwhile, at once."""
        one = _Call(call, self._new_wakeup(self._loop))
        self._line.append(one)
        self._schedule()
        try:
            await one.wakeup
        finally:
            if not one.is_done:
                self._line.remove(one)
                one.make()
        if one.error is not None:
            raise one.error

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._new_turn)

    def _new_turn(self) -> None:
        """In a callback of the loop, where no task runs: tasks go on in it."""
        self._is_scheduled = False
        start = time.monotonic()
        self._spent = 0.0
        try:
            while self._line and self._spent < TURN:
                one = self._line.popleft()
                one.make()
                one.wakeup.resume()
                self._spent = time.monotonic() - start
        finally:
            if self._line:
                self._schedule()
