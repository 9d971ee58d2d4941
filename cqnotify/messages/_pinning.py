# SPDX-License-Identifier: MIT
"""Registering large memory in threads: the kernel pins its pages one by one, which takes it some
300 ns each, and the event loop goes on meanwhile. So does letting go of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import VerbsError

if TYPE_CHECKING:
    from .. import MR

_T = TypeVar("_T")

SLOW: Final = 4 << 20  # bytes: less than this is pinned sooner than a thread would begin


class Pinning:
    """What threads do for one connection. Its protection domain must not be closed before."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._then: Callable[[], None] | None = None
        # The collector is about to take the connection apart, and must not find memory in use: see
        # _Making in _memory.py.
        self.is_forsaken: bool = False

    def start(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Call it in a thread. Nobody may cancel the future, since the thread goes on."""
        future = self._loop.run_in_executor(None, call)
        self._under_way.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._under_way.discard(future)
        if not future.cancelled():
            future.exception()  # perhaps nobody asks
        if self._then is not None and not self._under_way:
            then, self._then = self._then, None
            then()

    def close(self, mr: MR) -> None:
        """In a thread if that takes time, and if this is the event loop's thread. What the device
        does not let go of goes with its context."""
        is_here = asyncio._get_running_loop() is self._loop and not self.is_forsaken
        if not mr.closed and mr.length >= SLOW and is_here:
            self.start(mr.close)
        else:
            with contextlib.suppress(VerbsError):
                mr.close()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call it when nothing is under way, once."""
        if self._under_way:
            self._then = then
        else:
            then()

    async def idle(self) -> None:
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))


def result_later(future: asyncio.Future[_T], give_back: Callable[[_T], None]) -> None:
    """Give back what nobody wants any more, now or when it is there."""

    def there(done: asyncio.Future[_T]) -> None:
        if not done.cancelled() and done.exception() is None:
            give_back(done.result())

    if future.done():
        there(future)
    else:
        future.add_done_callback(there)
