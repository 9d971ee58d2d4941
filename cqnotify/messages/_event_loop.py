# SPDX-License-Identifier: MIT
"""Waiting in the event loop to which an object belongs, with a timeout, without a task for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from .._timeouts import left_until

_T = TypeVar("_T")
Loop = asyncio.AbstractEventLoop


def check_loop(loop: Loop | None, what: str) -> None:
    """Raise RuntimeError unless this is that loop, and its thread. None: there is none yet.

    In another one a task would wait for ever: what it waits for happens in the first.
    """
    if asyncio._get_running_loop() is loop and loop is not None:
        return
    if loop is None:
        raise RuntimeError(f"{what} is used in its `async with` block, which was not entered")
    state = "is closed" if loop.is_closed() else "is not the one that runs here"
    raise RuntimeError(
        f"{what} belongs to the event loop in which it was made, and that {state}: use it there, "
        "from another thread by asyncio.run_coroutine_threadsafe()"
    )


def call_in(loop: Loop | None, call: Callable[[], None]) -> None:
    """At once; or in the loop's next turn, if that runs in another thread."""
    if loop is not None and loop.is_running() and asyncio._get_running_loop() is not loop:
        with contextlib.suppress(RuntimeError):  # it was closed just now
            loop.call_soon_threadsafe(call)
            return
    call()


def _expire(future: asyncio.Future[_T], what: str | Callable[[], str]) -> None:
    if not future.done():
        future.set_exception(TimeoutError(what if isinstance(what, str) else what()))


async def wait(future: asyncio.Future[_T], end: float | None, what: str | Callable[[], str]) -> _T:
    """Wait for the future until `end`. `what` is the text of the TimeoutError, or returns it."""
    if end is None:
        return await future
    timer = future.get_loop().call_later(left_until(end) or 0, _expire, future, what)
    try:
        return await future
    finally:
        timer.cancel()
