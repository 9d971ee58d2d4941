# SPDX-License-Identifier: MIT
"""The names of `cqnotify` for tools that read them: many come when they are first used.

The form `X as X` is what completion goes by in a stub, and `__all__` what type checkers do.
"""

from . import attrs as attrs
from . import context as context
from . import enums as enums
from . import mw as mw
from . import qp as qp
from . import srq as srq
from . import wc as wc
from ._core import AH as AH
from ._core import CQ as CQ
from ._core import MR as MR
from ._core import PD as PD
from ._core import SGE as SGE
from ._core import AsyncEvent as AsyncEvent
from ._core import AsyncEventError as AsyncEventError
from ._core import BusyError as BusyError
from ._core import ClosedError as ClosedError
from ._core import CompletionChannel as CompletionChannel
from ._core import CompletionError as CompletionError
from ._core import CQStats as CQStats
from ._core import DeviceRemovedError as DeviceRemovedError
from ._core import FailureWatch as FailureWatch
from ._core import RecvWR as RecvWR
from ._core import SendWR as SendWR
from ._core import VerbsError as VerbsError
from ._core import WCArray as WCArray
from ._core import WorkCompletion as WorkCompletion
from ._report import register_report as register_report
from ._report import report as report
from ._report import unregister_report as unregister_report
from .attrs import AHAttr as AHAttr
from .attrs import Device as Device
from .attrs import DeviceAttr as DeviceAttr
from .attrs import DeviceAttrEx as DeviceAttrEx
from .attrs import GIDEntry as GIDEntry
from .attrs import PortAttr as PortAttr
from .attrs import QPAttr as QPAttr
from .attrs import QPCap as QPCap
from .attrs import SRQAttr as SRQAttr
from .context import Context as Context
from .context import devices as devices
from .context import fork_status as fork_status
from .enums import MTU as MTU
from .enums import AccessFlags as AccessFlags
from .enums import AsyncEventType as AsyncEventType
from .enums import AtomicCap as AtomicCap
from .enums import CQCreateFlags as CQCreateFlags
from .enums import DeviceCapFlags as DeviceCapFlags
from .enums import ForkStatus as ForkStatus
from .enums import GIDType as GIDType
from .enums import LinkLayer as LinkLayer
from .enums import MigState as MigState
from .enums import MWType as MWType
from .enums import NodeType as NodeType
from .enums import PlacementType as PlacementType
from .enums import PortState as PortState
from .enums import QPState as QPState
from .enums import QPType as QPType
from .enums import SelectivityLevel as SelectivityLevel
from .enums import SendFlags as SendFlags
from .enums import TransportType as TransportType
from .enums import WCExFlags as WCExFlags
from .enums import WCFlags as WCFlags
from .enums import WCOpcode as WCOpcode
from .enums import WCStatus as WCStatus
from .enums import WROpcode as WROpcode
from .mw import MW as MW
from .mw import inc_rkey as inc_rkey
from .qp import QP as QP
from .qp import QPAddress as QPAddress
from .srq import SRQ as SRQ
from .wc import SuccessfulCompletion as SuccessfulCompletion

__all__ = [
    "AH",
    "CQ",
    "MR",
    "MTU",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "AHAttr",
    "AccessFlags",
    "AsyncEvent",
    "AsyncEventError",
    "AsyncEventType",
    "AtomicCap",
    "BusyError",
    "CQCreateFlags",
    "CQStats",
    "ClosedError",
    "CompletionChannel",
    "CompletionError",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "DeviceCapFlags",
    "DeviceRemovedError",
    "FailureWatch",
    "ForkStatus",
    "GIDEntry",
    "GIDType",
    "LinkLayer",
    "MWType",
    "MigState",
    "NodeType",
    "PlacementType",
    "PortAttr",
    "PortState",
    "QPAddress",
    "QPAttr",
    "QPCap",
    "QPState",
    "QPType",
    "RecvWR",
    "SRQAttr",
    "SelectivityLevel",
    "SendFlags",
    "SendWR",
    "SuccessfulCompletion",
    "TransportType",
    "VerbsError",
    "WCArray",
    "WCExFlags",
    "WCFlags",
    "WCOpcode",
    "WCStatus",
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
