# SPDX-License-Identifier: MIT
"""The thread that serves the process: it accepts and makes connections, answers peers, and ends
what has expired. It sleeps in an event loop of its own while there is nothing to do, so the program
may have any loop, or none, or compute."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from .. import ClosedError
from ..aio import new_event_loop

_T = TypeVar("_T")

CLOSED: Final = "cqnotify.memory was closed in this process"


class Service:
    """The thread and its loop. It ends with close(), and as the interpreter ends."""

    def __init__(self) -> None:
        self.loop: asyncio.SelectorEventLoop = new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Around what its thread is told, so that nothing is after its end.
        self._lock = threading.RLock()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="cqnotify.memory")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_end_tasks())  # also of what was asked for meanwhile
        finally:
            self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def call(self, call: Callable[..., object], *args: Any) -> bool:
        """Call it in the thread, soon. Returns False, and does nothing, after the service's end."""
        with self._lock:
            if not self._is_ending:
                self.loop.call_soon_threadsafe(call, *args)
            return not self._is_ending

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run it there; cancelling the future cancels it, and so does the end of the service.
        ClosedError if that has ended."""
        with self._lock:
            if not self._is_ending:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise ClosedError(CLOSED)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, which is kept until it ends. Called in the thread."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end_started(self) -> None:
        """Cancel what start() has started, and wait for it."""
        await _cancelled(self._tasks - {asyncio.current_task()})

    def close(self) -> None:
        """Cancel all tasks, and end the thread."""
        with self._lock:
            if not self._is_ending:
                self._is_ending = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def forget(self) -> None:
        """In a forked child, which has no such thread, and shares the descriptors of the loop."""
        self._lock = threading.RLock()
        self._is_ending = True


async def _end_tasks() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await _cancelled(tasks)


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def at_exit(call: Callable[[], None]) -> None:
    """Call it as the interpreter ends, before that waits for its threads."""
    threading._register_atexit(call)  # type: ignore[attr-defined]


def in_child(call: Callable[[], None]) -> None:
    """Call it in each forked child, which has no thread of the service."""
    os.register_at_fork(after_in_child=call)
