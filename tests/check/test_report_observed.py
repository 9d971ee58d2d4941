# SPDX-License-Identifier: MIT
"""The command and the plugin with the observer itself, on a device."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE, python

from cqnotify import Context

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("ctx")

HEAD = """\
from cqnotify import Context
from cqnotify.testing import Endpoint, connect, wait_completions

def message(a, b):
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:5])
    wait_completions(a.send_cq)[0].raise_for_status()
"""
ON_DEVICE = (
    HEAD
    + """
with Context() as ctx:
    a, b = connect(Endpoint(ctx), Endpoint(ctx))
    message(a, b)
"""
)
RIGHT = ON_DEVICE + "    wait_completions(b.recv_cq)[0].raise_for_status()\n"
# A wait that cannot end: the message came before the arm.
WRONG = (
    ON_DEVICE
    + "    b.recv_cq.req_notify()\n    print('asleep', flush=True)\n    b.channel.get_event()\n"
)


def test_a_right_program_is_clean_and_what_it_did_is_counted(ctx: Context, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = python("-m", "cqnotify", "check", "--json", str(file), sys.executable, "-c", RIGHT)
    assert (done.returncode, done.stdout) == (0, "")
    assert "cqnotify check: 0 errors, 0 warnings; " in done.stderr
    counts = json.loads(file.read_text())["counts"]
    assert counts["cqs"] == 4
    assert counts["completions"] == 2
    assert counts["polls"] >= 2
    assert counts["events"] == counts["acks"]


def test_a_lost_wakeup_is_told_while_the_program_hangs(ctx: Context) -> None:
    command = [sys.executable, "-m", "cqnotify", "check", sys.executable, "-c", WRONG]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ours:
        try:
            said = ""
            while "What to do" not in said:
                assert ours.stderr is not None
                line = ours.stderr.readline()
                assert line, said
                said += line
            assert "[lost-wakeup]" in said
            assert "CQ 4 holds 1 completion that nobody polls" in " ".join(said.split())
            ours.send_signal(signal.SIGINT)  # which ends the wait, with a KeyboardInterrupt
            ours.communicate(timeout=DEADLINE)
        finally:
            ours.kill()
    assert ours.returncode == 66


def test_a_suite_of_right_tests_passes_under_the_observer(
    ctx: Context, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p pytest_cqnotify\n")
    pytester.makepyfile(
        HEAD
        + """
def test_a_message_arrives(rdma_rc_pair):
    a, b = rdma_rc_pair
    message(a, b)
    wait_completions(b.recv_cq)[0].raise_for_status()

def test_it_may_be_left_where_it_is(rdma_rc_pair):
    message(*rdma_rc_pair)
"""
    )
    result = pytester.runpytest_subprocess("--rdma-check")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["rdma: under the observer of cqnotify check"])
