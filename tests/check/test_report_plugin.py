# SPDX-License-Identifier: MIT
"""pytest --rdma-check: the tests run under the observer, and its errors fail them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from report_support import finding, process, stand_in, text

from cqnotify.check import plugin
from cqnotify.check.plugin import NotObservedError, Watch, observe

pytest_plugins = ["pytester"]

# The stand-in for the observer writes nothing, so the suite begins the log itself.
PLUGIN = """
import os
from cqnotify.check import plugin, running
running.find_observer = plugin.find_observer = lambda: LIBRARY

def log(line):
    with open(f"{os.environ['CQNOTIFY_CHECK']}/{os.getpid()}.0.log", "a") as file:
        file.write(line.replace("4321", str(os.getpid())))

if "CQNOTIFY_CHECK" in os.environ:
    log(PROCESS)
"""
SUITE = f"""
import pytest
from stand_in import log
ERROR, WARNING = {text(finding(tid=4321))!r}, {text(finding("late-wakeup", number=2))!r}

@pytest.fixture
def logs_an_error_at_its_end():
    yield
    log(ERROR.replace('"number": 1', '"number": 4'))

def test_passes():
    pass

def test_logs_an_error():
    log(ERROR)
    log(WARNING)

def test_logs_nothing_again():
    pass

def test_fails_too():
    log(ERROR.replace('"number": 1', '"number": 3'))
    assert 1 == 2

def test_is_wrong_in_the_teardown(logs_an_error_at_its_end):
    pass
"""


def stand_in_plugin() -> str:
    first_line = text(process(4321, "pytest"))
    return PLUGIN.replace("LIBRARY", repr(stand_in())).replace("PROCESS", repr(first_line))


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("tmp")))
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.delenv("LD_AUDIT", raising=False)
    monkeypatch.delenv("CQNOTIFY_CHECK", raising=False)
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p stand_in -p pytest_cqnotify\n")
    pytester.makepyfile(stand_in=stand_in_plugin(), test_suite=SUITE)
    return pytester


def test_an_error_fails_the_test_that_made_it(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--rdma-check", "-rA")
    result.assert_outcomes(passed=3, failed=2, errors=1)
    out = result.stdout
    out.fnmatch_lines(["rdma: under the observer of cqnotify check"])
    out.fnmatch_lines_random(["FAILED *test_logs_an_error*", "FAILED *test_fails_too*"])
    out.fnmatch_lines(["ERROR *test_is_wrong_in_the_teardown*"])
    out.fnmatch_lines(
        [
            "*_ test_logs_an_error _*",
            "cqnotify check: error: lost wake-up: * [[]lost-wakeup]",
            "  The main thread of pytest (process *) sleeps in ibv_get_cq_event() on channel 1.*",
            "  What to do: *",
            "*_ test_fails_too _*",
            "E   * assert 1 == 2",
            "*- cqnotify check -*",
            "cqnotify check: error: lost wake-up: *",
            "*= warnings of cqnotify check =*",
            "cqnotify check: warning: late wake-up: *",
        ]
    )
    assert os.listdir(suite.path / "tmp") == [], "the logs were removed"


def test_without_the_option_nothing_is_observed(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_suite="import os\ndef test_it(): assert 'CQNOTIFY_CHECK' not in os.environ"
    )
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("rdma: *")


@pytest.mark.parametrize("where", ["ini", "environment"])
def test_the_option_may_stand_elsewhere(
    where: str, suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "ini":
        ini = (suite.path / "tox.ini").read_text()
        (suite.path / "tox.ini").write_text(ini.replace("addopts =", "addopts = --rdma-check"))
    else:
        monkeypatch.setenv("PYTEST_ADDOPTS", "--rdma-check")
    suite.runpytest_subprocess("-k", "passes").assert_outcomes(passed=1, deselected=4)


def test_a_python_without_the_observer_is_an_error(suite: pytest.Pytester) -> None:
    (suite.path / "stand_in.py").write_text(stand_in_plugin().replace("if ", "if False and "))
    result = suite.runpytest_subprocess("--rdma-check")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--rdma-check: the observer is not in this Python: it wrote no log to '*'"]
    )


def test_pytest_has_to_be_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find_observer", stand_in)
    monkeypatch.delenv("LD_AUDIT", raising=False)
    with pytest.raises(NotObservedError, match="^start pytest itself"):
        observe([*sys.argv[1:], "more"])


def test_children_are_watched_and_other_workers_are_not(tmp_path: Path) -> None:
    def log(pid: int, parent: int) -> None:
        path = tmp_path / f"{pid}.0.log"
        path.write_text(text(process(pid, f"p{pid}", parent=parent), finding(tid=pid)))

    me = os.getpid()
    (tmp_path / f"{me}.0.log").write_text(text(process(me, parent=1)))
    watch = Watch(str(tmp_path))
    log(90_001, me)
    log(90_002, 90_001)
    log(90_003, 1)
    log(90_004, 90_004)
    errors = watch.errors()
    assert [name for name in ("p90001", "p90002", "p90003", "p90004") if name in errors] == [
        "p90001"
    ], "the same of another process is counted"
    assert "Found 2 times in 2 processes." in errors
    assert watch.errors() == ""
    watch.close()
    assert tmp_path.exists()
