# SPDX-License-Identifier: MIT
"""Timelines for tests: written as the observer writes them, by Python's struct.

    python tests/trace/trace_support.py FOLDER

writes the one that docs/trace.md shows there.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from cqnotify.check.rules import find_rule
from cqnotify.trace.records import (
    COMPLETION,
    HEADER,
    MAGIC,
    NO_TIMEOUT,
    RECORD,
    Call,
    Flag,
    Recording,
    What,
    read_file,
)

HEADER_SIZE = 4096  # of struct timeline_header
PID = 4711
START = 1_000_000_000_000  # of CLOCK_MONOTONIC, ns
REALTIME = 1_767_225_600_000_000_000  # at START
RECV = 128  # IBV_WC_RECV
SEND = 2  # IBV_WR_SEND
FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR
UD = 4  # IBV_QPT_UD


class Tape:
    """Records of one process. Times are in ns since START; `tid` stays until it is changed."""

    def __init__(
        self, pid: int = PID, command: str = "./receiver rxe0", start: int = START
    ) -> None:
        self.pid = pid
        self.tid = pid
        self.command = command
        self.start = start
        self.now = 0
        self.records: list[bytes] = []
        self.completions: list[bytes] = []
        self.log: list[dict[str, Any]] = []

    def add(self, what: int, object: int = 0, /, *, after: int = 1000, **values: int) -> Tape:
        """Add a record, so many ns after the one before."""
        self.now += after
        order = "flags", "other", "value", "number", "detail", "caller"
        assert set(values) <= set(order), values
        flags, other, value, number, detail, caller = (values.get(name, 0) for name in order)
        fields = self.start + self.now, self.tid, what, flags, object, other, value, number, detail
        self.records.append(RECORD.pack(*fields, caller))
        return self

    # The calls of a program, each as the observer records it.

    def create(self, cqs: int = 1) -> Tape:
        """A channel, CQs on it, and a QP for each."""
        self.add(What.CHANNEL_CREATED, 1, number=7)
        for cq in range(1, cqs + 1):
            self.add(What.CQ_CREATED, cq, other=1, number=16)
            self.add(What.QP_CREATED, cq, other=cq, value=cq, number=16 + cq, detail=2)
        return self

    def post_recv(self, wr_id: int, qp: int = 1, **more: int) -> Tape:
        return self.add(What.POST_RECV, qp, value=wr_id, number=64, **more)

    def post_send(self, wr_id: int, qp: int = 1, *, signaled: bool = True, **more: int) -> Tape:
        flags = Flag.SIGNALED if signaled else 0
        return self.add(
            What.POST_SEND, qp, value=wr_id, number=64, detail=SEND, flags=flags, **more
        )

    def completion(
        self, wr_id: int, cq: int = 1, *, status: int = 0, opcode: int = RECV, **more: int
    ) -> Tape:
        detail = opcode | status << 16
        values = {"other": cq, "value": wr_id, "number": 64, "detail": detail, **more}
        return self.add(What.COMPLETION, cq, **values)

    def seen(self, wr_id: int, cq: int = 1, **more: int) -> Tape:
        return self.completion(wr_id, cq, flags=int(Flag.SEEN), **more)

    def poll(self, *wr_ids: int, cq: int = 1, before: int = 0, after: int = 1000) -> Tape:
        """A poll that finds these, and so many that were seen before."""
        for wr_id in wr_ids:
            self.completion(wr_id, cq, after=after)
            after = 0
        number = before + len(wr_ids)
        return self.add(What.POLL, cq, number=number, detail=16, after=after)

    def poll_run(self, *wr_ids: int, cq: int = 1, after: int = 1000) -> Tape:
        """The same, as the observer writes successes of one QP that come in order."""
        first = len(self.completions)
        self.completions += [COMPLETION.pack(wr_id, 64, RECV) for wr_id in wr_ids]
        values = {"other": cq, "value": first, "number": len(wr_ids), "detail": 16}
        flags = int(Flag.WITH_COMPLETIONS)
        return self.add(What.POLL, cq, after=after, flags=flags, **values)

    def arm(self, cq: int = 1, *, solicited: bool = False, **more: int) -> Tape:
        return self.add(What.ARM, cq, detail=int(solicited), **more)

    def event(self, cq: int = 1, **more: int) -> Tape:
        return self.add(What.EVENT, cq, other=1, **more)

    def ack(self, number: int = 1, cq: int = 1, **more: int) -> Tape:
        return self.add(What.ACK, cq, number=number, **more)

    def sleep(self, call: Call = Call.GET_CQ_EVENT, timeout: int = NO_TIMEOUT, **more: int) -> Tape:
        return self.add(What.SLEEP, 1, detail=call, number=1, value=timeout, **more)

    def wake(self, channel: int = 1, **more: int) -> Tape:
        return self.add(What.WAKE, channel, **{"number": 1 if channel else 0, **more})

    def task(self, task: int, name: str) -> Tape:
        """The task that the thread runs from here on."""
        numbers = struct.unpack("<4IQ", name.encode()[:24].ljust(24, b"\0"))
        object, other, number, detail, caller = numbers
        values = {"other": other, "number": number, "detail": detail, "caller": caller}
        return self.add(What.TASK, object, value=task, **values)

    def finding(self, rule: str, cq: int = 1, after: int = 0, **values: Any) -> Tape:
        number = len(self.log) + 1
        self.add(What.FINDING, cq, other=number, after=after)
        self.say("finding", rule=rule, number=number, tid=self.tid, values={"cq": cq, **values})
        return self

    def say(self, kind: str, **values: Any) -> None:
        """Add a line to the log."""
        self.log.append({"kind": kind, "time": self.start + self.now, **values})

    # The file.

    def bytes(self, capacity: int | None = None, completions: int = 64) -> bytes:
        """The file; a ring that holds less than all has the last records, or completions."""
        written = len(self.records)
        capacity = capacity or max(written, 1)
        ring = [bytes(RECORD.size)] * capacity
        for number, record in enumerate(self.records):
            ring[number % capacity] = record
        ring += [bytes(COMPLETION.size)] * completions
        for number, completion in enumerate(self.completions):
            ring[capacity + number % completions] = completion
        header = HEADER.pack(
            *(MAGIC, HEADER_SIZE, RECORD.size, capacity, written),
            *(self.start, REALTIME + self.start - START, self.pid, 0),
            *(completions, len(self.completions)),
        )
        return (header + self.command.encode()).ljust(HEADER_SIZE, b"\0") + b"".join(ring)

    def write(
        self,
        folder: Path,
        *,
        number: int = 1,
        capacity: int | None = None,
        completions: int = 64,
    ) -> Path:
        path = folder / f"{self.pid}.{number}.timeline"
        path.write_bytes(self.bytes(capacity, completions))
        if self.log:
            lines = "".join(json.dumps(entry) + "\n" for entry in self.log)
            path.with_suffix(".log").write_text(lines)
        return path

    def recording(self, folder: Path) -> Recording:
        return read_file(self.write(folder))


def receive(tape: Tape, wr_id: int, wait: int = 20_000) -> None:
    """One round of a receiver that does all right: arm, poll, sleep, event, ack, poll."""
    tape.arm().poll()
    tape.sleep().wake(after=wait).event(after=200).ack(after=150)
    tape.poll(wr_id, after=900)
    tape.post_recv(wr_id, after=500)


LOST_VALUES = {
    **{"channel": 1, "completions": 1, "armed": "before", "call": "ibv_get_cq_event"},
    **{"arms": 3, "events": 2, "polls": 4},
}
LOST = "lost-wakeup: " + find_rule("lost-wakeup").say(
    {"cq": 1, "thread": f"Thread {PID}", **LOST_VALUES}
)


def race() -> Tape:
    """Two rounds go well. Then the program arms, and does not poll before it sleeps."""
    tape = Tape().create()
    for wr_id in (1, 2):
        tape.post_recv(wr_id)
    receive(tape, 1)
    receive(tape, 2, 14_000)
    tape.arm(after=4000).sleep(after=1500)
    tape.seen(1, after=600)
    tape.finding("lost-wakeup", after=200, **LOST_VALUES)
    tape.now += 24_000
    tape.say("counts", cqs=1)
    return tape


def many(number: int) -> Tape:
    """So many records, of two threads with a CQ each; one in 50 completions has failed."""
    tape = Tape(command="./busy --messages many").create(2)
    turn = 0
    while len(tape.records) < number:
        cq = turn % 2 + 1
        tape.tid = PID + cq - 1
        tape.post_recv(turn, cq, after=300 + turn * 37 % 900)
        tape.arm(cq).sleep().wake(after=2000 + turn * 7919 % 30_000)
        tape.event(cq, after=150 + turn * 13 % 400).ack(cq=cq, after=100)
        status = FLUSHED if turn % 50 == 49 else 0
        tape.completion(turn, cq, after=300 + turn * 101 % 2500, status=status)
        tape.add(What.POLL, cq, number=1, detail=16, after=0)
        turn += 1
    del tape.records[number:]
    return tape


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def patch(path: Path, offset: int, layout: str, *values: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, *values)
    path.write_bytes(data)


if __name__ == "__main__":
    race().write(Path(sys.argv[1]))
