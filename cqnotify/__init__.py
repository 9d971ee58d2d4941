# SPDX-License-Identifier: MIT
"""RDMA completion notification: sleep until a completion arrives, with asyncio or without.

In the order in which a program uses them:

    devices, Context              the RDMA devices, and one of them opened
    fork_status                   whether registered memory survives a fork
    DeviceAttr, DeviceAttrEx      what a device can do
    PD, MR, SGE                   memory: mr[a:b] is what a work request names
    CompletionChannel, CQ         get_event, req_notify, poll, ack
    WorkCompletion, WCArray       what poll returns, what poll_into fills
    SuccessfulCompletion          what raise_for_status returns: a type for annotations
    AsyncEvent                    what Context.get_async_event returns
    FailureWatch                  the device's failures, for event loops
    QP, QPAddress, AH             connect, post_send, post_recv
    SRQ                           receives that several QPs share, and their limit
    MW, inc_rkey                  memory windows: QP.bind_mw
    SendWR, RecvWR                work requests that are built once and posted many times

The classes are those of libibverbs, their methods the verbs without the prefix: each docstring
names its manual page. What stands on them is imported by itself, since asyncio takes longer to
load than all of the above:

    cqnotify.aio                  AsyncCQ: await completions
    cqnotify.cm                   connections by address, with rdma_cm
    cqnotify.messages             messages of any size over such connections
    cqnotify.exchange             swap addresses with a peer over TCP
    cqnotify.testing              pairs of connected QPs; see docs/pytest.md
    cqnotify.hosts                several hosts with a faulty network between them; docs/hosts.md
    cqnotify.conformance          measure which completions raise an event
    cqnotify.demo                 compare sleeping with polling
    cqnotify.cli                  the command line

For contributors: imports go one way. The files beside this one stand on the C core, `aio` on the
core and the enums, `cm` on these, `messages` on `cm`, and the tools on all of these; among the
tools `exchange` and `testing` stand below `conformance` and `demo`, and `cli` above the rest.
"""

try:
    from ._core import (
        AH,
        CQ,
        MR,
        PD,
        SGE,
        AsyncEvent,
        AsyncEventError,
        BusyError,
        ClosedError,
        CompletionChannel,
        CompletionError,
        CQStats,
        DeviceRemovedError,
        FailureWatch,
        RecvWR,
        SendWR,
        VerbsError,
        WCArray,
        WorkCompletion,
        _register_enums,
    )
except ModuleNotFoundError as _error:
    if _error.name != f"{__name__}._core":
        raise
    raise ModuleNotFoundError(
        f"{__path__[0]} has cqnotify's sources without the built C core: start Python in another "
        "folder, or build the core by pip install -e .",
        name=_error.name,
    ) from None
from .attrs import (
    AHAttr,
    CQModerationCaps,
    Device,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    ODPPerTransportCaps,
    PacketPacingCaps,
    PortAttr,
    QPAttr,
    QPCap,
    RTValues,
    SRQAttr,
)
from .context import Context, devices, fork_status
from .enums import (
    MTU,
    AccessFlags,
    AsyncEventType,
    AtomicCap,
    DeviceCapFlags,
    ForkStatus,
    GIDType,
    LinkLayer,
    MigState,
    MWType,
    NodeType,
    ODPGeneralCaps,
    ODPTransportCaps,
    PortState,
    QPState,
    QPType,
    SendFlags,
    TransportType,
    WCExFlags,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from .mw import MW, inc_rkey
from .qp import QP, QPAddress
from .srq import SRQ
from .wc import SuccessfulCompletion

__version__ = "0.1.0"

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
    "CQModerationCaps",
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
    "ODPCaps",
    "ODPGeneralCaps",
    "ODPPerTransportCaps",
    "ODPTransportCaps",
    "PacketPacingCaps",
    "PortAttr",
    "PortState",
    "QPAddress",
    "QPAttr",
    "QPCap",
    "QPState",
    "QPType",
    "RTValues",
    "RecvWR",
    "SRQAttr",
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
]

# The core gives completions and events these enums' members.
_register_enums(WCStatus, WCOpcode, WCFlags, WCExFlags, AsyncEventType)
