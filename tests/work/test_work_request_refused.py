# SPDX-License-Identifier: MIT
"""What SendWR and RecvWR refuse, when they are built and when they are posted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from posting import path_to, remote
from support import Endpoint, Pair, connect

from cqnotify import (
    MR,
    PD,
    AccessFlags,
    ClosedError,
    Context,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)

# What is refused when it is built ---------------------------------------------------

UNBUILDABLE: list[tuple[dict[str, Any], str]] = [
    ({"wr_id": -1}, "wr_id is -1"),
    ({"opcode": 99}, "opcode is 99"),
    ({"send_flags": 1 << 20}, "0x100000 is no flag"),
    ({"opcode": WROpcode.SEND_WITH_IMM}, "imm_data is missing"),
    ({"imm_data": 1}, "imm_data was given, but SEND does not take it"),
    ({"rkey": 1}, "rkey was given, but SEND does not take it"),
    ({"opcode": WROpcode.RDMA_WRITE, "rkey": 1}, "remote_addr is missing"),
    ({"opcode": WROpcode.RDMA_WRITE, "remote_addr": 0, "rkey": 1 << 32}, "rkey is 4294967296"),
    (
        {"opcode": WROpcode.RDMA_READ, "remote_addr": 0, "rkey": 1, "send_flags": SendFlags.INLINE},
        "INLINE is not possible with RDMA_READ",
    ),
    (
        {
            "opcode": WROpcode.RDMA_WRITE,
            "remote_addr": 0,
            "rkey": 1,
            "send_flags": SendFlags.SOLICITED,
        },
        "SOLICITED is not possible with RDMA_WRITE",
    ),
    (
        {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "remote_addr": 4, "rkey": 1, "compare_add": 1},
        "remote_addr is 4: ATOMIC_FETCH_AND_ADD needs a multiple of 8",
    ),
    (
        {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD, "remote_addr": 8, "rkey": 1, "compare_add": 1},
        "ATOMIC_FETCH_AND_ADD needs 8 bytes in one element",
    ),
    ({"remote_qpn": 5}, "ah is missing: a UD QP needs it"),
    ({"ah": 5}, "remote_qpn is missing: a UD QP needs it"),
    (
        {"opcode": WROpcode.RDMA_WRITE, "remote_addr": 0, "rkey": 1, "ah": 5},
        "ah was given, but RDMA_WRITE does not take it",
    ),
    (
        {"send_flags": SendFlags.FENCE, "ah": 5, "remote_qpn": 5, "remote_qkey": 5},
        "FENCE is possible on an RC QP only",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), UNBUILDABLE, ids=[m for _, m in UNBUILDABLE])
def test_what_can_never_be_sent_is_refused_when_it_is_built(
    pd: PD, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SendWR(MR(pd, 64), **arguments)


@pytest.mark.parametrize("make", [SendWR, RecvWR])
def test_memory_that_no_request_can_have_is_refused(ctx: Context, pd: PD, make: Any) -> None:
    mr = MR(pd, 64)
    for bad in (1, "text", b"bytes", object(), [None], [[mr]]):
        with pytest.raises(TypeError, match="sg must be"):
            make(bad)
    with pytest.raises(ValueError, match="more elements than the 64"):
        make([mr] * 65)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the rest"):
        make([mr, MR(PD(ctx), 64)])
    with pytest.raises(TypeError, match="unexpected|invalid keyword"):
        make(mr, nonsense=1)
    make([mr] * 64)
    make()


def test_memory_that_may_not_be_written_is_refused_where_it_would_be(pd: PD) -> None:
    mr = MR(pd, b"constant", access=AccessFlags(0))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        RecvWR(mr)
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        SendWR(mr, opcode=WROpcode.RDMA_READ, remote_addr=0, rkey=1)
    SendWR(mr)


def test_an_address_handle_of_another_pd_is_refused(ud_pair: Pair) -> None:
    a, b = ud_pair
    with pytest.raises(ValueError, match="the AH belongs to another PD than the rest"):
        SendWR(b.mr[0:8], **path_to(a, b))
    with pytest.raises(TypeError, match="ah must be a cqnotify.AH, not int"):
        SendWR(b.mr[0:8], ah=5, remote_qpn=5, remote_qkey=5)  # type: ignore[arg-type]


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


# What is refused when it is posted --------------------------------------------------


def unpostable(ctx: Context) -> list[tuple[QPType, Callable[[Endpoint, Endpoint], SendWR], str]]:
    mtu = ctx.query_port().active_mtu.bytes  # type: ignore[attr-defined]
    read: dict[str, Any] = {"opcode": WROpcode.RDMA_READ}
    return [
        (QPType.UC, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UC"),
        (QPType.UD, lambda a, b: SendWR(a.mr[0:8], **read, **remote(b)), "not possible on a UD"),
        (QPType.UD, lambda a, _: SendWR(a.mr[0:8]), "ah is missing: a UD QP needs it"),
        (
            QPType.RC,
            lambda a, b: SendWR(a.mr[0:8], **path_to(a, b)),
            "ah was given, but a connected QP does not take it",
        ),
        (
            QPType.UC,
            lambda a, _: SendWR(a.mr[0:8], send_flags=SendFlags.FENCE),
            "FENCE is possible on an RC QP only",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR([a.mr[0:8]] * (a.qp.max_send_sge + 1)),
            r"sg has more elements than the \d+ that this QP takes",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR(a.mr, send_flags=SendFlags.INLINE),
            r"sg has 65536 bytes: this QP sends at most \d+ INLINE",
        ),
        (
            QPType.UD,
            lambda a, b: SendWR(a.mr[0 : mtu + 1], **path_to(a, b)),
            f"at most {mtu} in one datagram",
        ),
        (
            QPType.RC,
            lambda a, _: SendWR(MR(PD(a.ctx), 64)),
            "the MR belongs to another PD than the QP",
        ),
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
        assert a.qp.outstanding == (0, 0)
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
        assert a.qp.outstanding == (0, 0)


def test_in_a_state_that_can_not_nothing_of_a_list_is_posted(ctx: Context) -> None:
    a = Endpoint(ctx, QPType.RC)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT") as e:
        a.qp.post_recv([RecvWR(a.mr[0:8])] * 2)
    assert (e.value.posted, e.value.bad_wr) == (0, None)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send([SendWR(a.mr[0:8])] * 2)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT"):
        a.qp.post_recv(RecvWR(a.mr[0:8]))
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send(SendWR(a.mr[0:8]))
    a.qp.close()
    for post in (
        lambda: a.qp.post_recv(RecvWR()),
        lambda: a.qp.post_recv([RecvWR()]),
        lambda: a.qp.post_send(SendWR()),
        lambda: a.qp.post_send([SendWR()]),
    ):
        with pytest.raises(ClosedError, match="this QP is closed"):
            post()


def test_a_request_comes_without_other_arguments(pair: Pair) -> None:
    a = pair[0]
    for send in (SendWR(), [SendWR()]):
        for other in ({"wr_id": 1}, {"opcode": 2}, {"imm_data": None}):
            with pytest.raises(
                TypeError, match=f"{next(iter(other))} was given, but .* comes alone"
            ):
                a.qp.post_send(send, **other)
    for receive in (RecvWR(), [RecvWR()]):
        with pytest.raises(TypeError, match="wr_id was given, but .* comes alone"):
            a.qp.post_recv(receive, wr_id=1)
    assert a.qp.outstanding == (0, 0)


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
    assert a.qp.outstanding == (0, 0)
