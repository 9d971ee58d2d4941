# SPDX-License-Identifier: MIT
"""Scopes: blocks that end only when everything that was posted inside has completed."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._claims import Operation
    from ._cq import AsyncCQ
    from ._loops import Wakeup

# Of the running task, and of the tasks that it starts: they inherit it.
_innermost: Final[ContextVar[Scope | None]] = ContextVar("_innermost", default=None)


class Scope:
    """What `AsyncCQ.scope()` returns, for one `async with`."""

    __slots__ = ("_acq", "_ended", "_error", "_outer", "_pending", "_used", "_wakeup")

    def __init__(self, acq: AsyncCQ) -> None:
        self._acq = acq
        self._outer: Scope | None = None
        self._pending: set[Operation] = set()
        self._error: Exception | None = None
        self._wakeup: Wakeup | None = None
        self._used = False
        self._ended = False

    @classmethod
    def current(cls, acq: AsyncCQ) -> Scope | None:
        """The innermost one of this AsyncCQ around the running task, which can outlive some."""
        scope = _innermost.get()
        while scope is not None and (scope._acq is not acq or scope._ended):
            scope = scope._outer
        return scope

    @property
    def outstanding(self) -> int:
        """Work requests that were posted inside and have not completed."""
        return len(self._pending)

    def add(self, op: Operation) -> None:
        """It was posted inside."""
        self._pending.add(op)

    def discard(self, op: Operation) -> None:
        """It has completed, or was not posted after all."""
        self._pending.discard(op)
        if not self._pending and self._wakeup is not None:
            self._wakeup.wake()

    def fail(self, op: Operation, error: Exception) -> None:
        """It may never complete."""
        if op in self._pending:
            self._error = error
            self.discard(op)

    async def __aenter__(self) -> Self:
        if self._used:
            raise RuntimeError("this scope was entered before: call scope() for each block")
        self._used = True
        self._outer = _innermost.get()
        _innermost.set(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        # Not by a token: the block may be left in another context than it was entered in.
        _innermost.set(self._outer)
        cancelled = None
        try:
            while self._pending:
                loop = self._acq._prepare_to_sleep()
                if not self._pending:
                    break
                self._wakeup = loop.wakeup()
                cancelled = await loop.sleep_through(self._wakeup) or cancelled
        finally:
            self._ended = True
        if cancelled is not None:
            raise cancelled
        if self._error is not None and exc is None:
            raise self._error.with_traceback(None)
