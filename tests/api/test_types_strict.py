# SPDX-License-Identifier: MIT
# pyright: strict
"""What programs do again and again passes pyright's strict mode as it stands in the pages."""

from __future__ import annotations

from collections.abc import Iterator

from types_support import Pair

from cqnotify import CQ, WorkCompletion


def receive(cq: CQ) -> Iterator[WorkCompletion]:
    while True:
        if cq.arm_if_empty():
            cq.channel.get_event().ack()
        yield from cq.poll()


def test_a_cq_that_sleeps_has_a_channel(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:8])
    assert next(receive(b.recv_cq)).byte_len == 8
