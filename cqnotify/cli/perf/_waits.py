# SPDX-License-Identifier: MIT
"""How an end waits while it is measured: it polls all the time, or sleeps until an event.

The functions that are called for each message are closures, which are faster in Python than
methods. They look at the time, and probe the peer, only when nothing has come for long. On a host
with one CPU an end that polls yields it between two polls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

from ..._core import CQ
from .. import CommandError
from ._control import SLICE
from ._end import PerfEnd

SPINS: Final = 2000  # polls until the next look at the time: less than a millisecond
YIELDS: Final = 100  # the same, where each poll yields the CPU, perhaps for a while


class RunEndedError(Exception):
    """The peer has ended the run, by `message`."""

    def __init__(self, message: Any) -> None:
        super().__init__(message)
        self.message = message


class Silence:
    """A time in which nothing comes. It ends with an error after the timeout.

    Without a timeout it lasts as long as the peer is alive.
    """

    def __init__(self, end: PerfEnd, timeout: float | None) -> None:
        self._control = end.control
        self._timeout = timeout
        self._why = ""
        if end.plan.loses:
            self._why = f": {end.plan.connection} does not send again what was lost"
        self._begun = self._asked = time.monotonic()

    def go_on(self) -> None:
        """Look at the control and the time. Raises RunEndedError and CommandError."""
        if (message := self._control.poll()) is not None:
            raise RunEndedError(message)
        now = time.monotonic()
        if self._timeout is not None and now - self._begun > self._timeout:
            raise CommandError(f"nothing came for {self._timeout:g} s{self._why}")
        if now - self._asked > SLICE:
            self._asked = now
            self._control.ask()


def looks_of(end: PerfEnd) -> int:
    """Return how often an end polls until it looks at the time."""
    return YIELDS if end.yields else SPINS


def wait_for_one(end: PerfEnd, cq: CQ) -> Callable[[], None]:
    """Return a function that waits for a completion of this CQ, and takes it."""
    return (_sleeper if end.plan.events else _spinner)(end, cq)


def _spinner(end: PerfEnd, cq: CQ) -> Callable[[], None]:
    poll, yields, looks = cq.poll_ids, end.yields, looks_of(end)

    def wait() -> None:
        silence = None
        while True:
            for _ in range(looks):
                if poll(1):
                    return
                if yields:
                    os.sched_yield()
            silence = silence or Silence(end, end.plan.timeout)
            silence.go_on()

    return wait


def _sleeper(end: PerfEnd, cq: CQ) -> Callable[[], None]:
    poll, arm_if_empty, sleep = cq.poll_ids, cq.arm_if_empty, nap(end)

    def wait() -> None:
        silence = None
        while not poll(1):
            if arm_if_empty() and not sleep():
                silence = silence or Silence(end, end.plan.timeout)
                silence.go_on()

    return wait


def nap(end: PerfEnd) -> Callable[[], bool]:
    """Return a function that sleeps until an event, a SLICE at most; it returns whether that is one
    of the data.

    The CQs of the data must be armed. The function arms that of the control.
    """
    get_event, control = end.channel.get_event, end.control
    limit = min(SLICE, end.plan.timeout)

    def sleep() -> bool:
        if not control.arm_if_empty():
            return False
        try:
            cq = get_event(limit)
        except TimeoutError:
            return False
        cq.ack()
        return cq is not control.cq

    return sleep


def wait_for_byte(end: PerfEnd, size: int) -> Callable[[int], None]:
    """Return a function that waits until the last byte of the peer's write has this value."""
    view, last = end.views(size)[1], size - 1
    yields, looks = end.yields, looks_of(end)

    def wait(value: int) -> None:
        silence = None
        while True:
            for _ in range(looks):
                if view[last] == value:
                    return
                if yields:
                    os.sched_yield()
            silence = silence or Silence(end, end.plan.timeout)
            silence.go_on()

    return wait
