# SPDX-License-Identifier: MIT
"""A pytest plugin for a build with gcov: what the forked children of the tests run counts, too."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import NoReturn

_end = os._exit


def _exit(status: int) -> NoReturn:
    """As os._exit, but the core's counts are written.

    libc's exit() does so too, but runs the destructors of all libraries, of which some wait for
    threads that a forked child does not have: once a name was resolved in an event loop of uvloop,
    the child died in that of libuv.
    """
    core = sys.modules.get("cqnotify._core")
    if core is not None:
        ctypes.PyDLL(core.__file__).cqn_write_counts()
    _end(status)


os._exit = _exit
