# SPDX-License-Identifier: MIT
"""The counters of an AsyncCQ."""

from __future__ import annotations

from typing import NamedTuple


class AsyncCQStats(NamedTuple):
    """What `CQ.stats` counts, and how often a sleeping task was woken with what it waited for.

    max_per_wake is the largest number of completions that one such task was handed.
    """

    events: int
    acked: int
    arms: int
    polls: int
    completions: int
    spurious: int
    wakeups: int
    max_per_wake: int
