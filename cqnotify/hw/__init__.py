# SPDX-License-Identifier: MIT
"""Verbs that only some RDMA adapters have, and the limits that adapters report of them.

None of this was tested on such an adapter: devices in software refuse these verbs, and in a build
for tests a fake device has them. docs/hardware.md says how each verb was tested, and has examples.
A device that lacks a verb raises VerbsError (EOPNOTSUPP) with the verb's name.

    XRCD, SRQType                 XRC: an SRQ for messages from any QP of a domain
    Flow, FlowSpecEth, ...        which packets a QP gets
    FlowCounters                  count the packets of a Flow
    WQ, RwqIndTable, RxHashConf   RSS: packets spread over several queues
    OpsWROpcode, OpsFlags         tag matching: SRQ.post_ops
    DM                            memory on the device
    TD, ParentDomain              objects that one thread at a time uses
    AdviseMRAdvice, ODPCaps       paging on demand
    QPCreateFlags, ECE            options of a QP
    RTValues                      the device's clock
    TSOCaps, RSSCaps, ...         what DeviceAttrEx has of all these

What they work with is at the top of `cqnotify`: QP, SRQ, MR, CQ, Context.query_device_ex().
"""

from .._core import DM, TD, XRCD, FlowCounters, ParentDomain, RwqIndTable
from .._lazy import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:  # tools that look for imports in the code read this too, such as PyInstaller
    from ..attrs import (
        ECE,
        CQModerationCaps,
        ODPCaps,
        ODPPerTransportCaps,
        PacketPacingCaps,
        RSSCaps,
        RTValues,
        RxHashConf,
        TMCaps,
        TSOCaps,
    )
    from ..enums import (
        AdviseMRAdvice,
        AdviseMRFlags,
        CounterDescription,
        FlowAttrFlags,
        FlowAttrType,
        ODPGeneralCaps,
        ODPTransportCaps,
        OpsFlags,
        OpsWROpcode,
        QPCreateFlags,
        RawPacketCaps,
        ReadCountersFlags,
        RxHashFields,
        RxHashFunction,
        SRQType,
        TMCapFlags,
        WQFlags,
        WQState,
        WQType,
    )
    from ._flow import (
        Flow,
        FlowSpec,
        FlowSpecActionCount,
        FlowSpecActionDrop,
        FlowSpecActionTag,
        FlowSpecEth,
        FlowSpecIPv4,
        FlowSpecIPv6,
        FlowSpecTCP,
        FlowSpecUDP,
    )
    from ._wq import WQ
else:  # to type checkers any name would be one of them
    __getattr__, __dir__ = _lazy_names(
        globals(),
        {
            "attrs": "ECE CQModerationCaps ODPCaps ODPPerTransportCaps PacketPacingCaps RSSCaps "
            "RTValues RxHashConf TMCaps TSOCaps",
            "enums": "AdviseMRAdvice AdviseMRFlags CounterDescription FlowAttrFlags FlowAttrType "
            "ODPGeneralCaps ODPTransportCaps OpsFlags OpsWROpcode QPCreateFlags RawPacketCaps "
            "ReadCountersFlags RxHashFields RxHashFunction SRQType TMCapFlags WQFlags WQState "
            "WQType",
            "hw._flow": "Flow FlowSpec FlowSpecActionCount FlowSpecActionDrop FlowSpecActionTag "
            "FlowSpecEth FlowSpecIPv4 FlowSpecIPv6 FlowSpecTCP FlowSpecUDP",
            "hw._wq": "WQ",
        },
    )

__all__ = [
    "DM",
    "ECE",
    "TD",
    "WQ",
    "XRCD",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "CQModerationCaps",
    "CounterDescription",
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
    "ODPCaps",
    "ODPGeneralCaps",
    "ODPPerTransportCaps",
    "ODPTransportCaps",
    "OpsFlags",
    "OpsWROpcode",
    "PacketPacingCaps",
    "ParentDomain",
    "QPCreateFlags",
    "RSSCaps",
    "RTValues",
    "RawPacketCaps",
    "ReadCountersFlags",
    "RwqIndTable",
    "RxHashConf",
    "RxHashFields",
    "RxHashFunction",
    "SRQType",
    "TMCapFlags",
    "TMCaps",
    "TSOCaps",
    "WQFlags",
    "WQState",
    "WQType",
]
