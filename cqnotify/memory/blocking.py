# SPDX-License-Identifier: MIT
"""get() and put() for threads without an event loop, and futures for them.

    array = blocking.get(descriptor)
    future = blocking.get_future(descriptor, into=buffer)

The thread of cqnotify.memory carries them out. Several threads share its connections.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

from .._parameters import parameters_of
from . import _transfer
from ._process import Running, current
from ._transfer import Transfer, begun

__all__ = ["TransferFuture", "get", "get_future", "put", "put_future"]


class TransferFuture(concurrent.futures.Future[Any]):
    """A get or a put under way, which `get_future` or `put_future` returned."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self._transfer = transfer
        self.set_running_or_notify_cancel()
        process = current()
        loop = asyncio._get_running_loop()
        if loop is not None:
            process.leave(loop)
        self._running = Running(process, begun(transfer, process), self)

    @property
    def nbytes(self) -> int:
        """How many bytes it transfers."""
        return self._transfer.nbytes

    @property
    def nbytes_done(self) -> int:
        """How many of them are transferred, from the first on."""
        return self._transfer.nbytes_done

    def cancel(self) -> bool:
        """Begin no more of it. The future ends, with CancelledError, when the device has ended what
        it has begun; until then it uses the buffer. Return False if it is done."""
        if self.done():
            return False
        self._running.cancel()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it, and return what `get` returns.

        timeout: in seconds; it goes on after a TimeoutError.
        """
        try:
            return super().result(timeout)
        except asyncio.CancelledError:
            raise concurrent.futures.CancelledError from None

    def resume(self) -> TransferFuture:
        """Begin a transfer of what is missing, after a failure or `cancel`; see
        `cqnotify.memory.Transfer.resume`."""
        return TransferFuture(self._transfer.resume())


@parameters_of(_transfer.get)
def get_future(*args: Any, **given: Any) -> TransferFuture:
    """Begin a `get`, and return a future of it.

    The parameters are those of `cqnotify.memory.get`, and so are the errors.
    """
    return TransferFuture(_transfer.get(*args, **given))


@parameters_of(_transfer.put)
def put_future(*args: Any, **given: Any) -> TransferFuture:
    """Begin a `put`, and return a future of it.

    The parameters are those of `cqnotify.memory.put`, and so are the errors.
    """
    return TransferFuture(_transfer.put(*args, **given))


@parameters_of(_transfer.get)
def get(*args: Any, **given: Any) -> Any:
    """Read exposed memory, and return it.

    The parameters are those of `cqnotify.memory.get`, and so are the errors. An exception in this
    thread, such as KeyboardInterrupt, cancels it.
    """
    return _waited(TransferFuture(_transfer.get(*args, **given)))


@parameters_of(_transfer.put)
def put(*args: Any, **given: Any) -> None:
    """Write exposed memory.

    The parameters are those of `cqnotify.memory.put`, and so are the errors.
    """
    _waited(TransferFuture(_transfer.put(*args, **given)))


def _waited(future: TransferFuture) -> Any:
    try:
        return future.result()
    except BaseException:
        if future.cancel():  # the wait was interrupted
            concurrent.futures.wait([future])
        raise
