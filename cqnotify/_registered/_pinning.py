# SPDX-License-Identifier: MIT
"""Threads that register large memory, and let go of it: the kernel pins its pages one by one, which
takes it some 300 ns each, and event loops go on meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

SLOW: Final = 4 << 20  # bytes: less than this is pinned sooner than a thread would begin


# Threads of our own: those of an event loop's executor can all be waiting for a message.
THREADS: Final = 4
_threads: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def submit(call: Callable[..., None], *args: Any) -> None:
    """Call it in one of the threads."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(THREADS, "cqnotify.registered")
        _threads.submit(call, *args)


def wait_idle() -> None:
    """Wait until the threads have done everything; later calls get new ones. For tests."""
    global _threads
    with _lock:
        threads, _threads = _threads, None
    if threads is not None:
        threads.shutdown()


def _forget() -> None:
    """In a forked child, which has none of the threads."""
    global _threads, _lock
    _threads, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
