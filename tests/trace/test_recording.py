# SPDX-License-Identifier: MIT
"""`cqnotify trace -- PROGRAM` on a device: what the observer records, read and counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import python

from cqnotify import Context
from cqnotify.trace import build, read

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
    # A poll and what it handed out may be one record.
    assert 1000 <= process["records"] <= 1000 + process["completions"]
    assert process["lost"] > 1000


TASKS = """
import anyio

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType
from cqnotify.aio import AsyncCQ


async def receive(acq, qp, mr):
    for _ in range(ROUNDS):
        await acq.recv(qp, mr)


async def send(acq, qp, mr):
    for _ in range(ROUNDS):
        await anyio.sleep(0.001)  # in which the loop sleeps
        await acq.send(qp, mr)


async def main(run, ctx):
    pd = PD(ctx)
    channel = CompletionChannel(ctx)
    sends, receives = (CQ(ctx, 64, channel=channel) for _ in range(2))
    a, b = (QP(pd, QPType.RC, send_cq=sends, recv_cq=receives) for _ in range(2))
    a.connect(b.address())
    b.connect(a.address())
    mr = MR(pd, 4096)
    async with AsyncCQ(sends) as sender, AsyncCQ(receives) as receiver:
        await run(receive(receiver, b, mr[:64]), send(sender, a, mr[64:128]))
"""
ASYNCIO = """
import asyncio


async def run(receiving, sending):
    receiver = asyncio.create_task(receiving, name="the receiver")
    await asyncio.gather(receiver, asyncio.create_task(sending, name="the sender"))


with Context() as ctx:
    asyncio.run(main(run, ctx))
"""
TRIO = """
import trio


async def run(receiving, sending):
    async def of(coroutine):
        await coroutine

    async with trio.open_nursery() as nursery:
        nursery.start_soon(of, receiving, name="the receiver")
        nursery.start_soon(of, sending, name="the sender")


with Context() as ctx:
    trio.run(main, run, ctx)
"""


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("library", ["asyncio", "uvloop", "trio"])
def test_the_tasks_of_a_program_have_rows(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    program = TASKS + (TRIO if library == "trio" else ASYNCIO)
    if library == "uvloop":
        program = program.replace("asyncio.run(", "import uvloop; uvloop.run(")
    (tmp_path / "program.py").write_text(program.replace("ROUNDS", str(ROUNDS)))
    words = f"-m cqnotify trace --keep logs -- {sys.executable} program.py".split()
    done = python(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recording, *_ = read(tmp_path / "logs")
    (process,) = build([recording]).processes
    lanes = {row.name: row.lanes[0] for row in process.rows if row.kind == "task"}
    receiver = lanes["the receiver"].spans  # a sender may find its completion without a sleep
    assert len(receiver) == ROUNDS  # it sleeps once a message: no send came before its receive
    assert {span.text for span in receiver} == {"the receiver awaits recv() of CQ 2"}
    assert not any(span.open for span in receiver)
    summary = process.summary.as_dict()
    assert 0 < summary["wakeups"] <= summary["sleeps"]  # of the loop, in poll() or epoll_wait()
    assert summary["gaps"]["event to task"]["count"] > 0
