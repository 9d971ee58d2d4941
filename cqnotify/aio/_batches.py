# SPDX-License-Identifier: MIT
"""Iteration over lists of completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import WorkCompletion

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._cq import AsyncCQ


class Batches:
    """What `AsyncCQ.batches()` returns."""

    __slots__ = ("_acq", "_args")

    def __init__(self, acq: AsyncCQ, max_entries: int, spin: float, solicited_only: bool) -> None:
        self._acq = acq
        self._args = max_entries, spin, solicited_only

    def __repr__(self) -> str:
        return f"<Batches of {self._acq!r}, at most {self._args[0]} each>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WorkCompletion]:
        return await self._acq._next_batch(*self._args)
