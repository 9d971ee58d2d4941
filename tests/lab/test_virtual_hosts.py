# SPDX-License-Identifier: MIT
"""Several hosts under one virtual clock: what they do depends on the commands and the seed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from lab_runs import PATIENCE, PROJECT, built, lab

from cqnotify.lab import driver

PINGPONG = "ibv_rc_pingpong -e -d rxe0 -g 1 -n 50"
# A moment later, as a switched-on host is: the server's last acknowledgement can be lost for good,
# and it would send again for ever.
BOTH = f"if [ $CQNOTIFY_LAB_HOST = 1 ]; then {PINGPONG}; else sleep 1; {PINGPONG} host1; fi"
BAD_NET = "loss=5,reorder=5,duplicate=5,delay=1,jitter=3"


def on_hosts(*words: str) -> subprocess.CompletedProcess[bytes]:
    return lab("--virtual-time", "hosts", *words, timeout=PATIENCE * 5)


def summaries(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    return re.findall(r"lab: (seed .*)", result.stderr.decode())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--virtual-time", "hosts", "2", "--serve"], b"they run commands alone"),
        (["--uml", "hosts", "2", "--seeds", "3", "--", "true"], b"are for virtual time"),
        (["--uml", "hosts", "2", "--log", "x", "--", "true"], b"are for virtual time"),
        (["--virtual-time", "hosts", "2", "--", "true", "---"], b"2 hosts want a command each"),
        (["--uml", "hosts", "2", "--at", "1:kill=2", "--", "true"], b"are for virtual time"),
        (["--virtual-time", "hosts", "2", "--at", "1:cut=2", "--", "true"], b"not '1:cut=2'"),
        (["--virtual-time", "hosts", "2", "--at", "1:kill=3", "--", "true"], b"not '1:kill=3'"),
    ],
)
@built
def test_what_cannot_be_is_refused(words: list[str], text: bytes) -> None:
    result = lab(*words)
    assert result.returncode == 125
    assert text in result.stderr


@built
def test_the_same_seed_makes_the_same_frames_at_the_same_nanosecond(tmp_path: Path) -> None:
    """Any other makes others."""
    logs = [tmp_path / f"{number}" for number in range(3)]
    told = []
    for seed, log in zip(("7", "7", "8"), logs, strict=True):
        options = ["--seed", seed, "--net", BAD_NET, "--until", "100", "--log", str(log)]
        told.append(summaries(on_hosts("2", *options, "--", "sh", "-c", BOTH)))
    first, again, other = (log.read_text() for log in logs)
    assert first.count(" sends ") > 200
    assert first == again
    assert told[0] == told[1]
    assert first != other
    assert told[0] != told[2]


@built
def test_chance_is_the_seeds_too() -> None:
    script = "python3 -c 'import os; print(os.urandom(8), hash(str))'; mktemp -u"
    runs = [on_hosts("2", "--seed", seed, "--", "sh", "-c", script) for seed in ("1", "1", "2")]
    first, again, other = (sorted(run.stdout.splitlines()) for run in runs)
    assert len({line[3:] for line in first}) == 4  # of two hosts, none the same
    assert first == again
    assert not set(first) & set(other)


@built
def test_bytecode_is_there_before_and_no_host_writes_any() -> None:
    """Another process that wrote it would change the next run."""
    bytecode = Path(importlib.util.cache_from_source(driver.__file__))
    bytecode.unlink(missing_ok=True)
    result = on_hosts("1", "--", "python", "-c", "import sys; print(sys.dont_write_bytecode)")
    assert result.stdout == b"1| True\n"
    assert bytecode.exists()


@built
def test_all_hosts_have_one_clock_and_an_hour_takes_seconds() -> None:
    script = "sleep $((CQNOTIFY_LAB_HOST * 600)); cat /proc/uptime"
    result = on_hosts("4", "--", "sh", "-c", script)
    lines = sorted(result.stdout.decode().splitlines())
    for number, line in enumerate(lines, 1):
        assert re.match(rf"{number}\| {number * 600}\.", line)
    (told,) = summaries(result)
    assert 2399 < float(told.removeprefix("seed 0: ").partition(" ")[0]) < 2410


@built
def test_the_clock_of_a_host_is_fine_from_the_start() -> None:
    """asyncio asks once for its resolution, and calls everything so much earlier."""
    script = "import time; print(time.get_clock_info('monotonic').resolution)"
    result = on_hosts("2", "--", "python3", "-c", script)
    assert [line[3:] for line in result.stdout.splitlines()] == [b"1e-09"] * 2


@built
def test_a_command_that_fails_ends_the_others() -> None:
    result = on_hosts("2", "--", "sh", "-c", "sleep 2; exit 3", "---", "sleep", "infinity")
    assert result.returncode == 3


@built
def test_what_does_not_end_ends_after_a_virtual_time() -> None:
    result = on_hosts("2", "--until", "500", "--", "sleep", "infinity")
    assert result.returncode == 124
    assert b"not done after 500 s of virtual time" in result.stderr


@built
def test_of_many_seeds_those_that_fail_are_shown_and_fail_again_alone() -> None:
    script = "n=$(od -An -N1 -tu1 /dev/urandom); echo $n; test $n -lt 160"
    result = on_hosts("2", "--seed", "1", "--seeds", "8", "--", "sh", "-c", script)
    failed = summaries(result)
    assert f"{len(failed)} of 8 seeds failed" in result.stderr.decode()
    assert 0 < len(failed) < 8
    seed = failed[0].split(":")[0].removeprefix("seed ")
    assert summaries(on_hosts("2", "--seed", seed, "--", "sh", "-c", script)) == failed[:1]


@built
@pytest.mark.parametrize("net", ["loss=5", "loss=10", "reorder=20", "duplicate=20", BAD_NET])
def test_messages_arrive_once_and_in_order_whatever_the_network_does(net: str) -> None:
    """conversation.py looks at each. A connection may fail, but no completed send is lost."""
    program = str(PROJECT / "tests/lab/conversation.py")
    result = on_hosts("3", "--seed", "11", "--net", net, "--", "python", program, "20")
    assert result.returncode == 0, result.stderr
    for host in (2, 3):
        counts = [
            int(number)
            for word in ("completed", "received")
            for number in re.findall(rf"{word} (\d+) from host {host}".encode(), result.stdout)
        ]
        completed, received = counts
        assert 0 < completed <= received <= 20


@built
def test_a_link_that_is_cut_and_healed_delays_and_loses_nothing() -> None:
    program = str(PROJECT / "tests/lab/conversation.py")
    when = ["--at", "0.3:cut=1-2", "--at", "0.5:heal=1-2", "--net", "delay=20"]
    runs = [
        on_hosts("2", *options, "--", "python", program, "20")
        for options in (when, when, when[-2:])
    ]
    cut, again, whole = (summaries(run)[0] for run in runs)
    for run in runs:
        assert b"received 20" in run.stdout
    assert cut == again != whole


@built
def test_a_host_that_is_killed_is_silent_and_one_that_is_restarted_is_back() -> None:
    client = (
        "for i in 1 2 3 4 5 6 7 8; do sleep 1; ip neigh flush dev v0; "
        "python3 -c 'import socket; socket.create_connection((\"host2\", 5000), 0.5)' "
        "2>/dev/null && echo $i; done"
    )
    server = "exec python3 -m http.server -b 0.0.0.0 5000 2>/dev/null"
    result = on_hosts(
        "2", "--at", "3.5:kill=2", "--at", "5.5:restart=2", "--until", "30",
        "--", "sh", "-c", f"{client}; exit 9", "---", "sh", "-c", server,
    )  # fmt: skip
    assert result.stdout.split() == b"1| 1 1| 2 1| 3 1| 6 1| 7 1| 8".split()
    assert result.returncode == 9


@built
def test_a_run_waits_for_the_restart_of_a_host_that_is_off() -> None:
    when = ["--at", "2.5:kill=1", "--at", "2.6:kill=2", "--at", "4:restart=2"]
    result = on_hosts("2", *when, "--until", "30", "--", "sh", "-c", "echo up; sleep 3")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [b"1| up", b"2| up", b"2| up"]
    assert float(re.search(rb"seed 0: (\S+) s", result.stderr)[1]) > 7
