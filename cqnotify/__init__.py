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
    report, register_report       what is open and what it waits for; the same on a signal

The classes are those of libibverbs, their methods the verbs without the prefix: each docstring
names its manual page. The modules below stand on them, and are imported by themselves, since
asyncio takes longer to load than all of the above:

    cqnotify.aio                  AsyncCQ: await completions
    cqnotify.cm                   connections by address, with rdma_cm
    cqnotify.messages             messages of any size over such connections
    cqnotify.metrics              what CQs count, for Prometheus and OpenTelemetry
    cqnotify.exchange             swap addresses with a peer over TCP
    cqnotify.testing              pairs of connected QPs; see docs/pytest.md
    cqnotify.hosts                several hosts with a faulty network between them; docs/hosts.md
    cqnotify.conformance          measure which completions raise an event
    cqnotify.demo                 compare sleeping with polling
    cqnotify.cli                  the command line
    cqnotify.hw                   what only some RDMA adapters have: XRC, flow steering, RSS, ...

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
    )
except ModuleNotFoundError as _error:
    if _error.name != f"{__name__}._core":
        raise
    from ._no_core import why_no_core

    raise ModuleNotFoundError(why_no_core(__path__[0]), name=_error.name) from None
from ._lazy import lazy_names as _lazy_names
from .context import Context, devices, fork_status
from .mw import MW, inc_rkey
from .qp import QP
from .srq import SRQ

TYPE_CHECKING = False
if TYPE_CHECKING:  # for tools that look for imports in the code, as PyInstaller does
    from . import _qp_connect as _qp_connect
    from . import _report as _report
    from . import attrs as attrs
    from . import wc as wc

__getattr__, __dir__ = _lazy_names(
    globals(),
    {
        "attrs": "AHAttr Device DeviceAttr DeviceAttrEx GIDEntry PortAttr QPAttr QPCap SRQAttr "
        "attrs",
        "enums": "MTU AccessFlags AsyncEventType AtomicCap CQCreateFlags DeviceCapFlags ForkStatus "
        "GIDType LinkLayer MWType MigState NodeType PlacementType PortState QPState QPType "
        "SelectivityLevel SendFlags TransportType WCExFlags WCFlags WCOpcode WCStatus WROpcode",
        "_qp_connect": "QPAddress",
        "_report": "register_report report unregister_report",
        "wc": "SuccessfulCompletion wc",
    },
)

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
