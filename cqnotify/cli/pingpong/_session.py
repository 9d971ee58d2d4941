# SPDX-License-Identifier: MIT
"""Our end of a ping-pong, once it is connected to its peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._end import PingPongEnd


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Session:
    """Our end, connected to the peer's, over TCP or by rdma_cm.

    local, remote: where the ends are, for the figures.
    has_gone: whether the peer is known to have gone.
    """

    end: PingPongEnd
    path_mtu: int | None
    local: list[dict[str, Any]]
    remote: list[dict[str, Any]]
    has_gone: Callable[[], bool] = _never
