# SPDX-License-Identifier: MIT
"""Calls that take the kernel some time, so few in one turn of an event loop that other tasks don't
notice, however many connections are closed at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..aio._loops import Loop
    from ._hub import AsyncBell

TURN: Final = 0.005  # seconds for which calls are made before the loop gets its turn


class _Call:
    """One that waits in line."""

    def __init__(self, call: Callable[[], None], bell: AsyncBell) -> None:
        self.call, self.bell = call, bell
        self.is_done = False
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            self.call()
        except BaseException as e:
            self.error = e
        self.is_done = True
        self.bell.ring()


class Turns:
    """Those of one event loop; used in its thread alone."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._line: deque[_Call] = deque()
        self._spent = 0.0  # in calls, since the last turn that began with a call from the line

    async def make(self, call: Callable[[], None], new_bell: Callable[[], AsyncBell]) -> None:
        """Make the call, now or in a later turn; if the task is cancelled meanwhile, at once."""
        if self._line or self._spent >= TURN:
            await self._line_up(_Call(call, new_bell()))
        else:
            self._spend(call)

    def _spend(self, call: Callable[[], None]) -> None:
        start = time.monotonic()
        try:
            call()
        finally:
            self._spent += time.monotonic() - start

    async def _line_up(self, one: _Call) -> None:
        if not self._line:
            self._loop.call_soon_threadsafe(self._new_turn)
        self._line.append(one)
        try:
            await one.bell.wait_for(lambda: one.is_done, None)
        finally:
            if not one.is_done:
                self._line.remove(one)
                one.make()
        if one.error is not None:
            raise one.error

    def _new_turn(self) -> None:
        self._spent = 0.0
        while self._line and self._spent < TURN:
            self._spend(self._line.popleft().make)
        if self._line:
            self._loop.call_soon_threadsafe(self._new_turn)
