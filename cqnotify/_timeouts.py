# SPDX-License-Identifier: MIT
"""Timeouts of calls that wait in several steps: checked, and as the time at which they end.

As in the C core, any number is a timeout, numpy's too, and thirty years and more are for ever: the
clocks and polls of the system take no such times.
"""

from __future__ import annotations

import time

FOREVER = 1e9  # seconds


def seconds_of(timeout: object) -> float | None:
    """Return a timeout as a float; None is for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not (
        hasattr(timeout, "__float__") or hasattr(timeout, "__index__")
    ):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    try:
        seconds = float(timeout)  # type: ignore[arg-type]
    except OverflowError:  # an int beyond all floats
        seconds = FOREVER if timeout > 0 else -1.0  # type: ignore[operator]
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None")
    return seconds if seconds < FOREVER else None


def check_timeout(timeout: object) -> None:
    seconds_of(timeout)


def deadline(timeout: object) -> float | None:
    """Check a timeout, and return when it ends, by time.monotonic(); None is never."""
    seconds = seconds_of(timeout)
    return None if seconds is None else time.monotonic() + seconds


def left_until(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def time_until(timeout: object) -> float:
    """The same as `deadline`, for what takes no None: a time that is far off in its place."""
    end = deadline(timeout)
    return time.monotonic() + FOREVER if end is None else end
