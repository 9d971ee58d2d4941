# SPDX-License-Identifier: MIT
"""Registering large memory in threads: the kernel pins its pages one by one, which takes it some
300 ns each, and the event loop goes on meanwhile. So does letting go of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from .. import MR, ClosedError, VerbsError

_T = TypeVar("_T")

SLOW: Final = 4 << 20  # bytes: less than this is pinned sooner than a thread would begin


# Threads of our own: those of the event loop's executor can all be waiting for a message.
THREADS: Final = 4
_threads: ThreadPoolExecutor | None = None
_lock = threading.Lock()  # around that, and around what is under way


def _submit(call: Callable[..., None], *args: Any) -> None:
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(THREADS, "cqnotify.messages")
        _threads.submit(call, *args)


def _forget() -> None:
    """In a forked child, which has none of the threads."""
    global _threads, _lock
    _threads, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


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
        future: asyncio.Future[_T] = self._loop.create_future()
        self._in_flight.add(future)
        _submit(self._run, call, future)
        return future

    def _run(self, call: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        """In a thread."""
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as e:
            error = e
        try:
            self._loop.call_soon_threadsafe(self._on_result, future, result, error)
        except RuntimeError:  # the loop was closed, and no task of it will ever use the result
            if isinstance(result, MR):
                self.close(result)
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

    def close(self, mr: MR) -> None:
        """Deregister it: in a thread if that takes time, and if this is the event loop's thread. A
        region that the device does not deregister ends with its context."""
        is_here = asyncio._get_running_loop() is self._loop and not self.is_dropped
        with contextlib.suppress(VerbsError, ClosedError):  # as its array is freed elsewhere
            if is_here and mr.length >= SLOW:
                self.start(mr.close)
            else:
                mr.close()

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
