# SPDX-License-Identifier: MIT
"""Several queue pairs that receive from one SRQ, and their peers."""

from __future__ import annotations

from typing import Any

from support import Endpoint, join, wait_one

from cqnotify import AH, CQ, MR, PD, QP, SRQ, CompletionChannel, Context, QPType, WorkCompletion

TYPES = [QPType.RC, QPType.UC, QPType.UD]
SLOT = 256  # of the memory that receive `wr_id` gets


class Hub:
    """An SRQ, QPs that receive from it, and a peer of each that sends."""

    def __init__(
        self,
        ctx: Context,
        qps: int = 2,
        qp_type: QPType = QPType.RC,
        *,
        peers: Context | None = None,
        one_cq: bool = False,
        own_send_cqs: bool = True,
        max_wr: int = 32,
        max_sge: int = 1,
        srq_limit: int = 0,
        **options: Any,
    ) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self.srq = SRQ(self.pd, max_wr, max_sge=max_sge, srq_limit=srq_limit)
        self.mr = MR(self.pd, 64 * SLOT)
        self.channel = CompletionChannel(ctx)
        self.qps: list[QP] = []
        self.peers: list[Endpoint] = []
        self.joined: list[object] = []  # keeps them connected
        shared = self.new_cq()
        for _ in range(qps):
            recv_cq = shared if one_cq else self.new_cq()
            send_cq = self.new_cq() if own_send_cqs else recv_cq
            qp = QP(self.pd, qp_type, send_cq=send_cq, recv_cq=recv_cq, srq=self.srq)
            self.add(qp, Endpoint(peers or ctx, qp_type), **options)

    def new_cq(self) -> CQ:
        return CQ(self.ctx, 256, channel=self.channel)

    def add(self, qp: QP, peer: Endpoint, **options: Any) -> None:
        self.qps.append(qp)
        self.peers.append(peer)
        if qp.qp_type == QPType.UD:
            qp.connect()
            peer.qp.connect()
        else:
            self.joined.append(join(qp, peer.qp, **options))

    def post(self, *wr_ids: int, size: int = SLOT) -> None:
        for wr_id in wr_ids:
            at = wr_id % 64 * SLOT
            self.srq.post_recv(self.mr[at : at + size], wr_id=wr_id)

    def send(self, i: int, data: bytes = b"x", wr_id: int = 0) -> None:
        """A message for QP i. It has arrived when this returns, where that can be known."""
        qp, peer = self.qps[i], self.peers[i]
        path: dict[str, Any] = {}
        if qp.qp_type == QPType.UD:
            gid = self.ctx.find_gid()
            ah = AH(peer.pd, dgid=gid.gid, sgid_index=gid.index)
            path = {"ah": ah, "remote_qpn": qp.qp_num, "remote_qkey": 0x11111111}
        peer.mr.write(data)
        peer.qp.post_send(peer.mr[0 : len(data)], wr_id=wr_id, **path)
        wait_one(peer.scq)
        if path:
            path["ah"].close()

    def receive(self, i: int) -> WorkCompletion:
        return wait_one(self.qps[i].recv_cq)

    def memory(self, wr_id: int, size: int) -> bytes:
        return self.mr.read(size, wr_id % 64 * SLOT)
