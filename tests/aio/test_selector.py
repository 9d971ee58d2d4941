# SPDX-License-Identifier: MIT
"""The selector of new_event_loop(), without a loop: it does as the standard library's."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support import DEADLINE, Waiter, signal_when_asleep, until

from cqnotify.aio._selector import Selector

EVENTS = 64  # that one call returns, see csrc/await/selector.c


@pytest.fixture(params=[selectors.EpollSelector, Selector])
def plain(request: pytest.FixtureRequest) -> Iterator[Any]:
    with contextlib.closing(request.param()) as selector:
        yield selector


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def test_it_reports_what_is_ready_and_was_asked_for(plain: Any, ends: Ends) -> None:
    ours, theirs = ends
    assert plain.select(0) == []
    key = plain.register(ours, READ, "data")
    assert plain.select(0) == plain.select(-1) == []
    theirs.send(b"x")
    assert plain.select() == plain.select(timeout=1) == plain.select(0) == [(key, READ)]
    key = plain.modify(ours, READ | WRITE, "both")
    assert plain.select(1.5) == [(key, READ | WRITE)]
    assert plain.get_key(ours) == plain.get_map()[ours] == key
    key = plain.modify(ours, WRITE)
    assert plain.select(None) == [(key, WRITE)]
    assert plain.unregister(ours) == key
    assert plain.select(0) == []
    with pytest.raises(KeyError):
        plain.unregister(ours)
    with pytest.raises(KeyError):
        plain.modify(ours, READ)


def test_a_peer_that_hangs_up_is_reported(plain: Any, ends: Ends) -> None:
    ours, theirs = ends
    reading = plain.register(ours, READ)
    theirs.close()
    assert plain.select() == [(reading, READ)]
    writing = plain.modify(ours, WRITE)
    assert plain.select() == [(writing, WRITE)]


def test_what_is_only_writable_is_not_readable(plain: Any, ends: Ends) -> None:
    key = plain.register(ends[0], READ | WRITE)
    assert plain.select(0) == [(key, WRITE)]


def test_a_closed_one_holds_nothing(plain: Any, ends: Ends) -> None:
    data = {1}
    gone = weakref.ref(data)
    plain.register(ends[0], READ, data)
    plain.close()
    del data
    assert gone() is None


def test_it_sleeps_until_the_timeout(plain: Any, ends: Ends) -> None:
    plain.register(ends[0], READ)
    for timeout in (0.01, 0.0105):
        began = time.monotonic()
        assert plain.select(timeout) == []
        assert time.monotonic() - began >= timeout


@pytest.mark.parametrize("timeout", ["1", [], 1j])
def test_a_timeout_is_a_number(plain: Any, timeout: object) -> None:
    with pytest.raises(TypeError):
        plain.select(timeout)


def test_a_timeout_can_be_as_long_as_it_likes(ends: Ends) -> None:
    with contextlib.closing(Selector()) as selector:
        key = selector.register(ends[0], WRITE)
        for timeout in (1e7, 1e12, float("inf"), 10**12):
            assert selector.select(timeout) == [(key, WRITE)]


def test_of_many_that_are_ready_all_have_their_turn(plain: Any) -> None:
    n = EVENTS + 20
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(n)]
        for ours, theirs in pairs:
            stack.enter_context(ours)
            stack.enter_context(theirs)
            plain.register(ours, READ)
            theirs.send(b"x")
        seen = set()
        for _ in range(2):
            seen |= {key.fd for key, _ in plain.select()}
        assert seen == {ours.fileno() for ours, _ in pairs}


def test_the_handlers_of_signals_run_while_it_sleeps(plain: Any, ends: Ends) -> None:
    """It sleeps on after the first, and what the second raises is raised."""
    ours, theirs = ends
    plain.register(ours, READ)
    handled = []

    def handler(*_: object) -> None:
        handled.append(1)
        if len(handled) == 2:
            raise ZeroDivisionError("planted")

    def send_both() -> None:
        for n in (1, 2):
            signal_when_asleep(signal.SIGUSR1)
            until(lambda n=n: len(handled) == n, "the handler runs")  # type: ignore[misc]

    before = signal.signal(signal.SIGUSR1, handler)
    thread = Waiter(send_both)
    try:
        with pytest.raises(ZeroDivisionError, match="planted"):
            plain.select(DEADLINE)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    theirs.send(b"x")
    assert len(plain.select()) == 1


def test_after_close_it_raises(plain: Any, ends: Ends) -> None:
    plain.register(ends[0], READ)
    plain.close()
    plain.close()
    with pytest.raises(ValueError, match="closed"):
        plain.select(0)
    assert plain.get_map() is None


def test_a_descriptor_that_does_not_exist_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="-1"):
        plain.register(-1, READ)
    with pytest.raises(OSError, match="Bad file descriptor"):
        plain.register(2**30, READ)
    assert len(plain.get_map()) == 0
    assert plain.select(0) == []
