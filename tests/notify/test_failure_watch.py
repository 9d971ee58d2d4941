# SPDX-License-Identifier: MIT
"""FailureWatch: an event loop learns of the device's failures, and takes them from nobody."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Overflow,
    Waiter,
    device_gone,
    in_child,
    open_fds,
    take_all,
    take_cq_err,
    until,
    waiting,
)

from cqnotify import (
    CQ,
    AsyncEvent,
    AsyncEventError,
    AsyncEventType,
    ClosedError,
    Context,
    DeviceRemovedError,
    FailureWatch,
    QPState,
)

CQ_ERR = AsyncEventType.CQ_ERR
Failures = list[tuple[AsyncEvent, list[CQ] | None]]


@pytest.fixture
def watch(full: Overflow) -> Iterator[FailureWatch]:
    with FailureWatch(full.a.ctx) as watch:
        yield watch


def readable(watch: FailureWatch | int) -> bool:
    return bool(select.select([watch], [], [], 0)[0])


def read_next(watch: FailureWatch) -> Failures:
    """What the next read() that tells something tells, asleep in between as a loop would be."""
    while True:
        assert select.select([watch], [], [], DEADLINE)[0], "nothing comes"
        if failures := watch.read():
            return failures


def is_cq_err(failures: Failures, *cqs: CQ) -> bool:
    """Whether these CQs have failed, in this order, and each concerns itself alone."""
    assert [event.event_type for event, _ in failures] == [CQ_ERR] * len(cqs)
    assert all(event.cq is cq for (event, _), cq in zip(failures, cqs, strict=True))
    assert all(named == [cq] for (_, named), cq in zip(failures, cqs, strict=True))
    return True


def lose_and_report(world: Overflow) -> None:
    """A completion is lost, and the report of it is in the context's queue."""
    world.send(1)
    with pytest.raises(AsyncEventError):
        world.a.channel.get_event(timeout=DEADLINE)


def test_a_watch_says_what_it_is_and_closes_when_its_block_ends(ctx: Context) -> None:
    watch = FailureWatch(ctx)
    assert watch.context is ctx
    assert repr(watch) == f"<FailureWatch on {ctx.name}>"
    assert not os.get_inheritable(watch.fileno())
    closed: list[str] = []
    watch.add_close_callback(lambda: closed.append("watch"))
    with watch as entered:
        assert entered is watch
    assert closed == ["watch"]
    assert watch.closed


def test_a_failure_is_told_with_its_cq_and_taken_from_nobody(
    full: Overflow, watch: FailureWatch
) -> None:
    a = full.a
    assert watch.read() == []
    assert not readable(watch)
    full.send(1)
    assert is_cq_err(read_next(watch), a.scq)
    assert watch.read() == []
    with pytest.raises(AsyncEventError) as e:
        a.channel.get_event(timeout=DEADLINE)
    assert e.value.event.cq is a.scq
    assert take_cq_err(a.ctx).cq is a.scq
    assert take_all(a.ctx) == []


def test_every_watch_is_told(full: Overflow, watch: FailureWatch) -> None:
    with FailureWatch(full.a.ctx) as other:
        full.send(1)
        assert is_cq_err(read_next(watch), full.a.scq)
        assert readable(other)
        assert is_cq_err(other.read(), full.a.scq)
        assert not readable(other)
        assert not readable(watch)


READERS: dict[str, Callable[[Overflow], Any]] = {
    "get_async_event": lambda world: take_cq_err(world.a.ctx),
    "get_event": lambda world: world.a.channel.get_event(DEADLINE),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_another_thread_reads_first_is_told_still(
    full: Overflow, watch: FailureWatch, reader: str
) -> None:
    with waiting(lambda: READERS[reader](full)) as waiter:
        full.send(1)
    # It has read the report: the device has none any more, and the watch is readable still.
    assert isinstance(waiter.result or waiter.error, AsyncEvent | AsyncEventError)
    assert readable(watch)
    assert is_cq_err(watch.read(), full.a.scq)
    assert not readable(watch)


def test_reading_wakes_those_who_sleep(full: Overflow, watch: FailureWatch) -> None:
    """Whoever of them reads the report."""
    sleeper = Waiter(lambda: full.a.channel.get_event(DEADLINE)).asleep()
    taker = Waiter(lambda: take_cq_err(full.a.ctx)).asleep()
    full.send(1)
    assert is_cq_err(read_next(watch), full.a.scq)
    with pytest.raises(AsyncEventError):
        sleeper.join()
    assert taker.join().cq is full.a.scq


def test_of_several_failures_the_oldest_comes_first_and_each_once_as_late_as_it_was_last(
    full: Overflow, watch: FailureWatch
) -> None:
    other = Overflow(full.a.ctx)
    other.fill()
    for world in (full, other, full):
        lose_and_report(world)
    assert is_cq_err(watch.read(), other.a.scq, full.a.scq)
    lose_and_report(full)
    assert readable(watch)
    assert is_cq_err(watch.read(), full.a.scq)


@pytest.mark.not_on_iwarp("siw knows no SQD, and so no SQ_DRAINED")
def test_news_that_are_no_failure_are_read_and_left_in_the_queue(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    a = pair[0]
    take_all(a.ctx)
    with FailureWatch(a.ctx) as watch:
        a.qp.modify(qp_state=QPState.SQD)
        until(lambda: readable(watch), "the device has a report")
        assert watch.read() == []
        assert not readable(watch)
    assert take_all(a.ctx)[-1].qp is a.qp


def test_what_was_closed_since_is_not_told(full: Overflow, watch: FailureWatch) -> None:
    lose_and_report(full)
    full.a.qp.close()
    full.a.scq.close()
    assert watch.read() == []
    assert not readable(watch)


def test_reports_that_are_not_read_keep_it_readable_and_those_that_wait_to_be_taken_do_not(
    full: Overflow, watch: FailureWatch
) -> None:
    """More than are read at once."""
    full.send(60)
    full.send(60)
    assert is_cq_err(read_next(watch), full.a.scq)
    until(lambda: watch.read() == [] and not readable(watch), "all are read")
    assert readable(full.a.ctx.async_fd)
    assert len([e for e in take_all(full.a.ctx) if e.event_type == CQ_ERR]) == 120
    assert not readable(watch)


def test_an_event_loop_wakes_for_a_failure_and_does_not_spin(
    full: Overflow, watch: FailureWatch
) -> None:
    """All reports stay in the queue; the loop is called back for each failure, and not for them."""
    calls = 0

    async def main() -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Failures] = asyncio.Queue()

        def look() -> None:
            nonlocal calls
            calls += 1
            if failures := watch.read():
                told.put_nowait(failures)

        loop.add_reader(watch, look)
        try:
            for _ in range(3):
                full.send(1)
                assert is_cq_err(await asyncio.wait_for(told.get(), DEADLINE), full.a.scq)
            before = calls
            for _ in range(100):
                await asyncio.sleep(0)  # each looks for what is readable
            assert calls == before
        finally:
            loop.remove_reader(watch)

    asyncio.run(main())
    assert readable(full.a.ctx.async_fd)


def test_a_forgotten_watch_is_closed(full: Overflow) -> None:
    watch = FailureWatch(full.a.ctx)
    gone = weakref.ref(watch)
    full.send(1)
    del watch
    gc.collect()
    assert gone() is None
    assert take_cq_err(full.a.ctx).cq is full.a.scq  # to enter it meets no watch any more


def test_a_subclass_has_what_it_adds(full: Overflow) -> None:
    class Mine(FailureWatch):
        pass

    with Mine(full.a.ctx) as watch:
        watch.me = watch  # type: ignore[attr-defined]
        full.send(1)
        assert is_cq_err(read_next(watch), full.a.scq)


def test_no_descriptor_is_left(ctx: Context) -> None:
    def count() -> int:
        gc.collect()
        return open_fds()

    before = count()
    for _ in range(3):
        with Context(ctx.name) as other:
            with FailureWatch(other) as watch:
                opened = count()
                watch.close()
                assert count() == opened - 2
                FailureWatch(other).close()
                assert count() == opened - 2  # no number was closed twice
            kept = FailureWatch(other), FailureWatch(other)
            FailureWatch(other)
        assert all(watch.closed for watch in kept)
        assert count() == before
        with pytest.raises(ClosedError):
            FailureWatch(other)
        assert count() == before


def test_a_forked_child_can_not_use_it_and_takes_nothing_from_the_parent(
    full: Overflow, watch: FailureWatch
) -> None:
    lose_and_report(full)

    def child() -> None:
        fds = open_fds()
        for call in (watch.read, watch.fileno, watch.__enter__):
            with pytest.raises(ClosedError, match="fork"):
                call()
        assert watch.closed
        watch.close()
        watch.close()
        assert open_fds() == fds - 2

    assert in_child(child) == 0
    assert readable(watch)
    assert is_cq_err(watch.read(), full.a.scq)
    assert not readable(watch)
    full.send(1)
    assert is_cq_err(read_next(watch), full.a.scq)


def test_that_the_device_has_gone_is_said_after_what_came_before(
    full: Overflow, watch: FailureWatch
) -> None:
    lose_and_report(full)
    with device_gone(full.a.ctx):
        assert is_cq_err(watch.read(), full.a.scq)
        for _ in range(2):
            with pytest.raises(DeviceRemovedError, match="no more events will come") as e:
                watch.read()
            assert e.value.verb == "ibv_get_async_event"
    assert watch.read() == []


def test_many_threads_read_one_watch_and_each_failure_is_told_once(
    full: Overflow, watch: FailureWatch
) -> None:
    ctx = full.a.ctx
    worlds = [full, *(Overflow(ctx) for _ in range(4))]
    for world in worlds[1:]:
        world.fill()
    done: list[bool] = []

    def work() -> list[CQ | None]:
        got = []
        while not done:
            got += [event.cq for event, _ in watch.read()]
        return got

    readers = [Waiter(work) for _ in range(3)]
    expected = []
    for _ in range(5):
        for world in worlds:
            # The next one only when this one was told, or two of a kind may come as one.
            with FailureWatch(ctx) as other:
                world.send(1)
                while not other.read():
                    pass
                until(lambda: not readable(watch), "a thread has read it")
            expected.append(world.a.scq)
    done.append(True)
    told = [cq for reader in readers for cq in reader.join()]
    assert sorted(map(id, told)) == sorted(map(id, expected))
