# SPDX-License-Identifier: MIT
"""Hooks for the lab's own tests: one that fails is run again, and is flaky if it passes then."""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol
from shards import AGAIN, show_flaky

flaky = pytest.StashKey[dict[str, pytest.TestReport]]()
again = pytest.StashKey[int]()  # tests that were run again


def pytest_configure(config: pytest.Config) -> None:
    config.stash[flaky], config.stash[again] = {}, 0


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    hook, stash = item.config.hook, item.config.stash
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    failure = next((report for report in reports if report.failed), None)
    if failure and stash[again] < AGAIN and not item.config.getoption("maxfail"):
        stash[again] += 1
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(report.failed for report in reports):
            stash[flaky][item.nodeid] = failure
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seen: dict[str, pytest.TestReport] = config.stash[flaky]
    show_flaky(terminalreporter, seen)
