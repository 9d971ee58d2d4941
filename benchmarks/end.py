# SPDX-License-Identifier: MIT
"""One end of an RC connection between a subject and its peer, with cqnotify, pyverbs and ibverbs.

c/end.h is the same in C, and describes how the two ends meet; c/peer.c is the other end.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import cached_property
from ipaddress import IPv6Address
from time import sleep
from typing import Any

from cqnotify import AccessFlags, Context, QPAddress, RecvWR, SendFlags, SendWR
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint

from .endpoints import ibverbs_context, ibverbs_path, ibverbs_region
from .harness.plan import Counter, Figures
from .harness.subject import DEVICE, GID_INDEX, peer

SLOTS = 64  # receives to keep posted
SIGNAL_EVERY = 32  # one send of so many is signaled, and its completion polled
ACK_BATCH = 32  # events to acknowledge at once
DEPTH = 1024
MTU = 1024


class Peer:
    """The process at the other end."""

    def __init__(self) -> None:
        self._socket = peer()

    def order(self, what: str) -> None:
        self._socket.sendall(what.encode() + b"\n")

    def exchange(self, ours: QPAddress) -> QPAddress:
        self._socket.sendall(ours.to_wire())
        return QPAddress.from_wire(self._hear(len(ours.to_wire())))

    def meet(self) -> None:
        """Wait until both ends can receive."""
        self._socket.sendall(b"+")
        self._hear(1)

    def _hear(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._socket.recv(length - len(data))
            if not more:
                raise EOFError("the peer has gone")
            data += more
        return data


class Sender:
    """The base of the ends."""

    qp: Any
    unsignaled: Any
    _sent = 0

    def send(self) -> None:
        """Post the message; every so often signaled, and then wait for its completion."""
        self._sent += 1
        if self._sent % SIGNAL_EVERY:
            self.qp.post_send(self.unsignaled)
        else:
            self.send_signaled()

    def send_signaled(self) -> None:
        """Post the message signaled, and wait for the completion of all until then."""
        raise NotImplementedError


class CqnotifyEnd(Endpoint, Sender):
    """An end with cqnotify. The CQ of the sends is never armed, so all events are of receives."""

    def __init__(
        self, peer: Peer, size: int, *, send_size: int | None = None, slots: int = SLOTS
    ) -> None:
        peer.order(f"connect {size}")
        super().__init__(
            Context(DEVICE),
            size=(slots + 1) * size,
            access=AccessFlags.LOCAL_WRITE,
            cqe=DEPTH,
            max_send_wr=DEPTH,
            max_recv_wr=DEPTH,
        )
        self.cq = self.recv_cq
        self.qp.to_init()
        places = [self.mr[i * size : (i + 1) * size] for i in range(slots)]
        self.receives = [RecvWR(place, wr_id=i) for i, place in enumerate(places)]
        self.qp.post_recv(self.receives)
        message = self.mr[slots * size : slots * size + (send_size or size)]
        self.unsignaled = SendWR(message, send_flags=SendFlags(0))
        self._signaled = SendWR(message, send_flags=SendFlags.SIGNALED)
        remote = peer.exchange(self.qp.address(gid_index=GID_INDEX))
        self.connect(remote, gid_index=GID_INDEX, path_mtu=MTU)
        peer.meet()

    @cached_property
    def acq(self) -> AsyncCQ:
        """Created at its first use: from then on cq.poll() is its poll()."""
        return AsyncCQ(self.cq)

    def send_signaled(self) -> None:
        self.qp.post_send(self._signaled)
        while not (wcs := self.send_cq.poll(1)):
            sleep(1e-5)  # spinning in a real-time process would starve the kernel's threads
        wcs[0].raise_for_status()

    def counters(self) -> tuple[int, int, int]:
        """Return the numbers of events, arms and spurious events."""
        stats = self.cq.stats
        return stats.events, stats.arms, stats.spurious

    def close(self) -> None:
        self.ctx.close()


class PyverbsEnd(Sender):
    """An end with pyverbs, which has no counters: the subjects count."""

    def __init__(
        self, peer: Peer, size: int, *, send_size: int | None = None, slots: int = SLOTS
    ) -> None:
        from pyverbs import cq, device, enums, mr, pd, qp, wr

        peer.order(f"connect {size}")
        self.ctx = device.Context(name=DEVICE)
        self.pd = pd.PD(self.ctx)
        before = _event_fds()
        self.channel = cq.CompChannel(self.ctx)
        (self.fd,) = _event_fds() - before  # pyverbs does not give the descriptor
        self.cq = cq.CQ(self.ctx, DEPTH, None, self.channel)
        self.send_cq = cq.CQ(self.ctx, DEPTH)
        self.mr = mr.MR(self.pd, (slots + 1) * size, enums.IBV_ACCESS_LOCAL_WRITE)
        cap = qp.QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
        init = qp.QPInitAttr(enums.IBV_QPT_RC, scq=self.send_cq, rcq=self.cq, cap=cap)
        self.qp = qp.QP(self.pd, init, qp.QPAttr(port_num=1))
        buf, lkey = self.mr.buf, self.mr.lkey
        places = [wr.SGE(buf + i * size, size, lkey) for i in range(slots)]
        self.receives = [wr.RecvWR(i, 1, [place]) for i, place in enumerate(places)]
        for receive in self.receives:
            self.qp.post_recv(receive)
        message = [wr.SGE(buf + slots * size, send_size or size, lkey)]
        self.unsignaled = wr.SendWR(num_sge=1, sg=message, send_flags=0)
        self._signaled = wr.SendWR(num_sge=1, sg=message, send_flags=enums.IBV_SEND_SIGNALED)
        self.events = self.arms = self.spurious = 0
        self.qp.to_rts(self._attributes(peer.exchange(self._address())))
        peer.meet()

    def _address(self) -> QPAddress:
        lid = self.ctx.query_port(1).lid
        gid = "::" if GID_INDEX is None else str(self.ctx.query_gid(1, GID_INDEX))
        return QPAddress(lid, self.qp.qp_num, 0, IPv6Address(gid))

    def _attributes(self, remote: QPAddress) -> Any:
        from pyverbs import addr, enums, qp

        attr = qp.QPAttr(port_num=1)
        attr.path_mtu = enums.IBV_MTU_1024
        attr.dest_qp_num, attr.rq_psn = remote.qp_num, remote.psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 6, 6
        if GID_INDEX is None:
            attr.ah_attr = addr.AHAttr(port_num=1, dlid=remote.lid)
        else:
            gid = addr.GID(remote.gid.exploded)
            route = addr.GlobalRoute(dgid=gid, sgid_index=GID_INDEX, hop_limit=64)
            attr.ah_attr = addr.AHAttr(port_num=1, is_global=1, gr=route)
        return attr

    def send_signaled(self) -> None:
        self.qp.post_send(self._signaled)
        n, wcs = self.send_cq.poll()
        while not n:
            sleep(1e-5)
            n, wcs = self.send_cq.poll()
        check(wcs[0])

    def counters(self) -> tuple[int, int, int]:
        return self.events, self.arms, self.spurious

    def close(self) -> None:
        if unacked := self.events % ACK_BATCH:
            self.cq.ack_events(unacked)  # or closing would hang
        self.ctx.close()


class IbverbsEnd(Sender):
    """An end with ibverbs, which has no counters either."""

    def __init__(
        self, peer: Peer, size: int, *, send_size: int | None = None, slots: int = SLOTS
    ) -> None:
        import ibverbs

        peer.order(f"connect {size}")
        self.ctx = ibverbs_context()
        self.pd = self.ctx.alloc_pd()
        self.channel = self.ctx.create_comp_channel()
        self.fd = self.channel.fd
        self.cq = self.ctx.create_cq(DEPTH, self.channel)
        self.send_cq = self.ctx.create_cq(DEPTH)
        self.mr = ibverbs_region(self.pd, (slots + 1) * size, 0)
        init = ibverbs.QPInitAttr(self.send_cq, self.cq, max_send_wr=DEPTH, max_recv_wr=DEPTH)
        self.qp = self.pd.create_qp(init)
        self.qp.to_init(1, ibverbs.AccessFlags.LOCAL_WRITE)
        places = [self.mr.sge(size, i * size) for i in range(slots)]
        self.receives = [ibverbs.RecvWR(i, [place]) for i, place in enumerate(places)]
        self.qp.post_recv(self.receives)
        message, send = [self.mr.sge(send_size or size, slots * size)], ibverbs.WROpcode.SEND
        self.unsignaled = ibverbs.SendWR(0, message, send)
        self._signaled = ibverbs.SendWR(0, message, send, ibverbs.SendFlags.SIGNALED)
        self.events = self.arms = self.spurious = 0
        self._connect(peer.exchange(self._address()))
        peer.meet()

    def _address(self) -> QPAddress:
        gid = bytes(16) if GID_INDEX is None else self.ctx.query_gid(1, GID_INDEX).raw
        return QPAddress(self.ctx.query_port(1).lid, self.qp.qp_num, 0, IPv6Address(gid))

    def _connect(self, remote: QPAddress) -> None:
        from ibverbs import MTU, QPAttrMask, QPState

        mask = QPAttrMask.STATE | QPAttrMask.AV | QPAttrMask.PATH_MTU | QPAttrMask.DEST_QPN
        mask |= QPAttrMask.RQ_PSN | QPAttrMask.MAX_DEST_RD_ATOMIC | QPAttrMask.MIN_RNR_TIMER
        self.qp.modify(
            mask,
            ibverbs_path(remote.lid, remote.gid.packed),
            qp_state=QPState.RTR,
            path_mtu=MTU.MTU_1024,
            dest_qp_num=remote.qp_num,
            rq_psn=remote.psn,
            max_dest_rd_atomic=1,
            min_rnr_timer=12,
        )
        self.qp.to_rts(0, timeout=14, retry_cnt=6, rnr_retry=6)

    def send_signaled(self) -> None:
        self.qp.post_send(self._signaled)
        while not (wcs := self.send_cq.poll(1)):
            sleep(1e-5)
        wcs[0].raise_for_status()

    def counters(self) -> tuple[int, int, int]:
        return self.events, self.arms, self.spurious

    def close(self) -> None:
        """Close one after the other: a context does not close what was made from it."""
        self.qp.close()
        self.mr.close()
        self.cq.close()  # acknowledges its events
        self.send_cq.close()
        self.channel.close()
        self.pd.close()
        self.ctx.close()


def check(wc: Any) -> None:
    """Do for pyverbs what raise_for_status() does."""
    if wc.status:
        raise RuntimeError(f"work request {wc.wr_id} failed with status {wc.status}")


def _event_fds() -> set[int]:
    with os.scandir("/proc/self/fd") as entries:
        return {int(e.name) for e in entries if "infinibandevent" in os.readlink(e.path)}


AnyEnd = CqnotifyEnd | PyverbsEnd | IbverbsEnd


class Meter:
    """Measures from its creation to figures(), by real time or the CPU time of the process."""

    def __init__(
        self, clock: Callable[[], int], end: CqnotifyEnd | PyverbsEnd | IbverbsEnd
    ) -> None:
        self._clock = clock
        self._end = end
        self._counters = self._count()
        self._start = clock()

    def figures(self, ops: int) -> Figures:
        total = self._clock() - self._start
        figures: Figures = {"ops": ops, "total": total}
        for name, n in self._count().items():
            figures[name] = n - self._counters[name]
        return figures

    def _count(self) -> dict[Counter, int]:
        """Return the counters; a wake-up is what the kernel counts as a voluntary switch."""
        wakeups = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        events, arms, spurious = self._end.counters()
        return {"wakeups": wakeups, "events": events, "arms": arms, "spurious": spurious}
