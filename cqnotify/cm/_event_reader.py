# SPDX-License-Identifier: MIT
"""Reading the events of connections: one channel for each event loop, and one for all threads.

The channel of an event loop exists as long as links use it. Events are handled in the thread of the
event loop, or for threads in a thread of the reader's own. So a peer that disconnects is noticed at
once, even if no program waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from .._core import CMChannel
from .._timeouts import left_until
from ..aio._loop_adapters import adapt, running
from ..aio._reader import Watched
from ._errors import Event
from ._link import Link

if TYPE_CHECKING:
    from .._core import CMID

Predicate = Callable[[], object]


class EventReader:
    """A channel, and the links whose events are read from it."""

    def __init__(self) -> None:
        self.channel: CMChannel = CMChannel(Event)

    def new_link(self, cmid: CMID | None, datagrams: bool) -> Link:
        """Return a link, with the identifier of a request or a new one."""
        raise NotImplementedError

    def leave_unused(self) -> None:
        """Close the channel of an event loop when no link is left."""

    def fail(self, error: Exception) -> None:
        """End all links: no event can be read any more."""
        for link in self.channel.conns:
            link.fail(error)
        self.close()

    def close(self) -> None:
        self.channel.close()


# ---- event loops ------------------------------------------------------------------------------


def in_asyncio() -> bool:
    """Whether the running event loop is asyncio's."""
    return isinstance(running(), asyncio.AbstractEventLoop)


class LoopReader(EventReader):
    """The reader of an event loop."""

    _readers: ClassVar[dict[object, LoopReader]] = {}

    @classmethod
    def of_running_loop(cls) -> LoopReader:
        raw = running()
        reader = cls._readers.get(raw)
        if reader is None:
            for old in list(cls._readers.values()):  # which other threads change
                if old.loop.is_closed():
                    old.close()
            reader = cls._readers[raw] = cls(raw)
        reader._is_wanted = True
        return reader

    def __init__(self, raw: object) -> None:
        super().__init__()
        self.loop = adapt(raw)
        self.channel._set_loop(self.loop)
        self._watched: Watched | None = None
        # While a link is being made, the garbage collector may take the last one of the others.
        self._is_wanted = False

    def new_link(self, cmid: CMID | None, datagrams: bool) -> Link:
        try:
            link = Link(self, self.channel, None, cmid, datagrams)
        except BaseException:
            self._is_wanted = False
            self.leave_unused()
            raise
        self._is_wanted = False
        if self._watched is None:
            self._watched = Watched(self.channel)
            self._watched.start(self.loop, self._on_readable)
        return link

    def leave_unused(self) -> None:
        if self.channel.conns or self._is_wanted:
            return
        if self.loop.is_elsewhere():
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self.loop.call_soon_threadsafe(self.leave_unused)
        else:
            self.close()

    def close(self) -> None:
        if self._readers.get(self.loop.raw) is self:
            self._readers.pop(self.loop.raw, None)
        if self._watched is not None:
            watched, self._watched = self._watched, None
            watched.close()
        super().close()

    def _on_readable(self) -> None:
        """Never raise: the loop would call it again at once, for ever."""
        try:
            if self.channel.handle_events():
                self.loop.call_soon(self._on_readable)
        except Exception as e:
            self.fail(e)
        except BaseException:  # from a task that was resumed; there may be more events
            self.loop.call_soon(self._on_readable)
            raise


# ---- threads ----------------------------------------------------------------------------------


class ThreadNotifier:
    """Wakes the threads that wait for a link; any thread may notify it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def sleep(self, has_news: Predicate, end: float | None) -> None:
        """Sleep in the calling thread until there is news, or the time is over."""
        with self._condition:
            self._condition.wait_for(has_news, left_until(end))


class ThreadReader(EventReader):
    """The reader for all threads. From the first link on it has a thread of its own."""

    _reader: ClassVar[ThreadReader | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls) -> ThreadReader:
        with cls._lock:
            if cls._reader is None or cls._reader.channel.closed:
                cls._reader = cls()
            return cls._reader

    @classmethod
    def forget(cls) -> None:
        """Start anew in a forked child, which has neither the thread nor the channel."""
        cls._lock = threading.Lock()
        cls._reader = None

    @classmethod
    def end(cls) -> None:
        """End the thread as the interpreter ends: a sub-interpreter must not leave one."""
        reader = cls._reader
        if reader is None or reader._thread is None:
            return
        with cls._lock:
            if reader._stop >= 0:
                os.eventfd_write(reader._stop, 1)
        reader._thread.join()

    def __init__(self) -> None:
        super().__init__()
        self._thread: threading.Thread | None = None
        self._stop = -1  # a descriptor, while the thread runs

    def new_link(self, cmid: CMID | None, datagrams: bool) -> Link:
        link = Link(self, self.channel, ThreadNotifier(), cmid, datagrams)
        with self._lock:
            if self._thread is None:
                # A daemon, so that threads that wait for a peer can use it until the end. An
                # isolated sub-interpreter can have no daemons: Python raises RuntimeError.
                self._thread = threading.Thread(target=self._run, name="cqnotify.cm", daemon=True)
                self._stop = os.eventfd(0)
                self._thread.start()
        return link

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        try:
            while self._stop not in dict(poller.poll()):
                while self.channel.handle_events():
                    pass
        except Exception as e:
            self.fail(e)
        with self._lock:
            os.close(self._stop)
            self._stop = -1


os.register_at_fork(after_in_child=ThreadReader.forget)
atexit.register(ThreadReader.end)
