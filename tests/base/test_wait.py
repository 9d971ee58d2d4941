# SPDX-License-Identifier: MIT
"""Several threads at one gate: one of them polls for all, and hands that on."""

from __future__ import annotations

import contextlib
import os
import threading
from types import FrameType

import pytest
from hostile_support import alarm
from support import (
    DEADLINE,
    PPOLL,
    Pair,
    Waiter,
    fork,
    is_asleep,
    open_fds,
    python,
    send,
    switches,
    until,
)

from cqnotify import ClosedError, CompletionChannel, Context

MANY = 8


def asleep_at(channel: CompletionChannel, n: int) -> list[Waiter]:
    waiters = [Waiter(lambda: channel.get_event(timeout=DEADLINE)) for _ in range(n)]
    return [waiter.asleep() for waiter in waiters]


def raise_event(pair: Pair) -> None:
    """On the channel of the second."""
    pair[1].rcq.req_notify()
    send(pair)


class Behind(Waiter):
    """A thread that goes to sleep on the channel after the main thread, which polls."""

    def __init__(self, channel: CompletionChannel) -> None:
        self.channel = channel
        super().__init__(self.wait)

    def wait(self) -> object:
        until(lambda: is_asleep(threading.main_thread()), "the main thread sleeps")
        return self.channel.get_event(timeout=DEADLINE)


def test_an_event_wakes_one_of_many_waiters(pair: Pair) -> None:
    """Of those that do not get it, one takes over the polling, and the others sleep on."""
    b = pair[1]
    waiters = asleep_at(b.channel, MANY)
    woken = []
    while waiters:
        before = {w: switches(w.thread) for w in waiters}
        raise_event(pair)
        until(lambda: not all(w.thread.is_alive() for w in waiters), "one has it")
        (winner,) = [w for w in waiters if not w.thread.is_alive()]
        assert winner.join() is b.rcq
        waiters.remove(winner)
        woken.append(sum(switches(w.asleep().thread) - before[w] for w in waiters))
    assert b.rcq.unacked == b.rcq.stats.events == MANY
    # When all wake for each event it is 28, and more, since they wait for the GIL as well.
    assert sum(woken) < 2 * MANY, woken


def test_two_events_at_once_reach_two_waiters(pair: Pair) -> None:
    """The poller takes one of them; who polls next finds the other."""
    a, b = pair
    for _ in range(30):
        waiters = asleep_at(b.channel, 3)
        b.rcq.req_notify()
        b.scq.req_notify()
        a.qp.post_recv(a.mr[0:64])
        b.qp.post_send(b.mr[64:72])
        send(pair)
        until(lambda: b.rcq.unacked == b.scq.unacked == 1, "both were read")
        b.channel.interrupt()
        done = [w.thread.join(DEADLINE) or w.error is None for w in waiters]
        assert sorted(done) == [False, True, True]
        for cq in (a.scq, a.rcq, b.scq, b.rcq):
            until(lambda cq=cq: cq.poll_ids(), "completed")  # type: ignore[misc]
        b.rcq.ack()
        b.scq.ack()


@pytest.mark.parametrize("others", [1, MANY])
def test_a_poller_whose_time_is_over_hands_on(pair: Pair, others: int) -> None:
    b = pair[1]
    first = Waiter(lambda: b.channel.get_event(timeout=0.5))
    # Where the machine stands still meanwhile, its time is over before it was seen asleep.
    until(lambda: is_asleep(first.thread) or not first.thread.is_alive(), "the first sleeps")
    waiters = asleep_at(b.channel, others)
    with pytest.raises(TimeoutError):
        first.join()
    for _ in waiters:
        b.rcq.req_notify()
        n = b.rcq.stats.events
        send(pair)
        until(lambda n=n: b.rcq.stats.events > n, "it was read")  # type: ignore[misc]
    for waiter in waiters:
        assert waiter.join() is b.rcq


def test_others_get_events_while_the_poller_runs_a_signal_handler(pair: Pair) -> None:
    b = pair[1]
    other = Behind(b.channel)

    def handler(signum: int, frame: FrameType | None) -> None:
        raise_event(pair)
        assert other.join() is b.rcq
        b.channel.interrupt()

    with alarm(handler, other), pytest.raises(InterruptedError):
        b.channel.get_event(timeout=DEADLINE)
    assert b.rcq.unacked == 1


def test_a_poller_whose_signal_handler_raises_hands_on(pair: Pair) -> None:
    b = pair[1]
    other = Behind(b.channel)

    def handler(signum: int, frame: FrameType | None) -> None:
        raise KeyError("mine")

    with alarm(handler, other), pytest.raises(KeyError, match="mine"):
        b.channel.get_event(timeout=DEADLINE)
    raise_event(pair)
    assert other.join() is b.rcq


def test_a_handler_that_waits_itself_gets_its_event_and_the_wait_goes_on(pair: Pair) -> None:
    b = pair[1]

    def handler(signum: int, frame: FrameType | None) -> None:
        raise_event(pair)
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
        raise_event(pair)

    with alarm(handler):
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert b.rcq.unacked == 2


def test_a_handler_may_fork_and_the_waits_of_the_parent_go_on(pair: Pair) -> None:
    b = pair[1]
    other = Behind(b.channel)
    child = []

    def handler(signum: int, frame: FrameType | None) -> None:
        child.append(fork())

    status = 1
    with alarm(handler, other):
        try:
            while not child:
                with contextlib.suppress(TimeoutError):
                    b.channel.get_event(timeout=1.0)
        except ClosedError:
            status = 7
        finally:
            if child == [0]:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 7
    raise_event(pair)
    assert other.join() is b.rcq


def test_one_who_waits_alone_needs_no_descriptor_and_of_many_few_are_kept(
    channel: CompletionChannel,
) -> None:
    before = open_fds()
    with pytest.raises(TimeoutError):
        channel.get_event(timeout=0.01)
    assert open_fds() == before
    waiters = [Waiter(channel.get_event).asleep() for _ in range(3 * MANY)]
    channel.interrupt()
    for waiter in waiters:
        with pytest.raises(InterruptedError):
            waiter.join()
    assert open_fds() <= before + MANY
    channel.close()
    assert open_fds() < before


# Without a function of its own, which would keep the module's names alive for longer.
END = """
import os, sys, threading, time
import cqnotify as c
ctx = c.Context(sys.argv[1])
pd, channel = c.PD(ctx), c.CompletionChannel(ctx)
cq, mr = c.CQ(ctx, 16, channel=channel), c.MR(pd, 4096)
qp = c.QP(pd, c.QPType.RC, send_cq=cq)
qp.connect(qp.address())

class Last:
    def __del__(self):
        channel.interrupt()  # they wake, and the interpreter ends them, or holds them for ever
        end = time.monotonic() + 1.5
        while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < end:
            time.sleep(0.01)
        channel.interrupt()
        cq.req_notify()
        qp.post_recv(mr[0:64])
        qp.post_send(mr[64:72])
        print(channel.get_event(timeout=30) is cq, flush=True)
        cq.ack()
        qp.close()
        cq.close()
        channel.close()
        print(channel.closed, flush=True)

last = Last()

threads = [threading.Thread(target=channel.get_event, daemon=True) for _ in range(8)]
for thread in threads:
    thread.kept = [cq, mr, qp]  # what a thread holds is not closed before the end
    thread.start()
for thread in threads:
    task = f"/proc/self/task/{thread.native_id}"
    tells = os.path.exists(task + "/syscall")  # not on Linux 6.1 as a process
    while (
        open(task + "/syscall").read().split()[0] != sys.argv[2]
        if tells
        else open(task + "/stat").read().rpartition(")")[2].split()[0] != "S"
    ):
        time.sleep(0.001)
"""


def test_nobody_is_lost_when_the_interpreter_ends_under_those_who_wait(ctx: Context) -> None:
    """Their stacks are gone by then; and one of them was the poller."""
    out = python("-W", "ignore", "-c", END, ctx.name, PPOLL)
    assert (out.returncode, out.stdout) == (0, "True\nTrue\n"), out
