# SPDX-License-Identifier: MIT
"""What CQs count, also after their end, and how long their waiters take to wake."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import (
    DEADLINE,
    FREE_THREADED,
    Lane,
    MakeLane,
    Pair,
    ids,
    send,
    start,
    tick,
    waiting,
)

from cqnotify import CQ, ClosedError, CompletionChannel, Context, _core
from cqnotify.aio import AsyncCQ
from cqnotify.metrics import BOUNDS, Histogram, counters, snapshot

ROUNDS = 10


class Named(CQ):
    def __new__(cls, *args: Any, **options: Any) -> Named:
        return super().__new__(cls, *args, name="mine", **options)


def buckets(histogram: Histogram) -> dict[float, int]:
    """Those that are not empty, by their bounds."""
    both = zip(BOUNDS, histogram.buckets, strict=True)
    return {bound: count for bound, count in both if count}


def wake_thread(lane: Lane, messages: int = 1) -> None:
    """A thread sleeps while they come, and takes them."""
    assert lane.cq.arm_if_empty()
    with waiting(lambda: lane.cq.channel.get_event(DEADLINE)):
        lane.send(messages)
    lane.cq.ack()
    assert len(lane.cq.poll()) == messages


async def wake_task(acq: AsyncCQ, lane: Lane) -> None:
    task = await start(acq.wait())
    lane.send()
    assert len(ids(await task)) == 1


@pytest.mark.parametrize("measured", [False, True])
def test_of_each_message_one_arm_one_event_and_one_woken_thread(
    ctx: Context, lane: Lane, measured: bool
) -> None:
    ctx.measure_latency = measured
    for _ in range(ROUNDS):
        wake_thread(lane)
    c = counters(lane.cq)
    assert (c.open, c.arms, c.events, c.acked) == (1, ROUNDS, ROUNDS, ROUNDS)
    assert (c.completions, c.spurious) == (ROUNDS, 0)
    assert (c.thread_wakeups, c.task_wakeups) == (ROUNDS, 0)
    assert buckets(c.completions_per_event) == {1: ROUNDS - 1}  # the last may bring more
    assert c.thread_latency.count == (ROUNDS if measured else 0)
    assert (c.thread_latency.sum > 0) == measured
    assert c.task_latency == Histogram()


@pytest.mark.parametrize("measured", [False, True])
async def test_of_each_message_one_arm_one_event_and_one_woken_task(
    ctx: Context, lane: Lane, acq: AsyncCQ, measured: bool
) -> None:
    ctx.measure_latency = measured
    for _ in range(ROUNDS):
        await wake_task(acq, lane)
    c = counters(lane.cq)
    assert (c.arms, c.events, c.completions, c.spurious) == (ROUNDS, ROUNDS, ROUNDS, 0)
    assert (c.thread_wakeups, c.task_wakeups) == (0, ROUNDS) == (0, acq.stats.wakeups)
    assert buckets(c.completions_per_event) == {1: ROUNDS - 1}
    assert c.task_latency.count == (ROUNDS if measured else 0)
    assert c.thread_latency == Histogram()
    acq.close()
    assert c.unacked == counters(lane.cq).acked - c.acked  # at the end they are acknowledged
    assert counters(lane.cq).task_wakeups == ROUNDS


def test_what_one_event_brings_is_all_that_comes_until_the_next(lane: Lane) -> None:
    lane.send(5)  # before the first event
    assert len(lane.cq.poll()) == 5
    for n in (1, 2, 3, 4, 5, 16):
        wake_thread(lane, n)
    lane.cq.req_notify()
    lane.send()
    lane.cq.poll()
    assert lane.cq.channel.get_event(DEADLINE) is lane.cq
    lane.cq.ack()
    assert not lane.cq.poll()
    lane.close()
    lane.cq.close()
    c = counters(lane.cq)
    # Of the last but one also what came for the last; and that brought none.
    assert buckets(c.completions_per_event) == {0: 1, 1: 1, 2: 1, 4: 2, 8: 1, 32: 1}
    assert c.completions_per_event.sum == 1 + 2 + 3 + 4 + 5 + 17
    assert (c.events, c.spurious, c.completions) == (7, 1, 37)


# ---- names, and the end of CQs -----------------------------------------------------------------


def test_the_counts_of_closed_cqs_stay_with_their_name(
    ctx: Context, channel: CompletionChannel
) -> None:
    seen = []
    for i in range(3):
        lane = Lane(ctx, channel, Named)
        assert lane.cq.name == "mine"
        wake_thread(lane)
        seen.append(snapshot(ctx))
        lane.close()
        lane.cq.close()
        seen.append(snapshot(ctx))
        assert counters(lane.cq).open == 0
        assert [s.cqs["mine"].open for s in seen[-2:]] == [1, 0]
        assert [s.cqs["mine"].events for s in seen[-2:]] == [i + 1, i + 1]
    assert set(seen[-1].cqs) == {"mine", ""}  # and those of the senders, which are without a name
    assert seen[-1].cqs[""].completions == 3
    assert seen[-1].total.completions == 6
    assert seen[-1].cqs["mine"].completions_per_event.count == 3  # each is over
    for earlier, later in itertools.pairwise(seen):
        less = (later - earlier).total.as_dict()
        assert min(value for value in less.values() if isinstance(value, int)) >= 0
    ctx.close()
    last = snapshot(ctx)
    less = (last - seen[-1]).total
    assert (less.open, less.events, less.completions) == (0, 0, 0)
    assert last.device == seen[0].device


def test_a_completion_that_a_cancelled_task_gives_back_is_counted_once(
    ctx: Context, new_lane: MakeLane
) -> None:
    async def scenario() -> None:
        async with AsyncCQ(lane.cq) as acq:
            task = await start(acq.completion(0))
            lane.send()
            assert acq.poll() == []  # which routes it to the task
            before = counters(lane.cq)
            task.cancel()
            await tick()
            assert task.cancelled()
            assert counters(lane.cq).completions == before.completions == 1
            assert ids(await acq.wait()) == [0]
            assert counters(lane.cq).completions == 1

    lane = new_lane()
    asyncio.run(scenario())


def test_a_name_is_text_that_exporters_can_write(ctx: Context) -> None:
    nameless, named = CQ(ctx, 1), CQ(ctx, 1, name="empf\u00e4ngt")
    assert (nameless.name, named.name) == ("", "empf\u00e4ngt")
    with pytest.raises(AttributeError):
        named.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="name must be str, not int"):
        CQ(ctx, 1, name=1)  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        CQ(ctx, 1, name="\udcff")
    assert set(snapshot(ctx).cqs) == {"", "empf\u00e4ngt"}


class Collecting:
    """While it exists, the collector runs at each allocation of an object, and calls this."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __enter__(self) -> None:
        self.threshold = gc.get_threshold()
        gc.callbacks.append(self.collected)
        gc.set_threshold(1, 1, 1)

    def collected(self, phase: str, info: object) -> None:
        if phase == "stop":
            self.call()

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self.threshold)
        gc.callbacks.remove(self.collected)


def test_a_cq_that_is_closed_while_it_is_counted_is_counted_once(ctx: Context) -> None:
    cqs = [CQ(ctx, 1, name=str(i % 3)) for i in range(30)]
    for cq in cqs:
        cq.poll()

    def close_one() -> None:
        if cqs:
            cqs.pop().close()

    with Collecting(close_one):
        seen = [snapshot(ctx).total.polls for _ in range(10)]
    assert set(seen) == {30}
    ctx.close()
    assert snapshot(ctx).total.polls == 30


# ---- latency -----------------------------------------------------------------------------------


def test_a_thread_that_does_not_get_the_gil_wakes_late(ctx: Context, pair: Pair) -> None:
    ctx.measure_latency = True
    cq = pair[1].rcq
    channel = cq.channel
    assert channel is not None
    assert cq.arm_if_empty()
    interval = sys.getswitchinterval()
    with waiting(lambda: channel.get_event(DEADLINE)):
        sys.setswitchinterval(DEADLINE)
        send(pair)
        for _ in range(5_000_000):  # the event comes meanwhile, and the waiter has no GIL
            pass
        sys.setswitchinterval(interval)
    latency = counters(cq).thread_latency
    assert latency.count == 1
    assert FREE_THREADED or latency.sum > 20e6
    assert latency.quantile(1) / 2 < latency.sum <= latency.quantile(1)


async def test_a_task_that_is_kept_waiting_by_another_one_wakes_late(
    ctx: Context, lane: Lane, acq: AsyncCQ
) -> None:
    async def wait_and_work() -> None:
        await acq.completion(0)
        time.sleep(0.05)

    ctx.measure_latency = True
    tasks = [await start(wait_and_work()), await start(acq.completion(1))]
    before = time.monotonic_ns()
    lane.send(2)
    await asyncio.gather(*tasks)
    passed = time.monotonic_ns() - before
    latency = counters(lane.cq).task_latency
    assert latency.count == 2
    assert 50e6 < latency.sum < 2 * passed


def test_latency_is_measured_only_of_an_open_context(ctx: Context) -> None:
    assert ctx.measure_latency is False
    for value in (1, None):
        with pytest.raises(TypeError, match="measure_latency"):
            ctx.measure_latency = value  # type: ignore[assignment]
    with pytest.raises(TypeError, match="measure_latency"):
        del ctx.measure_latency
    ctx.close()
    with pytest.raises(ClosedError):
        ctx.measure_latency = True
    with pytest.raises(ClosedError):
        print(ctx.measure_latency)


# ---- snapshots ---------------------------------------------------------------------------------


def test_a_snapshot_does_not_change_and_is_written_as_json(
    ctx: Context, new_lane: MakeLane
) -> None:
    lane = new_lane(Named)
    wake_thread(lane)
    before = snapshot(ctx)
    wake_thread(lane)
    after = snapshot(ctx)
    assert [s.cqs["mine"].events for s in (before, after, after - before)] == [1, 2, 1]
    assert (after - before).seconds > 0
    for change in ("device", "cqs"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(after, change, {})
    with pytest.raises(TypeError):
        after.cqs["mine"] = before.cqs["mine"]  # type: ignore[index]
    read = json.loads(json.dumps(after.as_dict()))
    assert read["device"] == ctx.name
    assert read["cqs"]["mine"]["events"] == 2
    assert read["cqs"]["mine"]["completions_per_event"]["buckets"][1] == 1
    assert dataclasses.replace(after) == after


def test_what_is_no_snapshot_of_the_same_context_is_refused(ctx: Context, ctx2: Context) -> None:
    CQ(ctx, 1, name="first")
    for later, earlier in ((snapshot(ctx), snapshot(ctx2)), (snapshot(ctx2), snapshot(ctx))):
        with pytest.raises(ValueError, match="one context"):
            later - earlier
    with pytest.raises(TypeError, match="context"):
        snapshot("rxe0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cq"):
        counters(ctx)  # type: ignore[arg-type]


def test_a_histogram_has_a_bucket_for_each_power_of_two() -> None:
    assert BOUNDS[:6] == (0, 1, 2, 4, 8, 16)
    assert Histogram().quantile(0.5) != Histogram().quantile(0.5)  # nan
    h = Histogram(12, (1, 0, 3, 1, *[0] * 36))
    assert (h.count, h.mean) == (5, 2.4)
    assert [h.quantile(q) for q in (0, 0.2, 0.21, 0.8, 0.81, 1)] == [0, 0, 2, 2, 4, 4]
    with pytest.raises(ValueError, match="q is 2"):
        h.quantile(2)


# ---- trace points ------------------------------------------------------------------------------


def trace_points() -> Iterator[tuple[str, int, str]]:
    """The name, the place in the file's address space, and the arguments, by the ELF notes."""
    said = subprocess.run(
        ["readelf", "-n", _core.__file__], capture_output=True, text=True, check=True
    ).stdout
    note = r"Provider: cqnotify\s+Name: (\w+)\s+Location: (\w+), .*\s+Arguments: (.*)"
    for name, where, arguments in re.findall(note, said):
        yield name, int(where, 16), arguments


def test_tracers_find_the_places_where_something_happens() -> None:
    """Each is a nop, and has the object as an argument, and but for an event a number."""
    maps = Path("/proc/self/maps").read_text()
    mapped = re.findall(rf"^(\w+)-.*{re.escape(_core.__file__)}$", maps, re.M)
    base = min(int(start, 16) for start in mapped)
    found = set()
    with open("/proc/self/mem", "rb") as memory:
        for name, where, arguments in trace_points():
            found.add(name)
            memory.seek(base + where)
            assert memory.read(1) == b"\x90"
            sizes = [argument.split("@")[0] for argument in arguments.split()]
            assert sizes in ([["8"]] if name == "event" else [["8", "-4"], ["8", "-8"]])
    assert found == {"ack", "arm", "event", "poll", "sleep", "wake"}
