# SPDX-License-Identifier: MIT
"""Real objects, and beside them what must come of each call: see Machine, which makes the calls."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fuzz_things import (
    IN_FLIGHT,
    PAYLOAD,
    SEND_OPS,
    SLOT,
    SLOTS,
    WC_OPS,
    Pair,
    Queue,
    Region,
    Tally,
    Thing,
    Work,
    descriptors,
)
from support import DEADLINE, GRH

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlags,
    BusyError,
    CompletionChannel,
    CompletionError,
    Context,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
    WCOpcode,
    WCStatus,
)

MODELS: dict[str, type[Thing]] = {"CQ": Queue, "MR": Region, "QP": Pair}


class Model:
    """Real objects, and the model of them. A number chooses among what there is, or a new one."""

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
        if kind == "CompletionChannel":
            return self.keep(kind, [], CompletionChannel, self.ctx)
        if kind == "PD":
            return self.keep(kind, [], PD, self.ctx)
        if kind == "CQ":
            return self.make_cq(n)
        if kind == "QP":
            return self.make_pair(n, QPType.RC)
        pd = self.some("PD", n)
        if kind == "MR":
            return self.make_mr(pd, n)
        if kind == "SRQ":
            return self.keep(kind, [pd], SRQ, pd.obj, 1 + n % 40)
        return self.make_ah(pd)

    def keep(self, kind: str, uses: list[Thing], make: Any, *args: Any, **options: Any) -> Any:
        model = MODELS.get(kind, Thing)
        thing = model(kind, self.call(f"{kind}()", make, *args, **options), uses)
        self.things.append(thing)
        return thing

    def make_cq(self, n: int) -> Any:
        channel = self.some("CompletionChannel", n) if n % 5 else None
        options: dict[str, Any] = {} if channel is None else {"channel": channel.obj}
        if n % 3 == 0:
            options["wc_flags"] = WCExFlags.BYTE_LEN | WCExFlags.IMM
        uses = [channel] if channel else []
        return self.keep("CQ", uses, CQ, self.ctx, 256, user_data=n, **options)

    def make_mr(self, pd: Thing, n: int) -> Any:
        buffer = SLOT * SLOTS if n % 2 else bytearray(SLOT * SLOTS)
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
        return self.keep("MR", [pd], MR, pd.obj, buffer, access=access)

    def make_ah(self, pd: Thing) -> Any:
        return self.keep("AH", [pd], AH, pd.obj, dgid=self.gid, sgid_index=self.sgid_index)

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
        options |= {"max_send_wr": 2 * IN_FLIGHT, "max_recv_wr": 2 * IN_FLIGHT, "max_send_sge": 2}
        uses = [pd, scq, rcq]
        thing: Pair = self.keep("QP", uses, QP, pd.obj, qp_type, send_cq=scq.obj, **options)
        thing.type = qp_type
        thing.inline = "max_inline_data" in options
        thing.all_signaled = "sq_sig_all" in options
        thing.num = thing.obj.qp_num
        return thing

    def connect(self, a: Pair) -> None:
        b = a.peer
        assert b is not None
        for one, other in ((a, b), (b, a)):
            options: dict[str, Any] = {}
            if a.type != QPType.UD:
                options["access"] = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
            if a.type == QPType.RC:
                options |= {"ack_timeout": 12, "retry_cnt": 6}
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
            self.refuse_in_reset(work, "QP.post_recv", qp.obj.post_recv, *args, **kwargs)
            return
        self.call("QP.post_recv", qp.obj.post_recv, *args, **kwargs)
        work.must = False  # until it is matched by a send, or flushed
        self.posted(work)
        qp.unmatched.append(work)

    def refuse_in_reset(self, work: Work, name: str, post: Any, *args: Any, **kwargs: Any) -> None:
        self.refuse(name, VerbsError, "is in RESET", post, *args, **kwargs)
        self.let_go(work)

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
            self.refuse_in_reset(work, "QP.post_send", qp.obj.post_send, *args, **kwargs)
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
        elif form == 1:
            n = 32
            count = self.call("CQ.poll_into", cq.obj.poll_into, self.array)
            assert count == len(self.array)
            wcs = [self.array[i] for i in range(count)]
        else:
            try:
                wcs = self.call("CQ.poll_ids", cq.obj.poll_ids, max_entries=n)
            except CompletionError as e:
                self.completed(cq, e.wr_id, e.wc, e.status)
                return 1
        for wc in wcs:
            if isinstance(wc, int):
                self.completed(cq, wc, None, WCStatus.SUCCESS)
            else:
                assert repr(wc).startswith("<WorkCompletion")
                self.completed(cq, wc.wr_id, wc, wc.status)
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
