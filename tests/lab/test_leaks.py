# SPDX-License-Identifier: MIT
"""leaks.py, by tests that leak: in an ordinary Python, where these count the references."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROJECT = Path(__file__).resolve().parents[2]
COUNTER = "import sys\ncount = [0]\nsys.gettotalrefcount = lambda: count[0]\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    pytester.makeconftest(COUNTER)
    return pytester


def outcome(suite: pytest.Pytester, source: str) -> pytest.RunResult:
    suite.makepyfile("from conftest import count\nruns = []\n" + source)
    return suite.runpytest_subprocess("-p", "tests.lab.leaks", "-p", "no:cacheprovider")


def test_a_test_that_leaks_fails_and_says_how_much(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it(): count[0] += 3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["leaks 3 references per run; *from run to run was [[]3, 3, 3, *"])
    result.stdout.fnmatch_lines(["7 runs of 1 tests*"])


def test_a_leak_of_memory_alone_is_one_too(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it(): runs.append(object())")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["leaks 1* memory blocks per run; *"])


@pytest.mark.parametrize("test", ["made()", "[numpy for _ in range(1)]"])
def test_what_numpy_does_not_count_is_not_counted(suite: pytest.Pytester, test: str) -> None:
    source = "import numpy\ndef made(): return numpy.ones(1)\n"
    more = "def leak(): count[0] += 1\ndef test_it():\n    leak()\n    "
    result = outcome(suite, source + more + test + "\ndef test_other(): leak()")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_other - leaks 1*"])


def test_what_grows_by_itself_runs_once(suite: pytest.Pytester) -> None:
    source = """
        from hypothesis import given, strategies
        import trio
        def grow(): count[0] += 1
        @given(strategies.integers())
        def test_property(_): grow()
        def test_thread(): trio.to_thread and grow()
        def test_other(): grow()
    """
    result = outcome(suite, "\n".join(line[8:] for line in source.splitlines()))
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["FAILED *::test_other - leaks 1*"])


def test_a_leak_of_a_fixture_is_its_tests(suite: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.fixture
        def leaky():
            yield
            count[0] += 1
        def test_it(leaky): pass
        def test_other(): pass
    """
    result = outcome(suite, "\n".join(line[8:] for line in source.splitlines()))
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["FAILED *::test_it - leaks 1 *"])


def test_a_cache_that_fills_is_no_leak(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it():\n    runs.append(None)\n    count[0] += len(runs) < 5")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["5 runs of 1 tests*", "*references [[]1, 1, 1, 0]*"])


def test_what_goes_up_and_down_is_no_leak(suite: pytest.Pytester) -> None:
    result = outcome(
        suite,
        "def test_it():\n    runs.append(None)\n    count[0] += 9 if len(runs) % 3 else -4",
    )
    result.assert_outcomes(passed=1)


def test_most_tests_run_twice(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it(): pass\ndef test_other(): pass")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["4 runs of 2 tests*"])


def test_a_long_test_runs_less_often(suite: pytest.Pytester) -> None:
    suite.makeconftest(COUNTER + "import tests.lab.leaks as leaks\nleaks.LONG = 0\n")
    result = outcome(suite, "def test_it(): count[0] += 1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["4 runs of 1 tests*"])


def test_a_long_test_of_other_processes_runs_once(suite: pytest.Pytester) -> None:
    suite.makeconftest(COUNTER + "import tests.lab.leaks as leaks\nleaks.LONG = 0.3\n")
    busy = "import time; [None for _ in iter(lambda: time.process_time() < 1, False)]"
    result = outcome(
        suite,
        "import subprocess, sys\n"
        "def test_it():\n"
        f"    subprocess.run([sys.executable, '-c', {busy!r}], check=True)\n"
        "    count[0] += 1\n"
        "def test_other(): pass\n",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 runs of 1 tests*", "run only once*", "  *::test_it"])


def test_a_test_that_fails_the_second_time_fails(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it():\n    runs.append(None)\n    assert len(runs) < 2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["passes, but not when it is run again:", "*assert 2 < 2*"])


def test_a_test_that_fails_is_not_run_again(suite: pytest.Pytester) -> None:
    result = outcome(suite, "def test_it():\n    runs.append(None)\n    assert len(runs) > 1")
    result.assert_outcomes(failed=1)


def test_an_ordinary_python_is_refused(suite: pytest.Pytester) -> None:
    suite.makeconftest("count = [0]")
    result = outcome(suite, "def test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not a debug build of Python*"])
