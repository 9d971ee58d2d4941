# SPDX-License-Identifier: MIT
"""Measuring latencies: the client posts a message, and waits for the answer.

The answer to a send or a write is another one, so a latency is half of the round trip; a read or an
atomic operation is answered by the server's device, while its program sleeps. Messages are sent in
batches. At the end of each, receives are posted and completions of sends are taken; the time for
that is no part of a latency.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from operator import sub
from typing import Any, Final, NamedTuple

from ..._core import CompletionError, SendWR
from .. import CommandError
from ._end import PerfEnd
from ._run import Effort, begin, requests, what_failed
from ._statistics import latencies
from ._waits import RunEndedError, wait_for_byte, wait_for_one

BATCH: Final = 32
DEPTH: Final = 2 * BATCH  # of both queues


class Latency(NamedTuple):
    """The figures of a size, in microseconds, the same at both ends; and the samples.

    ours, theirs: the cost for each end, see Effort; None for a program of perftest.
    samples: in nanoseconds; empty at a server, unless its client is of perftest.
    """

    size: int
    iterations: int
    figures: dict[str, float]
    ours: dict[str, Any]
    theirs: dict[str, Any] | None
    samples: array[int]


def parts_of(op: str) -> int:
    """Return how many latencies a round trip has."""
    return 2 if op in ("send", "write") else 1


def measure(end: PerfEnd, size: int) -> Latency:
    """Measure one size. Raises CommandError, VerbsError or CompletionError if it fails."""
    try:
        return _ask(end, size) if end.plan.client else _answer(end, size)
    except CompletionError as e:
        raise what_failed(end, e) from e


class _Turns:
    """The posting of our messages, and the waiting for those of the peer."""

    def __init__(self, end: PerfEnd, size: int) -> None:
        self._end = end
        (self._qp,) = end.qps
        self._plain, self._signaled = requests(end, size)
        self._wait_for_send = wait_for_one(end, end.send_cq)
        self.post: Callable[[SendWR], None] = self._qp.post_send
        plan = end.plan
        self._each_completes = parts_of(plan.op) == 1
        if self._each_completes:
            self.wait = self._wait_for_send
        elif plan.receives:
            self.wait = wait_for_one(end, end.recv_cq)
        else:
            self.wait = _wait_for_write(end, size)

    def batch(self, n: int) -> list[SendWR]:
        """Return the next messages to post, one after the other."""
        if self._each_completes:
            return [self._signaled] * n
        return [self._plain] * (n - 1) + [self._signaled]

    def finish(self, n: int) -> None:
        """Prepare for the next batch after one of n messages."""
        if not self._each_completes:
            self._wait_for_send()
        if self._end.plan.receives:
            self._qp.post_recv(self._end.receives[0][:n])


def _wait_for_write(end: PerfEnd, size: int) -> Callable[[], None]:
    """Return a function that waits for the peer's next write, and prepares our next one.

    The last byte of a message is its number, from 1 to 255 and again from 1. The server's answer
    has the number of the client's message, and the client's next message has the next number.
    """
    out, into = end.views(size)
    wait, last, ahead = wait_for_byte(end, size), size - 1, int(end.plan.client)
    into[last] = 0
    out[last] = number = 1

    def answered() -> None:
        nonlocal number
        wait(number)
        following = number % 255 + 1
        out[last] = following if ahead else number
        number = following

    return answered


# ---- the client -----------------------------------------------------------------------------


def _ask(end: PerfEnd, size: int) -> Latency:
    plan, turns, samples = end.plan, _Turns(end, size), array("q")
    begin(end, size)
    effort = Effort(end)
    try:
        for n in _batches(plan.iters, plan.duration):
            _ping(turns, n, samples)
    except RunEndedError:
        raise CommandError("the peer ended the run too early") from None
    ours = effort.so_far()
    figures = latencies(samples, parts_of(plan.op))
    end.control.send({"figures": figures, "iterations": len(samples), "effort": ours})
    theirs = end.control.wait(plan.timeout)
    return Latency(size, len(samples), figures, ours, (theirs or {}).get("effort"), samples)


def _batches(iters: int | None, duration: float | None) -> Iterator[int]:
    """Yield the sizes of batches, until all messages are in one, or until the time is over."""
    if iters is not None:
        for left in range(iters, 0, -BATCH):
            yield min(left, BATCH)
        return
    assert duration is not None
    end = time.monotonic() + duration
    while time.monotonic() < end:
        yield BATCH


def _ping(turns: _Turns, n: int, samples: array[int]) -> None:
    post, wait, add, clock = turns.post, turns.wait, samples.append, time.perf_counter_ns
    before = clock()
    for wr in turns.batch(n):
        post(wr)
        wait()
        now = clock()
        add(now - before)
        before = now
    turns.finish(n)


# ---- the server -----------------------------------------------------------------------------


def _answer(end: PerfEnd, size: int) -> Latency:
    plan = end.plan
    turns = _Turns(end, size) if parts_of(plan.op) == 2 else None
    begin(end, size)
    effort = Effort(end)
    answered = array("q")
    try:
        if turns is not None:
            for n in _batches(plan.iters, float("inf")):
                _pong(turns, n, answered)
        said = end.control.wait(None if turns is None else plan.timeout)
    except RunEndedError as over:
        said = over.message
    ours = effort.so_far()
    end.control.send({"effort": ours})
    if said is None:  # a peer of perftest does not send its figures
        samples = array("q", map(sub, answered[1:], answered))
        return Latency(size, len(answered), latencies(samples, 2), ours, None, samples)
    return Latency(size, said["iterations"], said["figures"], ours, said["effort"], array("q"))


def _pong(turns: _Turns, n: int, answered: array[int]) -> None:
    post, wait, add, clock = turns.post, turns.wait, answered.append, time.perf_counter_ns
    for wr in turns.batch(n):
        wait()
        post(wr)
        add(clock())
    turns.finish(n)
