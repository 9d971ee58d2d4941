# SPDX-License-Identifier: MIT
"""./lab hosts N -- COMMAND --- COMMAND: a command on each of several hosts.

Lines of output begin with the host's number. Standard input goes to the first host's command. All
end when each has ended, or soon after one has failed, whose status is ours then.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any, NoReturn

from . import hosts, hosts_serve, vm
from .base import FRONT, LabError, current_folder, note

USAGE = f"{FRONT} hosts 2 -- COMMAND --- COMMAND"
MUCH = 262144  # bytes of input under way
GRACE_SECONDS = 5  # for the other commands to end, when one has failed
PERCENT, MILLISECONDS, MEGABITS = 1e-2, 1e-3, 1e6
UNITS = {
    "loss": PERCENT,
    "duplicate": PERCENT,
    "reorder": PERCENT,
    "delay": MILLISECONDS,
    "jitter": MILLISECONDS,
    "rate": MEGABITS,
}


def faults(text: str) -> dict[str, float]:
    """loss=5,delay=3: in percent, milliseconds and Mbit/s."""
    found = {}
    for setting in text.split(","):
        name, _, value = setting.partition("=")
        try:
            found[name] = float(value) * UNITS[name]
        except (KeyError, ValueError):
            raise LabError(
                f"--net wants NAME=NUMBER,..., not '{setting}'; the names are {', '.join(UNITS)}"
            ) from None
        if found[name] < 0 or (UNITS[name] == PERCENT and found[name] > 1):
            raise LabError(f"--net: {name} is out of range: {value}")
    return found


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LabError(f"hosts: {message} (see {FRONT} --help)")


def number_of_hosts(text: str) -> int:
    if not text.isdecimal():
        raise LabError(f"hosts wants a number, not '{text}': {USAGE}")
    return int(text)


def split(words: list[str]) -> tuple[argparse.Namespace, list[list[str]]]:
    at = words.index("--") if "--" in words else len(words)
    parser = Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("count", type=number_of_hosts, nargs="?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--net", type=str)
    parser.add_argument("--serve", action="store_true")
    # In virtual time alone: how many seeds, where to write what happened when, what fails when, and
    # for how long.
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--log", type=str)
    parser.add_argument("--at", action="append", default=[])
    parser.add_argument("--until", type=float, default=3600)
    options, unknown = parser.parse_known_args(words[:at])
    if options.count is None:
        raise LabError(f"hosts wants a number: {USAGE}")
    if unknown:
        raise LabError(f"hosts: there is no option '{unknown[0]}' (see {FRONT} --help)")
    if not 1 <= options.count <= hosts.MOST:
        raise LabError(f"hosts: from 1 to {hosts.MOST} of them, not {options.count}")
    options.net = faults(options.net) if options.net else {}
    commands: list[list[str]] = [[]]
    for word in words[at + 1 :]:
        if word == "---":
            commands.append([])
        else:
            commands[-1].append(word)
    return options, commands


def one_each(options: argparse.Namespace, commands: list[list[str]]) -> list[list[str]]:
    if len(commands) == 1:
        commands *= options.count
    if len(commands) != options.count or not all(commands):
        raise LabError(
            f"hosts: {options.count} hosts want a command each, with '---' in between, or one "
            "that all of them run"
        )
    return commands


def main(words: list[str], driver: list[str], timeout: float) -> int:
    options, commands = split(words)
    if options.seeds or options.log or options.at:
        raise LabError("hosts: --seeds, --log and --at are for virtual time (--virtual-time)")
    if options.serve:
        return hosts_serve.serve(driver, options.count, options.seed)
    commands = one_each(options, commands)
    return Run(driver, options, commands).run(timeout)


class Run:
    """The commands of one call."""

    def __init__(
        self, driver: list[str], options: argparse.Namespace, commands: list[list[str]]
    ) -> None:
        self.commands = commands
        self.left = set(range(1, len(commands) + 1))
        self.status = 0
        self.grace: float | None = None
        self.signals = vm.Signals()
        self.signal: int | None = None  # that has been handed on
        self.lines: dict[tuple[int, str], str] = {}
        self.under_way = 0  # bytes of input that the first command has not taken
        self.has_input = self.listens = False  # whether it may come, and is read now
        self.cluster = hosts.Cluster(driver, options.count, options.seed, self.hear)
        links = self.cluster.links()
        self.cluster.switch.ask("impair", links=links, faults=options.net)
        self.waiting = set(self.left)  # for all: both ends begin at the same time

    def run(self, timeout: float) -> int:
        until = time.monotonic() + timeout if timeout else None
        self.cluster.watch(self.signals.wake, self.interrupted)
        try:
            for host in self.cluster.hosts:
                self.cluster.boot(host)
            while self.left:
                self.listen()
                ends = [moment for moment in (until, self.grace) if moment is not None]
                self.cluster.turn(max(0, min(ends) - time.monotonic()) if ends else None)
                self.check(until)
            return self.status
        finally:
            self.cluster.end()

    def check(self, until: float | None) -> None:
        if self.grace is not None and time.monotonic() >= self.grace:
            self.left.clear()
        if until is not None and time.monotonic() >= until:
            raise LabError("the commands took too long (--timeout)", 124)

    def hear(self, event: dict[str, Any]) -> None:
        number = event["host"]
        match event["event"]:
            case "ready":
                self.waiting.discard(number)
                if not self.waiting:
                    self.start()
            case "out":
                self.write(number, event["stream"], event["data"])
            case "took":
                self.under_way -= event["bytes"]
            case "end":
                self.has_input = self.has_input and number != 1
                self.ended(number, event["status"])
            case "down" if number in self.left:
                raise LabError(f"host {number} has ended unexpectedly:{event['said']}")

    def start(self) -> None:
        for number, command in enumerate(self.commands, 1):
            host = self.cluster.hosts[number - 1]
            host.tell("start", program=1, argv=command, env={}, cwd=current_folder())
            if number > 1:
                host.tell("input", program=1, data="")
        self.has_input = True

    def listen(self) -> None:
        """To standard input, unless there is much that the first command has not taken."""
        wanted = self.has_input and self.under_way < MUCH
        if wanted and not self.listens:
            try:
                self.cluster.watch(0, self.read_input)
            except PermissionError:  # a file is always ready, and cannot be awaited
                while self.has_input and self.under_way < MUCH:
                    self.read_input()
                return
        elif self.listens and not wanted:
            self.cluster.selector.unregister(0)
        self.listens = wanted

    def read_input(self) -> None:
        data = os.read(0, 16384)
        self.has_input = bool(data)
        self.under_way += len(data)
        self.cluster.hosts[0].tell("input", program=1, data=data.decode("latin-1"))

    def write(self, number: int, stream: str, data: str) -> None:
        *lines, rest = (self.lines.get((number, stream), "") + data).split("\n")
        self.lines[number, stream] = rest
        text = "".join(f"{number}| {line}\n" for line in lines)
        out = sys.stdout if stream == "out" else sys.stderr
        out.buffer.write(text.encode("latin-1"))
        out.flush()

    def ended(self, number: int, status: int) -> None:
        for stream in ("out", "err"):
            if self.lines.get((number, stream)):
                self.write(number, stream, "\n")
        self.left.discard(number)
        if status and not self.status:
            self.status = status
            if self.left:
                note(f"host {number}'s command ended with {status}; stopping the others")
                self.stop(signal.SIGTERM)

    def stop(self, number: int) -> None:
        self.grace = time.monotonic() + GRACE_SECONDS
        for host in self.cluster.hosts:
            if host.number in self.left:
                host.tell("signal", program=1, number=number)

    def interrupted(self) -> None:
        for number in self.signals.take():
            if number == signal.SIGWINCH:
                continue
            if self.signal or self.waiting:
                raise LabError(f"stopped by {signal.Signals(number).name}", 128 + number)
            self.signal = number
            self.status = self.status or 128 + number
            self.stop(number)
