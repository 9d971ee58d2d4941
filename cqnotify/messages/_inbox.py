# SPDX-License-Identifier: MIT
"""Connections that were made, in order, and the tasks that wait for the next one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from itertools import takewhile
from typing import Generic, TypeVar

from ._errors import fresh
from ._event_loop import wait

_T = TypeVar("_T")


class Numbered(Generic[_T]):
    """An item, and its place in the order in which they came."""

    __slots__ = ("item", "number")

    def __init__(self, number: int, item: _T) -> None:
        self.number: int = number
        self.item: _T = item


class Inbox(Generic[_T]):
    """There are either items or tasks that wait for them. Items that a cancelled task was about
    to get go to the next one."""

    def __init__(self, what: str) -> None:
        """what: the text of a TimeoutError."""
        self._what = what
        self._count = 0  # items that have come
        self._items: deque[Numbered[_T]] = deque()  # in the order in which they came
        # Any of them may be cancelled.
        self._getters: OrderedDict[asyncio.Future[Numbered[_T]], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _T) -> None:
        numbered = Numbered(self._count, item)
        self._count += 1
        if not self._deliver(numbered):
            self._items.append(numbered)

    def put_back(self, numbered: Numbered[_T]) -> None:
        """Return it to its old place: several tasks can be cancelled, in any order."""
        if not self._deliver(numbered):
            earlier = takewhile(lambda one: one.number < numbered.number, self._items)
            self._items.insert(sum(1 for _ in earlier), numbered)

    def _deliver(self, numbered: Numbered[_T]) -> bool:
        while self._getters:
            future, _ = self._getters.popitem(last=False)
            if not future.done():
                future.set_result(numbered)
                return True
        return False

    def pop(self) -> Numbered[_T]:
        return self._items.popleft()

    async def get(self, end: float | None) -> Numbered[_T]:
        """Wait for the next one, for which no other task was waiting before."""
        future: asyncio.Future[Numbered[_T]] = asyncio.get_running_loop().create_future()
        self._getters[future] = None
        try:
            return await wait(future, end, self._what)
        except BaseException:
            if future in self._getters:
                del self._getters[future]
            elif future.done() and not future.cancelled() and future.exception() is None:
                self.put_back(future.result())  # it came together with the cancellation
            raise

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        while self._getters:
            future, _ = self._getters.popitem(last=False)
            if not future.done():
                future.set_exception(fresh(error))
