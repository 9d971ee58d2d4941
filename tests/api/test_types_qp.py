# SPDX-License-Identifier: MIT
"""Types of queue pairs, of enums, and of what is beside the core; see test_types.py."""

from __future__ import annotations

import socket
import threading
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

import pytest
from types_support import DEADLINE, Pair, exchange

from cqnotify import (
    AH,
    CQ,
    MR,
    MTU,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AsyncEvent,
    AsyncEventType,
    BusyError,
    CompletionChannel,
    Context,
    Device,
    QPAddress,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    SRQAttr,
    VerbsError,
    WCStatus,
    WorkCompletion,
    WROpcode,
)
from cqnotify.conformance import (
    Arm,
    Case,
    Deviation,
    Outcome,
    Queue,
    Report,
    Row,
    Sequence,
    SequenceRow,
    Step,
    cases,
    expected_in_sequence,
    measure,
    sequences,
)
from cqnotify.exchange import listen
from cqnotify.exchange.blocking import exchange_as_client, exchange_as_server
from cqnotify.testing import Endpoint, PairFactory, SendDestination, connect, wait_completions

if TYPE_CHECKING:
    from typing import assert_type
else:
    from runtime_types import assert_type

# ---- queue pairs --------------------------------------------------------------------------


def test_transitions(rdma_pd: PD, rdma_cq: CQ) -> None:
    qp = QP(rdma_pd, QPType.RC, send_cq=rdma_cq, max_send_wr=4, sq_sig_all=True, user_data=1)
    address = qp.address(port_num=1)
    assert_type(address, QPAddress)
    assert_type(address.gid, IPv6Address)
    assert_type(address.to_wire(), bytes)
    assert_type(QPAddress.from_wire(address.to_wire()), QPAddress)
    qp.to_init(access=AccessFlags.REMOTE_WRITE)
    qp.to_rtr(address, path_mtu=MTU.MTU_1024)
    qp.to_rts(ack_timeout=14)
    qp.modify(qp_state=QPState.ERR)
    qp.close()


def test_work_requests(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    receive = RecvWR(b.mr[:64])
    send = SendWR(
        a.mr[:8],
        opcode=WROpcode.SEND_WITH_IMM,
        imm_data=1,
        send_flags=SendFlags.SIGNALED | SendFlags.SOLICITED,
    )
    assert_type(receive, RecvWR)
    assert_type(send, SendWR)
    assert_type(send.wr_id, int)
    send.wr_id = receive.wr_id = 3
    b.qp.post_recv([receive, receive])
    a.qp.post_send(send)
    a.qp.post_send((send,))
    (wc, _) = wait_completions(b.recv_cq, 2)
    assert_type(wc.imm_data, int | None)
    try:
        b.qp.post_recv([receive] * 100_000)  # more than any device has room for
    except VerbsError as e:
        assert_type(e.errno, int | None)
        assert_type(e.verb, str)
        assert_type(e.posted, int)
        assert_type(e.bad_wr, SendWR | RecvWR | None)
    else:
        pytest.fail("it has room for all of them")


def test_datagrams(rdma_ud_pair: Pair) -> None:
    a, b = rdma_ud_pair
    assert_type(a.to_peer, SendDestination)
    (wc,) = exchange(a, b)
    assert_type(wc.src_qp, int | None)
    answer = AH.from_wc(b.pd, wc, b.mr.read(40))
    assert_type(answer, AH)
    assert_type(answer.pd, PD)
    gid = b.ctx.find_gid()
    assert_type(AH(b.pd, dgid=gid.gid, sgid_index=gid.index), AH)


def test_shared_receive_queue_and_its_event(rdma_context: Context) -> None:
    a, b = Endpoint(rdma_context), Endpoint(rdma_context)
    srq = SRQ(b.pd, 8, max_sge=1, user_data="mine")
    assert_type(srq, SRQ)
    assert_type(srq.pd, PD)
    assert_type(srq.context, Context)
    assert_type(srq.query(), SRQAttr)
    for number in (srq.max_wr, srq.max_sge, srq.outstanding, srq.query().srq_limit):
        assert_type(number, int)
    b.qp.close()
    b.qp = QP(b.pd, QPType.RC, send_cq=b.send_cq, recv_cq=b.recv_cq, srq=srq)
    assert_type(b.qp.srq, SRQ | None)
    connect(a, b)
    srq.post_recv(b.mr, wr_id=1)
    srq.post_recv([RecvWR(b.mr)])
    srq.modify(srq_limit=2)
    a.qp.post_send(a.mr[0:8])
    event = rdma_context.get_async_event(timeout=DEADLINE)
    while event.srq is None:  # a link that came up lately has left something
        event = rdma_context.get_async_event(timeout=DEADLINE)
    assert_type(event, AsyncEvent)
    assert_type(event.event_type, AsyncEventType | int)
    assert_type(event.srq, SRQ)
    assert_type(event.cq, CQ | None)
    assert_type(event.qp, QP | None)
    assert_type(event.port_num, int | None)
    assert_type(rdma_context.try_get_async_event(), AsyncEvent | None)
    with pytest.raises(BusyError):
        srq.close()


# ---- enums, and what is beside the core ----------------------------------------------------


def test_enums() -> None:
    assert_type(WCStatus(0), WCStatus)
    assert_type(WCStatus["SUCCESS"], WCStatus)
    assert_type(WCStatus.SUCCESS.value, int)
    assert_type(list(QPType), list[QPType])
    assert_type(MTU.MTU_4096.bytes, int)
    both = SendFlags.SIGNALED | SendFlags.SOLICITED
    assert_type(both, SendFlags)
    assert_type(both & ~SendFlags.SOLICITED, SendFlags)
    assert_type(SendFlags.SIGNALED in both, bool)


class MyEndpoint(Endpoint):
    """Users have their own."""


def test_endpoints(rdma_context: Context) -> None:
    with Endpoint(rdma_context, QPType.UC, cqe=16, max_send_wr=4) as one:
        assert_type(one, Endpoint)
        for part, kind in ((one.ctx, Context), (one.pd, PD), (one.mr, MR), (one.qp, QP)):
            assert isinstance(part, kind)
        assert_type(one.send_cq, CQ)
        assert_type(one.channel, CompletionChannel)
    a, b = MyEndpoint(rdma_context, one_cq=True), MyEndpoint(rdma_context, size=4096)
    assert_type(connect(a, b, path_mtu=1024, ack_timeout=10), tuple[MyEndpoint, MyEndpoint])
    assert_type(exchange(a, b), list[WorkCompletion])


def test_fixtures(
    rdma_device2: Device, rdma_context2: Context, rdma_mr: MR, rdma_uc_pair: Pair
) -> None:
    assert_type(rdma_device2, Device)
    assert_type(rdma_context2, Context)
    assert_type(rdma_mr, MR)
    assert_type(rdma_uc_pair[0], Endpoint)


def test_pairs(rdma_pair: PairFactory) -> None:
    assert_type(rdma_pair(), tuple[Endpoint, Endpoint])
    a, b = rdma_pair(QPType.RC, two_devices=True, size=64, max_send_wr=4, ack_timeout=10)
    assert_type(exchange(a, b), list[WorkCompletion])


def test_addresses_are_exchanged(rdma_rc_pair: Pair) -> None:
    # The MTU is not sent.
    ours, theirs = (end.qp.address()._replace(mtu=None) for end in rdma_rc_pair)
    got: list[QPAddress | list[QPAddress]] = []
    with listen(port=0) as listener:
        assert_type(listener, socket.socket)
        port: Any = listener.getsockname()[1]

        def serve() -> None:
            one = exchange_as_server(listener, ours, got.append, timeout=DEADLINE)
            several = exchange_as_server(listener, [ours], got.append, timeout=DEADLINE)
            assert_type(one, QPAddress)
            assert_type(several, list[QPAddress])
            got.extend([one, several])

        server = threading.Thread(target=serve)
        server.start()
        one = exchange_as_client("127.0.0.1", port, theirs, timeout=DEADLINE)
        several = exchange_as_client("127.0.0.1", port, [theirs], timeout=DEADLINE)
        server.join(DEADLINE)
    assert_type(one, QPAddress)
    assert_type(several, list[QPAddress])
    assert got == [theirs, [theirs], theirs, [theirs]]


def test_conformance(rdma_device: Device) -> None:
    case = next(cases())
    assert_type(case, Case)
    assert_type(case.outcome, Outcome)
    assert_type(case.armed, Arm)
    report = measure(rdma_device, [case])
    assert_type(report, Report)
    assert_type(report.rows, tuple[Row, ...])
    assert_type(report.rows[0].queue, Queue)
    assert_type(report.rows[0].statuses, tuple[WCStatus | int, ...])
    sequence = next(sequences())
    assert_type(sequence, Sequence)
    assert_type(sequence.steps, tuple[Step, ...])
    assert_type(expected_in_sequence(sequence), tuple[int | None, ...])
    (row,) = measure(rdma_device, sequences=[sequence]).sequences
    assert_type(row, SequenceRow)
    assert_type(row.events, tuple[int, ...])
    assert_type(row.deviations, tuple[Deviation, ...])
