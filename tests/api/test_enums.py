# SPDX-License-Identifier: MIT
"""Enums: every enumerator of the header has its name and value, unknown values stay ints."""

import ast
import enum
import inspect
import json

import pytest
from support import python

import cqnotify
from cqnotify import _core, enums, hw
from cqnotify.enums import MTU, WCFlags, WCOpcode, WCStatus, enum_or_int

PREFIXES = {
    enums.WROpcode: "IBV_WR_",
    enums.SendFlags: "IBV_SEND_",
    enums.AccessFlags: "IBV_ACCESS_",
    enums.MWType: "IBV_MW_",
    enums.AdviseMRAdvice: "IBV_ADVISE_MR_ADVICE_",
    enums.AdviseMRFlags: "IBV_ADVISE_MR_FLAG_",
    enums.QPType: "IBV_QPT_",
    enums.QPState: "IBV_QPS_",
    enums.MTU: "IBV_",
    enums.MigState: "IBV_MIG_",
    enums.PortState: "IBV_PORT_",
    enums.LinkLayer: "IBV_LINK_LAYER_",
    enums.GIDType: "IBV_GID_TYPE_",
    enums.NodeType: "IBV_NODE_",
    enums.TransportType: "IBV_TRANSPORT_",
    enums.AtomicCap: "IBV_ATOMIC_",
    enums.DeviceCapFlags: "IBV_DEVICE_",
    enums.ForkStatus: "IBV_FORK_",
    enums.ODPGeneralCaps: "IBV_ODP_",
    enums.ODPTransportCaps: "IBV_ODP_SUPPORT_",
    WCStatus: "IBV_WC_",
    WCOpcode: "IBV_WC_",
    WCFlags: "IBV_WC_",
    enums.WCExFlags: "IBV_WC_EX_WITH_",
    enums.AsyncEventType: "IBV_EVENT_",
    enums.QPCreateFlags: "IBV_QP_CREATE_",
    enums.CQCreateFlags: "IBV_CREATE_CQ_ATTR_",
    enums.PlacementType: "IBV_FLUSH_",
    enums.SelectivityLevel: "IBV_FLUSH_",
    enums.CounterDescription: "IBV_COUNTER_",
    enums.ReadCountersFlags: "IBV_READ_COUNTERS_ATTR_",
    enums.SRQType: "IBV_SRQT_",
    enums.OpsWROpcode: "IBV_WR_",
    enums.OpsFlags: "IBV_OPS_",
    enums.WQType: "IBV_WQT_",
    enums.WQState: "IBV_WQS_",
    enums.WQFlags: "IBV_WQ_FLAGS_",
    enums.RxHashFunction: "IBV_RX_HASH_FUNC_",
    enums.RxHashFields: "IBV_RX_HASH_",
    enums.FlowAttrType: "IBV_FLOW_ATTR_",
    enums.FlowAttrFlags: "IBV_FLOW_ATTR_FLAGS_",
    enums.RawPacketCaps: "IBV_RAW_PACKET_CAP_",
    enums.TMCapFlags: "IBV_TM_CAP_",
}

# str() and format(), which differ between versions of Python, and the number.
PRINTED = [
    (WCStatus.REM_ACCESS_ERR, "WCStatus.REM_ACCESS_ERR", 10),
    (enums.SendFlags.SIGNALED, "SendFlags.SIGNALED", 2),
]

# From the header, by hand: these numbers are the ABI and will not change.
KNOWN = {
    WCStatus.SUCCESS: 0,
    WCStatus.WR_FLUSH_ERR: 5,
    WCStatus.RETRY_EXC_ERR: 12,
    WCStatus.RNR_RETRY_EXC_ERR: 13,
    WCStatus.GENERAL_ERR: 21,
    WCOpcode.SEND: 0,
    WCOpcode.BIND_MW: 5,
    WCOpcode.FLUSH: 8,
    WCOpcode.ATOMIC_WRITE: 9,
    WCOpcode.RECV: 128,
    WCOpcode.RECV_RDMA_WITH_IMM: 129,
    WCFlags.WITH_IMM: 2,
    WCFlags.WITH_INV: 8,
    enums.WCExFlags.DLID_PATH_BITS: 64,
    enums.WCExFlags.COMPLETION_TIMESTAMP_WALLCLOCK: 2048,
    enums.AsyncEventType.CQ_ERR: 0,
    enums.AsyncEventType.PORT_ERR: 10,
    enums.AsyncEventType.GID_CHANGE: 18,
    enums.AsyncEventType.DEVICE_SPEED_CHANGE: 20,
    enums.WROpcode.SEND: 2,
    enums.WROpcode.RDMA_READ: 4,
    enums.WROpcode.LOCAL_INV: 7,
    enums.WROpcode.SEND_WITH_INV: 9,
    enums.WROpcode.FLUSH: 14,
    enums.WROpcode.ATOMIC_WRITE: 15,
    enums.SendFlags.SIGNALED: 2,
    enums.SendFlags.SOLICITED: 4,
    enums.AccessFlags.REMOTE_ATOMIC: 8,
    enums.AccessFlags.FLUSH_PERSISTENT: 512,
    enums.MWType.TYPE_2: 2,
    enums.QPType.RC: 2,
    enums.QPType.UD: 4,
    enums.QPType.DRIVER: 255,
    enums.QPState.RTS: 3,
    enums.QPState.ERR: 6,
    enums.PortState.ACTIVE: 4,
    enums.LinkLayer.ETHERNET: 2,
    enums.GIDType.ROCE_V2: 2,
    enums.NodeType.UNKNOWN: -1,
    enums.NodeType.RNIC: 4,
    enums.AtomicCap.GLOB: 2,
    enums.DeviceCapFlags.XRC: 1 << 20,
    enums.DeviceCapFlags.PCI_WRITE_END_PADDING: 1 << 36,
    enums.ODPTransportCaps.SRQ_RECV: 32,
    enums.QPCreateFlags.SOURCE_QPN: 1 << 10,
    enums.SRQType.TM: 2,
    enums.PlacementType.PERSISTENT: 2,
    enums.SelectivityLevel.MR: 1,
    enums.CQCreateFlags.IGNORE_OVERRUN: 2,
    enums.OpsWROpcode.TAG_SYNC: 2,
    enums.CounterDescription.BYTES: 1,
    enums.ReadCountersFlags.PREFER_CACHED: 1,
    enums.WQState.ERR: 2,
    enums.WQFlags.PCI_WRITE_END_PADDING: 8,
    enums.RxHashFields.DST_PORT_UDP: 128,
    enums.FlowAttrType.SNIFFER: 3,
    enums.FlowAttrFlags.EGRESS: 4,
}


@pytest.mark.parametrize("cls", PREFIXES, ids=lambda cls: cls.__name__)
def test_every_member_has_the_value_of_its_enumerator(cls):
    assert len(cls) >= 1
    for name, member in cls.__members__.items():
        assert member == _core.constants[PREFIXES[cls] + name]


@pytest.mark.parametrize(("member", "value"), KNOWN.items(), ids=str)
def test_known_values(member, value):
    assert int(member) == value


@pytest.mark.parametrize(
    "prefix", sorted({prefix for prefix in PREFIXES.values() if prefix != "IBV_"})
)
def test_no_enumerator_of_the_header_is_missing(prefix):
    named = {its + name for cls, its in PREFIXES.items() for name in cls.__members__}
    longer = tuple(p for p in PREFIXES.values() if p != prefix and p.startswith(prefix))
    known = {
        name
        for name in _core.constants
        if name.startswith(prefix) and not (longer and name.startswith(longer))
    }
    assert {name for name in known - named if not name.endswith("_SHIFT")} == set()


def test_members_of_one_enum_are_all_different():
    for cls in PREFIXES:
        assert len(cls.__members__) == len({int(member) for member in cls.__members__.values()})


def test_mtu_in_bytes():
    assert {mtu.name: mtu.bytes for mtu in MTU} == {
        f"MTU_{n}": n for n in (256, 512, 1024, 2048, 4096)
    }


def test_a_known_value_becomes_its_member():
    assert enum_or_int(WCStatus, 5) is WCStatus.WR_FLUSH_ERR


@pytest.mark.parametrize("value", [99, -7, 2**31])
def test_an_unknown_value_stays_a_plain_int(value):
    assert enum_or_int(WCStatus, value) == value
    assert type(enum_or_int(WCStatus, value)) is int


def test_unknown_flags_are_kept():
    flags = enum_or_int(WCFlags, WCFlags.WITH_IMM | 1 << 20)
    assert flags & WCFlags.WITH_IMM
    assert flags & 1 << 20


def test_every_enum_is_exported():
    classes = {
        name
        for name, cls in inspect.getmembers(enums, inspect.isclass)
        if issubclass(cls, enum.Enum) and cls.__module__ == enums.__name__ and name[0] != "_"
    }
    assert classes <= {*cqnotify.__all__, *hw.__all__}
    assert classes | {"enum_or_int"} == set(enums.__all__)


def test_enums_import_nothing_of_the_package_but_the_core_and_their_bases():
    tree = ast.parse(inspect.getsource(enums))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    assert modules <= {"enum", "operator", "typing", "_core", "_named", None}


def test_importing_has_no_side_effects():
    code = """
import logging, signal, sys, threading, warnings
before = (
    logging.root.handlers[:], logging.root.level, warnings.filters[:],
    signal.getsignal(signal.SIGINT), sys.excepthook, threading.active_count(),
)
import cqnotify
after = (
    logging.root.handlers[:], logging.root.level, warnings.filters[:],
    signal.getsignal(signal.SIGINT), sys.excepthook, threading.active_count(),
)
assert before == after, (before, after)
assert isinstance(cqnotify.devices(), list)
"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("member", "name", "number"), PRINTED)
def test_a_member_prints_as_its_name_and_counts_as_its_number(
    member: enum.Enum, name: str, number: int
) -> None:
    assert (str(member), f"{member}", f"{member:d}", f"{member:#x}") == (
        *(name, name),
        *(str(number), hex(number)),
    )
    assert json.dumps(member) == str(number)
    assert member == number
