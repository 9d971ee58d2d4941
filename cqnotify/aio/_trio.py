# SPDX-License-Identifier: MIT
"""The implementation of _loop_adapters.Loop for trio; imported only where trio runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import trio


class TrioWakeup:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def wake(self) -> None:
        self._event.set()

    def resume(self) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, None, object]:
        return self._event.wait().__await__()

    __iter__ = __await__  # for generators that are part of a task


class TrioLoop:
    def __init__(self, token: Any) -> None:
        self.raw: object = token
        self.asyncio: asyncio.AbstractEventLoop | None = None
        self.thread = threading.get_ident()
        self._token = token
        self._watches: dict[int, trio.CancelScope] = {}
        # trio.RunFinishedError is a RuntimeError
        self.call_soon = self.call_soon_threadsafe = token.run_sync_soon

    def is_closed(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

    def is_elsewhere(self) -> bool:
        return self.thread != threading.get_ident() and not self.is_closed()

    def runs_here(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def wakeup(self) -> TrioWakeup:
        return TrioWakeup()

    def sleep(self, wakeup: TrioWakeup, seconds: float) -> Generator[Any, None, None]:
        """Sleep on it as a part of a task, and not longer than that."""
        with trio.move_on_after(seconds):
            yield from wakeup

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        scope = self._watches[fd] = trio.CancelScope()
        trio.lowlevel.spawn_system_task(_call_when_readable, fd, callback, scope)

    def unwatch(self, fd: int) -> None:
        self._watches.pop(fd).cancel()
        trio.lowlevel.notify_closing(fd)


async def _call_when_readable(
    fd: int, callback: Callable[[], None], scope: trio.CancelScope
) -> None:
    # After a cancellation the number of the descriptor may belong to another file: do not use it.
    with scope, contextlib.suppress(trio.ClosedResourceError):
        while not scope.cancel_called:
            await trio.lowlevel.wait_readable(fd)
            if not scope.cancel_called:  # unwatch() may have been called since it was readable
                callback()


def _nothing() -> None:
    pass


def running() -> object:
    return trio.lowlevel.current_trio_token()


async def uncancelled(awaitable: Awaitable[object]) -> None:
    with trio.CancelScope(shield=True):
        await awaitable
