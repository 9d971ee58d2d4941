# SPDX-License-Identifier: MIT
"""The whole public API in random order: the rules, each of which is a call or a few."""

from __future__ import annotations

import gc
import os
import random
import re
import select
import sys
import time
import warnings
import weakref
from typing import Any

import pytest
from closed import closed_calls
from fuzz_model import Model
from fuzz_things import SEND_OPS, SLOT, SLOTS, Queue, descriptors
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support import DEADLINE, outstanding

from cqnotify import (
    PD,
    AsyncEvent,
    AsyncEventError,
    ClosedError,
    QPState,
    QPType,
    VerbsError,
    WCArray,
    devices,
)


class Machine(Model, RuleBasedStateMachine):
    """Rules take numbers, and choose by them among what there is.

    What a rule does depends on what the device did before, so that preconditions, which decide
    what is drawn next, could not be replayed: a rule that finds nothing to work on makes it.
    """

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

    def some_to_arm(self, n: int, method: str) -> Any:
        """None: it has no channel, and refuses."""
        cq: Any = self.some("CQ", n)
        if cq.uses:
            return cq
        self.refuse(f"CQ.{method}", ValueError, "without a channel", getattr(cq.obj, method))
        return None

    @rule(n=N, solicited=st.booleans())
    def arm(self, n: int, solicited: bool) -> None:
        if (cq := self.some_to_arm(n, "req_notify")) is None:
            return
        self.call("CQ.req_notify", cq.obj.req_notify, solicited)
        cq.arms += 1

    @rule(n=N, solicited=st.booleans())
    def prepare_to_sleep(self, n: int, solicited: bool) -> None:
        if (cq := self.some_to_arm(n, "arm_if_empty")) is None:
            return
        before = cq.obj.stats
        safe = self.call("CQ.arm_if_empty", cq.obj.arm_if_empty, solicited)
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
            assert outstanding(qp.obj) == (0, 0)
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
        calls = sorted(closed_calls(type(thing.obj)))
        name = calls[n % len(calls)]
        call = closed_calls(type(thing.obj))[name]
        self.refuse(f"{thing.kind}.{name}", ClosedError, "is closed", call, thing.obj)
        self.call(f"{thing.kind}.close", thing.obj.close)
        number = r" \d+" if thing.kind == "QP" else ""
        assert re.fullmatch(f"<{thing.kind}{number} closed>", repr(thing.obj)), thing.obj

    @rule(n=N, solicited=st.booleans())
    def sleep_until_a_message_comes(self, n: int, solicited: bool) -> None:
        able = [q for q in self.live("QP") if q.healthy and q.obj and q.rcq.uses and q.peer.obj]
        if not able:
            return
        qp = able[n % len(able)]
        cq, channel = qp.rcq, qp.rcq.uses[0]
        if not (channel.obj and cq.obj and self.room(qp, n) and self.room(qp.peer, n)):
            return
        safe = False
        end = time.monotonic() + DEADLINE
        while not safe:  # what has failed can still bring something
            assert time.monotonic() < end
            self.settle()
            while (got := channel.obj.try_get_event()) is not None:
                self.event(got)
            safe = self.call("CQ.arm_if_empty", cq.obj.arm_if_empty, solicited)
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
            ("Context.query_gid_table", lambda: self.ctx.query_gid_table()[0].port_num == 1),
            ("Context.query_gid", lambda: self.ctx.query_gid(self.sgid_index).gid == self.gid),
            ("Context.find_gid", lambda: self.ctx.find_gid(str(self.gid)).gid == self.gid),
            ("Context.try_get_async_event", self.async_event),
            ("Context.get_async_event", lambda: self.async_event(0)),
            ("SRQ.query", lambda: self.some("SRQ", n).obj.query().srq_limit == 0),
            ("QP.query", lambda: self.some("QP", n).obj.query().qp_state >= 0),
            ("QP.outstanding_sends", self.outstanding_requests),
            ("QP.check_modify", lambda: self.some("QP", n).obj.check_modify(port_num=1) is None),
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
            if timeout is None:
                event = self.ctx.try_get_async_event()
            else:
                event = self.ctx.get_async_event(timeout)
        except TimeoutError:
            return True
        assert event is None or isinstance(event, AsyncEvent)
        assert event is None or (repr(event) and event.cq is None)
        return True

    def outstanding_requests(self) -> bool:
        for qp in self.live("QP"):
            if qp.obj is not None:
                sends, receives = outstanding(qp.obj)
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
                assert outstanding(qp.obj) == (unsignaled, len(qp.rq)), qp
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
