# SPDX-License-Identifier: MIT
"""What the switch between hosts does to frames, without a host."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_runs import PATIENCE

from cqnotify.lab.base import HERE
from cqnotify.lab.switch import HELD, Faults, Link

MACS = {n: bytes([0x52, 0x54, 0, 0x99, 0, n]) for n in range(1, 4)}


def frame(to: int | None, sender: int, text: bytes = b"") -> bytes:
    return (MACS[to] if to else b"\xff" * 6) + MACS[sender] + b"\x08\x00" + text


def fates(seed: int, n: int = 1000, **faults: float) -> list[list[float]]:
    """When each of n frames leaves, one after the other; none when it is lost."""
    link = Link("1>2", seed)
    link.faults = Faults(**faults)
    return [[when for when, _ in link.take(b"x" * 100, float(i))] for i in range(n)]


def test_the_seed_alone_decides_which_frames_are_lost() -> None:
    assert fates(1, loss=0.2) == fates(1, loss=0.2)
    assert fates(1, loss=0.2) != fates(2, loss=0.2)
    assert 150 < fates(1, loss=0.2).count([]) < 250


def test_one_fault_does_not_change_what_another_does_by_chance() -> None:
    lost = [not leaving for leaving in fates(1, loss=0.2)]
    assert lost == [not leaving for leaving in fates(1, loss=0.2, duplicate=0.5, jitter=0.1)]


def test_a_link_without_faults_passes_each_frame_at_once() -> None:
    assert fates(1) == [[float(i)] for i in range(1000)]


def test_duplicates_arrive_twice() -> None:
    assert {len(leaving) for leaving in fates(1, duplicate=0.3)} == {1, 2}


def test_delay_and_jitter_keep_the_order() -> None:
    link = Link("1>2", 1)
    link.faults = Faults(delay=1, jitter=5)
    times = [when for i in range(1000) for when, _ in link.take(b"", i / 1000)]
    assert times == sorted(times)
    assert all(i / 1000 + 1 <= when <= 7 for i, when in enumerate(times))
    assert len(set(times)) > 3


def test_a_rate_lets_so_many_bits_pass_in_a_second() -> None:
    link = Link("1>2", 1)
    link.faults = Faults(rate=8000)
    times = [when for _ in range(5) for when, _ in link.take(b"x" * 100, 0.0)]
    assert times == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_the_next_frame_overtakes_one_that_is_held() -> None:
    link = Link("1>2", 1)
    link.faults = Faults(reorder=0.5)
    order = [left for i in range(100) for _, left in link.take(bytes([i]), 0.0)]
    order += link.let_go()
    assert sorted(order) == [bytes([i]) for i in range(100)]
    swapped = sum(a > b for a, b in itertools.pairwise(order))
    assert swapped == link.counts["reordered"] > 20


# ---- the process ---------------------------------------------------------------------------


class Cables:
    """A switch between three sockets of ours."""

    def __init__(self) -> None:
        self.orders, orders = socket.socketpair()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
        theirs = [orders, *(pair[1] for pair in pairs)]
        self.ends = {n: pair[0] for n, pair in enumerate(pairs, 1)}
        fds = [end.fileno() for end in theirs]
        command = [sys.executable, str(HERE / "switch.py"), *map(str, fds)]
        self.process = subprocess.Popen(command, pass_fds=fds)
        for end in theirs:
            end.close()
        for end in (self.orders, *self.ends.values()):
            end.settimeout(PATIENCE)

    def ask(self, order: str, **facts: object) -> Any:
        self.orders.sendall(json.dumps({"order": order, **facts}).encode() + b"\n")
        return json.loads(self.orders.recv(65536))

    def impair(self, **faults: object) -> None:
        links = [(a, b) for a in MACS for b in MACS if a != b]
        self.ask("impair", links=links, faults=faults)

    def counts(self, link: str) -> dict[str, int]:
        counts: dict[str, int] = self.ask("counts")["links"][link]
        return counts

    def close(self) -> None:
        for end in (self.orders, *self.ends.values()):
            end.close()


@pytest.fixture
def cables() -> Iterator[Cables]:
    cables = Cables()
    yield cables
    cables.close()
    assert cables.process.wait(PATIENCE) == 0  # when there is nobody to give orders


def silent(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return not end.recv(65536)
    except BlockingIOError:
        return True
    finally:
        end.settimeout(PATIENCE)


def test_a_frame_goes_to_all_until_its_address_is_known(cables: Cables) -> None:
    a, b, c = cables.ends.values()
    a.send(frame(2, 1))
    assert b.recv(99) == c.recv(99) == frame(2, 1)
    b.send(frame(1, 2))
    assert a.recv(99) == frame(1, 2)
    a.send(frame(2, 1, b"known"))
    assert b.recv(99) == frame(2, 1, b"known")
    assert silent(c)
    a.send(frame(None, 1))
    assert b.recv(99) == c.recv(99) == frame(None, 1)


def test_what_is_cut_is_lost_and_counted(cables: Cables) -> None:
    a, b, _ = cables.ends.values()
    cables.ask("impair", links=[[1, 2]], faults={"cut": True})
    a.send(frame(None, 1, b"lost"))
    b.send(frame(None, 2, b"comes"))  # the other direction goes on
    assert a.recv(99) == frame(None, 2, b"comes")
    cables.impair(cut=False)
    a.send(frame(None, 1, b"healed"))
    assert b.recv(99) == frame(None, 1, b"healed")
    assert cables.counts("1>2") == {"frames": 2, "cut": 1, "delivered": 1}


def test_a_frame_that_nothing_overtakes_comes_in_the_end(cables: Cables) -> None:
    a, b, _ = cables.ends.values()
    cables.impair(reorder=1.0)
    start = time.monotonic()
    a.send(frame(None, 1))
    assert b.recv(99) == frame(None, 1)
    assert time.monotonic() - start >= HELD * 0.9


def test_many_frames_at_once_all_arrive(cables: Cables) -> None:
    """More than a socket holds: they wait in the switch."""
    a, b, _ = cables.ends.values()
    for i in range(900):
        a.send(frame(None, 1, b"%d" % i))
    assert [b.recv(99) for _ in range(900)] == [frame(None, 1, b"%d" % i) for i in range(900)]


def test_a_host_that_takes_nothing_loses_what_is_too_much(cables: Cables) -> None:
    a, _, c = cables.ends.values()
    for i in range(3000):
        a.send(frame(None, 1, b"%d" % i))
        silent(cables.ends[2])
    while cables.counts("1>3")["frames"] < 3000:
        pass
    c.send(frame(None, 3))
    assert a.recv(99) == frame(None, 3)  # the others are not disturbed
    assert cables.counts("1>3")["dropped"] > 1000


def test_frames_for_a_host_without_power_are_gone(cables: Cables) -> None:
    a, b, _ = cables.ends.values()
    cables.ask("down", host=2, down=True)
    a.send(frame(None, 1, b"gone"))
    assert cables.ends[3].recv(99) == frame(None, 1, b"gone")
    b.send(frame(None, 2, b"its last"))
    cables.ask("down", host=2, down=False)
    a.send(frame(None, 1, b"new"))
    assert b.recv(99) == frame(None, 1, b"new")
    assert silent(a)


def test_it_sleeps_when_there_is_nothing_to_do(cables: Cables) -> None:
    cables.ask("counts")
    process = Path("/proc", str(cables.process.pid))

    def sleeps() -> bool:
        """It computes little, and is woken seldom; a stall of the machine can look like work."""
        found = []
        for _ in range(2):
            ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
            status = (process / "status").read_text()
            woken = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
            found.append((sum(map(int, ticks)), int(woken[0])))
            time.sleep(1)
        (cpu, wakes), (cpu_then, wakes_then) = found
        return cpu_then - cpu < 30 and wakes_then - wakes < 10

    assert any(sleeps() for _ in range(5))
