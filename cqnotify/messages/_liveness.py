# SPDX-License-Identifier: MIT
"""When the peer's device is probed, while this end waits for the peer.

A send fails when the peer's host is dead. But a sender has nothing under way while the peer has not
read its offer, or while it has no credits left, and would wait for a dead peer for ever. So from
time to time it posts a probe, an empty RDMA write, which fails then. The peer's program takes no
part in that.

It also probes while reads are under way, if none completes: newer Soft-RoCE can forget a read until
another request is posted. That probe is another read, see Reader.probe().

rdma_cm's keepalive does the same for idle connections. It takes a send queue for busy while frames
are in it that have asked for no completion. The completion of the probe stands for theirs, too; so
one probe after a burst of frames leaves the rest to the keepalive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .. import _core

# Seconds. Newer Soft-RoCE restarts its timer with each request that is posted, so this must
# not be shorter than it waits: 3.8 s by default.
PROBE_INTERVAL: Final = 5.0


class LivenessTimer:
    """Calls `probe` at intervals, as long as `is_due` says that this end waits for the peer."""

    def __init__(
        self,
        session: _core.MessageSession,
        keepalive: float | None,
        is_due: Callable[[], bool],
        probe: Callable[[], None],
    ) -> None:
        # With a keepalive, a send is given up after half of it.
        self._each = PROBE_INTERVAL if keepalive is None else min(PROBE_INTERVAL, keepalive / 2)
        self._session, self._is_due, self._probe = session, is_due, probe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def update(self) -> None:
        """Start the timer, if a probe is due and it does not run."""
        if self._timer is None and self._is_due():
            self._timer = self._loop.call_later(self._each, self._on_timer)
            self._session.is_probed = True

    def _on_timer(self) -> None:
        self._timer = None
        self._session.is_probed = False
        self._session.poll_sent()  # sends that succeed raise no event
        if self._is_due():
            self._probe()
            self.update()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._session.is_probed = False
