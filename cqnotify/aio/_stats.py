# SPDX-License-Identifier: MIT
"""The counters of an AsyncCQ."""

from __future__ import annotations

from typing import NamedTuple


class AsyncCQStats(NamedTuple):
    """The counters of `CQ.stats`, and those of the tasks.

    wakeups: how often a sleeping task was woken with what it waited for.
    max_per_wake: the most completions that one such task was given.
    spins: how often a task polled before it would have slept, by the AsyncCQ's `spin` or by "auto".
    sleeps_saved: how often it then did not have to sleep.
    """

    events: int
    acked: int
    arms: int
    polls: int
    completions: int
    spurious: int
    wakeups: int
    max_per_wake: int
    spins: int
    sleeps_saved: int
