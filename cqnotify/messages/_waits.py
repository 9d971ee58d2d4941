# SPDX-License-Identifier: MIT
"""Waiting for a future with a timeout, without a task for it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from .._timeouts import left_until

_T = TypeVar("_T")


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
