# SPDX-License-Identifier: MIT
"""One channel, many CQs: take an event of one CQ after the other, and poll that CQ.

Each CQ has a queue pair that is connected to itself, and an RDMA write on it causes the completion.
Posting the write is not measured.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from cqnotify import Context, QPType, SendWR, WROpcode
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint

from .end import ACK_BATCH, check
from .endpoints import ACCESS, connect_to_itself, ibverbs_context, ibverbs_loop_back, ibverbs_region
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import DEVICE, GID_INDEX, clock, clock_cost, settle

MANY = 500
COUNTS = (1, MANY)
EVENTS = 1500  # in one round
DEPTH = 16


crowd_end = partial(
    Endpoint,
    qp_type=QPType.UC,
    size=4096,
    access=ACCESS,
    cqe=DEPTH,
    one_cq=True,
    max_send_wr=DEPTH,
    max_recv_wr=DEPTH,
)


class Crowd:
    """Ends with a CQ each, on one channel."""

    def __init__(self, ctx: Context, count: int) -> None:
        first = crowd_end(ctx)
        self._ends = [first]
        for _ in range(count - 1):
            self._ends.append(crowd_end(ctx, pd=first.pd, channel=first.channel, mr=first.mr))
        self.channel = first.channel
        self.cqs = [end.send_cq for end in self._ends]
        for end in self._ends:
            connect_to_itself(end)
        mr = first.mr
        self._wr = SendWR(mr[:8], opcode=WROpcode.RDMA_WRITE, remote_addr=mr.addr, rkey=mr.rkey)

    def post(self, i: int) -> None:
        self._ends[i % len(self._ends)].qp.post_send(self._wr)

    def counts(self) -> tuple[int, int]:
        stats = [cq.stats for cq in self.cqs]
        return sum(s.events for s in stats), sum(s.arms for s in stats)


class PyverbsCrowd:
    """A channel for each CQ: get_cq_event() fails if the event is another CQ's."""

    def __init__(self, ctx: Any, count: int) -> None:
        from pyverbs import addr, cq, enums, mr, pd, qp, wr

        self.pd = pd.PD(ctx)
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.mr = mr.MR(self.pd, 4096, access)
        self.channels = [cq.CompChannel(ctx) for _ in range(count)]
        self.cqs = [cq.CQ(ctx, DEPTH, None, channel) for channel in self.channels]
        self.unacked = [0] * count
        attr = qp.QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.path_mtu = enums.IBV_MTU_1024
        if GID_INDEX is None:
            attr.ah_attr = addr.AHAttr(port_num=1, dlid=ctx.query_port(1).lid)
        else:
            route = addr.GlobalRoute(dgid=ctx.query_gid(1, GID_INDEX), sgid_index=GID_INDEX)
            attr.ah_attr = addr.AHAttr(port_num=1, is_global=1, gr=route)
        self.qps = []
        for one in self.cqs:
            cap = qp.QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
            init = qp.QPInitAttr(enums.IBV_QPT_UC, scq=one, rcq=one, cap=cap, sq_sig_all=1)
            self.qps.append(qp.QP(self.pd, init))
            attr.dest_qp_num = self.qps[-1].qp_num
            self.qps[-1].to_rts(attr)
        sge = wr.SGE(self.mr.buf, 8, self.mr.lkey)
        self._wr = wr.SendWR(opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=[sge])
        self._wr.set_wr_rdma(self.mr.rkey, self.mr.buf)

    def post(self, i: int) -> None:
        self.qps[i % len(self.qps)].post_send(self._wr)


class IbverbsCrowd:
    def __init__(self, ctx: Any, count: int) -> None:
        import ibverbs

        self.pd = ctx.alloc_pd()
        self.mr = mr = ibverbs_region(self.pd, 4096, ibverbs.AccessFlags.REMOTE_WRITE)
        self.channel = ctx.create_comp_channel()
        self.cqs = [ctx.create_cq(DEPTH, self.channel) for _ in range(count)]
        self.unacked = dict.fromkeys(self.cqs, 0)
        self.qps = []
        for cq in self.cqs:
            init = ibverbs.QPInitAttr(*(cq, cq, ibverbs.QPType.UC, DEPTH, DEPTH), sq_sig_all=True)
            self.qps.append(self.pd.create_qp(init))
            ibverbs_loop_back(ctx, self.qps[-1])
        opcode = ibverbs.WROpcode.RDMA_WRITE
        self._wr = ibverbs.SendWR(0, [mr.sge(8)], opcode, remote_addr=mr.addr, rkey=mr.rkey)

    def post(self, i: int) -> None:
        self.qps[i % len(self.qps)].post_send(self._wr)


def cqnotify() -> Round:
    ctx = Context(DEVICE)
    crowds = {count: Crowd(ctx, count) for count in COUNTS}
    cost = clock_cost()

    def measure(crowd: Crowd) -> Figures:
        get_event = crowd.channel.get_event
        for cq in crowd.cqs:
            cq.req_notify()
        total, (events, arms) = 0, crowd.counts()
        for i in range(EVENTS):
            crowd.post(i)
            settle(1)
            start = clock()
            cq = get_event()
            if cq.unacked == ACK_BATCH:
                cq.ack(ACK_BATCH)
            cq.req_notify()
            (wc,) = cq.poll()
            wc.raise_for_status()
            total += clock() - start - cost
        after = crowd.counts()
        return {
            "ops": EVENTS,
            "total": total,
            "events": after[0] - events,
            "arms": after[1] - arms,
        }

    return lambda: {str(count): measure(crowd) for count, crowd in crowds.items()}


def pyverbs() -> Round:
    from pyverbs import device

    ctx = device.Context(name=DEVICE)
    crowds = {count: PyverbsCrowd(ctx, count) for count in COUNTS}
    cost = clock_cost()

    def measure(crowd: PyverbsCrowd) -> Figures:
        unacked = crowd.unacked
        for cq in crowd.cqs:
            cq.req_notify()
        total = 0
        for i in range(EVENTS):
            crowd.post(i)
            settle(1)
            which = i % len(crowd.cqs)
            start = clock()
            cq = crowd.cqs[which]
            crowd.channels[which].get_cq_event(cq)
            unacked[which] += 1
            if unacked[which] == ACK_BATCH:
                cq.ack_events(ACK_BATCH)
                unacked[which] = 0
            cq.req_notify()
            _, (wc,) = cq.poll(16)
            check(wc)
            total += clock() - start - cost
        return {"ops": EVENTS, "total": total, "events": EVENTS, "arms": EVENTS}

    return lambda: {str(count): measure(crowd) for count, crowd in crowds.items()}


def ibverbs() -> Round:
    ctx = ibverbs_context()
    crowds = {count: IbverbsCrowd(ctx, count) for count in COUNTS}
    cost = clock_cost()

    def measure(crowd: IbverbsCrowd) -> Figures:
        get_event, unacked = crowd.channel.get_cq_event, crowd.unacked
        for cq in crowd.cqs:
            cq.req_notify()
        total = 0
        for i in range(EVENTS):
            crowd.post(i)
            settle(1)
            start = clock()
            cq = get_event()
            unacked[cq] += 1
            if unacked[cq] == ACK_BATCH:
                cq.ack_events(ACK_BATCH)
                unacked[cq] = 0
            cq.req_notify()
            (wc,) = cq.poll(16)
            wc.raise_for_status()
            total += clock() - start - cost
        return {"ops": EVENTS, "total": total, "events": EVENTS, "arms": EVENTS}

    return lambda: {str(count): measure(crowd) for count, crowd in crowds.items()}


class AsyncCrowd(Crowd):
    """A task waits for each CQ, and they are woken in turn.

    Measured is the time from the completion until the task waits again and the loop goes on.
    """

    def __init__(self, ctx: Context, count: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(ctx, count)
        self._loop = loop
        self._tasks = [loop.create_task(self._wait(AsyncCQ(cq))) for cq in self.cqs]
        self._cost = clock_cost()
        loop.run_until_complete(asyncio.sleep(0))

    async def _wait(self, acq: AsyncCQ) -> None:
        while True:
            for wc in await acq.wait():
                wc.raise_for_status()
            self._loop.call_soon(self._next)  # runs when this task waits again

    def _next(self) -> None:
        self._total += clock() - self._start - self._cost
        self._done += 1
        if self._done == EVENTS:
            self._end.set_result(None)
        else:
            self._go()

    def _go(self) -> None:
        self.post(self._done)
        self._start = clock()

    async def measure(self) -> Figures:
        self._end = self._loop.create_future()
        self._total, self._done = 0, 0
        events, arms = self.counts()
        self._go()
        await self._end
        after = self.counts()
        return {
            "ops": EVENTS,
            "total": self._total,
            "events": after[0] - events,
            "arms": after[1] - arms,
        }


def cqnotify_asyncio() -> Round:
    ctx, loop = Context(DEVICE), asyncio.new_event_loop()
    crowds = {count: AsyncCrowd(ctx, count, loop) for count in COUNTS}
    return lambda: {
        str(count): loop.run_until_complete(crowd.measure()) for count, crowd in crowds.items()
    }


BENCHMARK = Benchmark(
    title="An event of one of many CQs on a channel: take it, acknowledge, arm, poll",
    op="event",
    subjects={
        "C": InC("channels"),
        "pyverbs": pyverbs,
        "ibverbs": ibverbs,
        "cqnotify": cqnotify,
        "cqnotify asyncio": cqnotify_asyncio,
    },
    limits=(
        Limit("cqnotify", over="ibverbs", at_most=0.72),
        *(
            Limit(subject, case=str(MANY), over=subject, over_case="1", at_most=1.02)
            for subject in ("cqnotify", "cqnotify asyncio")
        ),
    ),
    seconds=90,
)
