# SPDX-License-Identifier: MIT
"""Which completions raise an event: what Soft-RoCE does in every row, and the rules of arming."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import DEADLINE, Endpoint, Pair, connect, is_rxe, kernel, until

from cqnotify import CQ, Context, QPType, SendFlags, WCStatus, WorkCompletion, WROpcode
from cqnotify.conformance import Arm, Case, Outcome, Queue, Row, cases

SIGNALED, SOLICITED = SendFlags.SIGNALED, SendFlags.SOLICITED
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
WRITE_IMM = WROpcode.RDMA_WRITE_WITH_IMM

TAKES_A_RECEIVE = ("SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE_WITH_IMM")
BRINGS_DATA = ("RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
OF_THE_RECEIVER = (Outcome.BAD_RECV_LKEY, Outcome.BAD_RKEY, Outcome.TOO_SMALL)
OLD = kernel() < (6, 3)  # where a flush of receives changed; the rest did between 6.1 and 6.12


# What rxe does in every case, measured on 6.1, 6.12 and 7.2.


def sent(case: Case) -> WCStatus | None:
    """The completion at the sender, None for none: of what fails always, else if asked for."""
    asked_for = case.sq_sig_all or SIGNALED in case.send_flags
    untold = case.qp_type != QPType.RC and case.outcome in OF_THE_RECEIVER
    if (case.operation, case.qp_type, case.outcome) == ("LOCAL_INV", QPType.UC, Outcome.SUCCESS):
        # It is taken, and can not be done.
        return WCStatus.LOC_QP_OP_ERR if OLD else FLUSHED
    if untold or case.outcome is Outcome.SUCCESS:
        return SUCCESS if asked_for else None
    if case.outcome is Outcome.BAD_LKEY:
        if case.operation in BRINGS_DATA:
            return WCStatus.LOC_PROT_ERR
        return WCStatus.LOC_QP_OP_ERR if OLD else FLUSHED
    return {
        Outcome.BAD_RECV_LKEY: WCStatus.REM_OP_ERR,
        Outcome.BAD_RKEY: WCStatus.REM_ACCESS_ERR,
        Outcome.TOO_SMALL: WCStatus.REM_OP_ERR,
        Outcome.NO_RECEIVE: WCStatus.RNR_RETRY_EXC_ERR,
        Outcome.NO_PEER: WCStatus.RETRY_EXC_ERR,
        Outcome.FLUSH: FLUSHED,
        Outcome.POSTED_IN_ERR: FLUSHED,
    }[case.outcome]


def received(case: Case) -> WCStatus | None:
    """The completion at the receiver; what is posted on a QP in ERR stays for ever."""
    if case.outcome is Outcome.SUCCESS:
        return SUCCESS if case.operation in TAKES_A_RECEIVE else None
    if case.outcome is Outcome.BAD_RKEY and case.qp_type == QPType.RC:
        # What takes a receive spoils it, the rest spoils the QP.
        return WCStatus.REM_ACCESS_ERR if case.operation in TAKES_A_RECEIVE else FLUSHED
    if case.outcome is Outcome.TOO_SMALL and case.qp_type == QPType.UD and not OLD:
        return None
    return {
        Outcome.BAD_RECV_LKEY: WCStatus.LOC_QP_OP_ERR,
        Outcome.TOO_SMALL: WCStatus.LOC_QP_OP_ERR,
        Outcome.FLUSH: FLUSHED,
    }.get(case.outcome)


def events(case: Case, queue: Queue, status: WCStatus | None) -> int:
    """A failure by itself is not solicited, but for a receive that older kernels flush."""
    if case.armed is Arm.NOT or status is None:
        return 0
    if case.armed is Arm.ANY:
        return 1
    if queue is Queue.SEND:
        return 0
    return int(OLD if status == FLUSHED else SOLICITED in case.send_flags)


def as_known(row: Row) -> bool:
    """Whether rxe did what it is known to do."""
    status = sent(row.case) if row.queue is Queue.SEND else received(row.case)
    statuses = () if status is None else (status,)
    return (row.statuses, row.events, row.refusal) == (
        statuses,
        events(row.case, row.queue, status),
        None,
    )


@pytest.mark.not_on_iwarp("siw raises no event for a solicited message, but for its send")
@pytest.mark.parametrize(
    ("outcome", "operation"),
    dict.fromkeys((case.outcome, case.operation) for case in cases()),
    ids=lambda value: getattr(value, "name", value),
)
def test_every_row_of_the_table_holds(
    ctx: Context, rows_of: Callable[[Outcome], tuple[Row, ...]], outcome: Outcome, operation: str
) -> None:
    """On another device than rxe: the manual's word holds."""
    rows = [row for row in rows_of(outcome) if row.case.operation == operation]
    wrong = [row for row in rows if not (as_known(row) if is_rxe(ctx) else not row.deviations)]
    assert not wrong, "\n".join(["", *map(str, wrong[:12])])
    assert rows


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
    assert cq.channel is not None
    assert cq.channel.get_event(timeout=DEADLINE) is cq
    cq.ack()
    got: list[WorkCompletion] = []
    until(lambda: got.extend(cq.poll()) or len(got) >= n, f"{n} completions")
    assert len(got) == n
    assert cq.channel.try_get_event() is None


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


@pytest.mark.not_on_iwarp("siw raises no event for a solicited message, but for its send")
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
