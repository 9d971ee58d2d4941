# SPDX-License-Identifier: MIT
"""XRC, raw packets, flows, RSS, tags and ECE, on a fake device that has them.

csrc/faults/fake_device.c notes the struct of each call, which is compared here field by field with
the layout of the ABI, and carries messages by what the real device has."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from ctypes import c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import pytest
from fault_world import calls, core, each_that_failed, inside
from support import cancel, outstanding, start, until

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WorkCompletion,
    WROpcode,
    _core,
)
from cqnotify.aio import AsyncCQ
from cqnotify.hw import (
    ECE,
    WQ,
    XRCD,
    CounterDescription,
    Flow,
    FlowAttrFlags,
    FlowAttrType,
    FlowCounters,
    FlowSpecActionCount,
    FlowSpecActionDrop,
    FlowSpecActionTag,
    FlowSpecEth,
    FlowSpecIPv4,
    FlowSpecIPv6,
    FlowSpecTCP,
    FlowSpecUDP,
    OpsFlags,
    OpsWROpcode,
    QPCreateFlags,
    ReadCountersFlags,
    RwqIndTable,
    RxHashConf,
    RxHashFields,
    RxHashFunction,
    SRQType,
    WQFlags,
    WQState,
)

# ---- the structs of <infiniband/verbs.h>, on 64 bits ----------------------------------------


def layout(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


XRCDAttr = layout("XRCDAttr", comp_mask=c_uint32, fd=c_int, oflags=c_int)
SRQInit = layout(
    "SRQInit",
    **{"srq_context": c_void_p, "max_wr": c_uint32, "max_sge": c_uint32, "srq_limit": c_uint32},
    **{"comp_mask": c_uint32, "srq_type": c_uint32, "pd": c_void_p, "xrcd": c_void_p},
    **{"cq": c_void_p, "max_num_tags": c_uint32, "max_ops": c_uint32},
)
PLAIN: dict[str, Any] = {
    **{"qp_context": c_void_p, "send_cq": c_void_p, "recv_cq": c_void_p, "srq": c_void_p},
    **{"max_send_wr": c_uint32, "max_recv_wr": c_uint32, "max_send_sge": c_uint32},
    **{"max_recv_sge": c_uint32, "max_inline_data": c_uint32, "qp_type": c_uint32},
    "sq_sig_all": c_int,
}
QPInit = layout("QPInit", **PLAIN)
QPInitEx = layout(
    "QPInitEx",
    **PLAIN,
    **{"comp_mask": c_uint32, "pd": c_void_p, "xrcd": c_void_p, "create_flags": c_uint32},
    **{"max_tso_header": c_uint16, "rwq_ind_tbl": c_void_p, "rx_hash_function": c_uint8},
    **{"rx_hash_key_len": c_uint8, "rx_hash_key": c_void_p, "rx_hash_fields_mask": c_uint64},
    **{"source_qpn": c_uint32, "send_ops_flags": c_uint64},
)
QPOpen = layout(
    "QPOpen",
    **{"comp_mask": c_uint32, "qp_num": c_uint32, "xrcd": c_void_p, "qp_context": c_void_p},
    qp_type=c_uint32,
)
WQInit = layout(
    "WQInit",
    **{"wq_context": c_void_p, "wq_type": c_uint32, "max_wr": c_uint32, "max_sge": c_uint32},
    **{"pd": c_void_p, "cq": c_void_p, "comp_mask": c_uint32, "create_flags": c_uint32},
)
WQAttr = layout(
    "WQAttr",
    **{"attr_mask": c_uint32, "wq_state": c_uint32, "curr_wq_state": c_uint32},
    **{"flags": c_uint32, "flags_mask": c_uint32},
)
TableInit = layout("TableInit", log_ind_tbl_size=c_uint32, ind_tbl=c_void_p, comp_mask=c_uint32)
FlowAttr = layout(
    "FlowAttr",
    **{"comp_mask": c_uint32, "type": c_uint32, "size": c_uint16, "priority": c_uint16},
    **{"num_of_specs": c_uint8, "port": c_uint8, "flags": c_uint32},
)
Ops = layout(
    "Ops",
    **{"wr_id": c_uint64, "next": c_void_p, "opcode": c_uint32, "flags": c_int},
    **{"unexpected_cnt": c_uint32, "handle": c_uint32, "recv_wr_id": c_uint64},
    **{"sg_list": c_void_p, "num_sge": c_int, "tag": c_uint64, "mask": c_uint64},
)


def fields(kind: type[ctypes.Structure], data: bytes) -> dict[str, Any]:
    """The fields of the struct that are not 0."""
    got = kind.from_buffer_copy(data)
    every = {name: getattr(got, name) for name, *_ in kind._fields_}
    return {name: value for name, value in every.items() if value}


def only_call(verb: str) -> tuple[int, bytes]:
    ((name, result, data),) = calls()
    assert name == verb
    return result, data


@pytest.fixture
def able(ctx: Context) -> Iterator[Context]:
    """The device that has it all."""
    core.use_fake_device(True)
    with Context(ctx.name) as context:
        calls()
        yield context


@pytest.fixture
def pd(able: Context) -> PD:
    return PD(able)


@pytest.fixture
def cq(able: Context) -> CQ:
    return CQ(able, 64)


HASH = RxHashConf(
    RxHashFunction.TOEPLITZ, bytes(range(40)), RxHashFields.SRC_IPV4 | RxHashFields.DST_IPV4
)


def raw(pd: PD, cq: CQ) -> QP:
    return QP(pd, QPType.RAW_PACKET, send_cq=cq)


def ids_of(cq: CQ, n: int) -> list[int]:
    got: list[int] = []
    until(lambda: got.extend(cq.poll_ids()) or len(got) >= n, "they came")
    return got


# ---- XRC ---------------------------------------------------------------------------------------


def test_a_domain_is_opened_as_it_was_asked_for(able: Context, tmp_path: Any) -> None:
    domain = XRCD(able)
    pointer, data = only_call("ibv_open_xrcd")
    assert fields(XRCDAttr, data) == {"comp_mask": 3, "fd": -1, "oflags": os.O_CREAT}
    domain.close()
    assert only_call("ibv_close_xrcd")[0] == pointer
    flags = os.O_CREAT | os.O_EXCL
    with open(tmp_path / "domain", "w") as file, XRCD(able, fd=file, oflags=flags) as domain:
        assert domain.context is able
        _, data = only_call("ibv_open_xrcd")
        assert fields(XRCDAttr, data) == {"comp_mask": 3, "fd": file.fileno(), "oflags": flags}


class XRC:
    """A domain with an SRQ, and a sender that is connected to one of its QPs."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.pd = PD(ctx)
        self.cq, self.srq_cq = CQ(ctx, 16), CQ(ctx, 16)
        self.xrcd = XRCD(ctx)
        self.srq = SRQ(self.pd, 8, srq_type=SRQType.XRC, xrcd=self.xrcd, cq=self.srq_cq)
        self.receiver = QP(None, QPType.XRC_RECV, xrcd=self.xrcd)
        self.sender = QP(self.pd, QPType.XRC_SEND, send_cq=self.cq)
        self.mr = MR(self.pd, 256)

    def connect(self) -> None:
        self.receiver.connect(self.sender.address())
        self.sender.connect(self.receiver.address())


def test_what_xrc_needs_reaches_the_device_field_by_field(able: Context) -> None:
    x = XRC(able)
    (_, xrcd, _), (srq_verb, srq, init), (ex_verb, _, recv), (verb, _, send) = calls()
    assert (srq_verb, ex_verb, verb) == ("ibv_create_srq_ex", "ibv_create_qp_ex", "ibv_create_qp")
    got = fields(SRQInit, init)
    pd, cq = got.pop("pd"), got.pop("cq")
    assert got.pop("srq_context")
    assert pd != cq
    assert got == {
        **{"max_wr": x.srq.max_wr, "max_sge": x.srq.max_sge, "comp_mask": 0b1111},
        **{"srq_type": SRQType.XRC, "xrcd": xrcd},
    }
    got = fields(QPInitEx, recv)
    assert got.pop("qp_context")
    assert got == {"qp_type": QPType.XRC_RECV, "comp_mask": 2, "xrcd": xrcd}
    got = fields(QPInit, send)
    assert got.pop("qp_context")
    assert got.pop("send_cq") not in (0, cq)
    assert got == {"max_send_wr": 16, "max_send_sge": 1, "qp_type": QPType.XRC_SEND}
    assert (x.srq.srq_type, x.srq.cq, x.srq.get_srq_num()) == (SRQType.XRC, x.srq_cq, 0x4711)
    assert (x.receiver.xrcd, x.sender.xrcd, x.receiver.srq) == (x.xrcd, None, None)
    assert (x.receiver.qp_type, x.receiver.max_recv_wr) == (QPType.XRC_RECV, 0)
    assert (x.sender.pd, x.sender.send_cq, x.sender.max_recv_wr) == (x.pd, x.cq, 0)
    for name in ("pd", "send_cq", "recv_cq"):
        with pytest.raises(AttributeError, match="of type XRC_RECV, has none"):
            getattr(x.receiver, name)
    assert srq


def test_messages_go_to_the_srq_that_they_name(able: Context) -> None:
    x = XRC(able)
    x.connect()
    assert (x.sender.state, x.receiver.state) == (QPState.RTS, QPState.RTS)
    for wr_id in (7, 8):
        x.srq.post_recv(x.mr[0:64], wr_id=wr_id)
    x.mr.write(b"shared", 64)
    x.sender.post_send(x.mr[64:70], wr_id=1, remote_srqn=x.srq.get_srq_num())
    x.sender.post_send(
        x.mr[64:70], wr_id=2, remote_srqn=5, opcode=WROpcode.SEND_WITH_IMM, imm_data=9
    )
    assert (outstanding(x.sender), x.srq.outstanding) == ((2, 0), 2)
    assert ids_of(x.cq, 2) == [1, 2]
    wcs: list[Any] = []
    until(lambda: wcs.extend(x.srq_cq.poll()) or len(wcs) == 2, "both have arrived")
    assert [(wc.wr_id, wc.imm_data) for wc in wcs] == [(7, None), (8, 9)]
    assert (x.mr.read(6), x.srq.outstanding) == (b"shared", 0)


def test_what_does_not_go_with_xrc_is_refused(able: Context) -> None:
    x = XRC(able)
    x.connect()
    for call, words in [
        (lambda: x.sender.post_send(x.mr[0:4]), "remote_srqn is missing: an XRC_SEND QP needs it"),
        (
            lambda: x.sender.post_send(
                x.mr[0:4], opcode=WROpcode.RDMA_WRITE, remote_addr=0, rkey=0, remote_srqn=1
            ),
            "remote_srqn was given, but RDMA_WRITE does not take it",
        ),
        (lambda: x.receiver.post_send(x.mr[0:4]), "opcode SEND is not possible on a XRC_RECV QP"),
        (lambda: x.receiver.post_recv(x.mr[0:4]), "post to the SRQ that its messages name"),
        (lambda: x.sender.post_recv(x.mr[0:4]), "of type XRC_SEND and has no receive queue"),
        (lambda: raw(x.pd, x.cq).post_send(x.mr[0:4], remote_srqn=1), "a RAW_PACKET QP does not"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    other = Context(able.name)
    with pytest.raises(ValueError, match="xrcd belongs to another Context than pd"):
        SRQ(x.pd, 4, srq_type=SRQType.XRC, xrcd=XRCD(other), cq=x.cq)
    other.close()


def test_a_qp_of_another_process_is_opened_by_its_number(able: Context) -> None:
    x = XRC(able)
    calls()
    with QP.open(x.xrcd, 0x123, user_data="mine") as qp:
        _, data = only_call("ibv_open_qp")
        got = fields(QPOpen, data)
        assert got.pop("qp_context")
        assert got.pop("xrcd")
        assert got == {"comp_mask": 0b1111, "qp_num": 0x123, "qp_type": QPType.XRC_RECV}
        assert (qp.xrcd, qp.user_data, qp.qp_type) == (x.xrcd, "mine", QPType.XRC_RECV)
        assert isinstance(qp, QP)


# ---- raw packets and flows -----------------------------------------------------------------


def test_raw_packets_come_and_go(able: Context, pd: PD, cq: CQ) -> None:
    qp = raw(pd, cq)
    verb, _, data = calls()[0]
    assert (verb, fields(QPInit, data)["qp_type"]) == ("ibv_create_qp", QPType.RAW_PACKET)
    qp.connect()
    masks = [struct.unpack("=i", data[-4:])[0] for verb, _, data in calls()]
    assert masks == [1 | 1 << 5, 1, 1]  # IBV_QP_STATE, and IBV_QP_PORT
    mr = MR(pd, 256)
    qp.post_recv(mr[0:128], wr_id=1)
    mr.write(b"frame", 128)
    qp.post_send(mr[128:133], wr_id=2)
    assert sorted(ids_of(cq, 2)) == [1, 2]
    assert mr.read(5) == b"frame"
    for more in ({"opcode": WROpcode.RDMA_READ}, {"opcode": WROpcode.SEND_WITH_IMM, "imm_data": 1}):
        with pytest.raises(ValueError, match="is not possible on a RAW_PACKET QP"):
            qp.post_send(mr[0:4], remote_addr=0, rkey=0, **more)  # type: ignore[arg-type]
    for wrong in ({"access": 1}, {"pkey_index": 1}, {"qkey": 1}):
        with pytest.raises(ValueError, match="has no meaning for a QP of type RAW_PACKET"):
            raw(pd, cq).to_init(**wrong)  # type: ignore[arg-type]


IPV4, IPV6 = bytes([10, 0, 0, 1]), bytes.fromhex("fe80" + "0" * 26 + "12" + "34")[:16]


def spec(kind: int, size: int, values: bytes, masks: bytes, gap: int = 0) -> bytes:
    data = struct.pack("=IH", kind, size) + bytes(gap) + values + masks
    return data.ljust(size, b"\0")


SPECS: list[tuple[Any, bytes]] = [
    (
        FlowSpecEth(
            dst_mac="01:02:03:04:05:06", ether_type=0x0800, vlan_tag=5, vlan_tag_mask=0xFFF
        ),
        spec(
            0x20,
            40,
            bytes([1, 2, 3, 4, 5, 6]) + bytes(6) + b"\x08\0" + b"\0\x05",
            b"\xff" * 6 + bytes(6) + b"\xff\xff" + b"\x0f\xff",
        ),
    ),
    (
        FlowSpecIPv4(src_ip="10.0.0.1", src_ip_mask="255.0.0.1", proto=17, inner=True),
        spec(
            0x132,
            32,
            IPV4 + bytes(4) + b"\x11\0\0\0",
            b"\xff\0\0\x01" + bytes(4) + b"\xff\0\0\0",
            2,
        ),
    ),
    (
        FlowSpecIPv6(dst_ip=IPV6, flow_label=0x12345, hop_limit=1),
        spec(
            0x31,
            88,
            bytes(16) + IPV6 + b"\0\x01\x23\x45" + b"\0\0\x01\0",
            bytes(16) + b"\xff" * 16 + b"\0\x0f\xff\xff" + b"\0\0\xff\0",
            2,
        ),
    ),
    (FlowSpecTCP(dst_port=80), spec(0x40, 16, b"\0\x50\0\0", b"\xff\xff\0\0")),
    (FlowSpecUDP(src_port=4791), spec(0x41, 16, b"\0\0\x12\xb7", b"\0\0\xff\xff")),
    (FlowSpecActionTag(0xABCDE), spec(0x1000, 12, b"\0\0", struct.pack("=I", 0xABCDE))),
    (FlowSpecActionDrop(), spec(0x1001, 8, b"", b"")),
]


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_a_spec_reaches_the_device_byte_by_byte(pd: PD, cq: CQ, number: int) -> None:
    what, want = SPECS[number]
    with raw(pd, cq) as qp:
        calls()
        flow = Flow(qp, [what])
        _, data = only_call("ibv_create_flow")
        flow.close()
        assert data[20:] == want
        assert fields(FlowAttr, data) == {"size": 20 + len(want), "num_of_specs": 1, "port": 1}


def test_a_rule_of_several_specs_and_its_end(pd: PD, cq: CQ) -> None:
    qp = QP(pd, QPType.UD, send_cq=cq)
    calls()
    flow = Flow(
        qp,
        [what for what, _ in SPECS],
        flow_type=FlowAttrType.MC_DEFAULT,
        priority=3,
        flags=FlowAttrFlags.DONT_TRAP,
    )
    pointer, data = only_call("ibv_create_flow")
    assert data[20:] == b"".join(want for _, want in SPECS)
    assert fields(FlowAttr, data) == {
        **{"type": FlowAttrType.MC_DEFAULT, "size": len(data), "priority": 3},
        **{"num_of_specs": len(SPECS), "port": 1, "flags": 2},
    }
    assert flow.qp is qp
    other = Flow(qp)
    flow.close()
    assert [(verb, result) for verb, result, _ in calls()[1:]] == [("ibv_destroy_flow", pointer)]
    qp.close()  # with the other one
    assert other.closed
    with pytest.raises(ClosedError):
        other.qp  # noqa: B018


def test_counters_count_for_the_flows_that_name_them(able: Context, pd: PD, cq: CQ) -> None:
    qp, counters = raw(pd, cq), FlowCounters(able)
    pointer, data = next((result, data) for verb, result, data in calls()[1:])
    assert (pointer, data, counters.context) == (counters.pointer, bytes(4), able)
    with pytest.raises(ValueError, match="nothing is counted: attach"):
        counters.read()
    for index, what in ((3, CounterDescription.BYTES), (1, CounterDescription.PACKETS)):
        counters.attach(what, index)
        pointer, data = only_call("ibv_attach_counters_point_flow")
        assert (pointer, struct.unpack("=III", data)) == (counters.pointer, (what, index, 0))
    with pytest.raises(VerbsError, match="does a Flow count by them"):
        counters.read()
    flow = Flow(qp, [FlowSpecActionCount(counters), FlowSpecActionDrop()], priority=2)
    _, data = only_call("ibv_create_flow")
    assert data[20:28] == spec(0x1001, 8, b"", b"")
    assert struct.unpack("=IHxxQ", data[28:]) == (0x1003, 16, counters.pointer)
    assert fields(FlowAttr, data) == {"size": 44, "priority": 2, "num_of_specs": 2, "port": 1}
    assert (flow.counters, flow.qp, Flow(qp).counters) == (counters, qp, None)
    calls()
    assert counters.read(flags=ReadCountersFlags.PREFER_CACHED) == [0, 1 << 41, 0, 1 << 43]
    assert struct.unpack("=II", only_call("ibv_read_counters")[1]) == (4, 1)
    with pytest.raises(VerbsError, match="counter_desc 0 at index 0: before a Flow counts") as e:
        counters.attach(CounterDescription.PACKETS)
    assert (e.value.errno, e.value.verb) == (errno.ENOTSUP, "ibv_attach_counters_point_flow")
    counters.close()  # with the flow
    assert (flow.closed, qp.closed) == (True, False)
    for call, error, words in [
        (
            lambda: Flow(qp, [FlowSpecActionCount(counters)]),
            ClosedError,
            "FlowCounters is closed",
        ),
        (lambda: Flow(qp, [FlowSpecActionCount(cq)]), TypeError, "counters must be a"),  # type: ignore[arg-type]
        (lambda: Flow(qp, [FlowSpecActionCount(counters)] * 2), ValueError, "it can have one"),
        (lambda: FlowCounters(able).attach(2), ValueError, "counter_desc is 2: it must be 0 to 1"),
        (lambda: FlowCounters(able).attach(0, 65536), ValueError, "index is 65536"),
        (lambda: FlowCounters(able).read(flags=2), ValueError, "flags is 2: it must be 0 to 1"),
    ]:
        with pytest.raises(error, match=words):
            call()
    with (
        Context(able.name) as other,
        pytest.raises(ValueError, match="counters belongs to"),
    ):
        Flow(qp, [FlowSpecActionCount(FlowCounters(other))])


def test_the_specs_are_copied_before_the_device_gets_them(pd: PD, cq: CQ) -> None:
    specs = bytearray(b"".join(want for _, want in SPECS))
    whole, flows = bytes(specs), []
    with raw(pd, cq) as qp:
        calls()
        with inside("ibv_create_flow", lambda: flows.append(_core.Flow(qp, specs))) as maker:
            specs[:8] = bytes(8)
            specs.clear()  # nothing holds it
        maker.join()
        assert only_call("ibv_create_flow")[1][20:] == whole
    assert flows[0].closed


# ---- flags, ECE, order of data -----------------------------------------------------------------


def test_creation_flags_reach_the_device(pd: PD, cq: CQ) -> None:
    flags = QPCreateFlags.SCATTER_FCS | QPCreateFlags.CVLAN_STRIPPING
    QP(pd, QPType.UD, send_cq=cq, create_flags=flags, source_qpn=0x99)
    got = fields(QPInitEx, only_call("ibv_create_qp_ex")[1])
    for pointer in ("qp_context", "pd"):
        assert got.pop(pointer)
    assert got.pop("send_cq") == got.pop("recv_cq")
    assert got == {
        **{"max_send_wr": 16, "max_recv_wr": 16, "max_send_sge": 1, "max_recv_sge": 1},
        **{"qp_type": QPType.UD, "comp_mask": 1 | 4, "source_qpn": 0x99},
        "create_flags": flags | QPCreateFlags.SOURCE_QPN,
    }


def test_options_of_ece_are_exchanged(pd: PD, cq: CQ) -> None:
    a, b = (QP(pd, QPType.RC, send_cq=cq) for _ in range(2))
    ece = a.query_ece()
    assert ece == ECE(0x15B3, 0x10000005, 0)
    calls()
    b.set_ece(*ece)
    _, data = only_call("ibv_set_ece")
    assert struct.unpack("=III", data) == (0x15B3, 0x10000005, 0)
    assert a.query_data_in_order(WROpcode.RDMA_WRITE) == 1
    assert a.query_data_in_order(WROpcode.SEND) == 0


# ---- WQs and RSS -------------------------------------------------------------------------------


def test_a_wq_completes_what_was_posted_to_it(pd: PD, cq: CQ) -> None:
    wq = WQ(pd, cq, max_wr=4, max_sge=2, create_flags=WQFlags.SCATTER_FCS, user_data=1)
    got = fields(WQInit, only_call("ibv_create_wq")[1])
    for pointer in ("wq_context", "pd", "cq"):
        assert got.pop(pointer)
    assert got == {"max_wr": 4, "max_sge": 2, "comp_mask": 1, "create_flags": WQFlags.SCATTER_FCS}
    mr = MR(pd, 64)
    with pytest.raises(VerbsError, match="is in RESET: modify") as e:
        wq.post_recv(mr[0:8])
    assert (e.value.errno, e.value.verb) == (errno.EINVAL, "ibv_post_wq_recv")
    wq.modify(wq_state=WQState.RDY, curr_wq_state=WQState.RESET)
    assert fields(WQAttr, only_call("ibv_modify_wq")[1]) == {"attr_mask": 3, "wq_state": 1}
    assert wq.state is WQState.RDY
    for wr_id in (5, 6):
        wq.post_recv([mr[0:8], mr[8:16]], wr_id=wr_id)
    assert wq.outstanding == 2
    with pytest.raises(BusyError, match="still needed by 2 work requests"):
        mr.close()
    wq.modify(wq_state=WQState.ERR)
    wcs: list[Any] = []
    until(lambda: wcs.extend(cq.poll(4)) or len(wcs) == 2, "the device has flushed both")
    assert [(wc.wr_id, wc.status) for wc in wcs] == [(n, WCStatus.WR_FLUSH_ERR) for n in (5, 6)]
    assert wq.outstanding == 0
    mr.close()
    calls()
    wq.modify(flags=0, flags_mask=WQFlags.SCATTER_FCS)
    assert fields(WQAttr, only_call("ibv_modify_wq")[1]) == {"attr_mask": 4, "flags_mask": 2}
    for wrong in ({"flags": 2}, {"flags": 1, "flags_mask": 2}):
        with pytest.raises(ValueError, match="the mask says which of the flags are set"):
            wq.modify(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs wq_state or flags"):
        wq.modify()


def test_a_reset_drops_what_was_posted_to_a_wq(pd: PD, cq: CQ) -> None:
    with WQ(pd, cq) as wq, MR(pd, 64) as mr:
        for _ in range(2):
            wq.modify(wq_state=WQState.RDY)
            wq.post_recv(mr[0:8], wr_id=1)
            wq.modify(wq_state=WQState.RESET)
            assert (wq.outstanding, wq.state) == (0, WQState.RESET)
        core.fail_call(1, errno.ENOMEM)
        with pytest.raises(VerbsError, match="ibv_modify_wq"):
            wq.modify(wq_state=WQState.RDY)
        assert wq.state is WQState.RESET
        mr.close()


class Last(MR):
    """Nothing but a work request refers to it, and it runs code as it goes."""

    def __init__(self, pd: PD, size: int, then: Callable[[], object]) -> None:
        self.then = then

    def __new__(cls, pd: PD, size: int, then: Callable[[], object]) -> Last:
        return super().__new__(cls, pd, size)

    def __del__(self) -> None:
        self.then()


def test_what_a_reset_lets_go_finds_the_wq_in_order(pd: PD, cq: CQ) -> None:
    wq = WQ(pd, cq)
    found: list[tuple[int, WQState]] = []
    wq.modify(wq_state=WQState.RDY)
    wq.post_recv(Last(pd, 64, lambda: found.append((wq.outstanding, WQState(wq.state)))))
    assert found == []
    wq.modify(wq_state=WQState.RESET)
    assert found == [(0, WQState.RESET)]


def test_one_thread_at_a_time_modifies_a_wq(pd: PD, cq: CQ) -> None:
    """A reset that came late would drop what was posted since."""
    wq, mr = WQ(pd, cq), MR(pd, 64)
    wq.modify(wq_state=WQState.RDY)
    wq.post_recv(mr[0:8])
    with inside("ibv_modify_wq", lambda: wq.modify(wq_state=WQState.RESET)) as other:
        with pytest.raises(BusyError, match="another thread modifies it") as e:
            wq.modify(wq_state=WQState.RDY)
        assert e.value.verb == "ibv_modify_wq"
        with pytest.raises(VerbsError, match="is in RESET"):
            wq.post_recv(mr[0:8])
    other.join()
    assert (wq.outstanding, wq.state) == (0, WQState.RESET)
    wq.modify(wq_state=WQState.RDY)


def test_a_table_spreads_packets_by_the_hash_that_was_asked_for(
    able: Context, pd: PD, cq: CQ
) -> None:
    wqs = [WQ(pd, cq) for _ in range(3)]
    pointers = [result for _, result, _ in calls()]
    table = RwqIndTable(able, [*wqs, wqs[0]])
    pointer, data = only_call("ibv_create_rwq_ind_table")
    size = ctypes.sizeof(TableInit)
    assert fields(TableInit, data[:size])["log_ind_tbl_size"] == 2
    assert struct.unpack("=4Q", data[size:]) == (*pointers, pointers[0])
    assert (table.wqs, table.ind_tbl_num, table.context) == ((*wqs, wqs[0]), 7, able)
    qp = QP(pd, QPType.RAW_PACKET, rwq_ind_tbl=table, rx_hash_conf=HASH)
    _, data = only_call("ibv_create_qp_ex")
    size = ctypes.sizeof(QPInitEx)
    got = fields(QPInitEx, data[:size])
    for name in ("qp_context", "pd", "rx_hash_key"):
        assert got.pop(name)
    assert got == {
        **{"qp_type": QPType.RAW_PACKET, "comp_mask": 1 | 16 | 32, "rwq_ind_tbl": pointer},
        **{"rx_hash_function": 1, "rx_hash_key_len": 40, "rx_hash_fields_mask": 3},
    }
    assert data[size:] == HASH.rx_hash_key
    assert (qp.rwq_ind_tbl, qp.pd) == (table, pd)
    qp.to_init()
    qp.to_rtr()
    with pytest.raises(ValueError, match="post to the WQs of its rwq_ind_tbl"):
        qp.post_recv(None)
    qp.to_rts()
    with pytest.raises(ValueError, match="has no send queue"):
        qp.post_send(None)
    with pytest.raises(BusyError, match="this WQ is still used by 1 RwqIndTable: close that"):
        wqs[0].close()
    with pytest.raises(BusyError, match="this RwqIndTable is still used by 1 QP"):
        table.close()
    qp.close()
    table.close()
    for wq in wqs:
        wq.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rx_hash_key": b""}, "rx_hash_key has 0 bytes: it must have 1 to 255"),
        ({"rx_hash_key": bytes(256)}, "rx_hash_key has 256 bytes"),
        ({"rx_hash_function": 256}, "rx_hash_function is 256"),
        ({"rx_hash_fields_mask": 1 | 4}, "it can't have both IPv4 and IPv6"),
        ({"rx_hash_fields_mask": 16 | 64}, "nor both TCP and UDP"),
    ],
)
def test_a_wrong_hash_is_refused(
    able: Context, pd: PD, cq: CQ, change: dict[str, Any], words: str
) -> None:
    table = RwqIndTable(able, (WQ(pd, cq),))
    with pytest.raises(ValueError, match=words):
        QP(pd, QPType.RAW_PACKET, rwq_ind_tbl=table, rx_hash_conf=HASH._replace(**change))
    for n in (0, 3, 16):
        with pytest.raises(ValueError, match=f"wqs has {n} WQs: it must have a power of two"):
            RwqIndTable(able, [WQ(pd, cq)] * n)
    for arguments in (
        {"rx_hash_conf": None},
        {"rx_hash_conf": HASH, "send_cq": cq},
        {"rx_hash_conf": HASH, "max_recv_wr": 1},
    ):
        with pytest.raises(ValueError, match="is missing: rwq_ind_tbl|a QP with rwq_ind_tbl does"):
            QP(pd, QPType.RAW_PACKET, rwq_ind_tbl=table, **arguments)
    with pytest.raises(ValueError, match="rwq_ind_tbl was given, but RC does not take it"):
        QP(pd, QPType.RC, rwq_ind_tbl=table, rx_hash_conf=HASH)


# ---- tags ----------------------------------------------------------------------------------


def test_tags_are_added_and_deleted(pd: PD, cq: CQ) -> None:
    srq = SRQ(pd, 8, srq_type=SRQType.TM, cq=cq, max_num_tags=4, max_ops=2, max_sge=2)
    got = fields(SRQInit, only_call("ibv_create_srq_ex")[1])
    assert {**got, "pd": 0, "cq": 0, "srq_context": 0} == {
        **{"pd": 0, "cq": 0, "srq_context": 0, "comp_mask": 0b11011, "srq_type": SRQType.TM},
        **{"max_wr": srq.max_wr, "max_sge": srq.max_sge, "max_num_tags": 4, "max_ops": 2},
    }
    mr = MR(pd, 64)
    add = {"sg": [mr[0:8], mr[8:12]], "tag": 0x1234, "mask": 0xFFFF}
    handle = srq.post_ops(OpsWROpcode.TAG_ADD, wr_id=1, recv_wr_id=2, **add)
    _, data = only_call("ibv_post_srq_ops")
    got = fields(Ops, data[: ctypes.sizeof(Ops)])
    op_id, recv_id = got.pop("wr_id"), got.pop("recv_wr_id")
    assert op_id != recv_id
    assert got.pop("sg_list")
    assert got == {"flags": 1, "handle": handle, "num_sge": 2, "tag": 0x1234, "mask": 0xFFFF}
    sges = struct.unpack("=QIIQII", data[ctypes.sizeof(Ops) :])
    assert sges == (mr.addr, 8, mr.lkey, mr.addr + 8, 4, mr.lkey)
    assert srq.outstanding == 2
    with pytest.raises(BusyError, match="still needed by 1 work request"):
        mr.close()
    assert (completed(pd, cq, op_id), srq.outstanding) == ([1], 1)
    with pytest.raises(LookupError, match="handle is 99: no receive"):
        srq.post_ops(OpsWROpcode.TAG_DEL, handle=99)
    srq.post_ops(OpsWROpcode.TAG_DEL, wr_id=3, handle=handle)
    got = fields(Ops, only_call("ibv_post_srq_ops")[1])
    op_id = got.pop("wr_id")
    assert got == {"opcode": OpsWROpcode.TAG_DEL, "flags": 1, "handle": handle}
    assert (completed(pd, cq, op_id), srq.outstanding) == ([3], 0)  # the receive has gone as well
    mr.close()
    srq.post_ops(OpsWROpcode.TAG_SYNC, unexpected_cnt=5, flags=OpsFlags.TM_SYNC)
    got = fields(Ops, only_call("ibv_post_srq_ops")[1])
    assert (got["opcode"], got["flags"], got["unexpected_cnt"]) == (OpsWROpcode.TAG_SYNC, 3, 5)
    core.fail_call(1, errno.ENOMEM)
    with pytest.raises(VerbsError, match="TAG_SYNC, of up to 4 tags"):
        srq.post_ops(OpsWROpcode.TAG_SYNC)
    srq.close()


def test_a_receive_with_a_tag_completes_under_its_own_id(pd: PD, cq: CQ) -> None:
    srq = SRQ(pd, 8, srq_type=SRQType.TM, cq=cq, max_num_tags=1, max_ops=2)
    mr = MR(pd, 64)
    for n in range(3):
        calls()
        srq.post_ops(OpsWROpcode.TAG_ADD, wr_id=10 + n, recv_wr_id=20 + n, sg=mr, tag=n)
        got = fields(Ops, only_call("ibv_post_srq_ops")[1])
        assert completed(pd, cq, got["wr_id"]) == [10 + n]
        assert (completed(pd, cq, got["recv_wr_id"]), srq.outstanding) == ([20 + n], 0)
    mr.close()
    for arguments, words in [
        ({"opcode": 3}, "opcode is 3"),
        ({"opcode": OpsWROpcode.TAG_ADD}, "tag is missing: TAG_ADD needs it"),
        ({"opcode": OpsWROpcode.TAG_DEL}, "handle is missing: TAG_DEL needs it"),
        ({"opcode": OpsWROpcode.TAG_SYNC, "tag": 1}, "tag was given, but TAG_SYNC does not"),
        ({"opcode": OpsWROpcode.TAG_SYNC, "flags": 4}, "flags is 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            srq.post_ops(**arguments)
    with pytest.raises(ValueError, match="is for an SRQ of type TM"):
        SRQ(pd, 4).post_ops(OpsWROpcode.TAG_SYNC)
    for name, value in (("max_num_tags", 17), ("max_ops", 9)):
        with pytest.raises(ValueError, match=f"{name} is {value}: it must be 1 to"):
            SRQ(pd, 4, srq_type=SRQType.TM, cq=cq, **{"max_num_tags": 1, "max_ops": 1, name: value})  # type: ignore[arg-type]


def test_a_receive_is_found_by_its_handle_wherever_the_table_has_it(pd: PD, cq: CQ) -> None:
    """Two handles of one place, of which the first goes."""
    srq = SRQ(pd, 8, srq_type=SRQType.TM, cq=cq, max_num_tags=2, max_ops=2)
    mr = MR(pd, 64)

    def add(wr_id: int) -> tuple[int, int]:
        calls()
        handle = srq.post_ops(OpsWROpcode.TAG_ADD, wr_id=1, recv_wr_id=wr_id, sg=mr, tag=wr_id)
        got = fields(Ops, only_call("ibv_post_srq_ops")[1])
        assert completed(pd, cq, got["wr_id"]) == [1]
        assert handle is not None
        return handle, got["recv_wr_id"]

    first, first_id = add(10)
    second, second_id = add(20)
    assert completed(pd, cq, second_id) == [20]
    third, _ = add(30)
    assert (second - first, third - first) == (1, 2)  # so the third is in the place of the second
    assert completed(pd, cq, first_id) == [10]
    calls()
    srq.post_ops(OpsWROpcode.TAG_DEL, handle=third)
    assert completed(pd, cq, fields(Ops, only_call("ibv_post_srq_ops")[1])["wr_id"]) == [0]
    assert srq.outstanding == 0
    mr.close()


def completed(pd: PD, cq: CQ, device_id: int) -> list[int]:
    """The device completes what it knows by that id; how the user knows it."""
    core.fake_complete(pd, cq, device_id)
    got = ids_of(cq, 1)
    core.fake_complete()
    return got


@pytest.mark.parametrize("wc_flags", [None, WCExFlags(0x7F), WCExFlags.TM_INFO, WCExFlags.FLOW_TAG])
def test_a_message_that_matches_keeps_its_memory_until_its_data_is_there(
    able: Context, pd: PD, wc_flags: WCExFlags | None
) -> None:
    cq = CQ(able, 16, wc_flags=wc_flags)
    srq = SRQ(pd, 8, srq_type=SRQType.TM, cq=cq, max_num_tags=2, max_ops=2)
    mr = MR(pd, 64)
    calls()
    srq.post_ops(OpsWROpcode.TAG_ADD, wr_id=1, recv_wr_id=2, sg=mr, tag=7)
    ids = fields(Ops, only_call("ibv_post_srq_ops")[1])
    wc = completion(pd, cq, ids["wr_id"], WCOpcode.TM_ADD)
    assert (wc.wr_id, wc.opcode, wc.tm_tag, wc.tm_priv) == (1, WCOpcode.TM_ADD, None, None)
    tag = (7, 99) if wc_flags == WCExFlags.TM_INFO else (None, None)
    for flags in (WCFlags.TM_MATCH, WCFlags.TM_DATA_VALID):
        assert srq.outstanding == 1
        with pytest.raises(BusyError, match="still needed by 1 work request"):
            mr.close()
        wc = completion(pd, cq, ids["recv_wr_id"], WCOpcode.TM_RECV, flags, 7, 99)
        assert (wc.wr_id, wc.opcode, wc.wc_flags) == (2, WCOpcode.TM_RECV, flags)
        assert (wc.tm_tag, wc.tm_priv) == tag
        assert wc.flow_tag == (
            ids["recv_wr_id"] & 0xFFFFFFFF if wc_flags == WCExFlags.FLOW_TAG else None
        )
    assert srq.outstanding == 0
    mr.close()
    srq.close()
    cq.close()


def test_a_cq_of_further_fields_that_gets_no_memory_loses_nothing(able: Context, pd: PD) -> None:
    failed = 0
    for n in itertools.count(1):
        cq = CQ(able, 16, wc_flags=WCExFlags.FLOW_TAG)
        qp = QP(pd, QPType.RC, send_cq=CQ(able, 16), recv_cq=cq)
        qp.connect(qp.address())
        qp.post_recv(None, wr_id=n)
        qp.post_send(None)
        until(lambda qp=qp: bool(qp.send_cq.poll()), "sent")  # type: ignore[misc]
        core.fail_alloc(n)
        try:
            got = cq.poll()
        except MemoryError:
            failed += 1
            got = []
        core.fail_alloc(0)
        is_over = core.failed() is None
        assert [wc.wr_id for wc in got or cq.poll()] == [n]
        qp.close()
        cq.close()
        if is_over:
            break
    assert failed > 1


async def test_a_tag_stays_with_its_completion_when_others_are_put_before_it(
    able: Context, pd: PD
) -> None:
    cq = CQ(able, 16, channel=CompletionChannel(able), wc_flags=WCExFlags.TM_INFO)
    srq = SRQ(pd, 8, srq_type=SRQType.TM, cq=cq, max_num_tags=1, max_ops=2)
    qp = QP(pd, QPType.RC, send_cq=CQ(able, 16), recv_cq=cq)
    qp.connect(qp.address())

    def bring(wr_id: int) -> None:
        qp.post_recv(None, wr_id=wr_id)
        qp.post_send(None)

    def fetched(held: int, completions: int) -> None:
        def all_came() -> bool:
            cq.arm_if_empty()  # it looks, and hands nothing out
            return (cq._held, cq.stats.completions) == (held, completions)

        until(all_came, "they came")

    calls()
    srq.post_ops(OpsWROpcode.TAG_ADD, wr_id=1, recv_wr_id=2, sg=MR(pd, 64), tag=7)
    ids = fields(Ops, only_call("ibv_post_srq_ops")[1])
    async with AsyncCQ(cq) as acq:
        claimed = await start(acq.completion(4))
        bring(3)
        fetched(1, 0)
        flags = WCFlags.TM_MATCH | WCFlags.TM_DATA_VALID
        core.fake_complete(pd, cq, ids["recv_wr_id"], WCOpcode.TM_RECV, flags, 7, 99)
        fetched(2, 0)
        core.fake_complete()
        bring(4)
        fetched(2, 1)  # its task has not run
        await cancel(claimed)
        wc = await acq.completion(2)
        assert (wc.tm_tag, wc.tm_priv, wc.completion_ts) == (7, 99, None)
        assert [wc.wr_id for wc in acq.poll()] == [4, 3]


async def test_further_fields_stay_with_their_completion_when_the_one_before_it_is_taken(
    able: Context, pd: PD
) -> None:
    cq = CQ(able, 16, channel=CompletionChannel(able), wc_flags=WCExFlags.FLOW_TAG)
    qp = QP(pd, QPType.RC, send_cq=CQ(able, 16), recv_cq=cq)
    qp.connect(qp.address())
    sent: list[WorkCompletion] = []
    async with AsyncCQ(cq) as acq:
        claimed = await start(acq.completion(1))
        for wr_id in (1, 2):
            qp.post_recv(None, wr_id=wr_id)
            qp.post_send(None)
        until(lambda: sent.extend(qp.send_cq.poll()) or len(sent) == 2, "both are sent")
        (other,) = acq.poll()
        taken = await claimed
    assert (taken.wr_id, other.wr_id) == (1, 2)
    assert taken.flow_tag != other.flow_tag, "the device gives each one its own"


def completion(pd: PD, cq: CQ, device_id: int, *more: int) -> WorkCompletion:
    """The same, with the opcode, flags, tag and private data that it is to have."""
    core.fake_complete(pd, cq, device_id, *more)
    got: list[WorkCompletion] = []
    until(lambda: bool(got.extend(cq.poll()) or got), "it came")
    core.fake_complete()
    (wc,) = got
    return wc


# ---- segmentation ------------------------------------------------------------------------------


@pytest.mark.parametrize("qp_type", [QPType.UD, QPType.RAW_PACKET])
def test_what_is_to_be_segmented_reaches_the_device(pd: PD, cq: CQ, qp_type: QPType) -> None:
    qp = QP(pd, qp_type, send_cq=cq, max_tso_header=40)
    got = fields(QPInitEx, calls()[0][2])
    assert (got["comp_mask"], got["max_tso_header"]) == (1 | 8, 40)
    qp.connect()
    mr, header = MR(pd, 8192), bytes(range(40))
    where: dict[str, Any] = {}
    if qp_type == QPType.UD:
        gid = qp.context.find_gid()
        ah = AH(pd, dgid=gid.gid, sgid_index=gid.index)
        where = {"ah": ah, "remote_qpn": qp.qp_num, "remote_qkey": 0x11111111}
    tso: dict[str, Any] = {"opcode": WROpcode.TSO, "tso_header": header, "mss": 100, **where}
    wr = SendWR(mr[0:64], wr_id=2, **{**tso, "tso_header": bytes(bytearray(header))})
    for post in (
        lambda: qp.post_send(mr[0:64], wr_id=1, **tso),
        lambda: qp.post_send(wr),
        lambda: qp.post_send([wr]),
    ):
        calls()
        post()
        assert only_call("ibv_post_send")[1] == struct.pack("=H", 100) + header
    assert ids_of(cq, 3) == [1, 2, 2]
    for change, error, words in [
        ({"tso_header": bytes(41)}, ValueError, "41 bytes: this QP sends at most 40 .max_tso_hea"),
        ({"tso_header": b""}, ValueError, "tso_header has 0 bytes: it must have 1 to 65535"),
        ({"tso_header": "text"}, TypeError, "tso_header must be bytes, not str"),
        ({"tso_header": None}, ValueError, "tso_header is missing: TSO needs it"),
        ({"mss": 0}, ValueError, "mss is 0: it must be 1 to 65535"),
        ({"mss": None}, ValueError, "mss is missing: TSO needs it"),
        ({"opcode": WROpcode.SEND}, ValueError, "tso_header was given, but SEND does not take it"),
        ({"send_flags": SendFlags.INLINE}, ValueError, "INLINE is not possible with TSO"),
        ({"sg": mr[0:4097]}, ValueError, "4097 bytes: .* segments at most 4096 .query_device_ex"),
    ]:
        with pytest.raises(error, match=words):
            qp.post_send(**{"sg": mr[0:64], **tso, **change})  # type: ignore[arg-type]
    with (
        QP(pd, qp_type, send_cq=cq) as plain,
        pytest.raises(ValueError, match="40 bytes: this QP sends at most 0"),
    ):
        plain.connect()
        plain.post_send(wr)


# ---- calls that fail ---------------------------------------------------------------------------


def everything(able: Context) -> None:
    x = XRC(able)
    x.srq.get_srq_num()
    qp = raw(x.pd, x.cq)
    counters = FlowCounters(able)
    counters.attach(CounterDescription.PACKETS)
    flow = Flow(qp, [FlowSpecActionDrop(), FlowSpecActionCount(counters)])
    counters.read()
    wq = WQ(x.pd, x.cq)
    wq.modify(wq_state=WQState.RDY)
    wq.post_recv(x.mr[0:8])
    table = RwqIndTable(able, [wq])
    rss = QP(x.pd, QPType.RAW_PACKET, rwq_ind_tbl=table, rx_hash_conf=HASH)
    opened = QP.open(x.xrcd, 5)
    qp.query_ece()
    qp.set_ece(1)
    qp.query_data_in_order(WROpcode.SEND)
    tm = SRQ(x.pd, 4, srq_type=SRQType.TM, cq=x.cq, max_num_tags=1, max_ops=1)
    tm.post_ops(OpsWROpcode.TAG_SYNC)
    close_all(tm, opened, rss, table, wq, flow, counters, qp, x.sender, x.receiver, x.srq, x.xrcd)
    close_all(x.mr, x.cq, x.srq_cq, x.pd)


def close_all(*things: Any) -> None:
    """In a frame of its own, which ends before the caller's if one of them stays open."""
    for thing in things:
        thing.close()


EACH = {
    *("ibv_open_xrcd", "ibv_create_srq_ex", "ibv_create_qp_ex", "ibv_get_srq_num", "ibv_open_qp"),
    *("ibv_create_counters", "ibv_attach_counters_point_flow", "ibv_read_counters"),
    "ibv_destroy_counters",
    *("ibv_create_flow", "ibv_create_wq", "ibv_modify_wq", "ibv_create_rwq_ind_table"),
    *("ibv_query_ece", "ibv_set_ece", "ibv_query_qp_data_in_order", "ibv_post_srq_ops"),
    *("ibv_destroy_flow", "ibv_destroy_wq", "ibv_destroy_rwq_ind_table", "ibv_close_xrcd"),
    *("ibv_post_wq_recv", "ibv_post_wq_recv when made"),
}


@pytest.mark.parametrize("what", ["call", "allocation"])
def test_each_call_and_each_allocation_fails_once(able: Context, what: str) -> None:
    def run(begin: Callable[[], None]) -> None:
        begin()
        everything(able)

    seen = each_that_failed(what, run)
    assert what == "allocation" or seen >= EACH
