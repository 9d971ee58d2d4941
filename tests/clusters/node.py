# SPDX-License-Identifier: MIT
"""Runs on each host of the cluster: the process of a workload, which it kills, stops and starts
again as the faults of this host want; it tells what happens as lines of JSON.

    node.py WORKLOAD SEED PLANT FAULT...      the faults are texts
"""

from __future__ import annotations

import asyncio
import collections
import faulthandler
import gc
import heapq
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import faults
import plants

from cqnotify import _registered, memory, messages

EPOCH = 1_800_000_000  # when the cluster's time begins
QUIET = faults.END + 15  # from now on every operation succeeds
STOP = QUIET + 10  # nothing new begins
CLOSE = STOP + 5  # the processes end
DISK = Path("/disk")
KEPT = collections.Counter(
    ["/dev/infiniband/uverbs0", "anon_inode:[infinibandevent]"]
)  # librdmacm's
EXPECTED = (OSError, TimeoutError)  # cqnotify's errors of connections and transfers are OSErrors


def now() -> float:
    return time.time() - EPOCH


def finals_of(
    record: list[dict[str, Any]], hosts: int
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return what each host told at its end; and for each that told nothing, that this is wrong."""
    finals = {event["host"]: event for event in record if event["what"] == "final"}
    return finals, [f"host {n} has no end" for n in range(1, hosts + 1) if n not in finals]


def say(what: str, **facts: Any) -> None:
    os.write(1, json.dumps({"at": round(now(), 3), "what": what, **facts}).encode() + b"\n")


# ---- in the process of the workload ------------------------------------------------------------


class Node:
    """What a workload sees of its place: its number, the others, chance, and time."""

    def __init__(self, number: int, hosts: int, seed: int, plant: str, life: int) -> None:
        self.number, self.plant = number, plant
        self.peers = [peer for peer in range(1, hosts + 1) if peer != number]
        self.chance = random.Random(f"node {seed} {number} {life}")
        self.life = life
        self.disk = DISK
        self.say = say
        self.now = now

    @asynccontextmanager
    async def operation(self, name: str, bound: float) -> AsyncIterator[None]:
        """What is awaited in it ends within the bound (seconds), or it is told. Errors are told,
        too, and go on."""
        begun = now()
        overdue = asyncio.get_running_loop().call_later(
            bound, lambda: say("overdue", op=name, bound=bound, begun=round(begun, 3))
        )
        try:
            yield
        except messages.PeerClosedError:
            raise
        except EXPECTED as error:
            text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
            say("error", op=name, error=text, begun=round(begun, 3), took=round(now() - begun, 3))
            raise
        finally:
            overdue.cancel()

    async def until(self, instant: float) -> None:
        await asyncio.sleep(max(0.0, instant - now()))

    async def connect(self, peer: int, port: int) -> messages.Connection:
        async with self.operation(f"connect to {peer}", 6):
            options = messages.ConnectionOptions(keepalive=4)
            return await messages.connect(f"10.99.0.{peer}", port, timeout=5, options=options)

    async def repeat(self, once: Callable[[], Awaitable[None]]) -> None:
        """Again and again until STOP; after an error, which faults may cause, a moment later."""
        while now() < STOP:
            try:
                await once()
            except EXPECTED:
                await asyncio.sleep(0.1 + self.chance.random() / 5)

    async def serve(
        self, port: int, handle: Callable[[messages.Connection], Awaitable[None]]
    ) -> None:
        """Each connection in a task, until CLOSE."""

        async def one(conn: messages.Connection) -> None:
            try:
                async with conn:
                    await handle(conn)
            except EXPECTED as error:
                text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
                say("peer lost", error=text)

        options = messages.ConnectionOptions(keepalive=4)
        async with messages.listen("0.0.0.0", port, options=options) as listener:
            tasks: set[asyncio.Task[None]] = set()
            try:
                async with asyncio.timeout(CLOSE - now()):
                    async for conn in listener:
                        task = asyncio.create_task(one(conn))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
            except TimeoutError:
                pass
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def live(workload: Any, node: Node) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda loop, context: say("violation", text=f"{context.get('message')}: {context}")
    )
    say("begins", life=node.life)
    await workload.main(node)
    memory.close()
    left = [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        say("violation", text=f"a task is left: {task}")


def rdma_descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if "infiniband" in target or "rdma_cm" in target:
            found.append(target)
    return found


def run_child(workload: Any, node: Node) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("always", ResourceWarning)
    warnings.showwarning = lambda message, category, *more, **_: say(
        "violation", text=f"{category.__name__}: {message}"
    )
    plants.put_in(node.plant)
    try:
        asyncio.run(live(workload, node))
    except BaseException:
        say("violation", text=traceback.format_exc())
        return 1
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, messages.Connection) and not thing.closed:
            say("violation", text=f"a connection is left: {thing!r}")
    for device in _registered.Device.all():
        say("violation", text=f"{device.name} is left open, with {device.default_pool.stats}")
    time.sleep(0.5)  # for threads that are told to end
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.name.startswith("cqnotify"):
            say("violation", text=f"a thread is left: {thread.name}")
    counts = collections.Counter(rdma_descriptors())
    for target in counts - KEPT:
        say("violation", text=f"a descriptor is left: {target}")
    return 0


# ---- in the process that keeps it alive --------------------------------------------------------


class Keeper:
    """Of one process: as systemd, and as fate."""

    def __init__(self, words: list[str]) -> None:
        name, seed, self.plant, *texts = words
        self.workload = importlib.import_module(name)
        self.seed = int(seed)
        self.number, self.hosts = (int(os.environ[f"CQNOTIFY_LAB_{s}"]) for s in ("HOST", "HOSTS"))
        self.pid = 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        for fault in faults.parse("\n".join(texts)):
            if fault.at > now():  # a host that was switched on again has had the others
                first, then = {
                    "kill": (self.kill, self.start),
                    "pause": (self.stop, self.go_on),
                }[fault.kind]
                self.at(fault.at, first)
                self.at(fault.until, then)

    def at(self, instant: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (instant, len(self.events), what))

    def start(self) -> None:
        if self.pid or now() >= STOP:
            return
        self.pid = os.fork()
        if self.pid == 0:
            life = int(now() * 1000)
            node = Node(self.number, self.hosts, self.seed, self.plant, life)
            status = run_child(self.workload, node)
            sys.stdout.flush()
            os._exit(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def stop(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self.start()
        last = CLOSE + 30
        while now() < last:
            instant = self.events[0][0] if self.events else last
            signal.sigtimedwait({signal.SIGCHLD}, max(0.0, instant - now()))
            while self.events and self.events[0][0] <= now():
                heapq.heappop(self.events)[2]()
            if self.pid and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.pid = 0
                if ended[1]:
                    say("violation", text=f"the process ended with {ended[1]}")
                return self.check_host()
        say("violation", text="the process hangs")
        if self.pid:
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)
        return 1

    def check_host(self) -> int:
        """The kernel has nothing of processes that are gone."""
        time.sleep(5)  # for packets to a dead host, which keep a QP for up to 3 s
        for kind in ("qp", "cq", "mr", "pd", "cm_id"):
            listed = subprocess.run(
                ["rdma", "resource", "show", kind], check=True, capture_output=True, text=True
            ).stdout.splitlines()
            if kind == "qp" and not listed:
                say("violation", text="rdma shows nothing, not even the kernel's own")
            for line in listed:
                if "comm [" not in line:  # the kernel's own are
                    say("violation", text=f"the kernel still has: {line.strip()}")
        say("ends")
        return 0


if __name__ == "__main__":
    sys.exit(Keeper(sys.argv[1:]).run())
