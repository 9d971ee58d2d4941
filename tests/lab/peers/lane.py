# SPDX-License-Identifier: MIT
"""What blocking.py and tasks.py share: a connection of numbered messages, and its books.

Each program is one end of a few lanes, and obeys orders on standard input, a line each:

    connect LANE ADDRESS    to the lane of that name of the other program
    send COUNT EVERY        on all lanes, a message each EVERY seconds; then "done"
    stop                    no more of them
    nudge                   another message on the lanes whose sends are still under way
    tally                   one line of JSON for each lane: its books
    cpu                     the CPU time of this process since the last time, and the time
    close                   everything, whatever is under way; says how long it took
    open                    all lanes anew

The messages of each connection are numbered from 0, and their bytes are known, so that the
receiver sees what is missing, twice, out of order or not what was sent.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import time
from collections import Counter
from typing import Any, Final

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    CompletionChannel,
    Context,
    QPAddress,
    QPType,
    WorkCompletion,
)
from cqnotify.qp import DEFAULT_QKEY

SIZES: Final = {"rc": 4000, "srq": 4000, "ud": 500}  # four packets, and one
RECEIVES: Final = 32
SENDS: Final = 16  # under way at once
GRH: Final = 40
RECV: Final = 1 << 32  # a bit of wr_id: a failed completion tells little else


def say(*words: object) -> None:
    """In one piece: other threads say something, too."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def name_of(value: object) -> str:
    """Of an enumerator; a number that has none stays one."""
    return str(getattr(value, "name", value))


def message(number: int, size: int) -> bytes:
    return struct.pack("!I", number) + random.Random(number).randbytes(size - 4)


class Sent:
    """The books of a sender: each request completes once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.posted = 0
        self.under_way: dict[int, float] = {}  # by number: when it was posted
        self.succeeded = self.twice = 0
        self.failed: dict[int, str] = {}
        self.slowest = 0.0  # of those that succeeded

    def post(self) -> int:
        """Returns the number of the next one."""
        number, self.posted = self.posted, self.posted + 1
        self.under_way[number] = time.monotonic()
        return number

    def refused(self, number: int) -> None:
        """Of the latest ones: the QP was known to have failed before they were posted."""
        del self.under_way[number]
        self.posted -= 1

    def end(self, number: int, status: str) -> None:
        if number not in self.under_way:
            self.twice += 1
            return
        took = time.monotonic() - self.under_way.pop(number)
        if status == "SUCCESS":
            self.succeeded += 1
            if self.succeeded % 5 == 0:
                say(self.name, "sent", self.succeeded)
            self.slowest = max(self.slowest, took)
            return
        self.failed[number] = status
        if status != "WR_FLUSH_ERR":
            say(self.name, "send", number, status, f"after {took:.3f}")

    def tally(self) -> dict[str, Any]:
        return {
            "posted": self.posted,
            "under_way": len(self.under_way),
            "succeeded": self.succeeded,
            "failed": self.failed,
            "completed_twice": self.twice,
            "slowest": round(self.slowest, 3),
        }


class Received:
    """The books of a receiver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: set[int] = set()
        self.last = -1
        self.counts: Counter[str] = Counter()

    def take(self, data: bytes) -> None:
        (number,) = struct.unpack_from("!I", data)
        if data != message(number, SIZES[self.name]):
            self.counts["garbled"] += 1
            return
        self.counts["twice"] += number in self.numbers
        self.counts["out_of_order"] += number < self.last
        self.counts["skipped"] += max(0, number - self.last - 1)
        self.last = max(number, self.last)
        self.numbers.add(number)
        if len(self.numbers) % 5 == 0:
            say(self.name, "got", len(self.numbers))

    def tally(self) -> dict[str, Any]:
        return {"got": len(self.numbers), **self.counts}


class Lane:
    """One end of a connection, with everything that it needs, and receives posted."""

    def __init__(self, name: str, ctx: Context, ack_timeout: int, retry_cnt: int) -> None:
        self.name, self.size = name, SIZES[name]
        self.options = {"ack_timeout": ack_timeout, "retry_cnt": retry_cnt} if name != "ud" else {}
        self.sent, self.received = Sent(name), Received(name)
        self.flushed = 0  # receives
        self.told: list[str] = []  # by AsyncEventError
        self.left = 0  # to be sent
        self.every = 0.0
        self.to_peer: dict[str, Any] = {}
        self.pd = PD(ctx)
        self.channel = CompletionChannel(ctx, transient_errors=True)
        self.cq = CQ(ctx, 2 * (RECEIVES + SENDS), channel=self.channel)
        self.out = MR(self.pd, self.size * SENDS)
        self.room = self.size + GRH
        self.into = MR(self.pd, self.room * RECEIVES)
        self.srq = SRQ(self.pd, RECEIVES) if name == "srq" else None
        queue: Any = {"srq": self.srq} if self.srq else {"max_recv_wr": RECEIVES}
        qp_type = QPType.UD if name == "ud" else QPType.RC
        self.qp = QP(self.pd, qp_type, send_cq=self.cq, max_send_wr=SENDS, **queue)
        self.qp.to_init()

    def address(self) -> str:
        return self.qp.address().to_wire()[:-1].decode()

    def connect(self, text: str) -> None:
        start = time.monotonic()
        peer = QPAddress.from_wire(text.encode() + b"\0")
        if self.name == "ud":
            self.qp.connect()
            ah = AH(self.pd, dgid=peer.gid, sgid_index=self.qp.context.find_gid().index)
            self.to_peer = {"ah": ah, "remote_qpn": peer.qp_num, "remote_qkey": DEFAULT_QKEY}
        else:
            self.qp.connect(peer, **self.options)
        say(self.name, f"connected in {time.monotonic() - start:.3f}")

    def send(self, count: int, every: float) -> None:
        self.left, self.every = count, every

    def memory_of(self, number: int) -> Any:
        """Where the message is, written there."""
        offset = number % SENDS * self.size
        self.out.write(message(number, self.size), offset)
        return self.out[offset : offset + self.size]

    def receive_into(self, slot: int) -> Any:
        return self.into[slot * self.room : (slot + 1) * self.room]

    def post_recv(self, slot: int) -> None:
        (self.srq or self.qp).post_recv(self.receive_into(slot), wr_id=RECV | slot)

    def took(self, slot: int) -> None:
        """A message has come into that memory."""
        start = slot * self.room + (GRH if self.name == "ud" else 0)
        self.received.take(self.into.read(self.size, start))

    def take_recv(self, wc: WorkCompletion) -> None:
        if wc.ok:
            slot = wc.wr_id & ~RECV
            self.took(slot)
            self.post_recv(slot)
        else:
            self.flushed += 1

    def tally(self) -> str:
        books = {**self.sent.tally(), **self.received.tally()}
        books |= {"flushed": self.flushed, "told": self.told, "state": str(self.qp.state)}
        return json.dumps(books)


class Lanes:
    """One end of some lanes, and the orders that need no waiting."""

    def __init__(self, ack_timeout: int, retry_cnt: int, names: list[str]) -> None:
        self.settings, self.names = (ack_timeout, retry_cnt), names
        self.clock = Clock()
        self.lanes: dict[str, Any] = {}

    def made(self, lane_type: type[Lane]) -> dict[str, Any]:
        """The lanes, on a context of their own."""
        self.ctx = Context()
        return {name: lane_type(name, self.ctx, *self.settings) for name in self.names}

    def say_addresses(self) -> None:
        say("addresses", *(f"{name}={lane.address()}" for name, lane in self.lanes.items()))

    def obey_at_once(self, order: str, words: list[str]) -> None:
        if order == "connect":
            self.lanes[words[0]].connect(words[1])
        elif order == "cpu":
            self.clock.say()
        for lane in self.lanes.values():
            match order:
                case "stop":
                    lane.send(0, 0)
                case "nudge":
                    lane.nudge()
                case "tally":
                    say("tally", lane.name, lane.tally())


class Clock:
    """CPU time of this process, and the time."""

    def __init__(self) -> None:
        self.cpu, self.wall = time.process_time(), time.monotonic()

    def say(self) -> None:
        cpu, wall = time.process_time() - self.cpu, time.monotonic() - self.wall
        say(f"cpu {cpu:.3f} in {wall:.3f}")
        self.__init__()  # type: ignore[misc]
