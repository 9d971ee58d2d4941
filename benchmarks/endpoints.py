# SPDX-License-Identifier: MIT
"""A queue pair that is connected to itself, with cqnotify, pyverbs and ibverbs.

Each RDMA write on it causes a completion, so completions can be made before they are polled. A
second queue pair, the receiver, takes receives for which no message comes.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from cqnotify import QP, AccessFlags, Context, QPType, SendWR, WROpcode
from cqnotify.testing import Endpoint

from .harness.subject import DEVICE, GID_INDEX, settle

DEPTH = 1024
SIZE = 8
FIRST_ID = 1 << 32  # as in real programs; Python caches small integers
ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


def connect_to_itself(end: Endpoint) -> None:
    end.connect(end.qp.address(gid_index=GID_INDEX), gid_index=GID_INDEX, access=ACCESS)


class Loopback(Endpoint):
    def __init__(self) -> None:
        super().__init__(
            Context(DEVICE),
            QPType.UC,
            size=4096,
            access=ACCESS,
            cqe=DEPTH,
            one_cq=True,
            max_send_wr=DEPTH,
            max_recv_wr=DEPTH,
        )
        self.cq = self.send_cq
        self.receiver = QP(self.pd, QPType.RC, send_cq=self.cq, max_recv_wr=DEPTH)
        connect_to_itself(self)
        self.wrs = [self.write(FIRST_ID + i) for i in range(DEPTH)]

    def write(self, wr_id: int) -> SendWR:
        sge, addr, rkey = self.mr[:SIZE], self.mr.addr, self.mr.rkey
        opcode = WROpcode.RDMA_WRITE
        return SendWR(sge, wr_id=wr_id, opcode=opcode, remote_addr=addr, rkey=rkey)

    def fill(self, n: int) -> None:
        """Make n completions."""
        for wr in self.wrs[:n]:
            self.qp.post_send(wr)
        settle(n)

    def drain(self, n: int) -> None:
        while n:
            for wc in self.cq.poll():
                wc.raise_for_status()
                n -= 1


class ManyLoopbacks(Loopback):
    """Has more queue pairs like the first one, and posts to each in turn."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.qps = [self.qp]
        while len(self.qps) < count:
            qp = QP(self.pd, QPType.UC, send_cq=self.cq, max_send_wr=DEPTH // count)
            qp.connect(qp.address(gid_index=GID_INDEX), gid_index=GID_INDEX, access=ACCESS)
            self.qps.append(qp)

    def fill(self, n: int) -> None:
        for wr, qp in zip(self.wrs[:n], itertools.cycle(self.qps), strict=False):
            qp.post_send(wr)
        settle(n)


class PyverbsLoopback:
    def __init__(self) -> None:
        from pyverbs import addr, cq, device, enums, mr, pd, qp, wr

        self.ctx = device.Context(name=DEVICE)
        self.pd = pd.PD(self.ctx)
        self.channel = cq.CompChannel(self.ctx)
        self.cq = self.create_cq(cq)
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.mr = mr.MR(self.pd, 4096, access)
        self.qp, attr = self.create_qp(qp, enums.IBV_QPT_UC, access)
        self.receiver, self.to_init = self.create_qp(qp, enums.IBV_QPT_RC, access)
        self.to_reset = qp.QPAttr(qp_state=enums.IBV_QPS_RESET)
        attr.dest_qp_num = self.qp.qp_num
        attr.path_mtu = enums.IBV_MTU_1024
        attr.ah_attr = self.path(addr)
        self.qp.to_rts(attr)
        sge = wr.SGE(self.mr.buf, SIZE, self.mr.lkey)
        self.wrs = []
        for i in range(DEPTH):
            write = wr.SendWR(FIRST_ID + i, enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=[sge])
            write.set_wr_rdma(self.mr.rkey, self.mr.buf)
            self.wrs.append(write)

    def create_cq(self, cq: Any) -> Any:
        return cq.CQ(self.ctx, DEPTH, None, self.channel)

    def create_qp(self, qp: Any, qp_type: int, access: int) -> tuple[Any, Any]:
        """Return a QP in INIT, and the attributes of that transition."""
        cap = qp.QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        init = qp.QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        attr = qp.QPAttr(port_num=1)
        attr.qp_access_flags = access
        return qp.QP(self.pd, init, attr), attr

    def path(self, addr: Any) -> Any:
        """Return the path to our own port."""
        if GID_INDEX is None:
            return addr.AHAttr(port_num=1, dlid=self.ctx.query_port(1).lid)
        gid = self.ctx.query_gid(1, GID_INDEX)
        route = addr.GlobalRoute(dgid=gid, sgid_index=GID_INDEX)
        return addr.AHAttr(port_num=1, is_global=1, gr=route)

    def fill(self, n: int) -> None:
        for wr in self.wrs[:n]:
            self.qp.post_send(wr)
        settle(n)

    def drain(self, n: int) -> None:
        while n:
            for wc in self.cq.poll(16)[1]:
                assert wc.status == 0, wc
                n -= 1

    def reset_receiver(self) -> None:
        from pyverbs.enums import IBV_QP_STATE

        self.receiver.modify(self.to_reset, IBV_QP_STATE)
        self.receiver.to_init(self.to_init)


class PyverbsExtendedLoopback(PyverbsLoopback):
    """Its CQ is an extended one, where a program reads one completion after the other.

    It has no channel: pyverbs 44 fails if it is to create one that has.
    """

    def create_cq(self, cq: Any) -> Any:
        return cq.CQEX(self.ctx, cq.CqInitAttrEx(cqe=DEPTH))


def ibverbs_context() -> Any:
    import ibverbs

    (device,) = (each for each in ibverbs.get_device_list() if each.name == DEVICE)
    return device.open()


def ibverbs_region(pd: Any, size: int, access: int) -> Any:
    """Register memory, and keep it: ibverbs takes addresses."""
    import ibverbs

    memory = ctypes.create_string_buffer(size)
    mr = pd.reg_mr(ctypes.addressof(memory), size, access | ibverbs.AccessFlags.LOCAL_WRITE)
    return mr._keepalive(memory)


def ibverbs_path(lid: int, gid: bytes) -> Any:
    """Return the path to a port: on InfiniBand by its LID."""
    import ibverbs

    if GID_INDEX is None:
        return ibverbs.AHAttr(is_global=0, dlid=lid)
    return ibverbs.AHAttr(gid, GID_INDEX, hop_limit=64)


def ibverbs_loop_back(ctx: Any, qp: Any) -> None:
    """Connect a UC queue pair to itself: QP.to_rtr() and to_rts() are for RC and UD."""
    from ibverbs import MTU, AccessFlags, QPAttrMask, QPState

    gid = bytes(16) if GID_INDEX is None else ctx.query_gid(1, GID_INDEX).raw
    path = ibverbs_path(ctx.query_port(1).lid, gid)
    mask = QPAttrMask
    qp.to_init(1, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
    qp.modify(
        mask.STATE | mask.AV | mask.PATH_MTU | mask.DEST_QPN | mask.RQ_PSN,
        path,
        qp_state=QPState.RTR,
        path_mtu=MTU.MTU_1024,
        dest_qp_num=qp.qp_num,
    )
    qp.modify(mask.STATE | mask.SQ_PSN, qp_state=QPState.RTS)


class IbverbsLoopback:
    def __init__(self) -> None:
        import ibverbs

        self.ctx = ibverbs_context()
        self.pd = self.ctx.alloc_pd()
        self.channel = self.ctx.create_comp_channel()
        self.cq = self.ctx.create_cq(DEPTH, self.channel)
        self.mr = ibverbs_region(self.pd, 4096, ibverbs.AccessFlags.REMOTE_WRITE)
        self.qp = self.create_qp(ibverbs.QPType.UC)
        self.receiver = self.create_qp(ibverbs.QPType.RC)
        self.receiver.to_init(1)
        ibverbs_loop_back(self.ctx, self.qp)
        self.wrs = [self.write(FIRST_ID + i) for i in range(DEPTH)]

    def create_qp(self, qp_type: int) -> Any:
        import ibverbs

        init = ibverbs.QPInitAttr(
            self.cq, self.cq, qp_type, max_send_wr=DEPTH, max_recv_wr=DEPTH, sq_sig_all=True
        )
        return self.pd.create_qp(init)

    def write(self, wr_id: int) -> Any:
        import ibverbs

        opcode, mr = ibverbs.WROpcode.RDMA_WRITE, self.mr
        return ibverbs.SendWR(wr_id, [mr.sge(SIZE)], opcode, remote_addr=mr.addr, rkey=mr.rkey)

    def fill(self, n: int) -> None:
        for wr in self.wrs[:n]:
            self.qp.post_send(wr)
        settle(n)

    def drain(self, n: int) -> None:
        while n:
            for wc in self.cq.poll(16):
                wc.raise_for_status()
                n -= 1

    def reset_receiver(self) -> None:
        import ibverbs

        self.receiver.modify(ibverbs.QPAttrMask.STATE, qp_state=ibverbs.QPState.RESET)
        self.receiver.to_init(1)
