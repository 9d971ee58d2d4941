# SPDX-License-Identifier: MIT
"""Which completions raise an event: every row of the table, on the running kernel.

The rows are outcome x operation x sq_sig_all x send flags x how the CQs were armed, each seen at
the send CQ and at the receive CQ. `expected_events` is the rule. What the library refuses before
the device sees it makes no row: SOLICITED on RDMA_WRITE and RDMA_READ, and memory of a closed MR,
the only way to a wrong lkey.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import pytest
from support import DEADLINE, Endpoint, connect, is_rxe, kernel, until

from cqnotify import (
    CQ,
    Context,
    QPState,
    QPType,
    SendFlags,
    WCStatus,
    WorkCompletion,
    WROpcode,
)

Pair = tuple[Endpoint, Endpoint]
NONE, SIGNALED, SOLICITED = SendFlags(0), SendFlags.SIGNALED, SendFlags.SOLICITED
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
PATIENCE = 5.0  # seconds for an event that has to come; a failing file shall end, too

SEND, SEND_IMM = WROpcode.SEND, WROpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM
READ = WROpcode.RDMA_READ
TAKES_A_RECEIVE = {SEND, SEND_IMM, WRITE_IMM}
REMOTE = {WRITE, WRITE_IMM, READ}


class Side(Enum):
    SENDER = "send CQ"
    RECEIVER = "receive CQ"


class Arm(Enum):
    NOT = "not armed"
    ANY = "armed any"
    SOLICITED = "armed solicited only"


class Outcome(Enum):
    SUCCESS = "success"
    TOO_SMALL = "receive buffer too small"
    BAD_RKEY = "bad rkey"
    NO_RECEIVE = "no receive posted, rnr_retry=0"
    NO_PEER = "peer silent, retry_cnt=1"
    FLUSH = "both QPs to ERR with work requests posted"
    POSTED_DEAD = "posted on a QP in ERR"


OPERATIONS = {
    Outcome.SUCCESS: [SEND, SEND_IMM, WRITE, WRITE_IMM, READ],
    Outcome.TOO_SMALL: [SEND, SEND_IMM],
    Outcome.BAD_RKEY: [WRITE, WRITE_IMM, READ],
    Outcome.NO_RECEIVE: [SEND, SEND_IMM, WRITE_IMM],
    Outcome.NO_PEER: [SEND, SEND_IMM, WRITE, WRITE_IMM, READ],
    Outcome.FLUSH: [SEND, SEND_IMM, WRITE, WRITE_IMM, READ],
    Outcome.POSTED_DEAD: [SEND, SEND_IMM, WRITE, WRITE_IMM, READ],
}


@dataclass(frozen=True)
class Case:
    outcome: Outcome
    op: WROpcode
    sig_all: bool
    flags: SendFlags
    arm: Arm

    def __str__(self) -> str:
        names = "|".join(f.name or "" for f in (SIGNALED, SOLICITED) if f in self.flags) or "0"
        return f"{self.op.name}, sq_sig_all={self.sig_all:d}, send_flags={names}, {self.arm.value}"


def cases(outcome: Outcome, op: WROpcode) -> list[Case]:
    flags = [NONE, SIGNALED]
    if op in TAKES_A_RECEIVE:
        flags += [SOLICITED, SIGNALED | SOLICITED]
    rows = itertools.product([False, True], flags, Arm)
    return [Case(outcome, op, *row) for row in rows]


def expected_statuses(case: Case, side: Side, rxe: bool) -> list[WCStatus]:
    """The completions of a case: of a failed work request always, of a success if asked for."""
    if side is Side.SENDER:
        if case.outcome is Outcome.SUCCESS:
            return [SUCCESS] if case.sig_all or SIGNALED in case.flags else []
        return [
            {
                Outcome.TOO_SMALL: WCStatus.REM_OP_ERR if rxe else WCStatus.REM_INV_REQ_ERR,
                Outcome.BAD_RKEY: WCStatus.REM_ACCESS_ERR,
                Outcome.NO_RECEIVE: WCStatus.RNR_RETRY_EXC_ERR,
                Outcome.NO_PEER: WCStatus.RETRY_EXC_ERR,
                Outcome.FLUSH: FLUSHED,
                Outcome.POSTED_DEAD: FLUSHED,
            }[case.outcome]
        ]
    if case.outcome is Outcome.SUCCESS:
        return [SUCCESS] if case.op in TAKES_A_RECEIVE else []
    if case.outcome is Outcome.TOO_SMALL:
        return [WCStatus.LOC_QP_OP_ERR if rxe else WCStatus.LOC_LEN_ERR]
    if case.outcome is Outcome.BAD_RKEY:
        # A message that takes a receive spoils it; the others spoil the QP.
        return [WCStatus.REM_ACCESS_ERR if rxe and case.op is WRITE_IMM else FLUSHED]
    return [FLUSHED] if case.outcome is Outcome.FLUSH else []


def expected_events(
    case: Case, side: Side, statuses: list[WCStatus], rxe: bool, kernel: tuple[int, int]
) -> int:
    """How many events a case raises on one side, given its completions there."""
    if case.arm is Arm.NOT or not statuses:
        return 0
    if case.arm is Arm.ANY:
        return 1
    # ibv_req_notify_cq(3): a receive of a message that was sent with SOLICITED, and whatever was
    # not successful.
    failed = any(status != SUCCESS for status in statuses)
    flushed = FLUSHED in statuses
    asked_for = side is Side.RECEIVER and SOLICITED in case.flags and not flushed
    if not rxe:
        return int(asked_for or failed)
    # rxe: a failure by itself is not solicited, but for a receive that is flushed before 6.3.
    # Measured on 6.1 and 6.12.
    return int(asked_for or (side is Side.RECEIVER and flushed and kernel < (6, 3)))


def post(pair: Pair, case: Case, wr_id: int) -> None:
    a, b = pair
    options: dict[str, Any] = {}
    if case.op in (SEND_IMM, WRITE_IMM):
        options["imm_data"] = 7
    if case.op in REMOTE:
        wrong = case.outcome is Outcome.BAD_RKEY
        options |= {"remote_addr": b.mr.addr, "rkey": b.mr.rkey ^ (0xFF if wrong else 0)}
    a.qp.post_send(a.mr[0:64], wr_id=wr_id, opcode=case.op, send_flags=case.flags, **options)


class Watch:
    """One side's CQ, alone on its channel as far as events go, and what it brought."""

    def __init__(self, cq: CQ) -> None:
        self.cq = cq
        assert cq.channel is not None
        self.channel = cq.channel
        self.completions: list[WorkCompletion] = []
        self.events = 0

    def has(self, n: int) -> bool:
        """Whether n completions came, without arming."""
        self.completions += self.cq.poll()
        return len(self.completions) >= n

    def wait_event(self) -> None:
        with suppress(TimeoutError):
            self.channel.get_event(timeout=PATIENCE).ack()
            self.events += 1

    def take_events(self) -> None:
        while (cq := self.channel.try_get_event()) is not None:
            cq.ack()
            self.events += 1

    def take(self) -> tuple[list[tuple[int, WCStatus | int]], int]:
        """What came since the last call: completions as (wr_id, status), and events."""
        self.take_events()
        seen = [(wc.wr_id, wc.status) for wc in self.completions], self.events
        self.completions, self.events = [], 0
        return seen


class Stage:
    """A pair on which the cases of one operation and outcome are played, one after the other."""

    OPTIONS: ClassVar[dict[str, int]] = {"rnr_retry": 0}
    SEND, RECEIVE, PROBE = 1, 2, 3

    def __init__(self, ctx: Context, sig_all: bool) -> None:
        self.a = Endpoint(ctx, QPType.RC, sq_sig_all=sig_all)
        self.b = Endpoint(ctx, QPType.RC)
        connect(self.a, self.b, **self.OPTIONS)
        self.watches = {Side.SENDER: Watch(self.a.scq), Side.RECEIVER: Watch(self.b.rcq)}
        self.rxe = is_rxe(ctx)

    def play(self, case: Case) -> Iterator[str]:
        """Yields what is not as it should be."""
        want = {}
        for side in Side:
            statuses = expected_statuses(case, side, self.rxe)
            events = expected_events(case, side, statuses, self.rxe, kernel())
            wr_id = self.SEND if side is Side.SENDER else self.RECEIVE
            want[side] = [(wr_id, status) for status in statuses], events
        self.prepare(case)
        for watch in self.watches.values():
            if case.arm is not Arm.NOT:
                watch.cq.req_notify(solicited_only=case.arm is Arm.SOLICITED)
        self.act(case)
        for side, (completions, events) in want.items():
            watch = self.watches[side]
            with suppress(AssertionError):  # told of below
                until(partial(watch.has, len(completions)), "completions", PATIENCE)
            if events:
                watch.wait_event()
        self.recover(case)
        self.probe()
        for side, (completions, events) in want.items():
            got = self.watches[side].take()
            # The probe has a completion and an event of its own.
            if got != ([*completions, (self.PROBE, SUCCESS)], events + 1):
                yield f"{case}, {side.value}: {got}; before the probe: {completions}, {events}"

    def prepare(self, case: Case) -> None:
        a, b = self.a, self.b
        if case.outcome is Outcome.NO_PEER:
            reset(a, b)
            a.qp.connect(b.qp.address(), timeout=8, retry_cnt=1)
        elif case.outcome is Outcome.FLUSH:
            # In INIT the peer holds receives and answers nothing; timeout=0 waits for ever.
            reset(a, b)
            a.qp.connect(b.qp.address(), timeout=0)
            b.qp.to_init()
            b.qp.post_recv(b.mr[0:64], wr_id=self.RECEIVE)
        elif case.outcome is Outcome.TOO_SMALL:
            b.qp.post_recv(b.mr[0:8], wr_id=self.RECEIVE)
        elif case.outcome is Outcome.BAD_RKEY or (
            case.outcome is Outcome.SUCCESS and case.op in TAKES_A_RECEIVE
        ):
            b.qp.post_recv(b.mr[0:64], wr_id=self.RECEIVE)
        elif case.outcome is Outcome.POSTED_DEAD:
            a.qp.modify(qp_state=QPState.ERR)

    def act(self, case: Case) -> None:
        post((self.a, self.b), case, self.SEND)
        if case.outcome is Outcome.FLUSH:
            self.a.qp.modify(qp_state=QPState.ERR)
            self.b.qp.modify(qp_state=QPState.ERR)

    def recover(self, case: Case) -> None:
        """The QPs are as new, and whatever they still completed is in the CQs."""
        if case.outcome is not Outcome.SUCCESS:
            reset(self.a, self.b)
            connect(self.a, self.b, **self.OPTIONS)

    def probe(self) -> None:
        """A later event on both channels: what came before it came of the case.

        In a case of success it goes over the same QP, so it completes after the case has.
        """
        for watch in self.watches.values():
            watch.take_events()
            watch.cq.req_notify()
        self.b.qp.post_recv(self.b.mr[0:64], wr_id=self.PROBE)
        self.a.qp.post_send(self.a.mr[0:8], wr_id=self.PROBE)
        for watch in self.watches.values():
            watch.wait_event()
            until(partial(self.probed, watch), "the probe")

    def probed(self, watch: Watch) -> bool:
        return watch.has(1) and watch.completions[-1].wr_id == self.PROBE


def reset(*endpoints: Endpoint) -> None:
    for endpoint in endpoints:
        endpoint.qp.modify(qp_state=QPState.RESET)


@pytest.mark.parametrize(
    ("outcome", "op"),
    [(outcome, op) for outcome, ops in OPERATIONS.items() for op in ops],
    ids=lambda value: value.name,
)
def test_every_row_of_the_table_holds(ctx: Context, outcome: Outcome, op: WROpcode) -> None:
    """A row that fails is told of by its name; the others are still looked at."""
    stages = {sig_all: Stage(ctx, sig_all) for sig_all in (False, True)}
    wrong: list[str] = []
    for case in cases(outcome, op):
        wrong += stages[case.sig_all].play(case)
        assert len(wrong) < 12, wrong
    for stage in stages.values():
        for side, watch in stage.watches.items():
            late = watch.take()
            if late != ([], 0):
                wrong.append(f"{side.value}: {late} after the last case")
    assert not wrong, "\n".join(["", *wrong])


# The rules of arming. An event is raised before the receiver acknowledges the message, so when the
# sender has its completion and no event is there, there will be none.


def message(pair: Pair, flags: SendFlags = SIGNALED) -> None:
    """One message, completed on both sides: a's completion is taken, b's stays.

    The event of b's, if there is one, has been raised.
    """
    a, b = pair
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:64], send_flags=flags | SIGNALED)
    until(lambda: len(a.scq.poll()) == 1, "sent")


def takes_one_event(cq: CQ, n: int) -> None:
    """The channel has exactly one event, which is this CQ's, and the CQ n completions."""
    watch = Watch(cq)
    assert watch.channel.get_event(timeout=DEADLINE) is cq
    cq.ack()
    until(partial(watch.has, n), f"{n} completions")
    assert len(watch.completions) == n
    assert watch.channel.try_get_event() is None


@pytest.fixture
def shared_pair(ctx: Context) -> Pair:
    """Each side has one CQ for both directions."""
    return connect(Endpoint(ctx, QPType.RC, one_cq=True), Endpoint(ctx, QPType.RC, one_cq=True))


def test_a_solicited_arm_outlasts_all_that_is_not_solicited(shared_pair: Pair) -> None:
    """Sends of our own, SOLICITED or not, plain messages in, and writes with immediate data."""
    a, b = shared_pair
    b.scq.req_notify(solicited_only=True)
    for _ in range(20):
        message((a, b))
    for flags in (SIGNALED, SIGNALED | SOLICITED):
        a.qp.post_recv(a.mr[0:64])
        b.qp.post_send(b.mr[0:64], send_flags=flags)
    until(lambda: len(a.scq.poll(1)) == 1, "one at the peer")
    until(lambda: len(a.scq.poll(1)) == 1, "the other at the peer")
    b.qp.post_recv(None)
    a.qp.post_send(a.mr[0:8], opcode=WRITE_IMM, imm_data=1, remote_addr=b.mr.addr, rkey=b.mr.rkey)
    until(lambda: len(a.scq.poll()) == 1, "written")
    assert b.channel.try_get_event() is None
    message((a, b), SOLICITED)
    takes_one_event(b.scq, 20 + 2 + 1 + 1)


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_whoever_armed_any_hears_of_a_failed_send(ctx: Context, first: bool, second: bool) -> None:
    """Also where a failure is not solicited: a solicited arm besides it takes nothing away."""
    a, _ = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC), rnr_retry=0)
    a.scq.req_notify(first)
    a.scq.req_notify(second)
    a.qp.post_send(a.mr[0:8])
    takes_one_event(a.scq, 1)


def test_a_solicited_completion_that_waits_raises_no_event_when_arming(pair: Pair) -> None:
    b = pair[1]
    message(pair, SOLICITED)
    b.rcq.req_notify(solicited_only=True)
    message(pair)
    assert b.channel.try_get_event() is None
    message(pair, SOLICITED)
    takes_one_event(b.rcq, 3)


def test_an_event_uses_up_the_arm_of_either_kind(pair: Pair) -> None:
    b = pair[1]
    for solicited_only in (True, False):
        b.rcq.req_notify(solicited_only)
        message(pair, SOLICITED)
        takes_one_event(b.rcq, 1)
        for _ in range(3):
            message(pair, SOLICITED)
        assert b.channel.try_get_event() is None
        b.rcq.req_notify(solicited_only)
        message(pair, SOLICITED)
        takes_one_event(b.rcq, 4)
    assert b.rcq.stats.events == 4


def test_arming_again_and_again_in_both_ways_raises_one_event(pair: Pair) -> None:
    b = pair[1]
    for solicited_only in (True, False, True, True, False, True):
        b.rcq.req_notify(solicited_only)
    message(pair, SOLICITED)
    message(pair, SOLICITED)
    b.rcq.req_notify()
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert b.channel.try_get_event() is None
    message(pair)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert (b.rcq.stats.arms, b.rcq.stats.events) == (7, 2)


def test_polling_leaves_the_arm_alone(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify(solicited_only=True)
    for _ in range(3):
        assert b.rcq.poll() == []
        message(pair)
        assert len(b.rcq.poll()) == 1
        assert b.channel.try_get_event() is None
    message(pair, SOLICITED)
    takes_one_event(b.rcq, 1)


def test_an_armed_cq_waits_while_the_other_one_of_its_channel_fires(pair: Pair) -> None:
    """The send CQ and the receive CQ of one side share a channel."""
    a, b = pair
    b.scq.req_notify()
    for flags in (SIGNALED, SOLICITED):
        b.rcq.req_notify(solicited_only=flags == SOLICITED)
        message((a, b), flags)
        takes_one_event(b.rcq, 1)
    b.rcq.req_notify(solicited_only=True)
    for flags in (SIGNALED, SIGNALED | SOLICITED):
        a.qp.post_recv(a.mr[0:64])
        b.qp.post_send(b.mr[0:64], send_flags=flags)
        takes_one_event(b.scq, 1)
        b.scq.req_notify()
    message((a, b), SOLICITED)
    takes_one_event(b.rcq, 1)
    assert (b.scq.stats.events, b.rcq.stats.events) == (2, 3)
