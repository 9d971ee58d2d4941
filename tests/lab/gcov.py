# SPDX-License-Identifier: MIT
"""A pytest plugin for a build with gcov: what the forked children of the tests run counts, too."""

from __future__ import annotations

import ctypes
import os


def _exit(status: int) -> None:
    """As os._exit, but libc's destructors run, and with them gcov's, which writes the counts."""
    ctypes.PyDLL(None).exit(status)


os._exit = _exit  # type: ignore[assignment]
