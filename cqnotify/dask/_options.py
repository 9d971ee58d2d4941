# SPDX-License-Identifier: MIT
"""The options of a connection between two ends of a Dask cluster."""

from __future__ import annotations

from typing import Final

from .. import devices
from ..context import is_iwarp
from ..messages import ConnectionOptions
from ._distributed import MEMORY_LIMIT, config, parse_timedelta

# A cluster has many connections, which wait for most of their time: so each has little memory, and
# what is larger than `eager`, as data are, is read out of the sender's memory.
CREDITS: Final = 4
OFFERS: Final = 2
EAGER: Final = 8192
MAX_FRAMES: Final = 1 << 20


def options() -> ConnectionOptions:
    return ConnectionOptions(
        credits=CREDITS,
        offers=OFFERS,
        eager=EAGER,
        max_message=int(MEMORY_LIMIT),  # no end can receive more
        max_frames=MAX_FRAMES,
        cache=0,  # Dask sends an array once, and its memory is to be freed
        keepalive=_keepalive(),
        name="dask",
    )


def _keepalive() -> float | None:
    """What Dask asks of TCP. None where a device of this host cannot do it."""
    if any(is_iwarp(device) for device in devices()):
        return None
    configured = config.get("distributed.comm.timeouts.tcp")
    return float(parse_timedelta(configured, default="seconds"))
