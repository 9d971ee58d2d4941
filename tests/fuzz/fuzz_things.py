# SPDX-License-Identifier: MIT
"""What the fuzzers know of the objects that they make, and how often they called what."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from cqnotify import QPType, WCOpcode, WROpcode


@dataclass
class Tally:
    """How often each method was called, and how often it did not refuse."""

    made: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.made.total()

    def __str__(self) -> str:
        done = self.done.total()
        lines = [f"{self.calls} calls, {done} ({100 * done // max(1, self.calls)} %) succeeded"]
        lines += [f"  {self.made[k]:7} {self.done[k]:7}  {k}" for k in sorted(self.made)]
        return "\n".join(lines)


def ours() -> Counter[str]:
    """The objects of the package that exist and that the collector knows."""
    gc.collect()
    names = {
        *("Context", "PD", "MR", "SGE", "CompletionChannel", "CQ", "SRQ", "QP", "AH", "MW"),
        *("AsyncEvent", "SendWR", "RecvWR", "AsyncCQ", "Awaitable", "XRCD", "Flow", "WQ"),
        *("FlowCounters", "RwqIndTable"),
    }
    types = [type(o) for o in gc.get_objects()]
    found = Counter(t.__name__ for t in types if str(t.__module__).startswith("cqnotify"))
    return Counter({name: found[name] for name in names if found[name]})


def descriptors() -> set[tuple[str, str]]:
    """This process' files; some are open while they are listed, and gone when looked at."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


SLOT, SLOTS, PAYLOAD = 128, 96, 64
IN_FLIGHT = 16  # of one queue
SEND_OPS = {
    "send": WROpcode.SEND,
    "imm": WROpcode.SEND_WITH_IMM,
    "write": WROpcode.RDMA_WRITE,
    "write_imm": WROpcode.RDMA_WRITE_WITH_IMM,
    "read": WROpcode.RDMA_READ,
}
WC_OPS = {
    "send": WCOpcode.SEND,
    "imm": WCOpcode.SEND,
    "write": WCOpcode.RDMA_WRITE,
    "write_imm": WCOpcode.RDMA_WRITE,
    "read": WCOpcode.RDMA_READ,
}


@dataclass(eq=False, repr=False)
class Thing:
    """An object of the package, and what the model knows of it."""

    kind: str
    obj: Any
    uses: list[Thing] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.ref = weakref.ref(self.obj)

    def __repr__(self) -> str:
        return f"{self.obj!r}" if self.obj is not None else f"<forgotten {self.kind}>"

    @property
    def open(self) -> bool:
        return not self.closed and self.ref() is not None


@dataclass(eq=False, repr=False)
class Region(Thing):
    free: list[int] = field(default_factory=lambda: list(range(SLOTS)))


@dataclass(eq=False, repr=False)
class Queue(Thing):
    """A CQ."""

    got: int = 0  # events
    acked: int = 0
    arms: int = 0
    polls: int = 0
    completions: int = 0
    load: set[Work] = field(default_factory=set)  # what may have a place in it


@dataclass(eq=False, repr=False)
class Pair(Thing):
    """A QP."""

    type: QPType = QPType.RC
    state: str = "RTS"
    healthy: bool = True  # so is its peer: everything succeeds
    peer: Pair | None = None
    ah: Thing | None = None
    inline: bool = False
    all_signaled: bool = False
    num: int = 0
    sq: deque[Work] = field(default_factory=deque)
    rq: deque[Work] = field(default_factory=deque)
    unmatched: deque[Work] = field(default_factory=deque)  # receives that no send will fill

    def __repr__(self) -> str:
        return f"{self.obj!r} in {self.state}, {'' if self.healthy else 'not '}healthy"

    @property
    def pd(self) -> Thing:
        return self.uses[0]

    @property
    def scq(self) -> Queue:
        return self.uses[1]  # type: ignore[return-value]

    @property
    def rcq(self) -> Queue:
        return self.uses[2]  # type: ignore[return-value]


@dataclass(eq=False, repr=False)
class Work:
    """A work request."""

    wr_id: int
    qp: Pair
    op: str
    mr: Region | None
    slot: int
    length: int
    signaled: bool = True
    must: bool = True  # complete
    done: bool = False
    data: bytes | None = None  # that a receive or a read must bring
    imm: int | None = None
    far: tuple[Region, int] | None = None  # the slot at the peer
    skipped: bool = False  # nothing more will be heard of it
    ah: Thing | None = None
    posted_in: str = ""
    dropped: bool = False  # its QP was reset or closed

    def __repr__(self) -> str:
        signaled = "signaled" if self.signaled else "unsignaled"
        peer = f"peer {self.qp.peer}"
        return f"{signaled} {self.op} {self.wr_id} on {self.qp}, posted {self.posted_in}, {peer}"
