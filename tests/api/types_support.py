# SPDX-License-Identifier: MIT
"""One message, and what came of it."""

from __future__ import annotations

from cqnotify import WorkCompletion
from cqnotify.testing import Endpoint, wait_completions

DEADLINE = 120.0
Pair = tuple[Endpoint, Endpoint]


def exchange(a: Endpoint, b: Endpoint) -> list[WorkCompletion]:
    """One message; what completes at the receiver."""
    b.qp.post_recv(b.mr, wr_id=7)
    a.qp.post_send(a.mr[0:8], **a.to_peer)
    wait_completions(a.send_cq)
    return wait_completions(b.recv_cq)
