# SPDX-License-Identifier: MIT
"""Faults of a cluster: what fails, where, when and for how long. A seed draws a list of them.

A list is text, a fault a line, which the runner prints and takes (--faults FILE):

    12.3 crash 2 for 4.0            host 2 loses its power, and is switched on after 4 s
    5.1 loss 1>3 for 6.0 by 0.2     a fifth of the frames from host 1 to host 3 is lost for 6 s
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

HOSTS = 3
BEGIN, END = 3.0, 40.0  # seconds of the cluster's time between which all faults begin and end
LONGEST = 9.0
AMOUNTS = {  # of a kind that has one: from, to
    "loss": (0.01, 0.2),
    "duplicate": (0.05, 0.5),
    "reorder": (0.05, 0.5),
    "delay": (0.001, 0.2),  # seconds, and half as much jitter
}
OF_HOSTS = (
    "kill",  # SIGKILL for the host's process; another one begins after that time
    "pause",  # SIGSTOP, and SIGCONT
    "crash",  # the host's power
)
OF_LINKS = ("cut", *AMOUNTS)
KINDS = OF_HOSTS + OF_LINKS
LINE = re.compile(r"([\d.]+) (\w+) ([1-8](?:[->][1-8])?) for ([\d.]+)(?: by ([\d.]+))?")


@dataclass(frozen=True, order=True)
class Fault:
    """`where` is a host, "2", one direction between two, "1>3", or both, "1-3"."""

    at: float
    kind: str
    where: str
    lasts: float
    amount: float = 0.0

    def __str__(self) -> str:
        by = f" by {self.amount:g}" if self.amount else ""
        return f"{self.at:g} {self.kind} {self.where} for {self.lasts:g}{by}"

    @property
    def until(self) -> float:
        return round(self.at + self.lasts, 3)

    @property
    def links(self) -> list[tuple[int, int]]:
        a, b = int(self.where[0]), int(self.where[2])
        return [(a, b), (b, a)] if self.where[1] == "-" else [(a, b)]

    def simpler(self) -> list[Fault]:
        """Faults that are easier to understand, the boldest first. Each is shorter as text, or
        lasts less, so that this ends. An amount stays: a smaller one is another fault."""
        whole = replace(self, at=float(round(self.at)))
        others = [replace(fault, lasts=1.0) for fault in (whole, self)]
        others += [replace(fault, lasts=float(round(self.lasts))) for fault in (whole, self)]
        others += [whole, replace(self, at=round(self.at, 1))]
        others += [replace(self, lasts=round(self.lasts / 2, 1))]
        mine = (len(str(self)), self.lasts)
        return [
            other
            for other in dict.fromkeys(others)
            if (len(str(other)), other.lasts) < mine and other.lasts > 0 and other.at >= BEGIN
        ]


def draw(seed: int) -> list[Fault]:
    """Between three and ten."""
    chance = random.Random(f"faults {seed}")
    return sorted(draw_one(chance) for _ in range(chance.randint(3, 10)))


def draw_one(chance: random.Random) -> Fault:
    kind = chance.choice(KINDS)
    lasts = round(min(LONGEST, 0.1 + chance.expovariate(1 / 3)), 1)
    at = round(chance.uniform(BEGIN, END - lasts), 2)
    a, b = chance.sample(range(1, HOSTS + 1), 2)
    where = str(a) if kind in OF_HOSTS else f"{a}{chance.choice('->')}{b}"
    amount = round(chance.uniform(*AMOUNTS[kind]), 3) if kind in AMOUNTS else 0.0
    return Fault(at, kind, where, lasts, amount)


def parse(text: str) -> list[Fault]:
    """ValueError names the line that is no fault. Lines that begin with # are none."""
    faults = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        kind, where = (found[2], found[3]) if found else ("", "")
        if not found or kind not in KINDS or (len(where) == 1) != (kind in OF_HOSTS):
            raise ValueError(
                f"'{line}' is no fault: AT KIND WHERE for SECONDS [by AMOUNT], with a kind of "
                f"{', '.join(KINDS)}; WHERE is a host for the first three, else A>B or A-B"
            )
        amount = float(found[5] or 0)
        faults.append(Fault(float(found[1]), kind, where, float(found[4]), amount))
    return sorted(faults)


def text(faults: Iterable[Fault]) -> str:
    return "".join(f"{fault}\n" for fault in faults)


def link_faults(faults: Sequence[Fault], link: tuple[int, int], now: float) -> dict[str, float]:
    """What the switch does with a link's frames at that instant: of several faults of a kind the
    largest."""
    active: dict[str, float] = {}
    for fault in faults:
        if fault.kind in OF_LINKS and fault.at <= now < fault.until and link in fault.links:
            active[fault.kind] = max(active.get(fault.kind, 0), fault.amount)
    if "cut" in active:
        active["cut"] = True
    if "delay" in active:
        active["jitter"] = active["delay"] / 2
    return active


def instants(faults: Sequence[Fault]) -> list[float]:
    """When a link's faults change."""
    pairs = ((fault.at, fault.until) for fault in faults if fault.kind in OF_LINKS)
    return sorted(set(itertools.chain.from_iterable(pairs)))
