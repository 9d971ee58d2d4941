# SPDX-License-Identifier: MIT
"""The counters of an AsyncCQ."""

from __future__ import annotations

from typing import NamedTuple


class AsyncCQStats(NamedTuple):
    """The counters of `CQ.stats`, and those of the tasks.

    wakeups: how often a sleeping task was woken with what it waited for.
    max_per_wake: the most completions that one such task was given.
    """

    events: int
    acked: int
    arms: int
    polls: int
    completions: int
    spurious: int
    wakeups: int
    max_per_wake: int
