# SPDX-License-Identifier: MIT
"""Worlds for hostile code, and collections and alarms that come when they are wanted."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from support import Waiter, is_asleep, until
from world import World

from cqnotify import QPType, SendWR, _core

Handler = Callable[[int, FrameType | None], object]


class Bare(World):
    """Its QP is of the core: no method of the class that users have comes in between."""

    def new_qp(self) -> Any:
        return _core.QP(self.pd, QPType.RC, send_cq=self.cq)

    def connect(self) -> None:
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
def alarm(handler: Handler, other: Waiter | None = None) -> Iterator[None]:
    """The handler runs once in this thread, when that sleeps, and the other one does."""
    main = threading.main_thread()

    def ring() -> None:
        until(lambda: is_asleep(main), "the main thread sleeps")
        if other is not None:
            other.asleep()
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGALRM)

    def answer(signum: int, frame: FrameType | None) -> None:
        ringer.join()  # the handler may fork, and then no thread may be ending
        handler(signum, frame)

    old = signal.signal(signal.SIGALRM, answer)
    ringer = Waiter(ring)
    try:
        yield
    finally:
        ringer.join()
        signal.signal(signal.SIGALRM, old)


def mute(base: Any) -> Any:
    """A subclass whose __del__ does not call ours."""
    return type(f"Mute{base.__name__}", (base,), {"__del__": lambda self: None})
