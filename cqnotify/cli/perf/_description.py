# SPDX-License-Identifier: MIT
"""The descriptions that two ends exchange when they have met, and those in the figures."""

from __future__ import annotations

from typing import Any, Final

from .. import CommandError
from ._end import PerfEnd
from ._plan import check_shared

MAGIC: Final = b"cqnotify perf 3"
OTHER_PROGRAM: Final = "the peer is another program, or of another version of cqnotify"


def swap_descriptions(end: PerfEnd) -> None:
    """Exchange the descriptions of both ends; CommandError unless they fit."""
    plan = end.plan
    ours = plan.shared()
    theirs = end.control.swap({"shared": ours, "end": end.describe()}, plan.client, plan.timeout)
    end.control.flush()  # so that the peer can report, too, what does not fit
    if not isinstance(theirs, dict):
        raise CommandError(OTHER_PROGRAM)
    check_shared(ours, theirs.get("shared") or {})
    end.remote = theirs["end"]


def title(end: PerfEnd) -> str:
    """Return a line about the run."""
    plan = end.plan
    role = "client" if plan.client else "server"
    ours = _waits(plan.events, end.yields)
    theirs = _waits(end.remote["events"], end.remote["yields"])
    pairs = f", {plan.num_qp} QPs" if plan.num_qp > 1 else ""
    service = f" by {plan.connection}" if plan.loses else ""
    both = ", both directions" if plan.bidirectional else ""
    where = f"{role} on {end.device} port {plan.port_num}"
    return f"{plan.name} of {plan.op}{service}, {where}{pairs}{both}: {ours} here, {theirs} there"


def _waits(events: bool | None, yields: bool | None) -> str:
    if events is None:
        return "perftest"
    return "sleeps" if events else "polls and yields its only CPU" if yields else "polls"


def cpu_percent(effort: dict[str, Any] | None) -> str:
    """Return a cell of a table: a dash where the percentage is not known, see Effort."""
    percent = effort and effort["cpu_percent"]
    return "-" if percent is None else f"{percent:.1f}"


def describe(end: PerfEnd) -> dict[str, Any]:
    """Return what `--json` prints about the run."""
    plan = end.plan
    return {
        "command": plan.name,
        "op": plan.op,
        "connection": plan.connection,
        "role": "client" if plan.client else "server",
        "device": end.device,
        "port_num": plan.port_num,
        "gid_index": end.gid_index,
        "rdma_cm": plan.rdma_cm,
        "perftest": plan.perftest,
        "mtu": end.path_mtu,
        "num_qp": plan.num_qp,
        "duration": plan.duration,
        "inline_size": plan.inline,
        "write_with_imm": plan.immediate,
        "sleeps": plan.events,
        "yields": end.yields,
        "peer": {
            "device": end.remote["device"],
            "sleeps": end.remote["events"],
            "yields": end.remote["yields"],
        },
    }
