# SPDX-License-Identifier: MIT
"""What threads register and deregister for a connection, whose event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .. import MR, ClosedError
from .._registered import SLOW, Registration, close_here, submit

_T = TypeVar("_T")
# Around what is in flight.
_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child, where a thread of the parent that held the lock does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


Done = Callable[[Any, "BaseException | None"], None]


class Pinning:
    """What threads do for one connection. Its protection domain must not be closed before."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._then: Callable[[], None] | None = None
        # The connection was dropped, and the garbage collector must not find memory in use: see
        # Registering in _memory.py.
        self.is_dropped: bool = False

    def start(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Call it in a thread. Nobody may cancel the future, since the thread goes on."""
        future, done = self.begin()
        submit(self._run, call, done)
        return future

    def begin(self) -> tuple[asyncio.Future[Any], Done]:
        """What is done elsewhere: a future of it, and what is to be called in whichever thread,
        with the result or an exception."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._in_flight.add(future)
        return future, functools.partial(self._done, future)

    def _run(self, call: Callable[[], Any], done: Done) -> None:
        """In a thread."""
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as e:
            error = e
        done(result, error)

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """In a thread."""
        try:
            self._loop.call_soon_threadsafe(self._on_result, future, result, error)
        except RuntimeError:  # the loop was closed, and no task of it will ever use the result
            if isinstance(result, MR):
                self.close(result)
            elif isinstance(result, Registration):
                result.release(self.close)
            self._ended(future)

    def _on_result(
        self, future: asyncio.Future[_T], result: _T, error: BaseException | None
    ) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
            future.exception()  # perhaps nobody retrieves it
        self._ended(future)

    def _ended(self, future: asyncio.Future[Any]) -> None:
        with _lock:
            self._in_flight.discard(future)
            then = None if self._in_flight else self._then
            if then is not None:
                self._then = None
        if then is not None:
            then()

    def close(self, mr: MR, holder: Any = None) -> None:
        """As close_here(); in a thread if that takes long, and if this is the loop's thread."""
        is_here = asyncio._get_running_loop() is self._loop and not self.is_dropped
        with contextlib.suppress(ClosedError):  # as its array is freed elsewhere
            if is_here and mr.length >= SLOW:
                self.start(functools.partial(close_here, mr, holder))
            else:
                close_here(mr, holder)

    def in_loop(self, call: Callable[[], None]) -> None:
        """At once; for the collector, which may interrupt the event loop, or be in another thread,
        in the loop's next turn, if there will be one."""
        if self.is_dropped and self._loop.is_running():
            with contextlib.suppress(RuntimeError):  # it was closed just now
                self._loop.call_soon_threadsafe(call)
                return
        call()

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call it when nothing is under way, once."""
        with _lock:
            if self._in_flight:
                self._then = then
                return
        then()

    async def wait_idle(self) -> None:
        while self._in_flight:
            await asyncio.wait(tuple(self._in_flight))


def release_result(future: asyncio.Future[_T], release: Callable[[_T], None]) -> None:
    """Give back what nobody wants any more, now or when it is there."""

    def there(done: asyncio.Future[_T]) -> None:
        if not done.cancelled() and done.exception() is None:
            release(done.result())

    if future.done():
        there(future)
    else:
        future.add_done_callback(there)
