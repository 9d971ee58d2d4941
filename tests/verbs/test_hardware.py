# SPDX-License-Identifier: MIT
"""XRC, raw packets, flows, RSS, tags, ECE: refused where the device lacks them, and before it is
called where the arguments are wrong. How they are done is in tests/faults/test_fake_device.py."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from support import on_iwarp

from cqnotify import (
    CQ,
    PD,
    QP,
    SRQ,
    ClosedError,
    Context,
    DeviceCapFlags,
    QPType,
    SendWR,
    VerbsError,
    WCExFlags,
    WROpcode,
    _core,
)
from cqnotify.hw import (
    WQ,
    XRCD,
    Flow,
    FlowCounters,
    FlowSpecActionDrop,
    FlowSpecActionTag,
    FlowSpecEth,
    FlowSpecIPv4,
    FlowSpecIPv6,
    FlowSpecTCP,
    FlowSpecUDP,
    QPCreateFlags,
    RwqIndTable,
    RxHashConf,
    RxHashFields,
    RxHashFunction,
    SRQType,
)

UD, RAW, XRC_SEND, XRC_RECV = QPType.UD, QPType.RAW_PACKET, QPType.XRC_SEND, QPType.XRC_RECV
Call = Callable[[Context, PD, CQ], object]


def refused(call: Callable[[], Any], verb: str, what: str) -> None:
    with pytest.raises(VerbsError, match=f"^.*{verb}: not supported by this device: .*{what}") as e:
        call()
    assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, verb)


@pytest.fixture(autouse=True)
def in_software(ctx: Context) -> None:
    """rxe or siw, which have none of it."""
    if ctx.query_device().device_cap_flags & DeviceCapFlags.XRC:
        pytest.skip(f"{ctx.name} may be able to do it")


# ---- what the device lacks ---------------------------------------------------------------------

REFUSED: dict[str, tuple[Call, str, str]] = {
    "XRCD": (lambda ctx, pd, cq: XRCD(ctx), "ibv_open_xrcd", "fd -1, oflags 0x40, and XRC is"),
    "XRC_SEND": (
        lambda ctx, pd, cq: QP(pd, XRC_SEND, send_cq=cq),
        "ibv_create_qp",
        "QPType.XRC_SEND",
    ),
    "RAW_PACKET": (
        lambda ctx, pd, cq: QP(pd, RAW, send_cq=cq),
        "ibv_create_qp",
        "QPType.RAW_PACKET",
    ),
    "create_flags": (
        lambda ctx, pd, cq: QP(
            pd, QPType.RC, send_cq=cq, create_flags=QPCreateFlags.BLOCK_SELF_MCAST_LB
        ),
        "ibv_create_qp_ex",
        "QPType.RC with these create_flags",
    ),
    "source_qpn": (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, source_qpn=7),
        "ibv_create_qp_ex",
        "QPType.RC with these create_flags",
    ),
    "max_tso_header": (
        lambda ctx, pd, cq: QP(pd, RAW, send_cq=cq, max_tso_header=64),
        "ibv_create_qp_ex",
        "segments nothing of QPType.RAW_PACKET",
    ),
    "TM_INFO": (
        lambda ctx, pd, cq: CQ(ctx, 4, wc_flags=WCExFlags.TM_INFO),
        "ibv_create_cq_ex",
        "wc_flags 0x400: this device does not report all of these fields",
    ),
    "FlowCounters": (
        lambda ctx, pd, cq: FlowCounters(ctx),
        "ibv_create_counters",
        "counters of flows",
    ),
    "WQ": (
        lambda ctx, pd, cq: WQ(pd, cq),
        "ibv_create_wq",
        "a queue of receives, max_wr=16, max_sge=1",
    ),
    "RwqIndTable": (
        lambda ctx, pd, cq: RwqIndTable(ctx, []),
        "ibv_create_rwq_ind_table",
        "spreads no packets",
    ),
    "TM": (
        lambda ctx, pd, cq: SRQ(pd, 4, srq_type=SRQType.TM, cq=cq, max_num_tags=4, max_ops=4),
        "ibv_create_srq_ex",
        "SRQType.TM: .* matches no tags",
    ),
    "query_ece": (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq).query_ece(),
        "ibv_query_ece",
        "enhanced connection establishment",
    ),
    "set_ece": (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq).set_ece(0x15B3, 5),
        "ibv_set_ece",
        "vendor_id 0x15b3, options 0x5",
    ),
    "get_srq_num": (lambda ctx, pd, cq: SRQ(pd, 4).get_srq_num(), "ibv_get_srq_num", "of type XRC"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_device_lacks_is_refused_in_words(ctx: Context, pd: PD, cq: CQ, what: str) -> None:
    call, verb, words = REFUSED[what]
    refused(lambda: call(ctx, pd, cq), verb, words)


@pytest.mark.usefixtures("conversation")
def test_a_flow_is_refused_in_words(pd: PD, cq: CQ) -> None:
    qp = QP(pd, UD, send_cq=cq)
    refused(
        lambda: Flow(qp, [FlowSpecEth(ether_type=0x0800), FlowSpecActionDrop()]),
        "ibv_create_flow",
        "flow steering, of a rule of 2 specs",
    )
    qp.close()


def test_data_in_order_is_not_promised(pd: PD, cq: CQ) -> None:
    with QP(pd, QPType.RC, send_cq=cq) as qp:
        assert qp.query_data_in_order(WROpcode.RDMA_WRITE) == 0
        with pytest.raises(ValueError, match="opcode is -1: it must be 0 to 255"):
            qp.query_data_in_order(-1)


def test_its_caps_are_nothing(ctx: Context) -> None:
    attr = ctx.query_device_ex()
    assert {*attr.tm_caps, *attr.rss_caps, *attr.tso_caps} == {0}
    assert (attr.raw_packet_caps, attr.max_wq_type_rq) == (0, 0)


# ---- wrong arguments ---------------------------------------------------------------------------

HASH = RxHashConf(RxHashFunction.TOEPLITZ, bytes(40), RxHashFields.SRC_IPV4)
WRONG: list[tuple[Call, type[Exception], str]] = [
    (lambda ctx, pd, cq: XRCD(ctx, oflags=0), ValueError, "oflags lack os.O_CREAT"),
    (lambda ctx, pd, cq: XRCD(ctx, oflags=os.O_TRUNC), ValueError, "oflags is 0x200"),
    (lambda ctx, pd, cq: XRCD(ctx, fd=-1), ValueError, "negative"),
    (lambda ctx, pd, cq: XRCD(ctx, fd="f"), TypeError, "fileno"),  # type: ignore[arg-type]
    (lambda ctx, pd, cq: XRCD(pd), TypeError, "context must be"),  # type: ignore[arg-type]
    (
        lambda ctx, pd, cq: QP(pd, XRC_RECV, send_cq=cq),
        ValueError,
        "xrcd is missing: XRC_RECV needs it",
    ),
    (
        lambda ctx, pd, cq: QP(pd, XRC_SEND, send_cq=cq, recv_cq=cq),
        ValueError,
        "recv_cq was given, but XRC_SEND does not take it",
    ),
    (
        lambda ctx, pd, cq: QP(pd, XRC_SEND, send_cq=cq, max_recv_wr=1),
        ValueError,
        "max_recv_wr was given, but XRC_SEND does not take it",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, xrcd=pd),
        ValueError,  # type: ignore[call-overload]
        "xrcd was given, but RC does not take it",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, rx_hash_conf=HASH),
        ValueError,  # type: ignore[call-overload]
        "rx_hash_conf was given, but a QP without rwq_ind_tbl does not take it",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, create_flags=1),
        ValueError,
        "create_flags is 0x1: 0x1 is no flag",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, create_flags=QPCreateFlags.SOURCE_QPN),
        ValueError,
        "create_flags has SOURCE_QPN: give source_qpn",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, source_qpn=1 << 24),
        ValueError,
        "source_qpn is 16777216: it must be 0 to 16777215",
    ),
    (
        lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq, max_tso_header=1),
        ValueError,
        "max_tso_header was given, but RC does not take it",
    ),
    (lambda ctx, pd, cq: SendWR(opcode=WROpcode.TSO), ValueError, "tso_header is missing"),
    (lambda ctx, pd, cq: QP.open(pd, 7), TypeError, "xrcd must be a"),  # type: ignore[arg-type]
    (lambda ctx, pd, cq: QP(pd, QPType.RC, send_cq=cq).set_ece(0), ValueError, "vendor_id is 0"),
    (
        lambda ctx, pd, cq: SRQ(pd, 4, srq_type=3),
        ValueError,
        "srq_type is 3: it must be SRQType.BASIC",
    ),
    (lambda ctx, pd, cq: SRQ(pd, 4, cq=cq), ValueError, "cq was given, but an SRQ of type BASIC"),
    (
        lambda ctx, pd, cq: SRQ(pd, 4, max_ops=1),
        ValueError,
        "max_ops was given, but an SRQ of type BA",
    ),
    (lambda ctx, pd, cq: SRQ(pd, 4, srq_type=SRQType.XRC, cq=cq), ValueError, "xrcd is missing"),
    (
        lambda ctx, pd, cq: SRQ(pd, 4, srq_type=SRQType.TM, cq=cq),
        ValueError,
        "max_num_tags is missing",
    ),
    (lambda ctx, pd, cq: WQ(pd, cq, max_wr=0), ValueError, "max_wr is 0: it must be 1 to"),
    (lambda ctx, pd, cq: WQ(pd, cq, wq_type=1), ValueError, "wq_type is 1"),
    (lambda ctx, pd, cq: WQ(pd, cq, create_flags=16), ValueError, "create_flags is 16"),
    (lambda ctx, pd, cq: WQ(pd, pd), TypeError, "cq must be a"),  # type: ignore[arg-type]
    (lambda ctx, pd, cq: RwqIndTable(ctx, [pd]), TypeError, "wqs must be a"),  # type: ignore[list-item]
    (lambda ctx, pd, cq: SendWR(remote_srqn=1 << 24), ValueError, "remote_srqn is 16777216"),
    (
        lambda ctx, pd, cq: SendWR(opcode=WROpcode.RDMA_READ, remote_addr=0, rkey=0, remote_srqn=1),
        ValueError,
        "remote_srqn was given, but RDMA_READ does not take it",
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_are_refused_before_the_device(
    ctx: Context, pd: PD, cq: CQ, number: int
) -> None:
    call, error, words = WRONG[number]
    with pytest.raises(error, match=words):
        call(ctx, pd, cq)


def test_a_file_names_a_domain(ctx: Context) -> None:
    with tempfile.TemporaryFile() as file:
        refused(lambda: XRCD(ctx, fd=file), "ibv_open_xrcd", f"fd {file.fileno()}")


@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC])
@pytest.mark.usefixtures("conversation")
def test_a_flow_leads_to_a_qp_of_packets(pd: PD, cq: CQ, qp_type: QPType) -> None:
    with (
        QP(pd, qp_type, send_cq=cq) as qp,
        pytest.raises(ValueError, match=f"qp is of type {qp_type.name}: a Flow leads to"),
    ):
        Flow(qp)


WRONG_SPECS: list[tuple[Any, type[Exception], str]] = [
    (FlowSpecEth(dst_mac="12:34"), ValueError, "dst_mac has 2 bytes: it must have 6"),
    (FlowSpecEth(dst_mac="x"), ValueError, "dst_mac is 'x': it is no address of 6 bytes"),
    (FlowSpecEth(vlan_tag=1 << 16), ValueError, "vlan_tag is 65536: it must be 0 to 65535"),
    (FlowSpecEth(src_mac_mask=1), ValueError, "src_mac_mask was given without src_mac"),
    (FlowSpecEth(ether_type=0x0801, ether_type_mask=0xFF00), ValueError, "lacks bits of it"),
    (FlowSpecIPv4(src_ip="::1"), ValueError, "src_ip is '::1': it is no address of 4 bytes"),
    (FlowSpecIPv4(tos=1.5), TypeError, "tos must be an integer or an address, not float"),  # type: ignore[arg-type]
    (FlowSpecIPv6(flow_label=1 << 20), ValueError, "flow_label is 1048576"),
    (FlowSpecTCP(dst_port=-1), ValueError, "dst_port is -1: it must be 0 to 65535"),
    (FlowSpecUDP(src_port=65536), ValueError, "src_port is 65536"),
    (FlowSpecActionTag(1 << 32), ValueError, "tag_id is 4294967296"),
    (b"", TypeError, "specs has a bytes"),
]


@pytest.mark.usefixtures("conversation")
def test_wrong_rules_are_refused_before_the_device(pd: PD, cq: CQ) -> None:
    with QP(pd, UD, send_cq=cq) as qp:
        for spec, error, words in WRONG_SPECS:
            with pytest.raises(error, match=words):
                Flow(qp, [spec])
        for arguments in (
            {"flow_type": 4},
            {"priority": 1 << 16},
            {"flags": 1},
            {"flags": 8},
            {"port_num": 0},
        ):
            ((name, value),) = arguments.items()
            with pytest.raises(ValueError, match=f"{name} is {value}|{name} is {value:#x}"):
                Flow(qp, **arguments)


@pytest.mark.parametrize(
    "specs",
    [
        b"\x20",
        b"\x20\0\0\0\x28\0",
        bytes(8),
        b"\x02\x10\0\0\x10\0" + bytes(10),  # an action that is a pointer
        b"\x01\x10\0\0\x08\0\0\0" * 256,
    ],
)
@pytest.mark.usefixtures("conversation")
def test_the_core_lets_no_spec_through_that_is_not_whole(pd: PD, cq: CQ, specs: bytes) -> None:
    from cqnotify import _core

    with (
        QP(pd, UD, send_cq=cq) as qp,
        pytest.raises(ValueError, match=r"specs\[\d+\] is no spec that a Flow takes"),
    ):
        _core.Flow(qp, specs)


class Closing:
    """A number that closes something as it is read."""

    def __init__(self, target: Any, value: int) -> None:
        self.target, self.value = target, value

    def __index__(self) -> int:
        self.target.close()
        return self.value


@pytest.mark.usefixtures("conversation")
def test_specs_are_checked_as_they_are_after_all_arguments_were_read(pd: PD, cq: CQ) -> None:
    class Cuts:
        def __index__(self) -> int:
            del specs[7:]
            return 0

    specs = bytearray(b"\x01\x10\0\0\x08\0\0\0" * 2)  # FlowSpecActionDrop, twice
    with (
        QP(pd, UD, send_cq=cq) as qp,
        pytest.raises(ValueError, match=r"specs\[0\] is no spec that a Flow takes"),
    ):
        _core.Flow(qp, specs, priority=Cuts())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda qp, pd, cq: _core.Flow(qp, flow_type=Closing(qp, 0)), id="Flow"),
        pytest.param(
            lambda qp, pd, cq: _core.SRQ(
                pd, 4, srq_type=Closing(pd, int(SRQType.TM)), cq=cq, max_num_tags=1, max_ops=1
            ),
            id="SRQ",
        ),
        pytest.param(lambda qp, pd, cq: _core.MR(pd, 4096, iova=Closing(pd, 0)), id="MR"),
        pytest.param(lambda qp, pd, cq: pd.advise_mr(Closing(pd, 0), []), id="advise_mr"),
    ],
)
def test_what_an_argument_closes_is_found_closed(
    ctx: Context, pd: PD, cq: CQ, call: Callable[[Any, PD, CQ], object]
) -> None:
    other = PD(ctx)
    qp = None if on_iwarp() else QP(other, UD, send_cq=cq)
    if qp is None and "Flow" in call.__code__.co_names:
        pytest.skip(f"{ctx.name} has no queue pair that takes a Flow")
    with pytest.raises(ClosedError, match="is closed"):
        call(qp, pd, cq)
