# SPDX-License-Identifier: MIT
"""again.py, by tests that fail once, or always."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

HERE = Path(__file__).resolve().parent


def outcome(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    suite.makepyfile("import pytest\nruns = []\n" + source)
    return str(suite.runpytest_subprocess("-p", "again", "-p", "no:cacheprovider").stdout)


def test_one_that_passes_then_is_flaky(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
@pytest.fixture
def it():
    runs.append(1)
    assert len(runs) != 3
def test_it(it):
    assert len(runs) > 1
def test_of_a_fixture(it):
    pass
"""
    said = outcome(pytester, monkeypatch, text)
    assert "2 passed, 2 flaky" in said
    assert "FLAKY test_one_that_passes_then_is_flaky.py::test_it\n" in said
    assert "assert 1 > 1" in said
    assert "FLAKY test_one_that_passes_then_is_flaky.py::test_of_a_fixture\n" in said


def test_a_failure_that_stays_is_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = outcome(
        pytester, monkeypatch, "def test_it():\n    runs.append(1)\n    assert runs == 0"
    )
    assert "assert [1, 1] == 0" in said
    assert "1 failed in" in said
    assert "flaky" not in said
