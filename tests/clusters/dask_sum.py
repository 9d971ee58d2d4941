# SPDX-License-Identifier: MIT
"""A Dask cluster over RDMA: scheduler and client on host 1, a worker on each other host.

The client computes the same sum again and again: arrays that travel between the workers, and whose
total is known. A computation that fails, because scheduler or client have died, is begun again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import dask
import numpy
from distributed import Client, Scheduler, Worker
from node import CLOSE, QUIET, STOP, Node, finals_of, say

PORT = 8786
SCHEDULER = f"rdma://10.99.0.1:{PORT}"
PARTS = 4
SIZE = 3000  # numbers of a part
PAUSE = 10.0  # seconds at most between two computations
COMPUTATION = 60.0  # seconds that one may take without an error, whatever fails meanwhile
CONFIG = {
    "distributed.comm.timeouts.connect": "5s",
    "distributed.comm.timeouts.tcp": "6s",
    "distributed.scheduler.worker-ttl": "20s",
    "distributed.scheduler.allowed-failures": 100,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.monitor-interval": "1h",
    "distributed.admin.tick.interval": "2s",
    "distributed.admin.tick.limit": "1h",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.active-memory-manager.start": False,
}


def make(number: int) -> Any:
    return numpy.arange(SIZE, dtype=float) + number


def mix(a: Any, b: Any) -> Any:
    """Of two workers, often."""
    return a + b


def total(*parts: Any) -> float:
    return float(sum(part.sum() for part in parts))


def right(round_: int) -> float:
    """What total() is of all mixed parts: each part is in two."""
    return 2.0 * sum(SIZE * (SIZE - 1) / 2 + SIZE * (round_ + i) for i in range(PARTS))


async def compute(node: Node, client: Client, round_: int) -> None:
    async with node.operation("compute", COMPUTATION):
        parts = [client.submit(make, round_ + i, pure=False) for i in range(PARTS)]
        mixed = [client.submit(mix, parts[i], parts[i - 1], pure=False) for i in range(PARTS)]
        result = await client.submit(total, *mixed, pure=False)
    if result != right(round_):
        say("violation", text=f"the sum of round {round_} is {result}, not {right(round_)}")
    say("computed", round=round_)


async def head(node: Node) -> None:
    """Scheduler and client."""
    round_ = 0

    async def computations() -> None:
        nonlocal round_
        async with Client(SCHEDULER, asynchronous=True, timeout=10) as client:
            while node.now() < STOP:
                await compute(node, client, round_)
                round_ += 1
                await asyncio.sleep(node.chance.random() * PAUSE)

    async with Scheduler(host="10.99.0.1", port=PORT, protocol="rdma://", dashboard=False):
        await node.repeat(computations)
        await node.until(CLOSE - 2)


async def work(node: Node) -> None:
    address = f"rdma://10.99.0.{node.number}"
    async with Worker(SCHEDULER, host=address, nthreads=1, dashboard=False) as worker:
        async with asyncio.timeout(max(0.0, CLOSE - 4 - node.now())) as time_is_up:
            try:
                await worker.finished()
            except TimeoutError:
                if not time_is_up.expired():
                    raise


async def main(node: Node) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set(CONFIG):
        if node.number == 1:
            await head(node)
        else:
            await node.repeat(lambda: work(node))
    say("final")


def judge(record: list[dict[str, Any]], hosts: int) -> list[str]:
    """What is wrong with the run, by its record."""
    _, found = finals_of(record, hosts)
    if not any(event["what"] == "computed" and event["at"] > QUIET for event in record):
        found.append(f"nothing was computed after {QUIET:g} s")
    return found
