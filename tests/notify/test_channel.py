# SPDX-License-Identifier: MIT
import os
import select
import sys

import pytest
from support import DEADLINE, Pair, Waiter, in_child, send, until, waiting

from cqnotify import ClosedError, CompletionChannel


def test_the_fd_is_readable_and_try_get_event_tells_exactly_while_an_event_waits(
    pair: Pair,
) -> None:
    b = pair[1]
    poll = select.poll()
    poll.register(b.channel, select.POLLIN)

    def is_quiet() -> bool:
        return poll.poll(0) == [] and b.channel.try_get_event() is None

    assert is_quiet()
    b.rcq.req_notify()
    assert is_quiet()
    send(pair)
    assert poll.poll(DEADLINE * 1000) == [(b.channel.fileno(), select.POLLIN)]
    assert b.channel.try_get_event() is b.rcq
    assert is_quiet()


def test_the_fd_is_non_blocking_and_closed_on_exec(channel: CompletionChannel) -> None:
    assert not os.get_blocking(channel.fileno())
    assert not os.get_inheritable(channel.fileno())


def test_an_event_that_waits_is_returned_with_a_timeout_of_0(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    send(pair)
    select.select([b.channel], [], [], DEADLINE)
    assert b.channel.get_event(timeout=0) is b.rcq


def test_interrupt_ends_every_wait_and_the_channel_stays_usable(pair: Pair) -> None:
    b = pair[1]
    waiters = [Waiter(b.channel.get_event).asleep() for _ in range(3)]
    b.channel.interrupt()
    for waiter in waiters:
        with pytest.raises(InterruptedError):
            waiter.join()
    b.rcq.req_notify()
    with waiting(b.channel.get_event) as waiter:
        send(pair)
    assert waiter.join() is b.rcq


def test_interrupt_without_a_waiter_ends_the_next_wait_only(channel: CompletionChannel) -> None:
    channel.interrupt()
    with pytest.raises(InterruptedError):
        channel.get_event()
    with pytest.raises(TimeoutError):
        channel.get_event(timeout=0)


def test_interrupt_ends_a_loop_even_if_an_event_comes_at_the_same_time(pair: Pair) -> None:
    """The waiter that takes the event must find the interrupt at its next wait."""
    b = pair[1]

    def loop() -> None:
        while True:
            b.channel.get_event(timeout=DEADLINE).ack()

    b.rcq.req_notify()
    old = sys.getswitchinterval()
    with waiting(loop) as waiter:
        sys.setswitchinterval(DEADLINE)  # the waiter runs only after both have happened
        try:
            send(pair)
            b.channel.interrupt()
        finally:
            sys.setswitchinterval(old)
    with pytest.raises(InterruptedError):
        waiter.join()


def test_a_forked_child_can_not_use_it_and_does_not_harm_the_parent(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()

    def child() -> None:
        with pytest.raises(ClosedError, match="fork"):
            b.channel.get_event(timeout=1)
        b.ctx.close()
        assert b.ctx.closed

    assert in_child(child) == 0
    send(pair)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq


def test_many_threads_share_a_channel(pair: Pair) -> None:
    """Every event goes to exactly one of them."""
    b = pair[1]
    n = 40
    got: list[int] = []

    def work() -> None:
        while True:
            try:
                cq = b.channel.get_event()
            except InterruptedError:
                return
            cq.ack()
            cq.req_notify()
            got.extend(cq.poll_ids(64))

    b.rcq.req_notify()
    waiters = [Waiter(work) for _ in range(3)]
    send(pair, range(n))
    until(lambda: len(got) >= n, "all have come")
    for waiter in waiters:
        waiter.asleep()
    b.channel.interrupt()
    for waiter in waiters:
        waiter.join()
    assert sorted(got) == list(range(n))
    assert b.rcq.unacked == 0
    assert b.rcq.stats.events == b.rcq.stats.acked > 0
