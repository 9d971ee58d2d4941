# SPDX-License-Identifier: MIT
"""What a TimeoutError says of its cause."""

import asyncio
import re
import signal
import threading

import pytest
from support import UNSIGNALED, Endpoint, Pair, Waiter, deliver, is_asleep, until

from cqnotify import (
    CQ,
    PD,
    SRQ,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    WCStatus,
    WROpcode,
)
from cqnotify.aio import AsyncCQ
from cqnotify.testing import connect, wait_completions

PREFIX = "no completion event within the timeout; "


def why(channel: CompletionChannel) -> str:
    """Numbers of QPs and handles left out."""
    with pytest.raises(TimeoutError) as e:
        channel.get_event(timeout=0)
    assert str(e.value).startswith(PREFIX)
    return re.sub(r"(QP|handle) \d+", r"\1 N", str(e.value).removeprefix(PREFIX))


@pytest.fixture
def alone(ctx: Context) -> Pair:
    """Ends with one CQ each, so that a message means `the CQ`."""
    ends = [Endpoint(ctx, QPType.RC, one_cq=True) for _ in range(2)]
    return connect(*ends, ack_timeout=10, retry_cnt=7, rnr_retry=7, min_rnr_timer=1)


def test_a_cq_that_is_not_armed_and_holds_a_completion(alone: Pair) -> None:
    deliver(alone)
    b = alone[1]
    text = "the CQ holds 1 completion and is not armed: poll, and call arm_if_empty() before "
    assert why(b.channel) == text + "each wait"
    assert b.recv_cq.stats.polls == 0  # the message was no look of the program's
    assert len(b.recv_cq.poll()) == 1  # and has lost nothing
    assert why(b.channel) == "the CQ is not armed: call arm_if_empty() before each wait"


def test_a_cq_that_was_armed_after_completions_had_come(alone: Pair) -> None:
    deliver(alone, range(20))
    b = alone[1]
    b.recv_cq.req_notify()
    text = "the CQ holds 16 completions or more from before it was armed: poll after arming, as "
    assert why(b.channel) == text + "arm_if_empty() does"
    assert why(b.channel) == text + "arm_if_empty() does"  # the first one changed nothing
    assert len(b.recv_cq.poll(32)) == 20


def test_a_cq_that_is_armed_for_solicited_completions_only(alone: Pair) -> None:
    b = alone[1]
    b.recv_cq.req_notify(solicited_only=True)
    deliver(alone)
    text = "the CQ holds 1 completion and is armed for solicited ones only: poll before each wait"
    assert why(b.channel) == text


def test_the_cq_of_several_is_named(alone: Pair, ctx: Context) -> None:
    b = alone[1]
    other = CQ(ctx, 4, channel=b.channel)
    assert why(b.channel) == (
        "none of the 2 CQs of this channel is armed: call arm_if_empty() before each wait"
    )
    deliver(alone)
    assert why(b.channel).startswith("the CQ with handle N holds 1 completion and is not armed")
    assert not other.closed


def test_the_name_of_a_cq_is_that_which_it_was_given(ctx: Context) -> None:
    channel = CompletionChannel(ctx)
    cqs = [CQ(ctx, 4, channel=channel, name=name) for name in ("idle", "busy")]
    a = Endpoint(ctx, QPType.RC)
    b = Endpoint(ctx, QPType.RC, channel=channel, send_cq=cqs[0], recv_cq=cqs[1])
    deliver(connect(a, b))
    assert why(channel).startswith("the CQ 'busy' holds 1 completion and is not armed")


def test_a_send_that_is_not_acknowledged(alone: Pair) -> None:
    """The peer has no receive posted."""
    a, b = alone
    a.qp.post_send(a.mr[0:8])
    with pytest.raises(TimeoutError) as e:
        wait_completions(a.send_cq, timeout=0)
    text = (
        f"0 of 1 completions within 0 s: []; 1 send of QP {a.qp.qp_num} is not acknowledged: the "
        "peer has no receive posted (RNR), or does not answer"
    )
    assert str(e.value) == text
    assert why(a.channel).startswith("1 send of QP N is not acknowledged")
    b.qp.post_recv(b.mr[0:64])
    assert wait_completions(a.send_cq)[0].status == WCStatus.SUCCESS


def test_a_receive_for_which_nothing_comes(alone: Pair) -> None:
    b = alone[1]
    b.recv_cq.req_notify()
    assert why(b.channel) == "QP N has no receive posted, and no send outstanding"
    b.qp.post_recv(b.mr[0:64])
    assert why(b.channel) == "QP N has 1 receive posted, for which nothing has come"


def test_only_the_side_that_completes_there_is_told_of(pair: Pair) -> None:
    a, b = pair
    for end in pair:
        end.qp.post_recv(end.mr[0:64])
    with pytest.raises(TimeoutError, match=rf"QP {a.qp.qp_num} has no send outstanding$"):
        wait_completions(a.send_cq, timeout=0)
    with pytest.raises(TimeoutError, match=rf"QP {b.qp.qp_num} has 1 receive posted, for which "):
        wait_completions(b.recv_cq, timeout=0)


def test_the_receives_of_an_srq_count(ctx: Context) -> None:
    pd = PD(ctx)
    channel = CompletionChannel(ctx)
    srq = SRQ(pd, 4)
    end = Endpoint(ctx, QPType.RC, pd=pd, channel=channel, one_cq=True, srq=srq)
    connect(end, Endpoint(ctx, QPType.RC))
    end.recv_cq.req_notify()
    assert why(channel) == "QP N has no receive posted, and no send outstanding"
    srq.post_recv(end.mr[0:64])
    assert why(channel) == "QP N has 1 receive posted, for which nothing has come"


def test_a_queue_pair_that_is_not_connected(ctx: Context) -> None:
    end = Endpoint(ctx, QPType.RC, one_cq=True)
    end.recv_cq.req_notify()
    assert why(end.channel) == "QP N is in RESET: it is not connected"
    end.qp.to_init()
    end.qp.post_recv(end.mr[0:64])
    assert why(end.channel) == "QP N is in INIT: it is not connected"


def test_a_queue_pair_that_the_device_has_moved_to_err(alone: Pair) -> None:
    a, b = alone
    to, wrong = b.mr.addr, b.mr.rkey ^ 1
    a.qp.post_send(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=to, rkey=wrong)
    assert wait_completions(a.send_cq)[0].status == WCStatus.REM_ACCESS_ERR
    with pytest.raises(TimeoutError) as e:
        wait_completions(a.send_cq, timeout=0)
    dead = f"QP {a.qp.qp_num} is in ERR and carries out no more requests: "
    dead += "move it to RESET and connect it again"
    assert str(e.value).endswith(f"; {dead}")


def test_sends_that_give_no_completion(alone: Pair) -> None:
    a, b = alone
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8], send_flags=UNSIGNALED)
    wait_completions(b.recv_cq)
    a.send_cq.req_notify()
    assert why(a.channel) == "1 send of QP N is unsignaled, which gives no completion"


def test_a_dead_queue_pair_is_told_of_before_one_that_is_idle(ctx: Context) -> None:
    channel = CompletionChannel(ctx)
    cq = CQ(ctx, 64, channel=channel)
    ends = [Endpoint(ctx, QPType.RC, channel=channel, send_cq=cq, recv_cq=cq) for _ in range(3)]
    peers = [Endpoint(ctx, QPType.RC) for _ in ends]
    for end, peer in zip(ends, peers, strict=True):
        connect(end, peer)
    ends[1].qp.modify(qp_state=QPState.ERR)
    cq.req_notify()
    with pytest.raises(TimeoutError, match=f"QP {ends[1].qp.qp_num} is in ERR"):
        channel.get_event(timeout=0)


def test_a_channel_without_a_cq_and_a_cq_without_a_queue_pair(ctx: Context) -> None:
    channel = CompletionChannel(ctx)
    assert why(channel) == "no CQ uses this channel"
    cq = CQ(ctx, 4, channel=channel)
    cq.req_notify()
    assert why(channel) == "no QP uses the CQ"


def test_an_event_loop_that_reads_the_events(alone: Pair) -> None:
    b = alone[1]

    async def main() -> None:
        async with AsyncCQ(b.recv_cq) as acq:
            task = asyncio.create_task(acq.wait())
            while not acq._awaited:
                await asyncio.sleep(0)
            text = "an event loop reads the events of this channel, for its AsyncCQs"
            assert why(b.channel) == text
            task.cancel()

    asyncio.run(main())


def test_a_timeout_error_of_the_handler_of_a_signal_stays_as_it_is(pair: Pair) -> None:
    """It is not that of the wait."""

    def handler(_number: int, _frame: object) -> None:
        raise TimeoutError("mine")

    main = threading.current_thread()

    def interrupt() -> None:
        until(lambda: is_asleep(main), "the main thread sleeps")
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGALRM)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="^mine$"):
            interrupter = Waiter(interrupt)
            pair[1].channel.get_event()
        interrupter.join()
    finally:
        signal.signal(signal.SIGALRM, old)
