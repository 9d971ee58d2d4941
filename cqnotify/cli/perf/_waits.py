# SPDX-License-Identifier: MIT
"""How an end waits while it is measured: it polls all the time, or sleeps until an event.

What is called for each message is a closure, which is faster in Python than a method. It looks at
the time, and whether the peer still lives, only when nothing has come for long. Where nothing else
runs while it polls, it yields the CPU between two looks.
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

SPINS: Final = 2000  # looks until one at the time: less than a millisecond
YIELDS: Final = 100  # the same, where each look gives the CPU away, perhaps for a while


class RunEndedError(Exception):
    """The peer says that the run is over; `message` is what it said."""

    def __init__(self, message: Any) -> None:
        super().__init__(message)
        self.message = message


class Silence:
    """Time in which nothing came, until anything comes, or it was longer than the timeout.

    Without a timeout it lasts as long as the peer lives.
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
    """Return how often an end that polls looks for a message until it looks at the time."""
    return YIELDS if end.yields else SPINS


def wait_for_one(end: PerfEnd, cq: CQ) -> Callable[[], None]:
    """Return a function that returns when a completion of this CQ has come, and takes it."""
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
    poll, safe_to_sleep, sleep = cq.poll_ids, cq.safe_to_sleep, nap(end)

    def wait() -> None:
        silence = None
        while not poll(1):
            if safe_to_sleep() and not sleep():
                silence = silence or Silence(end, end.plan.timeout)
                silence.go_on()

    return wait


def nap(end: PerfEnd) -> Callable[[], bool]:
    """Return a function that sleeps for a SLICE or until an event; False if it is not for the data.

    The CQs must be safe to sleep. That of the control is, whenever the function sleeps.
    """
    get_event, control = end.channel.get_event, end.control
    limit = min(SLICE, end.plan.timeout)

    def sleep() -> bool:
        if not control.safe_to_sleep():
            return False
        try:
            cq = get_event(limit)
        except TimeoutError:
            return False
        cq.ack()
        return cq is not control.cq

    return sleep


def wait_for_byte(end: PerfEnd, size: int) -> Callable[[int], None]:
    """Return a function that returns when the last byte of the peer's write has this value."""
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
