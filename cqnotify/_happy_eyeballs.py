# SPDX-License-Identifier: MIT
"""Several ways to a peer. The first that works is taken: the next one begins when one has failed,
or has not answered for a while (RFC 8305), so a silent one costs little time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from ._several import none_works

_T = TypeVar("_T")
Attempt = Callable[[], Coroutine[Any, Any, _T]]

NEXT_ATTEMPT_AFTER: Final = 0.25  # seconds, as that RFC recommends


async def first_of(
    attempts: Sequence[tuple[str, Attempt[_T]]], abandon: Callable[[_T], None]
) -> _T:
    """Return the first result; attempts are named by addresses. Later results are
    abandoned. Raises an exception that is no OSError at once."""
    if not attempts:
        raise ValueError("give an address, or several")
    if len(attempts) == 1:
        return await attempts[0][1]()
    running: dict[asyncio.Task[_T], str] = {}
    failures: list[tuple[str, Exception]] = []
    left = list(reversed(attempts))
    try:
        while left or running:
            if left:
                address, attempt = left.pop()
                running[asyncio.ensure_future(attempt())] = address
            done, _ = await asyncio.wait(
                running,
                timeout=NEXT_ATTEMPT_AFTER if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in (one for one in tuple(running) if one in done):
                try:
                    result = task.result()
                except OSError as e:
                    failures.append((running.pop(task), e))
                else:
                    del running[task]
                    return result
    finally:
        await _end(running, abandon)
    raise none_works(failures)


async def _end(running: dict[asyncio.Task[_T], str], abandon: Callable[[_T], None]) -> None:
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    for task in running:
        if not task.cancelled() and task.exception() is None:
            abandon(task.result())
