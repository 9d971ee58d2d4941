# SPDX-License-Identifier: MIT
"""What post_send(), post_recv() and AH refuse before the device sees it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from posting import ah_to, fill, write
from support import GRH, QKEY, Endpoint, Pair, connect, wait_one

from cqnotify import (
    AH,
    MR,
    PD,
    AccessFlags,
    ClosedError,
    Context,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WorkCompletion,
    WROpcode,
)

REFUSED: list[tuple[str, Callable[[Endpoint], dict[str, Any]], str]] = [
    ("no imm", lambda e: {"opcode": WROpcode.SEND_WITH_IMM}, "imm_data is missing"),
    ("an imm", lambda e: {"imm_data": 1}, "imm_data was given, but SEND does not take it"),
    (
        "imm too large",
        lambda e: {"opcode": WROpcode.SEND_WITH_IMM, "imm_data": 1 << 32},
        "imm_data is 4294967296: it must be 0 to 4294967295",
    ),
    ("no address", lambda e: write(e, remote_addr=...), "remote_addr is missing"),
    ("no rkey", lambda e: write(e, rkey=...), "rkey is missing"),
    ("an address", lambda e: {"remote_addr": 1}, "remote_addr was given, but SEND"),
    ("an rkey", lambda e: {"rkey": 1}, "rkey was given, but SEND"),
    ("rkey too large", lambda e: write(e, rkey=1 << 32), "rkey is 4294967296"),
    ("address negative", lambda e: write(e, remote_addr=-1), "remote_addr is -1"),
    ("wr_id negative", lambda e: {"wr_id": -1}, "wr_id is -1"),
    ("wr_id too large", lambda e: {"wr_id": 1 << 64}, "wr_id is 18446744073709551616"),
    ("unknown flag", lambda e: {"send_flags": 1 << 20}, "0x100000 is no flag"),
    ("unknown opcode", lambda e: {"opcode": 99}, "opcode is 99"),
    (
        "solicited write",
        lambda e: write(e, send_flags=SendFlags.SOLICITED),
        "SOLICITED is not possible with RDMA_WRITE",
    ),
    (
        "inline read",
        lambda e: write(e, opcode=WROpcode.RDMA_READ, send_flags=SendFlags.INLINE),
        "INLINE is not possible with RDMA_READ",
    ),
    ("inline too long", lambda e: {"send_flags": SendFlags.INLINE}, "at most .* INLINE"),
    ("remote_qpn", lambda e: {"remote_qpn": 5}, "a connected QP does not take it"),
    ("remote_qkey", lambda e: {"remote_qkey": 5}, "a connected QP does not take it"),
    ("an ah", lambda e: {"ah": 5}, "a connected QP does not take it"),
]


@pytest.mark.parametrize(("make", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_does_not_go_together_is_refused(
    pair: Pair, make: Callable[[Endpoint], dict[str, Any]], message: str
) -> None:
    a = pair[0]
    with pytest.raises(ValueError, match=message):
        a.qp.post_send(a.mr, **make(a))
    assert a.qp.outstanding == (0, 0)
    assert a.scq.poll() == []


def test_flush_that_another_call_posts_is_not_supported(pair: Pair) -> None:
    a = pair[0]
    call = "FLUSH is not supported by this verb, but by ibv_wr_flush"
    for post in (a.qp.post_send, SendWR):
        with pytest.raises(VerbsError, match=call) as e:
            post(a.mr[0:8], opcode=WROpcode.FLUSH)  # type: ignore[operator]
        assert e.value.errno == errno.EOPNOTSUPP


def test_checksums_are_for_datagrams_on_devices_that_make_them(pair: Pair, ud_pair: Pair) -> None:
    a, b = ud_pair
    flags = SendFlags.IP_CSUM | SendFlags.SIGNALED
    with pytest.raises(ValueError, match="IP_CSUM is possible on a UD QP only"):
        pair[0].qp.post_send(pair[0].mr[0:8], send_flags=flags)
    if a.ctx.query_device().device_cap_flags & 1 << 18:
        pytest.skip("this device makes checksums")
    with ah_to(a, b) as ah:
        path: dict[str, Any] = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
        wr = SendWR(a.mr[0:8], send_flags=flags, **path)
        for post in (
            lambda: a.qp.post_send(a.mr[0:8], send_flags=flags, **path),
            lambda: a.qp.post_send(wr),
        ):
            with pytest.raises(VerbsError, match="IP_CSUM is not supported by rxe") as e:
                post()
            assert e.value.errno == errno.EOPNOTSUPP
    assert a.qp.outstanding == (0, 0)


@pytest.mark.parametrize("bad", [1, "text", b"bytes", object(), [b"x"], [None], [[]]])
def test_memory_of_a_wrong_type_is_refused(pair: Pair, bad: Any) -> None:
    with pytest.raises(TypeError, match="sg must be"):
        pair[0].qp.post_send(bad)
    with pytest.raises(TypeError, match="sg must be"):
        pair[0].qp.post_recv(bad)


def test_arguments_by_name_only_and_none_unknown(pair: Pair) -> None:
    a = pair[0]
    with pytest.raises(TypeError, match="at most 1 positional argument"):
        a.qp.post_send(a.mr, 5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'flags'"):
        a.qp.post_send(a.mr, flags=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        a.qp.post_send()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="wr_id must be an integer, not float"):
        a.qp.post_recv(a.mr, wr_id=1.0)  # type: ignore[arg-type]


def test_memory_of_another_pd_is_refused(pair: Pair) -> None:
    a = pair[0]
    foreign = MR(PD(a.ctx), 64)
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ValueError, match="another PD"):
            post(foreign[0:8])


def test_closed_memory_is_refused(pair: Pair) -> None:
    a = pair[0]
    mr = MR(a.pd, 64)
    part = mr[0:8]
    mr.close()
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ClosedError):
            post(part)
        with pytest.raises(ClosedError):
            post(mr)


def test_memory_that_may_not_be_written_can_not_receive(pair: Pair) -> None:
    a, b = pair
    mr = MR(a.pd, b"constant", access=AccessFlags(0))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        a.qp.post_recv(mr)
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        a.qp.post_send(mr, **write(b, opcode=WROpcode.RDMA_READ))
    b.qp.post_recv(b.mr)
    a.qp.post_send(mr)
    wait_one(b.rcq)
    assert b.mr.read(8) == b"constant"


def test_more_elements_than_the_qp_takes_are_refused(pair: Pair) -> None:
    a = pair[0]
    for post, limit in ((a.qp.post_send, a.qp.max_send_sge), (a.qp.post_recv, a.qp.max_recv_sge)):
        with pytest.raises(ValueError, match=f"more elements than the {limit} that this QP takes"):
            post([a.mr[0:1]] * (limit + 1))
        with pytest.raises(ValueError, match="more elements than the 64 that any queue takes"):
            post([a.mr[0:1]] * 65)


def test_posting_in_a_state_that_can_not_is_refused_and_never_sent(ctx: Context) -> None:
    """Some providers would keep what they refuse, and send it later."""
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    with pytest.raises(VerbsError, match="is in RESET, and needs INIT"):
        a.qp.post_recv(a.mr)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        a.qp.post_send(a.mr[0:8])
    a.qp.to_init()
    with pytest.raises(VerbsError, match="is in INIT, and needs RTS"):
        a.qp.post_send(a.mr[0:8])
    connect(a, b)
    b.qp.post_recv(b.mr, wr_id=1)
    a.qp.post_send(a.mr[0:16], wr_id=2)
    assert wait_one(b.rcq).byte_len == 16
    assert a.qp.outstanding == (0, 0) or wait_one(a.scq).wr_id == 2


def test_a_closed_qp_posts_nothing(pair: Pair) -> None:
    a = pair[0]
    a.qp.close()
    for post in (a.qp.post_send, a.qp.post_recv):
        with pytest.raises(ClosedError):
            post(a.mr[0:8])


UD_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no ah", {"ah": ...}, "ah is missing: a UD QP needs it"),
    ("no qpn", {"remote_qpn": ...}, "remote_qpn is missing"),
    ("no qkey", {"remote_qkey": ...}, "remote_qkey is missing"),
    ("qpn too large", {"remote_qpn": 1 << 24}, "remote_qpn is 16777216"),
    (
        "write",
        {"opcode": WROpcode.RDMA_WRITE, "remote_addr": 1, "rkey": 1},
        "RDMA_WRITE is not possible on a UD QP",
    ),
    ("fence", {"send_flags": SendFlags.FENCE}, "FENCE is possible on an RC QP only"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [r[1:] for r in UD_REFUSED], ids=[r[0] for r in UD_REFUSED]
)
def test_a_datagram_that_is_not_complete_is_refused(
    ud_pair: Pair, changes: dict[str, Any], message: str
) -> None:
    a, b = ud_pair
    with ah_to(a, b) as ah:
        call = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY, **changes}
        with pytest.raises(ValueError, match=message):
            a.qp.post_send(a.mr[0:8], **{k: v for k, v in call.items() if v is not ...})


def test_a_datagram_longer_than_the_mtu_is_refused(ud_pair: Pair) -> None:
    """rxe would report success, and lose it."""
    a, b = ud_pair
    mtu = a.ctx.query_port().active_mtu.bytes  # type: ignore[union-attr]
    with ah_to(a, b) as ah:
        for size, fits in ((mtu, True), (mtu + 1, False)):
            call = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
            b.qp.post_recv(b.mr)
            if fits:
                a.qp.post_send(a.mr[0:size], **call)
                assert wait_one(b.rcq).byte_len == size + GRH
                wait_one(a.scq)
            else:
                with pytest.raises(ValueError, match=f"at most {mtu} in one datagram"):
                    a.qp.post_send(a.mr[0:size], **call)


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


def datagram(a: Endpoint, b: Endpoint) -> WorkCompletion:
    b.qp.post_recv(b.mr[0:128])
    a.qp.post_send(a.mr[0:8], ah=ah_to(a, b), remote_qpn=b.qp.qp_num, remote_qkey=QKEY)
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
    with pytest.raises(ValueError, match="grh has 39 bytes: it must be the 40 before the message"):
        AH.from_wc(b.pd, wc, grh[:-1])
    with pytest.raises(ValueError, match="grh has 0 bytes"):
        AH.from_wc(b.pd, wc)
    with pytest.raises(ValueError, match="port_num is 2"):
        AH.from_wc(b.pd, wc, grh, port_num=2)
    with pytest.raises(TypeError, match="wc must be a WorkCompletion, not bytes"):
        AH.from_wc(b.pd, grh, grh)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pd must be a"):
        AH.from_wc(b.ctx, wc, grh)  # type: ignore[arg-type]
    with pytest.raises(VerbsError, match="port 1 has no GID that the datagram was sent to"):
        AH.from_wc(b.pd, wc, grh[:24] + bytes(range(16)))
    pair[1].qp.post_recv(pair[1].mr[0:64])
    pair[0].qp.post_send(pair[0].mr[0:64])
    with pytest.raises(ValueError, match="the successful receive of a datagram"):
        AH.from_wc(pair[1].pd, wait_one(pair[1].rcq), grh)
    b.pd.context.close()
    with pytest.raises(ClosedError):
        AH.from_wc(b.pd, wc, grh)


def test_address_handles_check_their_arguments(pd: PD, ud_pair: Pair) -> None:
    a, b = ud_pair
    with pytest.raises(ValueError, match="port_num is 9: this device has port 1"):
        AH(pd, dgid=b.ctx.find_gid().gid, port_num=9)
    with pytest.raises(TypeError, match="dgid must be an IP address, its text, or 16"):
        AH(pd, dgid=b"short")
    with pytest.raises(ValueError, match="dgid is 'bogus': that is no IP address"):
        AH(pd, dgid="bogus")
    with pytest.raises(ValueError, match="sl is 16"):
        AH(pd, sl=16)
    with pytest.raises(TypeError, match="no field 'nonsense'"):
        AH(pd, nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="pd must be a"):
        AH(None)  # type: ignore[arg-type]
    with ah_to(a, b) as ah:
        with pytest.raises(TypeError, match="ah must be a"):
            a.qp.post_send(a.mr[0:8], ah=pd, remote_qpn=1, remote_qkey=1)  # type: ignore[arg-type]
        assert ah.pd is a.pd
    foreign = AH(pd, dgid=b.ctx.find_gid().gid, sgid_index=a.ctx.find_gid().index)
    with pytest.raises(ValueError, match="another PD"):
        a.qp.post_send(a.mr[0:8], ah=foreign, remote_qpn=1, remote_qkey=1)
    with pytest.raises(ClosedError):
        a.qp.post_send(a.mr[0:8], ah=ah, remote_qpn=1, remote_qkey=1)
