# SPDX-License-Identifier: MIT
"""A number that other processes increment by RDMA atomics, without any work of its own process."""

from __future__ import annotations

import sys
import time

from cqnotify import MR, QP, WROpcode


class Tally:
    """The number at an address of a queue pair's peer: 8 bytes in the byte order of the machine.

    qp: a connected RC queue pair, whose peer permits REMOTE_ATOMIC. Its send CQ has a channel.
    mr: at least 8 bytes of our own, into which the device writes.
    addr, rkey: where the number is, a multiple of 8.
    """

    def __init__(self, qp: QP, mr: MR, addr: int, rkey: int) -> None:
        self.qp, self.mr, self.addr, self.rkey = qp, mr, addr, rkey

    def add(self, n: int = 1, timeout: float = 5.0) -> int:
        """Add n to the number, and return what it was before.

        Raises CompletionError if the peer is gone or refuses, TimeoutError if it does not answer.
        """
        self.qp.post_send(
            self.mr[0:8],
            opcode=WROpcode.ATOMIC_FETCH_AND_ADD,
            remote_addr=self.addr,
            rkey=self.rkey,
            compare_add=n,
        )
        self._await_completion(timeout)
        return int.from_bytes(self.mr.read(8), sys.byteorder)

    def _await_completion(self, timeout: float) -> None:
        cq, end = self.qp.send_cq, time.monotonic() + timeout
        while not (done := cq.poll(1)):
            if cq.arm_if_empty():
                cq.channel.get_event(max(0.0, end - time.monotonic())).ack()
        done[0].raise_for_status()
