# SPDX-License-Identifier: MIT
"""Faults that the observer makes: their names, the setting that turns them on, and what was made.

The observer reads the variable CQNOTIFY_CHAOS as a program starts, and sees the program set and
unset it: csrc/check/chaos.h has its form.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ._log import Logs

__all__ = ["FAULTS", "HARMLESS", "VARIABLE", "Chaos", "injected", "parse_faults", "setting"]

VARIABLE: Final = "CQNOTIFY_CHAOS"
HARMLESS: Final = ("split", "hold", "eintr", "late", "destroy")
"""Faults that a right program survives without an error."""
FAULTS: Final = (*HARMLESS, "arm", "create", "register", "post", "fail", "async")


def parse_faults(text: str) -> tuple[str, ...]:
    """Return the faults of a list: names with commas between, `harmless` or `all`.

    Raises ValueError if a name is unknown.
    """
    groups = {"harmless": HARMLESS, "all": FAULTS}
    found: list[str] = []
    for name in text.split(","):
        if name not in groups and name not in FAULTS:
            raise ValueError(f"unknown fault '{name}'; there are: {', '.join(FAULTS)}")
        found.extend(groups.get(name, (name,)))
    return tuple(fault for fault in FAULTS if fault in found)


def setting(seed: int, faults: tuple[str, ...], rate: int | None = None) -> str:
    """Return the value of the variable; one in `rate` calls has a fault, by default each's own."""
    value = f"seed={seed},faults={'+'.join(faults)}"
    return value if rate is None else f"{value},rate={rate}"


def injected(logs: Logs) -> dict[str, int]:
    """Return how often each fault was made, according to logs that were read."""
    made = logs.faults
    return {fault: made[fault] for fault in FAULTS if made[fault]}


class Chaos:
    """Turns faults on in this process, which is under the observer: the fixture `rdma_chaos`."""

    @contextmanager
    def __call__(
        self, seed: int = 0, faults: str = "harmless", *, rate: int | None = None
    ) -> Iterator[None]:
        """Make faults until the end of the `with` block, in new child processes too.

        Args:
            seed: which calls have faults; the same ones again for the same seed.
            faults: as for `cqnotify chaos --faults`.
            rate: one in so many calls has a fault, 2 or more; by default each fault has its own.
        """
        if rate is not None and rate < 2:
            raise ValueError(f"rate is {rate}, and must be at least 2")
        os.environ[VARIABLE] = setting(seed, parse_faults(faults), rate)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)
