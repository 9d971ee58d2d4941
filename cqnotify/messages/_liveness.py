# SPDX-License-Identifier: MIT
"""Asking whether the peer's device still answers, while this end waits for the peer.

What is sent finds out by itself that a peer's host has died. But the sender of an offer has nothing
under way while the peer reads it, or does not yet, and would wait for a dead one for ever; and so
would one that has no credits left. So from time to time it asks, by an RDMA write of nothing. The
peer's program does nothing for that.

It asks while reads are under way, too, if none completes: newer Soft-RoCE can forget one until
another request is posted. Then it asks by another read, see Reader.ask().

rdma_cm's keepalive does the same for idle connections. It takes a send queue for busy while frames
are in it that have asked for no completion. The write's completion stands for theirs, too; so one
write after a burst of frames leaves the rest to the keepalive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# Seconds. Newer Soft-RoCE waits anew for an answer with each request that is posted, so this must
# not be shorter than it waits: 3.8 s by default.
EACH: Final = 5.0


class Asking:
    """Calls `ask` each so many seconds, as long as `is_due` says that this end waits."""

    def __init__(
        self, keepalive: float | None, is_due: Callable[[], bool], ask: Callable[[], None]
    ) -> None:
        # With a keepalive, a send is given up after half of it.
        self._each = EACH if keepalive is None else min(EACH, keepalive / 2)
        self._is_due, self._ask = is_due, ask
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Something has begun or ended."""
        if self._timer is None and self._is_due():
            self._timer = self._loop.call_later(self._each, self._now)

    def _now(self) -> None:
        self._timer = None
        if self._is_due():
            self._ask()
            self.look()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
