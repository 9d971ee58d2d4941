# SPDX-License-Identifier: MIT
"""Tasks that wait: for credits, for the peer, for a message; and what they leave that give up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from messages_support import (
    SMALL,
    SOON,
    connected,
    data_of,
    read_a_part,
    read_slowly,
    reads,
    receives_posted,
    took,
)
from support import cancel, eventually, on_iwarp, start, tick

from cqnotify import ClosedError, Context
from cqnotify.messages import Connection, ConnectionLostError, ConnectionOptions
from cqnotify.messages._incoming import Reads
from cqnotify.messages._liveness import LivenessTimer
from cqnotify.messages._queue import SIGNAL_EACH, CompletionHandler
from cqnotify.messages._wire import Remote

LARGE = 300000
BLINK = 0.05  # seconds


async def fill(a: Connection) -> int:
    """Send until a message would have to wait. Return how many were sent."""
    sent = 0
    while True:
        sending = asyncio.ensure_future(a.send(bytes([sent])))
        await tick()
        if not sending.done() and a._session.flow.credits:  # it waits for room to send from
            await asyncio.wait([sending])
        if not sending.done():
            await cancel(sending)
            return sent
        sent += 1


def counted_reads(conn: Connection) -> list[Remote]:
    """What it reads from now on."""
    queue = conn._session._queue
    post_reads, posted = queue.post_reads, []

    def post(reads: Reads, done: CompletionHandler) -> None:
        posted.extend(remote for _, remote in reads)
        post_reads(reads, done)

    queue.post_reads = post  # type: ignore[method-assign]
    return posted


# ---- backpressure ---------------------------------------------------------------------------


@pytest.mark.parametrize("credits", [2, 3, 16])
async def test_a_sender_without_credits_waits_until_the_program_has_received(
    ctx: Context, credits: int
) -> None:
    async with connected(ctx, ConnectionOptions(credits=credits, eager=256)) as (a, b):
        assert await fill(a) == credits
        sending = await start(a.send(b"more"))
        half = (credits + 1) // 2
        for i in range(half):
            await asyncio.sleep(BLINK)  # as no event need come of one message
            assert not sending.done(), "credits come in halves"
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        await asyncio.wait_for(sending, SOON)
        for i in range(half, credits):
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        assert took(await b.recv(timeout=SOON)) == [b"more"]


async def test_no_frame_ever_finds_no_receive(ctx: Context) -> None:
    """Those for frames without credit are there, whatever the program does not receive."""
    async with connected(ctx, SMALL) as (a, b):
        all_of_them = receives_posted(b)
        sending = [asyncio.ensure_future(a.send(data_of(1000))) for _ in range(20)]
        for i in range(20):
            assert receives_posted(a) >= all_of_them - SMALL.credits
            assert receives_posted(b) >= all_of_them - SMALL.credits
            await b.send(data_of(100 * (i % 2)), timeout=SOON) if i % 3 else None
            await b.recv(timeout=SOON)
            if i % 3:
                await a.recv(timeout=SOON)
        await asyncio.gather(*sending)


async def test_offers_wait_for_earlier_ones(ctx: Context) -> None:
    async with connected(ctx, ConnectionOptions(offers=2)) as (a, b):
        sending = [asyncio.ensure_future(a.send(data_of(LARGE), bytes([i]))) for i in range(5)]
        await tick()
        assert a._session.flow.offers_sent == 2
        for i in range(5):
            assert took((await b.recv(timeout=SOON))[1:]) == [bytes([i])]
        await asyncio.gather(*sending)


@pytest.mark.not_on_iwarp("siw raises no event for a solicited message")
async def test_credits_alone_wake_nobody(ctx: Context) -> None:
    """Each half of the credits comes in a frame of its own, and a sender finds it in time."""
    async with connected(ctx) as (a, b):
        before = a._session.resources.recv_acq.stats  # by the ACK that has opened the connection
        late = 0  # frames behind which the sender had no credit: one that grants some was slow
        for _ in range(200):
            await a.send(b"x")
            late += a._session.flow.credits == 0
            await b.recv(timeout=SOON)
        received = a._session.resources.recv_acq.stats
        came = received.completions - before.completions
        assert came >= 10 + late, "acknowledgements have come that were in time"
        assert received.events - before.events <= late


async def test_no_more_reads_are_under_way_than_may_be(ctx: Context) -> None:
    """Though several messages are read at once, some in one part, and some in several together."""
    sizes = [50000, 3 << 20, 60000, 70000, 2 << 20, 80000, 3 << 20, 90000]
    async with connected(ctx, ConnectionOptions(offers=len(sizes))) as (a, b):
        reader, queue = b._session.reader, b._session._queue
        post_reads, in_flight = queue.post_reads, []

        def post(reads: Reads, done: CompletionHandler) -> None:
            in_flight.append(reader._in_flight)
            post_reads(reads, done)

        queue.post_reads = post  # type: ignore[method-assign]
        # All are received in one turn of the loop, in which no read ends.
        b._session.poll_sent = lambda: None  # type: ignore[method-assign]
        sending = [asyncio.ensure_future(a.send(data_of(size))) for size in sizes]
        await eventually(lambda: b._session.messages_waiting == len(sizes))
        got = await asyncio.gather(*(b.recv(timeout=SOON) for _ in sizes))
        assert [took(frames) for frames in got] == [[data_of(size)] for size in sizes]
        await asyncio.gather(*sending)
        assert max(in_flight) == b._session.resources.max_reads


@pytest.mark.parametrize(("size", "most"), [(LARGE, 3), (16 << 20, 6)], ids=["1 read", "16 reads"])
async def test_what_a_large_message_wakes_its_two_ends_for(
    ctx: Context, size: int, most: int
) -> None:
    """The receiver for the offer and for each four of the reads, the sender when it was read.
    Besides, one frame of so many has a completion, and so has a probe, where that takes long."""
    rounds, probes = SIGNAL_EACH, 0
    async with connected(ctx) as (a, b):

        def on_timer(timer: LivenessTimer) -> None:
            nonlocal probes
            probes += 1
            LivenessTimer._on_timer(timer)

        for end in (a, b):
            timer = end._session._liveness
            timer._on_timer = functools.partial(on_timer, timer)  # type: ignore[method-assign]
        array = bytearray(size)
        before = a.stats.wakeups + b.stats.wakeups
        for _ in range(rounds):
            await asyncio.gather(a.send(array), b.recv(timeout=SOON))
        wakeups = a.stats.wakeups + b.stats.wakeups - before
        assert rounds < wakeups <= rounds * most + 2 + probes


async def test_an_idle_connection_costs_nothing(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await a.send(b"1")
        await b.recv(timeout=SOON)
        taking = await start(b.recv())

        def stats() -> list[object]:
            both = [end._session.resources for end in (a, b)]
            return [(one.recv_acq.stats, one.send_acq.stats) for one in both]

        seen = [stats()]
        while seen[-2:-1] != seen[-1:]:
            assert len(seen) < 20, seen  # at first the last completions may come
            await asyncio.sleep(4 * BLINK)
            seen.append(stats())
        await cancel(taking)


# ---- timeouts -------------------------------------------------------------------------------


async def test_nothing_comes_in_time(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="no message came in time"):
            await b.recv(timeout=BLINK)
        assert time.monotonic() - start >= BLINK
        with pytest.raises(TimeoutError):
            await b.recv(timeout=0)
        await a.send(b"1")
        assert took(await b.recv(timeout=SOON)) == [b"1"]


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
async def test_a_timeout_is_a_number_of_seconds(ctx: Context, timeout: float) -> None:
    async with connected(ctx) as (a, b):
        for call in (a.send(b"1", timeout=timeout), b.recv(timeout=timeout)):
            with pytest.raises((TypeError, ValueError), match="timeout"):
                await call
        with pytest.raises((TypeError, ValueError), match="timeout"):
            await a.aclose(timeout)
        assert not a.closed


async def test_a_message_without_a_credit_is_withdrawn(ctx: Context) -> None:
    async with connected(ctx, SMALL) as (a, b):
        sent = await fill(a)
        for size in (5, LARGE):
            why = f"was not sent in time; the peer's program has not received the {sent} before it"
            with pytest.raises(TimeoutError, match=why):
                await a.send(data_of(size), timeout=BLINK)
        sending = await start(a.send(b"behind"))
        for i in range(sent):
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        await sending
        assert took(await b.recv(timeout=SOON)) == [b"behind"]


async def test_a_message_that_has_begun_goes_on_and_keeps_its_buffers(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        frame = bytearray(data_of(LARGE))
        why = "the message was not sent in time; the peer's program has not received it"
        with pytest.raises(TimeoutError, match=why):
            await a.send(frame, timeout=BLINK)
        with pytest.raises(BufferError):  # it is still registered
            frame.append(1)
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await eventually(lambda: a._session.sender.is_idle)
        frame.append(1)


# ---- cancellation ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, LARGE], ids=["small", "offered"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
async def test_receivers_that_give_up_together_keep_the_order_of_the_messages(
    ctx: Context, size: int, order: tuple[int, ...]
) -> None:
    """Each has a message when it is cancelled."""
    async with connected(ctx) as (a, b):
        read_slowly(b)
        taking = [await start(b.recv()) for _ in order]
        sending = [asyncio.ensure_future(a.send(data_of(size), bytes([i]))) for i in range(5)]
        while b._session.receives_waiting:
            await asyncio.sleep(0)
        for i in order:
            taking[i].cancel()
        results = await asyncio.gather(*taking, return_exceptions=True)
        had = [one[1] for one in results if isinstance(one, list)]
        left = [(await b.recv(timeout=SOON))[1] for _ in range(5 - len(had))]
        assert len(left) > 1
        assert [bytes(one) for one in left] == sorted(bytes(one) for one in left)
        assert sorted(bytes(one) for one in had + left) == [bytes([i]) for i in range(5)]
        await asyncio.gather(*sending)


async def test_the_next_receiver_goes_on_with_a_read_that_was_given_up(ctx: Context) -> None:
    """So that a timeout may be shorter than the transfer."""
    async with connected(ctx) as (a, b):
        read_slowly(b)
        sending = asyncio.ensure_future(a.send(data_of(LARGE)))
        await eventually(lambda: b._session.messages_waiting == 1)
        posted = counted_reads(b)
        taking = asyncio.ensure_future(b.recv())
        await reads(b)
        await cancel(taking)
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        assert len(posted) == -(-LARGE // 4096), "each part was read once"
        await sending
        assert not b._begun


async def test_a_message_that_was_read_meanwhile_is_the_next_receivers(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(b)
        sending = [asyncio.ensure_future(a.send(data_of(LARGE), bytes([i]))) for i in range(2)]
        taking = asyncio.ensure_future(b.recv())
        await reads(b)
        await cancel(taking)
        await eventually(lambda: b._session.reader.is_idle)
        posted = counted_reads(b)
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE), b"\0"]
        assert not posted
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE), b"\1"]
        await asyncio.gather(*sending)


async def test_a_read_that_was_given_up_is_read_anew_into_memory_of_the_caller(
    ctx: Context,
) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(b)
        sending = asyncio.ensure_future(a.send(data_of(LARGE)))
        taking = asyncio.ensure_future(b.recv())
        await reads(b)
        await cancel(taking)
        into = bytearray(LARGE)
        await b.recv(into=[into], timeout=SOON)
        assert into == data_of(LARGE)
        await sending


async def test_a_read_that_was_given_up_ends_with_the_connection(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(b)
        sending = asyncio.ensure_future(a.send(data_of(LARGE)))
        taking = asyncio.ensure_future(b.recv())
        await reads(b)
        await cancel(taking)
        a.abort()
        with pytest.raises(ConnectionLostError):
            while True:
                await b.recv(timeout=SOON)
        with pytest.raises(ClosedError):
            await sending


async def test_a_cancelled_read_is_read_again_elsewhere(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(b)
        sending = asyncio.ensure_future(a.send(data_of(LARGE)))
        first, second = bytearray(LARGE), bytearray(LARGE)
        post_pending = read_a_part(b)
        taking = asyncio.ensure_future(b.recv(into=[first]))
        await eventually(lambda: b._session.reader._max_in_flight == 0)
        await cancel(taking)
        post_pending()
        assert took(await b.recv(into=[second], timeout=SOON)) == [data_of(LARGE)]
        assert second == data_of(LARGE)
        await sending
        await eventually(lambda: not b._session.reader._in_flight)

        def is_free() -> bool:
            b._session.reader.post()
            with contextlib.suppress(BufferError):
                first.append(1)
            return len(first) > LARGE

        await eventually(is_free)  # no device writes to it any more
        second.append(1)


async def reaches(a: Connection, b: Connection, data: bytes) -> None:
    """Send it, and return when the first task that waits there has it, and has not gone on."""
    waiting = b._session.receives_waiting
    await a.send(data)
    while b._session.receives_waiting == waiting:
        b._session.poll_received()  # in a task, where no other is resumed


async def test_a_message_that_comes_with_the_cancellation_goes_to_the_next(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        first, second = await start(b.recv()), await start(b.recv())
        await reaches(a, b, b"1")  # and the task has not gone on yet
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert took(await second) == [b"1"]
        third = await start(b.recv())
        await reaches(a, b, b"2")
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert took(await b.recv(timeout=0)) == [b"2"]


async def test_a_cancelled_sender_is_withdrawn_or_goes_on(ctx: Context) -> None:
    async with connected(ctx, SMALL) as (a, b):
        sent = await fill(a)
        waiting = await start(a.send(b"never"))
        behind = await start(a.send(b"behind"))
        await cancel(waiting)
        for i in range(sent):
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        assert took(await b.recv(timeout=SOON)) == [b"behind"]
        await behind
        sending = await start(a.send(data_of(LARGE)))
        while a._session.flow.offers_sent == 0:  # the sender has no credit yet
            await asyncio.sleep(0)
        await cancel(sending)
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await a.send(b"goes on")
        assert took(await b.recv(timeout=SOON)) == [b"goes on"]


async def calls_to_cancel(
    count: int, begin: Callable[[], Coroutine[Any, Any, Any]], waiting: Callable[[], int]
) -> int:
    """How many functions are called, of C and of Python, to cancel so many tasks that wait."""
    tasks = [asyncio.ensure_future(begin()) for _ in range(count)]
    await eventually(lambda: waiting() == count)
    calls = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.wait(tasks)
    finally:
        sys.setprofile(None)
    assert waiting() == 0
    assert all(task.cancelled() for task in tasks)
    return calls


@pytest.mark.parametrize("what", ["senders", "receivers"])
async def test_the_cost_of_giving_up_does_not_depend_on_how_many_wait(
    ctx: Context, what: str
) -> None:
    async with connected(ctx, SMALL) as (a, b):
        await fill(a)

        def begin() -> Coroutine[Any, Any, Any]:
            return a.send(b"x") if what == "senders" else a.recv()

        def waiting() -> int:
            session = a._session
            return session.sends_waiting if what == "senders" else session.receives_waiting

        few, many = [await calls_to_cancel(count, begin, waiting) for count in (100, 1000)]
        assert 100 < few < 100 * 100
        assert many <= 12 * few, "100 times as many if each looked at all others"
        b.abort()


async def test_the_message_of_a_task_that_was_cancelled_just_now_is_not_sent(ctx: Context) -> None:
    """Its credit comes before the task goes on."""
    async with connected(ctx, SMALL) as (a, b):
        sent = await fill(a)
        first, second = await start(a.send(b"never")), await start(a.send(b"second"))
        for i in range(sent):
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        first.cancel()
        while a._session.sends_waiting:
            a._session.poll_received()  # in a task, where no other is resumed
        assert not first.done()
        await second
        assert first.cancelled()
        assert took(await b.recv(timeout=SOON)) == [b"second"]


async def test_sends_that_succeed_wake_nobody(ctx: Context) -> None:
    """Unless something waits for one, as a send does when those before it are late."""
    async with connected(ctx) as (a, b):
        await tick()

        async def events() -> int:
            before = a._session.resources.send_acq.stats
            for i in range(20 * SIGNAL_EACH):
                await a.send(bytes([i % 256]))
                assert took(await b.recv(timeout=SOON)) == [bytes([i % 256])]
            stats = a._session.resources.send_acq.stats
            assert stats.completions > before.completions
            return stats.events - before.events

        few = 2 if not on_iwarp() else 20
        counted = [await events()]
        while counted[-1] > few and len(counted) < 5:  # the machine was slow
            counted.append(await events())
        assert counted[-1] <= few, counted
        stats = a._session.resources.send_acq.stats
        sending = asyncio.ensure_future(b.send(data_of(LARGE)))
        assert took(await a.recv(timeout=SOON)) == [data_of(LARGE)]
        await sending
        assert a._session.resources.send_acq.stats.completions > stats.completions


async def test_messages_survive_any_pattern_of_cancellations(ctx: Context) -> None:
    """What was not cancelled arrives, in order; what was, arrives as a whole or not at all."""
    async with connected(ctx, SMALL) as (a, b):
        wanted, maybe = [], set()

        async def send() -> None:
            for i in range(150):
                size = (5, 100, 5000)[i % 3]
                sending = asyncio.ensure_future(a.send(data_of(size), str(i).encode()))
                if i % 4 == 1:
                    for _ in range(i % 5):
                        await asyncio.sleep(0)
                    await cancel(sending) if not sending.done() else None
                    maybe.add(i)
                    continue
                wanted.append(i)
                await sending
            await a.aclose()

        sending = asyncio.ensure_future(send())
        got = []
        tries = 0
        while True:
            taking = asyncio.ensure_future(b.recv())
            tries += 1
            if tries % 3 == 0:
                for _ in range(tries % 7):
                    await asyncio.sleep(0)
                if not taking.done():
                    await cancel(taking)
                    continue
            try:
                data, number = await taking
            except EOFError:
                break
            i = int(bytes(number))
            assert bytes(data) == data_of((5, 100, 5000)[i % 3])
            got.append(i)
        await sending
        assert got == sorted(got)
        assert set(wanted) <= set(got) <= set(wanted) | maybe
