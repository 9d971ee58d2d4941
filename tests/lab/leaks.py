# SPDX-License-Identifier: MIT
"""A pytest plugin for a debug build of Python: a test that leaks references or memory fails.

Each test is run again, with set-up and teardown, and after each run the interpreter's counts of all
references and of all blocks of memory are taken. A run that leaves a count as it was clears the
test of it, so most tests run twice. If none does, the first runs may have filled caches; a test
leaks if each of those after them left more.

A long test runs less often, and only once if its time went into other processes, as do tests of
what grows by itself.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import re
import sys
import time
from array import array
from dataclasses import dataclass
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

WARM_UPS = 3  # runs that may fill caches, the first one included
MEASURED = 4
LONG = 5.0  # seconds; a test that takes longer has
WARM_UPS_IF_LONG = 2
MEASURED_IF_LONG = 2
SETTLE = 2.0  # seconds for a thread to end after its join()

# Extensions that were built for the ordinary Python do not count their references: in a debug build
# of CPython 3.11 the total grows by one with each numpy.zeros(1) that comes and goes. So of a test
# that uses them only memory blocks are counted; cqnotify.memory makes arrays of numpy.
# FLAVORS has uvloop, and WITH_OBJECTS arrays. Dask packs what it sends with msgpack.
UNCOUNTED = {"numpy", "uvloop", "memory", "FLAVORS", "WITH_OBJECTS"}
UNCOUNTED_FOLDER = "tests/dask/"

# What grows by itself, also without us, is run once: connections of uvloop, clusters of Dask (over
# TCP, too), servers of Prometheus, meters of OpenTelemetry, matplotlib; tests in tests, the threads
# that trio keeps, and what Hypothesis has tried.
GROWS = re.compile(
    r"/(test_exchange_many|test_types_aio)\.py::.*\[uvloop"
    r"|/test_dask_cluster\.py::test_a_cluster_computes"
    r"|/test_dask_values\.py::test_a_client_gets_them"
    r"|/test_metrics\.py::test_(prometheus|opentelemetry)_gets|/test_examples\.py::test_metrics"
    r"|/test_plots\.py::|_plot_|/test_cli_(bandwidth|latency)\.py::test_the_table_has"
    r"|/test_fuzz\.py::"
)
GROWING = {"pytester", "to_thread"}


def names_used(function: FunctionType) -> set[str]:
    """What a function uses of its file, by the functions and classes of that file, too."""
    names: set[str] = set()
    todo = [function.__code__]
    while todo:
        code = todo.pop()
        todo += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in {
            *code.co_names,
            *code.co_varnames,
        } - names:  # pytest.importorskip() is assigned
            names.add(name)
            used = function.__globals__.get(name)
            if getattr(used, "__module__", None) == function.__module__:
                members = vars(used).values() if isinstance(used, type) else [used]
                todo += [each.__code__ for each in members if isinstance(each, FunctionType)]
    return names


def is_counted(item: pytest.Item) -> bool:
    """Whether all that a test uses counts its references."""
    function = inspect.unwrap(getattr(item, "function", is_counted))
    in_its_name = any(name in item.name for name in UNCOUNTED)
    if in_its_name or item.nodeid.startswith(UNCOUNTED_FOLDER):
        return False
    return UNCOUNTED.isdisjoint(names_used(function))


def is_judged(item: pytest.Item) -> bool:
    function = inspect.unwrap(getattr(item, "function", is_judged))
    grows = getattr(function, "is_hypothesis_test", False) or GROWS.search(item.nodeid) is not None
    used = names_used(function) | {*getattr(item, "fixturenames", ())}
    return not grows and GROWING.isdisjoint(used)


def cpu_times() -> tuple[float, float]:
    """Of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settle(threads_before: int) -> None:
    """Returns when all that ends by itself has ended."""
    end = time.monotonic() + SETTLE
    while threads() > threads_before and time.monotonic() < end:
        time.sleep(0.001)
    # Names of methods are kept there, at places that depend on how many types were made.
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    re.purge()  # patterns with a number that is another one in each run
    for _ in range(3):
        gc.collect()


@dataclass
class Record:
    """How often a test ran, and the counts after each run; in arrays, which hold no objects."""

    counts: dict[str, array[int]]
    warm_ups: int
    runs: int = 0

    def take(self) -> None:
        if "references" in self.counts:
            self.counts["references"][self.runs] = sys.gettotalrefcount()
        self.counts["memory blocks"][self.runs] = sys.getallocatedblocks()
        self.runs += 1

    def growth(self, what: str) -> list[int]:
        counts = self.counts[what][: self.runs]
        return [b - a for a, b in itertools.pairwise(counts)]

    def cleared(self) -> bool:
        return all(0 in self.growth(what) for what in self.counts)

    def verdict(self) -> str:
        """After the last run: what leaks, if anything."""
        for what in self.counts:
            growth = self.growth(what)
            measured = growth[self.warm_ups - 1 :]
            if 0 not in growth and min(measured) > 0:
                mean = sum(measured) / len(measured)
                return f"leaks {mean:g} {what} per run; the growth from run to run was {growth}"
        return ""


# Of each test: how often it ran, and how the counts grew. These come with the tests' reports, from
# the process that ran the tests to the one that sums up.
summary: dict[str, tuple[int, str]] = {}


# All fixtures that were set up: a test may also ask for one by name.
fixtures: set[pytest.FixtureDef[object]] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    fixtures.add(fixturedef)


class Finalizers:
    """Those of fixtures. With each run of a test, each fixture that it uses is once more in the
    list of each wider one that this uses, until that one ends."""

    def __init__(self) -> None:
        self.lists = [fixture._finalizers for fixture in fixtures]
        self.lengths = array("q", map(len, self.lists))

    def forget_new(self) -> None:
        for finalizers, length in zip(self.lists, self.lengths, strict=True):
            del finalizers[length:]


def run_again(item: pytest.Item, nextitem: pytest.Item | None, record: Record, limit: int) -> str:
    """Runs a test that has passed, until it is cleared; says what is wrong with it, if anything."""
    before = threads()
    finalizers = Finalizers()
    # Nothing here may hold more, or less, in one turn than in another.
    for run in range(limit):
        if run > 0:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            failed = next((report for report in reports if not report.passed), None)
            if failed is not None:
                return f"passes, but not when it is run again:\n\n{failed.longreprtext}"
            del reports, failed
            item._report_sections.clear()
            finalizers.forget_new()
        settle(before)
        record.take()
        if record.cleared():
            return ""
    return record.verdict()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    own, children = cpu_times()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    item._report_sections.clear()
    long = sum(report.duration for report in reports) > LONG
    own, children = cpu_times()[0] - own, cpu_times()[1] - children
    if (long and children > own) or not is_judged(item):
        reports[-1].leaks = 1, ""  # type: ignore[attr-defined]
    elif all(report.passed for report in reports):
        warm_ups, measured = (WARM_UPS_IF_LONG, MEASURED_IF_LONG) if long else (WARM_UPS, MEASURED)
        limit = warm_ups + measured
        kinds = ["references", "memory blocks"] if is_counted(item) else ["memory blocks"]
        record = Record({kind: array("q", [0] * limit) for kind in kinds}, warm_ups)
        problem = run_again(item, nextitem, record, limit)
        growth = "; ".join(f"{what} {record.growth(what)}" for what in record.counts)
        reports[-1].leaks = record.runs, growth  # type: ignore[attr-defined]
        if problem:
            (call,) = (report for report in reports if report.when == "call")
            call.outcome = "failed"
            call.longrepr = problem
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(sys, "gettotalrefcount"):
        raise pytest.UsageError("leaks: this is not a debug build of Python")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    runs, growth = getattr(report, "leaks", (0, ""))
    if runs:
        summary[report.nodeid] = runs, growth


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not summary:
        return
    write = terminalreporter.write_line
    terminalreporter.section("references and memory")
    again = {name: (runs, growth) for name, (runs, growth) in summary.items() if growth}
    total = sum(runs for runs, _ in again.values())
    write(f"{total} runs of {len(again)} tests; more than three runs of:")
    for name, (runs, growth) in again.items():
        if runs > 3:
            write(f"  {name}: {growth}")
    if len(again) < len(summary):
        write(f"run only once, since they grow by themselves, or take over {LONG:g} s elsewhere:")
        for name in summary.keys() - again.keys():
            write(f"  {name}")
