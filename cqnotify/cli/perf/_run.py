# SPDX-License-Identifier: MIT
"""A run of one size: what both commands do before and after they measure."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from ..._core import CompletionError, SendWR
from ...enums import SendFlags, WROpcode
from .. import CommandError
from ._control import GONE
from ._end import PerfEnd

OPCODES: Final = {
    "send": WROpcode.SEND,
    "write": WROpcode.RDMA_WRITE,
    "read": WROpcode.RDMA_READ,
    "atomic": WROpcode.ATOMIC_FETCH_AND_ADD,
}


MEASURABLE: Final = 10 / os.sysconf("SC_CLK_TCK")  # seconds: some kernels count CPU time in ticks


class Effort:
    """The cost of a run for this end, from now on: CPU time of the process, and events.

    The CPU time is None if the run is too short for it to be measured.
    """

    def __init__(self, end: PerfEnd) -> None:
        self._cqs = (end.send_cq, end.recv_cq)
        self._events = self._count()
        self._cpu = time.process_time_ns()
        self._start = time.perf_counter_ns()

    def _count(self) -> int:
        return sum(cq.stats.events for cq in self._cqs)

    def so_far(self) -> dict[str, Any]:
        """Return the cost until now, as it is sent to the peer."""
        wall = time.perf_counter_ns() - self._start
        cpu = time.process_time_ns() - self._cpu
        percent = 100 * cpu / wall if wall >= MEASURABLE * 1e9 else None
        return {"cpu_percent": percent, "events": self._count() - self._events}


def begin(end: PerfEnd, size: int) -> None:
    """Wait until both ends are ready for a run of this size. The client begins it."""
    end.control.swap({"ready": size}, end.plan.client, end.plan.timeout)


def what_failed(end: PerfEnd, error: CompletionError) -> Exception:
    """Return the exception for a message that failed."""
    return CommandError(GONE) if end.control.has_gone() else error


def requests(end: PerfEnd, size: int, wr_id: int = 0) -> tuple[SendWR, SendWR]:
    """Return the work request of a message without and with a completion."""
    plan = end.plan
    options: dict[str, Any] = {"opcode": OPCODES[plan.op], "wr_id": wr_id}
    if plan.immediate:
        options.update(opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=0)
    if plan.op != "send":
        options.update(remote_addr=end.remote["addr"], rkey=end.remote["rkey"])
    options.update(end.endpoints[wr_id].to_peer)
    if plan.op == "atomic":
        options.update(compare_add=1)
    flags = SendFlags(0)
    if size <= plan.inline and plan.op in ("send", "write"):
        flags |= SendFlags.INLINE
    message = end.out(size)
    return (
        SendWR(message, send_flags=flags, **options),
        SendWR(message, send_flags=flags | SendFlags.SIGNALED, **options),
    )
