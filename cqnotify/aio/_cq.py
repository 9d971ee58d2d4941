# SPDX-License-Identifier: MIT
"""AsyncCQ: the Engine of the core, with what is rare or speaks.

Where completions go, which tasks are woken and when it is safe to sleep is in
csrc/await/engine.h and the files that it names; docs/internals.md has a diagram.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import CQ, AsyncEvent, AsyncEventError, ClosedError, Engine, WorkCompletion
from . import _reader
from ._batches import Batches
from ._failures import failure, fresh, same
from ._reader import Calls, Reader, weak_callback
from ._scope import Scope
from ._stats import AsyncCQStats

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._core import QP

_T = TypeVar("_T")


class AsyncCQ(Engine):
    """Awaits the completions of one CQ, in asyncio (uvloop, too), trio or anyio.

    The CQ must have a channel, and can have one open AsyncCQ at a time. While it has, leave arming
    and acknowledging the CQ and reading the channel's events to it; CQ.poll() is its poll().
    Closing the AsyncCQ leaves the CQ open. It belongs to the thread of its event loop.

    Raises ValueError for a CQ without a channel or with an AsyncCQ, ClosedError for a closed one.
    """

    __slots__ = ("_on_cq_closed", "_reader")

    def __init__(self, cq: CQ) -> None:
        super().__init__(cq)  # from here on other threads can come in
        self._on_cq_closed = weak_callback(self._cq_closed)
        self._reader = Reader.of(self._channel)
        self._reader.register(
            self, Calls(type(self)._fail, type(self)._forget_tasks, type(self)._on_failure)
        )
        cq.add_close_callback(self._on_cq_closed)

    @property
    def stats(self) -> AsyncCQStats:
        """The counters of the CQ, which begin with the CQ, and those of the tasks here."""
        return AsyncCQStats(*self.cq.stats, *self._woken)

    def __repr__(self) -> str:
        awaited = f"{self._awaited} awaited"
        state = "closed" if self.closed else "failed" if self._error is not None else awaited
        try:
            return f"<AsyncCQ of {self.cq!r}, {state}>"
        except RuntimeError:  # it was not made
            return super().__repr__()

    def batches(
        self, max_entries: int = 16, *, spin: float = 0.0, solicited_only: bool = False
    ) -> Batches:
        """Iterate over lists of completions: `async for wcs in acq.batches()`. See wait()."""
        next_batch = partial(self._next_batch, max_entries, spin, solicited_only)
        return Batches(self, max_entries, next_batch)

    def scope(self) -> Scope:
        """A block that ends when everything that was posted inside has completed or failed.

        `async with acq.scope(): ...` counts what send(), recv() and so on of this AsyncCQ begin in
        the block and in tasks that are started in it, also if they were cancelled; nothing of it
        pins memory after the block. A task that was started in the block has begun when it ends,
        but of what that does later only what it posts before all others have completed counts: wait
        for the tasks themselves, in a TaskGroup inside the block, say. A cancellation does not
        shorten the wait at the end of the block, it is raised after it: to end a receive that
        nothing comes for, close its QP or move it to ERR. Raises ClosedError or AsyncEventError
        where completions will never come.
        """
        return Scope(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkCompletion:
        return (await self._next_batch(1, 0.0, False))[0]

    async def _next_batch(
        self, max_entries: int, spin: float, solicited_only: bool
    ) -> list[WorkCompletion]:
        """For iterators: close() ends them."""
        try:
            return await self.wait(max_entries, spin=spin, solicited_only=solicited_only)
        except ClosedError:
            if self.closed:
                raise StopAsyncIteration from None
            raise

    def close(self) -> None:
        """Stop waiting: whoever waits gets ClosedError, `async for` ends. Closing twice is fine.

        The CQ stays open, its events are acknowledged. It may be called from other threads.
        Wraps ibv_ack_cq_events(3).
        """
        with _reader.lock:  # the next AsyncCQ of the CQ may come at once
            if not self._shut(ClosedError("this AsyncCQ is closed")):
                return
        if not hasattr(self, "_reader"):  # it was not made, or not to the end
            return
        self.cq.remove_close_callback(self._on_cq_closed)
        if self._reader.is_elsewhere():
            self._reader.in_loop(self._end)
        else:
            self._end()

    def _end(self) -> None:
        """The part of close() that belongs to the loop's thread."""
        self._reader.unregister(self)
        self._wake()

    async def __aenter__(self) -> Self:
        if self.closed:
            raise ClosedError("this AsyncCQ is closed")
        if self._error is not None:
            raise fresh(self._error)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what the engine asks for ----

    @staticmethod
    def _fresh(error: Exception) -> Exception:
        return fresh(error)

    @staticmethod
    async def _coroutine(awaitable: Coroutine[Any, Any, _T]) -> _T:
        """The same, for those that want a coroutine of Python's own."""
        return await awaitable

    @staticmethod
    def _wants_coroutines(anyio: object) -> bool:
        """Whether this anyio starts nothing else."""
        return not hasattr(anyio, "TaskHandle")

    def _attach(self) -> None:
        """Another loop runs than the one that reads the channel's events."""
        self._reader.attach()
        if self.closed:  # meanwhile, by another thread, which may have found no loop to tell
            self._reader.unregister(self)

    def _leave_closed_loop(self) -> None:
        if not self._reader.is_elsewhere():
            self._reader.leave_closed_loop()

    def _hand_over(self) -> None:
        """Wake those that have something, in the loop's thread."""
        if self._reader.is_elsewhere():
            self._reader.in_loop(self._wake)
        else:
            self._wake()

    def _put_off(self, interrupt: BaseException) -> None:
        """Raise it in the loop, as soon as that has its turn."""

        def raise_it() -> None:
            raise interrupt

        self._reader.in_loop(raise_it)

    def _look_later(self) -> None:
        """Completions come faster than they are looked at: the loop gets its turn."""
        self._reader.in_loop(self._look)

    # ---- failures ----

    def _cq_closed(self) -> None:
        """Called when the CQ was closed, in the thread that closed it."""
        self._fail(ClosedError("the CQ was closed"))

    def _on_failure(self, event: AsyncEvent, for_good: bool) -> None:
        """The device reports something after which completions may be missing."""
        if for_good:
            self._fail(failure(event))
            return
        self._drain()
        if not self._tell(failure(event), event.qp):
            self._keep_report(failure(event))

    def _keep_report(self, error: AsyncEventError) -> None:
        """No task was told of it; the next one that waits will be."""
        new = error.event
        self._reports = [old for old in self._reports or () if not same(old, new)] + [new]

    def _raise_report(self, qp: QP | None) -> None:
        """To a task that will wait for a completion of this QP, or of any."""
        reports = self._reports or []
        for event in reports:
            if qp is None or event.qp is None or event.qp is qp:
                self._reports = [other for other in reports if other is not event] or None
                raise failure(event)
