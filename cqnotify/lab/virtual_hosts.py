# SPDX-License-Identifier: MIT
"""Several hosts under one virtual clock, which is ours, as is all chance.

Each host is a kernel that runs as a process. One of them runs at a time, and computes in no time;
the others wait for the instants for which they have asked. Frames arrive at the instants that the
links of switch.py decide. So a run depends on the commands and on the seed, and on nothing else:
the same seed makes the same frames, at the same nanosecond.

Nothing reaches a host while it runs: its lines are read and written when it waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import heapq
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from . import kernel, switch, uml, vm
from .base import LabError
from .timetravel import NEVER, Calendar, Clock
from .vhost import CONFIG_CHANGED, RECEIVE, TRANSMIT, VRING_CALL, Card

NS = 1_000_000_000
WIRE = 10_000  # ns that a frame takes at least
EPOCH = 1_800_000_000 * NS  # by the hosts' clocks, when they are switched on
SLICE = NS  # that a host goes on alone, at most: what it has said is heard after that
STUCK = 60  # real seconds that a host may compute while the clock stands still
LINES = vm.Guest.NAMES
FIRST_FD = (
    200  # of what a kernel inherits: its command line, and with it its chance, stays the same
)
BUFFER = 4 << 20
SO_SNDBUFFORCE = 32


def line(instant: int, host: int, kind: str, data: bytes) -> str:
    """Return the line of a log for one thing that a Cluster tells."""
    is_frame = kind in ("sends", "gets", "drops")
    what = f"{len(data)} {hashlib.sha256(data).hexdigest()[:12]}" if is_frame else repr(data)
    return f"{instant // NS}.{instant % NS:09} host{host} {kind} {what}\n"


def chance(cache: Path) -> Path:
    """The library that decides what a kernel takes for this machine's chance."""
    return kernel.program(cache, "seeded", "-shared", "-fPIC")


class Host:
    """A kernel, its clock, its network card, and its serial lines to guest.c."""

    def __init__(
        self, number: int, machine: vm.Machine, job: vm.Job, folder: Path, seed: int
    ) -> None:
        self.number = number
        self.alive = True
        self.ready = False
        self.status: int | None = None  # of its command
        self.console, self.heard = b"", b""
        self.clock: Clock | None = None
        self.card: Card | None = None
        pairs = {name: socket.socketpair() for name in (*LINES, "console")}
        self.lines = {name: ours for name, (ours, _) in pairs.items()}
        for ours, theirs in pairs.values():
            ours.setblocking(False)
            with contextlib.suppress(PermissionError):  # what does not fit is told later
                theirs.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
        self.time_door = listen(folder / f"{number}.time")
        self.net_door = listen(folder / f"{number}.net")
        initrd = vm.initrd_fd(machine, job, "uml")
        first = FIRST_FD + 16 * number
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, first) for fd in (initrd, *filenos(pairs))]
        os.close(initrd)
        words = uml.command(machine, fds[0], fds[-1], fds[1:-1], folder=f"run{number}")
        words += [f"time-travel=ext:{number}:{number}.time", f"virtio_uml.device={number}.net:1"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "TMPDIR": uml.environment(machine)["TMPDIR"],
            "LD_PRELOAD": str(chance(machine.cache)),
            "LAB_SEED": str(seed),
        }
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=fds[-1],
            stderr=fds[-1],
            cwd=folder,
            env=environment,
            pass_fds=fds,
            preexec_fn=vm.die_with_parent,
            start_new_session=True,
        )
        for fd in fds:
            os.close(fd)
        for _, theirs in pairs.values():
            theirs.close()

    def connect(self, calendar: Calendar) -> None:
        """Its clock, which it asks for as soon as it is switched on."""
        if not select.select([self.time_door], [], [], STUCK)[0]:
            raise LabError(f"host {self.number} does not start:\n{self.last_words()}")
        sock = self.time_door.accept()[0]
        self.clock = Clock(calendar, self.number, sock, EPOCH)

    def read(self) -> list[tuple[str, bytes]]:
        """What it has said on its lines."""
        said = []
        for name, line in self.lines.items():
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while data := line.recv(1 << 20):
                    said.append((name, data))
        self.console += b"".join(data for name, data in said if name == "console")
        return said

    def last_words(self) -> str:
        self.read()
        lines = self.console.decode(errors="replace").splitlines()
        return "".join(f"    {line}\n" for line in lines[-20:])

    def tell(self, line: str) -> None:
        """It waits, and hears it at once; to be called when the clock is no further than it is."""
        self.lines["ctl"].sendall(line.encode() + b"\n")
        self.call(CONFIG_CHANGED, 0)  # a card's call, because a line alone wakes nobody

    def call(self, request: int, queue: int) -> None:
        if self.card:
            with contextlib.suppress(EOFError, ConnectionError):
                self.card.call(request, queue)

    def kill(self) -> None:
        """As if its power had gone."""
        self.alive = False
        self.status = self.status or 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for sock in (*self.lines.values(), self.time_door, self.net_door):
            sock.close()
        if self.clock:
            self.clock.sock.close()
        if self.card:
            self.card.close()
            self.card = None


def listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # of the host that was here before
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(1)
    return sock


def filenos(pairs: dict[str, tuple[socket.socket, socket.socket]]) -> list[int]:
    return [theirs.fileno() for _, theirs in pairs.values()]


class Cluster:
    """`told` hears of everything: the instant, the host, what kind of thing, and the thing."""

    def __init__(
        self,
        machine: vm.Machine,
        jobs: list[vm.Job],
        seed: int,
        faults: switch.Faults,
        told: Callable[[int, int, str, bytes], None],
    ) -> None:
        self.machine, self.jobs, self.seed, self.told = machine, jobs, seed, told
        self.calendar = Calendar(len(jobs))
        self.number = itertools.count()
        self.boots = itertools.count(1)
        self.events: list[tuple[int, int, Callable[[], None]]] = []  # by instant
        self.where: dict[bytes, int] = {}  # by MAC address, the host's number
        self.begun = False
        self.links: dict[tuple[int, int], switch.Link] = {}
        for a, b in itertools.permutations(range(1, len(jobs) + 1), 2):
            link = self.links[a, b] = switch.Link(f"{a}>{b}", seed)
            link.faults = faults
        self.folder = Path(tempfile.mkdtemp(prefix="cqnotify-lab-"))
        self.hosts: dict[int, Host] = {}

    def start(self) -> None:
        """All hosts; their commands begin together."""
        for number in range(1, len(self.jobs) + 1):
            self.make(number)
        for host in self.hosts.values():
            self.boot(host)

    def make(self, number: int) -> Host:
        seed = 1 + self.seed * 1_000_003 + next(self.boots)
        host = Host(number, self.machine, self.jobs[number - 1], self.folder, seed)
        self.hosts[number] = host
        return host

    def boot(self, host: Host) -> None:
        """Until it waits for the first time."""
        now = self.calendar.now
        self.calendar.forget(host.number)
        host.connect(self.calendar)
        self.calendar.turn(host.number, now, now)
        self.serve(host)

    def end(self) -> None:
        for host in self.hosts.values():
            host.kill()
        self.calendar.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- faults

    def kill(self, number: int) -> None:
        self.hosts[number].kill()

    def restart(self, number: int) -> None:
        """Its command begins anew when it is up."""
        self.hosts[number].kill()
        self.boot(self.make(number))

    def cut(self, a: int, b: int, cut: bool = True) -> None:
        for link in (self.links[a, b], self.links[b, a]):
            link.faults = replace(link.faults, cut=cut)

    # -- the order of things

    def step(self) -> None:
        """What comes next: an event of the switch, or the host that has asked for the earliest
        instant, which may run on to that of the one after."""
        alive = [number for number, host in self.hosts.items() if host.alive]
        wishes = {number: self.calendar.wish(number) for number in alive}
        first = min(alive, key=lambda number: wishes[number], default=0)
        at = wishes.pop(first, NEVER)
        due = self.events[0][0] if self.events else NEVER
        if due <= at:
            if due == NEVER:
                raise LabError("all hosts wait for ever")
            self.calendar.turn(0, due, due)
            heapq.heappop(self.events)[2]()
            return
        self.calendar.turn(first, at, min(due, *wishes.values(), at + SLICE))
        self.serve(self.hosts[first], at)

    def at(self, instant: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (instant, next(self.number), what))
        self.calendar.shorten(instant)

    def serve(self, host: Host, at: int | None = None) -> None:
        """Until it waits. It waits already, unless it has just been switched on: then `at` is the
        instant for which it has asked."""
        assert host.clock
        limit = time.monotonic() + STUCK
        try:
            if at is not None:
                host.clock.run(at)
            while not host.clock.waits:
                net = host.card.sock if host.card else host.net_door
                ready = select.select([host.clock.sock, net], [], [], 1)[0]
                if host.clock.sock in ready:
                    host.clock.serve()
                elif ready and host.card:
                    host.card.serve()
                elif ready:
                    self.plug_in(host)
                if time.monotonic() > limit:
                    raise LabError(
                        f"host {host.number} has computed for {STUCK} s, and its clock stands "
                        "still: does a program wait without sleeping?"
                    )
        except (EOFError, ConnectionError):
            words = host.last_words()
            raise LabError(f"host {host.number} has ended unexpectedly:\n{words}") from None
        for name, data in host.read():
            if name == "ctl":
                self.hear(host, data)
            else:
                self.told(self.calendar.now, host.number, name, data)

    def hear(self, host: Host, data: bytes) -> None:
        """Lines of guest.c."""
        *lines, host.heard = (host.heard + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "ready":
                host.ready = True
                self.begin([host] if self.begun else list(self.hosts.values()))
            elif word == "exit":
                host.status = int(rest.split()[0])
                self.told(self.calendar.now, host.number, "exit", rest.encode())
            elif word == "fail":
                raise LabError(f"host {host.number} could not {rest}")

    def begin(self, hosts: list[Host]) -> None:
        if all(host.ready for host in hosts):
            self.begun = True
            for host in hosts:
                self.order(host, "go\neof 0")

    def order(self, host: Host, line: str) -> None:
        """As soon as the clock allows."""
        self.at(self.calendar.reached, lambda: host.tell(line) if host.alive else None)

    # -- frames

    def plug_in(self, host: Host) -> None:
        mac = bytes.fromhex(vm.Place(host.number, len(self.jobs), -1).mac.replace(":", ""))
        sock = host.net_door.accept()[0]
        host.card = Card(sock, mac, lambda frame: self.forward(host, frame))

    def forward(self, source: Host, frame: bytes) -> None:
        now = self.calendar.now
        self.told(now, source.number, "sends", frame)
        assert source.card
        if source.card.wants_call(TRANSMIT):
            self.at(now, lambda: source.call(VRING_CALL, TRANSMIT))
        to, sender = frame[:6], frame[6:12]
        self.where[sender] = source.number
        known = None if to[0] & switch.BROADCAST else self.where.get(to)
        for target in self.hosts if known is None else [known]:
            if target != source.number:
                self.send(self.links[source.number, target], target, frame)

    def send(self, link: switch.Link, target: int, frame: bytes) -> None:
        now, before = self.calendar.now, link.held
        for when, leaving in link.take(frame, now / NS):
            arrival = functools.partial(self.arrive, target, leaving)
            self.at(max(now, round(when * NS)) + WIRE, arrival)
        if link.held is not None and link.held is not before:
            release = functools.partial(self.release, link, link.held, target)
            self.at(now + round(switch.HELD * NS), release)

    def release(self, link: switch.Link, held: bytes, target: int) -> None:
        """A frame that was to be overtaken, and that none has followed."""
        if link.held is held:
            for frame in link.let_go():
                self.arrive(target, frame)

    def arrive(self, target: int, frame: bytes) -> None:
        host = self.hosts[target]
        taken = host.card is not None and host.card.receive(frame)
        self.told(self.calendar.now, target, "gets" if taken else "drops", frame)
        if host.card and taken and host.card.wants_call(RECEIVE):
            host.call(VRING_CALL, RECEIVE)
