# SPDX-License-Identifier: MIT
"""The whole public API in random order, against a model, and with random arguments.

`Machine` makes, connects, posts, arms, waits, polls, resizes, breaks, closes and forgets objects of
a real device, and a model beside it knows what must come of each call: which work requests complete
and what they bring, how many events are owed, what is in the way of a close, what is closed.
`Barrage` calls everything with anything: what it may raise is listed, and nothing else may happen.

The short runs are the same in each run. The long one: ./lab test -m soak tests/soak/test_fuzz.py,
with CQNOTIFY_FUZZ_CALLS and CQNOTIFY_FUZZ_SEED.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import gc
import inspect
import ipaddress
import os
import random
import select
import sys
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support import DEADLINE, GRH, until

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AsyncEvent,
    AsyncEventError,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    QPAddress,
    QPCap,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
    devices,
)
from cqnotify.aio import AsyncCQ

MANY = int(os.environ.get("CQNOTIFY_FUZZ_CALLS", "100000"))
SEED = int(os.environ.get("CQNOTIFY_FUZZ_SEED", "20240229"))
SHRINK = "CQNOTIFY_FUZZ_SHRINK" in os.environ  # then with -o faulthandler_timeout=0
NO_PROGRESS = 120.0  # seconds: then all stacks are shown, and it ends
RSS_GROWTH = 8 << 20

COMMON = settings(
    database=None,
    deadline=None,
    print_blob=False,
    # To shrink an example in which something never comes takes very long.
    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],  # the lab's guest is emulated
)


@dataclass
class Tally:
    """How often each method was called, and how often it did not refuse."""

    made: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.made.total()

    def __str__(self) -> str:
        done = self.done.total()
        lines = [f"{self.calls} calls, {done} ({100 * done // max(1, self.calls)} %) succeeded"]
        lines += [f"  {self.made[k]:7} {self.done[k]:7}  {k}" for k in sorted(self.made)]
        return "\n".join(lines)


def ours() -> Counter[str]:
    """The objects of the package that exist and that the collector knows."""
    gc.collect()
    names = (
        "Context",
        "PD",
        "MR",
        "SGE",
        "CompletionChannel",
        "CQ",
        "SRQ",
        "QP",
        "AH",
        "AsyncEvent",
        "MW",
        "SendWR",
        "RecvWR",
        "AsyncCQ",
        "Request",
    )
    found = Counter(type(o).__name__ for o in gc.get_objects() if type(o).__module__ == "cqnotify")
    found.update(
        type(o).__name__ for o in gc.get_objects() if type(o) in (QP, SRQ, Context, AsyncCQ)
    )
    return Counter({name: found[name] for name in names if found[name]})


def descriptors() -> set[tuple[str, str]]:
    """This process' files; some are open while they are listed, and gone when looked at."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


# ---- a model of what there is ---------------------------------------------------------------

SLOT, SLOTS, PAYLOAD = 128, 96, 64
IN_FLIGHT = 16  # of one queue
SEND_OPS = {
    "send": WROpcode.SEND,
    "imm": WROpcode.SEND_WITH_IMM,
    "write": WROpcode.RDMA_WRITE,
    "write_imm": WROpcode.RDMA_WRITE_WITH_IMM,
    "read": WROpcode.RDMA_READ,
}
WC_OPS = {
    "send": WCOpcode.SEND,
    "imm": WCOpcode.SEND,
    "write": WCOpcode.RDMA_WRITE,
    "write_imm": WCOpcode.RDMA_WRITE,
    "read": WCOpcode.RDMA_READ,
}


@dataclass(eq=False, repr=False)
class Thing:
    """An object of the package, and what the model knows of it."""

    kind: str
    obj: Any
    uses: list[Thing] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.ref = weakref.ref(self.obj)

    def __repr__(self) -> str:
        return f"{self.obj!r}" if self.obj is not None else f"<forgotten {self.kind}>"

    @property
    def open(self) -> bool:
        return not self.closed and self.ref() is not None


@dataclass(eq=False, repr=False)
class Region(Thing):
    free: list[int] = field(default_factory=lambda: list(range(SLOTS)))


@dataclass(eq=False, repr=False)
class Queue(Thing):
    """A CQ."""

    got: int = 0  # events
    acked: int = 0
    arms: int = 0
    polls: int = 0
    completions: int = 0
    load: set[Work] = field(default_factory=set)  # what may have a place in it


@dataclass(eq=False, repr=False)
class Pair(Thing):
    """A QP."""

    type: QPType = QPType.RC
    state: str = "RTS"
    healthy: bool = True  # so is its peer: everything succeeds
    peer: Pair | None = None
    ah: Thing | None = None
    inline: bool = False
    all_signaled: bool = False
    num: int = 0
    sq: deque[Work] = field(default_factory=deque)
    rq: deque[Work] = field(default_factory=deque)
    unmatched: deque[Work] = field(default_factory=deque)  # receives that no send will fill

    def __repr__(self) -> str:
        return f"{self.obj!r} in {self.state}, {'' if self.healthy else 'not '}healthy"

    @property
    def pd(self) -> Thing:
        return self.uses[0]

    @property
    def scq(self) -> Queue:
        return self.uses[1]  # type: ignore[return-value]

    @property
    def rcq(self) -> Queue:
        return self.uses[2]  # type: ignore[return-value]


@dataclass(eq=False, repr=False)
class Work:
    """A work request."""

    wr_id: int
    qp: Pair
    op: str
    mr: Region | None
    slot: int
    length: int
    signaled: bool = True
    must: bool = True  # complete
    done: bool = False
    data: bytes | None = None  # that a receive or a read must bring
    imm: int | None = None
    far: tuple[Region, int] | None = None  # the slot at the peer
    skipped: bool = False  # nothing more will be heard of it
    ah: Thing | None = None
    posted_in: str = ""
    dropped: bool = False  # its QP was reset or closed

    def __repr__(self) -> str:
        signaled = "signaled" if self.signaled else "unsignaled"
        peer = f"peer {self.qp.peer}"
        return f"{signaled} {self.op} {self.wr_id} on {self.qp}, posted {self.posted_in}, {peer}"


class Machine(RuleBasedStateMachine):
    """Real objects, and the model. Rules take numbers, and choose by them among what there is.

    What a rule does depends on what the device did before, so that preconditions, which decide
    what is drawn next, could not be replayed: a rule that finds nothing to work on makes it.
    """

    tally = Tally()
    name: str | None = None
    progress: Callable[[int], None] = staticmethod(lambda calls: None)

    def __init__(self) -> None:
        super().__init__()
        self.wr_id = 0
        self.works: dict[int, Work] = {}
        self.before = descriptors()
        self.start()

    # -- calls --

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.tally.made[name] += 1
        result = function(*args, **kwargs)
        self.tally.done[name] += 1
        return result

    def refuse(
        self, name: str, kind: Any, match: str, function: Callable[..., Any], *args: Any, **kw: Any
    ) -> BaseException:
        self.tally.made[name] += 1
        with pytest.raises(kind, match=match) as caught:
            function(*args, **kw)
        error: BaseException = caught.value
        assert str(error), name
        return error

    # -- the world --

    def start(self) -> None:
        self.ctx = self.call("Context()", Context, self.name)
        self.things: list[Thing] = []
        self.works = {}
        entry = self.ctx.find_gid()
        self.gid, self.sgid_index = entry.gid, entry.index
        self.array = WCArray(32)

    def some(self, kind: str, n: int) -> Thing:
        """The n-th that is open and that we still have, or a new one."""
        found = [t for t in self.things if t.kind == kind and t.obj is not None and not t.closed]
        return found[n % len(found)] if found else self.make(kind, n)

    def live(self, kind: str) -> list[Any]:
        return [t for t in self.things if t.kind == kind and t.open]

    def make(self, kind: str, n: int) -> Any:
        if kind == "PD":
            thing = Thing(kind, self.call("PD()", PD, self.ctx))
        elif kind == "CompletionChannel":
            thing = Thing(kind, self.call("CompletionChannel()", CompletionChannel, self.ctx))
        elif kind == "CQ":
            return self.make_cq(n)
        elif kind == "MR":
            return self.make_mr(self.some("PD", n), n)
        elif kind == "SRQ":
            pd = self.some("PD", n)
            thing = Thing(kind, self.call("SRQ()", SRQ, pd.obj, 1 + n % 40), [pd])
        elif kind == "AH":
            return self.make_ah(self.some("PD", n))
        else:
            return self.make_pair(n, QPType.RC)
        self.things.append(thing)
        return thing

    def make_cq(self, n: int) -> Queue:
        channel = self.some("CompletionChannel", n) if n % 5 else None
        options: dict[str, Any] = {} if channel is None else {"channel": channel.obj}
        if n % 3 == 0:
            options["wc_flags"] = WCExFlags.BYTE_LEN | WCExFlags.IMM
        cq = self.call("CQ()", CQ, self.ctx, 256, user_data=n, **options)
        thing = Queue("CQ", cq, [channel] if channel else [])
        self.things.append(thing)
        return thing

    def make_mr(self, pd: Thing, n: int) -> Region:
        buffer = SLOT * SLOTS if n % 2 else bytearray(SLOT * SLOTS)
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
        thing = Region("MR", self.call("MR()", MR, pd.obj, buffer, access=access), [pd])
        self.things.append(thing)
        return thing

    def make_ah(self, pd: Thing) -> Thing:
        ah = self.call("AH()", AH, pd.obj, dgid=self.gid, sgid_index=self.sgid_index)
        thing = Thing("AH", ah, [pd])
        self.things.append(thing)
        return thing

    def make_pair(self, n: int, qp_type: QPType) -> Pair:
        both = [self.make_qp(n + i, qp_type) for i in (0, 3)]
        for a, b in (both, both[::-1]):
            a.peer = b
        self.connect(both[0])
        return both[0]

    def make_qp(self, n: int, qp_type: QPType) -> Pair:
        pd = self.some("PD", n)
        scq, rcq = self.some("CQ", n), self.some("CQ", n // 2)
        options: dict[str, Any] = {"max_inline_data": PAYLOAD} if n % 2 else {}
        if n % 7 == 0:
            options["sq_sig_all"] = True
        if rcq is not scq:
            options["recv_cq"] = rcq.obj
        qp = self.call(
            "QP()",
            QP,
            pd.obj,
            qp_type,
            send_cq=scq.obj,
            max_send_wr=2 * IN_FLIGHT,
            max_recv_wr=2 * IN_FLIGHT,
            max_send_sge=2,
            **options,
        )
        thing = Pair("QP", qp, [pd, scq, rcq], type=qp_type)
        thing.inline = "max_inline_data" in options
        thing.all_signaled = "sq_sig_all" in options
        thing.num = qp.qp_num
        self.things.append(thing)
        return thing

    def connect(self, a: Pair) -> None:
        b = a.peer
        assert b is not None
        for one, other in ((a, b), (b, a)):
            options: dict[str, Any] = {}
            if a.type != QPType.UD:
                options["access"] = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
            if a.type == QPType.RC:
                options |= {"timeout": 12, "retry_cnt": 6}
            address = self.call("QP.address", other.obj.address)
            remote = () if a.type == QPType.UD else (address,)
            self.call("QP.connect", one.obj.connect, *remote, **options)
            one.state, one.healthy = "RTS", True

    # -- work requests --

    def slot(self, pd: Thing, n: int) -> tuple[Region, int]:
        """Memory that nothing else uses now."""
        regions = [m for m in self.live("MR") if m.uses[0] is pd and m.obj and m.free]
        mr = regions[n % len(regions)] if regions else self.make_mr(pd, n)
        return mr, mr.free.pop()

    def new_work(self, qp: Pair, op: str, length: int, n: int) -> Work:
        self.wr_id += 1
        mr, slot = self.slot(qp.pd, n)
        work = Work(self.wr_id, qp, op, mr, slot, length)
        return work

    def posted(self, work: Work) -> None:
        self.works[work.wr_id] = work
        work.posted_in = f"{work.qp.state} {'+' if work.qp.healthy else '-'}"
        recv = work.op == "recv"
        (work.qp.rq if recv else work.qp.sq).append(work)
        (work.qp.rcq if recv else work.qp.scq).load.add(work)

    def let_go(self, work: Work) -> None:
        for place in ((work.mr, work.slot), work.far):
            if place is not None and place[0] is not None:
                place[0].free.append(place[1])
        work.far = work.mr = work.ah = None

    def room(self, qp: Pair, n: int) -> bool:
        """Whether another work request has room everywhere; makes some."""
        for cq in (qp.scq, qp.rcq):
            if len(cq.load) > 60:
                self.poll_one(cq, n, 256)
        queues_ok = len(qp.sq) < IN_FLIGHT and len(qp.rq) < IN_FLIGHT
        return queues_ok and len(qp.scq.load) <= 60 and len(qp.rcq.load) <= 60

    def recv(self, qp: Pair, n: int) -> None:
        work = self.new_work(qp, "recv", SLOT, n)
        assert work.mr is not None
        at = work.slot * SLOT
        sg = work.mr.obj[at : at + SLOT]
        args, kwargs = self.form("RecvWR()", RecvWR, sg, {"wr_id": work.wr_id}, n)
        if qp.state == "RESET":
            self.refuse(
                "QP.post_recv", VerbsError, "is in RESET", qp.obj.post_recv, *args, **kwargs
            )
            self.let_go(work)
            return
        self.call("QP.post_recv", qp.obj.post_recv, *args, **kwargs)
        work.must = False  # until it is matched by a send, or flushed
        self.posted(work)
        qp.unmatched.append(work)

    def form(
        self, name: str, make: Any, sg: Any, kwargs: dict[str, Any], n: int
    ) -> tuple[list[Any], dict[str, Any]]:
        """By arguments, as a request that is built before, or as a list of one."""
        if n % 4 < 2:
            return [sg], kwargs
        wr = self.call(name, make, sg, **kwargs)
        return [wr if n % 4 == 2 else [wr]], {}

    def send(self, qp: Pair, op: str, n: int) -> None:
        peer = qp.peer
        assert peer is not None
        connected = qp.type != QPType.UD
        if not connected and op not in ("send", "imm"):
            op = "send"
        if qp.type == QPType.UC and op == "read":
            op = "write"
        alive = qp.healthy and peer.open and peer.obj is not None
        if op in ("send", "imm", "write_imm") and alive and not peer.unmatched:
            self.recv(peer, n)
        length = n % (PAYLOAD + 1) if qp.type != QPType.RC or n % 4 else PAYLOAD
        work = self.new_work(qp, op, length, n)
        assert work.mr is not None
        at = work.slot * SLOT
        data = random.Random(work.wr_id).randbytes(length)
        flags = SendFlags(0)
        kwargs: dict[str, Any] = {}
        if n % 3 or len(qp.sq) > IN_FLIGHT // 2:
            flags |= SendFlags.SIGNALED
        if n % 5 == 0 and op in ("send", "imm", "write_imm"):
            flags |= SendFlags.SOLICITED
        if op in ("imm", "write_imm"):
            kwargs["imm_data"] = work.imm = random.Random(work.wr_id).getrandbits(32)
        if op in ("write", "write_imm", "read"):
            # Of a peer that is gone any address will do.
            far = self.slot(peer.pd if peer.open and peer.pd.obj else qp.pd, n)
            work.far = far
            kwargs |= {"remote_addr": far[0].obj.addr + far[1] * SLOT, "rkey": far[0].obj.rkey}
            if op == "read":
                self.call("MR.write", far[0].obj.write, data, far[1] * SLOT)
        if not connected:
            ah = qp.ah
            if ah is None or not ah.open or ah.obj is None:
                qp.ah = ah = self.make_ah(qp.pd)
            work.ah = ah
            kwargs |= {"ah": ah.obj, "remote_qpn": peer.num, "remote_qkey": 0x11111111}
        if op != "read":
            self.call("MR.write", work.mr.obj.write, data, offset=at)
        sg: Any = work.mr.obj[at : at + length]
        if qp.inline and op != "read" and n % 2:
            flags |= SendFlags.INLINE
            sg = (data, bytearray(data), sg)[n % 3]
        elif length >= 2 and n % 7 == 0:
            sg = [work.mr.obj[at : at + 1], work.mr.obj[at + 1 : at + length]]
        work.signaled = bool(flags & SendFlags.SIGNALED) or qp.all_signaled
        work.must = work.signaled and (qp.healthy or qp.type == QPType.RC)
        kwargs |= {"wr_id": work.wr_id, "opcode": SEND_OPS[op], "send_flags": flags}
        args, kwargs = self.form("SendWR()", SendWR, sg, kwargs, n // 3)
        if qp.state == "RESET":
            self.refuse(
                "QP.post_send", VerbsError, "is in RESET", qp.obj.post_send, *args, **kwargs
            )
            self.let_go(work)
            return
        self.call("QP.post_send", qp.obj.post_send, *args, **kwargs)
        self.posted(work)
        if op == "read":
            work.data = data
        if op in ("send", "imm", "write_imm") and alive and peer.unmatched:
            there = peer.unmatched.popleft()
            there.must = True
            there.imm = work.imm
            there.data = b"" if op == "write_imm" else data
            there.length = length  # as its completion tells
        if op in ("write", "write_imm"):
            work.data = data

    def completed(self, cq: Queue, wr_id: int, wc: Any, status: Any) -> None:
        """A completion was handed out."""
        assert wr_id in self.works, f"completion of {wr_id}, which nobody posted"
        work = self.works[wr_id]
        qp = work.qp
        assert not work.done, f"{wr_id} completed twice"
        assert cq is (qp.rcq if work.op == "recv" else qp.scq), "on the wrong CQ"
        work.done = True
        cq.load.discard(work)
        cq.completions += 1
        if wc is not None:
            assert wc.qp_num == qp.num
            assert wc.ok == (status == WCStatus.SUCCESS)
        queue = qp.rq if work.op == "recv" else qp.sq
        if status == WCStatus.SUCCESS:
            self.succeeded(work, wc)
        else:
            assert not qp.healthy or work.dropped, f"{work} failed: {wc or status}"
            assert wc is None or (wc.opcode is None and wc.byte_len is None)
        if work in queue:
            while queue:
                first = queue.popleft()
                if first is not work:
                    assert first.done or not first.must or not qp.healthy, f"{first} was overtaken"
                    if first.done or first.signaled:
                        continue
                    first.skipped = True
                    cq.load.discard(first)
                    self.let_go(first)
                    continue
                break
        with contextlib.suppress(ValueError):
            qp.unmatched.remove(work)
        self.let_go(work)

    def succeeded(self, work: Work, wc: Any) -> None:
        if wc is not None:
            if work.op == "recv":
                assert wc.opcode in (WCOpcode.RECV, WCOpcode.RECV_RDMA_WITH_IMM)
                if work.data is not None:
                    assert wc.imm_data == work.imm
                    extra = GRH if work.qp.type == QPType.UD else 0
                    assert wc.byte_len == work.length + extra
            else:
                assert wc.opcode == WC_OPS[work.op]
        if work.data is None:
            return
        place: tuple[Region, int] | None = None
        if work.op == "recv" or work.op == "read":
            assert work.mr is not None
            place = (work.mr, work.slot)
        elif work.op in ("write", "write_imm") and work.qp.type == QPType.RC:
            place = work.far
        if place is None or place[0].obj is None or place[0].closed:
            return
        at = place[1] * SLOT + (GRH if work.op == "recv" and work.qp.type == QPType.UD else 0)
        got = self.call("MR.read", place[0].obj.read, len(work.data), at)
        assert got == work.data, f"{work} brought {got!r}"

    def drop_work(self, qp: Pair) -> None:
        """Its requests may, but need not complete: it was reset or closed."""
        for work in (*qp.sq, *qp.rq):
            work.must, work.dropped = False, True
            work.mr = work.far = work.ah = work.data = None  # its slots are not used again
        qp.sq.clear()
        qp.rq.clear()
        qp.unmatched.clear()

    def spoil(self, qp: Pair) -> None:
        """From now on what it does can fail, and what its peer does."""
        for one in (qp, qp.peer):
            if one is not None and one.healthy:
                one.healthy = False
                for work in (*one.rq, *one.sq):
                    # Only what is flushed, or fails, must be heard of.
                    if work.op == "recv" or one.type != QPType.RC:
                        work.must = False

    # -- polling --

    def poll_one(self, cq: Queue, form: int, n: int) -> int:
        """One call of one kind; returns how many came."""
        cq.polls += 1
        form %= 3
        if form == 0:
            wcs = self.call("CQ.poll", cq.obj.poll, n)
            for wc in wcs:
                assert repr(wc).startswith("<WorkCompletion")
                self.completed(cq, wc.wr_id, wc, wc.status)
        elif form == 1:
            n = 32
            count = self.call("CQ.poll_into", cq.obj.poll_into, self.array)
            assert count == len(self.array)
            wcs = [self.array[i] for i in range(count)]
            for wc in wcs:
                self.completed(cq, wc.wr_id, wc, wc.status)
        else:
            try:
                wcs = self.call("CQ.poll_ids", cq.obj.poll_ids, max_entries=n)
            except CompletionError as e:
                self.completed(cq, e.wr_id, e.wc, e.status)
                return 1
            for wr_id in wcs:
                self.completed(cq, wr_id, None, WCStatus.SUCCESS)
        assert len(wcs) <= n
        if not wcs:  # what is not in a queue any more will not come any more
            cq.load = {w for w in cq.load if w in w.qp.sq or w in w.qp.rq}
        return len(wcs)

    def drain(self, cq: Queue) -> None:
        """Without counting calls that bring nothing, of which there can be any number."""
        while wcs := cq.obj.poll(64):
            cq.polls += 1
            self.tally.made["CQ.poll"] += 1
            self.tally.done["CQ.poll"] += 1
            for wc in wcs:
                self.completed(cq, wc.wr_id, wc, wc.status)
        cq.polls += 1

    def owed(self) -> list[Work]:
        return [w for w in self.works.values() if w.must and not w.done and not w.skipped]

    def settle(self) -> None:
        """Everything that must complete does."""

        def all_in() -> bool:
            for cq in self.live("CQ"):
                if cq.obj is not None:
                    self.drain(cq)
            return not self.owed()

        end = time.monotonic() + DEADLINE
        while not all_in():
            assert time.monotonic() < end, f"never completed: {self.owed()[:5]}"
            time.sleep(0.001)

    # -- closing --

    def users(self, thing: Thing) -> list[Thing]:
        return [t for t in self.things if t.open and thing in t.uses]

    def pinned(self, thing: Thing) -> tuple[bool, bool]:
        """Whether work requests certainly, or possibly, need this MR or AH."""
        possibly = certainly = False
        for qp in self.live("QP"):
            for work in (*qp.sq, *qp.rq):
                possibly = possibly or thing in (work.mr, work.ah)
            for work in qp.unmatched:
                certainly = certainly or (qp.healthy and work.mr is thing)
        return certainly, possibly or certainly

    def mark_closed(self, thing: Thing) -> None:
        thing.closed = True
        if isinstance(thing, Pair):
            self.drop_work(thing)
            self.spoil(thing)
            thing.state = "closed"
        if isinstance(thing, Region):
            # Who writes there from afar will be refused.
            for qp in self.live("QP"):
                if any(w.far and w.far[0] is thing for w in qp.sq):
                    self.spoil(qp)
        if isinstance(thing, Queue):
            thing.load.clear()

    def close_one(self, thing: Thing) -> bool:
        name = f"{thing.kind}.close"
        users = Counter(t.kind for t in self.users(thing))
        if users:
            error = self.refuse(name, BusyError, "is still used by", thing.obj.close)
            for kind, count in users.items():
                assert f"{count} {kind}{'s' if count > 1 else ''}" in str(error), (users, error)
            assert error.errno == errno.EBUSY  # type: ignore[attr-defined]
            assert not thing.obj.closed
            return False
        certainly, possibly = self.pinned(thing) if thing.kind in ("MR", "AH") else (False, False)
        if certainly:
            self.refuse(name, BusyError, "work requests? in flight", thing.obj.close)
            return False
        busy = False
        with contextlib.suppress(BusyError):
            busy = True
            self.call(name, thing.obj.close)
            busy = False
        if busy:
            assert possibly, f"{thing} is not needed, and can't be closed"
            self.refuse(name, BusyError, "work requests? in flight", thing.obj.close)
            return False
        assert thing.obj.closed
        self.call(name, thing.obj.close)
        self.mark_closed(thing)
        return True

    # -- rules --

    N = st.integers(0, 999)

    @rule(n=N, kind=st.sampled_from(["PD", "CompletionChannel", "CQ", "SRQ", "MR", "AH"]))
    def make_something(self, n: int, kind: str) -> None:
        if len(self.live(kind)) < 6:
            self.make(kind, n)

    @rule(n=N, qp_type=st.sampled_from([QPType.RC, QPType.RC, QPType.UC, QPType.UD]))
    def make_two_qps(self, n: int, qp_type: QPType) -> None:
        if len(self.live("QP")) < 10:
            self.make_pair(n, qp_type)

    @rule(n=N, count=st.integers(1, 14))
    def post_receives(self, n: int, count: int) -> None:
        qp: Any = self.some("QP", n)
        for i in range(count):
            if qp.state != "closed" and self.room(qp, n):
                self.recv(qp, n + i)

    @rule(n=N, count=st.integers(1, 14), op=st.sampled_from([*SEND_OPS, "send", "send"]))
    def post_sends(self, n: int, count: int, op: str) -> None:
        qp: Any = self.some("QP", n)
        for i in range(count):
            if self.room(qp, n) and (not qp.peer.open or not qp.peer.obj or self.room(qp.peer, n)):
                self.send(qp, op, n + i)

    @rule(n=N, form=st.integers(0, 2), count=st.sampled_from([1, 2, 16, 64, 1000]))
    def poll(self, n: int, form: int, count: int) -> None:
        self.poll_one(self.some("CQ", n), form, count)  # type: ignore[arg-type]

    @rule(n=N, solicited=st.booleans())
    def arm(self, n: int, solicited: bool) -> None:
        cq: Any = self.some("CQ", n)
        if not cq.uses:
            self.refuse("CQ.req_notify", ValueError, "without a channel", cq.obj.req_notify)
            return
        self.call("CQ.req_notify", cq.obj.req_notify, solicited)
        cq.arms += 1

    @rule(n=N, solicited=st.booleans())
    def prepare_to_sleep(self, n: int, solicited: bool) -> None:
        cq: Any = self.some("CQ", n)
        if not cq.uses:
            self.refuse("CQ.safe_to_sleep", ValueError, "without a channel", cq.obj.safe_to_sleep)
            return
        before = cq.obj.stats
        safe = self.call("CQ.safe_to_sleep", cq.obj.safe_to_sleep, solicited)
        after = cq.obj.stats
        cq.polls, cq.arms = after.polls, after.arms
        assert after.polls - before.polls == 1 + (after.arms - before.arms)
        if not safe:
            assert self.poll_one(cq, n, 16) > 0

    def event(self, cq_obj: Any) -> Queue:
        """An event was got."""
        cq = next(t for t in self.things if t.kind == "CQ" and t.obj is cq_obj)
        assert isinstance(cq, Queue)
        assert cq.open
        cq.got += 1
        return cq

    @rule(n=N, how=st.integers(0, 4))
    def get_event(self, n: int, how: int) -> None:
        channel = self.some("CompletionChannel", n)
        obj = channel.obj
        got: Any = None
        error: Exception | None = None
        try:
            if how == 0:
                got = self.call("CompletionChannel.try_get_event", obj.try_get_event)
            elif how in (1, 2):
                got = self.call("CompletionChannel.get_event", obj.get_event, (how - 1) / 1000)
            elif how == 3 and select.select([obj], [], [], 0)[0]:
                got = self.call("CompletionChannel.__next__", next, iter(obj))
            else:
                self.call("CompletionChannel.interrupt", obj.interrupt)
                self.refuse("CompletionChannel.get_event", InterruptedError, ".", obj.get_event)
        except (TimeoutError, AsyncEventError) as e:
            error = e
        if isinstance(error, TimeoutError):
            assert how in (1, 2)
        elif error is not None:
            assert not all(q.healthy for q in self.live("QP")), error
        if got is not None:
            self.event(got)

    @rule(n=N, count=st.integers(0, 4))
    def ack(self, n: int, count: int) -> None:
        queues = [q for q in self.live("CQ") if q.obj is not None]
        queues = [q for q in queues if q.got > q.acked] or queues
        if not queues:
            return
        cq = queues[n % len(queues)]
        if count > cq.got - cq.acked:
            self.refuse("CQ.ack", ValueError, "unacked", cq.obj.ack, count)
        else:
            self.call("CQ.ack", cq.obj.ack, count)
            cq.acked += count

    @rule(n=N, cqe=st.sampled_from([128, 200, 256, 500, 1000]), moderate=st.booleans())
    def resize(self, n: int, cqe: int, moderate: bool) -> None:
        cq: Any = self.some("CQ", n)
        self.call("CQ.resize", cq.obj.resize, cqe)
        assert cq.obj.cqe >= cqe
        arms = cq.obj.stats.arms  # once more, if it was armed
        assert arms in ((cq.arms, cq.arms + 1) if cq.uses and cq.arms else (0,))
        cq.arms = arms
        if moderate:
            self.refuse("CQ.modify", VerbsError, "moderation", cq.obj.modify, n % 100, 10)

    @rule(n=N, state=st.sampled_from([QPState.ERR, QPState.RESET]))
    def stop_a_qp(self, n: int, state: QPState) -> None:
        qp: Any = self.some("QP", n)
        if n % 3 == 0:  # most of them shall work
            return
        if qp.state == "RESET" and state == QPState.ERR:
            return  # no such transition
        flushes = qp.healthy
        self.spoil(qp)
        self.call("QP.modify", qp.obj.modify, qp_state=state)
        if state == QPState.RESET:
            self.drop_work(qp)
            qp.state = "RESET"
            assert qp.obj.outstanding == (0, 0)
        elif qp.state != "ERR":
            qp.state = "ERR"
            for work in qp.rq:
                work.must = flushes
        assert qp.obj.state == state

    @rule(n=N)
    def connect_again(self, n: int) -> None:
        stopped = [q for q in self.live("QP") if not q.healthy and q.obj is not None]
        stopped = [q for q in stopped if q.peer.open and q.peer.obj is not None]
        if not stopped:
            return
        qp = stopped[n % len(stopped)]
        for one in (qp, qp.peer):
            if one.state != "RESET":
                self.call("QP.modify", one.obj.modify, qp_state=QPState.ERR)
            self.call("QP.modify", one.obj.modify, qp_state=QPState.RESET)
            self.drop_work(one)
        self.connect(qp)

    @rule(
        n=N, kind=st.sampled_from(["QP", "QP", "CQ", "SRQ", "MR", "AH", "CompletionChannel", "PD"])
    )
    def close_something(self, n: int, kind: str) -> None:
        if n % 2 or kind not in ("QP", "PD"):
            self.close_one(self.some(kind, n))

    @rule(n=N, kind=st.sampled_from(["QP", "MR", "AH", "CQ"]))
    def forget_something(self, n: int, kind: str) -> None:
        found = [t for t in self.live(kind) if t.obj is not None and not self.users(t)]
        if not found or (kind == "QP" and n % 2):
            return
        thing = found[n % len(found)]
        certainly, possibly = self.pinned(thing) if kind in ("MR", "AH") else (False, False)
        while self.ctx.try_get_async_event() is not None:
            pass  # one that waits holds its QP
        thing.obj = None
        gc.collect()
        alive = thing.ref() is not None
        assert alive or not certainly, f"{thing} went while a work request needs it"
        assert not alive or possibly, f"{thing} is not needed, and stayed"
        if not alive:
            self.mark_closed(thing)
            if isinstance(thing, Queue):
                thing.got = thing.acked = 0

    @rule(n=N)
    def use_what_is_closed(self, n: int) -> None:
        closed = [t for t in self.things if t.closed and t.obj is not None]
        if not closed:
            return
        thing = closed[n % len(closed)]
        calls = CLOSED_CALLS[thing.kind]
        name = sorted(calls)[n % len(calls)]
        self.refuse(f"{thing.kind}.{name}", ClosedError, "is closed", calls[name], thing.obj)
        self.call(f"{thing.kind}.close", thing.obj.close)
        assert repr(thing.obj) == f"<{thing.kind} closed>"

    @rule(n=N, solicited=st.booleans())
    def sleep_until_a_message_comes(self, n: int, solicited: bool) -> None:
        able = [
            q
            for q in self.live("QP")
            if q.healthy and q.obj is not None and q.rcq.uses and q.peer.obj is not None
        ]
        if not able:
            return
        qp = able[n % len(able)]
        cq, channel = qp.rcq, qp.rcq.uses[0]
        if channel.obj is None or cq.obj is None or not self.room(qp, n):
            return
        if not self.room(qp.peer, n):
            return
        safe = False
        end = time.monotonic() + DEADLINE
        while not safe:  # what has failed can still bring something
            assert time.monotonic() < end
            self.settle()
            while (got := channel.obj.try_get_event()) is not None:
                self.event(got)
            safe = self.call("CQ.safe_to_sleep", cq.obj.safe_to_sleep, solicited)
            cq.polls, cq.arms = cq.obj.stats.polls, cq.obj.stats.arms
        self.send(qp.peer, "send", 5 * (n // 5))  # with SOLICITED
        before = cq.got
        while cq.got == before:
            left = end - time.monotonic()
            assert left > 0
            self.event(self.call("CompletionChannel.get_event", channel.obj.get_event, left))
        self.settle()

    @rule(n=N)
    def ask(self, n: int) -> None:
        what: Any = [
            ("Context.query_device", lambda: self.ctx.query_device().max_qp > 0),
            ("Context.query_device_ex", lambda: self.ctx.query_device_ex().comp_mask == 0),
            ("Context.query_port", lambda: self.ctx.query_port(1).lid >= 0),
            ("Context.query_pkey", lambda: self.ctx.query_pkey(0) == 0xFFFF),
            ("Context.gid_table", lambda: self.ctx.gid_table()[0].port_num == 1),
            ("Context.query_gid", lambda: self.ctx.query_gid(self.sgid_index).gid == self.gid),
            ("Context.find_gid", lambda: self.ctx.find_gid(str(self.gid)).gid == self.gid),
            ("Context.try_get_async_event", self.async_event),
            ("Context.get_async_event", lambda: self.async_event(0)),
            ("SRQ.query", lambda: self.some("SRQ", n).obj.query().srq_limit == 0),
            ("QP.query", lambda: self.some("QP", n).obj.query().qp_state >= 0),
            ("QP.outstanding", self.outstanding),
            ("QP.check", lambda: self.some("QP", n).obj.check(port_num=1) is None),
            ("MR.__buffer__", lambda: len(memoryview(self.some("MR", n).obj)) == SLOT * SLOTS),
            ("MR.__len__", lambda: len(self.some("MR", n).obj) == SLOT * SLOTS),
            ("WCArray()", lambda: WCArray(n + 1).capacity == n + 1),
            ("devices", lambda: devices()[0].name),
            ("add_close_callback", self.callbacks),
        ]
        name, function = what[n % len(what)]
        assert self.call(name, function), name

    def async_event(self, timeout: float | None = None) -> bool:
        try:
            event = (
                self.ctx.try_get_async_event()
                if timeout is None
                else self.ctx.get_async_event(timeout)
            )
        except TimeoutError:
            return True
        assert event is None or isinstance(event, AsyncEvent)
        assert event is None or (repr(event) and event.cq is None)
        return True

    def outstanding(self) -> bool:
        for qp in self.live("QP"):
            if qp.obj is not None:
                sends, receives = qp.obj.outstanding
                assert sends <= len(qp.sq), qp
                assert qp.obj.outstanding_signaled <= sends, qp
                assert receives <= len(qp.rq), qp
        return True

    def callbacks(self) -> bool:
        seen: list[int] = []
        with PD(self.ctx) as pd:
            for i in range(3):
                pd.add_close_callback(lambda i=i: seen.append(i))  # type: ignore[misc]
            pd.add_close_callback(seen.clear)
            assert pd.remove_close_callback(seen.clear) == 1
        return seen == [0, 1, 2]

    @rule(n=N)
    def end_of_the_world(self, n: int) -> None:
        if n % 8 == 0:
            self.finish(n // 8)
            self.start()

    @invariant()
    def the_books_are_right(self) -> None:
        for cq in self.things:
            if not isinstance(cq, Queue) or cq.obj is None:
                continue
            stats = cq.obj.stats
            if cq.closed:
                assert stats.acked == stats.events == cq.got, "close() acks the rest"
                continue
            assert (stats.events, stats.acked) == (cq.got, cq.acked)
            assert cq.obj.unacked == cq.got - cq.acked
            assert stats.arms == cq.arms
            assert stats.polls == cq.polls
            assert stats.completions == cq.completions
            assert stats.spurious <= stats.events
        self.progress(self.tally.calls)

    # -- the end --

    def finish(self, n: int) -> None:
        self.settle()
        self.check_outstanding()
        if n % 3 == 0:  # in order, one by one
            left = [t for t in self.things if t.obj is not None and not t.closed]
            random.Random(n).shuffle(left)
            while left:
                left = [t for t in left if not self.close_one(t)]
                self.reap()
        fds = [t.obj.fileno() for t in self.live("CompletionChannel") if t.obj is not None]
        if n % 3 == 1:  # nobody holds them any more
            ref = weakref.ref(self.ctx)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                self.ctx = None
                self.things = []
                self.works = {}
                gc.collect()
            assert ref() is None, "a forgotten world is collected"
        else:
            self.call("Context.close", self.ctx.close)
            assert all(t.obj.closed for t in self.things if t.obj is not None)
        for fd in fds:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)

    def check_outstanding(self) -> None:
        for qp in self.live("QP"):
            if qp.healthy and qp.obj is not None:
                unsignaled = sum(not w.signaled for w in qp.sq)
                assert qp.obj.outstanding == (unsignaled, len(qp.rq)), qp
                assert qp.obj.outstanding_signaled == 0, qp

    def reap(self) -> None:
        """What had been forgotten while a work request needed it can have gone meanwhile."""
        for thing in self.things:
            if not thing.closed and thing.ref() is None:
                self.mark_closed(thing)

    def teardown(self) -> None:
        fine = sys.exc_info()[0] is None
        try:
            if fine:
                self.finish(self.wr_id)
        finally:
            if self.ctx is not None:
                self.ctx.close()
            self.ctx = None
            self.things = []
            self.works = {}
        assert not fine or descriptors() <= self.before


CLOSED_CALLS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "PD": {
        "context": lambda o: o.context,
        "__enter__": lambda o: o.__enter__(),
        "MR()": lambda o: MR(o, 64),
        "AH()": lambda o: AH(o, dgid=bytes(16)),
        "add_close_callback": lambda o: o.add_close_callback(print),
    },
    "MR": {
        "pd": lambda o: o.pd,
        "addr": lambda o: o.addr,
        "length": lambda o: o.length,
        "lkey": lambda o: o.lkey,
        "rkey": lambda o: o.rkey,
        "access": lambda o: o.access,
        "read": lambda o: o.read(),
        "write": lambda o: o.write(b"x"),
        "__len__": len,
        "__getitem__": lambda o: o[0:1],
        "__buffer__": memoryview,
        "__enter__": lambda o: o.__enter__(),
    },
    "AH": {"pd": lambda o: o.pd, "__enter__": lambda o: o.__enter__()},
    "CompletionChannel": {
        "context": lambda o: o.context,
        "fileno": lambda o: o.fileno(),
        "get_event": lambda o: o.get_event(1),
        "try_get_event": lambda o: o.try_get_event(),
        "_on_event": lambda o: o._on_event(),
        "interrupt": lambda o: o.interrupt(),
        "__iter__": iter,
        "__enter__": lambda o: o.__enter__(),
    },
    "CQ": {
        "context": lambda o: o.context,
        "channel": lambda o: o.channel,
        "cqe": lambda o: o.cqe,
        "comp_vector": lambda o: o.comp_vector,
        "wc_flags": lambda o: o.wc_flags,
        "unacked": lambda o: o.unacked,
        "req_notify": lambda o: o.req_notify(),
        "safe_to_sleep": lambda o: o.safe_to_sleep(),
        "poll": lambda o: o.poll(),
        "poll_into": lambda o: o.poll_into(WCArray(1)),
        "poll_ids": lambda o: o.poll_ids(),
        "ack": lambda o: o.ack(0),
        "resize": lambda o: o.resize(4),
        "modify": lambda o: o.modify(1, 1),
        "__enter__": lambda o: o.__enter__(),
    },
    "SRQ": {
        "pd": lambda o: o.pd,
        "context": lambda o: o.context,
        "max_wr": lambda o: o.max_wr,
        "max_sge": lambda o: o.max_sge,
        "outstanding": lambda o: o.outstanding,
        "query": lambda o: o.query(),
        "modify": lambda o: o.modify(srq_limit=1),
        "post_recv": lambda o: o.post_recv(None),
        "__enter__": lambda o: o.__enter__(),
    },
    "QP": {
        name: (lambda o, name=name: getattr(o, name))
        for name in [
            "pd",
            "context",
            "send_cq",
            "recv_cq",
            "srq",
            "qp_num",
            "qp_type",
            "sq_psn",
            "max_send_wr",
            "max_recv_wr",
            "max_send_sge",
            "max_recv_sge",
            "max_inline_data",
            "outstanding",
            "outstanding_signaled",
            "state",
        ]
    }
    | {
        "modify": lambda o: o.modify(qp_state=0),
        "check": lambda o: o.check(qp_state=0),
        "query": lambda o: o.query(),
        "post_send": lambda o: o.post_send(None),
        "post_recv": lambda o: o.post_recv(None),
        "address": lambda o: o.address(),
        "connect": lambda o: o.connect(),
        "to_init": lambda o: o.to_init(),
        "to_rtr": lambda o: o.to_rtr(),
        "to_rts": lambda o: o.to_rts(),
        "__enter__": lambda o: o.__enter__(),
    },
}


# ---- random arguments -----------------------------------------------------------------------


class Boom(Exception):
    """What hostile objects raise."""


class Hostile:
    """Converts to 1 whatever it is asked for, and does something on the way."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def __index__(self) -> int:
        self.action()
        return 1

    def __float__(self) -> float:
        self.action()
        return 0.001

    def __bool__(self) -> bool:
        self.action()
        return True

    def __eq__(self, other: object) -> bool:
        self.action()
        return True

    def __hash__(self) -> int:
        self.action()
        return 1

    def __len__(self) -> int:
        self.action()
        return 1

    def __iter__(self) -> Iterator[int]:
        self.action()
        return iter([1])

    def __call__(self) -> None:
        self.action()

    def __repr__(self) -> str:
        self.action()
        return "<hostile>"

    @property
    def packed(self) -> bytes:
        self.action()
        return bytes(16)

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        self.action()
        return memoryview(bytearray(8))


def boom() -> None:
    raise Boom("hostile")


ALLOWED = (
    TypeError,
    ValueError,  # ClosedError is one
    OSError,  # VerbsError, TimeoutError, InterruptedError
    BufferError,
    LookupError,
    CompletionError,
    AsyncEventError,
)


class World:
    """One of everything, open, closed, and of another context; and the arguments to choose from."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.other = Context(self.ctx.name)
        gid = self.ctx.find_gid()
        o: dict[str, Any] = {"ctx": self.ctx, "other": self.other}
        for prefix, ctx in (("", self.ctx), ("foreign_", self.other), ("closed_", self.ctx)):
            pd = o[prefix + "pd"] = PD(ctx)
            channel = o[prefix + "channel"] = CompletionChannel(ctx)
            cq = o[prefix + "cq"] = CQ(ctx, 64, channel=channel)
            mr = o[prefix + "mr"] = MR(pd, 4096, access=0x17)
            o[prefix + "mw"] = MW(pd)
            o[prefix + "sge"] = mr[0:64]
            qp = o[prefix + "qp"] = QP(pd, QPType.RC, send_cq=cq, max_inline_data=64)
            o[prefix + "ah"] = AH(pd, dgid=gid.gid, sgid_index=gid.index)
            o[prefix + "srq"] = SRQ(pd, 16)
            o[prefix + "send_wr"] = SendWR(mr[0:64])
            o[prefix + "recv_wr"] = RecvWR(mr[0:64])
            if prefix == "closed_":
                for name in ("ah", "qp", "srq", "mw", "mr", "cq", "channel", "pd"):
                    o[prefix + name].close()
            else:
                qp.connect(qp.address(), timeout=8, retry_cnt=1, rnr_retry=1, access=7)
        pd, cq, mr, qp = o["pd"], o["cq"], o["mr"], o["qp"]
        o["ud"] = QP(pd, QPType.UD, send_cq=cq)
        o["ud"].connect()
        o["new_qp"] = QP(pd, QPType.RC, send_cq=cq)
        o["xcq"] = CQ(self.ctx, 16, wc_flags=WCExFlags.BYTE_LEN)
        o["ro_mr"] = MR(pd, bytes(64), access=0)
        o["array"] = WCArray(8)
        qp.post_recv(mr[0:64])
        qp.post_send(mr[64:72])
        self.wcs: list[Any] = []

        def arrived() -> bool:
            self.wcs += cq.poll()
            return len(self.wcs) == 2

        until(arrived, "a message")
        o["wc"] = self.wcs[0]
        o["address"] = qp.address()
        o["closed_ctx"] = Context(self.ctx.name)
        o["closed_ctx"].close()
        self.add_awaited(o)
        self.objects = o
        self.constants: dict[str, Any] = {
            "None": None,
            "True": True,
            "False": False,
            "-1": -1,
            "0": 0,
            "1": 1,
            "2": 2,
            "4": 4,
            "7": 7,
            "64": 64,
            "255": 255,
            "65535": 65535,
            "2**24": 1 << 24,
            "2**31-1": (1 << 31) - 1,
            "2**32": 1 << 32,
            "2**63-1": (1 << 63) - 1,
            "2**63": 1 << 63,
            "2**64": 1 << 64,
            "-2**63-1": -(1 << 63) - 1,
            "huge": 10**400,
            "enormous": 1 << 20000,  # more digits than int() converts
            "0.0": 0.0,
            "0.001": 0.001,
            "1.5": 1.5,
            "-0.5": -0.5,
            "nan": float("nan"),
            "inf": float("inf"),
            "-inf": float("-inf"),
            "''": "",
            "'text'": "text",
            "'nul'": "a\0b",
            "'surrogate'": "\ud800",
            "'::1'": "::1",
            "bytes0": b"",
            "bytes16": bytes(16),
            "bytes52": b"0" * 51 + b"\0",
            "object": object(),
            "type": CQ,
            "lambda": lambda: None,
            "tuple": (),
            "dict": {},
            "dict_int": {1: 2},
            "dict_bad": {"sl": "x", "nonsense": 1},
            "list": [1, None],
            "list_sge": [o["sge"]] * 100,
            "send_wrs": [o["send_wr"]] * 3,
            "recv_wrs": (o["recv_wr"],) * 3,
            "mixed_wrs": [o["send_wr"], o["closed_send_wr"], o["recv_wr"], o["sge"]],
            "mixed_sges": [o["sge"], o["send_wr"]],
            "slice": slice(0, 8),
            "slice_bad": slice(-(1 << 70), "x", 0.5),
            "IPv4": ipaddress.IPv4Address("10.0.0.1"),
            "IPv6": ipaddress.IPv6Address("fe80::1"),
            "group": ipaddress.IPv6Address("ff15::c0:1"),
            "'group'": "ff15::c0:1",
            "bad_address": QPAddress("x", None, 1.5, "y"),  # type: ignore[arg-type]
            "far_address": QPAddress(1 << 70, -1, 1 << 24, gid.gid),
            "bad_device": devices()[0]._replace(name=5),  # type: ignore[arg-type]
            "bad_cap": QPCap(-1, None, "x", 1 << 40, 1.5),  # type: ignore[arg-type]
        }
        self.targets = targets(self)

    def add_awaited(self, o: dict[str, Any]) -> None:
        """On a CQ of its own, and a channel."""
        self.loop = asyncio.new_event_loop()
        channel = o["acq_channel"] = CompletionChannel(self.ctx)
        for prefix in ("", "closed_"):
            cq = o[prefix + "acq_cq"] = CQ(self.ctx, 255, channel=channel)
            o[prefix + "acq"] = AsyncCQ(cq)
        o["closed_acq"].close()
        o["amr"] = MR(o["pd"], 4096, access=0xF)
        o["eight"] = o["amr"][0:8]
        qp = o["aqp"] = QP(o["pd"], QPType.RC, send_cq=o["acq_cq"], max_recv_wr=64)
        qp.connect(qp.address(), timeout=8, retry_cnt=1, access=0xF)

    def fresh(self, name: str) -> Any:
        """Arguments that can't be used twice, or hold on to something."""
        if name == "bytearray":
            return bytearray(64)
        if name == "view":
            return memoryview(bytearray(64))
        if name == "readonly":
            return memoryview(bytes(64))
        if name == "gaps":
            return memoryview(bytearray(64))[::2]
        if name == "released":
            view = memoryview(bytearray(8))
            view.release()
            return view
        if name == "view_of_mr":
            mr = self.objects["mr"]
            return bytearray(8) if mr.closed else memoryview(mr)[:64]
        if name == "boom":
            return Hostile(boom)
        kind, _, victim = name.partition(":")
        if kind == "close":
            return Hostile(lambda: self.attempt(self.objects[victim].close))
        if kind == "poll":
            return Hostile(lambda: self.attempt(self.objects["cq"].poll))
        if kind == "reset":
            return Hostile(lambda: self.attempt(self.objects["qp"].modify, qp_state=0))
        return self.objects.get(name) or self.constants[name]

    @staticmethod
    def attempt(function: Callable[..., Any], **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            function(**kwargs)

    def value(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        return self.objects[name] if name in self.objects else self.fresh(name)

    @property
    def spent(self) -> bool:
        o = self.objects
        names = (
            "ctx",
            "other",
            "pd",
            "channel",
            "cq",
            "mr",
            "qp",
            "srq",
            "ah",
            "ud",
            "xcq",
            "new_qp",
        )
        names = (*names, "ro_mr", "acq", "acq_cq", "acq_channel", "aqp", "amr")
        if any(o[name].closed for name in names) or o["acq"]._error is not None:
            return True
        return any(o[name].state != QPState.RTS for name in ("qp", "aqp"))

    def close(self) -> None:
        self.objects["acq"].close()
        self.ctx.close()
        self.other.close()
        self.loop.close()


NASTY_FRESH = [
    "bytearray",
    "view",
    "readonly",
    "gaps",
    "released",
    "view_of_mr",
    "boom",
    "boom",
    "boom",
    "close:ctx",
    "close:pd",
    "close:cq",
    "close:mr",
    "close:qp",
    "close:channel",
    "close:ah",
    "close:srq",
    "close:acq",
    "close:aqp",
    "poll",
    "reset",
]


@dataclass
class Target:
    """Something to call: what is right for its parameters, and how many go by position."""

    function: Callable[..., Any]
    good: dict[str, tuple[str, ...]]
    positional: int = 0
    required: int = 0
    nothing_else: bool = False  # METH_NOARGS and getters
    waits: bool = False


def targets(w: World) -> dict[str, Target]:
    o = w.objects
    pds, cqs = ("pd",), ("cq",)
    small = ("1", "7", "64")
    zero = ("0",)
    access = ("1", "7", "0")
    buffers = ("bytes16", "bytearray", "view", "readonly", "view_of_mr")
    memory = ("mr", "sge", "None")
    found: dict[str, Target] = {
        "Context()": Target(Context, {"name": ("None",)}, 1),
        "PD()": Target(PD, {"context": ("ctx", "other")}, 1, 1),
        "MR()": Target(
            MR, {"pd": pds, "buffer": ("64", "bytearray", "view"), "access": access}, 2, 2
        ),
        "CompletionChannel()": Target(CompletionChannel, {"context": ("ctx",)}, 1, 1),
        "CQ()": Target(
            CQ,
            {
                "context": ("ctx",),
                "cqe": small,
                "channel": ("channel", "None"),
                "comp_vector": zero,
                "user_data": ("object", "None"),
                "wc_flags": ("None", "1"),
            },
            2,
            2,
        ),
        "QP()": Target(
            QP,
            {
                "pd": pds,
                "qp_type": ("2",),
                "send_cq": cqs,
                "recv_cq": ("cq", "None"),
                "srq": ("None", "None", "srq"),
                "max_send_wr": small,
                "max_recv_wr": small,
                "max_send_sge": ("1", "2"),
                "max_recv_sge": ("1", "2"),
                "max_inline_data": ("0", "64"),
                "sq_sig_all": ("True", "False"),
                "user_data": ("object",),
            },
            2,
            3,
        ),
        "SRQ()": Target(
            SRQ,
            {
                "pd": pds,
                "max_wr": small,
                "max_sge": ("1", "2"),
                "srq_limit": ("0", "1"),
                "user_data": ("object",),
            },
            2,
            2,
        ),
        "AH()": Target(
            AH,
            {
                "pd": pds,
                "dgid": ("own_gid",),
                "sgid_index": ("own_index",),
                "port_num": ("1",),
                "sl": zero,
                "hop_limit": ("64",),
                "traffic_class": zero,
                "flow_label": zero,
                "static_rate": zero,
            },
            1,
            3,
        ),
        "WCArray()": Target(WCArray, {"capacity": small}, 1, 1),
        "QPAddress.from_wire": Target(QPAddress.from_wire, {"data": ("own_wire",)}, 1, 1),
    }
    gid = w.ctx.find_gid()
    w.constants |= {"own_gid": gid.gid, "own_index": gid.index}
    w.constants |= {"own_wire": o["address"].to_wire(), "own_type": gid.gid_type}
    w.constants |= {"own_addr": o["mr"].addr + 64, "own_rkey": o["mr"].rkey}
    w.constants |= {"own_qpn": o["ud"].qp_num, "own_qkey": 0x11111111}

    def add(kind: str, names: tuple[str, ...], method: str, *args: Any, **kwargs: Any) -> None:
        for name in names:
            function = getattr(type(o[name]), method)
            found[f"{kind}.{method}:{name}"] = Target(
                lambda *a, function=function, name=name, **k: function(o[name], *a, **k),
                *args,
                **kwargs,
            )

    every = ("ctx", "pd", "mr", "channel", "cq", "srq", "qp", "ah")
    for name in (*every, "closed_cq"):
        add("_Object", (name,), "add_close_callback", {"callback": ("lambda",)}, 1, 1)
        add("_Object", (name,), "remove_close_callback", {"callback": ("lambda",)}, 1, 1)
        add("_Object", (name,), "__enter__", {}, nothing_else=True)
        add("_Object", (name,), "__repr__", {}, nothing_else=True)
    add("_Object", ("closed_qp",), "__exit__", {"a": ("None",), "b": ("None",), "c": ("None",)}, 3)
    add("Context", ("ctx",), "query_device", {}, nothing_else=True)
    for method in ("query_device_ex", "query_rt_values"):
        add("Context", ("ctx",), method, {}, nothing_else=True)
    add("Context", ("ctx",), "query_port", {"port_num": ("1",)}, 1)
    add("Context", ("ctx",), "query_pkey", {"index": zero, "port_num": ("1",)}, 2, 1)
    add("Context", ("ctx",), "get_pkey_index", {"pkey": ("65535",), "port_num": ("1",)}, 2, 1)
    add("Context", ("ctx",), "gid_table", {"port_num": ("1", "None")}, 1)
    add("Context", ("ctx",), "query_gid", {"index": ("own_index",), "port_num": ("1",)}, 2, 1)
    add(
        "Context",
        ("ctx",),
        "find_gid",
        {
            "address": ("own_gid", "None"),
            "gid_type": ("own_type", "None"),
            "netdev": ("None",),
            "port_num": ("1",),
        },
        1,
    )
    waits = {"timeout": ("0", "0.001", "0.0")}
    add("Context", ("ctx", "closed_ctx"), "get_async_event", waits, 1, 1, waits=True)
    add("Context", ("ctx",), "try_get_async_event", {}, nothing_else=True)
    add("MR", ("mr",), "read", {"length": ("64", "None", "0"), "offset": ("0", "64")}, 2)
    for name in ("mr", "ro_mr", "closed_mr"):
        add("MR", (name,), "write", {"data": buffers, "offset": ("0", "2")}, 2, 1)
        add("MR", (name,), "__getitem__", {"key": ("slice",)}, 1, 1)
    add("MR", ("mr",), "__len__", {}, nothing_else=True)
    add("MR", ("mr", "closed_mr"), "over", {"buffer": buffers}, 1, 1)
    found["MR.implicit"] = Target(MR.implicit, {"pd": pds, "access": access}, 1, 1)
    both = ("channel", "closed_channel")
    add("CompletionChannel", both, "get_event", waits, 1, 1, waits=True)
    add("CompletionChannel", both, "try_get_event", {}, nothing_else=True)
    add("CompletionChannel", both, "__next__", {}, nothing_else=True, waits=True)
    add("CompletionChannel", both, "fileno", {}, nothing_else=True)
    some_cqs = ("cq", "xcq", "closed_cq")
    flag = {"solicited_only": ("True", "False", "1")}
    add("CQ", some_cqs, "req_notify", flag, 1)
    add("CQ", some_cqs, "safe_to_sleep", flag, 1)
    add("CompletionChannel", both, "_on_event", {}, nothing_else=True)
    add_awaited(w, found)
    add("CQ", some_cqs, "poll", {"max_entries": small}, 1)
    add("CQ", some_cqs, "poll_ids", {"max_entries": small}, 1)
    add("CQ", some_cqs, "poll_into", {"wcs": ("array",)}, 1, 1)
    add("CQ", some_cqs, "ack", {"n": zero}, 1)
    add("CQ", some_cqs, "resize", {"cqe": ("64", "255")}, 1, 1)
    add("CQ", some_cqs, "modify", {"cq_count": small, "cq_period": small}, 2, 2)
    qps = ("qp", "ud", "closed_qp")
    attrs = {
        "min_rnr_timer": ("1",),
        "qp_access_flags": ("7",),
        "qkey": ("1",),
        "path_mtu": ("1", "2"),
        "port_num": ("1",),
        "cap": ("dict",),
        "ah_attr": ("dict",),
        "max_rd_atomic": ("1",),
        "rq_psn": ("1",),
    }
    add("QP", qps, "check", attrs, 0)
    add("QP", ("qp", "closed_qp"), "modify", {"min_rnr_timer": ("1", "7"), **attrs}, 0)
    add("QP", qps, "query", {}, nothing_else=True)
    add("QP", qps, "address", {"port_num": ("1",), "gid_index": ("own_index", "None")}, 2)
    for method in ("attach_mcast", "detach_mcast"):
        group = {"gid": ("group", "'group'"), "lid": zero}
        add("QP", ("ud", "qp", "closed_qp"), method, group, 2, 1)
    path = {
        "remote": ("address",),
        "port_num": ("1",),
        "gid_index": ("None", "own_index"),
        "access": access,
        "path_mtu": ("None", "1"),
        "timeout": ("7",),
        "hop_limit": ("64",),
        "max_rd_atomic": ("1",),
    }
    add("QP", ("new_qp", "new_qp", "qp"), "connect", path, 1, 1)
    found["QP.modify:one"] = Target(
        lambda **k: QP.modify(o["qp"], **k), {"min_rnr_timer": ("1", "7", "0")}, 0, 1
    )
    add("QP", ("new_qp",), "to_init", {"port_num": ("1",), "access": access, "qkey": ("None",)}, 0)
    to_rtr = {k: v for k, v in path.items() if k not in RTS_ONLY}
    to_rts = {"timeout": ("7",), "retry_cnt": ("1",), "rnr_retry": ("1",)}
    for name, good, required in (("to_rtr", to_rtr, 1), ("to_rts", to_rts, 0)):
        found[f"QP.{name}:prepared"] = Target(
            lambda *a, name=name, **k: getattr(prepared(o, name), name)(*a, **k), good, 1, required
        )
    srqs = ("srq", "closed_srq")
    add("SRQ", srqs, "modify", {"max_wr": small, "srq_limit": ("0", "1")}, 0)
    add("SRQ", srqs, "query", {}, nothing_else=True)
    add("SRQ", srqs, "post_recv", {"sg": memory, "wr_id": small}, 1, 1)
    add("QP", ("qp", "ud", "closed_qp"), "post_recv", {"sg": memory, "wr_id": small}, 1, 1)
    add(
        "QP",
        ("qp", "closed_qp"),
        "post_send",
        {"sg": memory, "wr_id": small, "opcode": ("2",), "send_flags": ("2", "0", "7")},
        1,
        1,
    )
    prebuilt = {"sg": ("send_wr", "send_wrs", "foreign_send_wr", "mixed_wrs")}
    for name in ("qp", "ud", "new_qp", "closed_qp"):
        found[f"QP.post_send:prebuilt {name}"] = Target(
            lambda *a, name=name, **k: QP.post_send(o[name], *a, **k), prebuilt, 1, 1
        )
    found["QP.post_recv:prebuilt"] = Target(
        lambda *a, **k: QP.post_recv(o["qp"], *a, **k),
        {"sg": ("recv_wr", "recv_wrs", "closed_recv_wr", "mixed_sges")},
        1,
        1,
    )
    binding = {
        "mw": ("mw",),
        "sg": ("mr", "sge"),
        "access": ("2", "4", "7"),
        "wr_id": small,
        "send_flags": ("2", "0"),
    }
    add("QP", ("qp", "ud", "closed_qp"), "bind_mw", binding, 2, 3)
    found["MW()"] = Target(MW, {"pd": pds, "mw_type": ("1", "2")}, 2, 1)
    found["RecvWR()"] = Target(RecvWR, {"sg": memory, "wr_id": small}, 1)
    found["SendWR()"] = Target(
        SendWR,
        {
            "sg": memory,
            "wr_id": small,
            "opcode": ("0", "2", "4"),
            "send_flags": ("0", "2"),
            "remote_addr": ("own_addr",),
            "rkey": ("own_rkey",),
        },
        1,
    )
    for name in ("send_wr", "recv_wr"):
        found[f"{name}.wr_id="] = Target(
            lambda *a, name=name, **k: setattr(o[name], "wr_id", *a, *k.values()),
            {"value": small},
            1,
            1,
        )
    add(
        "QP",
        ("ud",),
        "post_send",
        {
            "sg": ("sge", "None"),
            "ah": ("ah",),
            "remote_qpn": ("own_qpn",),
            "remote_qkey": ("own_qkey",),
            "wr_id": small,
        },
        1,
        4,
    )
    found["QP.post_send:remote"] = Target(
        lambda *a, **k: QP.post_send(o["qp"], *a, **k),
        {
            "sg": ("sge",),
            "opcode": ("0", "1", "4"),
            "remote_addr": ("own_addr",),
            "rkey": ("own_rkey",),
            "imm_data": ("None", "7"),
            "send_flags": ("2",),
        },
        1,
        4,
    )
    found["QP.post_send:inline"] = Target(
        lambda *a, **k: QP.post_send(o["qp"], *a, **k),
        {"sg": buffers, "send_flags": ("inline",), "wr_id": small},
        1,
        2,
    )
    w.constants["inline"] = SendFlags.INLINE | SendFlags.SIGNALED
    add("WCArray", ("array",), "__getitem__", {"index": zero}, 1, 1)
    add("WCArray", ("array",), "__len__", {}, nothing_else=True)
    add("WorkCompletion", ("wc",), "raise_for_status", {}, nothing_else=True)
    add("WorkCompletion", ("wc",), "__repr__", {}, nothing_else=True)
    add("QPAddress", ("address",), "to_wire", {}, nothing_else=True)
    found["QPAddress.to_wire:bad"] = Target(w.constants["bad_address"].to_wire, {})
    for name in (*every, "sge", "wc", "closed_cq", "mw", "send_wr", "recv_wr"):
        add(type(o[name]).__name__, (name,), "close", {}, nothing_else=True) if hasattr(
            o[name], "close"
        ) and name not in ("ctx",) else None
        found[f"{type(o[name]).__name__}.attributes:{name}"] = Target(
            lambda name=name: attributes(o[name]), {}, nothing_else=True
        )
    return found


def add_awaited(w: World, found: dict[str, Target]) -> None:
    """The methods of AsyncCQ: one is called, its coroutine takes the first step, and is closed."""

    def add(method: str, good: dict[str, tuple[str, ...]], positional: int, required: int) -> None:
        for name in ("acq", "closed_acq"):
            found[f"AsyncCQ.{method}:{name}"] = Target(
                lambda *a, name=name, **k: first_step(w, getattr(w.objects[name], method), *a, **k),
                good,
                positional,
                required,
            )

    small = ("1", "7", "64")
    own = {"send_flags": ("2", "0"), "wr_id": small}
    local = {"qp": (*["aqp"] * 8, "qp", "closed_qp"), "sg": ("eight", "sge", "None")}
    remote = {**local, "remote_addr": ("acq_addr",), "rkey": ("acq_rkey",)}
    w.constants |= {"acq_addr": w.objects["amr"].addr + 64, "acq_rkey": w.objects["amr"].rkey}
    imm = {"imm_data": ("None", "7")}
    eight = {**remote, "sg": ("eight",)}
    add("wait", {"max_entries": small, "solicited_only": ("True", "False", "1")}, 1, 0)
    add("completion", {"wr_id": small, "qp": ("aqp", "None")}, 1, 1)
    add("send", {**local, **imm, **own}, 2, 2)
    add("recv", {**local, "wr_id": small}, 2, 2)
    add("write", {**remote, **imm, **own}, 4, 4)
    add("read", {**remote, **own}, 4, 4)
    add("atomic_cmp_and_swp", {**eight, "compare_add": small, "swap": small, **own}, 6, 6)
    add("atomic_fetch_and_add", {**eight, "compare_add": small, **own}, 5, 5)
    for name in ("acq", "closed_acq"):
        for function, good in ((AsyncCQ.poll, {"max_entries": small}), (AsyncCQ.__repr__, {})):
            found[f"AsyncCQ.{function.__name__}:{name}"] = Target(
                lambda *a, f=function, name=name, **k: f(w.objects[name], *a, **k), good, 1
            )
        found[f"AsyncCQ.attributes:{name}"] = Target(
            lambda name=name: attributes(w.objects[name]), {}, nothing_else=True
        )
    found["AsyncCQ()"] = Target(in_vain, {"cq": ("cq", "acq_cq", "xcq", "closed_cq")}, 1, 1)


def first_step(w: World, method: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    asyncio._set_running_loop(w.loop)
    try:
        call = method(*args, **kwargs)
        try:
            call.send(None)
        except StopIteration:
            pass
        finally:
            call.close()
    finally:
        asyncio._set_running_loop(None)
    return 1


def in_vain(*args: Any, **kwargs: Any) -> int:
    AsyncCQ(*args, **kwargs).close()
    return 1


def prepared(o: dict[str, Any], transition: str) -> QP:
    """A QP in the state that it starts from."""
    qp: QP = o["new_qp"]
    with contextlib.suppress(VerbsError):
        qp.modify(qp_state=QPState.RESET)
        qp.to_init()
        if transition == "to_rts":
            qp.to_rtr(o["address"])
    return qp


RTS_ONLY = ("timeout", "max_rd_atomic")


def attributes(thing: Any) -> int:
    """Reads all; ClosedError is all that any of them may say."""
    for name in dir(type(thing)):
        static = inspect.getattr_static(type(thing), name)
        if inspect.isdatadescriptor(static) and not name.startswith("__"):
            with contextlib.suppress(ClosedError):
                getattr(thing, name)
    return 1


class Barrage:
    """Calls with arguments that are right, wrong, hostile, too many or too few."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.world = World()
        self.faults: list[str] = []

    def arguments(self, rng: random.Random, target: Target) -> tuple[list[str], dict[str, str]]:
        """By name, so that they can be shown."""
        if target.nothing_else and rng.random() < 0.95:
            return [], {}
        nasty = [*self.world.constants, *self.world.objects, *NASTY_FRESH]
        wild = rng.choice((0.0, 0.0, 0.1, 0.3, 0.6))
        positional: list[str] = []
        keywords: dict[str, str] = {}
        for i, (name, good) in enumerate(target.good.items()):
            if i >= target.required and rng.random() < 0.5:
                continue
            value = rng.choice(nasty) if rng.random() < wild else rng.choice(good)
            if i < target.positional and len(positional) == i and rng.random() < 0.7:
                positional.append(value)
            else:
                keywords[name] = value
        if rng.random() < 0.1 * wild:
            positional.append(rng.choice(nasty))
        if rng.random() < 0.1 * wild:
            keywords["nonsense"] = rng.choice(nasty)
        return positional, keywords

    def endless(self, names: list[str], key: str) -> bool:
        """A wait that this would not end, or memory that the guest does not have."""
        values = [self.world.constants.get(n) for n in names]
        if "event" in key or "__next__" in key:
            return not names or any(
                v is None or v is True or (isinstance(v, int | float) and not v <= 0.01)
                for v in values
            )
        if key in ("SRQ()", "SRQ.modify:srq"):
            return "65535" in names  # kernel memory, of which the guest has little
        return key == "MR()" and bool({"2**24", "2**31-1", "2**32"} & set(names))

    def call(self, seed: str) -> None:
        rng = random.Random(seed)
        world = self.world
        key = rng.choice(sorted(world.targets))
        target = world.targets[key]
        positional, keywords = self.arguments(rng, target)
        names = [*positional, *keywords.values()]
        if not target.waits or not self.endless([n for n in names if ":" not in n], key):
            pass
        elif not key.startswith("Context"):
            with contextlib.suppress(ClosedError):
                world.objects["channel"].interrupt()
        else:
            return
        if self.endless(names, key) and not target.waits:
            return
        text = f"{key}({', '.join([*positional, *(f'{k}={v}' for k, v in keywords.items())])})"
        note(text)
        method = key.partition(":")[0]
        self.tally.made[method] += 1
        args = [world.value(n) for n in positional]
        kwargs = {k: world.value(v) for k, v in keywords.items()}
        try:
            result = target.function(*args, **kwargs)
        except StopIteration:
            fault = "" if "__next__" in key else "StopIteration"
        except Boom:
            # What is to be removed is compared with what an earlier call may have added.
            compares = method.endswith("remove_close_callback")
            fault = "" if compares or "boom" in names else "Boom from nowhere"
        except ALLOWED as e:
            fault = "" if str(e) else f"{type(e).__name__} without a message"
        except BaseException as e:
            much = {"2**31-1", "2**63-1", "own_addr"} & set(names)
            real = isinstance(e, MemoryError) and str(e) and much
            fault = "" if real else f"{type(e).__name__}: {e}"
        else:
            self.tally.done[method] += 1
            fault = ""
            self.dispose(world, result)
        if fault:
            self.faults.append(f"{text} -> {fault}")

    def dispose(self, world: World, result: Any) -> None:
        if type(result) is CQ or result is world.objects["cq"]:
            self.settle_debts(world)
        close = getattr(result, "close", None)
        if close is not None and not any(result is o for o in world.objects.values()):
            close()

    def settle_debts(self, world: World) -> None:
        for name in ("cq", "xcq"):
            cq = world.objects[name]
            if not cq.closed:
                cq.ack(cq.unacked)

    def tidy(self) -> None:
        """Between calls: drain, and a new world for one that is broken."""
        if not self.world.spent:
            for name in ("cq", "foreign_cq", "xcq"):
                while self.world.objects[name].poll(64):
                    pass
            while self.world.objects["acq"].poll(255):
                pass
            self.traffic()
        if self.world.spent:
            self.world.close()
            self.world = World()

    def traffic(self) -> None:
        """So that there is something to get, to ack and to poll."""
        o = self.world.objects
        with contextlib.suppress(VerbsError):
            if o["new_qp"].state != QPState.RESET:
                o["new_qp"].modify(qp_state=QPState.RESET)
            o["cq"].req_notify()
            for _ in range(2):
                o["qp"].post_recv(o["mr"][0:64])
                o["qp"].post_send(o["mr"][64:72])
            o["cq"].poll_into(o["array"])
            while o["aqp"].outstanding[1] < 8:
                o["aqp"].post_recv(None)


# ---- the tests ------------------------------------------------------------------------------


@pytest.fixture
def light_collector() -> Iterator[None]:
    """What was there before is not looked at by each gc.collect()."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def tally(ctx: Context, light_collector: None) -> Iterator[Tally]:
    tally = Tally()
    Machine.tally = tally
    yield tally
    Machine.tally = Tally()
    Machine.progress = staticmethod(lambda calls: None)


def run_machine(examples: int, steps: int, seed: int | None = None) -> None:
    chosen = settings(
        COMMON,
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=seed is None,
    )
    machine: Any = type("Machine", (Machine,), {})
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    run_state_machine_as_test(machine, settings=chosen)


def run_barrage(
    tally: Tally, examples: int, seed: int | None = None, known: list[str] | None = None
) -> None:
    barrage = Barrage(tally)

    @settings(COMMON, max_examples=examples, derandomize=seed is None)
    @given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=20, max_size=60))
    def run(seeds: list[int]) -> None:
        for i, number in enumerate(seeds):
            barrage.call(f"{seed}:{i}:{number}")
            if i % 6 == 0:
                barrage.tidy()
        faults, barrage.faults = barrage.faults, []
        if known is not None:
            known.extend(faults)
        else:
            assert not faults, "\n".join(faults)
        Machine.progress(tally.calls)

    def unraisable(args: Any) -> None:
        """What close callbacks raise; anything can have been made one."""
        if not isinstance(args.exc_value, (Boom, *ALLOWED)):
            barrage.faults.append(f"unraisable {args.exc_type}: {args.exc_value}")

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        (run if seed is None else hypothesis.seed(seed)(run))()
    finally:
        barrage.world.close()
        barrage.world = None  # type: ignore[assignment]
        gc.collect()
        sys.unraisablehook = hook


def test_what_was_promised_holds_in_any_order(tally: Tally) -> None:
    before = descriptors()
    run_machine(examples=25, steps=40)
    gc.collect()
    assert descriptors() <= before
    assert ours() == {}, "nothing is left"
    print(tally)
    assert tally.done.total() >= 0.3 * tally.calls


def test_arguments_of_any_kind_are_refused_in_words_or_work(tally: Tally) -> None:
    before = descriptors()
    run_barrage(tally, examples=40)
    gc.collect()
    assert descriptors() <= before
    assert ours() == {}, "nothing is left"
    print(tally)


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.soak
def test_many_calls_in_any_order_with_any_arguments_break_nothing_and_leak_nothing(
    tally: Tally, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = 0
    start = time.monotonic()

    def progress(calls: int) -> None:
        nonlocal shown
        if calls >= shown:
            shown = calls + max(1000, MANY // 100)
            faulthandler.dump_traceback_later(NO_PROGRESS, exit=True)
            print(f"\r{calls} of {MANY} calls", end="", flush=True)

    warm = (0, 0)
    halves = (Tally(), Tally())
    faults: list[str] = []
    with capfd.disabled():
        Machine.progress = staticmethod(progress)
        Machine.tally = halves[0]
        before = descriptors()
        try:
            for seed in range(SEED, SEED + 1_000_000):
                total = halves[0].calls + halves[1].calls
                if total >= MANY:
                    break
                if not warm[0] and total >= MANY // 4:
                    warm = (rss(), total)
                if halves[0].calls <= halves[1].calls:
                    run_machine(25, 50, seed)
                else:
                    run_barrage(halves[1], 20, seed, faults)
                assert descriptors() <= before
                assert ours() == {}, "nothing is left"
            grown = rss() - warm[0]
        finally:
            faulthandler.cancel_dump_traceback_later()
            for half, title in zip(halves, ("in order", "with any arguments"), strict=True):
                print(f"\n{title}: {half}")
            for fault, count in Counter(faults).most_common():
                print(f"{count:6} {fault}")
            print(f"{time.monotonic() - start:.0f} s, seed {SEED}")
        print(f"RSS {grown:+d} bytes since call {warm[1]}, {ours()}")
    assert not faults
    assert halves[0].done.total() >= 0.3 * halves[0].calls
    assert grown < RSS_GROWTH
