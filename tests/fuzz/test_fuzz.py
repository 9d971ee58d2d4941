# SPDX-License-Identifier: MIT
"""The whole public API in random order, against a model, and with random arguments.

`Machine` makes, connects, posts, arms, waits, polls, resizes, breaks, closes and forgets objects of
a real device, and a model beside it knows what must come of each call: which work requests complete
and what they bring, how many events are owed, what is in the way of a close, what is closed.
`Barrage` calls everything with anything: what it may raise is listed, and nothing else may happen.

The short runs are the same in each run. The long one: ./lab test -m soak tests/fuzz, with
CQNOTIFY_FUZZ_CALLS and CQNOTIFY_FUZZ_SEED.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from fuzz_arguments import ALLOWED, Boom
from fuzz_barrage import Barrage
from fuzz_machine import Machine
from fuzz_things import Tally, descriptors, ours
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from cqnotify import Context

MANY = int(os.environ.get("CQNOTIFY_FUZZ_CALLS", "100000"))
SEED = int(os.environ.get("CQNOTIFY_FUZZ_SEED", "20240229"))
SHRINK = "CQNOTIFY_FUZZ_SHRINK" in os.environ  # then with -o faulthandler_timeout=0
NO_PROGRESS = 120.0  # seconds: then all stacks are shown, and it ends
RSS_GROWTH = 8 << 20

COMMON = settings(
    database=None,
    deadline=None,
    print_blob=False,
    # To shrink an example in which something never comes takes very long.
    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],  # the lab's guest is emulated
)


# ---- the tests ------------------------------------------------------------------------------


@pytest.fixture
def light_collector() -> Iterator[None]:
    """What was there before is not looked at by each gc.collect()."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def tally(ctx: Context, light_collector: None) -> Iterator[Tally]:
    tally = Tally()
    Machine.tally = tally
    yield tally
    Machine.tally = Tally()
    Machine.progress = staticmethod(lambda calls: None)


def run_machine(examples: int, steps: int, seed: int | None = None) -> None:
    chosen = settings(
        COMMON,
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=seed is None,
    )
    machine: Any = type("Machine", (Machine,), {})
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    run_state_machine_as_test(machine, settings=chosen)


def run_barrage(
    tally: Tally, examples: int, seed: int | None = None, known: list[str] | None = None
) -> None:
    barrage = Barrage(tally)

    @settings(COMMON, max_examples=examples, derandomize=seed is None)
    @given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=20, max_size=60))
    def run(seeds: list[int]) -> None:
        for i, number in enumerate(seeds):
            barrage.call(f"{seed}:{i}:{number}")
            if i % 6 == 0:
                barrage.tidy()
        faults, barrage.faults = barrage.faults, []
        if known is not None:
            known.extend(faults)
        else:
            assert not faults, "\n".join(faults)
        Machine.progress(tally.calls)

    def unraisable(args: Any) -> None:
        """What close callbacks raise; anything can have been made one."""
        if not isinstance(args.exc_value, (Boom, *ALLOWED)):
            barrage.faults.append(f"unraisable {args.exc_type}: {args.exc_value}")

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        (run if seed is None else hypothesis.seed(seed)(run))()
    finally:
        barrage.close()
        gc.collect()
        sys.unraisablehook = hook


@contextmanager
def leaving_nothing() -> Iterator[None]:
    before = descriptors()
    yield
    assert ours() == {}, "nothing is left"
    assert descriptors() <= before


def test_what_was_promised_holds_in_any_order(tally: Tally) -> None:
    with leaving_nothing():
        run_machine(examples=25, steps=40)
    print(tally)
    assert tally.done.total() >= 0.3 * tally.calls


def test_arguments_of_any_kind_are_refused_in_words_or_work(tally: Tally) -> None:
    with leaving_nothing():
        run_barrage(tally, examples=120)
    print(tally)


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.soak
def test_many_calls_in_any_order_with_any_arguments_break_nothing_and_leak_nothing(
    tally: Tally, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = 0
    start = time.monotonic()

    def progress(calls: int) -> None:
        nonlocal shown
        if calls >= shown:
            shown = calls + max(1000, MANY // 100)
            faulthandler.dump_traceback_later(NO_PROGRESS, exit=True)
            print(f"\r{calls} of {MANY} calls", end="", flush=True)

    warm = (0, 0)
    halves = (Tally(), Tally())
    faults: list[str] = []
    with capfd.disabled():
        Machine.progress = staticmethod(progress)
        Machine.tally = halves[0]
        try:
            for seed in range(SEED, SEED + 1_000_000):
                total = halves[0].calls + halves[1].calls
                if total >= MANY:
                    break
                if not warm[0] and total >= MANY // 4:
                    warm = (rss(), total)
                with leaving_nothing():
                    if halves[0].calls <= halves[1].calls:
                        run_machine(25, 50, seed)
                    else:
                        run_barrage(halves[1], 20, seed, faults)
            grown = rss() - warm[0]
        finally:
            faulthandler.cancel_dump_traceback_later()
            for half, title in zip(halves, ("in order", "with any arguments"), strict=True):
                print(f"\n{title}: {half}")
            for fault, count in Counter(faults).most_common():
                print(f"{count:6} {fault}")
            print(f"{time.monotonic() - start:.0f} s, seed {SEED}")
        print(f"RSS {grown:+d} bytes since call {warm[1]}, {ours()}")
    assert not faults
    assert halves[0].done.total() >= 0.3 * halves[0].calls
    assert grown < RSS_GROWTH
