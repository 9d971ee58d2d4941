# SPDX-License-Identifier: MIT
"""./lab test: collects the tests here, hands them out to one or several guests, reports as one run.

This is pytest, with a plugin in place of its loop over the tests. So its options, its report, its
JUnit file and its exit codes are pytest's own. worker.py is the guests' side. Tests are handed out
in small lots of one file, those that took longest first, so the guests end at about the same time.
What has failed is run again at the end, alone: if it passes then, it is reported as flaky.

Usage: shards.py JOBS DURATIONS DRIVER... -- python -m pytest ARGUMENT...
JOBS may be 0: as many as pay. "{shard}" in a driver's word becomes the guest's number.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).resolve().parent

MOST = 4
WORTH = 60.0  # seconds of tests for which one more guest pays
LOT = 20.0  # seconds of tests that are handed out at once
UNKNOWN = 0.3  # seconds of a test that never ran
DEFAULT_MEMORY = 2048  # MB, of one guest
OVERHEAD = 256  # MB more for its QEMU
TIMED_OUT = 124
PATIENCE = 15  # seconds for a guest to end when asked to; its driver's own are fewer
AGAIN = 20  # failures at most that are run again: of more, the machine is not the reason
TAIL = 60  # lines of a guest's stderr that are shown with the test it died in


# ---- what is handed out, and to how many -------------------------------------------------


def lots(tests: Iterable[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """All tests, cut where a new file begins or LOT is full; the longest lots first."""
    cut: list[tuple[float, list[str]]] = []
    file = ""
    for test in tests:
        took = seconds.get(test, UNKNOWN)
        if test.partition("::")[0] != file or cut[-1][0] + took > LOT:
            file = test.partition("::")[0]
            cut.append((0, []))
        cut[-1] = (cut[-1][0] + took, [*cut[-1][1], test])
    return [lot for _, lot in sorted(cut, key=lambda lot: -lot[0])]


def how_many(expected: float, cores: int, available: int, memory: int) -> int:
    """How many guests pay for tests that take so many seconds; memory in MB."""
    fit = min(cores, available // (memory + OVERHEAD), int(expected // WORTH), MOST)
    return max(1, fit)


def places(driver: list[str], cores: int) -> int:
    """For guests. Half of the suite's time is waiting, in which another guest may compute; not
    where computing is slow, or waiting takes no time."""
    computes = option(driver, "--accel") == "tcg" or "--virtual-time" in driver
    return cores if computes else 2 * cores


def option(words: list[str], name: str) -> str | None:
    """The value of the last `name VALUE` among the words."""
    at = [number for number, word in enumerate(words[:-1]) if word == name]
    return words[at[-1] + 1] if at else None


def available_memory() -> int:
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) // 1024 if found else 0


def show_flaky(reporter: pytest.TerminalReporter, flaky: Mapping[str, pytest.TestReport]) -> None:
    """And how they failed at first; they are counted in the last line."""
    if flaky:
        reporter.section("flaky: failed, and passed when run again alone", yellow=True)
        reporter.stats["flaky"] = list(flaky.values())
    for test, report in flaky.items():
        reporter.write_line(f"FLAKY {test}", yellow=True)
        report.toterminal(reporter._tw)


# ---- a guest -----------------------------------------------------------------------------


@dataclass
class Lines:
    """Complete lines of what a pipe brings."""

    rest: bytes = b""

    def add(self, data: bytes) -> list[bytes]:
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines


class Guest:
    """A driver's process; as a test report's `node`, it labels pytest's lines."""

    def __init__(self, number: int, command: list[str]) -> None:
        self.id = str(number)
        self._workerinfocache = f"guest {number}"  # pytest puts it above a failure
        self.tests: collections.deque[str] = collections.deque()  # that it has and must report
        self.running: tuple[str, tuple[str, int | None, str]] | None = None
        self.reports: list[pytest.TestReport] = []  # of the test that is running
        self.began = False
        self.idle = False
        self.said: collections.deque[str] = collections.deque(maxlen=TAIL)
        self.process = subprocess.Popen(
            [word.replace("{shard}", self.id) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for us alone
        )
        self.out, self.err = Lines(), Lines()

    @property
    def gateway(self) -> Guest:  # where pytest looks for the label
        return self

    def give(self, lot: list[str] | None) -> None:
        self.idle = False
        self.tests.extend(lot or [])
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(lot).encode() + b"\n")
            self.process.stdin.flush()

    def done(self, test: str) -> None:
        self.running = None
        with contextlib.suppress(ValueError):
            self.tests.remove(test)

    def hear(self, line: bytes) -> None:
        """A line of its stderr: shown at once, and kept."""
        text = line.decode(errors="replace").rstrip("\r")
        self.said.append(text)
        print(f"[{self.id}] {text}", file=sys.stderr, flush=True)


class Guests:
    """All of them, and what they say, as it comes."""

    def __init__(self, count: int, command: list[str]) -> None:
        self.selector = selectors.DefaultSelector()
        self.alive = [Guest(number, command) for number in range(1, count + 1)]
        for guest in self.alive:
            for pipe in (guest.process.stdout, guest.process.stderr):
                assert pipe
                self.selector.register(pipe, selectors.EVENT_READ, guest)

    def events(self, timeout: float | None = None) -> list[tuple[Guest, dict[str, Any] | None]]:
        """Waits for some. An event of None is the guest's end."""
        events: list[tuple[Guest, dict[str, Any] | None]] = []
        for key, _ in self.selector.select(timeout):
            guest: Guest = key.data
            data = os.read(key.fd, 65536)
            if not data:
                self.selector.unregister(key.fileobj)
            if key.fileobj is guest.process.stderr:
                for line in guest.err.add(data or b"\n" * bool(guest.err.rest)):
                    guest.hear(line)
            else:
                events += [(guest, json.loads(line)) for line in guest.out.add(data)]
            if not any(other.data is guest for other in self.selector.get_map().values()):
                self.forget(guest)
                events.append((guest, None))
        return events

    def forget(self, guest: Guest) -> None:
        guest.process.wait()
        for pipe in (guest.process.stdin, guest.process.stdout, guest.process.stderr):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.alive.remove(guest)

    def stop(self) -> None:
        """Ends those that still run, as Ctrl-C does; kills what goes on, and its QEMU with it."""
        try:
            for guest in self.alive:
                guest.process.send_signal(signal.SIGINT)
            until = time.monotonic() + PATIENCE
            while self.alive and time.monotonic() < until:
                self.events(0.5)
        finally:
            self.selector.close()
            for guest in list(self.alive):
                guest.process.kill()
                self.forget(guest)


# ---- pytest's loop over the tests --------------------------------------------------------


class Shards:
    """A pytest plugin: the tests run in guests."""

    def __init__(self, jobs: int, durations: Path, driver: list[str], command: list[str]) -> None:
        self.jobs, self.durations = jobs, durations
        self.driver, self.command = driver, command
        self.seconds: dict[str, float] = {}
        self.took: collections.Counter[str] = collections.Counter()
        self.left: collections.deque[list[str]] = collections.deque()
        self.failed: dict[str, list[pytest.TestReport]] = {}  # to be run again
        self.flaky: dict[str, pytest.TestReport] = {}  # and how it failed at first
        self.second: dict[str, list[pytest.TestReport]] = {}  # that run again, or have been
        self.broken: set[str] = set()  # what could not be collected in a guest
        self.troubles: list[str] = []
        self.status = 0  # of a guest that did no test, or took too long

    # -- what cannot be told from here runs in one guest as a whole

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        ask = config.getoption
        here = ("usepdb", "trace", "collectonly", "setupshow", "setuponly", "setupplan", "basetemp")
        if ask("capture") == "no" or any(ask(name) for name in here):
            capture = config.pluginmanager.get_plugin("capturemanager")
            assert capture is not None
            capture.stop_global_capturing()
            command = [word.replace("{shard}", "1") for word in self.driver]
            os.execvp(command[0], [*command, "--", *self.command])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.showfspath = False  # tests of several files end in turns

    # -- the run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return None  # pytest says so
        if not session.items:
            return None
        self.session, self.config = session, session.config
        self.runs_again = not self.config.getoption("maxfail")
        with contextlib.suppress(OSError, ValueError):
            self.seconds = json.loads(self.durations.read_text())
        tests = [item.nodeid for item in session.items]
        self.left.extend(lots(tests, self.seconds))
        guests = self.start(sum(self.seconds.get(test, UNKNOWN) for test in tests))
        try:
            while guests.alive:
                for guest, event in guests.events():
                    self.handle(guest, event)
                self.serve_idle(guests)
        finally:
            self.give_up_on_failed()
            self.keep_durations()
            guests.stop()
        if self.left:
            number = sum(map(len, self.left))
            raise session.Interrupted(f"no guest is left, and {number} tests have not been run")
        return True

    def start(self, expected: float) -> Guests:
        memory = int(option(self.driver, "--mem") or DEFAULT_MEMORY)
        cores = places(self.driver, len(os.sched_getaffinity(0)))
        count = self.jobs or how_many(expected, cores, available_memory(), memory)
        self.count = count = min(count, len(self.left))
        several = ["--cpus", "1"] if count > 1 and not option(self.driver, "--cpus") else []
        worker = ["-p", "tests.lab.worker"]
        at = self.command.index("pytest") + 1
        command = [*self.command[:at], *worker, *self.command[at:]]
        return Guests(count, [*self.driver, *several, "--", *command])

    def serve_idle(self, guests: Guests) -> None:
        """They may go when nobody has tests: a guest that dies leaves some, and what has failed is
        run again, while all others are idle."""
        for guest in guests.alive:
            if guest.idle and self.left:
                guest.give(self.left.popleft())
        if any(guest.tests for guest in guests.alive):
            return
        idle = [guest for guest in guests.alive if guest.idle]
        if self.failed and idle:
            test = next(iter(self.failed))
            self.second[test] = self.failed.pop(test)
            # Preferably not in the process that it failed in.
            here = getattr(self.second[test][0], "node", None)
            min(idle, key=lambda guest: guest is here).give([test])
            return
        for guest in idle:
            guest.give(None)

    def handle(self, guest: Guest, event: dict[str, Any] | None) -> None:
        hook = self.config.hook
        match event and event.pop("event"):
            case None:
                self.ended(guest)
            case "want":
                assert event
                guest.idle = event["idle"]
                for test in list(guest.tests) if guest.idle else []:
                    self.fail(guest, test, "the guest has not reported this test")
                    guest.done(test)
                if not guest.idle:  # not the last lots, which another could begin at once
                    guest.give(self.left.popleft() if len(self.left) > 2 * self.count else [])
            case "start":
                assert event
                guest.began = True
                guest.running = event["test"], tuple(event["location"])
                guest.reports = []
                hook.pytest_runtest_logstart(nodeid=event["test"], location=guest.running[1])
            case "report" | "collectreport" as kind:
                assert event
                self.report(guest, kind, event["report"])
            case "finish":
                assert event
                self.settle(event["test"], guest.reports)
                hook.pytest_runtest_logfinish(nodeid=event["test"], location=event["location"])
                guest.done(event["test"])
            case "unknown":
                assert event
                self.fail(guest, event["test"], "the guest finds no such test")
                guest.done(event["test"])
            case "warning":
                assert event
                self.warn(event)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def report(self, guest: Guest, kind: str, data: dict[str, Any]) -> None:
        hook = self.config.hook
        for name in ("longrepr", "location"):  # JSON knows no tuples
            if isinstance(data.get(name), list):
                data[name] = tuple(data[name])
        report = hook.pytest_report_from_serializable(config=self.config, data=data)
        report.node = guest  # as under pytest-xdist
        if kind == "collectreport":
            if report.nodeid not in self.broken:  # every guest collects
                hook.pytest_collectreport(report=report)
            self.broken.add(report.nodeid)
            return
        self.took[report.nodeid] += report.duration
        guest.reports.append(report)

    # -- what has failed once

    def settle(self, test: str, reports: list[pytest.TestReport]) -> None:
        """A test has ended. It is reported, unless it will be run again."""
        failure = next((report for report in reports if report.failed), None)
        first = self.second.get(test)
        if failure is None and first is not None:
            self.flaky[test] = next(report for report in first if report.failed)
        if failure is None or first is not None or not self.runs_again:
            self.log(reports)
            return
        self.failed[test] = reports
        again = copy.copy(failure)
        again.outcome = "again"  # type: ignore[assignment]
        self.log([again])
        if len(self.failed) > AGAIN:
            self.give_up_on_failed()

    def log(self, reports: list[pytest.TestReport]) -> None:
        for report in reports:
            self.config.hook.pytest_runtest_logreport(report=report)

    def give_up_on_failed(self) -> None:
        """They have failed, and are not run again, nor what will fail."""
        self.runs_again = False
        failed, self.failed = self.failed, {}
        for reports in failed.values():
            self.log(reports)

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        return ("", "A", "AGAIN") if str(report.outcome) == "again" else None

    def warn(self, event: dict[str, Any]) -> None:
        message = warnings.WarningMessage(
            UserWarning(event["text"]), UserWarning, event["file"], event["line"]
        )
        facts = {"when": event["when"], "nodeid": event["test"], "location": None}
        self.config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, **facts}
        )

    # -- ends

    def ended(self, guest: Guest) -> None:
        """A guest's end: as it should be, or with a test that it did not finish."""
        status = guest.process.returncode
        if guest.began and not guest.tests:
            usual = (0, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
            if status not in usual:
                self.troubles.append(f"guest {guest.id} ended with {status} after its last test")
            return
        if guest.running:
            test = guest.running[0]
            said = "".join(f"\n    {line}" for line in guest.said)
            self.fail(guest, test, f"guest {guest.id} ended with {status} in this test{said}")
            guest.done(test)
        if status == TIMED_OUT or not guest.began:
            self.status = status
        if status == TIMED_OUT:
            raise self.session.Interrupted(f"guest {guest.id} took too long")
        if guest.tests:  # which the others will do
            self.left.appendleft(list(guest.tests))

    def fail(self, guest: Guest, test: str, why: str) -> None:
        location = guest.running[1] if guest.running else (test.partition("::")[0], None, test)
        reports = []
        for when in ("setup", "call", "teardown"):
            report = pytest.TestReport(
                test,
                location,
                keywords={},
                outcome="failed" if when == "call" else "passed",
                longrepr=why if when == "call" else None,
                when=when,
            )
            report.node = guest  # type: ignore[attr-defined]
            reports.append(report)
        self.settle(test, reports)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.status == TIMED_OUT or (self.status and not self.took):
            session.exitstatus = self.status
        elif self.left or self.troubles:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for trouble in self.troubles:
            terminalreporter.write_line(trouble, red=True)
        show_flaky(terminalreporter, self.flaky)

    def keep_durations(self) -> None:
        """For the next run: of the tests that ran now, and of the others as they were."""
        self.seconds |= {test: round(took, 2) for test, took in self.took.items()}
        part = self.durations.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(self.seconds, indent=0))
        part.rename(self.durations)


def main() -> int:
    os.environ.pop("LD_PRELOAD", None)  # it was for this process
    at = sys.argv.index("--")
    jobs, durations, *driver = sys.argv[1:at]
    command = sys.argv[at + 1 :]
    arguments = command[command.index("pytest") + 1 :]
    sys.path[0] = os.getcwd()  # as for python -m pytest; not this folder
    return pytest.main(arguments, plugins=[Shards(int(jobs), Path(durations), driver, command)])


if __name__ == "__main__":
    sys.exit(main())
