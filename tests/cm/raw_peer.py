# SPDX-License-Identifier: MIT
"""A peer that does what it is told, and nothing by itself: it answers no request and no goodbye.

It has librdmacm's calls and none of cqnotify.cm's steps, so a test can keep a connection in any of
its states. As a program it is a process of its own, which can be killed.
"""

from __future__ import annotations

import select
import sys
import time

from cqnotify import CQ, PD, QP, Context, QPType
from cqnotify._core import CMID, CMChannel
from cqnotify.cm import CMEventType
from cqnotify.cm._link import Options

DEADLINE = 120.0
OPTIONS = Options(b"raw")


class RawPeer:
    def __init__(self, ctx: Context) -> None:
        self.channel = CMChannel()
        self.id = CMID(self.channel)
        self.listener: CMID | None = None
        self.qp = QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 16))
        self.seen: list[str] = []

    def has_seen(self, name: str) -> bool:
        """Reads what has arrived. A request that has arrived is its `id` from then on. UNREAD is
        anything that has arrived, and is left there."""
        if name == "UNREAD":
            return bool(select.select([self.channel], [], [], 0)[0])
        while (event := self.channel.read_event()) is not None:
            self.seen.append(CMEventType(event[1]).name)
            if event[5] is not None:
                self.listener, self.id = self.id, event[5]
        return name in self.seen

    def await_event(self, name: str) -> None:
        end = time.monotonic() + DEADLINE
        while not self.has_seen(name):
            assert time.monotonic() < end, f"no {name}, only {self.seen}"
            time.sleep(0.001)

    def listen(self, host: str) -> int:
        """Returns the port."""
        self.id.bind_addr((host, 0))
        self.id.listen(8)
        assert self.id.local is not None
        return self.id.local[1]

    def ask(self, host: str, port: int | str) -> None:
        """For a connection; returns when the request is on its way."""
        self.take_qp()
        self.id.resolve_addr(None, (host, int(port)), 2000, "ADDR_RESOLVED")
        self.await_event("ADDR_RESOLVED")
        self.id.resolve_route(2000)
        self.await_event("ROUTE_RESOLVED")
        self.id.connect("RESPONDED")

    def take_qp(self) -> None:
        self.id.bind_qp(self.qp)
        self.id.prepare(OPTIONS)

    def accept(self) -> None:
        """Raises VerbsError where the client has gone."""
        self.take_qp()
        self.id.accept()

    def establish(self) -> None:
        self.id.establish()

    def is_answered(self) -> bool:
        return self.has_seen("ESTABLISHED" if self.id.is_iwarp else "CONNECT_RESPONSE")

    def finish(self) -> None:
        """Establish it once it has been accepted; on iWARP the kernel has."""
        if self.id.is_iwarp:
            self.await_event("ESTABLISHED")
        else:
            self.await_event("CONNECT_RESPONSE")
            self.establish()

    def reject(self) -> None:
        self.id.reject(b"no")

    def disconnect(self) -> None:
        self.id.disconnect()

    def close(self) -> None:
        self.id.close()
        if self.listener is not None:
            self.listener.close()

    def drop(self) -> None:
        self.close()
        self.channel.close()
        self.qp.close()


def main(device: str) -> None:
    """Runs the commands that it is sent: the name of an event that it awaits, or a method and its
    arguments. Says when one is done."""
    peer = RawPeer(Context(device))
    for line in sys.stdin:
        name, *arguments = line.split()
        result = peer.await_event(name) if name.isupper() else getattr(peer, name)(*arguments)
        print(result, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
