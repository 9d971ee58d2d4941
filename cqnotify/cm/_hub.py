# SPDX-License-Identifier: MIT
"""Reading the events of connections: one channel for each event loop, and one for all threads.

That of an event loop lives as long as there are links on its channel. Events are handled in the
thread of the event loop, or in a thread of the hub's own: so a peer that disconnects is noticed at
once, even if no program waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .._core import CMChannel, Wakeup
from .._timeouts import left_until
from ..aio._loops import Loop, adapt, running
from ..aio._reader import Watched
from ._errors import Event
from ._turns import TURN, Turns

if TYPE_CHECKING:
    from ..aio._trio import TrioWakeup
    from ._link import Link

Predicate = Callable[[], object]

# Each event passes here.
new_event: Callable[[Sequence[Any]], Event] = functools.partial(tuple.__new__, Event)


class Bell(Protocol):
    """What is rung when something has changed for those that wait for it."""

    def ring(self) -> None: ...

    def ring_at_once(self, news: Sequence[object] | None = None) -> None: ...

    def sleep(self, has_news: Predicate, end: float | None) -> Generator[Any, None, bool]: ...


class Hub:
    """A channel, and the links whose events it brings."""

    def __init__(self) -> None:
        self.channel: CMChannel = CMChannel()
        # By id. Any thread may close a link, so no thread goes through a set that can change.
        self.links: dict[int, weakref.ref[Link]] = {}

    def add(self, link: Link) -> None:
        self.links[id(link)] = weakref.ref(link)

    def remove(self, link: Link) -> None:
        self.links.pop(id(link), None)

    def living(self) -> list[Link]:
        return [link for ref in list(self.links.values()) if (link := ref()) is not None]

    def leave_unused(self) -> None:
        """Close the channel of an event loop that has no link."""

    def fail(self, error: Exception) -> None:
        """No event will come any more."""
        for link in self.living():
            link.fail(error)
        self.close()

    def close(self) -> None:
        self.channel.close()

    def handle_some(self) -> bool:
        """Handle what has arrived. Return whether there may be more."""
        end = time.monotonic() + TURN
        while (raw := self.channel.read_event()) is not None:
            if raw:  # else the core took a step
                self.handle(new_event(raw))
            if self.channel.closed:  # by a task that was woken
                return False
            if time.monotonic() >= end:
                return True
        return False

    def handle(self, event: Event) -> None:
        ref = event.id.user_data
        link = None if ref is None else ref()
        if link is not None:
            try:
                link.deliver(event)
            except Exception as e:  # without memory, for example: the other links go on
                link.fail(e)
        elif event.request is not None:
            event.request.close()  # and so rejected

    def bell(self) -> Bell:
        raise NotImplementedError


# ---- event loops ------------------------------------------------------------------------------


def in_asyncio() -> bool:
    """Whether the running event loop is asyncio's."""
    return isinstance(running(), asyncio.AbstractEventLoop)


def new_wakeup(loop: Loop) -> Wakeup | TrioWakeup:
    """What a task of that loop awaits once."""
    if loop.asyncio is not None:
        return Wakeup(loop.asyncio)
    return loop.wakeup()  # type: ignore[attr-defined, no-any-return]


class AsyncBell:
    """Rung in the thread of the event loop; from other threads, soon."""

    __slots__ = ("_loop", "_sleepers")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sleepers: list[Wakeup | TrioWakeup] = []

    def ring(self) -> None:
        if self._loop.is_elsewhere():
            try:
                self._loop.call_soon_threadsafe(self._ring)
            except RuntimeError:  # the loop is closed, and with it the tasks that wait
                return
        else:
            self._ring()

    def _ring(self) -> None:
        for wakeup in self._sleepers[:]:
            wakeup.wake()

    def ring_at_once(self, news: Sequence[object] | None = None) -> None:
        """The same in a callback of the loop, where no task runs: tasks that wait go on in it;
        with `news`, while there are any left."""
        try:
            for wakeup in self._sleepers[:]:
                wakeup.resume()
                if news is not None and not news:
                    break
        except BaseException:  # which is the loop's
            self._ring()
            raise

    def sleep(self, has_news: Predicate, end: float | None) -> Generator[Any, None, bool]:
        """Sleep, as a part of a task, until the bell is rung. Return False if there are no news and
        the time is over."""
        if end is not None and time.monotonic() >= end:
            return False
        loop = self._loop.asyncio
        wakeup = new_wakeup(self._loop) if loop is None else Wakeup(loop)
        self._sleepers.append(wakeup)
        try:
            if end is None:
                yield from wakeup
                return True
            yield from self._sleep_until(end, wakeup)
        finally:
            self._sleepers.remove(wakeup)
        return bool(has_news()) or time.monotonic() < end

    def _sleep_until(self, end: float, wakeup: Wakeup | TrioWakeup) -> Generator[Any, None, None]:
        left = end - time.monotonic()
        if self._loop.asyncio is not None:
            timer = self._loop.asyncio.call_later(left, wakeup.wake)
            try:
                yield from wakeup
            finally:
                timer.cancel()
        else:
            import trio

            with trio.move_on_after(left):
                yield from wakeup


class LoopHub(Hub):
    """That of a running event loop."""

    _hubs: ClassVar[dict[object, LoopHub]] = {}

    @classmethod
    def of_running_loop(cls) -> LoopHub:
        raw = running()
        hub = cls._hubs.get(raw)
        if hub is None:
            for old in list(cls._hubs.values()):  # which other threads change
                if old.loop.is_closed():
                    old.close()
            hub = cls._hubs[raw] = cls(raw)
        hub._is_wanted = True
        return hub

    def __init__(self, raw: object) -> None:
        super().__init__()
        self.loop = adapt(raw)
        self.turns = Turns(self.loop, new_wakeup)
        self._watched: Watched | None = None
        # A link is being made: meanwhile the collector may take the last one of the others.
        self._is_wanted = False

    def add(self, link: Link) -> None:
        self.links[id(link)] = weakref.ref(link)
        self._is_wanted = False
        if self._watched is None:
            self._watched = Watched(self.channel)
            self._watched.start(self.loop, self._on_readable)

    def remove(self, link: Link) -> None:
        if self.links.pop(id(link), None) is not None and not self.links:
            self.leave_unused()

    def leave_unused(self) -> None:
        if self.links or self._is_wanted:
            return
        if self.loop.is_elsewhere():
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self.loop.call_soon_threadsafe(self.leave_unused)
        else:
            self.close()

    def close(self) -> None:
        if self._hubs.get(self.loop.raw) is self:
            self._hubs.pop(self.loop.raw, None)
        if self._watched is not None:
            watched, self._watched = self._watched, None
            watched.close()
        super().close()

    def _on_readable(self) -> None:
        """Never raise: the loop would call it again at once, for ever."""
        try:
            if self.handle_some():
                self.loop.call_soon(self._on_readable)
        except Exception as e:
            self.fail(e)

    def bell(self) -> AsyncBell:
        return AsyncBell(self.loop)


# ---- threads ----------------------------------------------------------------------------------


class ThreadBell:
    """Rung in any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def ring(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def ring_at_once(self, news: Sequence[object] | None = None) -> None:
        self.ring()

    def sleep(self, has_news: Predicate, end: float | None) -> Generator[Any, None, bool]:
        """The calling thread sleeps, so this yields nothing, which a task would have to."""
        yield from ()
        with self._condition:
            return bool(self._condition.wait_for(has_news, left_until(end)))


class ThreadHub(Hub):
    """That of all threads, with one of its own that reads, from the first link on."""

    _hub: ClassVar[ThreadHub | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls) -> ThreadHub:
        with cls._lock:
            if cls._hub is None or cls._hub.channel.closed:
                cls._hub = cls()
            return cls._hub

    @classmethod
    def forget(cls) -> None:
        """In a forked child, where neither the thread nor the channel lives on."""
        cls._lock = threading.Lock()
        cls._hub = None

    @classmethod
    def end(cls) -> None:
        """At the end of the interpreter: a sub-interpreter must not leave a thread."""
        hub = cls._hub
        if hub is None or hub._thread is None:
            return
        with cls._lock:
            if hub._stop >= 0:
                os.eventfd_write(hub._stop, 1)
        hub._thread.join()

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None
        self._stop = -1  # a descriptor, while the thread runs

    def add(self, link: Link) -> None:
        super().add(link)
        with self._lock:
            if self._thread is None:
                # A daemon: threads of the program that wait for a peer still find it at the end. An
                # isolated sub-interpreter has none, and Python says so.
                self._thread = threading.Thread(target=self._run, name="cqnotify.cm", daemon=True)
                self._stop = os.eventfd(0)
                self._thread.start()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        try:
            while self._stop not in dict(poller.poll()):
                while self.handle_some():
                    pass
        except Exception as e:
            self.fail(e)
        with self._lock:
            os.close(self._stop)
            self._stop = -1

    def bell(self) -> ThreadBell:
        return ThreadBell()


os.register_at_fork(after_in_child=ThreadHub.forget)
atexit.register(ThreadHub.end)
