# SPDX-License-Identifier: MIT
"""Pairs of connected queue pairs, for tests; the fixtures of the pytest plugin make them.

One message, received asleep:

    with Context() as ctx, Endpoint(ctx) as a, Endpoint(ctx) as b:
        connect(a, b)
        b.qp.post_recv(b.mr)
        a.qp.post_send(a.mr[0:5])
        (wc,) = wait_completions(b.recv_cq)
"""

from ._endpoint import Endpoint, PairFactory, SendDestination, connect, wait_completions

__all__ = ["Endpoint", "PairFactory", "SendDestination", "connect", "wait_completions"]
