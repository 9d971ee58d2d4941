# SPDX-License-Identifier: MIT
"""What listens to descriptors in the event loop: to a channel's events, to a device's failures.

A channel has one reader, in one loop at a time, however many CQs share the channel and however many
tasks wait. It stays between waits, which costs half of installing it each time, and a waiter that
is cancelled cannot deafen the others. What is watched are duplicates of descriptors: should the
channel be closed under it, the number cannot be given to another file while the loop still knows it
as ours.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from .._core import AsyncEvent, ClosedError, CompletionChannel, FailureWatch
from . import _loops
from ._loops import Loop

if TYPE_CHECKING:
    from ._cq import AsyncCQ

# Held while a reader is made, or put into a loop. No loop is called under it.
lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Watched:
    """A duplicate of a descriptor, to be watched by a loop; it is closed with this."""

    __slots__ = ("_fd", "_loop", "_pid")

    def __init__(self, what: CompletionChannel | FailureWatch) -> None:
        self._fd = -1
        self._loop: Loop | None = None
        self._pid = os.getpid()
        self._fd = what._dup()

    def start(self, loop: Loop, callback: Callable[[], None]) -> None:
        loop.watch(self._fd, callback)
        self._loop = loop

    def close(self) -> None:
        """In the loop's thread, or when the loop is closed."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # A forked child has the epoll instance of the parent's loop: it would make that deaf.
            loop = self._loop
            if loop is not None and self._pid == os.getpid() and not loop.is_closed():
                loop.unwatch(fd)
        finally:
            os.close(fd)

    # When the interpreter ends, `os` can be None here.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # No loop knows it any more, or what it calls would be alive.
        if self._fd >= 0:
            close(self._fd)


class Calls(NamedTuple):
    """What a reader tells an AsyncCQ, which it knows weakly: functions that are given it."""

    fail: Callable[[AsyncCQ, Exception], None]
    forget_tasks: Callable[[AsyncCQ], None]
    on_failure: Callable[[AsyncCQ, AsyncEvent, bool], None]


class Reader:
    """The one reader of a channel. It is in at most one event loop, from its first waiter on."""

    # By the id of the channel, which its reader holds: an id is not reused while its entry lives.
    _readers: ClassVar[weakref.WeakValueDictionary[int, Reader]] = weakref.WeakValueDictionary()

    def __init__(self, channel: CompletionChannel) -> None:
        self._channel = channel
        # From the first AsyncCQ to the last, in a loop or not: then no failure is missed, whoever
        # takes its report. It takes nothing from Context.get_async_event().
        self._failures: FailureWatch | None = None
        self._watched: list[Watched] = []
        self.loop: Loop | None = None
        # By its id; weak, so that an AsyncCQ that is forgotten unclosed goes away. It holds the CQ
        # and this reader.
        self._users: dict[int, tuple[weakref.ref[AsyncCQ], Calls]] = {}
        self._on_channel_closed = weak_callback(self._channel_closed)
        channel.add_close_callback(self._on_channel_closed)

    @classmethod
    def of(cls, channel: CompletionChannel) -> Reader:
        with lock:
            reader = cls._readers.get(id(channel))
            if reader is None:
                reader = cls._readers[id(channel)] = cls(channel)
            return reader

    def register(self, acq: AsyncCQ, calls: Calls) -> None:
        key = id(acq)
        with lock:
            self._users[key] = weakref.ref(acq, functools.partial(self._forget, key)), calls
            self._open_failures()

    def unregister(self, acq: AsyncCQ) -> None:
        self._users.pop(id(acq), None)
        self._detach_unused()

    def attach(self) -> Loop:
        """Read the channel's events in the running loop from now on."""
        raw = _loops.running()
        loop = self.loop
        if loop is not None and loop.raw is raw:
            loop.thread = threading.get_ident()
            return loop
        if self._channel.closed:  # also in a forked child, where the parent's loop seems open
            self._channel.fileno()  # raises, and says why
        self.leave_closed_loop()
        loop = _loops.adapt(raw)
        with lock:
            if self.loop is not None:
                raise RuntimeError(
                    "another event loop, which is still open, reads the events of this channel: "
                    "close its AsyncCQs or the loop first"
                )
            failures = self._open_failures()
            self._channel._set_loop(loop, self.fail)
            self.loop = loop
        try:
            self._watch(self._channel, loop, self._channel._on_event)
            self._watch(failures, loop, self._on_failure)
        except BaseException:
            self._detach(loop)
            raise
        return loop

    def _watch(
        self, what: CompletionChannel | FailureWatch, loop: Loop, callback: Callable[[], None]
    ) -> None:
        watched = Watched(what)
        self._watched.append(watched)  # so it is found whatever fails
        watched.start(loop, callback)

    def leave_closed_loop(self) -> None:
        loop = self.loop
        if loop is not None and loop.is_closed() and self._detach(loop):
            for acq, calls in self._living():
                calls.forget_tasks(acq)

    def _detach(self, loop: Loop | None) -> bool:
        """Leave that loop; False: another thread did, and it may be in the next one."""
        with lock:
            if loop is None or self.loop is not loop:
                return False
            self.loop = None
            self._channel._set_loop(None, None)
            watched, self._watched = self._watched, []
        for one in watched:
            one.close()
        return True

    def in_loop(self, call: Callable[[], None]) -> None:
        """From any thread: call it in the loop's. Without one no task waits: call it here."""
        loop = self.loop
        if loop is None:
            call()
            return
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            call()

    def is_elsewhere(self) -> bool:
        """Whether its loop lives in another thread than the caller."""
        loop = self.loop  # which another thread can change
        return loop is not None and loop.is_elsewhere()

    def _on_failure(self) -> None:
        """The device has failed, for some CQs, or for all. As _on_event() it must not raise."""
        try:
            for event, cqs in self._open_failures().read():
                for acq, calls in self._living():
                    if cqs is None or any(cq is acq.cq for cq in cqs):
                        calls.on_failure(acq, event, cqs is None)
        except Exception as e:
            self.fail(e)

    def fail(self, error: Exception) -> None:
        self._detach(self.loop)
        for acq, calls in self._living():
            calls.fail(acq, error)

    def _channel_closed(self) -> None:
        """Called when the channel was closed, in the thread that closed it."""
        self.in_loop(lambda: self.fail(ClosedError("the completion channel was closed")))

    def _living(self) -> list[tuple[AsyncCQ, Calls]]:
        users = list(self._users.values())
        return [(acq, calls) for ref, calls in users if (acq := ref()) is not None]

    def _forget(
        self,
        key: int,
        ref: weakref.ref[AsyncCQ],
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """An AsyncCQ was collected, unclosed: perhaps late, in another thread than the loop's."""
        self._users.pop(key, None)
        # When the interpreter ends, `sys` and `lock` here and what the loop needs can be None.
        if not self._users and not is_finalizing():
            self.in_loop(self._detach_unused)

    def _detach_unused(self) -> None:
        with lock:
            if self._users:
                return
            loop = self.loop
            self._close_failures()
        self._detach(loop)

    def _open_failures(self) -> FailureWatch:
        if self._failures is None or self._failures.closed:
            self._failures = FailureWatch(self._channel.context)
        return self._failures

    def _close_failures(self) -> None:
        if self._failures is not None:
            self._failures.close()

    def __del__(self) -> None:
        self._channel.remove_close_callback(self._on_channel_closed)
        self._close_failures()


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """A callback that does not keep its object alive."""
    ref = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := ref()) is not None:
            alive()

    return call
