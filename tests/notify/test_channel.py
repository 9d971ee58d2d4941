# SPDX-License-Identifier: MIT
import os
import select
import signal
import sys
import threading
import time

import pytest
from support import DEADLINE, Pair, Waiter, in_child, python, send, waiting

from cqnotify import CQ, MR, PD, QP, BusyError, ClosedError, CompletionChannel, Context, QPType


def test_get_event_sleeps_until_a_completion_comes(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    with waiting(b.channel.get_event) as waiter:
        send(pair)
    assert waiter.join() is b.rcq
    assert b.rcq.unacked == 1
    assert len(b.rcq.poll()) == 1


def test_try_get_event_never_sleeps(pair: Pair) -> None:
    b = pair[1]
    assert b.channel.try_get_event() is None
    b.rcq.req_notify()
    assert b.channel.try_get_event() is None
    send(pair)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert b.channel.try_get_event() is None


def test_the_fd_is_readable_exactly_while_an_event_waits(pair: Pair) -> None:
    b = pair[1]
    poll = select.poll()
    poll.register(b.channel, select.POLLIN)
    b.rcq.req_notify()
    assert poll.poll(0) == []
    send(pair)
    assert poll.poll(DEADLINE * 1000) == [(b.channel.fileno(), select.POLLIN)]
    assert b.channel.try_get_event() is b.rcq
    assert poll.poll(0) == []


def test_the_fd_is_non_blocking_and_closed_on_exec(channel: CompletionChannel) -> None:
    assert not os.get_blocking(channel.fileno())
    assert not os.get_inheritable(channel.fileno())


def test_an_event_that_waits_is_returned_with_a_timeout_of_0(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    send(pair)
    select.select([b.channel], [], [], DEADLINE)
    assert b.channel.get_event(timeout=0) is b.rcq


def test_events_of_several_cqs_go_to_their_own(ctx: Context, pd: PD) -> None:
    channel = CompletionChannel(ctx)
    mr = MR(pd, 4096)
    rows = []
    for _ in range(3):
        cq = CQ(ctx, 16, channel=channel)
        sender, receiver = (QP(pd, QPType.RC, send_cq=CQ(ctx, 16), recv_cq=cq) for _ in range(2))
        receiver.connect(sender.address())
        sender.connect(receiver.address())
        receiver.post_recv(mr[0:64])
        cq.req_notify()
        rows.append((sender, receiver, cq))
    for sender, _, cq in reversed(rows):
        with waiting(lambda: channel.get_event(timeout=DEADLINE)) as waiter:
            sender.post_send(mr[64:72])
        assert waiter.join() is cq
        assert [c.unacked for _, _, c in rows].count(1) == 1
        cq.ack()


def test_close_wakes_a_waiter_with_closed_error(channel: CompletionChannel) -> None:
    with waiting(channel.get_event) as waiter:
        channel.close()
    with pytest.raises(ClosedError):
        waiter.join()


def test_close_wakes_every_waiter(channel: CompletionChannel) -> None:
    waiters = [Waiter(channel.get_event).asleep() for _ in range(4)]
    channel.close()
    for waiter in waiters:
        with pytest.raises(ClosedError):
            waiter.join()


def test_closing_the_context_wakes_a_waiter(ctx: Context, channel: CompletionChannel) -> None:
    with waiting(channel.get_event) as waiter:
        ctx.close()
    with pytest.raises(ClosedError):
        waiter.join()


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


def test_a_timeout_beyond_all_floats_is_for_ever_and_below_all_is_refused(
    channel: CompletionChannel,
) -> None:
    with waiting(lambda: channel.get_event(10**400)):
        channel.interrupt()
    with pytest.raises(ValueError, match="timeout is"):
        channel.get_event(-(10**400))


def test_a_signal_handler_may_interrupt_and_wait_itself(channel: CompletionChannel) -> None:
    """The one who runs it is interrupted, and awake; neither he nor others may spin meanwhile."""
    seen: list[tuple[float, float]] = []

    def wait() -> None:
        start, cpu = time.monotonic(), time.thread_time()
        with pytest.raises(TimeoutError):
            channel.get_event(timeout=0.5)
        seen.append((time.monotonic() - start, time.thread_time() - cpu))

    def handler(*_: object) -> None:
        channel.interrupt()
        other = Waiter(wait)
        wait()
        other.join()

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            channel.get_event(timeout=DEADLINE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert len(seen) == 2
    assert all(0.5 <= took < DEADLINE / 2 and cpu < 0.25 for took, cpu in seen), seen


def test_an_interrupt_that_a_waiter_did_not_deliver_reaches_the_next(
    channel: CompletionChannel,
) -> None:
    def handler(*_: object) -> None:
        channel.interrupt()
        raise KeyError("mine")

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyError, match="mine"):
            channel.get_event(timeout=DEADLINE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    with pytest.raises(InterruptedError):
        channel.get_event(timeout=DEADLINE)
    with pytest.raises(TimeoutError):
        channel.get_event(timeout=0)


def test_one_event_wakes_one_of_two_waiters(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    waiters = [Waiter(b.channel.get_event).asleep() for _ in range(2)]
    send(pair)
    while all(w.thread.is_alive() for w in waiters):
        time.sleep(0.001)
    (loser,) = [w for w in waiters if w.thread.is_alive()]
    loser.asleep()
    b.channel.interrupt()
    with pytest.raises(InterruptedError):
        loser.join()
    assert b.rcq.unacked == 1


def test_a_thread_that_waits_does_not_keep_the_interpreter_from_ending(ctx: Context) -> None:
    code = (
        "import threading, cqnotify\n"
        "ctx = cqnotify.Context()\n"
        "channel = cqnotify.CompletionChannel(ctx)\n"
        "cq = cqnotify.CQ(ctx, 4, channel=channel)\n"
        "threading.Thread(target=channel.get_event, daemon=True).start()\n"
        "print('end')\n"
    )
    out = python("-c", code)
    assert (out.returncode, out.stdout, out.stderr) == (0, "end\n", "")


def test_a_channel_with_cqs_is_busy_and_stays_usable(pair: Pair) -> None:
    b = pair[1]
    with pytest.raises(BusyError, match="2 CQs") as e:
        b.channel.close()
    assert e.value.verb == "ibv_destroy_comp_channel"
    b.rcq.req_notify()
    send(pair)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq


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


def test_many_threads_share_a_channel(ctx: Context, pair: Pair) -> None:
    """Every event goes to exactly one of them."""
    a, b = pair
    n = 40
    got: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                cq = b.channel.get_event()
            except InterruptedError:
                return
            cq.ack()
            cq.req_notify()
            with lock:
                got.extend(wc.wr_id for wc in cq.poll(64))

    for i in range(n):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    b.rcq.req_notify()
    waiters = [Waiter(work) for _ in range(3)]
    for i in range(n):
        a.qp.post_send(a.mr[0:8], wr_id=i)
    end = time.monotonic() + DEADLINE
    while len(got) < n:
        assert time.monotonic() < end
        time.sleep(0.001)
    for waiter in waiters:
        waiter.asleep()
    b.channel.interrupt()
    for waiter in waiters:
        waiter.join()
    assert sorted(got) == list(range(n))
    assert b.rcq.unacked == 0
    assert b.rcq.stats.events == b.rcq.stats.acked > 0
