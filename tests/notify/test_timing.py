# SPDX-License-Identifier: MIT
"""Waits beside a thread that computes, beside signals, and with a timeout."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support import (
    DEADLINE,
    PPOLL,
    Pair,
    Waiter,
    send,
    signal_when_asleep,
    sits_in,
    switches,
    until,
    waiting,
)

from cqnotify import ClosedError, CompletionChannel

# The GIL -----------------------------------------------------------------------


def test_a_thread_that_sleeps_is_not_woken_while_another_one_computes(
    channel: CompletionChannel,
) -> None:
    with waiting(channel.get_event) as waiter:
        before = switches(waiter.thread)
        for _ in range(1_000_000):
            pass
        assert switches(waiter.thread) == before
        channel.interrupt()


# Signals -----------------------------------------------------------------------

SLEEPER = """
import cqnotify
with cqnotify.Context() as ctx:
    channel = cqnotify.CompletionChannel(ctx)
    for _ in range(3):
        try:
            print("ready", flush=True)
            channel.get_event()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    print("ready", flush=True)
    channel.get_event()  # the last signal ends the program
"""


@pytest.mark.usefixtures("ctx")
def test_ctrl_c_ends_a_wait() -> None:
    command = [sys.executable, "-c", SLEEPER]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:
        assert child.stdout is not None
        for said in ["interrupted\n"] * 3 + [""]:
            assert child.stdout.readline() == "ready\n"
            until(lambda: sits_in(f"/proc/{child.pid}", PPOLL), "it sleeps")
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == said
        _, err = child.communicate(timeout=DEADLINE)
    assert child.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err


@contextmanager
def handling(
    signum: signal.Signals, handler: Callable[[], object], *every: float
) -> Iterator[None]:
    """Inside, the handler runs in this thread; of SIGALRM after, and then in, so many seconds."""
    old = signal.signal(signum, lambda *_: handler())
    try:
        if every:
            signal.setitimer(signal.ITIMER_REAL, *every)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signum, old)


def test_signals_run_their_handlers_and_the_wait_keeps_its_deadline(
    channel: CompletionChannel,
) -> None:
    """They never stop coming: a wait that began anew after each would never end."""
    seen: list[float] = []
    with handling(signal.SIGALRM, lambda: seen.append(time.monotonic()), 0.05, 0.05):
        within = 0
        while within < 2:  # where the machine stalls, several of them are one
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                channel.get_event(timeout=0.3)
            end = time.monotonic()
            assert end - start >= 0.3
            within = len([t for t in seen if start <= t <= end])


def test_an_event_ends_a_wait_that_signals_interrupt(pair: Pair) -> None:
    """The handler itself raises the event, in its third run."""
    b = pair[1]
    b.rcq.req_notify()
    seen: list[int] = []

    def handler() -> None:
        seen.append(1)
        if len(seen) == 3:
            send(pair)

    with handling(signal.SIGALRM, handler, 0.02, 0.02):
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert len(seen) >= 3


def test_a_handler_may_close_the_channel_under_the_wait(channel: CompletionChannel) -> None:
    with handling(signal.SIGALRM, channel.close, 0.1), pytest.raises(ClosedError):
        channel.get_event(timeout=DEADLINE)


def test_a_handler_may_interrupt_and_wait_itself(channel: CompletionChannel) -> None:
    """The thread that runs the handler is awake; neither it nor others may spin meanwhile."""
    seen: list[int] = []

    def wait() -> None:
        """It sleeps, so it is asleep once: and neither is woken, nor looks again and again."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        with pytest.raises(TimeoutError):
            channel.get_event(timeout=0.5)
        after = resource.getrusage(resource.RUSAGE_THREAD)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.25
        seen.append(after.ru_nvcsw - before.ru_nvcsw)

    def handler() -> None:
        channel.interrupt()
        other = Waiter(wait)
        wait()
        other.join()

    with handling(signal.SIGALRM, handler), pytest.raises(InterruptedError):
        ringer = Waiter(lambda: signal_when_asleep(signal.SIGALRM, PPOLL))
        channel.get_event(timeout=DEADLINE)
    ringer.join()
    assert len(seen) == 2
    assert all(1 <= slept < 20 for slept in seen), seen


def test_a_handler_that_raises_ends_the_wait_and_an_interrupt_reaches_the_next(
    channel: CompletionChannel,
) -> None:
    def handler() -> None:
        channel.interrupt()
        raise KeyError("mine")

    with handling(signal.SIGALRM, handler, 0.2), pytest.raises(KeyError, match="mine"):
        channel.get_event(timeout=DEADLINE)
    with pytest.raises(InterruptedError):
        channel.get_event(timeout=DEADLINE)
    with pytest.raises(TimeoutError):
        channel.get_event(timeout=0)


def test_a_signal_in_another_thread_leaves_its_wait_alone(pair: Pair) -> None:
    """Handlers run in the main thread, whichever thread the kernel chose."""
    b = pair[1]
    b.rcq.req_notify()
    seen: list[threading.Thread] = []
    with (
        handling(signal.SIGUSR1, lambda: seen.append(threading.current_thread())),
        waiting(b.channel.get_event) as waiter,
    ):
        for n in range(1, 4):
            assert waiter.thread.ident is not None
            signal.pthread_kill(waiter.thread.ident, signal.SIGUSR1)
            until(lambda n=n: len(seen) == n, "the handler runs")  # type: ignore[misc]
            waiter.asleep()
        send(pair)
    assert waiter.join() is b.rcq
    assert seen == [threading.main_thread()] * 3


# Timeouts ----------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 1e-6, 1e-3, 0.05, 0.3])
def test_a_timeout_is_never_early(channel: CompletionChannel, timeout: float) -> None:
    for _ in range(3):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            channel.get_event(timeout)
        assert time.monotonic() - start >= timeout


def test_a_timeout_of_0_does_not_sleep(channel: CompletionChannel) -> None:
    """One that sleeps does so each time; the machine, and what has to be paged in, now and then."""
    calls = 50

    def slept(timeout: float) -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(calls):
            with pytest.raises(TimeoutError):
                channel.get_event(timeout)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

    assert min(slept(0) for _ in range(10)) < calls / 5
    assert slept(0.005) > calls / 2, "this does show sleeping"  # some are over before they begin


@pytest.mark.parametrize("timeout", [1e9, 1e18, 1e300, float("inf"), 10**30, 10**400, None])
def test_a_huge_timeout_waits_for_ever(pair: Pair, timeout: float | None) -> None:
    b = pair[1]
    b.rcq.req_notify()
    with waiting(lambda: b.channel.get_event(timeout=timeout)) as waiter:
        send(pair)
    assert waiter.join() is b.rcq
