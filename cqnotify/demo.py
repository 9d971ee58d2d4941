# SPDX-License-Identifier: MIT
"""The demo: what it costs to sleep until a completion comes, against polling for it.

Two jobs, each done by several receivers: a ping-pong with ibv_rc_pingpong, rdma-core's own program
in event mode, and a one-way stream that a second process sends at a slow pace. In the lab, where
two software devices sit on one wire, the wire is given a delay for the duration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from ._core import NO_DEVICE
from ._demo_receivers import (
    ASYNCIO,
    BLOCKING,
    BUSY,
    Asyncio,
    Blocking,
    BusyPolling,
    Receiver,
    Result,
    measure,
)
from ._demo_traffic import (
    CannotRunError,
    DemoError,
    PingPong,
    Plan,
    Stream,
    Traffic,
    find_gid,
)
from .context import Context, devices, needs_rdma_cm

__all__ = ["CannotRunError", "DemoError", "Report", "format_report", "run"]

WIRE_DELAY: Final = "6ms"
MIN_EVENTS_PER_MESSAGE: Final = 0.9  # below that a receiver did not really sleep


@dataclass(frozen=True)
class Report:
    """All figures, what they mean, and what was wrong. `interval` is in seconds."""

    device: str
    peer_device: str
    wire_delay: str | None
    messages: int
    interval: float
    results: list[Result]
    conclusions: list[str]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {**asdict(self), "ok": not self.problems}


def run(
    device: str | None = None,
    peer_device: str | None = None,
    messages: int = 1000,
    interval: float = 0.004,
    progress: Callable[[str, int], object] = lambda run, received: None,
) -> Report:
    """Run the demo and return its figures.

    `progress(run, received)` is called as each run begins, and with what it has received since.

    Raises CannotRunError where there is no device or no ibv_rc_pingpong, DemoError when the
    traffic failed or brought wrong bytes.
    """
    netdevs = _lab_netdevs()
    plan = _plan(device, peer_device, messages, interval, bool(netdevs))
    with _slow_wire(_netdev(plan, netdevs)) if netdevs else nullcontext():
        results = _run_all(plan, progress)
    return Report(
        device=plan.device,
        peer_device=plan.peer_device,
        wire_delay=WIRE_DELAY if netdevs else None,
        messages=messages,
        interval=interval,
        results=results,
        conclusions=_conclusions(results),
        problems=_problems(results) if netdevs else [],
    )


def format_report(report: Report) -> str:
    """Return the table and its meaning, for a terminal."""
    head = ["traffic", "receiver", "messages", "events", "per message", "wake-ups", "spurious"]
    rows = [[*head, "CPU s", "wall s"]]
    for r in report.results:
        counts = [r.messages, r.events, f"{r.events_per_message:.3f}", r.wakeups, r.spurious]
        rows.append([r.traffic, r.receiver, *map(str, counts), f"{r.cpu:.2f}", f"{r.wall:.2f}"])
    wire = f", {report.wire_delay} of delay on the wire" if report.wire_delay else ""
    title = f"{report.device} with {report.peer_device}{wire}"
    problems = [f"PROBLEM: {problem}" for problem in report.problems]
    legend = (
        "wake-ups: how often a sleeping receiver woke; spurious: events with nothing behind them"
    )
    return "\n".join([title, "", *_align(rows), legend, "", *report.conclusions, *problems])


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        texts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(cells)]
        lines.append("  ".join(texts))
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def _run_all(plan: Plan, progress: Callable[[str, int], object]) -> list[Result]:
    runs: list[tuple[type[Traffic], Receiver]] = [
        (PingPong, Asyncio()),
        (PingPong, Blocking()),
        (PingPong, BusyPolling()),
        (Stream, Asyncio()),
        (Stream, Asyncio(solicited_only=True)),
        (Stream, BusyPolling()),
    ]
    results = []
    for number, (traffic, receiver) in enumerate(runs, 1):
        job = traffic(plan)
        job.progress = partial(progress, f"{number} of {len(runs)} ({job.name}, {receiver.name})")
        job.progress(0)
        results.append(measure(plan, job, receiver))
    return results


def _conclusions(results: list[Result]) -> list[str]:
    sentences = []
    busy = {r.traffic: r for r in results if r.receiver == BUSY}
    for r in results:
        if r.receiver != BUSY:
            sentences.append(_conclusion(r, busy[r.traffic]))
    return sentences


def _conclusion(result: Result, busy: Result) -> str:
    factor = busy.cpu / max(result.cpu, 1e-4)
    return (
        f"{result.traffic}, {result.receiver}: woken {result.wakeups} times for {result.messages} "
        f"messages, {result.cpu:.2f} s of CPU; busy polling took {busy.cpu:.2f} s for the same, "
        f"{factor:.1f} times as much."
    )


def _problems(results: list[Result]) -> list[str]:
    """What must not be, where the messages are known to come slowly enough."""
    return [
        f"{r.traffic}, {r.receiver}: {r.events_per_message} events per message: it did not sleep"
        for r in results
        if r.receiver in (ASYNCIO, BLOCKING) and r.events_per_message < MIN_EVENTS_PER_MESSAGE
    ]


def _plan(
    device: str | None, peer_device: str | None, messages: int, interval: float, in_lab: bool
) -> Plan:
    present = {d.name: d for d in devices()}
    names = list(present)
    if not names:
        raise CannotRunError(NO_DEVICE)
    for name in (device, peer_device):
        if name is not None and name not in names:
            raise CannotRunError(f"there is no device {name}; there is {', '.join(names)}")
    device = device or names[0]
    if peer_device is None:
        # Elsewhere than in the lab nobody knows whether two devices reach each other.
        others = [name for name in names if name != device] if in_lab else []
        peer_device = others[0] if others else device
    for name in (device, peer_device):
        if why := needs_rdma_cm(present[name]):
            raise CannotRunError(why)
    return Plan(device, peer_device, messages, interval, in_lab and device != peer_device)


def _lab_netdevs() -> list[str]:
    """The network devices under the two RDMA devices, where our lab has made them."""
    made = os.environ.get("CQNOTIFY_LAB") in ("vm", "native")
    return os.environ.get("CQNOTIFY_LAB_NETDEVS", "").split() if made else []


def _netdev(plan: Plan, lab_netdevs: list[str]) -> str:
    with Context(plan.device) as context:
        netdev = find_gid(context, plan.link_local).netdev
    if netdev is None or netdev not in lab_netdevs:
        raise CannotRunError(f"{plan.device} is on {netdev}, not on one of the lab's netdevs")
    return netdev


@contextmanager
def _slow_wire(netdev: str) -> Iterator[None]:
    """Delay what leaves `netdev`: without, a software device moves the data while it is posted, and
    nobody has to wait for it."""
    _tc("replace", netdev, "netem", "delay", WIRE_DELAY)
    try:
        yield
    finally:
        _tc("del", netdev)


def _tc(verb: str, netdev: str, *arguments: str) -> None:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    program = shutil.which("tc", path=path)
    if program is None:
        raise CannotRunError("tc is not installed (package iproute2)")
    command = [program, "qdisc", verb, "dev", netdev, "root", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise DemoError(f"{' '.join(command)}: {done.stderr.strip()}")
