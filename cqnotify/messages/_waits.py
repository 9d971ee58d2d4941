# SPDX-License-Identifier: MIT
"""Waiting for a future with a timeout, without a task for it."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

_T = TypeVar("_T")


def check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None")


def deadline(timeout: float | None) -> float | None:
    """By time.monotonic(); None is never."""
    return None if timeout is None else time.monotonic() + timeout


def left_until(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def _expire(future: asyncio.Future[_T], what: str) -> None:
    if not future.done():
        future.set_exception(TimeoutError(what))


async def wait(future: asyncio.Future[_T], end: float | None, what: str) -> _T:
    """Wait for the future until `end`; what then raises TimeoutError is `what`."""
    if end is None:
        return await future
    timer = future.get_loop().call_later(left_until(end) or 0, _expire, future, what)
    try:
        return await future
    finally:
        timer.cancel()
