# SPDX-License-Identifier: MIT
"""Reading the events of connections: one channel for each event loop, and one for all threads.

A hub lives as long as there are links on its channel. Events are handled in the thread of the event
loop, or in a thread of the hub's own: so a peer that disconnects is noticed at once, even if no
program waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from .._core import CMChannel
from ..aio._loops import Loop, adapt, running
from ..aio._reader import Watched
from ._errors import Event

if TYPE_CHECKING:
    from ._link import Link

TURN = 0.005  # seconds for which events are handled before the loop gets its turn

Predicate = Callable[[], object]


class Bell(Protocol):
    """What is rung when something has changed for those that wait for it."""

    def ring(self) -> None: ...


class Hub:
    """A channel, and the links whose events it brings."""

    def __init__(self) -> None:
        self.channel: CMChannel = CMChannel()
        self.links: weakref.WeakSet[Link] = weakref.WeakSet()

    def add(self, link: Link) -> None:
        self.links.add(link)

    def remove(self, link: Link) -> None:
        self.links.discard(link)

    def leave_unused(self) -> None:
        """Close the channel of an event loop that has no link."""

    def fail(self, error: Exception) -> None:
        """No event will come any more."""
        for link in list(self.links):
            link.fail(error)
        self.close()

    def close(self) -> None:
        self.channel.close()

    def handle_some(self) -> bool:
        """Handle what has arrived. Return whether there may be more."""
        end = time.monotonic() + TURN
        while time.monotonic() < end:
            raw = self.channel.read_event()
            if raw is None:
                return False
            event = Event(*raw)
            link = event.id.user_data() if event.id.user_data is not None else None
            if link is not None:
                link.deliver(event)
            elif event.request is not None:
                event.request.close()  # and so rejected
        return True

    def bell(self) -> Bell:
        raise NotImplementedError


# ---- event loops ------------------------------------------------------------------------------


class AsyncBell:
    """Rung in the thread of the event loop; from other threads, soon."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sleepers: list[Callable[[], None]] = []

    def ring(self) -> None:
        if self._loop.is_elsewhere():
            try:
                self._loop.call_soon_threadsafe(self._ring)
            except RuntimeError:  # the loop is closed, and with it the tasks that wait
                return
        else:
            self._ring()

    def _ring(self) -> None:
        for wake in self._sleepers:
            wake()

    async def wait_for(self, predicate: Predicate, timeout: float | None) -> bool:
        """Sleep until it is true. Return False at the end of the timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not predicate():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._loop.asyncio is not None:
                await self._sleep(self._loop.asyncio, left)
            else:
                await self._sleep_in_trio(left)
        return True

    async def _sleep(self, loop: asyncio.AbstractEventLoop, timeout: float | None) -> None:
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = None if timeout is None else loop.call_later(timeout, wake)
        self._sleepers.append(wake)
        try:
            await future
        finally:
            self._sleepers.remove(wake)
            if timer is not None:
                timer.cancel()

    async def _sleep_in_trio(self, timeout: float | None) -> None:
        import trio

        event = trio.Event()
        self._sleepers.append(event.set)
        try:
            with trio.move_on_after(float("inf") if timeout is None else timeout):
                await event.wait()
        finally:
            self._sleepers.remove(event.set)


class LoopHub(Hub):
    """That of a running event loop."""

    _hubs: ClassVar[dict[object, LoopHub]] = {}

    @classmethod
    def of_running_loop(cls) -> LoopHub:
        raw = running()
        hub = cls._hubs.get(raw)
        if hub is None:
            for old in [old for old in cls._hubs.values() if old.loop.is_closed()]:
                old.close()
            hub = cls._hubs[raw] = cls(raw)
        return hub

    def __init__(self, raw: object) -> None:
        super().__init__()
        self.loop = adapt(raw)
        self._watched: Watched | None = None

    def add(self, link: Link) -> None:
        super().add(link)
        if self._watched is None:
            self._watched = Watched(self.channel)
            self._watched.start(self.loop, self._on_readable)

    def remove(self, link: Link) -> None:
        super().remove(link)
        self.leave_unused()

    def leave_unused(self) -> None:
        if self.links:
            return
        if self.loop.is_elsewhere():
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self.loop.call_soon_threadsafe(self.leave_unused)
        else:
            self.close()

    def close(self) -> None:
        if self._hubs.get(self.loop.raw) is self:
            del self._hubs[self.loop.raw]
        if self._watched is not None:
            watched, self._watched = self._watched, None
            watched.close()
        super().close()

    def _on_readable(self) -> None:
        """Never raise: the loop would call it again at once, for ever."""
        try:
            if self.handle_some():
                self.loop.call_soon_threadsafe(self._on_readable)
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

    def wait_for(self, predicate: Predicate, timeout: float | None) -> bool:
        with self._condition:
            return bool(self._condition.wait_for(predicate, timeout))


class ThreadHub(Hub):
    """That of all threads, with one of its own that reads while there are links."""

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

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None

    def add(self, link: Link) -> None:
        super().add(link)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cqnotify.cm", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        try:
            while True:
                poller.poll()
                while self.handle_some():
                    pass
        except Exception as e:
            self.fail(e)

    def bell(self) -> ThreadBell:
        return ThreadBell()


os.register_at_fork(after_in_child=ThreadHub.forget)
