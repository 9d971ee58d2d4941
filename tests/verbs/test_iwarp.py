# SPDX-License-Identifier: MIT
"""iWARP: its QPs are connected by rdma_cm, so verbs refuse at once, and what needs no peer works.

Where the devices are of another kind they say here that they are iWARP ones; what only a real one
shows is tested by `./lab --device siw test`, which runs the rest of the suite, too.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from ipaddress import IPv6Address

import pytest
from support import outstanding, wait_completions

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    BusyError,
    CompletionChannel,
    Context,
    QPAddress,
    QPState,
    QPType,
    TransportType,
    VerbsError,
    WCStatus,
    conformance,
    devices,
)
from cqnotify.cli import main
from cqnotify.testing import Endpoint, connect

REFUSAL = "{} is an iWARP device, whose QPs are connected by rdma_cm alone"
PEER = QPAddress(lid=0, qp_num=1, psn=0, gid=IPv6Address("fe80::1"))


@pytest.fixture
def iwarp(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Context:
    """The device, which says that it is an iWARP one, as does each of the list."""
    listed = [device._replace(transport_type=TransportType.IWARP) for device in devices()]
    monkeypatch.setattr(Context, "transport_type", TransportType.IWARP)
    monkeypatch.setattr("cqnotify.demo._run.devices", lambda: listed)
    return ctx


def test_a_context_tells_the_transport_that_the_list_tells(ctx: Context) -> None:
    assert ctx.transport_type is next(d for d in devices() if d.name == ctx.name).transport_type
    assert ctx.transport_type in (TransportType.IB, TransportType.IWARP)


@pytest.mark.parametrize(
    "step",
    [
        lambda qp: qp.address(),
        lambda qp: qp.address(gid_index=0),
        lambda qp: qp.connect(PEER),
        lambda qp: qp.to_rtr(PEER),
        lambda qp: qp.to_rts(),
    ],
    ids=["address", "address by index", "connect", "to_rtr", "to_rts"],
)
def test_each_step_of_a_connection_says_who_connects(
    iwarp: Context, step: Callable[[QP], object]
) -> None:
    with Endpoint(iwarp) as end:
        before = end.qp.state
        with pytest.raises(VerbsError) as e:
            step(end.qp)
        assert e.value.errno == errno.EOPNOTSUPP
        assert str(e.value) == f"[Errno {errno.EOPNOTSUPP}] {REFUSAL.format(iwarp.name)}"
        assert end.qp.state == before


def test_a_pair_is_connected_by_rdma_cm(iwarp: Context) -> None:
    with Endpoint(iwarp) as a, Endpoint(iwarp) as b:
        connect(a, b)
        assert a.connection is not None
        assert b.connection is not None
        assert a.connection.local == b.connection.peer
        b.qp.post_recv(b.mr)
        a.qp.post_send(a.mr[0:5])
        assert wait_completions(b.recv_cq)[0].byte_len == 5
    assert a.connection.error is not None


def test_two_devices_are_connected_over_the_cable_between_them(
    iwarp: Context, ctx2: Context
) -> None:
    with Endpoint(iwarp) as a, Endpoint(ctx2) as b:
        connect(a, b)
        assert a.connection is not None
        assert a.connection.device == iwarp.name
        assert a.connection.peer[0].startswith("fe80::")
        b.qp.post_recv(b.mr)
        a.qp.post_send(a.mr[0:5])
        assert wait_completions(b.recv_cq)[0].byte_len == 5


def test_a_pair_that_can_not_be_connected_says_why(iwarp: Context) -> None:
    with Endpoint(iwarp) as a, Endpoint(iwarp) as b, Endpoint(iwarp) as c:
        connect(a, b)
        with pytest.raises(ValueError, match="is in RTS: rdma_cm makes all transitions itself"):
            connect(a, c)
        with pytest.raises(ValueError, match="is in RTS: rdma_cm makes all transitions itself"):
            connect(c, a)


def test_conformance_is_measured_over_rdma_cm(iwarp: Context) -> None:
    chosen = [
        case
        for case in conformance.cases([QPType.RC])
        if case.operation == "SEND" and case.armed is conformance.Arm.ANY
    ]
    rows = conformance.measure(iwarp.name, chosen).rows
    outcomes = {row.case.outcome for row in rows}
    assert conformance.Outcome.SUCCESS in outcomes
    assert conformance.Outcome.NO_PEER not in outcomes, "TCP never says"
    assert all(
        row.events == row.expected_events and not row.deviations
        for row in rows
        if row.case.outcome is conformance.Outcome.SUCCESS and row.refusal is None
    )


def test_sequences_are_measured_over_rdma_cm(iwarp: Context) -> None:
    chosen = [
        sequence
        for sequence in conformance.sequences([QPType.RC])
        if sequence.name in ("armed while the CQ is full", "two CQs of a channel, both armed")
    ]
    rows = conformance.measure(iwarp.name, sequences=chosen).sequences
    assert [row.sequence for row in rows] == chosen
    for row in rows:
        assert (row.refusal, row.deviations) == (None, ()), row
        assert row.completed == row.posted


@pytest.mark.parametrize("command", ["pingpong", "pingpong 127.0.0.1", "demo"])
def test_a_command_that_needs_a_peer_is_exit_code_3_and_one_line(
    iwarp: Context, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *host = command.split()
    assert main([name, *host, "-d", iwarp.name]) == 3
    hint = ": use --rdma-cm" if name == "pingpong" else ""
    assert capsys.readouterr() == ("", f"cqnotify: {REFUSAL.format(iwarp.name)}{hint}\n")


# ---- without a peer -------------------------------------------------------------------------


def flushed(qp: QP, mr: MR, n: int) -> None:
    """Brings about n completions of receives."""
    qp.to_init()
    for wr_id in range(n):
        qp.post_recv(mr, wr_id=wr_id)
    qp.modify(qp_state=QPState.ERR)


def test_receives_are_flushed_in_their_order_and_wake(
    pd: PD, cq: CQ, channel: CompletionChannel
) -> None:
    with MR(pd, 64) as mr, QP(pd, QPType.RC, send_cq=cq) as qp:
        flushed(qp, mr, 5)
        found = wait_completions(cq, 5)
        assert [wc.wr_id for wc in found] == [0, 1, 2, 3, 4]
        assert {wc.status for wc in found} == {WCStatus.WR_FLUSH_ERR}
        assert outstanding(qp) == (0, 0)
        assert qp.state is QPState.ERR


@pytest.mark.parametrize("order", list(itertools.permutations(["qp", "srq", "cq", "mr"])))
def test_all_orders_close_at_last_with_an_event_unread(
    ctx: Context, order: tuple[str, ...]
) -> None:
    pd, channel = PD(ctx), CompletionChannel(ctx)
    cq, srq, mr = CQ(ctx, 16, channel=channel), SRQ(pd, 16), MR(pd, 64)
    parts = {"cq": cq, "srq": srq, "mr": mr, "qp": QP(pd, QPType.RC, send_cq=cq, srq=srq)}
    srq.post_recv(mr)
    with QP(pd, QPType.RC, send_cq=cq) as dead:
        cq.req_notify()
        flushed(dead, mr, 1)
        assert channel.get_event(timeout=30) is cq
        cq.ack()
        cq.req_notify()
    for name in order * len(order):
        with contextlib.suppress(BusyError):
            parts[name].close()
    assert all(part.closed for part in parts.values())
    channel.close()
    pd.close()
