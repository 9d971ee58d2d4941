# SPDX-License-Identifier: MIT
"""What the rest asks of an event loop, and how asyncio does it. _trio.py does the same for trio.

anyio runs on one of the two, so it needs next to nothing of its own; uvloop is asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol


class Loop(Protocol):
    """A running event loop. But for call_soon_threadsafe(), in its thread only."""

    raw: object
    """The loop itself: two of these are the same loop if this is the same object."""

    asyncio: asyncio.AbstractEventLoop | None
    """It, too, if it is one of asyncio, whose tasks sleep on a _core.Wakeup. Any other has a method
    wakeup(): what that returns is awaited once, until its wake() is called."""

    thread: int
    """In which it ran when a task began to wait."""

    def is_closed(self) -> bool:
        """Whether none of its tasks will ever run again."""
        ...

    def is_elsewhere(self) -> bool:
        """Whether it lives in another thread than the caller."""
        ...

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever fd is readable. It must not raise."""

    def unwatch(self, fd: int) -> None:
        """Before fd is closed."""

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """RuntimeError when the loop is closed."""


class AsyncioLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.raw: object = loop
        self.asyncio: asyncio.AbstractEventLoop | None = loop
        self.thread = threading.get_ident()
        self._loop = loop

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def is_elsewhere(self) -> bool:
        if self._loop.is_running():
            return asyncio._get_running_loop() is not self._loop
        return self.thread != threading.get_ident() and not self._loop.is_closed()

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        # In a context of its own: that of the first waiter would live as long as the reader.
        contextvars.Context().run(self._loop.add_reader, fd, callback)

    def unwatch(self, fd: int) -> None:
        self._loop.remove_reader(fd)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)


def _anyio_shield() -> contextlib.AbstractContextManager[object]:
    """In a scope that was cancelled anyio cancels again and again, and would spin."""
    # Without it another thread is importing anyio just now, and no task uses it yet.
    scope = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return contextlib.nullcontext() if scope is None else scope(shield=True)


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # the first: another thread is importing it just now
        return False
    return True


def running() -> object:
    """The running loop itself. RuntimeError where there is none."""
    if _in_trio():
        from . import _trio

        return _trio.running()
    return asyncio.get_running_loop()


def adapt(raw: object) -> Loop:
    """The running loop `raw` as the rest knows it."""
    if isinstance(raw, asyncio.AbstractEventLoop):
        return AsyncioLoop(raw)
    from . import _trio

    return _trio.TrioLoop(raw)


async def uncancelled(awaitable: Awaitable[object]) -> BaseException | None:
    """Await it even if cancelled; a cancellation of asyncio ends it, and is returned."""
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
