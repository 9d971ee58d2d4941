# SPDX-License-Identifier: MIT
"""The names of `cqnotify` for tools that read them: many come when they are first used.

The form `X as X` is what completion goes by in a stub, and `__all__` what type checkers do.
"""

from . import attrs as attrs
from . import context as context
from . import enums as enums
from . import flow as flow
from . import mw as mw
from . import qp as qp
from . import srq as srq
from . import wc as wc
from . import wq as wq
from ._core import AH as AH
from ._core import CQ as CQ
from ._core import DM as DM
from ._core import MR as MR
from ._core import PD as PD
from ._core import SGE as SGE
from ._core import TD as TD
from ._core import XRCD as XRCD
from ._core import AsyncEvent as AsyncEvent
from ._core import AsyncEventError as AsyncEventError
from ._core import BusyError as BusyError
from ._core import ClosedError as ClosedError
from ._core import CompletionChannel as CompletionChannel
from ._core import CompletionError as CompletionError
from ._core import CQStats as CQStats
from ._core import DeviceRemovedError as DeviceRemovedError
from ._core import FailureWatch as FailureWatch
from ._core import FlowCounters as FlowCounters
from ._core import ParentDomain as ParentDomain
from ._core import RecvWR as RecvWR
from ._core import RwqIndTable as RwqIndTable
from ._core import SendWR as SendWR
from ._core import VerbsError as VerbsError
from ._core import WCArray as WCArray
from ._core import WorkCompletion as WorkCompletion
from ._report import register_report as register_report
from ._report import report as report
from ._report import unregister_report as unregister_report
from .attrs import ECE as ECE
from .attrs import AHAttr as AHAttr
from .attrs import CQModerationCaps as CQModerationCaps
from .attrs import Device as Device
from .attrs import DeviceAttr as DeviceAttr
from .attrs import DeviceAttrEx as DeviceAttrEx
from .attrs import GIDEntry as GIDEntry
from .attrs import ODPCaps as ODPCaps
from .attrs import ODPPerTransportCaps as ODPPerTransportCaps
from .attrs import PacketPacingCaps as PacketPacingCaps
from .attrs import PortAttr as PortAttr
from .attrs import QPAttr as QPAttr
from .attrs import QPCap as QPCap
from .attrs import RSSCaps as RSSCaps
from .attrs import RTValues as RTValues
from .attrs import RxHashConf as RxHashConf
from .attrs import SRQAttr as SRQAttr
from .attrs import TMCaps as TMCaps
from .attrs import TSOCaps as TSOCaps
from .context import Context as Context
from .context import devices as devices
from .context import fork_status as fork_status
from .enums import MTU as MTU
from .enums import AccessFlags as AccessFlags
from .enums import AdviseMRAdvice as AdviseMRAdvice
from .enums import AdviseMRFlags as AdviseMRFlags
from .enums import AsyncEventType as AsyncEventType
from .enums import AtomicCap as AtomicCap
from .enums import CounterDescription as CounterDescription
from .enums import CQCreateFlags as CQCreateFlags
from .enums import DeviceCapFlags as DeviceCapFlags
from .enums import FlowAttrFlags as FlowAttrFlags
from .enums import FlowAttrType as FlowAttrType
from .enums import ForkStatus as ForkStatus
from .enums import GIDType as GIDType
from .enums import LinkLayer as LinkLayer
from .enums import MigState as MigState
from .enums import MWType as MWType
from .enums import NodeType as NodeType
from .enums import ODPGeneralCaps as ODPGeneralCaps
from .enums import ODPTransportCaps as ODPTransportCaps
from .enums import OpsFlags as OpsFlags
from .enums import OpsWROpcode as OpsWROpcode
from .enums import PlacementType as PlacementType
from .enums import PortState as PortState
from .enums import QPCreateFlags as QPCreateFlags
from .enums import QPState as QPState
from .enums import QPType as QPType
from .enums import RawPacketCaps as RawPacketCaps
from .enums import ReadCountersFlags as ReadCountersFlags
from .enums import RxHashFields as RxHashFields
from .enums import RxHashFunction as RxHashFunction
from .enums import SelectivityLevel as SelectivityLevel
from .enums import SendFlags as SendFlags
from .enums import SRQType as SRQType
from .enums import TMCapFlags as TMCapFlags
from .enums import TransportType as TransportType
from .enums import WCExFlags as WCExFlags
from .enums import WCFlags as WCFlags
from .enums import WCOpcode as WCOpcode
from .enums import WCStatus as WCStatus
from .enums import WQFlags as WQFlags
from .enums import WQState as WQState
from .enums import WQType as WQType
from .enums import WROpcode as WROpcode
from .flow import Flow as Flow
from .flow import FlowSpec as FlowSpec
from .flow import FlowSpecActionCount as FlowSpecActionCount
from .flow import FlowSpecActionDrop as FlowSpecActionDrop
from .flow import FlowSpecActionTag as FlowSpecActionTag
from .flow import FlowSpecEth as FlowSpecEth
from .flow import FlowSpecIPv4 as FlowSpecIPv4
from .flow import FlowSpecIPv6 as FlowSpecIPv6
from .flow import FlowSpecTCP as FlowSpecTCP
from .flow import FlowSpecUDP as FlowSpecUDP
from .mw import MW as MW
from .mw import inc_rkey as inc_rkey
from .qp import QP as QP
from .qp import QPAddress as QPAddress
from .srq import SRQ as SRQ
from .wc import SuccessfulCompletion as SuccessfulCompletion
from .wq import WQ as WQ

__all__ = [
    "AH",
    "CQ",
    "DM",
    "ECE",
    "MR",
    "MTU",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "TD",
    "WQ",
    "XRCD",
    "AHAttr",
    "AccessFlags",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "AsyncEvent",
    "AsyncEventError",
    "AsyncEventType",
    "AtomicCap",
    "BusyError",
    "CQCreateFlags",
    "CQModerationCaps",
    "CQStats",
    "ClosedError",
    "CompletionChannel",
    "CompletionError",
    "Context",
    "CounterDescription",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "DeviceCapFlags",
    "DeviceRemovedError",
    "FailureWatch",
    "Flow",
    "FlowAttrFlags",
    "FlowAttrType",
    "FlowCounters",
    "FlowSpec",
    "FlowSpecActionCount",
    "FlowSpecActionDrop",
    "FlowSpecActionTag",
    "FlowSpecEth",
    "FlowSpecIPv4",
    "FlowSpecIPv6",
    "FlowSpecTCP",
    "FlowSpecUDP",
    "ForkStatus",
    "GIDEntry",
    "GIDType",
    "LinkLayer",
    "MWType",
    "MigState",
    "NodeType",
    "ODPCaps",
    "ODPGeneralCaps",
    "ODPPerTransportCaps",
    "ODPTransportCaps",
    "OpsFlags",
    "OpsWROpcode",
    "PacketPacingCaps",
    "ParentDomain",
    "PlacementType",
    "PortAttr",
    "PortState",
    "QPAddress",
    "QPAttr",
    "QPCap",
    "QPCreateFlags",
    "QPState",
    "QPType",
    "RSSCaps",
    "RTValues",
    "RawPacketCaps",
    "ReadCountersFlags",
    "RecvWR",
    "RwqIndTable",
    "RxHashConf",
    "RxHashFields",
    "RxHashFunction",
    "SRQAttr",
    "SRQType",
    "SelectivityLevel",
    "SendFlags",
    "SendWR",
    "SuccessfulCompletion",
    "TMCapFlags",
    "TMCaps",
    "TSOCaps",
    "TransportType",
    "VerbsError",
    "WCArray",
    "WCExFlags",
    "WCFlags",
    "WCOpcode",
    "WCStatus",
    "WQFlags",
    "WQState",
    "WQType",
    "WROpcode",
    "WorkCompletion",
    "devices",
    "fork_status",
    "inc_rkey",
    "register_report",
    "report",
    "unregister_report",
]

__version__: str
