# SPDX-License-Identifier: MIT
"""One end of a connection, the connection of two, and the wait for completions."""

from __future__ import annotations

import time
from contextlib import ExitStack
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, Protocol, TypedDict, TypeVar

from .._core import AH, CQ, MR, PD, BusyError, CompletionChannel, WorkCompletion
from ..context import Context
from ..enums import AccessFlags, AtomicCap, QPType
from ..qp import DEFAULT_QKEY, QP, QPAddress

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._options import ConnectOptions, PairOptions, QPOptions

__all__ = ["Endpoint", "MakePair", "ToPeer", "connect", "wait_completions"]

_NO_GID: Final = IPv6Address(0)


class ToPeer(TypedDict, total=False):
    """Those arguments of `QP.post_send` that name the receiver of a datagram."""

    ah: AH
    remote_qpn: int
    remote_qkey: int


class Endpoint:
    """One end of a connection: a QP, a CQ for each direction on a channel of their own, and memory.

    size: the bytes of `mr`.
    access: who may do what to `mr`; by default we may write, and the peer whatever the type of the
        QP and the device can do.
    cqe: the entries of each CQ; `one_cq` makes one CQ serve both directions.

    Everything else goes to QP(); its queues hold 64 work requests unless that says otherwise.

    `connect()` connects two of them; `to_peer` is then what `post_send` has to be told to reach the
    other one: nothing on RC and UC, the address handle and the numbers of the QP on UD. So this
    sends on all three: `a.qp.post_send(a.mr[0:8], **a.to_peer)`.
    """

    ctx: Context
    pd: PD
    channel: CompletionChannel
    send_cq: CQ
    recv_cq: CQ
    mr: MR
    qp: QP
    to_peer: ToPeer

    def __init__(
        self,
        ctx: Context,
        qp_type: QPType = QPType.RC,
        *,
        size: int = 65536,
        access: AccessFlags | int | None = None,
        cqe: int = 256,
        one_cq: bool = False,
        **qp: Unpack[QPOptions],
    ) -> None:
        if access is None:
            access = AccessFlags.LOCAL_WRITE | _all_remote(ctx, qp_type)
        options: QPOptions = {"max_send_wr": 64, "max_recv_wr": 64, **qp}
        self.ctx = ctx
        self.to_peer = {}
        self._handles: list[AH] = []
        with ExitStack() as opened:
            self.pd = opened.enter_context(PD(ctx))
            self.channel = opened.enter_context(CompletionChannel(ctx))
            self.send_cq = opened.enter_context(CQ(ctx, cqe, channel=self.channel))
            self.recv_cq = self.send_cq
            if not one_cq:
                self.recv_cq = opened.enter_context(CQ(ctx, cqe, channel=self.channel))
            self.mr = opened.enter_context(MR(self.pd, size, access=access))
            self.qp = QP(self.pd, qp_type, send_cq=self.send_cq, recv_cq=self.recv_cq, **options)
            opened.pop_all()  # nothing failed, so all of it stays open

    def close(self) -> None:
        """Close all of it, whatever is in flight; doing so twice is fine.

        Raises BusyError where something else still uses a part of it; what came before that part is
        closed by then. The context stays open.
        """
        cqs = self.recv_cq, self.send_cq
        for part in (self.qp, *self._handles, self.mr, *cqs, self.channel, self.pd):
            part.close()

    def __repr__(self) -> str:
        return f"<Endpoint, {self.qp!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: object, tb: object) -> None:
        try:
            self.close()
        except BusyError:
            if exc is None:  # an exception that leaves the block is worth more
                raise

    def _aim(self, peer: QPAddress, port_num: int, gid_index: int | None, qkey: int) -> None:
        """Set `to_peer`, of a QP that is not connected."""
        self._handles.append(_address_handle(self, peer, port_num, gid_index))
        handle = self._handles[-1]
        self.to_peer = {"ah": handle, "remote_qpn": peer.qp_num, "remote_qkey": qkey}


_E = TypeVar("_E", bound=Endpoint)


class MakePair(Protocol):
    """The fixture `rdma_pair`."""

    def __call__(
        self, qp_type: QPType = ..., *, two_devices: bool = ..., **options: Unpack[PairOptions]
    ) -> tuple[Endpoint, Endpoint]: ...


def connect(
    a: _E,
    b: _E,
    *,
    port_num: int = 1,
    gid_index: int | None = None,
    **options: Unpack[ConnectOptions],
) -> tuple[_E, _E]:
    """Bring both QPs to RTS, towards each other, and return both.

    The parameters are those of `QP.connect` and count for both ends, except that `access` is by
    default all that the type of the QP and the device can do: what the peer may really touch is
    decided by the `access` of each MR.
    """
    if a.qp.qp_type != QPType.UD:
        options.setdefault("access", _all_remote(a.ctx, a.qp.qp_type))
    addresses = [end.qp.address(port_num, gid_index) for end in (a, b)]
    for end, remote in zip((a, b), reversed(addresses), strict=True):
        if end.qp.qp_type == QPType.UD:
            end.qp.connect(port_num=port_num, gid_index=gid_index, **options)
            qkey = options.get("qkey")
            end._aim(remote, port_num, gid_index, DEFAULT_QKEY if qkey is None else qkey)
        else:
            end.qp.connect(remote, port_num=port_num, gid_index=gid_index, **options)
    return a, b


def wait_completions(cq: CQ, n: int = 1, *, timeout: float = 30.0) -> list[WorkCompletion]:
    """Return the next `n` completions, failed ones too, asleep until they are there.

    The events that it wakes by, of any CQ of the channel, are acknowledged. Raises TimeoutError,
    which tells what did come, after `timeout` seconds.
    """
    __tracebackhide__ = True  # pytest shows the test that waited, not us
    end = time.monotonic() + timeout
    got = cq.poll(n)
    while len(got) < n:
        if cq.safe_to_sleep():
            _sleep(cq, end, f"{len(got)} of {n} completions within {timeout:g} s: {got}")
        got += cq.poll(n - len(got))
    return got


def _sleep(cq: CQ, end: float, what_came: str) -> None:
    __tracebackhide__ = True
    assert cq.channel is not None  # or it would not have been safe
    try:
        cq.channel.get_event(max(0.0, end - time.monotonic())).ack()
    except TimeoutError:
        raise TimeoutError(what_came) from None


def _all_remote(ctx: Context, qp_type: QPType) -> AccessFlags:
    """All that a peer can do to our memory through a QP of this type."""
    access = AccessFlags(0)
    if qp_type in (QPType.RC, QPType.UC):
        access |= AccessFlags.REMOTE_WRITE
    if qp_type == QPType.RC:
        access |= AccessFlags.REMOTE_READ
        if ctx.query_device().atomic_cap != AtomicCap.NONE:
            access |= AccessFlags.REMOTE_ATOMIC
    return access


def _address_handle(end: Endpoint, peer: QPAddress, port_num: int, gid_index: int | None) -> AH:
    if peer.gid == _NO_GID:
        return AH(end.pd, dlid=peer.lid, port_num=port_num)
    if gid_index is None:
        gid_index = end.ctx.find_gid(port_num=port_num).index
    return AH(end.pd, dgid=peer.gid, sgid_index=gid_index, dlid=peer.lid, port_num=port_num)
