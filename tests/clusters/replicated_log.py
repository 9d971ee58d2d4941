# SPDX-License-Identifier: MIT
"""A log on each host. Host 1 orders the entries; the others fetch them from its memory.

Each host sends entries of its own to host 1 by messages. Host 1 writes an entry to its disk,
exposes it, and tells the followers. A follower gets it out of that memory, writes it to its own
disk, puts the number of its entries into an array that host 1 exposes, and sends a message that
says so. An entry that two of three hosts have is acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy
from journal import Journal
from node import QUIET, STOP, Node, finals_of, say
from numbered import Numbered, data_of, digest

from cqnotify import memory, messages

PORT = 7000
LEADER = 1
PAUSE = 2.0  # seconds at most between two entries of a host
TRANSFER = 15.0  # seconds: docs/memory.md has 9, and more while frames are lost
NEWS = 45.0  # seconds at most until something is appended, whatever fails
WINDOW = 4  # entries that a follower is told before it has said that it has them


class Log:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.journal = Journal(node.disk / "journal")
        self.entries: list[tuple[str, bytes]] = []
        self.index: dict[str, int] = {}
        self.durable = 0
        self.changed = asyncio.Condition()
        self.acknowledged: dict[str, int] = {}
        self.calm = 0
        for facts, data, _ in self.journal.records:
            self.remember(facts["id"], data)
        self.durable = len(self.entries)

    def remember(self, name: str, data: bytes) -> None:
        self.index[name] = len(self.entries)
        self.entries.append((name, data))

    async def append(self, name: str, data: bytes) -> None:
        self.remember(name, data)
        self.journal.append({"id": name}, data)
        count = len(self.entries)
        await self.journal.commit()
        self.durable = max(self.durable, count)
        await self.has_changed()

    async def has_changed(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def reaches(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)


class Leader:
    def __init__(self, log: Log) -> None:
        self.log, self.node = log, log.node
        self.counts = numpy.zeros(9, dtype=numpy.int64)  # by host; the followers write it
        self.has = {log.node.number: 0}
        self.progress = memory.expose(self.counts, memory.WRITE)
        self.exposed: dict[int, memory.Exposure] = {}

    @property
    def committed(self) -> int:
        """What two of all have."""
        has = [self.log.durable, *(self.has.get(peer, 0) for peer in self.node.peers)]
        return sorted(has)[-2]

    def exposure(self, index: int) -> memory.Exposure:
        """Of an entry; those that all followers have need none any more."""
        least = min(self.has.get(peer, 0) for peer in self.node.peers)
        for old in [i for i in self.exposed if i < least - WINDOW]:
            self.exposed.pop(old).close()
        if index not in self.exposed:
            self.exposed[index] = memory.expose(self.log.entries[index][1] or b"\0")
        return self.exposed[index]

    async def serve(self, conn: messages.Connection) -> None:
        link = Numbered(self.node, conn, conn.peer[0])
        try:
            facts, data = await link.recv()
            if facts["do"] == "follow":
                await self.feed(link, facts["host"], facts["has"])
            while True:
                await self.take(link, facts, data)
                facts, data = await link.recv(NEWS, (None,))
        except EOFError:
            return

    async def take(self, link: Numbered, facts: dict[str, Any], data: Any) -> None:
        """An entry to append, which may be here already."""
        name = facts["id"]
        if name not in self.log.index:
            await self.log.append(name, bytes(data))
        index = self.log.index[name]
        await self.log.reaches(lambda: self.committed > index)
        await link.send({"id": name, "index": index})

    async def feed(self, link: Numbered, host: int, has: int) -> None:
        self.has[host] = has
        await self.log.has_changed()
        await link.send({"progress": self.progress.to_dict()})
        telling = asyncio.create_task(self.tell(link, host, has))
        try:
            await self.hear(link, host)
        finally:
            telling.cancel()
            await asyncio.wait([telling])
            if not telling.cancelled() and isinstance(telling.exception(), OSError):
                link.abort()  # hear() has had that error, too

    async def tell(self, link: Numbered, host: int, has: int) -> None:
        for index in itertools.count(has):
            await self.log.reaches(lambda index=index: index < self.may_tell(host))
            name, data = self.log.entries[index]
            where = self.exposure(index).to_dict()
            await link.send(
                {"id": name, "index": index, "sum": digest(data), "size": len(data), "at": where}
            )

    def may_tell(self, host: int) -> int:
        return min(self.log.durable, self.has[host] + WINDOW)

    async def hear(self, link: Numbered, host: int) -> None:
        while True:
            facts, _ = await link.recv(NEWS, (None,))
            if self.counts[host] < facts["has"]:
                say(
                    "violation",
                    text=f"{host} has put {facts['has']}, and {self.counts[host]} is there",
                )
            self.has[host] = facts["has"]
            await self.log.has_changed()


async def follow(log: Log) -> None:
    node = log.node
    link = Numbered(node, await node.connect(LEADER, PORT), LEADER)
    try:
        await link.send({"do": "follow", "host": node.number, "has": log.durable})
        facts, _ = await link.recv()
        progress = memory.Descriptor.from_dict(facts["progress"])
        async with asyncio.timeout(max(0.0, STOP + 4 - node.now())) as time_is_up:
            while True:
                facts, _ = await link.recv(NEWS, (None,))
                await fetch(log, facts)
                has = numpy.array([len(log.entries)], dtype=numpy.int64)
                async with node.operation("put", TRANSFER):
                    await memory.put(progress, has, offset=8 * node.number)
                await link.send({"has": len(log.entries)})
    except TimeoutError:
        if not time_is_up.expired():
            raise
    finally:
        link.abort()


async def fetch(log: Log, facts: dict[str, Any]) -> None:
    node, index = log.node, facts["index"]
    if index != len(log.entries):
        say("violation", text=f"entry {index} comes after {len(log.entries)} entries")
    timeout = node.chance.choice((None, 5))
    where = memory.Descriptor.from_dict(facts["at"])
    async with node.operation("get", TRANSFER):
        data = bytes(await memory.get(where, length=facts["size"], timeout=timeout))
    if digest(data) != facts["sum"]:
        say("violation", text=f"what was got of entry {index} is not that entry")
    await log.append(facts["id"], data)


async def write(log: Log) -> None:
    """Entries of this host, each again until it is acknowledged."""
    node = log.node
    link = Numbered(node, await node.connect(LEADER, PORT), LEADER)
    try:
        while node.now() < STOP:
            name = f"{node.number}-{node.life}-{len(log.acknowledged)}"
            await link.send({"do": "append", "id": name}, data_of(name))
            facts, _ = await link.recv(NEWS, (None,))  # when two of three have it
            if facts["id"] != name:
                say("violation", text=f"{facts['id']} is acknowledged, not {name}")
            log.acknowledged[name] = facts["index"]
            say("acknowledged", id=name, index=facts["index"])
            log.calm += node.now() > QUIET
            await asyncio.sleep(node.chance.random() * PAUSE)
        await link.close()
    finally:
        link.abort()


async def main(node: Node) -> None:
    log = Log(node)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.repeat(lambda: write(log)))
        if node.number == LEADER:
            leader = Leader(log)
            tasks.create_task(node.serve(PORT, leader.serve))
        else:
            tasks.create_task(node.repeat(lambda: follow(log)))
    entries = [[name, digest(data)] for name, data in log.entries]
    say("final", entries=entries, calm=log.calm)
    log.journal.close()


def judge(record: list[dict[str, Any]], hosts: int) -> list[str]:
    """What is wrong with the run, by its record."""
    finals, found = finals_of(record, hosts)
    if found:
        return found
    logs = {number: final["entries"] for number, final in finals.items()}
    longest = max(logs.values(), key=len)
    for number, log in logs.items():
        if log != longest[: len(log)]:
            found.append(f"the log of host {number} has other entries, or another order")
        if not finals[number]["calm"]:
            found.append(f"nothing of host {number} was appended after {QUIET:g} s")
    names = [name for name, _ in longest]
    if len(set(names)) != len(names):
        found.append("an entry is twice in the log")
    found += [f"entry {name} is changed" for name, sum_ in longest if sum_ != digest(data_of(name))]
    for event in record:
        if event["what"] == "acknowledged":
            name, index = event["id"], event["index"]
            without = [
                n for n, log in logs.items() if [e[0] for e in log[index : index + 1]] != [name]
            ]
            if without:
                found.append(f"entry {name} was acknowledged, and hosts {without} are without it")
    return found
