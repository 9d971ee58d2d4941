# SPDX-License-Identifier: MIT
"""The interface of an event loop to this package, and its implementation for asyncio.

_trio.py implements it for trio. anyio runs on one of the two, and uvloop is an asyncio event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Loop(Protocol):
    """A running event loop. Only call_soon_threadsafe() may be called from other threads."""

    raw: object
    """The loop object of asyncio or trio; two Loops are the same if this is the same object."""

    asyncio: asyncio.AbstractEventLoop | None
    """The loop object if it is asyncio's, whose tasks sleep on _core.Wakeup, else None. A loop that
    is not asyncio's has a method wakeup(), which returns an object that one task awaits until its
    wake() is called."""

    thread: int
    """The id of the thread in which the loop ran when a task last began to wait."""

    def is_closed(self) -> bool:
        """Whether the loop will never run a task again."""
        ...

    def is_elsewhere(self) -> bool:
        """Whether the loop runs in another thread than the caller's."""
        ...

    def runs_here(self) -> bool:
        """Whether the caller runs in a task or a callback of this loop."""
        ...

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback`, which must not raise, whenever fd is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop watching fd, which the caller then closes."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the next turn of the loop, in whose thread the caller is."""

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop's thread; RuntimeError when the loop is closed."""


class AsyncioLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.raw: object = loop
        self.asyncio: asyncio.AbstractEventLoop | None = loop
        self.thread = threading.get_ident()
        self._loop = loop

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def runs_here(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def is_elsewhere(self) -> bool:
        if asyncio._get_running_loop() is self._loop:
            return False
        if self._loop.is_running():
            return True
        return self.thread != threading.get_ident() and not self._loop.is_closed()

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        # In an empty context: else the first waiter's would live as long as the reader.
        contextvars.Context().run(self._loop.add_reader, fd, callback)

    def unwatch(self, fd: int) -> None:
        self._loop.remove_reader(fd)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)


def _anyio_shield() -> contextlib.AbstractContextManager[object]:
    """A scope that shields from anyio, which repeats a cancellation until it is let through."""
    # While another thread is still importing anyio it has no CancelScope, and no task uses it.
    scope = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return contextlib.nullcontext() if scope is None else scope(shield=True)


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # AttributeError: another thread is importing trio
        return False
    return True


def running() -> object:
    """Return the running loop object of asyncio or trio; RuntimeError where none runs."""
    if _in_trio():
        from . import _trio

        return _trio.running()
    return asyncio.get_running_loop()


def running_task() -> tuple[int, str]:
    """Return the id and the name of the running task; (0, "") where none runs."""
    task: Any
    if _in_trio():
        task = sys.modules["trio"].lowlevel.current_task()
        return id(task), str(task.name)
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
    return (0, "") if task is None else (id(task), str(task.get_name()))


def adapt(raw: object) -> Loop:
    """Return a Loop for the running loop object `raw`."""
    if isinstance(raw, asyncio.AbstractEventLoop):
        return AsyncioLoop(raw)
    from . import _trio

    return _trio.TrioLoop(raw)


async def uncancelled(awaitable: Awaitable[object]) -> BaseException | None:
    """Await, shielded from cancellation; one by asyncio itself ends it, and is returned."""
    if _in_trio():
        from . import _trio

        await _trio.uncancelled(awaitable)
        return None
    try:
        with _anyio_shield():
            await awaitable
    except asyncio.CancelledError as e:
        return e
    return None
