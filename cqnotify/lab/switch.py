# SPDX-License-Identifier: MIT
"""The switch between the lab's hosts: forwards their frames, and fails as it is told.

Usage: switch.py ORDERS FD...: each FD is the socket of one host's cable, and a datagram is a frame.
From each host to each other there is a link of its own, with its own faults and its own chance: a
row of random numbers that the seed and the link decide alone. So what becomes of the n-th frame of
a link is the same in each run with that seed, whenever the frame comes.

ORDERS is a socket, too: a line of JSON for each order, and one for its answer. The process ends
when that socket is closed.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import json
import random
import select
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

HELD = 0.05  # seconds that a frame waits for the next one, which shall overtake it
WAITING = 1000  # frames for a host that does not take them; those that follow are dropped
BURST = 64  # frames of one host in a row
FRAME = 65536
BROADCAST = 1  # the bit of a MAC address's first byte


@dataclass(frozen=True)
class Faults:
    """A link's. Probabilities are from 0 to 1, times in seconds, the rate in bits a second."""

    loss: float = 0
    duplicate: float = 0
    reorder: float = 0  # the next frame overtakes this one
    delay: float = 0
    jitter: float = 0  # at most so much more delay; the order stays
    rate: float = 0  # 0: without limit
    cut: bool = False


class Link:
    """From one host to another."""

    def __init__(self, name: str, seed: object) -> None:
        self.name = name
        self.faults = Faults()
        self.reset(seed)

    def reset(self, seed: object) -> None:
        self.chance = random.Random(f"{seed} {self.name}")
        self.counts: collections.Counter[str] = collections.Counter()
        self.busy_until = self.latest = 0.0  # with sending, at its rate; the last frame's arrival
        self.held: bytes | None = None

    def take(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """Return the frames that leave at the other end, and when. A held one: by let_go()."""
        # As many numbers for each frame, whatever its faults: those of the next stay the same.
        loss, duplicate, reorder, jitter = (self.chance.random() for _ in range(4))
        faults = self.faults
        self.counts["frames"] += 1
        if faults.cut or loss < faults.loss:
            self.counts["cut" if faults.cut else "lost"] += 1
            return []
        if faults.rate:
            self.busy_until = max(self.busy_until, now) + len(frame) * 8 / faults.rate
        sent = self.busy_until if faults.rate else now
        when = self.latest = max(self.latest, sent + faults.delay + jitter * faults.jitter)
        if self.held is None and reorder < faults.reorder:
            self.held = frame
            return []
        leaving = [(when, frame)]
        if duplicate < faults.duplicate:
            self.counts["duplicated"] += 1
            leaving.append((when, frame))
        if self.held is not None:
            self.counts["reordered"] += 1
            leaving += [(when, held) for held in self.let_go()]
        return leaving

    def let_go(self) -> list[bytes]:
        held, self.held = self.held, None
        return [] if held is None else [held]


class Switch:
    def __init__(self, orders: socket.socket, cables: list[socket.socket]) -> None:
        self.orders, self.cables = orders, cables
        self.heard = b""
        self.names = range(1, len(cables) + 1)
        pairs = itertools.permutations(self.names, 2)
        self.links = {(a, b): Link(f"{a}>{b}", 0) for a, b in pairs}
        self.where: dict[bytes, int] = {}  # by MAC address
        self.down: set[int] = set()
        self.waiting: dict[int, collections.deque[bytes]] = {
            name: collections.deque() for name in self.names
        }
        self.later: list[tuple[float, int, tuple[int, int], bytes | None]] = []
        self.number = itertools.count()

    # -- frames

    def receive(self, source: int) -> None:
        for _ in range(BURST):
            try:
                frame = self.cables[source - 1].recv(FRAME)
            except OSError:  # nothing is there, or a host has just been killed
                return
            if source not in self.down and len(frame) >= 14:
                self.forward(source, frame)

    def forward(self, source: int, frame: bytes) -> None:
        to, sender = frame[:6], frame[6:12]
        self.where[sender] = source
        known = None if to[0] & BROADCAST else self.where.get(to)
        now = time.monotonic()
        for target in self.names if known is None else [known]:
            if target == source:
                continue
            link = self.links[source, target]
            held = link.held
            for when, leaving in link.take(frame, now):
                self.send_at(when, (source, target), leaving)
            if link.held is not None and link.held is not held:
                self.schedule(link.latest + HELD, (source, target), None)

    def send_at(self, when: float, link: tuple[int, int], frame: bytes) -> None:
        if when <= time.monotonic() and not self.later:
            self.deliver(link, frame)
        else:
            self.schedule(when, link, frame)

    def schedule(self, when: float, link: tuple[int, int], frame: bytes | None) -> None:
        heapq.heappush(self.later, (when, next(self.number), link, frame))

    def deliver_due(self) -> None:
        while self.later and self.later[0][0] <= time.monotonic():
            _, _, link, frame = heapq.heappop(self.later)
            for leaving in self.links[link].let_go() if frame is None else [frame]:
                self.deliver(link, leaving)

    def deliver(self, link: tuple[int, int], frame: bytes) -> None:
        target = link[1]
        if target in self.down or len(self.waiting[target]) >= WAITING:
            self.links[link].counts["dropped"] += 1
            return
        self.links[link].counts["delivered"] += 1
        self.waiting[target].append(frame)
        self.push(target)

    def push(self, target: int) -> None:
        """Hands over what the host takes now."""
        waiting = self.waiting[target]
        with contextlib.suppress(BlockingIOError):
            while waiting:
                self.cables[target - 1].send(waiting[0])
                waiting.popleft()

    # -- orders

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["order"]:
            case "impair":
                for a, b in order["links"]:
                    link = self.links[a, b]
                    link.faults = replace(link.faults, **order["faults"])
            case "down":
                self.set_down(order["host"], order["down"])
            case "reset":
                for link in self.links.values():
                    link.faults = Faults()
                    link.reset(order["seed"])
            case "counts":
                return {"links": {link.name: dict(link.counts) for link in self.links.values()}}
        return {}

    def set_down(self, host: int, down: bool) -> None:
        """Drop the frames under way to and from a host that loses its power."""
        self.waiting[host].clear()
        if down:
            self.down.add(host)
            return
        with contextlib.suppress(OSError):
            while self.cables[host - 1].recv(FRAME):
                pass
        self.down.discard(host)

    def hear(self) -> bool:
        data = self.orders.recv(65536)
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            answer = json.dumps(self.obey(json.loads(line)))
            self.orders.sendall(answer.encode() + b"\n")
        return bool(data)

    # -- the loop

    def run(self) -> None:
        by_fd = {cable.fileno(): name for name, cable in zip(self.names, self.cables, strict=True)}
        while True:
            poller = select.poll()
            poller.register(self.orders, select.POLLIN)
            for fd, name in by_fd.items():
                poller.register(fd, select.POLLIN | (select.POLLOUT if self.waiting[name] else 0))
            wait = (self.later[0][0] - time.monotonic()) * 1000 if self.later else None
            for fd, events in poller.poll(None if wait is None else max(0, wait)):
                if fd == self.orders.fileno():
                    if not self.hear():
                        return
                elif events & select.POLLOUT:
                    self.push(by_fd[fd])
                if fd in by_fd and events & select.POLLIN:
                    self.receive(by_fd[fd])
            self.deliver_due()


def main() -> None:
    orders, *cables = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
    for cable in cables:
        cable.setblocking(False)
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        Switch(orders, cables).run()


if __name__ == "__main__":
    main()
