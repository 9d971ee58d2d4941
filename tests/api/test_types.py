# SPDX-License-Identifier: MIT
"""What users do has the types that it is said to have: for type checkers, which read these tests,
and on a device, where each value is looked at. test_types_aio.py is the same for cqnotify.aio."""

from __future__ import annotations

import array
import mmap
import socket
import threading
from contextlib import suppress
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from cqnotify import (
    AH,
    CQ,
    MR,
    MTU,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AccessFlags,
    AHAttr,
    AsyncEvent,
    AsyncEventType,
    AtomicCap,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    CQModerationCaps,
    CQStats,
    Device,
    DeviceAttr,
    DeviceAttrEx,
    DeviceCapFlags,
    FailureWatch,
    GIDEntry,
    GIDType,
    LinkLayer,
    MigState,
    MWType,
    NodeType,
    ODPCaps,
    ODPGeneralCaps,
    ODPPerTransportCaps,
    ODPTransportCaps,
    PacketPacingCaps,
    PortAttr,
    PortState,
    QPAddress,
    QPAttr,
    QPCap,
    QPState,
    QPType,
    RecvWR,
    RTValues,
    SendFlags,
    SendWR,
    SRQAttr,
    SuccessfulCompletion,
    TransportType,
    VerbsError,
    WCArray,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WorkCompletion,
    WROpcode,
    devices,
    inc_rkey,
)
from cqnotify.conformance import Arm, Case, Outcome, Queue, Report, Row, cases, measure
from cqnotify.enums import enum_or_int
from cqnotify.exchange import exchange_as_client_blocking, exchange_as_server_blocking, listen
from cqnotify.testing import Endpoint, MakePair, ToPeer, connect, wait_completions

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:
    from runtime_types import assert_type

DEADLINE = 30.0

Pair = tuple[Endpoint, Endpoint]


def exchange(a: Endpoint, b: Endpoint) -> list[WorkCompletion]:
    """One message; what completes at the receiver."""
    b.qp.post_recv(b.mr, wr_id=7)
    a.qp.post_send(a.mr[0:8], **a.to_peer)
    wait_completions(a.send_cq)
    return wait_completions(b.recv_cq)


# ---- devices and memory -------------------------------------------------------------------


def test_devices(rdma_device: Device) -> None:
    assert_type(devices(), list[Device])
    assert_type(rdma_device.name, str)
    assert_type(rdma_device.node_type, NodeType | int)
    assert_type(rdma_device.transport_type, TransportType | int)
    assert_type(rdma_device.guid, int)
    with Context(rdma_device) as ctx:
        assert_type(ctx, Context)
        assert_type(ctx.closed, bool)
    with Context(rdma_device.name) as by_name:
        assert_type(by_name.name, str)
    with pytest.raises(ClosedError):
        by_name.query_port()


def test_context(rdma_context: Context) -> None:
    ctx = rdma_context
    assert_type(ctx.num_comp_vectors, int)
    assert_type(ctx.async_fd, int)
    assert_type(ctx.transport_type, TransportType | int)
    if ctx.query_port().pkey_tbl_len:
        assert_type(ctx.query_pkey(0, port_num=1), int)
        assert_type(ctx.get_pkey_index(0xFFFF), int)
    with suppress(VerbsError):  # not every device shows its clock
        values = ctx.query_rt_values()
        assert_type(values, RTValues)
        assert_type(values.raw_clock, int)
    assert_type(ctx.gid_table(), list[GIDEntry])
    gid = ctx.find_gid(gid_type=ctx.gid_table()[0].gid_type, port_num=1)
    assert_type(gid, GIDEntry)
    assert_type(ctx.query_gid(gid.index), GIDEntry)
    assert_type(gid.gid, IPv6Address)
    assert_type(gid.index, int)
    assert_type(gid.port_num, int)
    assert_type(gid.gid_type, GIDType | int)
    assert_type(gid.netdev, str | None)


def test_device_attributes(rdma_context: Context) -> None:
    ex = rdma_context.query_device_ex()
    assert_type(rdma_context.query_device(), DeviceAttr)
    assert_type(ex, DeviceAttrEx)
    assert_type(ex.orig_attr, DeviceAttr)
    assert_type(ex.orig_attr.fw_ver, str)
    assert_type(ex.orig_attr.max_qp, int)
    assert_type(ex.orig_attr.atomic_cap, AtomicCap | int)
    assert_type(ex.orig_attr.device_cap_flags, DeviceCapFlags)
    assert_type(ex.device_cap_flags_ex, DeviceCapFlags)
    assert_type(ex.odp_caps, ODPCaps)
    assert_type(ex.odp_caps.general_caps, ODPGeneralCaps)
    assert_type(ex.odp_caps.per_transport_caps, ODPPerTransportCaps)
    assert_type(ex.odp_caps.per_transport_caps.rc_odp_caps, ODPTransportCaps)
    assert_type(ex.packet_pacing_caps, PacketPacingCaps)
    assert_type(ex.cq_mod_caps, CQModerationCaps)
    assert_type(ex.hca_core_clock, int)


def test_port(rdma_context: Context) -> None:
    port = rdma_context.query_port(1)
    assert_type(port, PortAttr)
    assert_type(port.state, PortState | int)
    assert_type(port.active_mtu, MTU | int)
    assert_type(port.link_layer, LinkLayer | int)
    assert_type(port.lid, int)
    assert_type(enum_or_int(MTU, port.active_mtu), MTU | int)


def test_memory(rdma_pd: PD) -> None:
    assert_type(rdma_pd.context, Context)
    assert_type(rdma_pd.context.find_gid(), GIDEntry)
    over = MR(rdma_pd, bytearray(64), access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    assert_type(over, MR)
    with MR(rdma_pd, 4096) as mr:
        assert_type(mr, MR)
        assert_type(mr.pd, PD)
        assert_type(mr.write(b"hello"), int)
        assert_type(mr.read(5), bytes)
        assert_type(bytes(memoryview(mr)), bytes)
        assert_type(len(mr), int)
        for number in (mr.addr, mr.length, mr.lkey, mr.rkey, mr.access):
            assert_type(number, int)
        sge = mr[:8]
        assert_type(sge, SGE)
        assert_type(sge.mr, MR)
        assert_type(sge.with_lkey(mr.lkey), SGE)
        for number in (sge.addr, sge.length, sge.lkey, len(sge)):
            assert_type(number, int)
    assert_type(mr.closed, bool)
    over.close()
    with suppress(VerbsError):  # not every device pages on demand
        assert_type(MR.implicit(rdma_pd).over(bytearray(8)), MR)


def test_memory_of_others(rdma_pd: PD, rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    numbers = numpy.zeros((4, 2), dtype=numpy.uint64)
    buffers = [
        *[MR(rdma_pd, bytearray(64)), MR(rdma_pd, memoryview(bytearray(64)))],
        *[MR(rdma_pd, array.array("Q", bytes(64))), MR(rdma_pd, mmap.mmap(-1, 64))],
        *[MR(rdma_pd, numbers), MR(rdma_pd, numpy.zeros(16, dtype=numpy.float32))],
    ]
    for mr in buffers:
        assert_type(mr, MR)
        assert_type(mr.write(numpy.arange(8, dtype=numpy.uint64)), int)
        assert mr.length == 64
    assert numbers.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    b.qp.post_recv(b.mr[:64])
    with suppress(VerbsError):  # not every device takes data inline
        a.qp.post_send(numbers[0], send_flags=SendFlags.INLINE | SendFlags.SIGNALED)
        wait_completions(a.send_cq)[0].raise_for_status()


def test_memory_window(rdma_context: Context, rdma_rc_pair: Pair) -> None:
    a, _ = rdma_rc_pair
    bindable = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
    with MR(a.pd, 64, access=bindable) as mr, MW(a.pd, MWType.TYPE_1) as mw:
        assert_type(mw, MW)
        assert_type(mw.pd, PD)
        assert_type(mw.mw_type, MWType | int)
        assert_type(mw.rkey, int)
        assert_type(inc_rkey(mw.rkey), int)
        a.qp.bind_mw(mw, mr[:8], access=AccessFlags.REMOTE_READ, wr_id=1)
        wait_completions(a.send_cq)


# ---- completions --------------------------------------------------------------------------


def test_completion_channel(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    channel = b.channel
    assert_type(channel, CompletionChannel)
    assert_type(channel.context, Context)
    assert_type(channel.fileno(), int)
    assert_type(channel.try_get_event(), CQ | None)
    b.recv_cq.req_notify()
    with pytest.raises(TimeoutError):
        channel.get_event(0)
    exchange(a, b)
    cq = channel.get_event()
    assert_type(cq, CQ)
    cq.ack()
    cq.req_notify(solicited_only=False)
    exchange(a, b)
    cq = channel.get_event(timeout=DEADLINE)
    assert_type(cq, CQ)
    cq.ack()
    cq.req_notify()
    exchange(a, b)
    for cq in channel:
        assert_type(cq, CQ)
        cq.ack(1)
        break


def test_cq(rdma_context: Context, rdma_channel: CompletionChannel) -> None:
    with CQ(rdma_context, 16, wc_flags=WCExFlags.BYTE_LEN) as extended:
        assert_type(extended.channel, CompletionChannel | None)
        assert_type(extended.wc_flags, WCExFlags | None)
    cq = CQ(rdma_context, 16, channel=rdma_channel, comp_vector=0, user_data="mine")
    assert_type(cq, CQ)
    assert_type(cq.context, Context)
    assert_type(cq.channel, CompletionChannel | None)
    assert_type(cq.wc_flags, WCExFlags | None)
    assert_type(cq.safe_to_sleep(), bool)
    assert_type(cq.poll(), list[WorkCompletion])
    assert_type(cq.poll(16, spin=1e-6), list[WorkCompletion])
    assert_type(cq.stats, CQStats)
    for number in (cq.cqe, cq.comp_vector, cq.unacked, cq.stats.events, cq.stats.spurious):
        assert_type(number, int)
    cq.resize(32)
    cq.close()


def test_poll(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    wcs = WCArray(4)
    for _ in range(2):
        b.qp.post_recv(b.mr)
        a.qp.post_send(a.mr[0:8])
        wait_completions(a.send_cq)
    while (found := b.recv_cq.poll_into(wcs)) == 0:
        pass
    assert_type(found, int)
    assert_type(wcs[0], WorkCompletion)
    assert_type(wcs.capacity, int)
    assert_type(len(wcs), int)
    assert_type(bytes(memoryview(wcs)), bytes)
    exchange(a, b)
    b.qp.post_recv(b.mr, wr_id=5)
    a.qp.post_send(a.mr[0:8])
    while not (ids := b.recv_cq.poll_ids()):
        pass
    assert_type(ids, list[int])


def test_work_completion(rdma_rc_pair: Pair) -> None:
    (wc,) = exchange(*rdma_rc_pair)
    assert_type(wc, WorkCompletion)
    assert_type(wc.status, WCStatus | int)
    assert_type(wc.opcode, WCOpcode | int | None)
    assert_type(wc.wc_flags, WCFlags | None)
    assert_type(wc.ok, bool)
    for number in (wc.wr_id, wc.qp_num, wc.vendor_err):
        assert_type(number, int)
    for optional in (wc.byte_len, wc.imm_data, wc.invalidated_rkey, wc.src_qp, wc.pkey_index):
        assert_type(optional, int | None)
    for optional in (wc.slid, wc.sl, wc.dlid_path_bits):
        assert_type(optional, int | None)
    for optional in (wc.completion_ts, wc.completion_wallclock_ns, wc.cvlan, wc.flow_tag):
        assert_type(optional, int | None)


def look_closely(wc: SuccessfulCompletion) -> None:
    assert_type(wc, SuccessfulCompletion)
    assert_type(wc.raise_for_status(), SuccessfulCompletion)
    assert_type(wc.byte_len, int)
    assert_type(wc.byte_len - 1, int)
    assert_type(wc.opcode, WCOpcode | int)
    assert_type(wc.wc_flags, WCFlags)
    assert_type(wc.imm_data, int | None)
    if wc.imm_data is not None:
        assert_type(wc.imm_data, int)


@pytest.mark.parametrize("wc_flags", [None, WCExFlags.BYTE_LEN])
def test_successful_completion(rdma_rc_pair: Pair, wc_flags: WCExFlags | None) -> None:
    """Of every operation, wherever it completes, if the CQ was asked for the length."""
    a, b = rdma_rc_pair
    ends = [Endpoint(a.ctx), Endpoint(a.ctx)]
    for end in ends:
        end.qp.close()
        end.send_cq = CQ(a.ctx, 16, channel=end.channel, wc_flags=wc_flags)
        end.recv_cq = CQ(a.ctx, 16, channel=end.channel, wc_flags=wc_flags)
        end.qp = QP(end.pd, QPType.RC, send_cq=end.send_cq, recv_cq=end.recv_cq)
    a, b = connect(*ends)
    there: dict[str, Any] = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey}
    b.qp.post_recv([RecvWR(b.mr), RecvWR(b.mr), RecvWR(b.mr)])
    for wr in [
        SendWR(a.mr[:8]),
        SendWR(a.mr[:8], opcode=WROpcode.SEND_WITH_IMM, imm_data=1),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_WRITE, **there),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=1, **there),
        SendWR(a.mr[:8], opcode=WROpcode.RDMA_READ, **there),
        SendWR(a.mr[:8], opcode=WROpcode.ATOMIC_FETCH_AND_ADD, compare_add=1, **there),
    ]:
        a.qp.post_send(wr)
        look_closely(wait_completions(a.send_cq)[0].raise_for_status())
    for wc in map(WorkCompletion.raise_for_status, wait_completions(b.recv_cq, 3)):
        look_closely(wc)


def same(wc: WorkCompletion) -> WorkCompletion:
    return wc


def test_a_successful_completion_is_a_completion(rdma_rc_pair: Pair) -> None:
    (wc,) = exchange(*rdma_rc_pair)
    good = wc.raise_for_status()
    assert same(good) is wc
    assert_type([good], list[SuccessfulCompletion])
    wc = wc.raise_for_status()  # the name has the narrower type from here on
    assert_type(wc.byte_len, int)


def told(wc: WorkCompletion) -> str:
    match wc:
        case WorkCompletion(status=WCStatus.SUCCESS, opcode=WCOpcode.RECV, byte_len=int(size)):
            return f"a message of {assert_type(size, int)} bytes"
        case WorkCompletion(status=WCStatus() as status):
            return assert_type(status, WCStatus).name
        case _:
            return "unheard of"


def test_matching(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    (wc,) = exchange(a, b)
    assert told(wc) == "a message of 8 bytes"
    b.qp.post_recv(b.mr)
    b.qp.modify(qp_state=QPState.ERR)
    (wc,) = wait_completions(b.recv_cq)
    assert told(wc) == "WR_FLUSH_ERR"
    try:
        wc.raise_for_status()
    except CompletionError as e:
        assert_type(e.wc, WorkCompletion)
        assert_type(e.status, WCStatus | int)
        for number in (e.wr_id, e.qp_num, e.vendor_err):
            assert_type(number, int)
    else:
        pytest.fail("it has not failed")


# ---- queue pairs --------------------------------------------------------------------------


def test_queue_pair(rdma_rc_pair: Pair) -> None:
    qp = rdma_rc_pair[0].qp
    assert_type(qp, QP)
    assert_type(qp.pd, PD)
    assert_type(qp.context, Context)
    assert_type(qp.send_cq, CQ)
    assert_type(qp.recv_cq, CQ)
    assert_type(qp.srq, SRQ | None)
    assert_type(qp.qp_type, QPType)
    assert_type(qp.state, QPState | int)
    assert_type(qp.outstanding, tuple[int, int])
    for number in (qp.qp_num, qp.sq_psn, qp.max_send_wr, qp.max_recv_wr, qp.max_send_sge):
        assert_type(number, int)
    for number in (qp.max_recv_sge, qp.max_inline_data, qp.outstanding_signaled):
        assert_type(number, int)


def test_queue_pair_attributes(rdma_rc_pair: Pair) -> None:
    attr = rdma_rc_pair[0].qp.query()
    assert_type(attr, QPAttr)
    assert_type(attr.qp_state, QPState | int)
    assert_type(attr.path_mtu, MTU | int)
    assert_type(attr.path_mig_state, MigState | int)
    assert_type(attr.qp_access_flags, AccessFlags)
    assert_type(attr.cap, QPCap)
    assert_type(attr.cap.max_inline_data, int)
    assert_type(attr.ah_attr, AHAttr)
    assert_type(attr.ah_attr.dgid, IPv6Address | None)
    assert_type(attr.timeout, int)


def test_transitions(rdma_pd: PD, rdma_cq: CQ) -> None:
    qp = QP(rdma_pd, QPType.RC, send_cq=rdma_cq, max_send_wr=4, sq_sig_all=True, user_data=1)
    address = qp.address(port_num=1)
    assert_type(address, QPAddress)
    assert_type(address.gid, IPv6Address)
    assert_type(address.to_wire(), bytes)
    assert_type(QPAddress.from_wire(address.to_wire()), QPAddress)
    qp.to_init(access=AccessFlags.REMOTE_WRITE)
    qp.to_rtr(address, path_mtu=MTU.MTU_1024)
    qp.to_rts(timeout=14)
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
    assert_type(a.to_peer, ToPeer)
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


def test_failure_watch(rdma_context: Context) -> None:
    with FailureWatch(rdma_context) as watch:
        assert_type(watch, FailureWatch)
        assert_type(watch.context, Context)
        assert_type(watch.fileno(), int)
        assert_type(watch.read(), list[tuple[AsyncEvent, list[CQ] | None]])


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
    assert_type(connect(a, b, path_mtu=1024, timeout=10), tuple[MyEndpoint, MyEndpoint])
    assert_type(exchange(a, b), list[WorkCompletion])


def test_fixtures(
    rdma_device2: Device, rdma_context2: Context, rdma_mr: MR, rdma_uc_pair: Pair
) -> None:
    assert_type(rdma_device2, Device)
    assert_type(rdma_context2, Context)
    assert_type(rdma_mr, MR)
    assert_type(rdma_uc_pair[0], Endpoint)


def test_pairs(rdma_pair: MakePair) -> None:
    assert_type(rdma_pair(), tuple[Endpoint, Endpoint])
    a, b = rdma_pair(QPType.RC, two_devices=True, size=64, max_send_wr=4, timeout=10)
    assert_type(exchange(a, b), list[WorkCompletion])


def test_addresses_are_exchanged(rdma_rc_pair: Pair) -> None:
    ours, theirs = (end.qp.address() for end in rdma_rc_pair)
    got: list[QPAddress | list[QPAddress]] = []
    with listen(port=0) as listener:
        assert_type(listener, socket.socket)
        port: Any = listener.getsockname()[1]

        def serve() -> None:
            one = exchange_as_server_blocking(listener, ours, got.append, timeout=DEADLINE)
            several = exchange_as_server_blocking(listener, [ours], got.append, timeout=DEADLINE)
            assert_type(one, QPAddress)
            assert_type(several, list[QPAddress])
            got.extend([one, several])

        server = threading.Thread(target=serve)
        server.start()
        one = exchange_as_client_blocking("127.0.0.1", port, theirs, timeout=DEADLINE)
        several = exchange_as_client_blocking("127.0.0.1", port, [theirs], timeout=DEADLINE)
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
