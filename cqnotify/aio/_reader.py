# SPDX-License-Identifier: MIT
"""Watching descriptors in an event loop: a channel's events, and a device's failures.

A channel has one reader, in one event loop at a time, however many CQs share the channel and
however many tasks wait. The reader stays in the loop between waits: that costs half as much as
adding it for each wait, and cancelling one waiter cannot stop the reading for others. The loop
watches duplicates of the descriptors, so when the channel is closed, its descriptor's number cannot
be reused for another file while the loop still watches it.

What the loop and the core call here, and in _cq.py, has no variables that inner functions share.
Python makes the cells for these before the first line of a function, outside of every `try`; and
where it has no memory for one, Python 3.11 never releases the arguments of the call.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from .._core import AsyncEvent, ClosedError, CompletionChannel, FailureWatch
from . import _loop_adapters
from ._loop_adapters import Loop

if TYPE_CHECKING:
    from ._cq import AsyncCQ

# Held while a reader is created or moved to a loop. No method of a loop is called under it.
lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child, where a thread of the parent that held the lock does not exist."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class HasDescriptor(Protocol):
    """A channel of completions or of connections, or a FailureWatch."""

    def _dup(self) -> int: ...


class Watched:
    """A duplicate of a descriptor, which an event loop watches; this object owns it."""

    __slots__ = ("_fd", "_loop", "_pid")

    def __init__(self, what: HasDescriptor) -> None:
        self._fd = -1
        self._loop: Loop | None = None
        self._pid = os.getpid()
        self._fd = what._dup()

    def start(self, loop: Loop, callback: Callable[[], None]) -> None:
        loop.watch(self._fd, callback)
        self._loop = loop

    def close(self) -> None:
        """Stop watching; called in the loop's thread, or when the loop is closed."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # A forked child shares the epoll instance of the parent's loop, and must not change it.
            loop = self._loop
            if loop is not None and self._pid == os.getpid() and not loop.is_closed():
                loop.unwatch(fd)
        finally:
            os.close(fd)

    # When the interpreter ends, `os` can be None here.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # No loop watches it any more: the callback would keep this object alive.
        if self._fd >= 0:
            close(self._fd)


class Calls(NamedTuple):
    """The methods of an AsyncCQ that its reader calls; unbound, as the reader does not own it."""

    fail: Callable[[AsyncCQ, Exception], None]
    forget_tasks: Callable[[AsyncCQ], None]
    on_failure: Callable[[AsyncCQ, AsyncEvent, bool], None]


class Reader:
    """The one reader of a channel; from its first waiter on it is in one event loop."""

    # By the id of the channel. The reader owns the channel, so the id is not reused meanwhile.
    _readers: ClassVar[weakref.WeakValueDictionary[int, Reader]] = weakref.WeakValueDictionary()

    def __init__(self, channel: CompletionChannel) -> None:
        self._channel = channel
        # Open from the first AsyncCQ to the last, so that no failure is missed between two loops.
        # Context.get_async_event() returns the same events as well.
        self._failures: FailureWatch | None = None
        self._watched: list[Watched] = []
        self.loop: Loop | None = None
        # The AsyncCQs by id; weak, so that one that is dropped unclosed is collected. An AsyncCQ
        # owns its CQ and this reader.
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
        raw = _loop_adapters.running()
        loop = self.loop
        if loop is not None and loop.raw is raw:
            loop.thread = threading.get_ident()
            return loop
        if self._channel.closed:  # also in a forked child, where the parent's loop looks open
            self._channel.fileno()  # raises, and says why
        self.leave_closed_loop()
        loop = _loop_adapters.adapt(raw)
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

    def _watch(self, what: HasDescriptor, loop: Loop, callback: Callable[[], None]) -> None:
        watched = Watched(what)
        self._watched.append(watched)  # first, so that it is closed even if start() fails
        watched.start(loop, callback)

    def leave_closed_loop(self) -> None:
        loop = self.loop
        if loop is not None and loop.is_closed() and self._detach(loop):
            for acq, calls in self._living():
                calls.forget_tasks(acq)

    def _detach(self, loop: Loop | None) -> bool:
        """Leave that loop. Return False where another thread did, and may have moved it on."""
        with lock:
            if loop is None or self.loop is not loop:
                return False
            assert not loop.is_elsewhere(), "only the loop's own thread takes the reader out of it"
            self.loop = None
            self._channel._set_loop(None, None)
            watched, self._watched = self._watched, []
        for one in watched:
            one.close()
        return True

    def in_loop(self, call: Callable[[], None]) -> None:
        """Call it in the loop's thread, or here if there is no loop, and so no task that waits."""
        loop = self.loop
        if loop is None:
            call()
            return
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            call()

    def in_its_thread(self, call: Callable[[], None]) -> None:
        """The same, but at once where the caller is in that thread."""
        if self.is_elsewhere():
            self.in_loop(call)
        else:
            call()

    def is_elsewhere(self) -> bool:
        """Whether the reader's loop runs in another thread than the caller's."""
        loop = self.loop  # a copy, since another thread can change the attribute
        return loop is not None and loop.is_elsewhere()

    def _on_failure(self) -> None:
        """Pass failures of the device to the AsyncCQs concerned; like _on_event(), never raise."""
        try:
            for event, cqs in self._open_failures().read():
                if event.transient and not self._channel.transient_errors:
                    continue
                for acq, calls in self._living():
                    if cqs is None or id(acq.cq) in map(id, cqs):
                        calls.on_failure(acq, event, cqs is None)
        except Exception as e:
            self.fail(e)

    def fail(self, error: Exception) -> None:
        """In the loop's thread, or where there is none."""
        for acq, calls in self._living():
            calls.fail(acq, error)
        self._detach(self.loop)  # last: a thread that closes an AsyncCQ must find the tasks' loop

    def _channel_closed(self) -> None:
        """Called in the thread that closed the channel."""
        error = ClosedError("the completion channel was closed")
        self.in_loop(functools.partial(self.fail, error))

    def _living(self) -> list[tuple[AsyncCQ, Calls]]:
        living = []
        for ref, calls in list(self._users.values()):
            acq = ref()
            if acq is not None:
                living.append((acq, calls))
        return living

    def _forget(
        self,
        key: int,
        ref: weakref.ref[AsyncCQ],
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """An AsyncCQ was collected unclosed, possibly in another thread than the loop's."""
        self._users.pop(key, None)
        # When the interpreter ends, `sys` and `lock` here and what the loop needs can be None.
        if not self._users and not is_finalizing():
            self.in_loop(self._detach_unused)

    def _detach_unused(self) -> None:
        """Leave the loop if no AsyncCQ is left. Called in any thread: it goes on in the loop's."""
        with lock:
            if self._users:
                return
            loop = self.loop
            self._close_failures()
        if loop is not None and loop.is_elsewhere():
            self.in_loop(self._detach_unused)
        else:
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
    """Return a callback that does not keep the method's object alive.

    Not by weakref.WeakMethod, whose inner functions share variables.
    """
    assert isinstance(method, MethodType)
    return functools.partial(_call_if_alive, weakref.ref(method.__self__), method.__func__)


def _call_if_alive(ref: weakref.ref[object], function: Callable[[object], None]) -> None:
    target = ref()
    if target is not None:
        function(target)
