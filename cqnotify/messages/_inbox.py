# SPDX-License-Identifier: MIT
"""Messages that have arrived, in order, and the tasks that wait for the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from ._errors import fresh
from ._waits import wait

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """There are either things or tasks that wait for them. Things that a cancelled task was about
    to get go to the next one."""

    def __init__(self, what: str) -> None:
        """what: the words of a TimeoutError."""
        self._what = what
        self._things: deque[_T] = deque()
        self._takers: deque[asyncio.Future[_T]] = deque()

    def __len__(self) -> int:
        return len(self._things)

    def put(self, thing: _T) -> None:
        if not self._hand_out(thing):
            self._things.append(thing)

    def put_back(self, thing: _T) -> None:
        """It comes before all others."""
        if not self._hand_out(thing):
            self._things.appendleft(thing)

    def _hand_out(self, thing: _T) -> bool:
        while self._takers:
            future = self._takers.popleft()
            if not future.done():
                future.set_result(thing)
                return True
        return False

    def pop(self) -> _T:
        return self._things.popleft()

    async def take(self, end: float | None) -> _T:
        """Wait for the next one, for which no other task was waiting before."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._takers.append(future)
        try:
            return await wait(future, end, self._what)
        except BaseException:
            if future in self._takers:
                self._takers.remove(future)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self.put_back(future.result())  # it came together with the cancellation
            raise

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        while self._takers:
            future = self._takers.popleft()
            if not future.done():
                future.set_exception(fresh(error))
