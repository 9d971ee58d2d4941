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
from typing import Any, TypeVar

from ..aio import new_event_loop

_T = TypeVar("_T")


class Service:
    """The thread and its loop. It ends with close(), and as the interpreter ends."""

    def __init__(self) -> None:
        self.loop: asyncio.SelectorEventLoop = new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="cqnotify.memory")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def call(self, call: Callable[..., object], *args: Any) -> None:
        """Call it in the thread, soon. Does nothing if the service has ended."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run it there; cancelling the future cancels it. RuntimeError if the service has ended."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, which is kept until it ends. Called in the thread."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Cancel all tasks, and end the thread."""
        if self.loop.is_closed():
            return
        self.run(self._cancel()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def _cancel(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def at_exit(call: Callable[[], None]) -> None:
    """Call it as the interpreter ends, before that waits for its threads."""
    threading._register_atexit(call)  # type: ignore[attr-defined]


def in_child(call: Callable[[], None]) -> None:
    """Call it in each forked child, which has no thread of the service."""
    os.register_at_fork(after_in_child=call)
