# SPDX-License-Identifier: MIT
"""A bank with a branch on each host, between which money goes by messages. The sum is constant.

A transfer has an id. The branch that pays writes it into its journal, and asks the other one for as
long as it takes; the other one books each id once, and acknowledges when that is on its disk.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Any

from journal import Journal
from node import QUIET, STOP, Node, finals_of, say
from numbered import Numbered, data_of

from cqnotify import messages

PORT = 7000
CAPITAL = 1000  # of each branch, when it opens
TOGETHER = 3  # transfers in a row, before the first acknowledgement is awaited
PAUSE = 2.0  # seconds at most between two rows


class Branch:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.journal = Journal(node.disk / "journal")
        self.balance = CAPITAL
        self.paid: dict[str, dict[str, Any]] = {}  # by id
        self.booked: set[str] = set()  # ids of others
        self.open: dict[int, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
        self.calm: collections.Counter[int] = collections.Counter()  # since QUIET, by peer
        for facts, _, _ in self.journal.records:
            self.apply(facts)

    def apply(self, facts: dict[str, Any]) -> None:
        match facts["do"]:
            case "pay":
                self.balance -= facts["amount"]
                self.paid[facts["id"]] = self.open[facts["to"]][facts["id"]] = facts
            case "book":
                self.balance += facts["amount"]
                self.booked.add(facts["id"])
            case "done":
                self.open[facts["to"]].pop(facts["id"], None)

    def write(self, facts: dict[str, Any]) -> None:
        self.journal.append(facts)
        self.apply(facts)

    # -- the one that pays

    async def pay(self, peer: int) -> None:
        """Rows of transfers on one connection, until it fails."""
        link = Numbered(self.node, await self.node.connect(peer, PORT), peer)
        try:
            while self.node.now() < STOP:
                await self.row(link, peer)
                await asyncio.sleep(self.node.chance.random() * PAUSE)
            await link.close()
        finally:
            link.abort()

    async def row(self, link: Numbered, peer: int) -> None:
        waiting = self.open[peer]
        while len(waiting) < TOGETHER:
            name = f"{self.node.number}-{peer}-{len(self.paid)}"
            amount = self.node.chance.randint(1, 50)
            self.write({"do": "pay", "id": name, "to": peer, "amount": amount})
        await self.journal.commit()
        row = list(waiting.values())
        for facts in row:
            await link.send({"id": facts["id"], "amount": facts["amount"]}, data_of(facts["id"]))
        for facts in row:
            answer, _ = await link.recv()
            if answer["id"] != facts["id"]:
                say("violation", text=f"{answer['id']} is acknowledged, not {facts['id']}")
            self.write({"do": "done", "id": facts["id"], "to": peer})
            self.calm[peer] += self.node.now() > QUIET

    # -- the one that is paid

    async def book(self, conn: messages.Connection) -> None:
        link = Numbered(self.node, conn, conn.peer[0])
        while True:
            try:
                facts, data = await link.recv(timeouts=(None,))
            except EOFError:
                return
            if data != data_of(facts["id"]):
                say("violation", text=f"the data of {facts['id']} are others")
            if self.node.plant == "early-ack":
                await link.send({"id": facts["id"]})
            if facts["id"] not in self.booked:
                self.write({"do": "book", "id": facts["id"], "amount": facts["amount"]})
            await self.journal.commit()
            if self.node.plant != "early-ack":
                await link.send({"id": facts["id"]})


async def main(node: Node) -> None:
    branch = Branch(node)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.serve(PORT, branch.book))
        for peer in node.peers:
            tasks.create_task(node.repeat(lambda peer=peer: branch.pay(peer)))
    say(
        "final",
        balance=branch.balance,
        paid=list(branch.paid),
        booked=sorted(branch.booked),
        open=[name for waiting in branch.open.values() for name in waiting],
        calm=dict(branch.calm),
    )
    branch.journal.close()


def judge(record: list[dict[str, Any]], hosts: int) -> list[str]:
    """What is wrong with the run, by its record."""
    finals, found = finals_of(record, hosts)
    if found:
        return found
    total = sum(final["balance"] for final in finals.values())
    paid = {name for final in finals.values() for name in final["paid"]}
    booked = [name for final in finals.values() for name in final["booked"]]
    if total != hosts * CAPITAL:
        found.append(f"the sum is {total}, not {hosts * CAPITAL}")
    if lost := paid - set(booked):
        found.append(f"paid, and not booked: {', '.join(sorted(lost))}")
    if invented := set(booked) - paid:
        found.append(f"booked, and not paid: {', '.join(sorted(invented))}")
    for number, final in finals.items():
        if final["open"]:
            found.append(f"host {number} waits for {', '.join(final['open'])}")
        found += [
            f"nothing went from {number} to {peer} after {QUIET:g} s"
            for peer in range(1, hosts + 1)
            if peer != number and not final["calm"].get(str(peer))
        ]
    return found
