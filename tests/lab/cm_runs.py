# SPDX-License-Identifier: MIT
"""Connections by rdma_cm between two hosts, in asyncio and in threads, with rping beside them.

A run is in virtual time: the commands of both hosts, and what fails when. It tells what each end
saw, and when. docs/errors.md has the seconds, by fault; a run has to agree with them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab_runs import LAB, PATIENCE, PROJECT

PEERS = Path(__file__).with_name("peers")
MODES = ("tasks", "threads")
PORT = 7001  # of the first mode's end
SHORT = 1.0  # seconds that closing may take
PENDING = (
    4.0  # where packets wait for a neighbour that does not answer, which keep a QP for up to 3
)
SAME = 0.2  # seconds by which two that see the same may differ, and the page from the run
PAGE = PROJECT / "docs/errors.md"
HEADING = "### Connections by address\n"
TOLD = re.compile(r"(tasks|threads) (\d+) (\w+) (\S+)(.*) after (\S+) at (\S+)")
RPING = re.compile(r"rping (has ended|goes on) pings (\d+) said (.*) at (\S+)")


class Told(NamedTuple):
    """What became of a step of an end."""

    mode: str
    port: int
    step: str
    outcome: str
    more: str
    after: float  # seconds that the step took
    at: float  # seconds of the clock


class Rping(NamedTuple):
    ended: bool
    pings: int
    said: str  # first, besides its pings
    at: float

    @property
    def event(self) -> str:
        """That it tells of, of rdma_cm."""
        found = re.search(r"RDMA_CM_EVENT_(\w+)", self.said)
        return found[1] if found else "ok"


class Seen(NamedTuple):
    """What both modes have seen alike."""

    outcome: str
    more: str
    after: float
    at: float


class Story:
    """What the ends of one host told, in their order."""

    def __init__(self, lines: Sequence[str], same: float = SAME) -> None:
        self.same = same
        told = [match for line in lines if (match := TOLD.fullmatch(line))]
        self.told = [
            Told(mode, int(port), step, outcome, more.strip(), float(after), float(at))
            for mode, port, step, outcome, more, after, at in (match.groups() for match in told)
        ]
        found = [match.groups() for line in lines if (match := RPING.fullmatch(line))]
        self.rpings = [
            Rping(how == "has ended", int(pings), said, float(at)) for how, pings, said, at in found
        ]

    def all(self, mode: str, step: str, port: int = PORT) -> list[Told]:
        end = mode, port + MODES.index(mode)
        return [told for told in self.told if (told.mode, told.port, told.step) == (*end, step)]

    def seen(self, step: str, nth: int = 0, port: int = PORT) -> Seen:
        """How the step went, the nth of its name, in all modes that took it."""
        found = [steps[nth] for mode in MODES if (steps := self.all(mode, step, port))]
        assert found, f"nobody took the step {step}"
        first, *others = found
        for other in others:
            assert other.outcome == first.outcome
            assert other.more.split()[:1] == first.more.split()[:1]
            assert abs(other.at - first.at) < self.same
            assert abs(other.after - first.after) < self.same
        return Seen(first.outcome, first.more, first.after, first.at)

    def check_closing(self, freed: float = SHORT, limit: float = SHORT) -> None:
        """It takes no time, and every end has come to it. `freed`: the time for the QPs."""
        for told in self.told:
            if told.step in ("close", "disconnect", "free"):
                assert told.outcome == "ok", told
                assert told.after < (max(freed, limit) if told.step == "free" else limit), told
        ends = {told.port for told in self.told}
        assert {told.port for told in self.told if told.step == "free"} == ends


def ends(peer: int, *steps: str, modes: Sequence[str] = MODES, port: int = PORT) -> str:
    """The command of an end of each mode, with a port each."""
    places = [f"{mode}:host{peer}:{port + MODES.index(mode)}" for mode in modes]
    return " ".join(["python", str(PEERS / "cm_ends.py"), *places, *steps])


def rping(start: float, until: float, *arguments: str, stop: float | str = "-") -> str:
    words = ["python3", "-S", "-B", PEERS / "cm_rping.py", start, stop, until, *arguments]
    return " ".join(map(str, words))


def run(
    *options: str, one: Sequence[str], two: Sequence[str], freed: float = SHORT
) -> tuple[Story, Story]:
    """The commands of each host, all at the same time. A host that was not killed has come to the
    end of its steps. `freed`: see check_closing()."""
    commands = [f"{' & '.join(commands)} & wait" for commands in (one, two)]
    words = [LAB, "--virtual-time", "hosts", "2", "--until", "2000", *options]
    done = subprocess.run(
        [*words, "--", "sh", "-c", commands[0], "---", "sh", "-c", commands[1]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stdout.splitlines()
    stories = [Story([line[3:] for line in lines if line.startswith(f"{n}| ")]) for n in (1, 2)]
    for number, story in enumerate(stories, 1):
        if not any(f"kill={number}" in option for option in options):
            story.check_closing(freed)
    return stories[0], stories[1]


# ---- the page ---------------------------------------------------------------------------------


def table(page: Path = PAGE, heading: str = HEADING) -> dict[str, list[str]]:
    """By fault: without a timeout, with the default one, and rping; or what another page has."""
    text = page.read_text().partition(heading)[2].partition("\n#")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row[1:].rstrip("|").split("|")] for row in rows]
    return {fault: others for fault, *others in cells}


def seconds_of(cell: str) -> float:
    found = re.search(r"([\d.]+) s\b", cell)
    assert found, cell
    return float(found[1])


def check_cell(cell: str, outcome: str, seconds: float) -> None:
    """The page says so: what the exception or the status is called, and after how many seconds."""
    names = ["made"] if outcome == "ok" else outcome.split(":")
    assert any(name in cell for name in names), (cell, outcome)
    assert abs(seconds_of(cell) - seconds) < SAME, (cell, seconds)
