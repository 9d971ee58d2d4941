# SPDX-License-Identifier: MIT
"""Accepting clients on one listening socket from any number of tasks and threads.

An event loop allows one reader for each descriptor, and a second one silently replaces the first.
So the tasks of a loop that wait on one listener share an acceptor, which wakes them one after the
other, and which exists only while tasks wait. accept() is called only by the task or thread that
takes the client, so a client for which none waits stays in the kernel's backlog.

Each acceptor, and each waiting thread, owns a duplicate of the listener's descriptor: when another
thread closes the listener, the number of its descriptor may be reused for another file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

__all__ = ["DEFAULT_PORT", "Client", "Listener", "accept", "accept_blocking", "left", "listen"]

DEFAULT_PORT: Final = 18515
"""The TCP port of rdma-core's ping-pong programs."""

Client = tuple[socket.socket, object]  # a connection, and the address of its other end

# Both mean that there is nothing to accept; the second, that a client has gone again.
_LONGEST: Final = 1e6  # seconds, of one poll(2)
_BACKLOG: Final = 128
_NONE_THERE: Final = (BlockingIOError, ConnectionAbortedError)


def left(deadline: float) -> float:
    """Return the seconds until `deadline`; TimeoutError when there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the address exchange took too long")
    return seconds


class Listener(socket.socket):
    """A listening socket whose close(), in any thread, ends the waits of `accept` on it."""

    def close(self) -> None:
        with _lock:
            super().close()
            for place in list(_places.get(self, ())):
                place.wake()


class _Place:
    """A thread or an acceptor that waits on a listener.

    While there are any, the listener is non-blocking, with all its duplicates: another waiter may
    take a client between poll() and accept(). `wake` is called under the lock.
    """

    def __init__(self, listener: socket.socket, wake: Callable[[], object]) -> None:
        self._listener = listener
        self.wake: Callable[[], object] = wake
        with _lock:
            self.check_open()
            self.sock: socket.socket = socket.fromfd(
                listener.fileno(), listener.family, listener.type, listener.proto
            )
            self._others = _places.setdefault(listener, WeakSet())
            if not self._others:
                _were_blocking[listener] = os.get_blocking(listener.fileno())
            self._others.add(self)
            self.sock.setblocking(False)

    def check_open(self) -> None:
        if self._listener.fileno() < 0:
            raise OSError(errno.EBADF, "the listener was closed")

    def accept(self) -> Client | None:
        """Accept a client if there is one."""
        self.check_open()
        try:
            return self.sock.accept()
        except _NONE_THERE:
            return None

    def leave(self) -> None:
        with _lock:
            self._others.discard(self)
            if not self._others and self._listener.fileno() >= 0:
                os.set_blocking(self._listener.fileno(), _were_blocking[self._listener])
            self.sock.close()


# Guarded by the lock, which is reentrant: a signal handler may close a listener in the thread that
# holds it.
_lock: Final = threading.RLock()
_places: Final[WeakKeyDictionary[socket.socket, WeakSet[_Place]]] = WeakKeyDictionary()
_were_blocking: Final[WeakKeyDictionary[socket.socket, bool]] = WeakKeyDictionary()


def listen(host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> socket.socket:
    """Return a listening socket for `exchange_as_server`, which the caller closes.

    host: the address to listen on; "0.0.0.0" is all IPv4 addresses.
    port: the TCP port; 0 takes a free one, which `getsockname()[1]` tells.

    The socket can serve several clients, one after the other or at once. Clients stay in the
    backlog until an exchange waits for them. Closing the socket, in any thread, ends the exchanges
    that still wait for a client. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    return Listener(fileno=plain.detach())


# ---- asyncio --------------------------------------------------------------------------------


class _Acceptor:
    """The reader of one listener in one event loop, and the queue of the tasks that wait there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        self._loop = loop
        self._line: deque[asyncio.Event] = deque()
        self._place = _Place(listener, self._wake_from_anywhere)
        loop.add_reader(self._place.sock, self._wake_first)

    @property
    def is_over(self) -> bool:
        return self._place.sock.fileno() < 0

    async def accept(self, deadline: float) -> Client:
        turn = asyncio.Event()
        self._line.append(turn)
        try:
            while True:
                seconds = left(deadline)  # checked first, as bad clients may come without end
                # The reader fires for as long as a client is there. So a wake-up that a cancelled
                # task has missed is not lost: the task that is first then gets the next one.
                client = self._place.accept() if self._line[0] is turn else None
                if client is not None:
                    return client
                await self._sleep(turn, seconds)
        finally:
            self._line.remove(turn)
            if not self._line:
                self._end()

    async def _sleep(self, turn: asyncio.Event, seconds: float) -> None:
        turn.clear()
        timer = self._loop.call_later(seconds, turn.set)
        try:
            await turn.wait()
        finally:
            timer.cancel()
        self._place.check_open()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].set()

    def _wake_all(self) -> None:
        for turn in self._line:
            turn.set()

    def _wake_from_anywhere(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake_all)

    def _end(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._place.sock)
        self._place.leave()


# By the ids of the loop and the listener, which live as long as the acceptor. Only the waiting
# tasks and the loop own an acceptor, so it goes away with them.
_acceptors: Final[WeakValueDictionary[tuple[int, int], _Acceptor]] = WeakValueDictionary()


async def accept(listener: socket.socket, deadline: float) -> Client:
    """Wait for a client of `listener`; the tasks of an event loop are served first come first.

    Raises TimeoutError at `deadline`, a time of time.monotonic(), and OSError once the listener is
    closed. A cancelled task takes no client.
    """
    loop = asyncio.get_running_loop()
    key = (id(loop), id(listener))
    acceptor = _acceptors.get(key)
    if acceptor is None or acceptor.is_over:
        acceptor = _acceptors[key] = _Acceptor(loop, listener)
    return await acceptor.accept(deadline)


# ---- threads --------------------------------------------------------------------------------


def accept_blocking(listener: socket.socket, deadline: float) -> Client:
    """Do what `accept` does, without asyncio; any of several threads gets the next client."""
    wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        place = _Place(listener, lambda: os.eventfd_write(wake, 1))
        try:
            return _wait(place, wake, deadline)
        finally:
            place.leave()
    finally:
        os.close(wake)


def _wait(place: _Place, wake: int, deadline: float) -> Client:
    poller = select.poll()
    poller.register(place.sock, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        seconds = left(deadline)  # checked first, as bad clients may come without end
        client = place.accept()
        if client is not None:
            return client
        poller.poll(min(seconds, _LONGEST) * 1000)
