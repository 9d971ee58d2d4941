# SPDX-License-Identifier: MIT
"""Measuring bandwidth: one end keeps its send queues full, and the other one its receive queues.

Messages are posted in batches, each a list that was built before and is posted in one call. Only
the last message of a batch completes, so Python has work for each batch, and not for each message.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

from ..._core import CQ, CompletionError, SendWR
from ._control import SLICE
from ._end import PerfEnd
from ._plan import Plan
from ._run import Effort, begin, requests, what_failed
from ._statistics import fastest
from ._waits import RunEndedError, Silence, looks_of, nap

LARGEST_BATCH: Final = 32
LULL: Final = 1.0  # seconds without a message after which the missing ones are lost
AT_ONCE: Final = 256  # completions to take from a CQ


class Rate(NamedTuple):
    """The messages that an end has sent, and how many per second, on average and at best.

    lost: how many of the messages did not come; None where that is unknown, as with UC writes.
    """

    messages: int
    average: float
    peak: float
    lost: int | None = 0


class Bandwidth(NamedTuple):
    """The figures of a size. Each end has those of both.

    sent, received: the rates of our messages and the peer's; None where only the other end sends.
    ours, theirs: the cost for each end, see Effort; None for a program of perftest.
    """

    size: int
    sent: Rate | None
    received: Rate | None
    ours: dict[str, Any]
    theirs: dict[str, Any] | None


def measure(end: PerfEnd, size: int) -> Bandwidth:
    """Measure one size. Raises CommandError, VerbsError or CompletionError if it fails."""
    try:
        return _measure(end, size)
    except CompletionError as e:
        raise what_failed(end, e) from e


def _measure(end: PerfEnd, size: int) -> Bandwidth:
    plan = end.plan
    stream = Stream(end, size) if plan.client or plan.bidirectional else None
    sink = Sink(end) if plan.receives and (plan.bidirectional or not plan.client) else None
    begin(end, size)
    effort = Effort(end)
    told = _Traffic(end, stream, sink).run()
    ours = effort.so_far()
    received = _received(plan, told, sink)
    lost = received.lost if received else None
    answer = end.control.swap({"effort": ours, "lost": lost}, plan.client, plan.timeout)
    theirs = answer or {}  # a program of perftest sends none
    sent = stream.rate if stream else None
    if sent and plan.loses:
        sent = sent._replace(lost=theirs.get("lost"))
    return Bandwidth(size, sent, received, ours, theirs.get("effort"))


def _received(plan: Plan, told: Any, sink: Sink | None) -> Rate | None:
    if told is None:
        return None
    rate = Rate(*told[:3])
    if sink is None:
        return rate._replace(lost=None) if plan.loses else rate
    if plan.perftest and plan.op == "send":  # only the number of messages is known
        rate = sink.rate(rate.messages)
    return rate._replace(lost=max(0, rate.messages - sink.received))


class Stream:
    """The messages that we send through all QPs."""

    def __init__(self, end: PerfEnd, size: int) -> None:
        plan = end.plan
        self._batch = max(1, min(LARGEST_BATCH, plan.tx_depth // 4))
        self._window = plan.tx_depth // self._batch
        self.cq = end.send_cq
        self._poll = self.cq.poll_ids
        self._post = [qp.post_send for qp in end.qps]
        self._lists = [_batch(requests(end, size, i), self._batch) for i in range(plan.num_qp)]
        self._left = [plan.iters or 0] * plan.num_qp  # to be posted
        self._duration_ns = int((plan.duration or 0) * 1e9)
        self._deadline = 0
        self._flying = 0  # batches
        self._posted = array("q")
        self._completed = array("q")
        self._messages = array("q")

    @property
    def is_over(self) -> bool:
        """Whether all messages have completed."""
        return not self._flying

    def begin(self) -> None:
        """Fill the send queues."""
        self._deadline = time.perf_counter_ns() + self._duration_ns
        for _ in range(self._window):
            for index in range(len(self._post)):
                self._post_batch(index, time.perf_counter_ns())

    def step(self) -> bool:
        """Post the next batches for those that have completed; return whether there were any."""
        done = self._poll(AT_ONCE)
        if not done:
            return False
        now = time.perf_counter_ns()
        self._flying -= len(done)
        self._completed.extend([now] * len(done))
        for index in done:
            self._post_batch(index, now)
        return True

    def _post_batch(self, index: int, now: int) -> None:
        wrs = self._lists[index]
        n = self._batch
        if self._duration_ns:
            if now >= self._deadline:
                return
        else:
            n = min(n, self._left[index])
            if not n:
                return
            self._left[index] -= n
        self._post[index](wrs if n == self._batch else wrs[-n:])
        self._flying += 1
        self._posted.append(now)
        self._messages.append(n)

    @cached_property
    def rate(self) -> Rate:
        """The rate of the messages, when all have completed."""
        messages = sum(self._messages)
        nanoseconds = max(self._completed[-1] - self._posted[0], 1)
        peak = fastest(self._posted, self._completed, self._messages)
        return Rate(messages, messages / nanoseconds * 1e9, peak * 1e9)


def _batch(of: tuple[SendWR, SendWR], n: int) -> list[SendWR]:
    """Return n messages; only the last one raises a completion."""
    plain, signaled = of
    return [plain] * (n - 1) + [signaled]


class Sink:
    """The messages that arrive from now on: each receive is posted again."""

    def __init__(self, end: PerfEnd) -> None:
        self.cq = end.recv_cq
        self._poll = self.cq.poll_ids
        self._post = [qp.post_recv for qp in end.qps]
        self._receives = end.receives
        self.received = 0
        self._first = self._last = 0  # when, in ns

    def step(self) -> bool:
        """Take messages; return whether there were any."""
        done = self._poll(AT_ONCE)
        if not done:
            return False
        self._last = time.perf_counter_ns()
        self._first = self._first or self._last
        self.received += len(done)
        for index, n in Counter(done).items() if len(self._post) > 1 else ((0, len(done)),):
            self._post[index](self._receives[index][:n])
        return True

    def rate(self, messages: int) -> Rate:
        """Return how fast the messages came; `messages` is how many were sent."""
        average = self.received / max(self._last - self._first, 1) * 1e9
        return Rate(messages, average, average)


class _Traffic:
    """A run, until our messages have completed, and all of the peer's have come or are lost."""

    def __init__(self, end: PerfEnd, stream: Stream | None, sink: Sink | None) -> None:
        self._end = end
        self._stream = stream
        self._sink = sink
        self._told: Any = None  # the Rate of the peer's messages, which it sends at the end
        self._lull = (-1, 0.0)  # how many had come, and since when
        self._asked = time.monotonic()

    def run(self) -> Any:
        """Return the rate of the peer's messages, if it has sent any."""
        stream, timeout = self._stream, self._end.plan.timeout
        if stream is not None:
            stream.begin()
            self._go_on(lambda: stream.is_over, timeout)
            self._end.control.send({"sent": stream.rate})
        if stream is None or self._end.plan.bidirectional:
            self._go_on(self._has_all, timeout if self._sink else None)
        return self._told

    def _has_all(self) -> bool:
        if self._told is None:
            return False
        if self._sink is None or self._sink.received >= self._told[0]:
            return True
        return self._end.plan.loses and self._is_lull(self._sink.received)

    def _is_lull(self, received: int) -> bool:
        """Whether no message has come for LULL seconds."""
        now = time.monotonic()
        if received != self._lull[0]:
            self._lull = received, now
        return now - self._lull[1] > LULL

    def _ask(self) -> None:
        """Probe the peer at times, since UC and UD sends complete even if it has gone."""
        now = time.monotonic()
        if now - self._asked > SLICE:
            self._asked = now
            self._end.control.ask()
            if (message := self._end.control.poll()) is not None:
                self._take(message)

    def _go_on(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Send and receive."""
        parts = [part for part in (self._stream, self._sink) if part is not None]
        idle = _Idle(self._end, [part.cq for part in parts], timeout)
        loses = self._end.plan.loses
        while not is_over():
            busy = [part.step() for part in parts]
            if any(busy):
                idle.is_over()
                if loses:
                    self._ask()
                continue
            try:
                idle.wait()
            except RunEndedError as over:
                self._take(over.message)

    def _take(self, message: Any) -> None:
        if self._told is None:
            self._told = message["sent"]
        else:  # the cost for the peer came before we took the last of its messages
            self._end.control.keep(message)


class _Idle:
    """Waiting while there is nothing to do: an end sleeps, or polls."""

    def __init__(self, end: PerfEnd, cqs: list[CQ], timeout: float | None) -> None:
        self._end = end
        self._timeout = timeout
        self._silence: Silence | None = None
        self._passes = 0
        self._looks = looks_of(end)
        self._cqs = cqs
        self._nap = nap(end)
        self._sleeps = end.plan.events or not cqs

    def is_over(self) -> None:
        """End the silence: something has come."""
        self._silence = None

    def wait(self) -> None:
        """Wait a moment, and look at times for the message of a peer that is done."""
        if self._sleeps:
            if not all(cq.arm_if_empty() for cq in self._cqs) or self._nap():
                return
        else:
            self._passes += 1
            if self._end.yields:
                os.sched_yield()
            if self._passes % self._looks:
                return
        self._silence = self._silence or Silence(self._end, self._timeout)
        self._silence.go_on()
