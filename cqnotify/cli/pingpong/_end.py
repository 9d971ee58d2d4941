# SPDX-License-Identifier: MIT
"""Our end of a ping-pong: memory, queue pairs and their connection, for each service.

It behaves like the ping-pong programs of rdma-core, so the peer may be one of them. Memory is
registered with the least access: receives can write to theirs, sends only read from theirs, and the
peer has no remote access.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..._core import AH, CQ, MR, PD, SGE, SRQ, CompletionChannel, VerbsError, WorkCompletion
from ..._qp_connect import NO_GID, PATIENT
from ...context import Context, gid_text
from ...enums import AccessFlags, QPType
from ...qp import QPAddress
from ...testing import Endpoint
from .. import CommandError, check_limit
from .._peer.device import active_mtu, check_path, gid_index, where
from .._peer.plan import GRH, PeerPlan

SRQ_RECORDS: Final = 256  # addresses that ibv_srq_pingpong exchanges, however few QPs it has
BLANK: Final = b"\xff"  # a byte that no message has
SEND: Final = 1 << 32  # the wr_id of sends; that of a receive is the number of its slot


@dataclass(frozen=True, kw_only=True)
class Plan(PeerPlan):
    """What to run: the options of the command."""

    service: str
    size: int
    rx_depth: int
    iters: int
    num_qp: int
    check: bool


class PingPongEnd:
    """Our end, of type RC or UC: its receives are posted, and its CQ is armed.

    With rdma_cm its QP is in RESET, and the caller calls `start` when it is in INIT or later.

    The peer sends only after our answer, so all receives share one slot of memory, and are posted
    again at once. A client's messages have memory of their own; a server sends each message back
    from the slot in which it was received.
    """

    qp_type = QPType.RC
    offset = 0  # of the message in its slot

    def __init__(self, context: Context, plan: Plan) -> None:
        self.plan = plan
        self.device = context.name
        self.gid_index = gid_index(context, plan)
        self.endpoints = self._make_endpoints(context)
        self.recv_mr = self.endpoints[0].mr
        self._slot = _pieces(self.recv_mr, self._room)
        if plan.client:
            self.send_mr = MR(self.endpoints[0].pd, plan.num_qp * plan.size, access=AccessFlags(0))
            self._message = _pieces(self.send_mr, plan.size)
        else:
            self._message = _pieces(self.recv_mr, self._room, self.offset)
        if not plan.rdma_cm:
            for endpoint in self.endpoints:
                endpoint.qp.to_init(port_num=plan.port_num)
            self.start()

    def start(self) -> None:
        """Post the receives, and arm the CQ."""
        plan = self.plan
        for number in range(plan.rx_depth):
            self._post_recv(number % len(self._slot))
        if plan.events:
            self.cq.req_notify()

    @property
    def _room(self) -> int:
        """The bytes of a slot."""
        return self.offset + self.plan.size

    def _make_endpoints(self, context: Context) -> list[Endpoint]:
        plan = self.plan
        endpoint = Endpoint(
            context,
            self.qp_type,
            size=self._room,
            access=AccessFlags.LOCAL_WRITE,
            cqe=plan.rx_depth + 1,
            one_cq=True,
            max_send_wr=1,
            max_recv_wr=plan.rx_depth,
        )
        return [endpoint]

    @property
    def cq(self) -> CQ:
        """The CQ of all QPs, for both directions."""
        return self.endpoints[0].send_cq

    @property
    def channel(self) -> CompletionChannel:
        """The channel of the CQ."""
        return self.endpoints[0].channel

    @property
    def addresses(self) -> list[QPAddress]:
        """The addresses of our QPs."""
        plan = self.plan
        return [end.qp.address(plan.port_num, self.gid_index) for end in self.endpoints]

    @property
    def by_qp_num(self) -> dict[int, int]:
        """The indices of our QPs, by their numbers."""
        return {endpoint.qp.qp_num: index for index, endpoint in enumerate(self.endpoints)}

    def connect(self, remote: list[QPAddress]) -> None:
        """Connect our QPs to the peer's; CommandError if our GID and its do not fit together."""
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
        for endpoint, address in zip(self.endpoints, remote, strict=False):
            endpoint.connect(
                address,
                port_num=plan.port_num,
                gid_index=self.gid_index,
                path_mtu=plan.path_mtu,
                sl=plan.sl,
                ack_timeout=PATIENT,
            )

    def write(self, index: int, data: bytes) -> None:
        """Set the message that this QP of a client sends."""
        self.send_mr.write(data, index * self.plan.size)

    def post_send(self, index: int, slot: int) -> None:
        """Send this QP's message, or as a server the message in a slot."""
        message = self._message[index if self.plan.client else slot]
        endpoint = self.endpoints[index]
        endpoint.qp.post_send(message, wr_id=SEND, **endpoint.to_peer)

    def received(self, wc: WorkCompletion) -> None:
        """Note that slot `wc.wr_id` has a message; CommandError if its length is wrong."""
        self._check_length(wc)
        self._post_recv(wc.wr_id)

    def read(self, slot: int) -> bytes:
        """Return the message in a slot."""
        return self.recv_mr.read(self.plan.size, slot * self._room + self.offset)

    def release(self, slot: int) -> None:
        """Free a slot: its message is not needed any more."""

    def _check_length(self, wc: WorkCompletion) -> None:
        came = (wc.byte_len or 0) - self.offset
        if came != self.plan.size:
            raise CommandError(
                f"the peer sends {came} bytes, not {self.plan.size}: give both the same --size"
            )

    def _post_recv(self, slot: int) -> None:
        self.endpoints[0].qp.post_recv(self._slot[slot], wr_id=slot)


def _pieces(mr: MR, room: int, offset: int = 0) -> list[SGE]:
    """Cut the memory into pieces of `room` bytes, each without its first `offset` bytes."""
    return [mr[start + offset : start + room] for start in range(0, len(mr), room)]


class UCEnd(PingPongEnd):
    """Our end, of type UC, which does not send lost messages again."""

    qp_type = QPType.UC


class UDEnd(PingPongEnd):
    """Our end, of type UD, where a GRH stands before each message received."""

    qp_type = QPType.UD
    offset = GRH

    def received(self, wc: WorkCompletion) -> None:
        endpoint = self.endpoints[0]
        if not endpoint.to_peer:  # a server's, by rdma_cm: the first message says where it is from
            assert wc.src_qp is not None
            handle = AH.from_wc(endpoint.pd, wc, self.recv_mr.read(GRH, wc.wr_id * self._room))
            endpoint.to_peer = {
                "ah": handle,
                "remote_qpn": wc.src_qp,
                "remote_qkey": endpoint.qp.query().qkey,
            }
        super().received(wc)


class SRQEnd(PingPongEnd):
    """RC QPs that share one receive queue.

    Any QP's message may come into any receive, so each receive has a slot of its own, which is
    posted again when its message was checked or sent back. As all messages are equal, a slot is
    blanked before that if messages are checked.
    """

    def _make_endpoints(self, context: Context) -> list[Endpoint]:
        plan = self.plan
        pd = PD(context)
        self._srq = SRQ(pd, plan.rx_depth)
        self._blank = BLANK * plan.size
        first = Endpoint(
            context,
            size=plan.rx_depth * self._room,
            access=AccessFlags.LOCAL_WRITE,
            cqe=plan.rx_depth + plan.num_qp,
            one_cq=True,
            pd=pd,
            srq=self._srq,
            max_send_wr=1,
        )
        others = (
            Endpoint(
                context,
                one_cq=True,
                pd=pd,
                channel=first.channel,
                send_cq=first.send_cq,
                mr=first.mr,
                srq=self._srq,
                max_send_wr=1,
            )
            for _ in range(plan.num_qp - 1)
        )
        return [first, *others]

    @property
    def addresses(self) -> list[QPAddress]:
        none = QPAddress(0, 0, 0, NO_GID)
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
            self.recv_mr.write(self._blank, slot * self.plan.size)
        self._srq.post_recv(self._slot[slot], wr_id=slot)


KINDS: Final = {"rc": PingPongEnd, "uc": UCEnd, "ud": UDEnd, "srq": SRQEnd}


@contextmanager
def open_end(plan: Plan) -> Iterator[PingPongEnd]:
    """Open the device and create our end; CommandError if the device's limits are exceeded."""
    with Context(plan.device) as context:
        _check(context, plan)
        yield KINDS[plan.service](context, plan)


def _check(context: Context, plan: Plan) -> None:
    """Refuse what the device would refuse, by the names of the options."""
    port, attr = check_path(context, plan, "--rdma-cm"), context.query_device()
    largest = active_mtu(port) if plan.service == "ud" else port.max_msg_sz
    check_limit(where(context, plan), "--size", plan.size, largest)
    most = attr.max_srq_wr if plan.service == "srq" else attr.max_qp_wr
    check_limit(context.name, "--rx-depth", plan.rx_depth, min(most, attr.max_cqe - plan.num_qp))
