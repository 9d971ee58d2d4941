# SPDX-License-Identifier: MIT
"""Closing that takes long, in threads for which only the end of the interpreter waits."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .._core import CMID


class Closing:
    """The threads that close. They are no daemons, which an isolated sub-interpreter cannot have:
    the end of the interpreter waits for them, as the kernel would."""

    _threads: ClassVar[set[threading.Thread]] = set()
    _over: ClassVar[bool] = False

    @classmethod
    def begin(cls, cmid: CMID) -> None:
        if cls._over:  # Python starts no more threads
            cmid.close()
            return
        thread = threading.Thread(target=cls._close, args=(cmid,), name="cqnotify.cm close")
        cls._threads.add(thread)
        thread.start()

    @classmethod
    def _close(cls, cmid: CMID) -> None:
        try:
            cmid.close()
        finally:
            cls._threads.discard(threading.current_thread())

    @classmethod
    def end(cls) -> None:
        cls._over = True
        for thread in tuple(cls._threads):
            thread.join()

    @classmethod
    def forget(cls) -> None:
        """Start anew in a forked child, which has none of the threads."""
        cls._threads.clear()


os.register_at_fork(after_in_child=Closing.forget)
atexit.register(Closing.end)
