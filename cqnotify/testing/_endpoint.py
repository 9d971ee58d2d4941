# SPDX-License-Identifier: MIT
"""One end of a connection, the connection of two, and the wait for completions."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from .._core import AH, CQ, MR, PD, BusyError, CompletionChannel, WorkCompletion
from .._qp_connect import DEFAULT_QKEY, NO_GID
from .._timeouts import deadline, left_until
from ..attrs import AHAttr
from ..context import Context, is_iwarp
from ..enums import AccessFlags, AtomicCap, QPType
from ..qp import QP, QPAddress

if TYPE_CHECKING:
    from typing import Self, Unpack

    from .._qp_connect import ConnectOptions
    from ..cm.blocking import Connection
    from ._options import PairOptions, QPOptions

__all__ = ["Endpoint", "PairFactory", "SendDestination", "connect", "wait_completions"]


_Part = TypeVar("_Part", PD, CompletionChannel, CQ, MR)


class SendDestination(TypedDict, total=False):
    """The arguments of `QP.post_send` that name the receiver of a datagram."""

    ah: AH
    remote_qpn: int
    remote_qkey: int


class Endpoint:
    """One end of a connection: a QP, a CQ for each direction on one channel, and memory.

    ctx: the Context.
    qp_type: RC, UC or UD.
    size: the bytes of `mr`.
    access: what `mr` allows; by default local writes, and all that a peer can do through a QP of
        this type on this device.
    cqe: the entries of each CQ.
    one_cq: whether one CQ serves both directions.
    pd, channel, send_cq, recv_cq, mr: objects to use instead of new ones. So several ends can share
        parts; close() leaves these open. With an `mr`, `pd` is its PD by default.
    qp: the other parameters of QP(); its queues hold 64 work requests by default.

    `connect()` connects two of them, the method an end to a peer elsewhere. `to_peer` then is what
    `post_send` needs to reach the peer: nothing on RC and UC; on UD the address handle, the QP
    number and the Q_Key. So this sends on all three: `a.qp.post_send(a.mr[0:8], **a.to_peer)`. On
    iWARP `connection` is the one that rdma_cm has made, else None.
    """

    ctx: Context
    pd: PD
    channel: CompletionChannel
    send_cq: CQ
    recv_cq: CQ
    mr: MR
    qp: QP
    to_peer: SendDestination
    connection: Connection | None

    def __init__(
        self,
        ctx: Context,
        qp_type: QPType = QPType.RC,
        *,
        size: int = 65536,
        access: AccessFlags | int | None = None,
        cqe: int = 256,
        one_cq: bool = False,
        pd: PD | None = None,
        channel: CompletionChannel | None = None,
        send_cq: CQ | None = None,
        recv_cq: CQ | None = None,
        mr: MR | None = None,
        **qp: Unpack[QPOptions],
    ) -> None:
        if access is None:
            access = AccessFlags.LOCAL_WRITE | _all_remote(ctx, qp_type)
        options: QPOptions = {"max_send_wr": 64, **qp}
        if options.get("srq") is None:
            options.setdefault("max_recv_wr", 64)
        self.ctx = ctx
        self.to_peer = {}
        self.connection = None
        self._handles: list[AH] = []
        self._own: list[PD | CompletionChannel | CQ | MR] = []
        with ExitStack() as opened:

            def own(part: _Part) -> _Part:
                self._own.insert(0, part)  # in the order of closing
                return opened.enter_context(part)

            self.pd = pd or (own(PD(ctx)) if mr is None else mr.pd)
            self.channel = channel or own(CompletionChannel(ctx))
            self.send_cq = send_cq or own(CQ(ctx, cqe, channel=self.channel))
            if recv_cq is None and one_cq:
                recv_cq = self.send_cq
            self.recv_cq = recv_cq or own(CQ(ctx, cqe, channel=self.channel))
            self.mr = own(MR(self.pd, size, access=access)) if mr is None else mr
            self.qp = QP(self.pd, qp_type, send_cq=self.send_cq, recv_cq=self.recv_cq, **options)
            opened.pop_all()  # nothing failed, so all of it stays open

    def connect(
        self,
        remote: QPAddress,
        *,
        port_num: int = 1,
        gid_index: int | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        """Bring the QP to RTS, towards a peer whose address has been exchanged.

        remote: the peer's QPAddress. UD takes it, too: `to_peer` names it, and its address handle
            has the path that the options give.
        options: other parameters of `QP.connect`. So `access` is nothing by default, unlike that of
            the function `connect`.

        The other parameters are those of `cqnotify.QP.connect`.
        """
        if self.qp.qp_type != QPType.UD:
            self.qp.connect(remote, port_num=port_num, gid_index=gid_index, **options)
            return
        self.qp.connect(port_num=port_num, gid_index=gid_index, **options)
        handle = _address_handle(self, remote, port_num, gid_index, options)
        self._handles.append(handle)
        qkey = options.get("qkey")
        self.to_peer = {
            "ah": handle,
            "remote_qpn": remote.qp_num,
            "remote_qkey": DEFAULT_QKEY if qkey is None else qkey,
        }

    def close(self) -> None:
        """Close all of it, even if requests are in flight; a second call does nothing.

        Closing the PD, unless it was given, also closes all other objects that were created from
        it, such as MRs and QPs. The context and the parts that were given stay open. Raises
        BusyError if another object still uses a part; the parts before it are closed then.
        """
        if self.pd in self._own:
            self.pd._close_all()
        for part in (self.qp, *self._handles, *self._own):
            part.close()

    def __repr__(self) -> str:
        return f"<Endpoint, {self.qp!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: object, tb: object) -> None:
        try:
            self.close()
        except BusyError:
            if exc is None:  # if the block raised, that exception wins over BusyError
                raise


_E = TypeVar("_E", bound=Endpoint)


class PairFactory(Protocol):
    """The type of the fixture `rdma_pair`."""

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
    """Connect two endpoints to each other, and return both.

    a, b: the endpoints.
    port_num, gid_index: the port, and the index of its GID, on both devices.
    options: the other parameters of `QP.connect`, for both ends. But `access` is by default all
        that the QP's type and the device support: the `access` of each MR limits what a peer can
        reach.

    iWARP devices are connected by rdma_cm: over an address of theirs, so that the GID does not
    matter, nor do the timers, since TCP has its own.
    """
    if a.qp.qp_type != QPType.UD:
        options.setdefault("access", _all_remote(a.ctx, a.qp.qp_type))
    if is_iwarp(a.ctx) or is_iwarp(b.ctx):
        from ._by_address import connect_by_address

        a.connection, b.connection = connect_by_address(a.qp, b.qp, options)
        return a, b
    addresses = [end.qp.address(port_num, gid_index) for end in (a, b)]
    for end, remote in zip((a, b), reversed(addresses), strict=True):
        end.connect(remote, port_num=port_num, gid_index=gid_index, **options)
    return a, b


def wait_completions(cq: CQ, n: int = 1, *, timeout: float = 30.0) -> list[WorkCompletion]:
    """Sleep until `n` completions have come, and return them, failed ones included.

    cq: a CQ with a channel.
    n: how many completions to wait for.
    timeout: in seconds; TimeoutError then lists the completions that did come, and says why there
        were no more, as far as that is known.

    The events that end the sleep, of any CQ of the channel, are acknowledged. So threads that wait
    for different CQs need a channel each, or they take each other's events.
    """
    __tracebackhide__ = True  # so that pytest shows the line of the test that waited
    end = deadline(timeout)
    got = cq.poll(n)
    while len(got) < n:
        if cq.arm_if_empty():
            _sleep(cq, end, f"{len(got)} of {n} completions within {timeout} s: {got}")
        got += cq.poll(n - len(got))
    return got


def _sleep(cq: CQ, end: float | None, what_came: str) -> None:
    __tracebackhide__ = True
    try:
        cq.channel.get_event(left_until(end)).ack()
    except TimeoutError:
        raise TimeoutError(f"{what_came}; {cq._why_silent()}") from None


def _all_remote(ctx: Context, qp_type: QPType) -> AccessFlags:
    """Return all remote access that QPs of this type support on this device."""
    access = AccessFlags(0)
    if qp_type in (QPType.RC, QPType.UC):
        access |= AccessFlags.REMOTE_WRITE
    if qp_type == QPType.RC:
        access |= AccessFlags.REMOTE_READ
        if ctx.query_device().atomic_cap != AtomicCap.NONE:
            access |= AccessFlags.REMOTE_ATOMIC
    return access


def _address_handle(
    end: Endpoint,
    peer: QPAddress,
    port_num: int,
    gid_index: int | None,
    options: ConnectOptions | None = None,
) -> AH:
    path: dict[str, Any] = {k: v for k, v in (options or {}).items() if k in AHAttr._fields}
    path |= {"dlid": peer.lid, "port_num": port_num}
    if peer.gid != NO_GID:
        if gid_index is None:
            gid_index = end.ctx.find_gid(port_num=port_num).index
        path |= {"dgid": peer.gid, "sgid_index": gid_index}
    return AH(end.pd, **path)
