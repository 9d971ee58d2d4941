# SPDX-License-Identifier: MIT
"""Timeouts of calls that wait in several steps: checked, and as the time at which they end."""

from __future__ import annotations

import time
from typing import cast


def check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None")


def deadline(timeout: float | None) -> float | None:
    """By time.monotonic(); None is never."""
    return None if timeout is None else time.monotonic() + timeout


def checked_deadline(timeout: object) -> float | None:
    """The same of a timeout that is checked first."""
    if timeout is None:
        return None
    check_timeout(timeout)
    return deadline(cast(float, timeout))


def left_until(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
