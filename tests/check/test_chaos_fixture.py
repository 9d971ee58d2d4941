# SPDX-License-Identifier: MIT
"""The fixture rdma_chaos."""

from __future__ import annotations

import pytest

from cqnotify import Context

pytest_plugins = ["pytester"]

TESTS = """\
import errno
import os
import pytest
from cqnotify import CQ, CompletionChannel

def arms(ctx):
    with CompletionChannel(ctx) as channel, CQ(ctx, 4, channel=channel) as cq:
        for _ in range(50):
            try:
                cq.req_notify()
                yield 0
            except OSError as e:
                yield e.errno

def test_faults_are_made_within_the_block(rdma_context, rdma_chaos):
    with rdma_chaos(seed=1, faults="arm", rate=3):
        first = list(arms(rdma_context))
    assert set(first) == {0, errno.ENOMEM}
    assert set(arms(rdma_context)) == {0}
    assert "CQNOTIFY_CHAOS" not in os.environ
    with rdma_chaos(seed=1, faults="arm", rate=3):
        assert list(arms(rdma_context)) == first
    with rdma_chaos(seed=2, faults="arm", rate=3):
        assert list(arms(rdma_context)) != first

def test_values_are_checked(rdma_chaos):
    with pytest.raises(ValueError, match="rate is 1"), rdma_chaos(rate=1):
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p pytest_cqnotify\n")
    pytester.makepyfile(TESTS)
    return pytester


def test_faults_are_made_and_made_again(ctx: Context, suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("--rdma-check").assert_outcomes(passed=2)


def test_it_needs_the_observer(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*faults are made under the observer only, with --rdma-check*"])
    suite.runpytest_subprocess("--rdma-required").assert_outcomes(errors=2)
