# SPDX-License-Identifier: MIT
"""What an end of a ping-pong is, once it has met its peer: by TCP, or by rdma_cm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._end import End


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Met:
    """Our end, connected to the peer's.

    local, remote: where the ends are, for the figures.
    has_gone: whether the peer is known to have gone.
    """

    end: End
    path_mtu: int | None
    local: list[dict[str, Any]]
    remote: list[dict[str, Any]]
    has_gone: Callable[[], bool] = _never
