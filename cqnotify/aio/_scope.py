# SPDX-License-Identifier: MIT
"""Scopes: blocks that end when everything posted inside has completed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from .. import _core
from .._core import innermost_scope
from . import _loop_adapters

if TYPE_CHECKING:
    from typing import Self

    from ._cq import AsyncCQ


class Scope(_core.Scope):
    """The block that `AsyncCQ.scope()` returns, for one `async with`."""

    __slots__ = ("_acq", "_used")

    def __new__(cls, acq: AsyncCQ) -> Self:
        return super().__new__(cls, acq)

    def __init__(self, acq: AsyncCQ) -> None:
        self._acq = acq
        self._used = False

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"{self.outstanding} outstanding"
        return f"<Scope of {self._acq!r}, {state if self._used else 'not entered'}>"

    async def __aenter__(self) -> Self:
        if self._used:
            raise RuntimeError("this scope was entered before: call scope() for each block")
        self._used = True
        self._outer = innermost_scope.get(None)
        innermost_scope.set(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        cancelled = None
        try:
            while True:
                cancelled = await _loop_adapters.uncancelled(self._drained()) or cancelled
                if not self.outstanding:
                    break
        finally:
            self._ended = True
            self._leave()
        if cancelled is not None:
            raise cancelled
        if self._error is not None and exc is None:
            raise self._error.with_traceback(None)

    @staticmethod
    def _leave() -> None:
        """Make the innermost scope that has not ended the current one.

        A token of the ContextVar would not do: a block may be left in another context than it was
        entered in, and before a block inside it is left.
        """
        scope = innermost_scope.get(None)
        while scope is not None and scope._ended:
            scope = scope._outer
        innermost_scope.set(scope)
