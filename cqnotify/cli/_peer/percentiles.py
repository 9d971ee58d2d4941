# SPDX-License-Identifier: MIT
"""Percentiles; each is a value that was measured."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[int], per_mille: int) -> int:
    """Return the smallest value that so many of all are not above, by nearest rank."""
    return ordered[max(-(-per_mille * len(ordered) // 1000), 1) - 1]
