# SPDX-License-Identifier: MIT
"""AsyncCQ: the core's Engine, with its event loop, its iterators and its errors.

The Engine decides which task gets a completion, which task to wake and when it is safe to sleep;
see docs/internals.md, which has a diagram.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from itertools import filterfalse
from operator import is_
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .._core import CQ, AsyncEvent, AsyncEventError, ClosedError, Engine, WorkCompletion
from . import _reader
from ._batches import Batches
from ._failures import failure, fresh, same
from ._loop_adapters import running_task
from ._reader import Calls, Reader, weak_callback
from ._scope import Scope
from ._stats import AsyncCQStats

if TYPE_CHECKING:
    from typing import Self

    from .._core import QP

_T = TypeVar("_T")


class AsyncCQ(Engine):
    """Awaits the completions of one CQ, in asyncio (uvloop, too), trio or anyio.

    cq: a CQ with a channel and without another open AsyncCQ.
    spin: for how many seconds, 0 to 60, a task polls before it sleeps in any wait of this AsyncCQ.
        With "auto", for as long as the latest waits took, at most 50 us, and not at all if they
        mostly take longer or the thread has one CPU. Tasks spin only while nothing else is ready in
        the event loop, and for 200 us together in one iteration. It is an attribute, too.

    While the AsyncCQ is open, leave arming the CQ, acknowledging its events and reading the events
    of the channel to it; CQ.poll() then is the AsyncCQ's poll(). Closing the AsyncCQ leaves the CQ
    open. Apart from close(), call its methods only in the thread of its event loop.

    wait(), completion(), send(), recv() and so on return coroutines, which are made in C.
    asyncio.iscoroutine() and inspect.isawaitable() recognize them, and asyncio.create_task(),
    gather(), wait_for(), task groups and nurseries take them; inspect.iscoroutine() returns False.
    (If a version of anyio is imported that takes no others, they are Python's own coroutines.)
    `async for wc in acq` iterates over single completions.

    Raises ValueError for a CQ that has no channel or already has an AsyncCQ, or for another `spin`,
    ClosedError for a closed CQ.
    """

    __slots__ = ("_on_cq_closed", "_reader")

    def __init__(self, cq: CQ, *, spin: float | Literal["auto"] = 0.0) -> None:
        super().__init__(cq, spin=spin)  # from here on, other threads can call it
        self._on_cq_closed = weak_callback(self._cq_closed)
        self._reader = Reader.of(self._channel)
        self._reader.register(
            self, Calls(AsyncCQ._fail, AsyncCQ._forget_tasks, AsyncCQ._on_failure)
        )
        cq.add_close_callback(self._on_cq_closed)

    @property
    def stats(self) -> AsyncCQStats:
        """The counters of the CQ, since it was created, and those of the tasks that waited here."""
        return AsyncCQStats(*self.cq.stats, *self._woken)

    def __repr__(self) -> str:
        awaited = f"{self._awaited} awaited"
        state = "closed" if self.closed else "failed" if self._error is not None else awaited
        try:
            return f"<AsyncCQ of {self.cq!r}, {state}>"
        except RuntimeError:  # __init__() was not called, or has failed
            return super().__repr__()

    def batches(
        self,
        max_entries: int = 16,
        *,
        spin: float | Literal["auto"] | None = None,
        solicited_only: bool = False,
    ) -> Batches:
        """Iterate over lists of completions: `async for wcs in acq.batches()`.

        The parameters are those of `AsyncCQ.wait`; close() ends the iteration.
        """
        next_batch = partial(self._next_batch, max_entries, spin, solicited_only)
        return Batches(self, max_entries, next_batch)

    def scope(self) -> Scope:
        """Return a block that ends when everything posted inside has completed or failed.

        `async with acq.scope(): ...` counts the operations (send(), recv() and so on) of this
        AsyncCQ that begin in the block or in tasks started in it, cancelled ones included. After
        the block none of them pins memory any more.

        Tasks started in the block take their first step before it ends. An operation that such a
        task begins later counts only if others are still outstanding at that time. So wait for the
        tasks themselves as well, for example in a TaskGroup inside the block.

        A cancellation does not shorten the wait at the end of the block; it is raised after it. To
        end a receive for which no message comes, close its QP or move it to ERR. Raises ClosedError
        or AsyncEventError where completions will never come.
        """
        return Scope(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkCompletion:
        return (await self._next_batch(1, None, False))[0]

    async def _next_batch(
        self, max_entries: int, spin: float | Literal["auto"] | None, solicited_only: bool
    ) -> list[WorkCompletion]:
        """The next item of an iterator; close() ends the iteration."""
        try:
            return await self.wait(max_entries, spin=spin, solicited_only=solicited_only)
        except ClosedError:
            if self.closed:
                raise StopAsyncIteration from None
            raise

    def close(self) -> None:
        """Stop waiting: every waiting task gets ClosedError, `async for` ends.

        The events of the CQ are acknowledged, and the CQ stays open. Any thread may call this, and
        more than once. Wraps ibv_ack_cq_events(3).
        """
        with _reader.lock:  # another AsyncCQ of the CQ may be created right after this
            if not self._shut(ClosedError("this AsyncCQ is closed")):
                return
        if not hasattr(self, "_reader"):  # it was not made, or not to the end
            return
        self.cq.remove_close_callback(self._on_cq_closed)
        self._wake_in_loop()
        self._reader.unregister(self)  # last: until then the reader stays in the tasks' loop

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

    # ---- called by the Engine ----

    @staticmethod
    def _fresh(error: Exception) -> Exception:
        return fresh(error)

    @staticmethod
    async def _coroutine(awaitable: Coroutine[Any, Any, _T]) -> _T:
        """Wrap it for event loops that start nothing but native coroutines."""
        return await awaitable

    @staticmethod
    def _wants_coroutines(anyio: object) -> bool:
        """Whether this version of anyio starts nothing but native coroutines."""
        return not hasattr(anyio, "TaskHandle")

    @staticmethod
    def _running_task() -> tuple[int, bytes]:
        """The id and the name of the task that runs, for `cqnotify trace`."""
        number, name = running_task()
        return number, name.replace("\0", "").encode(errors="replace")

    def _attach(self) -> None:
        """Move the reader to the running event loop, which is not the one it is in."""
        self._reader.attach()
        if self.closed:  # by another thread meanwhile, which may have found no loop to notify
            self._reader.unregister(self)

    def _leave_closed_loop(self) -> None:
        if not self._reader.is_elsewhere():
            self._reader.leave_closed_loop()

    def _wake_in_loop(self) -> None:
        """Wake the tasks that have a result, in the event loop's thread."""
        self._reader.in_its_thread(self._wake)

    def _defer(self, interrupt: BaseException) -> None:
        """Raise the exception in the event loop's next iteration."""
        self._reader.in_loop(partial(_raise, interrupt))

    def _poll_later(self) -> None:
        """Continue in the event loop's next iteration, so that completions cannot block it."""
        self._reader.in_loop(self._poll_again)

    # ---- failures ----

    def _cq_closed(self) -> None:
        """Called in the thread that closed the CQ."""
        self._fail(ClosedError("the CQ was closed"))

    def _on_failure(self, event: AsyncEvent, for_good: bool) -> None:
        """Handle an event after which completions may be missing.

        for_good: whether no completion will come any more.
        """
        if for_good:
            self._fail(failure(event))
            return
        self._drain()
        if not self._notify(failure(event), event.qp):
            self._keep_report(failure(event))

    def _keep_report(self, error: AsyncEventError) -> None:
        """Keep a failure that was raised in no task, for the next task that waits."""
        others = filterfalse(partial(same, error.event), self._reports or ())
        self._reports = [*others, error.event]

    def _take_report(self, qp: QP | None) -> AsyncEventError | None:
        """Return a kept failure for a task that is about to wait for this QP, or for any."""
        reports = self._reports or []
        for event in reports:
            if qp is None or event.qp is None or event.qp is qp:
                error = failure(event)  # first: if there is no memory for it, the report stays
                self._reports = list(filterfalse(partial(is_, event), reports)) or None
                return error
        return None


def _raise(error: BaseException) -> None:
    raise error
