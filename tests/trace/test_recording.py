# SPDX-License-Identifier: MIT
"""`cqnotify trace -- PROGRAM` on a device: what the observer records, read and counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import python

from cqnotify import Context

pytestmark = pytest.mark.not_on_iwarp("its QPs are connected by rdma_cm alone")

ROUNDS = 20
PROGRAM = f"""
from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType

with Context() as ctx:
    pd = PD(ctx)
    channel = CompletionChannel(ctx)
    sends, receives = CQ(ctx, 64), CQ(ctx, 64, channel=channel)
    a, b = (QP(pd, QPType.RC, send_cq=sends, recv_cq=receives) for _ in range(2))
    a.connect(b.address())
    b.connect(a.address())
    mr = MR(pd, 4096)
    for number in range({ROUNDS}):
        b.post_recv(mr, wr_id=number)
        assert receives.arm_if_empty()
        a.post_send(mr[:8], wr_id=number)
        channel.get_event(timeout=60)
        (completion,) = receives.poll(4)
        while not sends.poll(4):
            pass
"""


@pytest.mark.usefixtures("ctx")
def test_a_program_is_recorded_as_it_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = f"-m cqnotify trace --json --chrome a.json -- {sys.executable} program.py".split()
    done = python(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    assert process["command"] == f"{sys.executable} program.py"
    assert process["lost"] == process["unfinished"] == 0
    found = {
        name: process[name] for name in ("completions", "events", "acked", "spurious", "failed")
    }
    rounds = {"events": ROUNDS, "acked": ROUNDS, "completions": 2 * ROUNDS}
    assert found == {**rounds, "spurious": 0, "failed": 0}
    assert process["arms"] >= ROUNDS
    assert process["gaps"]["no event until polled"]["count"] == 0
    assert [f for f in process["findings"] if "lost-wakeup" in f["finding"]] == []
    tracks = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in tracks if event["name"] == "thread_name"}
    assert {"CQ 1: calls", "CQ 2: calls", "CQ 2: armed", "QP 1: requests"} <= names
    assert (tmp_path / "trace.html").exists()


def test_a_ring_keeps_the_last_records(ctx: Context, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace(f"range({ROUNDS})", "range(500)"))
    words = (
        f"-m cqnotify trace --summary --json --records 1000 -- {sys.executable} program.py".split()
    )
    done = python(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (process,) = json.loads(done.stdout)["processes"]
    assert process["records"] == 1000
    assert process["lost"] > 1000
