# SPDX-License-Identifier: MIT
"""Closing in every order what a device in software lacks, on the one that stands in for others.

As in tests/base/test_close_matrix.py, the model is what needs what: all else follows from that."""

from __future__ import annotations

import gc
import itertools
import os
import re
import weakref
from collections.abc import Iterator
from typing import ClassVar

import pytest
from fault_world import core

from cqnotify import CQ, MR, PD, QP, SRQ, BusyError, ClosedError, Context, QPType
from cqnotify.hw import (
    DM,
    TD,
    WQ,
    XRCD,
    CounterDescription,
    Flow,
    FlowCounters,
    FlowSpecActionCount,
    OpsWROpcode,
    ParentDomain,
    RwqIndTable,
    RxHashConf,
    RxHashFields,
    RxHashFunction,
    SRQType,
    WQState,
)

HASH = RxHashConf(RxHashFunction.TOEPLITZ, bytes(40), RxHashFields.SRC_IPV4)


class World:
    """One of each of some types, by name, in the order in which they are made."""

    NAMES: ClassVar[tuple[str, ...]]
    USERS: ClassVar[dict[str, set[str]]]  # what keeps it open
    POSTED: ClassVar[set[str]]  # what keeps the MR open, since a receive was posted to it
    ALONG: ClassVar[dict[str, set[str]]] = {}  # what is closed with it

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self.mr = MR(self.pd, 256)
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def open(self, name: str) -> bool:
        return not getattr(self, name).closed

    def post(self) -> None:
        for name in sorted(self.POSTED):
            getattr(self, name).post_recv(self.mr[0:8])

    def why_busy(self, name: str, posted: bool) -> str:
        """What BusyError must say when it is closed now; empty: it closes."""
        if not self.open(name):
            return ""
        kind = type(getattr(self, name)).__name__
        if any(self.open(user) for user in self.USERS.get(name, ())):
            return f"this {kind} is still used by "
        if name == "mr" and posted and any(self.open(queue) for queue in self.POSTED):
            return "this MR is still needed by "
        return ""

    def close(self, name: str, posted: bool) -> None:
        why, thing = self.why_busy(name, posted), getattr(self, name)
        if why:
            with pytest.raises(BusyError, match=re.escape(why)):
                thing.close()
        else:
            thing.close()
        assert thing.closed == (not why)
        assert not any(self.open(other) for other in self.ALONG.get(name, ()) if not why)


class Packets(World):
    NAMES = ("pd", "mr", "cq", "raw", "counters", "flow", "wq", "table", "rss")
    USERS: ClassVar = {
        **{"pd": {"mr", "raw", "wq", "rss"}, "cq": {"raw", "wq"}},
        **{"wq": {"table"}, "table": {"rss"}},
    }
    POSTED: ClassVar = {"raw", "wq"}
    ALONG: ClassVar = {"raw": {"flow"}, "counters": {"flow"}}

    def make(self) -> None:
        self.cq = CQ(self.ctx, 16)
        self.raw = QP(self.pd, QPType.RAW_PACKET, send_cq=self.cq)
        self.raw.to_init()
        self.counters = FlowCounters(self.ctx)
        self.counters.attach(CounterDescription.PACKETS)
        self.flow = Flow(self.raw, [FlowSpecActionCount(self.counters)])
        self.wq = WQ(self.pd, self.cq)
        self.wq.modify(wq_state=WQState.RDY)
        self.table = RwqIndTable(self.ctx, [self.wq, self.wq])
        self.rss = QP(self.pd, QPType.RAW_PACKET, rwq_ind_tbl=self.table, rx_hash_conf=HASH)


class Shared(World):
    """XRC, and tags."""

    NAMES = ("pd", "mr", "cq", "xrcd", "srq", "receiver", "sender", "tm")
    USERS: ClassVar = {
        **{"pd": {"mr", "srq", "sender", "tm"}, "cq": {"srq", "sender", "tm"}},
        "xrcd": {"srq", "receiver"},
    }
    POSTED: ClassVar = {"srq", "tm"}

    def make(self) -> None:
        self.cq = CQ(self.ctx, 16)
        self.xrcd = XRCD(self.ctx)
        self.srq = SRQ(self.pd, 8, srq_type=SRQType.XRC, xrcd=self.xrcd, cq=self.cq)
        self.receiver = QP(None, QPType.XRC_RECV, xrcd=self.xrcd)
        self.sender = QP(self.pd, QPType.XRC_SEND, send_cq=self.cq)
        self.tm = SRQ(self.pd, 8, srq_type=SRQType.TM, cq=self.cq, max_num_tags=2, max_ops=2)

    def post(self) -> None:
        super().post()
        self.tm.post_ops(OpsWROpcode.TAG_ADD, sg=self.mr[8:16], tag=1)


class Memory(World):
    NAMES = ("pd", "mr", "td", "domain", "cq", "qp", "dm", "of_dm", "of_fd", "null")
    USERS: ClassVar = {
        **{"pd": {"mr", "domain"}, "td": {"domain"}, "dm": {"of_dm"}, "cq": {"qp"}},
        "domain": {"cq", "qp", "of_dm", "of_fd", "null"},
    }
    POSTED: ClassVar = {"qp"}

    def make(self) -> None:
        self.td = TD(self.ctx)
        self.domain = ParentDomain(self.pd, self.td)
        self.cq = CQ(self.ctx, 16, parent_domain=self.domain)
        self.qp = QP(self.domain, QPType.RC, send_cq=self.cq)
        self.qp.to_init()
        self.dm = DM(self.ctx, 4096)
        self.of_dm = MR.from_dm(self.domain, self.dm)
        fd = os.memfd_create("device")
        os.ftruncate(fd, 4096)
        self.of_fd = MR.from_dmabuf(self.domain, fd, 4096)
        os.close(fd)
        self.null = MR.null(self.domain)


WORLDS = pytest.mark.parametrize("kind", [Packets, Shared, Memory])


@pytest.fixture
def able(ctx: Context) -> Iterator[Context]:
    core.use_fake_device(True)
    handles = core.live_handles()
    with Context(ctx.name) as context:
        yield context
    assert core.live_handles() == handles


@WORLDS
@pytest.mark.parametrize("posted", [False, True])
def test_what_is_needed_is_busy_and_the_rest_closes_in_any_order(
    able: Context, kind: type[World], posted: bool
) -> None:
    """Every ordered pair first, then all as they were made, and at last from the latest on."""
    handles = core.live_handles()
    for pair in itertools.permutations(kind.NAMES, 2):
        w = kind(able)
        if posted:
            w.post()
        for name in (*pair, *kind.NAMES, *reversed(kind.NAMES)):
            w.close(name, posted)
        assert core.live_handles() == handles


@WORLDS
def test_a_context_closes_all_of_it(able: Context, kind: type[World]) -> None:
    with Context(able.name) as own:
        w = kind(own)
        w.post()
    assert not any(w.open(name) for name in kind.NAMES)
    for name in kind.NAMES:
        with pytest.raises(ClosedError):
            getattr(w, name).pointer  # noqa: B018


@WORLDS
def test_references_that_go_in_any_order_close_everything(able: Context, kind: type[World]) -> None:
    handles = core.live_handles()
    for pair in itertools.permutations(kind.NAMES, 2):
        w = kind(able)
        w.post()
        gone = [weakref.ref(getattr(w, name)) for name in kind.NAMES]
        for name in (*pair, *(n for n in kind.NAMES if n not in pair)):
            delattr(w, name)
        assert not any(ref() for ref in gone), pair
        assert core.live_handles() == handles, pair


@WORLDS
def test_a_world_in_a_cycle_is_collected_in_one_go(able: Context, kind: type[World]) -> None:
    """The collector finalizes in an order of its own, and nothing is reported of that."""
    handles = core.live_handles()
    for name in kind.NAMES:
        w = kind(able)
        w.post()
        if hasattr(getattr(w, name), "user_data"):
            getattr(w, name).user_data = w
        gone = [weakref.ref(getattr(w, n)) for n in kind.NAMES]
        del w
        gc.collect()
        gc.collect()
        assert not any(ref() for ref in gone), name
        assert core.live_handles() == handles, name
