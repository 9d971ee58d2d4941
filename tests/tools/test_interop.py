# SPDX-License-Identifier: MIT
"""Ping-pongs with rdma-core's own programs, in either role, asleep and polling.

Every message is checked: a client of ours has each of them sent back, all different; a server of
ours knows what a client with -c sends; and a server with -c looks for itself at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from cli_support import command, figures, outcome, server, started

from cqnotify import Context

ITERS = {True: 1000, False: 200}  # asleep, and polling: on one CPU that goes by turns
# The MTU is 1024. Each size goes with one way of sleeping in each role.
SIZES = {
    "rc": (1, 4096, 1025, 65536),
    "uc": (64, 1025, 4096, 1023),
    "ud": (1, 1024, 1023, 64),
    "srq": (1025, 4096, 64, 1),
}
CASES = [
    (service, client, sleeps, SIZES[service][2 * client + sleeps])
    for service in SIZES
    for client in (False, True)
    for sleeps in (False, True)
]


def name(case: tuple[str, bool, bool, int]) -> str:
    service, client, sleeps, size = case
    role = "our client" if client else "our server"
    return f"{service}, {role}, {'asleep' if sleeps else 'polling'}, {size} bytes"


@contextlib.contextmanager
def ours_goes_first(sleeps: bool) -> Iterator[None]:
    """On one CPU: the peer, which has the usual policy, runs only while our program sleeps.

    There it would otherwise answer, if the scheduler likes, before our program had to sleep at all.
    """
    if not sleeps or len(os.sched_getaffinity(0)) > 1:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # for what is started, too
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_pingpong_with_rdma_core(
    ctx: Context, free_port: int, case: tuple[str, bool, bool, int]
) -> None:
    service, client, sleeps, size = case
    program = shutil.which(f"ibv_{service}_pingpong")
    assert program is not None
    common = ["-d", ctx.name, "-n", str(ITERS[sleeps]), "-s", str(size), "-c", *["-e"] * sleeps]
    theirs = ["chrt", "--other", "0", program, "-g", str(ctx.find_gid().index), *common]
    ours = ["--type", service, "--json", *common]
    if client:
        port = str(free_port)
        with (
            ours_goes_first(sleeps),
            started([*theirs, "-p", port]) as peer,
            started(command("pingpong", *ours, "-p", port, "127.0.0.1")) as us,
        ):
            found = figures(*outcome(us))
            said = outcome(peer)
    else:
        with (
            ours_goes_first(sleeps),
            server(*ours) as (us, tcp),
            started([*theirs, "-p", str(tcp), "127.0.0.1"]) as peer,
        ):
            said = outcome(peer)
            found = figures(*outcome(us))
    check_theirs(case, said, found)
    check_ours(case, found)


def check_theirs(
    case: tuple[str, bool, bool, int], said: tuple[int, str, str], ours: dict[str, Any]
) -> None:
    _, _, sleeps, size = case
    iters = ITERS[sleeps]
    code, out, err = said
    assert (code, err) == (0, "")
    assert "invalid data" not in out
    assert f"{2 * iters * size} bytes in" in out
    assert f"{iters} iters in" in out
    for side, of in (("local", ours["remote"]), ("remote", ours["local"])):
        told = re.findall(rf"^  {side} address:.*QPN 0x([0-9a-f]+), PSN 0x([0-9a-f]+)", out, re.M)
        assert [(int(qpn, 16), int(psn, 16)) for qpn, psn in told] == [
            (address["qp_num"], address["psn"]) for address in of
        ]


def check_ours(case: tuple[str, bool, bool, int], found: dict[str, Any]) -> None:
    service, client, sleeps, size = case
    iters = ITERS[sleeps]
    assert found["role"] == ("client" if client else "server")
    assert (found["type"], found["size"], found["iters"]) == (service, size, iters)
    assert found["bytes"] == 2 * iters * size
    qps = 16 if service == "srq" else 1
    assert len(found["local"]) == len(found["remote"]) == qps
    # With several QPs some messages more can be under way when it is over.
    assert iters <= found["checked"] < iters + qps
    latency = found["latency"]
    assert latency["count"] == found["checked"] - (0 if client else qps)
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    assert sum(bucket["samples"] for bucket in found["histogram"]) == latency["count"]
    if not sleeps:
        assert found["events"] == found["wakeups"] == 0
        return
    assert found["events"] > 0
    if qps == 1:
        # Nothing more comes after what was polled, until an answer is sent, or a send done: each
        # message has an event at least. Where both come while it is awake it need not sleep.
        assert 1 <= found["events_per_iter"] <= 2.1
        assert 0 < found["wakeups"] <= found["events"]
    else:  # with so many under way the next one may always be there
        assert found["wakeups"] <= found["events"]
