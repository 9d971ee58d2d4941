# SPDX-License-Identifier: MIT
"""A pytest plugin for the guests of `./lab test`: runs what shards.py hands out, and reports it.

Both sides speak lines of JSON: orders come on stdin, reports go to stdout. There is no thread, and
no other descriptor that a test could see change. All is collected here, too: pytest can do so only
once, for the fixtures of a conftest.py are lost the second time.
"""

from __future__ import annotations

import collections
import json
import os
import warnings
from collections.abc import Iterator

import pytest
from _pytest.config import create_terminal_writer

# Of this process alone: what its tests start has neither. Before pytest's capture takes both.
ORDERS, REPORTS = os.dup(0), os.dup(1)
os.dup2(2, 1)
_null = os.open(os.devnull, os.O_RDWR)
os.dup2(_null, 0)
os.close(_null)


class Worker:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.pid = os.getpid()
        self.heard = b""
        self.known: dict[str, pytest.Item] = {}

    # ---- the wire

    def tell(self, event: str, **facts: object) -> None:
        if os.getpid() != self.pid:
            return  # a child that a test has forked
        line = json.dumps({"event": event, **facts}, default=str).encode() + b"\n"
        while line:
            line = line[os.write(REPORTS, line) :]

    def ask(self, idle: bool) -> list[str] | None:
        """The tests that are next, of one file. None at the end, and none if there are none now,
        which an idle guest is not told: it waits."""
        self.tell("want", idle=idle)
        while b"\n" not in self.heard:
            data = os.read(ORDERS, 65536)
            if not data:
                return None
            self.heard += data
        line, _, self.heard = self.heard.partition(b"\n")
        tests: list[str] | None = json.loads(line)
        return tests

    # ---- what pytest asks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        ahead: collections.deque[pytest.Item] = collections.deque()
        while (tests := self.ask(idle=True)) is not None:
            ahead.extend(self.items(session, tests))
            while ahead:
                item = ahead.popleft()
                if not ahead:  # what follows decides what is torn down
                    ahead.extend(self.items(session, self.ask(idle=False) or []))
                following = ahead[0] if ahead else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        return True

    def items(self, session: pytest.Session, tests: list[str]) -> Iterator[pytest.Item]:
        self.known = self.known or {item.nodeid: item for item in session.items}
        for test in tests:
            if test in self.known:
                yield self.known[test]
            else:
                self.tell("unknown", test=test)

    # ---- what it tells

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("collectreport", report=self.data(report))

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.tell("start", test=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tell("report", report=self.data(report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.tell("finish", test=nodeid, location=location)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        self.tell(
            "warning",
            text=f"{warning_message.category.__name__}: {warning_message.message}",
            file=warning_message.filename,
            line=warning_message.lineno,
            when=when,
            test=nodeid,
        )

    def data(self, report: pytest.CollectReport | pytest.TestReport) -> object:
        hook = self.config.hook
        return hook.pytest_report_to_serializable(config=self.config, report=report)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # As under pytest-xdist: no file of results, no cache, which are for the other side to write.
    config.workerinput = {}  # type: ignore[attr-defined]
    config.pluginmanager.register(Worker(config))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """What is for people to read is written on the other side."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115
        session.config.add_cleanup(nowhere.close)
        terminal._tw = create_terminal_writer(session.config, nowhere)
