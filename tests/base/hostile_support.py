# SPDX-License-Identifier: MIT
"""Worlds for hostile code, and collections and alarms that come when they are wanted."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Iterator
from typing import Any

from world import World

from cqnotify import QPType, SendWR, _core


class Bare(World):
    """Its QP is of the core: no method of the class that users have comes in between."""

    def make(self) -> None:
        super().make()
        self.qp.close()
        self.qp: Any = _core.QP(self.pd, QPType.RC, send_cq=self.cq)
        self.wr = SendWR(self.mr)


class Bomb:
    """A cycle whose collection runs `action`, whenever the collector comes."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.me = self

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.action()


@contextlib.contextmanager
def collecting_after(allocations: int) -> Iterator[None]:
    old = gc.get_threshold()
    gc.collect()
    gc.set_threshold(allocations)
    try:
        yield
    finally:
        gc.set_threshold(*old)


@contextlib.contextmanager
def at_next_collection(action: Callable[[], object]) -> Iterator[None]:
    """Something is allocated inside that makes the collector run, and `action` with it."""

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and armed:
            armed.clear()
            action()

    old = gc.get_threshold()
    gc.disable()
    garbage = [[] for _ in range(5000)]  # type: ignore[var-annotated]
    gc.set_threshold(10, 0)  # without the 0, a CPython without a GIL waits for many more objects
    armed = [True]
    gc.callbacks.append(callback)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(callback)
        del garbage


@contextlib.contextmanager
def alarm(handler: object) -> Iterator[None]:
    """The handler runs once, soon, in this thread."""
    old = signal.signal(signal.SIGALRM, handler)  # type: ignore[arg-type]
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def mute(base: Any) -> Any:
    """A subclass whose __del__ does not call ours."""
    return type(f"Mute{base.__name__}", (base,), {"__del__": lambda self: None})
