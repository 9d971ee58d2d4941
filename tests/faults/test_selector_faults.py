# SPDX-License-Identifier: MIT
"""The selector of new_event_loop(): epoll_wait(2) fails, and so does each allocation, once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import selectors
from collections.abc import Iterator
from typing import Any

import pytest
from fault_world import core, starves

from cqnotify import ClosedError, CompletionChannel, Context
from cqnotify.aio._selector import Selector

ROUNDS = 64  # see csrc/await/selector.c


class Loop(asyncio.SelectorEventLoop):
    """It stops when an exception is reported, and allocates nothing for that which could fail."""

    reported: BaseException | None = None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.reported = context["exception"]
        self._stopping = True

    def go_on(self) -> None:
        self.reported = None
        self._stopping = False


class Ready:
    """A descriptor that stays readable, and the callback of a channel that has no event."""

    def __init__(self, ctx: Context) -> None:
        self.channel: Any = CompletionChannel(ctx)
        self.selector = Selector()
        self.loop = Loop(self.selector)
        self.fd, self.w = os.pipe()
        os.write(self.w, b"x")
        self.loop.add_reader(self.fd, self.channel._on_event)

    def works(self) -> bool:
        """Whether it calls, and returns the same as ever."""
        before = self.selector._called
        called = self.selector.select() == [] and self.selector._called == before + ROUNDS
        return called and [(key.fd, mask) for key, mask in self.selector.select(0)] == [
            (self.fd, selectors.EVENT_READ)
        ]

    def close(self) -> None:
        self.loop.remove_reader(self.fd)
        self.loop.close()
        os.close(self.fd)
        os.close(self.w)


@pytest.fixture
def ready(ctx: Context) -> Iterator[Ready]:
    with contextlib.closing(Ready(ctx)) as ready:
        yield ready


def test_each_allocation_of_what_a_callback_raises_fails_once(ready: Ready) -> None:
    """Either that is reported, or select() raises it."""
    ready.channel.close()
    ready.loop.go_on()
    n = 0
    while core.failed() is not None or n == 0:
        n += 1
        starved = starves(ready.selector.select, n)
        assert isinstance(ready.loop.reported, (ClosedError, MemoryError, type(None)))
        assert (ready.loop.reported is None) == starved
        ready.loop.go_on()
    assert n > 5
    assert ready.selector._called == n


def test_each_allocation_of_a_list_of_what_is_ready_fails_once(ready: Ready) -> None:
    n = 1
    while starves(lambda: ready.selector.select(0), n):
        assert ready.works()
        n += 1
    assert n > 1


def test_each_allocation_of_a_new_selector_fails_once() -> None:
    n = 1
    while starves(lambda: Selector().close(), n):
        gc.collect()
        n += 1
    assert n > 1


@pytest.mark.parametrize("timeout", [None, 0, 10])
def test_an_error_of_epoll_wait_is_raised(ready: Ready, timeout: float | None) -> None:
    core.fail_call(1, errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        ready.selector.select(timeout)
    assert core.failed() == "epoll_wait"
    assert ready.works()


def test_an_error_of_epoll_wait_after_a_callback_is_raised(ready: Ready) -> None:
    core.fail_call(3, errno.EBADF)  # the second call is that of the callback
    with pytest.raises(OSError, match="Bad file descriptor"):
        ready.selector.select()
    assert core.failed() == "epoll_wait"
    assert ready.selector._called == 1
    assert ready.works()


@pytest.mark.parametrize("timeout", [None, 0, 10])
def test_an_interrupted_epoll_wait_is_called_again(ready: Ready, timeout: float | None) -> None:
    core.fail_call(1, errno.EINTR)
    assert len(ready.selector.select(timeout)) == (timeout == 0)
    assert core.failed() == "epoll_wait"
    assert ready.works()
