# SPDX-License-Identifier: MIT
"""Iteration over lists of completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import WorkCompletion

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._cq import AsyncCQ


class Batches:
    """What `AsyncCQ.batches()` returns."""

    __slots__ = ("_acq", "_args")

    def __init__(self, acq: AsyncCQ, *args: Any) -> None:
        self._acq = acq
        self._args = args

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WorkCompletion]:
        return await self._acq._next_batch(*self._args)
