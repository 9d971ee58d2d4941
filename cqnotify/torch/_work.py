# SPDX-License-Identifier: MIT
"""A transfer as torch sees it: a Work that the completion itself finishes, so that nobody polls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from ._interface import BaseWork, TorchFuture, seconds_of

# Set in a thread while it runs the callbacks of a Work: there, nothing else completes.
_settling = threading.local()


def refuse_in_a_callback(what: str) -> None:
    """Raise RuntimeError if this thread runs callbacks, and would so wait for itself."""
    if getattr(_settling, "now", False):
        raise RuntimeError(
            f"{what} in a callback of a Work: the thread that runs callbacks also completes "
            "transfers, and would wait for itself; hand this to another thread"
        )


class Work(BaseWork):
    """A transfer that is under way, or has ended.

    Neither a timeout nor a wait that is cancelled stops it: the device goes on, and the buffers
    must not be used before the Work is completed.
    """

    def __init__(
        self, timeout: float | None, settled: Callable[[Work, BaseException | None], None]
    ) -> None:
        super().__init__()
        self._timeout = timeout
        self._settled = settled
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._future = TorchFuture()

    def follow(self, transfer: Future[Any]) -> None:
        """End as soon as the transfer does; called once."""
        transfer.add_done_callback(self._settle)

    def _settle(self, transfer: Future[Any]) -> None:  # in the thread that completes transfers
        self._error = transfer.exception()
        if self._error is not None and not isinstance(self._error, Exception):  # as torch demands
            self._error = RuntimeError("the transfer was cancelled: cqnotify.memory was closed")
        self._settled(
            self, self._error
        )  # before anybody knows: then the memory can be unregistered
        self._ended.set()
        outer, _settling.now = getattr(_settling, "now", False), True
        try:
            if self._error is None:
                self._future.set_result([])
            else:
                self._future.set_exception(self._error)
        finally:
            _settling.now = outer

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end of the transfer; return True, or raise its error.

        timeout: how long, by default the transport's.
        Raises TimeoutError if the transfer is still under way then, and goes on.
        """
        seconds = seconds_of(timeout)
        if not self.is_completed():
            refuse_in_a_callback("wait() for a transfer that is under way")
        if not self._ended.wait(self._timeout if seconds is None else seconds):
            raise TimeoutError("the transfer is not completed yet, and goes on")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the transfer has ended, also by an error."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Return whether the transfer has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of a transfer that has ended; None if there is none, or not yet."""
        return self._error if self.is_completed() else None

    def get_future(self) -> TorchFuture:
        """Return a torch future of [], or of the error.

        Its callbacks run in the thread that completes transfers: they must not block.
        """
        return self._future

    def result(self) -> list[Any]:
        """Wait as wait(), and return []."""
        self.wait()
        return []

    def synchronize(self) -> None:
        """Wait as wait()."""
        self.wait()
