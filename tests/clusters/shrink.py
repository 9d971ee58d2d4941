# SPDX-License-Identifier: MIT
"""The shortest list of faults that still fails: ddmin, then each fault made simpler.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002). The result fails,
and none of its faults can be left out. That it is the shortest of all cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Fails = Callable[[list[T]], bool]


def remembered(fails: Fails[T]) -> Fails[T]:
    """The same, which is asked about each list once."""
    known: dict[tuple[T, ...], bool] = {}

    def ask(items: list[T]) -> bool:
        if tuple(items) not in known:
            known[tuple(items)] = fails(items)
        return known[tuple(items)]

    return ask


def ddmin(items: Sequence[T], fails: Fails[T]) -> list[T]:
    """Return a part of a list that fails, in its order, of which every item is needed."""
    left, parts = list(items), 2
    if fails([]):
        return []
    while len(left) >= 2:
        size = -(-len(left) // parts)
        chunks = [left[i : i + size] for i in range(0, len(left), size)]
        others = [left[:i] + left[i + size :] for i in range(0, len(left), size)]
        found = next((chunk for chunk in chunks if fails(chunk)), None)
        if found is not None:
            left, parts = found, 2
            continue
        found = next((other for other in others if fails(other)), None)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return left


def simplify(items: Sequence[T], fails: Fails[T], simpler: Callable[[T], list[T]]) -> list[T]:
    """Replace items by simpler ones, the first that `simpler` names, as long as the list fails."""
    left = list(items)
    changed = True
    while changed:
        changed = False
        for at, item in enumerate(left):
            for other in simpler(item):
                tried = [*left[:at], other, *left[at + 1 :]]
                if fails(tried):
                    left, changed = tried, True
                    break
    return left


def shrink(items: Sequence[T], fails: Fails[T], simpler: Callable[[T], list[T]]) -> list[T]:
    ask = remembered(fails)
    return simplify(ddmin(items, ask), ask, simpler)
