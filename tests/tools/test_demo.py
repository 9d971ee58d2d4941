# SPDX-License-Identifier: MIT
"""The demo, as a user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_support import (
    LIMIT,
    command,
    cqnotify,
    each_signal,
    in_lab,
    outcome,
    read_terminal,
    started,
)
from support import until

MESSAGES = 160
FEW = ("--messages", "16", "--interval", "60")  # of which none is missed on a busy machine


def queue_disciplines() -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return subprocess.check_output(["tc", "qdisc"], text=True, env={"PATH": path})


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The demo's own figures, from one run for all tests of this file."""
    done = cqnotify("demo", "--json", "--messages", MESSAGES, timeout=LIMIT)
    assert done.returncode == 0, (done.stdout, done.stderr)  # the problems stand in the figures
    return json.loads(done.stdout)


def result(figures: dict[str, Any], traffic: str, receiver: str) -> dict[str, Any]:
    (found,) = [
        r for r in figures["results"] if (r["traffic"], r["receiver"]) == (traffic, receiver)
    ]
    return found


@in_lab
def test_all_messages_arrive_in_every_way(figures: dict[str, Any]) -> None:
    assert figures["ok"]
    assert len(figures["results"]) == 6
    assert {r["messages"] for r in figures["results"]} == {MESSAGES}
    assert figures["device"] != figures["peer_device"]


@in_lab
@pytest.mark.parametrize(
    ("traffic", "receiver"),
    [
        ("ibv_rc_pingpong", "asyncio"),
        ("ibv_rc_pingpong", "blocking"),
        ("paced stream", "asyncio"),
    ],
)
def test_a_receiver_sleeps_for_every_message(
    figures: dict[str, Any], traffic: str, receiver: str
) -> None:
    """On a busy machine some come before it sleeps; it never polls again and again."""
    sleeping = result(figures, traffic, receiver)
    assert MESSAGES / 4 <= sleeping["wakeups"] <= sleeping["events"] <= MESSAGES
    assert sleeping["polls"] <= 4 * MESSAGES


@in_lab
def test_solicited_messages_alone_wake(figures: dict[str, Any]) -> None:
    solicited = result(figures, "paced stream", "asyncio, solicited only")
    assert solicited["wakeups"] == solicited["events"]
    # A guest that stalls for longer than a group takes can sleep through some, never wake more.
    assert 1 <= solicited["wakeups"] <= MESSAGES // 16


@in_lab
@pytest.mark.parametrize("traffic", ["ibv_rc_pingpong", "paced stream"])
def test_busy_polling_never_sleeps(figures: dict[str, Any], traffic: str) -> None:
    busy = result(figures, traffic, "busy polling")
    assert busy["events"] == busy["wakeups"] == busy["arms"] == 0
    assert busy["polls"] > 10 * MESSAGES


@in_lab
def test_the_wire_is_as_before(figures: dict[str, Any]) -> None:
    assert figures["wire_delay"]
    assert "netem" not in queue_disciplines()


@in_lab
def test_the_table_is_aligned_and_says_what_it_means() -> None:
    done = cqnotify("demo", *FEW, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == begins(16), "more progress is for terminals"
    blocks = [block.splitlines() for block in done.stdout.split("\n\n")]
    title, table, conclusions = blocks
    assert len(title) == 1
    assert len(table) == 2 + 6 + 1
    assert len({len(line) for line in table[:-1]}) == 1
    assert "spurious" in table[-1]
    assert len(conclusions) == 4
    assert all("busy polling took" in sentence for sentence in conclusions)


@pytest.mark.usefixtures("conversation")
@in_lab
@each_signal
def test_a_signal_ends_it_cleanly(number: signal.Signals, code: int) -> None:
    with started(command("demo", "--messages", "100000")) as process:
        until(lambda: peers(process.pid) != [], "the peer runs")
        (peer,) = peers(process.pid)
        before = sent_packets()
        until(lambda: sent_packets() > before + 20, "messages flow")
        process.send_signal(number)
        assert outcome(process) == (code, "", begins(100000))
    assert not Path(f"/proc/{peer}").exists()
    assert "netem" not in queue_disciplines()


@pytest.mark.usefixtures("conversation")
@in_lab
def test_a_terminal_shows_each_run_from_its_first_message_on() -> None:
    master, slave = pty.openpty()
    with started(command("demo", *FEW), stderr=slave) as process:
        os.close(slave)
        lines = read_terminal(master).split("\r")
        assert process.wait(LIMIT) == 0
    assert lines[1] == "run 1 of 6 (ibv_rc_pingpong, asyncio), messages: 0 of 16\033[K"
    assert lines[-1] == "\033[K", "the line is cleared at the end"
    assert {line[: len("run 1 of 6")] for line in lines[1:-1]} == {
        f"run {n} of 6" for n in range(1, 7)
    }


def begins(messages: int) -> str:
    """What is said of progress where stderr is no terminal."""
    return (
        f"cqnotify: run 1 of 6 (ibv_rc_pingpong, asyncio) begins; each has {messages} messages, "
        "the figures come after the last\n"
    )


def sent_packets() -> int:
    counters = Path("/sys/class/infiniband").glob("rxe*/ports/1/hw_counters/sent_pkts")
    return sum(int(counter.read_text()) for counter in counters)


def peers(pid: int) -> list[int]:
    """The demo's children that are a peer, not a short-lived helper."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "ibv_rc_pingpong":
                found.append(int(child))
    return found
