# SPDX-License-Identifier: MIT
"""./lab --virtual-time hosts N -- COMMAND --- COMMAND: see virtual_hosts.py.

As without virtual time, lines of output begin with the host's number, and all end when each has
ended, or soon after one has failed, whose status is ours then. There is no standard input. With
--seeds, several runs; those that failed are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import IO

from . import hosts_run, switch, vm
from .base import LabError, note
from .virtual_hosts import NS, Cluster, line

GRACE = 5 * NS  # for the other commands to end, when one has failed
TIMED_OUT = 124


ACTIONS: dict[str, Callable[..., None]] = {
    "cut": Cluster.cut,
    "heal": functools.partial(Cluster.cut, cut=False),
    "kill": Cluster.kill,
    "restart": Cluster.restart,
}
Plan = list[tuple[int, str, list[int]]]  # instants, actions, hosts


def planned(options: argparse.Namespace) -> Plan:
    """Of --at 2.5:cut=1-2, and its like."""
    plan: Plan = []
    for text in options.at:
        found = re.fullmatch(r"([0-9.]+):(cut|heal|kill|restart)=([1-8])(?:-([1-8]))?", text)
        hosts = [int(number) for number in found.groups()[2:] if number] if found else []
        wanted = 2 if found and found[2] in ("cut", "heal") else 1
        if not found or len(set(hosts)) != wanted or max(hosts) > options.count:
            raise LabError(
                "hosts: --at wants SECONDS:cut=A-B, heal=A-B, kill=A or restart=A, with numbers "
                f"of hosts, not '{text}'"
            )
        plan.append((round(float(found[1]) * NS), found[2], hosts))
    return plan


class Run:
    """One seed, from switching the hosts on to the end of their commands."""

    def __init__(self, seed: int, log: IO[str] | None, quiet: bool) -> None:
        self.seed, self.log, self.quiet = seed, log, quiet
        self.digest = hashlib.sha256()
        self.frames = 0
        self.now = 0
        self.status = 0
        self.end: int | None = None  # the instant at which the others must have ended
        self.parts: dict[tuple[int, str], bytes] = {}  # of a line
        self.kept: list[tuple[str, bytes]] = []

    def go(
        self,
        machine: vm.Machine,
        jobs: list[vm.Job],
        faults: switch.Faults,
        plan: Plan,
        until: int,
    ) -> int:
        cluster = Cluster(machine, jobs, self.seed, faults, self.hear)
        try:
            cluster.start()
            for instant, action, hosts in plan:
                cluster.at(instant, functools.partial(ACTIONS[action], cluster, *hosts))
            while not self.is_over(cluster, plan):
                cluster.step()
                self.now = cluster.calendar.now
                if self.now >= until:
                    raise LabError(f"not done after {until // NS} s of virtual time", TIMED_OUT)
                self.check(cluster)
        finally:
            cluster.end()
            for (host, stream), part in self.parts.items():
                if part:
                    self.show(host, stream, [part])
        return self.status

    def check(self, cluster: Cluster) -> None:
        hosts = cluster.hosts.values()
        failed = [host for host in hosts if host.status]
        if failed and not self.status:
            assert failed[0].status
            self.status, self.end = failed[0].status, self.now + GRACE
            for host in hosts:
                if host.status is None:
                    cluster.order(host, f"signal {signal.SIGTERM:d}")

    def is_over(self, cluster: Cluster, plan: Plan) -> bool:
        """Each command has ended, and no host that is off is to be restarted."""
        if self.end is not None and self.now >= self.end:
            return True
        if any(host.status is None for host in cluster.hosts.values()):
            return False
        return not any(
            action == "restart" and instant > self.now and not cluster.hosts[hosts[0]].alive
            for instant, action, hosts in plan
        )

    def hear(self, instant: int, host: int, kind: str, data: bytes) -> None:
        if kind == "console":
            return
        self.frames += kind == "sends"
        logged = line(instant, host, kind, data)
        self.digest.update(logged.encode())
        if self.log:
            self.log.write(logged)
        if kind in ("out", "err"):
            *lines, rest = (self.parts.get((host, kind), b"") + data).split(b"\n")
            self.parts[host, kind] = rest
            self.show(host, kind, lines)

    def show(self, host: int, stream: str, lines: list[bytes]) -> None:
        text = b"".join(b"%d| %s\n" % (host, line) for line in lines)
        if self.quiet:
            self.kept.append((stream, text))
        else:
            write(stream, text)

    def summary(self) -> str:
        return (
            f"seed {self.seed}: {self.now / NS:.3f} s of virtual time, {self.frames} frames, "
            f"trace {self.digest.hexdigest()[:16]}"
        )


def write(stream: str, text: bytes) -> None:
    out = sys.stdout if stream == "out" else sys.stderr
    out.buffer.write(text)
    out.flush()


@contextlib.contextmanager
def interruptible(timeout: float) -> Iterator[None]:
    """`timeout` is in real seconds."""

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGALRM:
            raise LabError("the commands took too long (--timeout)", TIMED_OUT)
        raise LabError(f"stopped by {signal.Signals(number).name}", 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def run_seed(
    options: argparse.Namespace, seed: int, machine: vm.Machine, jobs: list[vm.Job]
) -> int:
    """Returns the status of one run, which is shown if there is no other, or if it failed."""
    quiet = options.seeds is not None
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(options.log, "w")) if options.log else None
        run = Run(seed, log, quiet)
        faults = switch.Faults(**options.net)
        try:
            plan = planned(options)
            status = run.go(machine, jobs, faults, plan, round(options.until * NS))
        except LabError as error:
            if not quiet:
                note(run.summary())
                raise
            status = error.code
            run.kept.append(("err", f"lab: {error}\n".encode()))
        if status or not quiet:
            for stream, text in run.kept:
                write(stream, text)
            note(run.summary() + (f", status {status}" if status else ""))
        return status


def main(
    words: list[str],
    machine: vm.Machine,
    job: Callable[[vm.Place, list[str]], vm.Job],
    timeout: float,
) -> int:
    options, commands = hosts_run.split(words)
    if options.serve:
        raise LabError("hosts: in virtual time they run commands alone: without --serve")
    commands = hosts_run.one_each(options, commands)
    places = [vm.Place(number, options.count, -1) for number in range(1, options.count + 1)]
    jobs = [job(place, command) for place, command in zip(places, commands, strict=True)]
    first, status, failed = options.seed, 0, 0
    with interruptible(timeout):
        for seed in range(first, first + (options.seeds or 1)):
            ended = run_seed(options, seed, machine, jobs)
            failed += ended != 0
            status = status or ended
    if options.seeds:
        note(f"{failed} of {options.seeds} seeds failed; --seed N runs one of them again")
    return status
