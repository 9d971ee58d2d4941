# SPDX-License-Identifier: MIT
"""A whole ping-pong: meet the peer, exchange the messages, and report.

Each end sends its next message when its last one is sent and answered.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from typing import Final

from ..._core import CompletionError, WorkCompletion
from .. import CommandError
from .._peer.device import has_one_cpu
from .._terminal import Progress
from . import _rdma_cm, _tcp
from ._end import SEND, Plan
from ._report import Report
from ._session import Session

SLICE: Final = 0.1  # seconds of polling between checks of the deadline
PAGE: Final = 4096
PERIOD: Final = 251  # messages until one repeats; a prime, which divides no page or packet
SENT, ANSWERED = 1, 2


def hold(plan: Plan) -> Report:
    """Run a ping-pong and return its figures.

    Raises CommandError, VerbsError, CompletionError or AsyncEventError if it fails.
    """
    with _rdma_cm.meet(plan) if plan.rdma_cm else _tcp.meet(plan) as session:
        return _play(session)


def _play(session: Session) -> Report:
    end, plan = session.end, session.end.plan
    with Progress("messages", plan.iters) as progress:
        play = Play(session, progress)
        play.run()
    stats = end.cq.stats
    return Report(
        plan=plan,
        device=end.device,
        gid_index=end.gid_index,
        path_mtu=session.path_mtu,
        local=session.local,
        remote=session.remote,
        nanoseconds=play.nanoseconds,
        latencies=play.latencies,
        events=stats.events,
        wakeups=play.wakeups,
        spurious=stats.spurious,
        checked=play.received if plan.check else None,
        yields=play.yields,
    )


class Play:
    """The messages over a connected end, and the measurements.

    `latencies` are full round trips in nanoseconds, each from posting a message until its answer
    was polled. A server has one less than iterations: its last message is not answered.
    """

    def __init__(self, session: Session, progress: Progress) -> None:
        self._end = end = session.end
        self._plan = end.plan
        self._has_gone = session.has_gone
        self.yields = not self._plan.events and has_one_cpu()
        self._progress = progress
        self._by_qp_num = end.by_qp_num
        self._awaited = [0 if self._plan.client else ANSWERED] * self._plan.num_qp
        self._posted = [0] * self._plan.num_qp  # when the last message was posted
        self._numbers = [0] * self._plan.num_qp  # of the messages
        self._data = [b""] * self._plan.num_qp  # the messages that the peer has to send back
        self._came = [0] * self._plan.num_qp  # the slot of the last message received
        self._sending = [0] * self._plan.num_qp  # the slot that a server is sending back
        self._contents = Contents(self._plan.size, self._plan.service)
        self._now = 0
        self._sent = 0
        self.received = 0
        self.wakeups = 0
        self.latencies = array("q")
        self.nanoseconds = 0

    def run(self) -> None:
        """Exchange all messages.

        Raises CommandError if the peer falls silent or sends a wrong message, CompletionError if a
        message fails.
        """
        iters = self._plan.iters
        wait = self._sleep if self._plan.events else self._poll
        start = time.perf_counter_ns()
        if self._plan.client:
            for index in range(self._plan.num_qp):
                self._send(index)
        while self.received < iters or self._sent < iters:
            wcs = wait()
            self._now = time.perf_counter_ns()
            for wc in wcs:
                self._take(wc)
            self._progress.show(self.received)
        self.nanoseconds = time.perf_counter_ns() - start
        self._end.cq.ack(self._end.cq.unacked)

    def _sleep(self) -> list[WorkCompletion]:
        channel, cq = self._end.channel, self._end.cq
        if channel.try_get_event() is None:
            try:
                channel.get_event(self._plan.timeout)
            except TimeoutError:
                raise self._silence() from None
            self.wakeups += 1
        cq.req_notify()
        return cq.poll(cq.cqe)

    def _poll(self) -> list[WorkCompletion]:
        cq = self._end.cq
        deadline = time.monotonic() + self._plan.timeout
        while not (wcs := cq.poll(cq.cqe, spin=0 if self.yields else SLICE)):
            if self.yields:
                os.sched_yield()
            if time.monotonic() > deadline:
                raise self._silence()
        return wcs

    def _silence(self) -> CommandError:
        plan = self._plan
        lossy = {"uc": "UC", "ud": "UD"}.get(plan.service)
        why = f" ({lossy} does not send again what was lost)" if lossy else ""
        return CommandError(
            f"nothing came for {plan.timeout:g} s, after {self.received} of {plan.iters} "
            f"messages{why}"
        )

    def _take(self, wc: WorkCompletion) -> None:
        try:
            wc.raise_for_status()
        except CompletionError as e:
            if not self._is_past():
                raise self._loss(e) from e
            return
        index = self._by_qp_num[wc.qp_num]
        if wc.wr_id == SEND:
            self._sent += 1
            self._awaited[index] &= ~SENT
            if not self._plan.client:
                self._end.release(self._sending[index])
        else:
            self._take_message(wc, index)
            self._awaited[index] &= ~ANSWERED
        if not self._awaited[index] and self._sent < self._plan.iters:
            self._send(index)

    def _is_past(self) -> bool:
        """Whether all messages have been answered, and this one was flushed by the disconnect.

        A message that was answered has arrived, even if it was not acknowledged.
        """
        iters = self._plan.iters
        if self.received < iters or (self._sent < iters and not self._plan.client):
            return False
        self._sent = max(self._sent, iters)
        return True

    def _loss(self, error: CompletionError) -> Exception:
        """Return the exception for a message that failed."""
        if self._has_gone():
            done = f"{self.received} of {self._plan.iters} messages"
            return CommandError(f"the peer has gone, after {done}")
        if self.received or self._plan.rdma_cm:
            return error
        return CommandError(f"{error}; do both ends have the same --type and --size?")

    def _take_message(self, wc: WorkCompletion, index: int) -> None:
        if self._posted[index]:
            self.latencies.append(self._now - self._posted[index])
        self._end.received(wc)
        if self._plan.check:
            self._check(self._end.read(wc.wr_id), index)
        if self._plan.client:
            self._end.release(wc.wr_id)
        else:
            self._came[index] = wc.wr_id
        self.received += 1
        self._numbers[index] += 1

    def _send(self, index: int) -> None:
        if self._plan.client:
            self._write(index)
        self._awaited[index] = SENT | ANSWERED
        self._sending[index] = self._came[index]
        self._posted[index] = time.perf_counter_ns()
        self._end.post_send(index, self._came[index])

    def _write(self, index: int) -> None:
        """Write the next message, which differs from the last ones if messages are checked."""
        number = self._numbers[index]
        if self._plan.check or not number:
            self._data[index] = self._contents.of(number)
            self._end.write(index, self._data[index])

    def _check(self, data: bytes, index: int) -> None:
        number = self._numbers[index]
        if self._plan.client:
            wanted = [self._data[index]]
        else:
            wanted = [self._contents.of(number), self._contents.rdma_core]
        if data not in wanted:
            raise CommandError(
                f"message {number} came with wrong bytes: {_differ(data, wanted)} "
                f"(--chk is for both ends)"
            )


class Contents:
    """The bytes of the messages.

    The first byte of each page is 0, which is all that rdma-core's programs check. A client's
    messages differ from each other, except with an SRQ: ibv_srq_pingpong has one buffer for all
    QPs, and sends back to each QP what came last from any.
    """

    def __init__(self, size: int, service: str) -> None:
        self._size = size
        self._period = 1 if service == "srq" else PERIOD
        self._bytes = bytes(range(1, PERIOD + 1)) * (size // PERIOD + 2)
        fill = b"\0" if service == "srq" else b"\x7b"
        self.rdma_core = _with_zeros(fill * size, mmap.PAGESIZE)
        """The message that a client of rdma-core's sends with -c, every time."""

    def of(self, number: int) -> bytes:
        """Return message `number` of a client."""
        start = number % self._period
        return _with_zeros(self._bytes[start : start + self._size], PAGE)


def _with_zeros(data: bytes, page: int) -> bytes:
    zeroed = bytearray(data)
    zeroed[::page] = bytes(len(range(0, len(data), page)))
    return bytes(zeroed)


def _differ(data: bytes, wanted: list[bytes]) -> str:
    """Return the first wrong byte, compared with the message that `data` resembles most."""
    first = max(next(i for i in range(len(data)) if data[i] != right[i]) for right in wanted)
    rights = sorted({right[first] for right in wanted})
    return f"byte {first} is {data[first]:#04x}, not {' or '.join(f'{b:#04x}' for b in rights)}"
