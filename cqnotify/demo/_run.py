# SPDX-License-Identifier: MIT
"""Running the demo: choosing the devices, delaying the wire, and the six runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final

from .._core import why_no_device
from ..context import Context, devices, needs_rdma_cm
from ._receivers import Asyncio, Blocking, BusyPolling, Receiver, measure
from ._report import Report, Result, conclusions, problems
from ._traffic import (
    CannotRunError,
    DemoError,
    PingPong,
    Plan,
    Stream,
    Traffic,
    find_gid,
)

WIRE_DELAY: Final = "6ms"


def run(
    device: str | None = None,
    peer_device: str | None = None,
    messages: int = 1000,
    interval: float = 0.004,
    progress: Callable[[str, int], object] = lambda run, received: None,
) -> Report:
    """Run the demo and return its figures.

    device: the name of our device; by default the first one.
    peer_device: the name of the peers' device; by default the same, in the lab the second one.
    messages: how many messages each run receives.
    interval: the seconds between the messages of the stream.
    progress: called with the run and the number of messages received, first as each run begins.

    Raises CannotRunError where there is no device or no ibv_rc_pingpong, DemoError if the traffic
    fails or a message has wrong bytes.
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
        conclusions=conclusions(results),
        problems=problems(results) if netdevs else [],
    )


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


def _plan(
    device: str | None, peer_device: str | None, messages: int, interval: float, in_lab: bool
) -> Plan:
    present = {d.name: d for d in devices()}
    names = list(present)
    if not names:
        raise CannotRunError(why_no_device())
    for name in (device, peer_device):
        if name is not None and name not in names:
            raise CannotRunError(f"there is no device {name}; there is {', '.join(names)}")
    device = device or names[0]
    if peer_device is None:
        # Outside the lab two devices may not be able to reach each other.
        others = [name for name in names if name != device] if in_lab else []
        peer_device = others[0] if others else device
    for name in (device, peer_device):
        if why := needs_rdma_cm(present[name]):
            raise CannotRunError(why)
    return Plan(device, peer_device, messages, interval, in_lab and device != peer_device)


def _lab_netdevs() -> list[str]:
    """Return the network devices of the two RDMA devices, if the lab has created these."""
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
    """Delay what leaves `netdev`.

    A software device otherwise moves the data while it is posted, so that no receiver sleeps.
    """
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
