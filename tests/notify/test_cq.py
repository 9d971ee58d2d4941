# SPDX-License-Identifier: MIT
import gc
import select

import pytest
from support import DEADLINE, Endpoint, Pair, connect, deliver, until, wait_one

from cqnotify import CQ, QP, BusyError, Context, QPType, SendFlags, WCStatus, WorkCompletion

SIGNALED, SOLICITED = SendFlags.SIGNALED, SendFlags.SOLICITED


def arrived(b: Endpoint) -> bool:
    """Whether an event waits on the channel."""
    return bool(select.select([b.channel], [], [], 0)[0])


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
        with CQ(ctx, cqe) as cq:
            assert cq.cqe >= cqe
            assert cq.channel is None
            assert cq.context is ctx
            assert cq.comp_vector == 0
            assert cq.unacked == 0


def test_user_data_is_kept_and_may_be_a_cycle(ctx: Context) -> None:
    cq = CQ(ctx, 4, user_data="mine")
    assert cq.user_data == "mine"
    cq.user_data = cq
    del cq
    gc.collect()


def test_poll_returns_what_there_is_up_to_max_entries(pair: Pair) -> None:
    b = pair[1]
    deliver(pair, range(5))
    got = [wait_poll(b.rcq, 1), wait_poll(b.rcq, 3), wait_poll(b.rcq, 1)]
    assert [[wc.wr_id for wc in batch] for batch in got] == [[0], [1, 2, 3], [4]]
    assert b.rcq.poll() == []


def test_not_armed_no_event(pair: Pair) -> None:
    deliver(pair, range(3), SIGNALED | SOLICITED)
    assert len(wait_poll(pair[1].rcq, 3)) == 3
    assert not arrived(pair[1])


def test_armed_any_raises_one_event_for_many_completions(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    deliver(pair, range(5))
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert len(wait_poll(b.rcq, 5)) == 5
    assert b.channel.try_get_event() is None
    assert b.rcq.stats.events == 1


def test_solicited_only_sleeps_through_a_plain_message(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify(solicited_only=True)
    deliver(pair, range(3))
    assert len(wait_poll(b.rcq, 3)) == 3
    assert not arrived(b)
    deliver(pair, range(1), SIGNALED | SOLICITED)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert b.rcq.stats.events == 1


def test_arming_with_completions_queued_raises_no_event(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8])
    until(lambda: len(a.scq.poll()) == 1, "sent")
    # Acknowledged is received: the completion is in the receiver's CQ by now.
    b.rcq.req_notify()
    assert not arrived(b)
    assert len(wait_poll(b.rcq, 1)) == 1


def test_arming_five_times_raises_one_event(pair: Pair) -> None:
    b = pair[1]
    for _ in range(5):
        b.rcq.req_notify()
    deliver(pair, range(5))
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    wait_poll(b.rcq, 5)
    assert b.channel.try_get_event() is None
    assert b.rcq.stats.arms == 5


def test_solicited_after_any_does_not_weaken_and_any_after_solicited_widens(pair: Pair) -> None:
    b = pair[1]
    for first, second in ((False, True), (True, False)):
        b.rcq.req_notify(first)
        b.rcq.req_notify(second)
        deliver(pair)
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
        b.rcq.ack()
        wait_poll(b.rcq, 1)


def test_an_event_can_come_with_an_empty_cq(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    deliver(pair)
    assert len(wait_poll(b.rcq, 1)) == 1
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert b.rcq.poll() == []
    assert b.rcq.stats.spurious == 1


def test_arming_without_a_channel_is_refused(ctx: Context) -> None:
    with CQ(ctx, 4) as cq, pytest.raises(ValueError, match="without a channel"):
        cq.req_notify()


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


@pytest.mark.parametrize("state", ["unread", "read", "acked"])
def test_closing_never_hangs_whatever_became_of_the_event(pair: Pair, state: str) -> None:
    b = pair[1]
    b.rcq.req_notify()
    deliver(pair)
    if state != "unread":
        b.channel.get_event(timeout=DEADLINE)
    if state == "acked":
        b.rcq.ack()
    b.qp.close()
    b.rcq.close()
    assert b.rcq.closed
    stats = b.rcq.stats
    assert stats.events == stats.acked == (0 if state == "unread" else 1)
    assert b.channel.try_get_event() is None
    b.scq.close()
    b.channel.close()


def test_a_cq_with_queue_pairs_is_busy_and_stays_usable(pair: Pair) -> None:
    b = pair[1]
    with pytest.raises(BusyError, match="1 QP") as e:
        b.rcq.close()
    assert e.value.verb == "ibv_destroy_cq"
    deliver(pair)
    wait_one(b.rcq)


def test_stats_count_everything(pair: Pair) -> None:
    b = pair[1]
    before = b.rcq.stats
    assert before == (0, 0, 0, 0, 0, 0)
    b.rcq.req_notify()
    deliver(pair, range(2))
    b.channel.get_event(timeout=DEADLINE).ack()
    wait_poll(b.rcq, 2)
    stats = b.rcq.stats
    assert (stats.events, stats.acked, stats.arms, stats.completions) == (1, 1, 1, 2)
    assert stats.polls >= 1


def test_completions_of_a_closed_qp_are_still_there(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    deliver((a, b), range(3))
    b.qp.close()
    assert len(wait_poll(b.rcq, 3)) == 3


def test_a_new_qp_does_not_lose_what_waits_in_its_cq(ctx: Context) -> None:
    """Making a QP takes the CQ's completions off the device: none may vanish."""
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    deliver((a, b), range(20))
    other = QP(b.pd, QPType.RC, send_cq=b.rcq)
    assert len(b.rcq.poll(7)) == 7
    deliver((a, b), range(5))
    got = wait_poll(b.rcq, 18)
    assert [wc.wr_id for wc in got] == [*range(7, 20), *range(5)]
    other.close()


def test_a_failed_receive_says_what_went_wrong(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:4], wr_id=5)
    a.qp.post_send(a.mr[0:64], wr_id=6)
    wait_one(b.rcq, WCStatus.LOC_QP_OP_ERR)
    wait_one(a.scq, WCStatus.REM_OP_ERR)
