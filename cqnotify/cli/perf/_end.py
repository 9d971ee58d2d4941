# SPDX-License-Identifier: MIT
"""An end: the queue pairs that are measured, their memory, and the control.

All CQs share one channel, so whatever comes wakes an end that sleeps. The memory has two halves of
the largest size: the first is sent, and the peer writes into the second, reads it, or sends into
it. The peer has access for the operation that is measured, and for no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ..._core import AH, CQ, MR, PD, SGE, CompletionChannel, RecvWR
from ..._qp_connect import DEFAULT_QKEY, PATIENT
from ...attrs import DeviceAttr
from ...context import Context, is_iwarp
from ...enums import MTU, AccessFlags, AtomicCap, QPType
from ...qp import QP, QPAddress
from ...testing import Endpoint
from .. import CANNOT_RUN, CommandError, check_limit
from .._peer.device import active_mtu, check_path, gid_index, has_one_cpu, where
from ._control import Control, Talk
from ._plan import Plan

LINE: Final = 64  # bytes of a cache line
ROOM: Final = 65536  # bytes that a peer of perftest may use, however small its messages are
OPEN: Final = {
    "send": AccessFlags(0),
    "write": AccessFlags.REMOTE_WRITE,
    "read": AccessFlags.REMOTE_READ,
    "atomic": AccessFlags.REMOTE_ATOMIC,
}


class PerfEnd:
    """An end on an open device. Its QPs are in INIT; with rdma_cm RC QPs are in RESET.

    rdma_cm connects the control and the RC QPs; UD QPs use the path of the control.

    talk: the messages between the ends; by default a Control, whose QP has to be connected, too.
    yields: whether our end yields the CPU whenever it has polled in vain.
    """

    own_control: Control

    def __init__(self, context: Context, plan: Plan, talk: Talk | None = None) -> None:
        self.plan = plan
        self.context = context
        self.device = context.name
        self.gid_index = gid_index(context, plan)
        self.access = OPEN[plan.op]
        self.yields = not plan.events and has_one_cpu()
        self.pd = PD(context)
        self.channel = CompletionChannel(context)
        if talk is None:
            talk = self.own_control = Control(self.pd, self.channel)
        self.control = talk
        self._make_memory()
        self._make_qps()
        self.remote: dict[str, Any] = {}  # the description of the peer's end
        self._to_init()

    def _to_init(self) -> None:
        plan, port_num = self.plan, self.plan.port_num
        if plan.rdma_cm and plan.connection != "UD":
            return
        for index, qp in enumerate(self.qps):
            qp.to_init(port_num=port_num, access=self.access)
            self.start(index)
        if not plan.perftest and not plan.rdma_cm:
            self.own_control.qp.to_init(port_num=port_num, access=Control.access)
            self.own_control.start()

    def _make_memory(self) -> None:
        room = -(-(max(*self.plan.sizes, ROOM) + self.plan.header) // LINE) * LINE
        access = AccessFlags.LOCAL_WRITE | self.access
        if self.plan.op == "read" and is_iwarp(self.context):
            access |= AccessFlags.REMOTE_WRITE  # the answer to a read is a write there
        self.mr = MR(self.pd, 2 * room, access=access)
        self._room = room

    def _make_qps(self) -> None:
        plan, context = self.plan, self.context
        self.send_cq = CQ(context, plan.num_qp * plan.tx_depth, channel=self.channel)
        self.recv_cq = CQ(context, plan.num_qp * plan.rx_depth, channel=self.channel)
        self.endpoints = [
            Endpoint(
                *(context, QPType[plan.connection]),
                pd=self.pd,
                channel=self.channel,
                send_cq=self.send_cq,
                recv_cq=self.recv_cq,
                mr=self.mr,
                max_send_wr=plan.tx_depth,
                max_recv_wr=plan.rx_depth,
                max_inline_data=plan.inline,
            )
            for _ in range(plan.num_qp)
        ]
        self.qps = [endpoint.qp for endpoint in self.endpoints]
        sg = None if plan.immediate else self.into(max(plan.sizes) + plan.header)
        self.receives = [[RecvWR(sg, wr_id=i)] * plan.rx_depth for i in range(plan.num_qp)]
        """For each QP as many as its queue has entries."""

    def start(self, index: int) -> None:
        """Post the receives of a QP, which is at least in INIT."""
        if self.plan.receives:
            self.qps[index].post_recv(self.receives[index])

    def out(self, size: int) -> SGE:
        """Return the memory of a message that is sent, or into which we read."""
        return self.mr[0:size]

    def into(self, size: int) -> SGE:
        """Return the memory of a message that is received, with the header."""
        return self.mr[self._room : self._room + size]

    def views(self, size: int) -> tuple[memoryview, memoryview]:
        """Return the memory of both as the program sees it."""
        whole = memoryview(self.mr)
        return whole[:size], whole[self._room : self._room + size]

    def describe(self) -> dict[str, Any]:
        """Return the description of this end for the peer."""
        attr = self.context.query_device()
        return {
            "device": self.device,
            "events": self.plan.events,
            "yields": self.yields,
            "addr": self.into(1).addr,
            "rkey": self.mr.rkey,
            "rd_atomic": [attr.max_qp_init_rd_atom, attr.max_qp_rd_atom],
            "qps": []
            if self.plan.rdma_cm and self.plan.connection != "UD"
            else [self.address(qp).to_wire().decode() for qp in self.qps],
        }

    @property
    def path_mtu(self) -> int | None:
        """The path MTU of the connected QPs in bytes; None where the device has none."""
        if self.plan.connection == "UD":
            return _largest_of_ud(self.context, self.plan)
        mtu = self.qps[0].query().path_mtu
        return mtu.bytes if isinstance(mtu, MTU) else None

    @property
    def control_address(self) -> QPAddress:
        """The address of the control's QP."""
        return self.address(self.own_control.qp)

    def address(self, qp: QP) -> QPAddress:
        """Return the address of one of our QPs."""
        return qp.address(self.plan.port_num, self.gid_index)

    def connect_control(self, remote: QPAddress) -> None:
        """Connect the QP of the control to the peer's."""
        self.own_control.qp.connect(remote, **self._path())

    def connect(self) -> None:
        """Connect the other QPs, by the description of the peer."""
        ours, theirs = self.describe()["rd_atomic"], self.remote["rd_atomic"]
        reads = min(ours[0], theirs[1]), min(ours[1], theirs[0])
        for index, text in enumerate(self.remote["qps"]):
            self.connect_to(index, QPAddress.from_wire(text.encode()), *reads)

    def connect_to(
        self, index: int, remote: QPAddress, reads: int = 1, reads_of_peer: int = 1
    ) -> None:
        """Connect one of our QPs to one of the peer's; for UD keep the peer's address.

        reads, reads_of_peer: how many reads and atomics can be in flight.
        """
        endpoint = self.endpoints[index]
        if not self.plan.rdma_cm:
            endpoint.connect(
                remote,
                max_rd_atomic=reads,
                max_dest_rd_atomic=reads_of_peer,
                **self._path(),
            )
            return
        path = self.own_control.qp.query().ah_attr  # which rdma_cm has found
        assert path is not None
        endpoint.qp.connect(port_num=self.plan.port_num)
        endpoint.to_peer = {
            "ah": AH(self.pd, **path._asdict()),
            "remote_qpn": remote.qp_num,
            "remote_qkey": DEFAULT_QKEY,
        }

    def _path(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "port_num": plan.port_num,
            "gid_index": self.gid_index,
            "path_mtu": plan.path_mtu,
            "sl": plan.sl,
            "ack_timeout": PATIENT,
        }


@contextmanager
def open_end(plan: Plan, talk: Talk | None = None) -> Iterator[PerfEnd]:
    """Open the device and create our end; CommandError if the device's limits are exceeded."""
    with Context(plan.device) as context:
        _check(context, plan)
        yield PerfEnd(context, _fitting(context, plan), talk)


def _fitting(context: Context, plan: Plan) -> Plan:
    """Return the plan without the sizes that are too large for UD on a port that rdma_cm chose."""
    if plan.connection != "UD" or len(plan.sizes) == 1:
        return plan
    limit = _largest_of_ud(context, plan)
    return replace(plan, sizes=tuple(size for size in plan.sizes if size <= limit))


def _largest_of_ud(context: Context, plan: Plan) -> int:
    return plan.path_mtu or active_mtu(context.query_port(plan.port_num))


def _check(context: Context, plan: Plan) -> None:
    """Refuse what the device would refuse, by the names of the options."""
    if plan.loses and is_iwarp(context):
        why = f"an iWARP device, which has no {plan.connection}: --connection RC is its only one"
        raise CommandError(f"{context.name} is {why}", CANNOT_RUN)
    port, attr = check_path(context, plan, "--rdma_cm"), context.query_device()
    if plan.connection != "UD":
        check_limit(where(context, plan), "--size", max(plan.sizes), port.max_msg_sz)
    elif len(plan.sizes) == 1:
        limit = _largest_of_ud(context, plan)
        check_limit(f"UD on {where(context, plan)}", "--size", plan.sizes[0], limit)
    _check_depths(context.name, plan, attr)
    if plan.op == "atomic" and attr.atomic_cap == AtomicCap.NONE:
        raise CommandError(f"{context.name} has no atomic operations", CANNOT_RUN)
    if plan.immediate and is_iwarp(context):
        why = "writes with immediate data, which --write_with_imm and --events of writes need"
        raise CommandError(f"{context.name} is an iWARP device, which has no {why}", CANNOT_RUN)


def _check_depths(device: str, plan: Plan, attr: DeviceAttr) -> None:
    check_limit(device, "--qp", plan.num_qp, attr.max_qp - 1)
    for option, depth in (("--tx-depth", plan.tx_depth), ("--rx-depth", plan.rx_depth)):
        check_limit(device, option, depth, min(attr.max_qp_wr, attr.max_cqe // plan.num_qp))
