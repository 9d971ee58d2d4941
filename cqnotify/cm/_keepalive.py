# SPDX-License-Identifier: MIT
"""Keepalive: a connection is over when its peer has given no sign of life for too long.

No event reports the death of a host, and a connection on which nothing is sent would live for
ever. So every half of the bound, while nothing else is sent, an empty RDMA write probes the peer's
device, which has to acknowledge it before the next one is due. Neither program takes part: one
thread probes for all connections of the process.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from .._core import ClosedError, VerbsError

if TYPE_CHECKING:
    from ._link import Link

ACK_UNIT = 4.096e-6  # seconds; a QP waits 2**ack_timeout of these
LONGEST = 19  # of the ack_timeouts that are chosen here; what kernels choose is at most that


def ack_timeout_for(seconds: float, retry_count: int) -> int:
    """Return an ack_timeout by which a QP gives up a send within half of the bound, at the latest.

    So a probe whose answer is lost is repeated several times.
    """
    for ack_timeout in range(LONGEST, 1, -1):
        if (retry_count + 1) * ACK_UNIT * 2**ack_timeout <= seconds / 2:
            return ack_timeout
    return 1


class Keepalives:
    """The connections that are probed, and the thread that does it."""

    _one: ClassVar[Keepalives | None] = None
    _lock: ClassVar[threading.RLock] = threading.RLock()  # the collector may drop() within it

    @classmethod
    def add(cls, link: Link, seconds: float) -> None:
        ref = weakref.ref(link)
        with cls._lock:
            if cls._one is None:
                cls._one = cls()
            one = cls._one
            one._asked.add(ref)
            one._push(ref, seconds)
            one._changed.notify()
            if one._thread is None:
                one._thread = threading.Thread(
                    target=one._run, name="cqnotify.cm keepalive", daemon=True
                )
                one._thread.start()

    @classmethod
    def drop(cls, link: Link, ref_to: Callable[[Link], object] = weakref.ref) -> None:
        """Probe a link no more, since it was closed; with the last one the thread ends. As the
        interpreter ends, the names of this module can be None here."""
        one, ref = cls._one, ref_to(link)
        if one is not None and ref in one._asked:
            one._asked.discard(ref)
            if not one._asked:
                with cls._lock:
                    one._changed.notify()

    @classmethod
    def forget(cls) -> None:
        """Start anew in a forked child, which has neither the thread nor the connections."""
        cls._lock = threading.RLock()
        cls._one = None

    @classmethod
    def end(cls) -> None:
        """End the thread as the interpreter ends: a sub-interpreter must not leave one."""
        with cls._lock:
            one = cls._one
            thread = None if one is None else one._thread
            if one is not None:
                one._is_over = True
                one._changed.notify()
        if thread is not None:
            thread.join()

    def __init__(self) -> None:
        self._changed = threading.Condition(self._lock)
        self._asked: set[weakref.ref[Link]] = set()
        # With those that were dropped, until they are due.
        self._heap: list[tuple[float, int, weakref.ref[Link], float]] = []
        self._count = itertools.count()  # no two entries are equal up to the reference
        self._thread: threading.Thread | None = None
        self._is_over = False

    def _push(self, link: weakref.ref[Link], seconds: float) -> None:
        due = time.monotonic() + seconds / 2
        heapq.heappush(self._heap, (due, next(self._count), link, seconds))

    def _next(self) -> tuple[float, weakref.ref[Link], float] | None:
        """Sleep until a connection is due. None when there is none left."""
        with self._lock:
            while self._asked and not self._is_over:
                left = self._heap[0][0] - time.monotonic()
                if left <= 0:
                    due, _, link, seconds = heapq.heappop(self._heap)
                    return due, link, seconds
                self._changed.wait(left)
            self._heap.clear()
            self._thread = None  # the next add() starts another
            return None

    def _run(self) -> None:
        while (what := self._next()) is not None:
            due, ref, seconds = what
            # Where this process, or the whole machine, stood still, the answers did so, too.
            is_late = time.monotonic() - due > seconds / 4
            if ask(ref, seconds, is_late):
                with self._lock:
                    self._push(ref, seconds)
            else:
                self._asked.discard(ref)


os.register_at_fork(after_in_child=Keepalives.forget)
atexit.register(Keepalives.end)


def ask(ref: weakref.ref[Link], seconds: float, is_late: bool) -> bool:
    """Ask the peer for a sign of life. Return whether to go on with that connection."""
    link = ref()
    if link is None or link.error is not None or link.qp is None:
        return False
    try:
        known = link.qp._probe()
    except ClosedError:
        return False
    except VerbsError as e:
        link.lose(f"no keepalive can be sent: {e}")
        return False
    if known == "failed":
        link.lose("a keepalive was not answered, or the queue pair has failed")
    elif known == "unanswered" and not is_late:
        link.lose(f"the peer has given no sign of life for {seconds:g} s")
    return link.error is None
