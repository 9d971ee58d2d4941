# SPDX-License-Identifier: MIT
"""Awaiting completions with asyncio.

An `AsyncCQ` is put on a CQ that has a completion channel:

    async with AsyncCQ(cq) as acq:
        for wc in await acq.wait():
            wc.raise_for_status()

Nothing here runs in a thread, and nothing wakes the loop while no completion comes.

How it works, for whoever changes it. Two rules make lost wake-ups impossible:

*Before anybody sleeps*, the CQ is armed, and polled after that; only if that poll finds nothing,
and nothing is queued, may he sleep. That is CQ.safe_to_sleep().

*Completions go into the queue before any waiter is woken.* A waiter's future carries no completion,
it only says "look". So a waiter that is cancelled at the very moment it is woken loses nothing: on
its way out it wakes the next one, or sees to it that the CQ is armed for him.

A channel has one reader, in one event loop at a time, however many CQs share the channel and
however many tasks wait. It stays installed between waits, which costs half of installing it each
time, and a waiter that is cancelled cannot deafen the others. It watches a duplicate of the
channel's descriptor: should the channel be closed under it, the number cannot be given to another
file while the loop still knows it as ours.

An AsyncCQ belongs to the thread of its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from ._core import CQ, ClosedError, CompletionChannel, WorkCompletion

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncCQ", "AsyncCQStats"]

_EVENTS_PER_CALLBACK: Final = 32  # then the loop gets its turn; what is left makes it call again
_ACK_BATCH: Final = 32  # an ack takes a mutex
_POLL_BATCH: Final = 16  # a poll costs the same for one as for a few


class AsyncCQStats(NamedTuple):
    """What `CQ.stats` counts, and how often a sleeping waiter was woken.

    max_per_wake is the largest number of completions that one such waiter was handed.
    """

    events: int
    acked: int
    arms: int
    polls: int
    completions: int
    spurious: int
    wakeups: int
    max_per_wake: int


class _Waiter:
    """A task that waits. Its future says "look", nothing else."""

    __slots__ = ("future", "max_entries", "solicited_only")

    def __init__(
        self, future: asyncio.Future[None], max_entries: int, solicited_only: bool
    ) -> None:
        self.future = future
        self.max_entries = max_entries
        self.solicited_only = solicited_only

    def wake(self) -> None:
        # The loop may have been closed with the task still waiting: nobody is left to be woken.
        if not self.future.done() and not self.future.get_loop().is_closed():
            self.future.set_result(None)


class AsyncCQ:
    """Awaits the completions of one CQ.

    The CQ must have a channel, and can have one open AsyncCQ at a time. While it has, leave arming,
    acknowledging and polling the CQ and reading the channel's events to it. Closing the AsyncCQ
    leaves the CQ open.

    Raises ValueError for a CQ without a channel or with an AsyncCQ, ClosedError for a closed one.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_cq",
        "_error",
        "_max_per_wake",
        "_on_cq_closed",
        "_reader",
        "_ready",
        "_unacked",
        "_waiters",
        "_wakeups",
    )

    def __init__(self, cq: CQ) -> None:
        if not isinstance(cq, CQ):
            raise TypeError(f"cq must be a CQ, not {type(cq).__name__}")
        if cq.closed:
            raise ClosedError("this CQ is closed")
        channel = cq.channel
        if channel is None:
            raise ValueError("this CQ has no completion channel: nothing can wake a waiter")
        self._cq = cq
        self._ready: deque[WorkCompletion] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._unacked = 0
        self._closed = False
        self._error: Exception | None = None
        self._wakeups = 0
        self._max_per_wake = 0
        self._reader = _Reader.of(channel)
        self._reader.register(self)
        self._on_cq_closed = _weak_callback(self._cq_closed)
        cq.add_close_callback(self._on_cq_closed)

    @property
    def cq(self) -> CQ:
        """The CQ that it was made for."""
        return self._cq

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return self._closed

    @property
    def stats(self) -> AsyncCQStats:
        """The counters of the CQ, which begin with the CQ, and those of the waiters."""
        return AsyncCQStats(*self._cq.stats, self._wakeups, self._max_per_wake)

    async def wait(
        self, max_entries: int = 16, *, solicited_only: bool = False
    ) -> list[WorkCompletion]:
        """Return the next completions, at least one and at most `max_entries`.

        Completions that are there already are returned at once. Otherwise it sleeps until the CQ
        raises an event. With `solicited_only` only a solicited completion wakes it, together with
        all that came before; some devices (rxe among them) count a failed one as unsolicited, so
        such a waiter can sleep through the death of its QP. It is woken by others, too, while some
        other task waits for any completion.

        Several tasks may wait: they are served in the order in which they came. It can be cancelled
        and put under asyncio.timeout(): a completion that nobody took stays queued.

        Raises ClosedError when this, the CQ or the channel is closed, also while waiting and by
        another thread, RuntimeError while another event loop that is not closed uses the channel,
        VerbsError for what the device refuses.
        Wraps ibv_req_notify_cq(3), ibv_get_cq_event(3) and ibv_poll_cq(3).
        """
        if max_entries < 1:
            raise ValueError(f"max_entries is {max_entries}: it must be at least 1")
        self._check()
        if not self._waiters and self._look(max_entries):
            return self._take(max_entries)
        loop = asyncio.get_running_loop()
        self._reader.attach(loop)
        waiter = _Waiter(loop.create_future(), max_entries, solicited_only)
        self._waiters.append(waiter)
        try:
            return await self._sleep(waiter)
        finally:
            with contextlib.suppress(ValueError):  # forgotten already: its loop was closed
                self._waiters.remove(waiter)
            # Whether served or cancelled: the baton goes on.
            self._serve()

    def poll(self, max_entries: int = 16) -> list[WorkCompletion]:
        """Return the completions that are there, without waiting; none while a task waits.

        After close() it returns what had been taken from the CQ and not been handed out by then,
        and raises ClosedError when nothing is left. Wraps ibv_poll_cq(3).
        """
        if self._waiters:
            return []
        if not self._ready:
            self._check()
            self._look(max_entries)
        return self._take(max_entries)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkCompletion:
        try:
            return (await self.wait(1))[0]
        except ClosedError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    def close(self) -> None:
        """Stop waiting: waiters get ClosedError, `async for` ends. Closing twice is fine.

        The CQ stays open, its events are acknowledged. Wraps ibv_ack_cq_events(3).
        """
        if self._closed:
            return
        self._closed = True
        self._cq.remove_close_callback(self._on_cq_closed)
        self._reader.unregister(self)
        for waiter in self._waiters:
            waiter.wake()
        with contextlib.suppress(ClosedError):  # a CQ acknowledges the rest when it is closed
            self._ack()

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("this AsyncCQ is closed")
        if self._error is not None:
            raise self._error

    def _take(self, max_entries: int) -> list[WorkCompletion]:
        ready = self._ready
        return [ready.popleft() for _ in range(min(max_entries, len(ready)))]

    def _look(self, max_entries: int) -> bool:
        """Is a completion there? Asks the CQ only when the queue is empty."""
        if not self._ready:
            self._ready.extend(self._cq.poll(max(max_entries, _POLL_BATCH)))
        return bool(self._ready)

    async def _sleep(self, waiter: _Waiter) -> list[WorkCompletion]:
        slept = False
        while True:
            self._serve()
            slept = slept or not waiter.future.done()
            await waiter.future
            if self._ready:
                return self._hand_out(waiter, slept)
            self._check()
            waiter.future = waiter.future.get_loop().create_future()

    def _hand_out(self, waiter: _Waiter, slept: bool) -> list[WorkCompletion]:
        wcs = self._take(waiter.max_entries)
        if slept:
            self._wakeups += 1
            self._max_per_wake = max(self._max_per_wake, len(wcs))
        return wcs

    def _serve(self) -> None:
        """Whoever waits: give the first one what there is, or make it safe to sleep."""
        if not self._waiters or self._closed or self._error is not None:
            return
        try:
            ready = self._look_and_arm()
        except Exception as e:
            self._fail(e)
        else:
            if ready:
                # He may be woken already, or cancelled without having run since: either way he
                # passes the baton on when he does.
                self._waiters[0].wake()

    def _look_and_arm(self) -> bool:
        if self._ready:
            return True
        if self._cq.safe_to_sleep(all(w.solicited_only for w in self._waiters)):
            return False
        return self._look(self._waiters[0].max_entries)

    def _on_event(self) -> None:
        """The reader has read an event of this CQ."""
        self._unacked += 1
        self._serve()
        if self._unacked >= _ACK_BATCH:
            try:
                self._ack()
            except Exception as e:
                self._fail(e)

    def _ack(self) -> None:
        # Somebody else may have acknowledged ours; beyond the CQ's own count it is an error.
        n = min(self._unacked, self._cq.unacked)
        self._unacked = 0
        if n:
            self._cq.ack(n)

    def _fail(self, error: Exception) -> None:
        """For good: every waiter, and every later wait, raises `error`."""
        if self._error is None:
            self._error = error
        for waiter in self._waiters:
            waiter.wake()

    def _cq_closed(self) -> None:
        """Called by whoever closed the CQ, in his thread."""
        self._reader.in_loop(lambda: self._fail(ClosedError("the CQ was closed")))

    def _forget_waiters(self) -> None:
        """Their event loop was closed: they will never run again."""
        self._waiters.clear()


class _Reader:
    """The one reader of a channel. It is in at most one event loop, from its first waiter on."""

    # By the id of the channel, which its reader holds: an id is not reused while its entry lives.
    _readers: ClassVar[weakref.WeakValueDictionary[int, _Reader]] = weakref.WeakValueDictionary()

    def __init__(self, channel: CompletionChannel) -> None:
        self._channel = channel
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        # By the CQ's id; weak, so that an AsyncCQ that is forgotten unclosed goes away. It holds
        # the CQ and this reader.
        self._users: dict[int, weakref.ref[AsyncCQ]] = {}
        self._on_channel_closed = _weak_callback(self._channel_closed)
        channel.add_close_callback(self._on_channel_closed)

    @classmethod
    def of(cls, channel: CompletionChannel) -> _Reader:
        reader = cls._readers.get(id(channel))
        if reader is None:
            reader = cls._readers[id(channel)] = cls(channel)
        return reader

    def register(self, acq: AsyncCQ) -> None:
        key = id(acq.cq)
        if self._user(key) is not None:
            raise ValueError("this CQ has an open AsyncCQ already")
        self._users[key] = weakref.ref(acq, functools.partial(self._forget, key))

    def unregister(self, acq: AsyncCQ) -> None:
        if self._user(id(acq.cq)) is acq:
            del self._users[id(acq.cq)]
        if not self._users:
            self._detach()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the channel's events in this loop, from now on."""
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise RuntimeError(
                    "another event loop, which is still open, reads the events of this channel: "
                    "close its AsyncCQs or the loop first"
                )
            self._detach()
            for acq in self._living():
                acq._forget_waiters()
        fd = os.dup(self._channel.fileno())
        try:
            loop.add_reader(fd, self._on_readable)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._loop = fd, loop

    def _detach(self) -> None:
        fd, loop = self._fd, self._loop
        self._fd, self._loop = -1, None
        if loop is None:
            return
        if not loop.is_closed():
            loop.remove_reader(fd)
        os.close(fd)

    def _on_readable(self) -> None:
        """Read a bounded number of events.

        Whatever goes wrong, it must not raise: the loop would call it again at once, for ever.
        """
        try:
            for _ in range(_EVENTS_PER_CALLBACK):
                cq = self._channel.try_get_event()
                if cq is None:
                    return
                acq = self._user(id(cq))
                if acq is not None:  # others' events are counted by the CQ
                    acq._on_event()
        except Exception as e:
            self._fail(e)

    def in_loop(self, call: Callable[[], None]) -> None:
        """From any thread: call it in the loop's. Without a loop nobody waits, so call it here."""
        loop = self._loop
        if loop is None:
            call()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody will ever wake there
            loop.call_soon_threadsafe(call)

    def _channel_closed(self) -> None:
        """Called by whoever closed the channel, in his thread."""
        self.in_loop(lambda: self._fail(ClosedError("the completion channel was closed")))

    def _fail(self, error: Exception) -> None:
        self._detach()
        for acq in self._living():
            acq._fail(error)

    def _user(self, key: int) -> AsyncCQ | None:
        ref = self._users.get(key)
        return None if ref is None else ref()

    def _living(self) -> list[AsyncCQ]:
        return [acq for ref in list(self._users.values()) if (acq := ref()) is not None]

    def _forget(self, key: int, ref: weakref.ref[AsyncCQ]) -> None:
        """An AsyncCQ was collected, unclosed: possibly in another thread than the loop's."""
        if self._users.get(key) is ref:
            del self._users[key]
        if not self._users and self._loop is not None:
            self.in_loop(self._detach_unused)

    def _detach_unused(self) -> None:
        if not self._users:
            self._detach()

    def __del__(self) -> None:
        self._channel.remove_close_callback(self._on_channel_closed)
        # No loop knows this reader any more, or it would be alive.
        if self._fd >= 0:
            os.close(self._fd)


def _weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """A callback that does not keep its object alive."""
    ref = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := ref()) is not None:
            alive()

    return call
