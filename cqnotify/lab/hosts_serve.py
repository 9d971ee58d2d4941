# SPDX-License-Identifier: MIT
"""./lab hosts N --serve: hosts that another program commands, which is what pytest's fixture does.

Orders are lines of JSON on standard input, {"id": N, "order": NAME, ...}; each gets the answer
{"id": N, ...} on standard output when it has been carried out, or with "error", a line for people.
Between the answers come the events of the hosts, which agent.py and hosts.py tell. All end when
standard input does.
"""

from __future__ import annotations

import json
import os
from typing import Any

from . import hosts
from .base import LabError


def serve(driver: list[str], count: int, seed: int) -> int:
    server = Server(driver, count, seed)
    try:
        while server.goes_on:
            server.cluster.turn()
    except BrokenPipeError:
        pass
    finally:
        server.cluster.end()
    return 0


class Server:
    def __init__(self, driver: list[str], count: int, seed: int) -> None:
        self.out, self.heard, self.goes_on = os.dup(1), b"", True
        os.dup2(2, 1)
        self.cluster = hosts.Cluster(driver, count, seed, self.tell)
        self.cluster.watch(0, self.hear)

    def tell(self, facts: dict[str, Any]) -> None:
        line = json.dumps(facts).encode() + b"\n"
        while line:
            line = line[os.write(self.out, line) :]

    def hear(self) -> None:
        data = os.read(0, 65536)
        self.goes_on = bool(data)
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            number = order.pop("id")
            try:
                answer = getattr(self, f"do_{order.pop('order')}")(**order)
            except (LabError, KeyError, TypeError) as error:
                answer = {"error": str(error)}
            self.tell({"id": number, **(answer or {})})

    def host(self, number: int) -> hosts.Host:
        return self.cluster.hosts[number - 1]

    # -- orders

    def do_boot(self, host: int) -> None:
        self.cluster.boot(self.host(host))

    def do_kill(self, host: int) -> None:
        if self.host(host).driver:
            self.cluster.kill(self.host(host))

    def do_pause(self, host: int, paused: bool) -> None:
        self.cluster.pause(self.host(host), paused)

    def do_tell(self, host: int, agent: dict[str, Any]) -> None:
        """An order to the agent there."""
        self.host(host).tell(agent.pop("order"), **agent)

    def do_impair(self, a: int | None, b: int | None, faults: dict[str, Any]) -> None:
        self.cluster.switch.ask("impair", links=self.cluster.links(a, b), faults=faults)

    def do_reset(self, seed: int) -> None:
        self.cluster.switch.ask("reset", seed=seed)

    def do_counts(self) -> dict[str, Any]:
        return self.cluster.switch.ask("counts")
