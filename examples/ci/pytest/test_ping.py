# SPDX-License-Identifier: MIT
"""Two ends on real devices: rdma_rc_pair is a fixture of cqnotify's pytest plugin."""

from cqnotify.testing import Endpoint, wait_completions


def test_a_ping_is_answered(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    for sender, receiver in (rdma_rc_pair, rdma_rc_pair[::-1]):
        receiver.qp.post_recv(receiver.mr)
        sender.mr.write(b"ping")
        sender.qp.post_send(sender.mr[0:4])
        (wc,) = wait_completions(receiver.recv_cq)
        assert receiver.mr.read(wc.raise_for_status().byte_len) == b"ping"
