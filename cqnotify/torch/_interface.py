# SPDX-License-Identifier: MIT
# ruff: noqa: B027
"""What is used of torch. No other file imports it.

`torch.distributed._transport` is private, new in torch 2.15, and changes: this was tested with the
versions in TESTED. To type checkers torch is what is declared here.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

TESTED = ("2.15.0",)

if TYPE_CHECKING:
    Tensor: Any
    uint8: Any
    strided: Any

    class TorchFuture:
        def set_result(self, result: list[Any], /) -> None: ...
        def set_exception(self, result: BaseException, /) -> None: ...

    class BaseWork:
        def __init__(self) -> None: ...

    class TorchTransport(ABC):
        device: Any
        _default_timeout: float | None

        def __init__(self, device: Any = None) -> None: ...
        def _check_device(self, device: Any) -> None: ...
        def _cuda_stream_views(self) -> list[Any]: ...
        def _close_cuda_streams(self) -> None: ...

    async def wait_all(works: Iterable[BaseWork], *, timeout: float | None = None) -> None: ...
else:
    try:
        from torch import Tensor, strided, uint8
        from torch.distributed import Work as BaseWork
        from torch.distributed._transport import Transport as TorchTransport
        from torch.distributed._transport import wait_all
        from torch.futures import Future as TorchFuture
    except ImportError as error:
        raise ImportError(
            "cqnotify.torch needs torch 2.15 or later, with torch.distributed._transport; "
            f"it was tested with {', '.join(TESTED)} (pip install cqnotify[torch])"
        ) from error

__all__ = [
    "TESTED",
    "BaseTransport",
    "BaseWork",
    "Tensor",
    "TorchFuture",
    "seconds_of",
    "strided",
    "uint8",
    "wait_all",
]


class BaseTransport(TorchTransport):
    """What a transport inherits. Subclasses override `_check_transfer`, which the transfers in CUDA
    streams call, too."""

    def set_timeout(self, seconds: float) -> None:
        """Set how long read_async() and so on wait, if they are given no other timeout."""
        self._default_timeout = seconds

    def check_device(self, device: Any) -> None:
        """Raise ValueError unless tensors of that device may be registered."""
        self._check_device(device)

    def views_in_streams(self) -> list[Any]:
        """The views that transfers in CUDA streams use."""
        return self._cuda_stream_views()

    def close_streams(self) -> None:
        """Wait for the transfers in CUDA streams."""
        self._close_cuda_streams()


def seconds_of(timeout: timedelta) -> float | None:
    """A Work's timeout in seconds; None if the caller gave none, which torch passes as 0."""
    seconds = timeout.total_seconds()
    if seconds < 0:
        raise ValueError(f"timeout {seconds:g} s: it must not be negative")
    return seconds or None
