# SPDX-License-Identifier: MIT
"""Messages that have arrived, in order, and the tasks that wait for the next one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from itertools import takewhile
from typing import Generic, TypeVar

from ._errors import fresh
from ._event_loop import wait

_T = TypeVar("_T")


class Numbered(Generic[_T]):
    """A thing, and its place in the order in which they came."""

    __slots__ = ("number", "thing")

    def __init__(self, number: int, thing: _T) -> None:
        self.number: int = number
        self.thing: _T = thing


class Inbox(Generic[_T]):
    """There are either things or tasks that wait for them. Things that a cancelled task was about
    to get go to the next one."""

    def __init__(self, what: str) -> None:
        """what: the words of a TimeoutError."""
        self._what = what
        self._count = 0  # things that have come
        self._things: deque[Numbered[_T]] = deque()  # in the order in which they came
        # Any of them may give up.
        self._takers: OrderedDict[asyncio.Future[Numbered[_T]], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._things)

    def put(self, thing: _T) -> None:
        numbered = Numbered(self._count, thing)
        self._count += 1
        if not self._hand_out(numbered):
            self._things.append(numbered)

    def put_back(self, numbered: Numbered[_T]) -> None:
        """It goes to its old place: several tasks can give up, in any order."""
        if not self._hand_out(numbered):
            earlier = takewhile(lambda one: one.number < numbered.number, self._things)
            self._things.insert(sum(1 for _ in earlier), numbered)

    def _hand_out(self, numbered: Numbered[_T]) -> bool:
        while self._takers:
            future, _ = self._takers.popitem(last=False)
            if not future.done():
                future.set_result(numbered)
                return True
        return False

    def pop(self) -> Numbered[_T]:
        return self._things.popleft()

    async def take(self, end: float | None) -> Numbered[_T]:
        """Wait for the next one, for which no other task was waiting before."""
        future: asyncio.Future[Numbered[_T]] = asyncio.get_running_loop().create_future()
        self._takers[future] = None
        try:
            return await wait(future, end, self._what)
        except BaseException:
            if future in self._takers:
                del self._takers[future]
            elif future.done() and not future.cancelled() and future.exception() is None:
                self.put_back(future.result())  # it came together with the cancellation
            raise

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        while self._takers:
            future, _ = self._takers.popitem(last=False)
            if not future.done():
                future.set_exception(fresh(error))
