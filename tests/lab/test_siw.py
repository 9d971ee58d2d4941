# SPDX-License-Identifier: MIT
"""The other kind of device, Soft-iWARP: what `--device siw` makes, and what a real one does that
Soft-RoCE does not. That needs a kernel that runs as a process: see uml.py."""

from __future__ import annotations

import re
import subprocess

import pytest
from lab_runs import PATIENCE, PROJECT, built, lab

DIFFERS = """
from cqnotify import *

def error_of(call):
    try:
        call()
    except (VerbsError, ValueError) as e:
        return getattr(e, "errno", None), str(e)

with Context() as ctx:
    pd = PD(ctx)
    cq, mr = CQ(ctx, 16), MR(pd, 64)

    def states(*wanted):
        qp = QP(pd, QPType.RC, send_cq=cq)
        return [(qp.modify(qp_state=state), qp.state)[1].name for state in wanted]

    print(QP(pd, QPType.RC, send_cq=cq).state.name)
    print(*states(QPState.RTR, QPState.SQD, QPState.ERR, QPState.RESET))
    print(error_of(lambda: states(QPState.RTS))[0])
    qp = QP(pd, QPType.RC, send_cq=cq)
    qp.to_init()
    print(*error_of(lambda: qp.post_recv([])))
    qp.modify(qp_state=QPState.ERR)
    qp.post_recv(mr)
    print(qp.outstanding_recvs, cq.poll())
    print(*error_of(lambda: SRQ(pd, 8).query()))
    print(*error_of(lambda: cq.resize(32)))
    print(*error_of(lambda: AH(pd, dlid=1)))
    print(error_of(lambda: ctx.query_pkey(0))[1])
    print(QP(pd, QPType.RC, send_cq=cq, max_inline_data=80).max_inline_data)
    print(error_of(lambda: QP(pd, QPType.RC, send_cq=cq, max_inline_data=81))[0])
    cqs = []
    print(*error_of(lambda: [cqs.append(CQ(ctx, 4)) for _ in range(200)]))
    print(len(cqs) < 144)
"""
DIFFERENCES = """\
INIT
INIT INIT ERR ERR
22
22 [Errno 22] ibv_post_recv: Invalid argument: QP 1: few iWARP devices have immediate data or \
invalidation, and some no receives without memory
1 []
95 [Errno 95] ibv_query_srq: not supported by this device
95 [Errno 95] ibv_resize_cq: not supported by this device: from 16 to 32 entries
95 [Errno 95] ibv_create_ah: not supported by this device: an iWARP device sends no datagrams
port 1 has no P_Key at any index
80
22
12 [Errno 12] ibv_create_cq: the device's provider failed and did not say why: 4 entries
True
"""


def on_siw(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab("--uml", "--device", "siw", *words, **options)


@built
def test_there_are_two_active_devices_on_the_two_ends_of_the_cable() -> None:
    result = on_siw("run", "cqnotify", "devices")
    text = result.stdout.decode()
    assert re.findall(r"^(\w+): RNIC, IWARP", text, re.M) == ["siw0", "siw1"]
    assert text.count("port 1: ACTIVE") == 2
    assert re.findall(r"gid 0: \S+  IB  (\w+)", text) == ["v0", "v1"]


@built
@pytest.mark.parametrize("command", ["demo", "run -- cqnotify pingpong", "run -- cqnotify demo"])
def test_what_exchanges_addresses_is_refused_in_one_line(command: str) -> None:
    result = on_siw(*command.split())
    assert result.returncode == 3
    last = result.stderr.splitlines()[-1]
    words = b"cqnotify: siw0 is an iWARP device, whose QPs are connected by rdma_cm alone"
    assert last == words + (b": use --rdma-cm" if "pingpong" in command else b"")


@built
def test_it_differs_from_soft_roce_as_the_page_says() -> None:
    result = on_siw("run", "python", "-c", DIFFERS)
    assert result.returncode == 0, result.stderr
    lines = re.sub(r"QP \d+", "QP 1", result.stdout.decode())
    assert lines.replace(", comp_vector 0", "") == DIFFERENCES


ORDER = """
from cqnotify import *
from cqnotify.testing import Endpoint, connect, wait_completions

with Context() as ctx, Endpoint(ctx, max_send_wr=32) as a, Endpoint(ctx) as b:
    connect(a, b)
    there = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey}
    wrs = []
    for i in range(0, 16, 2):
        wrs.append(SendWR(a.mr[:64], wr_id=i, opcode=WROpcode.RDMA_READ, **there))
        wrs.append(SendWR(a.mr[:64], wr_id=i + 1, opcode=WROpcode.RDMA_WRITE, **there))
    a.qp.post_send(wrs)
    for i, wr in enumerate(wrs):
        a.qp.post_send(wr)
    wcs = wait_completions(a.send_cq, 32)
    print([wc.wr_id for wc in wcs] == 2 * list(range(16)), {wc.ok for wc in wcs})
with Context() as ctx, Endpoint(ctx, max_send_wr=4) as a, Endpoint(ctx) as b:
    connect(a, b)
    for _ in range(8):
        b.qp.post_recv(b.mr)
    try:
        a.qp.post_send([SendWR(a.mr[:8]) for _ in range(8)])
    except VerbsError as e:
        print(e.errno, e.posted, a.qp.outstanding_sends, len(wait_completions(a.send_cq, e.posted)))
"""


@built
def test_completions_come_in_order_and_a_full_queue_is_an_error() -> None:
    result = on_siw("run", "python", "-c", ORDER)
    assert result.stdout.decode() == "True {True}\n12 4 4 4\n", result.stderr


@built
def test_conformance_is_as_the_page_says() -> None:
    command = ("env", "COLUMNS=100", "cqnotify", "conformance", "--type", "rc")
    result = on_siw("--virtual-time", "run", *command, timeout=5 * PATIENCE)
    assert result.returncode == 0, result.stderr
    page = (PROJECT / "docs" / "conformance-tables.md").read_text()
    tables = re.findall(r"^```\n(siw0 on .*?)^```$", page, re.M | re.S)
    assert len(tables) == 2, "the cases, and the sequences"
    found = result.stdout.decode()
    both = "".join(tables)
    told, measured = (re.sub(r"QP \d+|\s+", " ", text).split() for text in (both, found))
    assert measured == told


@built
def test_tests_pass_there_and_what_the_device_cannot_do_is_skipped() -> None:
    names = ("verbs/test_iwarp", "verbs/test_context", "verbs/test_mr", "notify/test_cq")
    names += ("work/test_post", "work/test_post_refused", "api/test_arguments", "base/test_closed")
    names += ("notify/test_channel", "aio/test_completion", "cm/test_cm_refused")
    files = [f"tests/{name}.py" for name in names]
    result = on_siw("test", "-j", "1", "-q", *files, timeout=5 * PATIENCE)
    assert result.returncode == 0
    (passed, skipped) = re.findall(rb"^(\d+) passed, (\d+) skipped in", result.stdout, re.M)[0]
    assert int(passed) > 2 * int(skipped) > 0
