# SPDX-License-Identifier: MIT
"""Our end of a ping-pong: memory, queue pairs and their connection, for each kind of service.

All as the ping-pong programs of rdma-core have it, so that either end may be one of them. Memory is
registered with the least access: receives may write to theirs, sends only read from theirs, and a
peer may do nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from ..._core import AH, CQ, MR, PD, SRQ, CompletionChannel, VerbsError, WorkCompletion
from ...attrs import PortAttr
from ...context import Context, gid_text
from ...enums import MTU, AccessFlags, LinkLayer, QPType
from ...qp import DEFAULT_QKEY, QP, QPAddress
from .. import CommandError, check_connects, check_limit, check_port

GRH: Final = 40  # bytes of routing header in front of what a UD QP receives
SRQ_RECORDS: Final = 256  # that ibv_srq_pingpong exchanges, however few QPs there are
BLANK: Final = b"\xff"  # is in no message
SEND: Final = 1 << 32  # the wr_id of sends; a receive has the number of its slot


@dataclass(frozen=True)
class Plan:
    """What to run: the options of the command. `timeout` is in seconds."""

    service: str
    host: str | None
    port: int
    bind: str
    device: str | None
    ib_port: int
    gid_index: int | None
    size: int
    mtu: int | None
    rx_depth: int
    iters: int
    sl: int
    num_qp: int
    events: bool
    check: bool
    timeout: float

    @property
    def client(self) -> bool:
        return self.host is not None


class End:
    """A QP of type RC or UC: its receives are posted, and its CQ is armed.

    A peer sends nothing before our answer, so all receives share one slot of memory, and can be
    posted again at once. A client's messages have memory of their own; a server sends back what has
    come from where it is.
    """

    qp_type = QPType.RC
    offset = 0  # of a message in its slot

    def __init__(self, context: Context, plan: Plan) -> None:
        self.plan = plan
        self.device = context.name
        self.gid_index = _gid_index(context, plan)
        self._pd = PD(context)
        self.channel = CompletionChannel(context) if plan.events else None
        self.cq = CQ(context, plan.rx_depth + plan.num_qp, channel=self.channel)
        self._qps = self._make_qps()
        for qp in self._qps:
            qp.to_init(port_num=plan.ib_port)
        self._make_memory(self._slots())
        for number in range(plan.rx_depth):
            self._post_recv(number % self._slots())
        if self.channel is not None:
            self.cq.req_notify()

    def _make_qps(self) -> list[QP]:
        depth = self.plan.rx_depth
        qp = QP(self._pd, self.qp_type, send_cq=self.cq, max_send_wr=1, max_recv_wr=depth)
        return [qp]

    def _slots(self) -> int:
        return 1

    def _make_memory(self, slots: int) -> None:
        size, room = self.plan.size, self.offset + self.plan.size
        self._recv_mr = MR(self._pd, slots * room, access=AccessFlags.LOCAL_WRITE)
        starts = range(0, slots * room, room)
        self._slot = [self._recv_mr[start : start + room] for start in starts]
        if self.plan.client:
            self._send_mr = MR(self._pd, self.plan.num_qp * size, access=AccessFlags(0))
            starts = range(0, self.plan.num_qp * size, size)
            self._message = [self._send_mr[start : start + size] for start in starts]
        else:
            self._message = [self._recv_mr[start + self.offset : start + room] for start in starts]

    @property
    def addresses(self) -> list[QPAddress]:
        """Our QPs' addresses."""
        return [qp.address(self.plan.ib_port, self.gid_index) for qp in self._qps]

    @property
    def by_qp_num(self) -> dict[int, int]:
        """Which of our QPs has which number."""
        return {qp.qp_num: index for index, qp in enumerate(self._qps)}

    def connect(self, remote: list[QPAddress]) -> None:
        """Make our QPs ready for the peer's. CommandError if no way leads from our GID to its."""
        try:
            self._connect(remote)
        except VerbsError as e:
            gids = self.addresses[0].gid, remote[0].gid
            if (gids[0].ipv4_mapped is None) == (gids[1].ipv4_mapped is None):
                raise
            ours, theirs = map(gid_text, gids)
            raise CommandError(
                f"our GID is {ours}, the peer's is {theirs}: both have to be of IPv4, or neither; "
                f"choose by -g"
            ) from e

    def _connect(self, remote: list[QPAddress]) -> None:
        plan = self.plan
        for qp, address in zip(self._qps, remote, strict=False):
            qp.connect(
                address,
                port_num=plan.ib_port,
                gid_index=self.gid_index,
                path_mtu=plan.mtu,
                sl=plan.sl,
                timeout=16,  # 0.27 s: enough in an emulated machine, too
                retry_cnt=6,
            )

    def write(self, index: int, data: bytes) -> None:
        """Make `data` what this QP of a client sends."""
        self._send_mr.write(data, index * self.plan.size)

    def post_send(self, index: int, slot: int) -> None:
        """Send this QP's message, or a server's answer: what is in a slot."""
        message = self._message[index if self.plan.client else slot]
        self._qps[index].post_send(message, wr_id=SEND)

    def received(self, wc: WorkCompletion) -> None:
        """A message has come, into slot `wc.wr_id`. CommandError if its length is wrong."""
        self._check_length(wc)
        self._post_recv(wc.wr_id)

    def read(self, slot: int) -> bytes:
        """Return the message in a slot."""
        size = self.plan.size
        return self._recv_mr.read(size, slot * (self.offset + size) + self.offset)

    def release(self, slot: int) -> None:
        """The message in a slot is not needed any more."""

    def _check_length(self, wc: WorkCompletion) -> None:
        came = (wc.byte_len or 0) - self.offset
        if came != self.plan.size:
            raise CommandError(
                f"the peer sends {came} bytes, not {self.plan.size}: give both the same --size"
            )

    def _post_recv(self, slot: int) -> None:
        self._qps[0].post_recv(self._slot[slot], wr_id=slot)


class UCEnd(End):
    """A QP of type UC: what is lost stays lost."""

    qp_type = QPType.UC


class UDEnd(End):
    """A QP of type UD: each message names its receiver, and comes with a GRH in front."""

    qp_type = QPType.UD
    offset = GRH

    def _connect(self, remote: list[QPAddress]) -> None:
        (address,) = remote
        (qp,) = self._qps
        qp.connect(port_num=self.plan.ib_port)
        self._remote_qpn = address.qp_num
        self._ah = AH(
            self._pd,
            dgid=address.gid if address.gid != IPv6Address(0) else None,
            dlid=address.lid,
            sgid_index=self.gid_index or 0,
            port_num=self.plan.ib_port,
            sl=self.plan.sl,
        )

    def post_send(self, index: int, slot: int) -> None:
        self._qps[index].post_send(
            self._message[index if self.plan.client else slot],
            wr_id=SEND,
            ah=self._ah,
            remote_qpn=self._remote_qpn,
            remote_qkey=DEFAULT_QKEY,
        )


class SRQEnd(End):
    """RC QPs that share one receive queue.

    Any QP's message may come into any receive, so each has a slot of its own, which is posted again
    when its message was checked, or sent back. As all messages are alike, it is made blank before
    that, if they are checked.
    """

    def _make_qps(self) -> list[QP]:
        self._srq = SRQ(self._pd, self.plan.rx_depth)
        self._blank = BLANK * self.plan.size
        return [
            QP(self._pd, self.qp_type, send_cq=self.cq, max_send_wr=1, srq=self._srq)
            for _ in range(self.plan.num_qp)
        ]

    def _slots(self) -> int:
        return self.plan.rx_depth

    @property
    def addresses(self) -> list[QPAddress]:
        none = QPAddress(0, 0, 0, IPv6Address(0))
        return super().addresses + [none] * (SRQ_RECORDS - self.plan.num_qp)

    def connect(self, remote: list[QPAddress]) -> None:
        ours = self.plan.num_qp
        theirs = sum(address.qp_num != 0 for address in remote)
        if theirs != ours:
            raise CommandError(
                f"the peer has {theirs} QPs, we have {ours}: give both the same --num-qp"
            )
        super().connect(remote)

    def received(self, wc: WorkCompletion) -> None:
        self._check_length(wc)

    def release(self, slot: int) -> None:
        self._post_recv(slot)

    def _post_recv(self, slot: int) -> None:
        if self.plan.check:
            self._recv_mr.write(self._blank, slot * self.plan.size)
        self._srq.post_recv(self._slot[slot], wr_id=slot)


KINDS: Final = {"rc": End, "uc": UCEnd, "ud": UDEnd, "srq": SRQEnd}


@contextmanager
def open_end(plan: Plan) -> Iterator[End]:
    """Open the device and make our end; CommandError where the device does not go so far."""
    with Context(plan.device) as context:
        _check(context, plan)
        yield KINDS[plan.service](context, plan)


def _check(context: Context, plan: Plan) -> None:
    """Refuse what the device refuses, by the options' names."""
    check_connects(context)
    attr = context.query_device()
    port = check_port(context, plan.ib_port)
    where = f"{context.name} port {plan.ib_port}"
    check_limit(where, "--mtu", plan.mtu or 0, _bytes(port.active_mtu))
    check_limit(where, "--size", plan.size, _largest(plan, port))
    most = attr.max_srq_wr if plan.service == "srq" else attr.max_qp_wr
    check_limit(context.name, "--rx-depth", plan.rx_depth, min(most, attr.max_cqe - plan.num_qp))


def _largest(plan: Plan, port: PortAttr) -> int:
    return _bytes(port.active_mtu) if plan.service == "ud" else port.max_msg_sz


def _bytes(mtu: MTU | int) -> int:
    return mtu.bytes if isinstance(mtu, MTU) else mtu


def _gid_index(context: Context, plan: Plan) -> int | None:
    """The GID to use: RoCE needs one, which rdma-core's programs must be told."""
    if plan.gid_index is not None:
        return context.query_gid(plan.gid_index, plan.ib_port).index
    if context.query_port(plan.ib_port).link_layer != LinkLayer.ETHERNET:
        return None
    return context.find_gid(port_num=plan.ib_port).index
