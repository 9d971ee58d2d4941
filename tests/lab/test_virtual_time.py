# SPDX-License-Identifier: MIT
"""A clock that leaps over idle time; needs a kernel that runs as a process, see test_uml.py."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time

import pytest
from lab_runs import LAB, PATIENCE, built, lab, speaking

SLOWEST = 600  # seconds that an hour in the guest may take here


def in_virtual_time(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab("--virtual-time", "run", *words, **options)


def in_shell(script: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A script that has said "up"; it has an input."""
    command = [LAB, "--virtual-time", "run", "sh", "-c", script]
    return speaking(*command, said=b"up\n", stdin=subprocess.PIPE)


WAITS = """
import asyncio, json, time
from cqnotify import Context, QPType
from cqnotify.testing import Endpoint, connect

def clocks():
    return [clock() for clock in (time.monotonic, time.time, time.perf_counter)]

def took(wait):
    before = clocks()
    wait()
    return [after - first for first, after in zip(before, clocks())]

def no_event(channel):
    try:
        channel.get_event(timeout=300)
    except TimeoutError:
        return
    raise SystemExit("an event came from nowhere")

with Context() as ctx, Endpoint(ctx) as a, Endpoint(ctx) as b:
    connect(a, b)
    b.recv_cq.req_notify()
    result = [took(lambda: no_event(b.channel))]
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:5])
    assert b.channel.get_event(timeout=5) is b.recv_cq
    result.append(took(lambda: asyncio.run(asyncio.sleep(3600))))
print(json.dumps(result))
"""


@built
def test_waits_of_an_hour_end_at_once_and_all_clocks_agree() -> None:
    start = time.monotonic()
    result = in_virtual_time("python", "-c", WAITS)
    real = time.monotonic() - start
    assert result.returncode == 0, result.stderr
    for wanted, clocks in zip((300, 3600), json.loads(result.stdout), strict=True):
        assert all(wanted <= seconds < wanted + 5 for seconds in clocks)
    assert real < SLOWEST


@built
def test_a_sleeping_program_is_woken_by_input() -> None:
    """With nothing else to do the guest leaps from tick to tick, and must still hear the lab."""
    with in_shell("echo up; while read -r line; do echo got $line; done") as process:
        assert process.stdin
        assert process.stdout
        for word in (b"one\n", b"two\n"):
            process.stdin.write(word)
            process.stdin.flush()
            assert process.stdout.readline() == b"got " + word
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@built
def test_interrupting_ends_the_command() -> None:
    with in_shell("echo up; exec sleep infinity") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT


@built
def test_the_exit_status_is_the_commands() -> None:
    assert in_virtual_time("sh", "-c", "sleep 600; exit 37").returncode == 37


@built
@pytest.mark.parametrize(
    ("timeout", "command", "status"), [(60, "sleep 600", 0), (5, "sleep infinity", 124)]
)
def test_the_labs_own_deadlines_are_in_real_seconds(
    timeout: int, command: str, status: int
) -> None:
    result = lab("--virtual-time", "--timeout", str(timeout), "run", *command.split())
    assert result.returncode == status


@built
@pytest.mark.parametrize(
    "computing",
    ["while :; do :; done", "python -c 'import time\nwhile True: time.monotonic()'"],
    ids=["asks for nothing", "reads the clock"],
)
def test_a_program_that_computes_does_not_hold_the_clock(computing: str) -> None:
    """While it does, the clock goes as ours: a sleeper beside it wakes in time."""
    script = f"sleep 1; ({computing}) & sleep 3; kill $!"
    start = time.monotonic()
    assert in_virtual_time("sh", "-c", script).returncode == 0
    assert 3 < time.monotonic() - start < PATIENCE
