# SPDX-License-Identifier: MIT

import pytest
from support import DEADLINE, Pair, deliver, is_rxe, until

from cqnotify import (
    CQ,
    QP,
    Context,
    CQCreateFlags,
    QPState,
    QPType,
    VerbsError,
    WCExFlags,
    WorkCompletion,
)


def wait_poll(cq: CQ, n: int) -> list[WorkCompletion]:
    """n completions without arming."""
    got: list[WorkCompletion] = []

    def more() -> bool:
        got.extend(cq.poll(n - len(got)))
        return len(got) == n

    until(more, f"{n} completions")
    return got


def test_a_cq_has_at_least_the_entries_that_were_asked_for(ctx: Context) -> None:
    for cqe in (1, 2, 3, 64, 1000):
        with CQ(ctx, cqe, user_data="mine") as cq:
            assert cq.cqe >= cqe
            assert cq.channel is None
            assert cq.context is ctx
            assert cq.comp_vector == 0
            assert cq.unacked == 0
            assert cq.user_data == "mine"


def test_a_cq_for_one_thread_has_the_usual_fields(ctx: Context, pair: Pair) -> None:
    b = pair[1]
    with (
        CQ(ctx, 4, create_flags=CQCreateFlags.SINGLE_THREADED) as cq,
        QP(b.pd, QPType.UD, send_cq=cq) as qp,
    ):
        assert cq.wc_flags is not None
        assert cq.wc_flags & WCExFlags.BYTE_LEN
        qp.connect()
        qp.post_recv(b.mr, wr_id=5)
        qp.modify(qp_state=QPState.ERR)
        assert wait_poll(cq, 1)[0].wr_id == 5


def test_a_device_looks_for_overruns_or_says_that_it_does(ctx: Context) -> None:
    if is_rxe(ctx):
        with pytest.raises(VerbsError, match="ibv_create_cq_ex.*with these create_flags"):
            CQ(ctx, 4, create_flags=CQCreateFlags.IGNORE_OVERRUN)
    with pytest.raises(ValueError, match="create_flags is 0x8: 0x8 is no flag of CQCreateFlags"):
        CQ(ctx, 4, create_flags=8)


@pytest.mark.not_on_iwarp("siw raises no event for a solicited message, but for its send")
def test_solicited_after_any_does_not_weaken_and_any_after_solicited_widens(pair: Pair) -> None:
    b = pair[1]
    for first, second in ((False, True), (True, False)):
        b.rcq.req_notify(first)
        b.rcq.req_notify(second)
        deliver(pair)
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
        b.rcq.ack()
        wait_poll(b.rcq, 1)


def test_without_a_channel_nothing_is_armed(ctx: Context) -> None:
    with CQ(ctx, 4) as cq:
        for call in (cq.req_notify, cq.arm_if_empty):
            with pytest.raises(ValueError, match="without a channel"):
                call()


def test_acking_more_than_was_got_is_refused(pair: Pair) -> None:
    b = pair[1]
    with pytest.raises(ValueError, match="0 unacked events"):
        b.rcq.ack()
    b.rcq.req_notify()
    deliver(pair)
    b.channel.get_event(timeout=DEADLINE)
    with pytest.raises(ValueError, match="n is 2: this CQ has 1 unacked event"):
        b.rcq.ack(2)
    with pytest.raises(ValueError, match="n is -1"):
        b.rcq.ack(-1)
    with pytest.raises(ValueError, match="unacked"):
        b.scq.ack()
    b.rcq.ack(0)
    b.rcq.ack()
    assert b.rcq.unacked == 0
    with pytest.raises(ValueError, match="unacked"):
        b.rcq.ack()


def test_a_new_qp_does_not_lose_what_waits_in_its_cq(pair: Pair) -> None:
    """Making a QP takes the CQ's completions off the device: none may vanish."""
    b = pair[1]
    deliver(pair, range(20))
    other = QP(b.pd, QPType.RC, send_cq=b.rcq)
    assert len(b.rcq.poll(7)) == 7
    deliver(pair, range(5))
    got = wait_poll(b.rcq, 18)
    assert [wc.wr_id for wc in got] == [*range(7, 20), *range(5)]
    other.close()
