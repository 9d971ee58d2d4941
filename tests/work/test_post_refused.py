# SPDX-License-Identifier: MIT
"""What post_send(), post_recv(), SendWR, RecvWR and AH refuse before the device sees it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from posting import ah_to, fill, path_to, remote
from support import GRH, QKEY, Endpoint, Pair, connect, ip_link, outstanding, until, wait_one

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlags,
    ClosedError,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WorkCompletion,
    WROpcode,
)

WITH_IMM: dict[str, Any] = {"opcode": WROpcode.SEND_WITH_IMM}
WRITE: dict[str, Any] = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": 0, "rkey": 1}
READ = {**WRITE, "opcode": WROpcode.RDMA_READ}
ADD = {**WRITE, "opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "compare_add": 1}
SWAP = {**WRITE, "opcode": WROpcode.ATOMIC_CMP_AND_SWP, "compare_add": 1, "swap": 2}
INV = {"opcode": WROpcode.LOCAL_INV, "invalidate_rkey": 1}
SEND_INV = {"opcode": WROpcode.SEND_WITH_INV, "invalidate_rkey": 1}
BIND = {"opcode": WROpcode.BIND_MW, "mw": 5}
DATAGRAM = {"ah": 5, "remote_qpn": 5, "remote_qkey": 5}
SOLICITED, INLINE = {"send_flags": SendFlags.SOLICITED}, {"send_flags": SendFlags.INLINE}
FENCE, CHECKSUM = {"send_flags": SendFlags.FENCE}, {"send_flags": SendFlags.IP_CSUM}


def without(call: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in call.items() if k != name}


# What goes together on no QP.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"wr_id": -1}, "wr_id is -1"),
    ({"wr_id": 1 << 64}, "wr_id is 18446744073709551616"),
    ({"send_flags": 1 << 20}, "0x100000 is no flag"),
    ({"opcode": 99}, "opcode is 99: .* RDMA_READ, ATOMIC_CMP_AND_SWP, ATOMIC_FETCH_AND_ADD, LOCAL"),
    (WITH_IMM, "imm_data is missing"),
    ({**WITH_IMM, "imm_data": 1 << 32}, "imm_data is 4294967296: it must be 0 to 4294967295"),
    ({"imm_data": 1}, "imm_data was given, but SEND does not take it"),
    ({"remote_addr": 1}, "remote_addr was given, but SEND does not take it"),
    ({"rkey": 1}, "rkey was given, but SEND does not take it"),
    (without(WRITE, "remote_addr"), "remote_addr is missing: RDMA_WRITE"),
    (without(WRITE, "rkey"), "rkey is missing: RDMA_WRITE"),
    ({**WRITE, "rkey": 1 << 32}, "rkey is 4294967296"),
    ({**WRITE, "remote_addr": -1}, "remote_addr is -1"),
    ({**WRITE, **SOLICITED}, "SOLICITED is not possible with RDMA_WRITE"),
    ({**READ, **INLINE}, "INLINE is not possible with RDMA_READ"),
    # Atomic operations.
    (without(ADD, "remote_addr"), "remote_addr is missing: ATOMIC_FETCH_AND_ADD"),
    (without(SWAP, "rkey"), "rkey is missing: ATOMIC_CMP_AND_SWP"),
    (without(ADD, "compare_add"), "compare_add is missing: ATOMIC_FETCH_AND_ADD"),
    ({**SWAP, "compare_add": None}, "compare_add is missing: ATOMIC_CMP_AND_SWP"),
    (without(SWAP, "swap"), "swap is missing: ATOMIC_CMP_AND_SWP"),
    ({**ADD, "swap": 1}, "swap was given, but ATOMIC_FETCH_AND_ADD does not take it"),
    ({**WRITE, "compare_add": 1}, "compare_add was given, but RDMA_WRITE does not take it"),
    ({"swap": 0}, "swap was given, but SEND does not take it"),
    ({**ADD, "imm_data": 1}, "imm_data was given, but ATOMIC_FETCH_AND_ADD"),
    ({**ADD, "compare_add": -1}, "compare_add is -1: it must be 0 to 18446744073709551615"),
    ({**ADD, "compare_add": 1 << 64}, f"compare_add is {1 << 64}"),
    ({**SWAP, "swap": 1 << 64}, f"swap is {1 << 64}"),
    ({**ADD, "rkey": 1 << 32}, "rkey is 4294967296"),
    ({**ADD, "remote_addr": 4100}, "remote_addr is 4100: ATOMIC_FETCH_AND_ADD needs a multiple of"),
    ({**ADD, **SOLICITED}, "SOLICITED is not possible with ATOMIC_FETCH_AND_ADD"),
    ({**SWAP, **INLINE}, "INLINE is not possible with ATOMIC_CMP_AND_SWP"),
    # Memory windows.
    (without(INV, "invalidate_rkey"), "invalidate_rkey is missing: LOCAL_INV needs it"),
    (without(SEND_INV, "invalidate_rkey"), "invalidate_rkey is missing: SEND_WITH_INV needs it"),
    ({"invalidate_rkey": 1}, "invalidate_rkey was given, but SEND does not take it"),
    ({**INV, "invalidate_rkey": 1 << 32}, "invalidate_rkey is 4294967296"),
    ({**INV, **SOLICITED}, "SOLICITED is not possible with LOCAL_INV"),
    (INV, "sg was given, but LOCAL_INV does not take it"),
    ({**SEND_INV, "imm_data": 1}, "imm_data was given, but SEND_WITH_INV does not take it"),
    (without(BIND, "mw"), "mw is missing: BIND_MW needs it"),
    ({**BIND, "imm_data": 1}, "imm_data was given, but BIND_MW does not take it"),
    ({**BIND, "invalidate_rkey": 1}, "invalidate_rkey was given, but BIND_MW does not take it"),
    ({**BIND, "remote_addr": 1}, "remote_addr was given, but BIND_MW does not take it"),
    ({**BIND, **SOLICITED}, "SOLICITED is not possible with BIND_MW"),
    ({**BIND, **INLINE}, "INLINE is not possible with BIND_MW"),
    ({"mw": 5}, "mw was given, but SEND does not take it"),
    ({"access": 1}, "access was given, but SEND does not take it"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_does_not_go_together_is_refused_when_it_is_posted_and_when_it_is_built(
    pd: PD, cq: CQ, arguments: dict[str, Any], message: str
) -> None:
    qp, mr = QP(pd, QPType.RC, send_cq=cq), MR(pd, 8)
    for call in (qp.post_send, SendWR):
        with pytest.raises(ValueError, match=message):
            call(mr, **arguments)
    mr.close()  # nothing holds it


# What goes together, but not on that type of QP. None: when it is built, for a QP of any type.
REFUSED_BY_TYPE: list[tuple[QPType | None, dict[str, Any], str]] = [
    *((QPType.RC, {n: 5}, f"{n} was given, but a connected QP does not take it") for n in DATAGRAM),
    (QPType.RC, CHECKSUM, "IP_CSUM is possible on a UD QP only"),
    *(
        (qp_type, call, f"{call['opcode'].name} is not possible on a {qp_type.name} QP")
        for qp_type in (QPType.UC, QPType.UD)
        for call in (READ, ADD, SWAP)
    ),
    *(
        (QPType.UD, call, f"{call['opcode'].name} is not possible on a UD QP")
        for call in (WRITE, INV, SEND_INV, BIND)
    ),
    (QPType.UC, FENCE, "FENCE is possible on an RC QP only"),
    (QPType.UD, {**DATAGRAM, **FENCE}, "FENCE is possible on an RC QP only"),
    *((QPType.UD, without(DATAGRAM, n), f"{n} is missing: a UD QP needs it") for n in DATAGRAM),
    (QPType.UD, {**DATAGRAM, "remote_qpn": 1 << 24}, "remote_qpn is 16777216"),
    (None, {"remote_qpn": 5}, "ah is missing: a UD QP needs it"),
    (None, {"ah": 5}, "remote_qpn is missing: a UD QP needs it"),
    (None, {**WRITE, "ah": 5}, "ah was given, but RDMA_WRITE does not take it"),
    (None, {**DATAGRAM, **FENCE}, "FENCE is possible on an RC QP only"),
]


@pytest.mark.parametrize(("qp_type", "arguments", "message"), REFUSED_BY_TYPE)
def test_what_the_type_of_the_qp_does_not_allow_is_refused(
    pd: PD, cq: CQ, qp_type: QPType | None, arguments: dict[str, Any], message: str
) -> None:
    call = SendWR if qp_type is None else QP(pd, qp_type, send_cq=cq).post_send
    with pytest.raises(ValueError, match=message):
        call(MR(pd, 8), **arguments)


def test_checksums_are_for_devices_that_make_them(ud_pair: Pair) -> None:
    a, b = ud_pair
    if a.ctx.query_device().device_cap_flags & 1 << 18:
        pytest.skip("this device makes checksums")
    with ah_to(a, b) as ah:
        path: dict[str, Any] = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
        wr = SendWR(a.mr[0:8], **CHECKSUM, **path)
        for post in (
            lambda: a.qp.post_send(a.mr[0:8], **CHECKSUM, **path),
            lambda: a.qp.post_send(wr),
        ):
            with pytest.raises(VerbsError, match="IP_CSUM is not supported by rxe") as e:
                post()
            assert e.value.errno == errno.EOPNOTSUPP
    assert outstanding(a.qp) == (0, 0)


# ---- memory ------------------------------------------------------------------------------

Take = Callable[..., object]
# What takes memory, and whether the device writes to it.
TAKERS: dict[str, tuple[Callable[[Endpoint], Take], bool]] = {
    "QP.post_send": (lambda a: a.qp.post_send, False),
    "QP.post_recv": (lambda a: a.qp.post_recv, True),
    "SRQ.post_recv": (lambda a: SRQ(a.pd, 4).post_recv, True),
    "SendWR": (lambda a: SendWR, False),
    "RecvWR": (lambda a: RecvWR, True),
    "a read": (lambda a: lambda sg: a.qp.post_send(sg, **READ), True),
    "SendWR of a read": (lambda a: lambda sg: SendWR(sg, **READ), True),
}


@pytest.mark.parametrize("name", TAKERS)
def test_memory_that_can_not_be_used_is_refused(pair: Pair, name: str) -> None:
    a = pair[0]
    make, writes = TAKERS[name]
    take = make(a)
    for bad in (1, "text", b"bytes", bytearray(8), object(), [b"x"], [None], [[]], [[a.mr]]):
        with pytest.raises(TypeError, match="sg must be"):
            take(bad)
    with pytest.raises(ValueError, match="more elements than the 64 that any queue takes"):
        take([a.mr[0:1]] * 65)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the"):
        take([a.mr[0:8], MR(PD(a.ctx), 64)])
    closed = MR(a.pd, 64)
    part = closed[0:8]
    closed.close()
    for bad in (part, closed, [part]):
        with pytest.raises(ClosedError, match="this MR is closed"):
            take(bad)
    if writes:
        with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
            take(MR(a.pd, b"constant", access=AccessFlags(0)))
    assert outstanding(a.qp) == (0, 0)


def test_after_a_first_good_receive_constant_memory_is_refused_as_well(pair: Pair) -> None:
    a = pair[0]
    mr = MR(a.pd, b"constant", access=AccessFlags(0))
    a.qp.post_recv(a.mr[0:8])  # the next ones can go the short way
    for sg in (mr, mr[0:8], [mr[0:8]]):
        with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
            a.qp.post_recv(sg)


def test_constant_memory_can_be_sent(pair: Pair) -> None:
    a, b = pair
    mr = MR(a.pd, b"constant", access=AccessFlags(0))
    for sg in (mr, SendWR(mr)):
        b.qp.post_recv(b.mr)
        a.qp.post_send(sg)
        wait_one(b.rcq)
        assert b.mr.read(8) == b"constant"


def test_more_elements_than_the_queue_takes_are_refused(pair: Pair) -> None:
    a, srq = pair[0], SRQ(pair[0].pd, 4)
    for post, limit, whose in (
        (a.qp.post_send, a.qp.max_send_sge, "QP"),
        (a.qp.post_recv, a.qp.max_recv_sge, "QP"),
        (srq.post_recv, srq.max_sge, "SRQ"),
    ):
        message = f"more elements than the {limit} that this {whose} takes"
        with pytest.raises(ValueError, match=message):
            post([a.mr[0:1]] * (limit + 1))


def test_arguments_by_name_only_and_none_unknown(pair: Pair) -> None:
    a, srq = pair[0], SRQ(pair[0].pd, 4)
    with pytest.raises(TypeError, match="at most 1 positional argument"):
        a.qp.post_send(a.mr, 5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'flags'"):
        a.qp.post_send(a.mr, flags=1)  # type: ignore[call-arg]
    for make in (SendWR, RecvWR):
        with pytest.raises(TypeError, match="unexpected|invalid keyword"):
            make(a.mr, nonsense=1)  # type: ignore[call-arg]
    for post in (a.qp.post_send, srq.post_recv):
        with pytest.raises(TypeError, match="missing required argument 'sg'"):
            post()  # type: ignore[operator]
    with pytest.raises(TypeError, match="wr_id must be an integer, not float"):
        a.qp.post_recv(a.mr, wr_id=1.0)  # type: ignore[arg-type]
    for receive in (a.qp.post_recv, srq.post_recv):
        with pytest.raises(ValueError, match="wr_id is -1"):
            receive(a.mr, wr_id=-1)
    assert (outstanding(a.qp), srq.outstanding) == ((0, 0), 0)


def test_in_a_state_that_can_not_nothing_is_posted_and_never_sent(ctx: Context) -> None:
    """Some providers would keep what they refuse, and send it later."""
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    send, receive = SendWR(a.mr[0:8]), RecvWR(a.mr[0:8])
    posts: list[tuple[Callable[[Any], None], Any, str]] = [
        (a.qp.post_send, send, "RTS"),
        (a.qp.post_recv, receive, "INIT"),
    ]
    for post, wr, needed in posts:
        for what in (a.mr[0:8], wr, [wr] * 2):
            with pytest.raises(VerbsError, match=f"is in RESET, and needs {needed}") as e:
                post(what)
            assert (e.value.posted, e.value.bad_wr) == (0, None)
    a.qp.to_init()
    with pytest.raises(VerbsError, match="is in INIT, and needs RTS"):
        a.qp.post_send(a.mr[0:8])
    connect(a, b)
    b.qp.post_recv(b.mr, wr_id=1)
    a.qp.post_send(a.mr[0:16], wr_id=2)
    assert wait_one(b.rcq).byte_len == 16
    assert outstanding(a.qp) == (0, 0) or wait_one(a.scq).wr_id == 2
    a.qp.close()
    for post, wr, _ in posts:
        for what in (a.mr[0:8], wr, [wr]):
            with pytest.raises(ClosedError, match="this QP is closed"):
                post(what)


# ---- requests that were built before -----------------------------------------------------


@pytest.mark.parametrize("make", [SendWR, RecvWR])
def test_a_wr_id_is_a_number_of_64_bits(make: Any) -> None:
    wr = make(wr_id=5)
    for bad in (-1, 2**64):
        with pytest.raises(ValueError, match=f"wr_id is {bad}: it must be 0 to"):
            wr.wr_id = bad
        with pytest.raises(ValueError, match=f"wr_id is {bad}: it must be 0 to"):
            make(wr_id=bad)
    with pytest.raises(TypeError, match="wr_id must be an integer, not float"):
        wr.wr_id = 1.0
    with pytest.raises(AttributeError):
        del wr.wr_id
    with pytest.raises(AttributeError):
        wr.nonsense = 1
    assert wr.wr_id == 5


def unpostable(ctx: Context) -> list[tuple[QPType, Callable[[Endpoint, Endpoint], SendWR], str]]:
    mtu = ctx.query_port().active_mtu.bytes  # type: ignore[attr-defined]
    rc, uc, ud = QPType.RC, QPType.UC, QPType.UD
    read: dict[str, Any] = {"opcode": WROpcode.RDMA_READ}
    fence, inline = SendFlags.FENCE, SendFlags.INLINE
    return [
        (uc, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UC"),
        (ud, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UD"),
        (ud, lambda a, _: SendWR(a.mr[0:8]), "ah is missing: a UD QP needs it"),
        (rc, lambda a, b: SendWR(a.mr[0:8], **path_to(a, b)), "ah was given, but a connected QP"),
        (uc, lambda a, _: SendWR(a.mr[0:8], send_flags=fence), "FENCE is possible on an RC QP"),
        (rc, lambda a, _: SendWR([a.mr[0:8]] * (a.qp.max_send_sge + 1)), "sg has more elements"),
        (rc, lambda a, _: SendWR(a.mr, send_flags=inline), "65536 bytes: this QP sends at most"),
        (ud, lambda a, b: SendWR(a.mr[0 : mtu + 1], **path_to(a, b)), f"at most {mtu} in one data"),
        (rc, lambda a, _: SendWR(MR(PD(a.ctx), 64)), "the MR belongs to another PD than the QP"),
    ]


def test_what_this_qp_can_not_send_is_refused_when_it_is_posted(ctx: Context) -> None:
    pairs = {t: connect(Endpoint(ctx, t), Endpoint(ctx, t)) for t in QPType if t <= QPType.UD}
    for qp_type, make, message in unpostable(ctx):
        a, b = pairs[qp_type]
        wr = make(a, b)
        path = path_to(a, b) if qp_type == QPType.UD else {}
        with pytest.raises(ValueError, match=message):
            a.qp.post_send(wr)
        with pytest.raises(ValueError, match=r"\[1\] of the list: .*" + message):
            a.qp.post_send([SendWR(a.mr[0:8], **path), wr])
        assert outstanding(a.qp) == (0, 0)
        assert a.scq.poll() == []
        a.mr.close()  # nothing pins it
        a.mr = MR(a.pd, 65536)


def test_receives_that_do_not_fit_are_refused_when_they_are_posted(pair: Pair) -> None:
    a = pair[0]
    for make, message in (
        (lambda: RecvWR([a.mr[0:8]] * (a.qp.max_recv_sge + 1)), "sg has more elements"),
        (lambda: RecvWR(MR(PD(a.ctx), 64)), "the MR belongs to another PD than the QP"),
    ):
        wr = make()
        with pytest.raises(ValueError, match=message):
            a.qp.post_recv(wr)
        with pytest.raises(ValueError, match=r"\[2\] of the list: .*" + message):
            a.qp.post_recv([RecvWR(a.mr[0:8]), RecvWR(), wr, RecvWR()])
        assert outstanding(a.qp) == (0, 0)


def test_a_request_comes_without_other_arguments(pair: Pair) -> None:
    a = pair[0]
    for send in (SendWR(), [SendWR()]):
        for other in ({"wr_id": 1}, {"opcode": 2}, {"imm_data": None}):
            (name,) = other
            with pytest.raises(TypeError, match=f"{name} was given, but .* pass it alone"):
                a.qp.post_send(send, **other)
    srq = SRQ(a.pd, 4)
    for receive in (RecvWR(), [RecvWR()]):
        for post in (a.qp.post_recv, srq.post_recv):
            with pytest.raises(TypeError, match="wr_id was given, but .* pass it alone"):
                post(receive, wr_id=1)
    assert (outstanding(a.qp), srq.outstanding) == ((0, 0), 0)


def test_requests_and_memory_do_not_mix(pair: Pair) -> None:
    a = pair[0]
    send, receive, part = SendWR(), RecvWR(), a.mr[0:8]
    mixed: list[tuple[Any, Any, str]] = [
        (a.qp.post_send, [send, part], r"\[1\] of the list is a cqnotify.SGE"),
        (a.qp.post_send, [send, send, receive], r"\[2\] of the list is a cqnotify.RecvWR"),
        (a.qp.post_send, [send, [send]], r"\[1\] of the list is a list"),
        (a.qp.post_send, [part, send], "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_send, receive, "sg must not have a cqnotify.RecvWR in it"),
        (a.qp.post_recv, [receive, None], r"\[1\] of the list is a NoneType"),
        (a.qp.post_recv, [part, receive], "sg must not have a cqnotify.RecvWR in it"),
        (a.qp.post_recv, send, "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_recv, [send], "sg must not have a cqnotify.SendWR in it"),
        (a.qp.post_send, iter([send]), "sg must be mr"),
        (SendWR, send, "sg must not have a cqnotify.SendWR in it"),
        (RecvWR, [receive], "sg must not have a cqnotify.RecvWR in it"),
    ]
    for call, argument, message in mixed:
        with pytest.raises(TypeError, match=message):
            call(argument)
    assert outstanding(a.qp) == (0, 0)


# ---- the length --------------------------------------------------------------------------


@pytest.mark.usefixtures("conversation")
def test_the_longest_datagram_grows_with_the_mtu_of_the_link(ctx2: Context, netdev: str) -> None:
    a, b = connect(Endpoint(ctx2, QPType.UD), Endpoint(ctx2, QPType.UD))

    def mtu() -> int:
        return ctx2.query_port().active_mtu.bytes  # type: ignore[union-attr]

    def send(size: int) -> None:
        a.qp.post_send(a.mr[0:size], **a.to_peer)

    before = mtu()
    assert before < 4096
    with pytest.raises(ValueError, match=f"at most {before} in one datagram"):
        send(4096)
    length = Path("/sys/class/net", netdev, "mtu").read_text().strip()
    ip_link(netdev, "mtu", "4500")
    try:
        until(lambda: mtu() == 4096, "the device has the larger MTU")
        b.qp.post_recv(b.mr)
        send(4096)
        assert wait_one(b.rcq).byte_len == 4096 + GRH
        with pytest.raises(ValueError, match="at most 4096 in one datagram"):
            send(4097)
    finally:
        ip_link(netdev, "mtu", length)


@pytest.mark.usefixtures("conversation")
def test_a_message_longer_than_the_port_takes_is_refused(ctx: Context) -> None:
    """The same memory many times over: the limit can be 2 GiB."""
    limit = ctx.query_port().max_msg_sz
    n = 16
    size = limit // n
    sender = Endpoint(ctx, QPType.RC, size=size + 1, max_send_sge=n)
    a, b = connect(sender, Endpoint(ctx, QPType.RC, size=min(limit, 1 << 23)))
    with pytest.raises(ValueError, match=f"at most {limit} in one message"):
        a.qp.post_send([a.mr[:]] * n)
    if limit == b.mr.length:  # no more than that is sent here
        b.qp.post_recv(b.mr)
        a.qp.post_send([a.mr[:size]] * n)
        assert wait_one(b.rcq).byte_len == limit


# ---- address handles ---------------------------------------------------------------------


def datagram(a: Endpoint, b: Endpoint) -> WorkCompletion:
    b.qp.post_recv(b.mr[0:128])
    a.qp.post_send(a.mr[0:8], **path_to(a, b))
    wait_one(a.scq)
    return wait_one(b.rcq)


def test_the_way_back_of_a_datagram_leads_to_its_sender(ctx: Context, ctx2: Context) -> None:
    """Over a wire: the sender's address is another than the receiver's."""
    a, b = connect(Endpoint(ctx, QPType.UD), Endpoint(ctx2, QPType.UD))
    wc = datagram(a, b)
    assert wc.src_qp is not None
    a.qp.post_recv(a.mr[0:1024])
    with AH.from_wc(b.pd, wc, b.mr.read(GRH)) as ah:
        data = fill(b.mr, 300)
        b.qp.post_send(b.mr[0:300], ah=ah, remote_qpn=wc.src_qp, remote_qkey=QKEY)
        wait_one(b.scq)
    back = wait_one(a.rcq)
    assert back.src_qp == b.qp.qp_num
    assert a.mr.read(300, GRH) == data


def test_a_way_back_is_made_from_a_received_datagram_alone(pair: Pair, ud_pair: Pair) -> None:
    a, b = ud_pair
    wc = datagram(a, b)
    grh = b.mr.read(GRH)
    elsewhere = grh[:24] + bytes(range(16))
    pair[1].qp.post_recv(pair[1].mr[0:64])
    pair[0].qp.post_send(pair[0].mr[0:64])
    message = wait_one(pair[1].rcq)
    wrong: list[tuple[tuple[Any, ...], dict[str, int], type[Exception], str]] = [
        ((b.pd, wc, grh[:-1]), {}, ValueError, "grh has 39 bytes: it must be the 40 before the"),
        ((b.pd, wc), {}, ValueError, "grh has 0 bytes"),
        ((b.pd, wc, grh), {"port_num": 2}, ValueError, "port_num is 2"),
        ((b.pd, grh, grh), {}, TypeError, "wc must be a WorkCompletion, not bytes"),
        ((b.ctx, wc, grh), {}, TypeError, "pd must be a"),
        ((b.pd, wc, elsewhere), {}, VerbsError, "port 1 has no GID that the datagram was sent to"),
        ((pair[1].pd, message, grh), {}, ValueError, "the successful receive of a datagram"),
    ]
    for arguments, options, error, words in wrong:
        with pytest.raises(error, match=words):
            AH.from_wc(*arguments, **options)
    b.pd.context.close()
    with pytest.raises(ClosedError):
        AH.from_wc(b.pd, wc, grh)


def test_address_handles_check_their_arguments(pd: PD) -> None:
    gid = pd.context.find_gid().gid
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (pd, {"dgid": gid, "port_num": 9}, ValueError, "port_num is 9: this device has port 1"),
        (pd, {"dgid": b"short"}, TypeError, "dgid must be an IP address, its text, or 16"),
        (pd, {"dgid": "bogus"}, ValueError, "dgid is 'bogus': that is no IP address"),
        (pd, {"sl": 16}, ValueError, "sl is 16"),
        (pd, {"nonsense": 1}, TypeError, "no field 'nonsense'"),
        (None, {}, TypeError, "pd must be a"),
    ]
    for its_pd, attributes, error, words in wrong:
        with pytest.raises(error, match=words):
            AH(its_pd, **attributes)


@pytest.mark.not_on_iwarp("rdma_cm connects there, and siw fails such a read by itself")
@pytest.mark.parametrize("opcode", [READ, ADD, SWAP], ids=lambda call: call["opcode"].name)
def test_what_could_never_be_in_flight_is_refused(ctx: Context, opcode: dict[str, Any]) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC), max_rd_atomic=0)
    call = {**opcode, **remote(b), "opcode": opcode["opcode"]}
    words = rf"{opcode['opcode'].name}: max_rd_atomic of QP {a.qp.qp_num} is 0, .*: connect it with"
    for post in (
        lambda: a.qp.post_send(a.mr[0:8], **call),
        lambda: a.qp.post_send(SendWR(a.mr[0:8], **call)),
        lambda: a.qp.post_send([SendWR(a.mr[0:8]), SendWR(a.mr[0:8], **call)]),
    ):
        with pytest.raises(ValueError, match=words):
            post()
    assert outstanding(a.qp) == (0, 0)
    b.qp.post_recv(b.mr[0:8])
    a.qp.post_send(a.mr[0:8])
    wait_one(a.scq)
    for end in (a, b):  # a reset forgets it
        end.qp.modify(qp_state=QPState.RESET)
    connect(a, b)
    a.qp.post_send(a.mr[0:8], opcode=WROpcode.RDMA_READ, **remote(b))
    wait_one(a.scq)


def test_an_address_handle_that_can_not_be_used_is_refused(pd: PD, ud_pair: Pair) -> None:
    a, b = ud_pair
    path = path_to(a, b)
    wr = SendWR(a.mr[0:8], **path)
    foreign = AH(pd, dgid=b.ctx.find_gid().gid, sgid_index=a.ctx.find_gid().index)
    for call, whose in ((a.qp.post_send, "QP"), (SendWR, "rest")):
        with pytest.raises(TypeError, match="ah must be a cqnotify.AH, not cqnotify.PD"):
            call(a.mr[0:8], **{**path, "ah": pd})
        with pytest.raises(ValueError, match=f"the AH belongs to another PD than the {whose}"):
            call(a.mr[0:8], **{**path, "ah": foreign})
    assert path["ah"].pd is a.pd
    path["ah"].close()
    for post in (
        lambda: a.qp.post_send(a.mr[0:8], **path),
        lambda: SendWR(a.mr[0:8], **path),
        lambda: a.qp.post_send(wr),
    ):
        with pytest.raises(ClosedError, match="this AH is closed"):
            post()
