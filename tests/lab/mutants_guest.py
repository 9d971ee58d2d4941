# SPDX-License-Identifier: MIT
"""A pytest plugin for the guests of `./lab mutants`: the tests are collected once, and each mutant
runs them in a forked child, in the order that it is given, until one fails.

Both sides speak lines of JSON. An order has the number of a mutant (0: none), its tests, whether to
stop at the first failure, and, by test, how long it usually takes. Each test is reported with the
places that it reached. The guest has a clock that skips idle time, so who waits for ever comes to
its deadline at once; who computes for ever is ended by a limit of CPU time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

SIZE = 1 << 16  # of mutants_runtime.h
PATIENCE = 1500.0  # seconds of a clock that skips idle time; no test sleeps for so long
CPU = 8  # seconds, besides what a test usually takes
REACHED = "/tmp/cqnotify-mutants-reached"

with open(REACHED, "wb") as file:
    file.truncate(SIZE)
os.environ["CQNOTIFY_MUTANTS_REACHED"] = REACHED  # before the core is loaded
# Of this process alone, and before pytest's capture takes both.
ORDERS, REPORTS = os.dup(0), os.dup(1)
os.dup2(2, 1)
_null = os.open(os.devnull, os.O_RDWR)
os.dup2(_null, 0)
os.close(_null)

import pytest  # noqa: E402

from cqnotify import _core  # noqa: E402

Order = dict[str, Any]


class Guest:
    def __init__(self) -> None:
        self.heard = b""
        self.failures: list[str] = []
        with open(REACHED, "r+b") as file:
            self.reached = mmap.mmap(file.fileno(), SIZE)
        self.mutant = ctypes.c_int.in_dll(ctypes.PyDLL(_core.__file__), "cqn_mutant")

    # ---- the wire

    def tell(self, **facts: object) -> None:
        line = json.dumps(facts).encode() + b"\n"
        while line:
            line = line[os.write(REPORTS, line) :]

    def orders(self) -> Iterator[Order]:
        while data := os.read(ORDERS, 1 << 16):
            *lines, self.heard = (self.heard + data).split(b"\n")
            yield from map(json.loads, lines)

    # ---- the loop in place of pytest's

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.tell(collected=list(items), reached=self.places())
        for order in self.orders():
            if order["fresh"]:
                self.run_fresh(order)
            else:
                self.run(order, items)
            self.tell(done=order["mutant"])
        return True

    def run(self, order: Order, items: dict[str, pytest.Item]) -> None:
        """In a child; what it reports is passed on, and what it leaves behind is killed."""
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                self.run_items(order, [items[test] for test in order["tests"]], into)
            finally:
                os._exit(0)
        os.close(into)
        left, failed = list(order["tests"]), False
        for report in reports(out):
            self.tell(**report)
            left.pop(0)
            failed |= bool(report["failed"])
        os.close(out)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if left and not (failed and order["stop"]):
            is_hang = -code in (signal.SIGKILL, signal.SIGXCPU)
            why = "hang" if is_hang else f"the process ended with {code}"
            self.tell(test=left[0], failed=[why], seconds=0.0, reached=self.places())

    # ---- in the child

    def run_items(self, order: Order, items: list[pytest.Item], into: int) -> None:
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined] # before Python 3.12
        os.environ["CQNOTIFY_MUTANT"] = str(order["mutant"])
        self.mutant.value = order["mutant"]
        for item, following in zip(items, [*items[1:], None], strict=True):
            usual = order["seconds"].get(item.nodeid)
            self.reached[:] = bytes(SIZE)
            began = time.monotonic()
            failed = self.failures_of(item, following, usual)
            report = {
                "test": item.nodeid,
                "failed": failed,
                "seconds": round(time.monotonic() - began, 3),
                "reached": self.places(),
            }
            if failed and order["mutant"]:  # most often this process can tell that already
                os.environ["CQNOTIFY_MUTANT"] = "0"
                self.mutant.value = 0
                report["passes_without"] = not self.failures_of(item, None, usual)
            os.write(into, json.dumps(report).encode() + b"\n")
            if failed and order["stop"]:
                return

    def failures_of(
        self, item: pytest.Item, following: pytest.Item | None, usual: float | None
    ) -> list[str]:
        if usual is not None:
            self.limit(usual)
        self.failures = []
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.failures

    def limit(self, usual: float) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + CPU + 5 * usual)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))

    def places(self) -> list[int]:
        data = self.reached[:]
        return [number for number, byte in enumerate(data) if byte] if any(data) else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash is not None else str(report.longrepr)
            self.failures.append(f"{report.when}: {said}"[:300])

    # ---- what runs when the core is loaded is changed in processes that load it

    def run_fresh(self, order: Order) -> None:
        command = [sys.executable, "-m", "pytest", *order["options"], "-x", "-q", *order["tests"]]
        env = {**os.environ, "CQNOTIFY_MUTANT": str(order["mutant"])}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=PATIENCE * 2
            )
        except subprocess.TimeoutExpired:
            failed = ["hang"]
        else:
            failed = [*done.stdout.splitlines()[-1:], f"exit code {done.returncode}"]
            failed = failed if done.returncode else []
        self.tell(
            test="the tests in a process of their own", failed=failed, seconds=0.0, reached=[]
        )


def reports(out: int) -> Iterator[dict[str, Any]]:
    """What a child writes to the pipe, until it ends or hangs."""
    heard = b""
    while select.select([out], [], [], PATIENCE)[0] and (data := os.read(out, 1 << 16)):
        *lines, heard = (heard + data).split(b"\n")
        yield from map(json.loads, lines)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guest())
