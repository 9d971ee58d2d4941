# SPDX-License-Identifier: MIT
"""What the exporters export, with the real packages, while messages come."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import re
import threading
import urllib.request
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from support import DEADLINE, Lane, MakeLane, in_child, start, until, waiting

from cqnotify import CQ, ClosedError, Context
from cqnotify.aio import AsyncCQ
from cqnotify.metrics import Snapshot, snapshot
from cqnotify.metrics.opentelemetry import instrument
from cqnotify.metrics.prometheus import Collector

ROUNDS = 8

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    """By name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Receiving(CQ):
    def __new__(cls, *args: Any, **options: Any) -> Receiving:
        return super().__new__(cls, *args, name="in", **options)


@pytest.fixture
def receiving(new_lane: MakeLane) -> Lane:
    return new_lane(Receiving)


def wake_threads(lane: Lane) -> None:
    for _ in range(ROUNDS):
        assert lane.cq.arm_if_empty()
        with waiting(lambda: lane.cq.channel.get_event(DEADLINE)):
            lane.send()
        assert len(lane.cq.poll()) == 1


async def wake_tasks(lane: Lane) -> None:
    async with AsyncCQ(lane.cq) as acq:
        for _ in range(ROUNDS):
            task = await start(acq.wait())
            lane.send()
            assert len(await task) == 1


@contextlib.contextmanager
def served(collector: Collector) -> Iterator[Callable[[], Samples]]:
    """Over HTTP: what scrapes it."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        yield lambda: parse(urllib.request.urlopen(url, timeout=DEADLINE).read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_prometheus_gets_what_was_counted(ctx: Context, receiving: Lane) -> None:
    lane = receiving
    ctx.measure_latency = True
    with served(Collector(ctx)) as scrape:

        def value(name: str, **labels: str) -> float | None:
            both = {"device": ctx.name, "cq": "in", **labels}
            return got.get((f"cqnotify_{name}", frozenset(both.items())))

        got = scrape()
        assert value("events_total") == value("wakeups_total", waiter="task") == 0
        assert value("wake_latency_seconds_count", waiter="task") is None
        wake_threads(lane)
        got = scrape()
        assert value("unacked_events") == ROUNDS
        lane.cq.ack(ROUNDS)
        asyncio.run(wake_tasks(lane))
        got = scrape()
        both = 2 * ROUNDS
        for name in ("arms", "events", "acked_events", "completions"):
            assert value(f"{name}_total") == both, name
        assert value("spurious_events_total") == 0

        def of_channels(name: str, **labels: str) -> float:
            both = {"device": ctx.name, **labels}
            return got[f"cqnotify_channel_{name}", frozenset(both.items())]

        woken = snapshot(ctx).channels.thread_wakeups
        assert of_channels("wakeups_total", waiter="thread") == woken >= ROUNDS
        assert of_channels("wakeups_total", waiter="loop") == of_channels("events_per_wake_count")
        assert of_channels("events_per_wake_sum") == ROUNDS
        assert of_channels("timeouts_total") == 0
        assert (value("unacked_events"), value("open_cqs")) == (0, 1)
        assert value("completions_per_event_count") == both - 1
        assert value("completions_per_event_sum") == both - 1
        assert value("completions_per_event_bucket", le="0.0") == 0
        assert value("completions_per_event_bucket", le="1.0") == both - 1
        assert value("completions_per_event_bucket", le="+Inf") == both - 1
        counted = snapshot(ctx).cqs["in"]
        for waiter, latency in (("thread", counted.thread_latency), ("task", counted.task_latency)):
            assert value("wakeups_total", waiter=waiter) == ROUNDS
            assert value("wake_latency_seconds_count", waiter=waiter) == ROUNDS
            assert value("wake_latency_seconds_sum", waiter=waiter) == latency.sum / 1e9
            assert value("wake_latency_seconds_bucket", waiter=waiter, le="+Inf") == ROUNDS


def test_a_snapshot_prints_what_is_not_0(ctx: Context, receiving: Lane) -> None:
    lines = str(snapshot(ctx)).splitlines()
    assert re.fullmatch(rf"{ctx.name} at \d+\.\d{{3}} s", lines[0])
    (row,) = (line for line in lines if line.startswith("  CQs 'in': open 1"))
    counted = snapshot(ctx).cqs["in"]
    for name, value in counted.as_dict().items():
        assert (f" {name} " in row) == bool(value["sum"] if isinstance(value, dict) else value)
    assert lines[-1].startswith("  channels: ")


def test_channels_count_what_wakes_nobody(ctx: Context, receiving: Lane) -> None:
    lane, before = receiving, snapshot(ctx)
    with pytest.raises(TimeoutError):
        lane.cq.channel.get_event(0.001)
    wake_threads(lane)
    asyncio.run(wake_tasks(lane))
    assert lane.cq.channel._on_event() is None  # a callback, and no event
    lane.cq.ack(lane.cq.unacked)
    found = (snapshot(ctx) - before).channels
    assert (found.timeouts, found.spurious) == (1, 1)
    # Those of the sender, which may have slept for each of its sends, are counted as well.
    assert ROUNDS <= found.thread_wakeups <= 3 * ROUNDS
    assert found.events_per_wake.sum == ROUNDS
    assert found.loop_wakeups == ROUNDS + 1
    ctx.close()
    assert (snapshot(ctx) - before).channels == found
    assert found.as_dict()["timeouts"] == 1


def test_nothing_that_is_scraped_while_messages_come_falls(ctx: Context, receiving: Lane) -> None:
    collector = Collector(ctx)
    over = threading.Event()
    failed: list[BaseException] = []
    scrapes = [0, 0]

    def scrape(i: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        last: Samples = {}
        try:
            while not over.is_set():
                got = parse(generate_latest(registry).decode())
                for key, value in got.items():
                    name = key[0]
                    assert name.endswith(("_events", "_cqs")) or value >= last.get(key, 0), key
                assert last.keys() <= got.keys()
                last = got
                scrapes[i] += 1
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=scrape, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            asyncio.run(wake_tasks(receiving))
            for _ in range(5):
                CQ(ctx, 1, name="short").close()
        done = list(scrapes)
        until(lambda: failed or all(b > a for a, b in zip(done, scrapes, strict=True)), "scraped")
        ctx.close()
        done = list(scrapes)
        until(lambda: failed or all(b > a for a, b in zip(done, scrapes, strict=True)), "scraped")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_closed_context_stays_counted_and_a_dropped_one_goes(ctx: Context) -> None:
    def exported() -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(collector)
        got = parse(generate_latest(registry).decode())
        labels = frozenset({"device": device, "cq": "x"}.items())
        return {name: value for (name, of), value in got.items() if of == labels}

    def polled(times: int) -> Context:
        context = Context(device)
        cqs.append(CQ(context, 1, name="x"))
        for _ in range(times):
            cqs[-1].poll()
        return context

    device, cqs = ctx.name, list[CQ]()
    first, second = polled(3), polled(5)
    collector = Collector(first)
    collector.add(first)  # once is enough
    collector.add(second)
    assert (exported()["cqnotify_polls_total"], exported()["cqnotify_open_cqs"]) == (8, 2)
    first.close()
    assert (exported()["cqnotify_polls_total"], exported()["cqnotify_open_cqs"]) == (8, 1)
    with pytest.raises(ClosedError):
        collector.add(first)
    gone = weakref.ref(second)
    cqs[-1].poll()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del second
        cqs.clear()
        gc.collect()
    assert gone() is None
    assert (exported()["cqnotify_polls_total"], exported()["cqnotify_open_cqs"]) == (9, 0)
    assert in_child(exported) == 0


def copies(taken: Snapshot) -> Iterator[Snapshot]:
    """By each way out of a process, and by those of the module copy."""
    yield copy.copy(taken)
    yield copy.deepcopy(taken)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(taken, protocol))


def test_a_snapshot_and_a_difference_leave_the_process_whole(ctx: Context, receiving: Lane) -> None:
    before = snapshot(ctx)
    wake_threads(receiving)
    receiving.cq.ack(ROUNDS)
    after = snapshot(ctx)
    for taken in (after, after - before):
        assert taken.cqs["in"].events == ROUNDS
        for made in copies(taken):
            assert made == taken
            assert made.as_dict() == taken.as_dict()
            assert type(made.cqs) is type(taken.cqs)  # which cannot be written to
    (made, *_) = copies(after)
    assert made - before == after - before


def test_opentelemetry_gets_what_was_counted(ctx: Context, receiving: Lane) -> None:
    device = ctx.name
    ctx.measure_latency = True
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instruments = instrument(provider.get_meter("test"))
    instruments.add(ctx)

    def collect() -> dict[str, dict[frozenset[tuple[str, Any]], float]]:
        data = reader.get_metrics_data()
        assert data is not None
        (metrics,) = data.resource_metrics[0].scope_metrics
        of = {"device": device, "cq": "in"}.items()
        return {
            metric.name: {
                frozenset(point.attributes.items() - of): point.value
                for point in metric.data.data_points
                if point.attributes.items() >= of
            }
            for metric in metrics.metrics
        }

    asyncio.run(wake_tasks(receiving))
    got = collect()
    only: frozenset[tuple[str, Any]] = frozenset()
    task, thread = frozenset({("waiter", "task")}), frozenset({("waiter", "thread")})
    for name in ("arms", "events", "acked_events", "completions"):
        assert got[f"cqnotify.{name}"] == {only: ROUNDS}, name
    assert got["cqnotify.wakeups"] == {task: ROUNDS, thread: 0}
    assert got["cqnotify.open_cqs"] == {only: 1}
    assert got["cqnotify.completions_per_event.sum"] == {only: ROUNDS - 1}
    buckets = got["cqnotify.completions_per_event.bucket"]
    assert buckets[frozenset({("le", "0.0")})] == 0
    assert buckets[frozenset({("le", "1.0")})] == buckets[frozenset({("le", "+Inf")})] == ROUNDS - 1
    latency = snapshot(ctx).cqs["in"].task_latency
    assert got["cqnotify.wake_latency.sum"] == {task: latency.sum / 1e9}
    assert got["cqnotify.wake_latency.bucket"][task | {("le", "+Inf")}] == ROUNDS
    before = got
    ctx.close()
    assert collect()["cqnotify.open_cqs"] == {only: 0}
    assert collect()["cqnotify.events"] == before["cqnotify.events"]
    provider.shutdown()
