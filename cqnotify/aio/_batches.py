# SPDX-License-Identifier: MIT
"""Asynchronous iteration over lists of completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .._core import WorkCompletion

if TYPE_CHECKING:
    from typing import Self

    from ._cq import AsyncCQ


class Batches:
    """An iterator over lists of completions, which `AsyncCQ.batches()` returns."""

    __slots__ = ("_acq", "_max_entries", "_next")

    def __init__(
        self,
        acq: AsyncCQ,
        max_entries: int,
        next_batch: Callable[[], Awaitable[list[WorkCompletion]]],
    ) -> None:
        self._acq = acq
        self._max_entries = max_entries
        self._next = next_batch

    def __repr__(self) -> str:
        return f"<Batches of {self._acq!r}, at most {self._max_entries} each>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WorkCompletion]:
        return await self._next()
