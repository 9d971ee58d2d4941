# SPDX-License-Identifier: MIT
import gc
import select

import pytest
from support import DEADLINE, Endpoint, connect, until, wait_completions, wait_one

from cqnotify import (
    CQ,
    QP,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPType,
    SendFlags,
    WCStatus,
    WorkCompletion,
)

Pair = tuple[Endpoint, Endpoint]
SIGNALED, SOLICITED = SendFlags.SIGNALED, SendFlags.SOLICITED


def send(pair: Pair, n: int = 1, flags: SendFlags = SIGNALED) -> None:
    a, b = pair
    for i in range(n):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
        a.qp.post_send(a.mr[0:8], wr_id=i, send_flags=flags)
    wait_completions(a.scq, n)


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


@pytest.mark.parametrize("bad", [0, -1, 1 << 31, 1 << 64])
def test_entries_out_of_range_are_refused_with_the_limit(ctx: Context, bad: int) -> None:
    with pytest.raises(ValueError, match="cqe is"):
        CQ(ctx, bad)


def test_one_more_entry_than_the_device_takes_is_refused(ctx: Context) -> None:
    limit = ctx.query_device().max_cqe
    with pytest.raises(ValueError, match=f"cqe is {limit + 1}: it must be 1 to {limit}"):
        CQ(ctx, limit + 1)
    CQ(ctx, limit).close()


@pytest.mark.parametrize("bad", ["64", 64.0, None])
def test_entries_of_a_wrong_type_are_refused(ctx: Context, bad: object) -> None:
    with pytest.raises(TypeError, match="cqe must be an integer"):
        CQ(ctx, bad)  # type: ignore[arg-type]


def test_a_comp_vector_that_does_not_exist_is_refused(ctx: Context) -> None:
    with pytest.raises(ValueError, match="comp_vector is"):
        CQ(ctx, 4, comp_vector=ctx.num_comp_vectors)
    CQ(ctx, 4, comp_vector=ctx.num_comp_vectors - 1).close()


def test_a_channel_of_another_context_is_refused(ctx: Context) -> None:
    with Context(ctx.name) as other:
        channel = CompletionChannel(other)
        with pytest.raises(ValueError, match="another Context"):
            CQ(ctx, 4, channel=channel)


def test_wrong_types_and_unknown_arguments_are_refused(ctx: Context) -> None:
    with pytest.raises(TypeError, match="channel must be a cqnotify.CompletionChannel"):
        CQ(ctx, 4, channel=ctx)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context must be a cqnotify.Context"):
        CQ(None, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        CQ(ctx, 4, nonsense=1)  # type: ignore[call-arg]


def test_user_data_is_kept_and_may_be_a_cycle(ctx: Context) -> None:
    cq = CQ(ctx, 4, user_data="mine")
    assert cq.user_data == "mine"
    cq.user_data = cq
    del cq
    gc.collect()


def test_poll_returns_what_there_is_up_to_max_entries(pair: Pair) -> None:
    b = pair[1]
    send(pair, 5)
    got = [wait_poll(b.rcq, 1), wait_poll(b.rcq, 3), wait_poll(b.rcq, 1)]
    assert [[wc.wr_id for wc in batch] for batch in got] == [[0], [1, 2, 3], [4]]
    assert b.rcq.poll() == []


@pytest.mark.parametrize("bad", [0, -1, 1 << 31])
def test_poll_refuses_a_number_out_of_range(cq: CQ, bad: int) -> None:
    with pytest.raises(ValueError, match="max_entries is"):
        cq.poll(bad)


def test_poll_refuses_a_wrong_type_and_unknown_arguments(cq: CQ) -> None:
    with pytest.raises(TypeError, match="max_entries must be an integer, not str"):
        cq.poll("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'n'"):
        cq.poll(n=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="at most 1 positional"):
        cq.poll(1, 2)  # type: ignore[call-arg]


def test_not_armed_no_event(pair: Pair) -> None:
    send(pair, 3, SIGNALED | SOLICITED)
    assert len(wait_poll(pair[1].rcq, 3)) == 3
    assert not arrived(pair[1])


def test_armed_any_raises_one_event_for_many_completions(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    send(pair, 5)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    assert len(wait_poll(b.rcq, 5)) == 5
    assert b.channel.try_get_event() is None
    assert b.rcq.stats.events == 1


def test_solicited_only_sleeps_through_a_plain_message(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify(solicited_only=True)
    send(pair, 3)
    assert len(wait_poll(b.rcq, 3)) == 3
    assert not arrived(b)
    send(pair, 1, SIGNALED | SOLICITED)
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
    send(pair, 5)
    assert b.channel.get_event(timeout=DEADLINE) is b.rcq
    wait_poll(b.rcq, 5)
    assert b.channel.try_get_event() is None
    assert b.rcq.stats.arms == 5


def test_solicited_after_any_does_not_weaken_and_any_after_solicited_widens(pair: Pair) -> None:
    b = pair[1]
    for first, second in ((False, True), (True, False)):
        b.rcq.req_notify(first)
        b.rcq.req_notify(second)
        send(pair)
        assert b.channel.get_event(timeout=DEADLINE) is b.rcq
        b.rcq.ack()
        wait_poll(b.rcq, 1)


def test_an_event_can_come_with_an_empty_cq(pair: Pair) -> None:
    b = pair[1]
    b.rcq.req_notify()
    send(pair)
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
    send(pair)
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
    send(pair)
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
    send(pair)
    wait_one(b.rcq)


def test_every_method_of_a_closed_cq_is_a_closed_error(cq: CQ, pair: Pair) -> None:
    cq.close()
    cq.close()
    assert cq.closed
    for call in (
        cq.poll,
        cq.req_notify,
        cq.ack,
        lambda: cq.cqe,
        lambda: cq.channel,
        lambda: cq.context,
        lambda: cq.unacked,
        lambda: cq.comp_vector,
        lambda: QP(pair[0].pd, QPType.RC, send_cq=cq),
    ):
        with pytest.raises(ClosedError):
            call()
    assert cq.stats.events == 0


def test_stats_count_everything(pair: Pair) -> None:
    b = pair[1]
    before = b.rcq.stats
    assert before == (0, 0, 0, 0, 0, 0)
    b.rcq.req_notify()
    send(pair, 2)
    b.channel.get_event(timeout=DEADLINE).ack()
    wait_poll(b.rcq, 2)
    stats = b.rcq.stats
    assert (stats.events, stats.acked, stats.arms, stats.completions) == (1, 1, 1, 2)
    assert stats.polls >= 1


def test_completions_of_a_closed_qp_are_still_there(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    send((a, b), 3)
    b.qp.close()
    assert len(wait_poll(b.rcq, 3)) == 3


def test_a_new_qp_does_not_lose_what_waits_in_its_cq(ctx: Context) -> None:
    """Making a QP takes the CQ's completions off the device: none may vanish."""
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    send((a, b), 20)
    other = QP(b.pd, QPType.RC, send_cq=b.rcq)
    assert len(b.rcq.poll(7)) == 7
    send((a, b), 5)
    got = wait_poll(b.rcq, 18)
    assert [wc.wr_id for wc in got] == [*range(7, 20), *range(5)]
    other.close()


def test_a_failed_receive_says_what_went_wrong(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:4], wr_id=5)
    a.qp.post_send(a.mr[0:64], wr_id=6)
    wait_one(b.rcq, WCStatus.LOC_QP_OP_ERR)
    wait_one(a.scq, WCStatus.REM_OP_ERR)
