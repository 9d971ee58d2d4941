# SPDX-License-Identifier: MIT
"""Arguments that are refused: each with the error and its words, and nothing is left behind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    CompletionChannel,
    Context,
    FailureWatch,
    QPType,
    SendWR,
    WCArray,
)
from cqnotify.cm import blocking
from cqnotify.hw import WQ, Flow

RC, NAN, INF = QPType.RC, math.nan, math.inf
FAR = 10**5000  # more digits than Python shows
ZERO_BASED, REMOTE_WRITE = AccessFlags.ZERO_BASED, AccessFlags.REMOTE_WRITE

Call = Callable[[SimpleNamespace, Any], Any]
Row = tuple[str, Call, list[Any], Any, str]
OUT_OF_RANGE = [0, -1, 1 << 31]
NO_TIMES = [-1, -1e-9, NAN, INF, -INF, 60.1, 61, 10**400, -(10**400)]
# Numbers around the limits of a QP's queues, by the parameter and the device's name for the limit.
BEYOND: dict[tuple[str, str], list[Any]] = {
    (name, limit): [
        -1,
        1 << 40,
        lambda s, limit=limit: getattr(s.device, limit) + 1,
    ]
    for limit, names in [
        ("max_qp_wr", ("max_send_wr", "max_recv_wr")),
        ("max_sge", ("max_send_sge", "max_recv_sge")),
    ]
    for name in names
}
STRIDED = memoryview(bytearray(64))[::2]

# By the name of what is called: the call with the bad argument, those, the error, and what it says.
# An argument that depends on the device is a function. In the words, `bad` is the argument,
# `device` what the device says of itself, and `sge` the most elements of a receive.
ROWS: list[Row] = [
    ("Context", lambda s, bad: Context(bad), [1, b"rxe0", object()], TypeError, ""),
    ("Context", lambda s, bad: Context(bad), ["rxe\0"], ValueError, "null"),
    ("query_port", lambda s, bad: s.ctx.query_port(bad), [0, 2, 255, 256, -1, 1 << 70], ValueError,
     "port_num is {bad}: it must be 1 to 1"),
    ("query_port", lambda s, bad: s.ctx.query_port(bad), ["1"], TypeError,
     "port_num must be an integer, not str"),
    ("find_gid", lambda s, bad: s.ctx.find_gid(bad), [5, bytes(16), []], TypeError,
     "address must be an IP address"),
    ("get_async_event", lambda s, bad: s.ctx.get_async_event(1, bad), [2], TypeError,
     "at most 1 positional"),
    ("FailureWatch", lambda s, bad: FailureWatch(bad), [None, 1, "rxe0"], TypeError,
     "context must be a"),
    ("CQ", lambda s, bad: CQ(s.ctx, bad), [0, -1, 1 << 31, 1 << 64], ValueError, "cqe is"),
    ("CQ", lambda s, bad: CQ(s.ctx, bad), [lambda s: s.device.max_cqe + 1], ValueError,
     "cqe is {bad}: it must be 1 to {device.max_cqe}"),
    ("CQ", lambda s, bad: CQ(s.ctx, bad), ["64", 64.0, None], TypeError, "cqe must be an integer"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, comp_vector=s.ctx.num_comp_vectors + bad), [0], ValueError,
     "comp_vector is"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, channel=CompletionChannel(s.other)), [None], ValueError,
     "another Context"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, channel=s.ctx), [None], TypeError,
     "channel must be a cqnotify.CompletionChannel"),
    ("CQ", lambda s, bad: CQ(bad, 4), [None], TypeError, "context must be a cqnotify.Context"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, nonsense=bad), [1], TypeError, "nonsense"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, wc_flags=bad), [0x80000001], ValueError,
     "0x80000000 is no flag of WCExFlags"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, wc_flags=bad), ["all"], TypeError,
     "wc_flags must be WCExFlags such as WCExFlags.BYTE_LEN, not 'all'"),
    ("CQ", lambda s, bad: CQ(s.ctx, 4, wc_flags=bad), [[FAR]], TypeError, "BYTE_LEN, not list"),
    ("get_async_event", lambda s, bad: s.ctx.get_async_event(timeout=bad), [-FAR], ValueError,
     "timeout is far too small: it must be 0 or more seconds"),
    ("attach_mcast", lambda s, bad: s.qp.attach_mcast(bad), [FAR, b"short"], TypeError,
     "gid must be an IP address, its text, or 16 bytes, not (int|b'short')"),
    ("poll", lambda s, bad: s.cq.poll(bad), OUT_OF_RANGE, ValueError, "max_entries is"),
    ("poll", lambda s, bad: s.cq.poll(bad), [FAR], ValueError,
     "max_entries is .*: it must be 1 to 2147483647"),
    ("poll", lambda s, bad: s.cq.poll(bad), ["1"], TypeError,
     "max_entries must be an integer, not str"),
    ("poll", lambda s, bad: s.cq.poll(n=bad), [1], TypeError, "unexpected keyword argument 'n'"),
    ("poll", lambda s, bad: s.cq.poll(1, bad), [2, 0.5], TypeError, "at most 1 positional"),
    ("poll", lambda s, bad: s.cq.poll(spin=bad), NO_TIMES, ValueError,
     "spin is .*: it must be 0 to 60 seconds"),
    ("poll", lambda s, bad: s.cq.poll(spin=bad), [FAR], ValueError, "spin is far too large"),
    ("poll", lambda s, bad: s.cq.poll(spin=bad), [None, [], 1j, b"auto"], TypeError,
     "spin must be a number of seconds or 'auto', not "),
    ("poll", lambda s, bad: s.cq.poll(spin=bad), ["1", "", "Auto"], ValueError,
     "spin must be a number of seconds or 'auto', not '"),
    ("poll_ids", lambda s, bad: s.cq.poll_ids(bad), OUT_OF_RANGE, ValueError, "max_entries is"),
    ("poll_ids", lambda s, bad: s.cq.poll_ids(spin=bad), [0.5], TypeError, "spin"),
    ("poll_into", lambda s, bad: s.cq.poll_into(bad), [None, [], bytearray(48)], TypeError,
     "wcs must be a cqnotify.WCArray"),
    ("WCArray", lambda s, bad: WCArray(bad), OUT_OF_RANGE, ValueError, "capacity is"),
    ("WCArray", lambda s, bad: WCArray(8)[bad], [2**63, 2**64, -(2**63) - 1, 0, -1],
     IndexError, ""),
    ("resize", lambda s, bad: s.cq.resize(bad), OUT_OF_RANGE, ValueError,
     "cqe is {bad}: it must be 1 to {device.max_cqe}"),
    ("MR", lambda s, bad: MR(s.pd, bad), ["text", None, 1.5, object(), [1, 2]], TypeError, ""),
    ("MR", lambda s, bad: MR(s.pd, bad), [0], ValueError, "length is 0: it must be 1"),
    ("MR", lambda s, bad: MR(s.pd, bad), [-1, 1 << 63, 1 << 64, (1 << 63) - 1],
     (ValueError, MemoryError), ""),
    ("MR", lambda s, bad: MR(s.pd, bad), [bytearray()], ValueError, "at least 1 byte"),
    ("MR", lambda s, bad: MR(s.pd, bad), [STRIDED], TypeError, "contiguous"),
    ("MR", lambda s, bad: MR(s.pd, 64, access=bad), [REMOTE_WRITE], ValueError, "need LOCAL_WRITE"),
    ("MR", lambda s, bad: MR(s.pd, 64, access=bad), [1 | ZERO_BASED], ValueError,
     "access is 0x21: ZERO_BASED is for memory windows"),
    ("MR", lambda s, bad: MR(s.pd, 4096, iova=bad), [1, 4095], ValueError,
     "iova is {bad}: its place in a page of 4096 bytes must be that of the buffer"),
    ("MR", lambda s, bad: MR(s.pd, 4096, iova=bad), [-1, 1 << 64], ValueError, "iova is {bad}: it"),
    ("MR", lambda s, bad: MR(s.pd, 4096, iova=bad), ["0"], TypeError, "iova must be an integer"),
    ("MR", lambda s, bad: s.mr.rereg(**bad), [{}, {"buffer": None, "pd": None}], TypeError,
     r"rereg\(\) needs buffer, pd or access"),
    ("MR", lambda s, bad: s.mr.rereg(access=bad), [REMOTE_WRITE], ValueError, "need LOCAL_WRITE"),
    ("MR", lambda s, bad: s.mr.rereg(bad), [b"read-only"], TypeError, "buffer must be writable"),
    ("MR", lambda s, bad: s.mr.rereg(bad), [0, -1], ValueError, "length is {bad}: it must be 1"),
    ("MR", lambda s, bad: s.mr.rereg(pd=PD(s.other)), [None], ValueError, "pd belongs to another"),
    ("MR", lambda s, bad: MR.from_dmabuf(s.pd, 0, bad), [0, -1, 1 << 63], ValueError, "length is"),
    ("MR", lambda s, bad: MR.from_dmabuf(s.pd, bad, 64), ["fd", None, -1], (TypeError, ValueError),
     ""),
    ("MR", lambda s, bad: MR(bad, 64), [None, object(), "pd", 7], TypeError,
     "pd must be a cqnotify.PD"),
    ("MR", lambda s, bad: s.mr[bad], [slice(0, 1001), slice(-1001, 5), slice(1001, None),
     slice(0, 1 << 70)], IndexError, ""),
    ("MR", lambda s, bad: s.mr[bad], [slice(5, 3), slice(0, 10, 2), slice(10, 0, -1)], ValueError,
     "step"),
    ("MR", lambda s, bad: s.mr[bad], [3], TypeError, "memoryview"),
    ("with_lkey", lambda s, bad: s.mr[0:8].with_lkey(bad), [-1, 1 << 32], ValueError, "lkey"),
    ("with_lkey", lambda s, bad: s.mr[0:8].with_lkey(bad), [""], TypeError, "lkey"),
    ("QP", lambda s, bad: QP(s.pd, bad, send_cq=s.cq), [0, 1, 11, 99, 255], ValueError,
     "must be QPType.RC, UC, UD, RAW_PACKET, XRC_SEND or XRC_RECV"),
    *(
        ("QP", lambda s, bad, name=name: QP(s.pd, RC, send_cq=s.cq, **{name: bad}), beyond,
         ValueError, f"{name} is {{bad}}: it must be 0 to {{device.{limit}}}")
        for (name, limit), beyond in BEYOND.items()
    ),
    ("QP", lambda s, bad: QP(s.pd, bad), [RC], TypeError, "send_cq"),
    ("QP", lambda s, bad: QP(s.pd, RC, send_cq=s.pd), [None], TypeError,
     "send_cq must be a cqnotify.CQ"),
    ("QP", lambda s, bad: QP(s.cq, RC, send_cq=s.cq), [None], TypeError,
     "pd must be a cqnotify.PD"),
    ("QP", lambda s, bad: QP(s.pd, bad, send_cq=s.cq), ["RC"], TypeError,
     "qp_type must be a QPType such as QPType.RC, not 'RC'"),
    ("QP", lambda s, bad: QP(s.pd, RC, send_cq=CQ(s.other, 4)), [None], ValueError,
     "send_cq belongs to another Context"),
    ("QP", lambda s, bad: QP(s.pd, RC, send_cq=s.cq, recv_cq=CQ(s.other, 4)), [None], ValueError,
     "recv_cq belongs to another Context"),
    ("QP", lambda s, bad: QP(s.pd, RC, bad), [1], TypeError, "at most 2 positional"),
    ("QP", lambda s, bad: QP(s.pd, bad=bad), [1], TypeError, "argument 'bad'"),
    ("QP", lambda s, bad: QP(s.pd), [None], TypeError, "missing required argument 'qp_type'"),
    ("QP", lambda s, bad: QP(s.pd, RC, **{bad: s.pd}), ["pd"], TypeError,
     "multiple values for argument 'pd'"),
    ("check_modify", lambda s, bad: s.qp.check_modify(cap=bad), [{"nonsense": 1}], TypeError,
     "no field of QPCap"),
    ("SRQ", lambda s, bad: SRQ(s.pd, bad), [-1, 0, 1 << 70, lambda s: s.device.max_srq_wr + 1],
     ValueError, "max_wr is {bad}: it must be 1 to {device.max_srq_wr}"),
    ("SRQ", lambda s, bad: SRQ(s.pd, 4, max_sge=bad), [-1, lambda s: s.sge + 1], ValueError,
     "max_sge is {bad}: it must be 0 to {sge}"),
    ("SRQ", lambda s, bad: SRQ(s.pd, 4, srq_limit=bad), [-1, 5], ValueError,
     "srq_limit is {bad}: it must be 0 to 4"),
    ("SRQ", lambda s, bad: SRQ(bad or s.pd), [None], TypeError, "max_wr"),
    ("SRQ", lambda s, bad: SRQ(s.cq, 4), [None], TypeError,
     "pd must be a cqnotify.PD, not cqnotify.CQ"),
    ("SRQ", lambda s, bad: SRQ(s.pd, bad), ["4"], TypeError, "max_wr must be an integer, not str"),
    ("SRQ", lambda s, bad: SRQ(s.pd, 4, max_sge=bad), [1.0], TypeError,
     "max_sge must be an integer, not float"),
    ("SRQ", lambda s, bad: SRQ(s.pd, 4, bad), [1], TypeError, "positional"),
    ("SRQ.modify", lambda s, bad: s.srq.modify(**bad), [{}, {"max_wr": None}, {"max_wr": None,
     "srq_limit": None}], TypeError, "needs max_wr or srq_limit"),
    ("SRQ.modify", lambda s, bad: s.srq.modify(srq_limit=bad), ["1"], TypeError,
     "srq_limit must be an integer, not str"),
    ("SRQ.modify", lambda s, bad: s.srq.modify(max_sge=bad), [1], TypeError,
     "unexpected keyword argument 'max_sge'"),
    ("SRQ.modify", lambda s, bad: s.srq.modify(bad), [4], TypeError, "at most 0 positional"),
    ("MW", lambda s, bad: MW(s.pd, bad), [0, 3, 255], ValueError,
     "mw_type is {bad}: it must be MWType.TYPE_1"),
    ("MW", lambda s, bad: MW(s.pd, bad), [256], ValueError, "mw_type is 256"),
    ("MW", lambda s, bad: MW(s.pd, bad), ["2"], TypeError,
     "mw_type must be an MWType such as MWType.TYPE_1, not '2'"),
    ("MW", lambda s, bad: MW(s.ctx), [None], TypeError, "pd must be a"),
]  # fmt: skip


@pytest.mark.parametrize("name", dict.fromkeys(row[0] for row in ROWS))
def test_what_is_refused_says_why_and_leaves_nothing(ctx: Context, name: str) -> None:
    with Context(ctx.name) as other, PD(ctx) as pd, CQ(ctx, 4) as cq:
        s = SimpleNamespace(ctx=ctx, other=other, pd=pd, cq=cq, device=ctx.query_device())
        s.sge = min(s.device.max_srq_sge, 64)
        make: dict[str, Callable[[], Any]] = {
            "mr": lambda: MR(pd, 1000),
            "qp": lambda: QP(pd, RC, send_cq=cq),
            "srq": lambda: SRQ(pd, 32),
        }
        needed = {"MR": "mr", "with_lkey": "mr", "check_modify": "qp", "attach_mcast": "qp"}
        needed["SRQ.modify"] = "srq"
        made = needed.get(name)
        if made is not None:
            setattr(s, made, make[made]())
        for _, call, bads, error, words in [row for row in ROWS if row[0] == name]:
            for bad in bads:
                value = bad(s) if callable(bad) else bad
                match = words.format(bad=value, device=s.device, sge=s.sge) if words else None
                with pytest.raises(error, match=match):
                    call(s, value)
        if made is not None:
            getattr(s, made).close()
        pd.close()  # nothing is left that needs them
        cq.close()


TEXT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: QP(s.pd, "RC", send_cq=s.cq), "qp_type must be a QPType such as QPType.RC"),
    (lambda s: QP(s.pd, RC, send_cq=s.cq, create_flags="RC"), "create_flags must be QPCreateFlags"),
    (lambda s: SRQ(s.pd, 4, srq_type="RC"), "srq_type must be an SRQType such as SRQType.BASIC"),
    (lambda s: MR(s.pd, 64, access="RC"), "access must be AccessFlags such as AccessFlags.LOCAL"),
    (lambda s: s.mr.rereg(access="RC"), "access must be AccessFlags such as AccessFlags.LOCAL"),
    (lambda s: WQ(s.pd, s.cq, wq_type="RC"), "wq_type must be a WQType such as WQType.RQ"),
    (lambda s: WQ(s.pd, s.cq, create_flags="RC"), "create_flags must be WQFlags such as WQFlags"),
    (lambda s: s.pd.advise_mr("RC", s.mr), "advice must be an AdviseMRAdvice such as"),
    (lambda s: s.pd.advise_mr(0, s.mr, flags="RC"), "flags must be AdviseMRFlags such as"),
    (lambda s: s.qp.modify(qp_state="RC"), "qp_state must be a QPState such as QPState.RTS"),
    (lambda s: s.qp.modify(path_mtu="RC"), "path_mtu must be an MTU such as MTU.MTU_1024"),
    (lambda s: s.qp.check_modify(path_mig_state="RC"), "path_mig_state must be a MigState such as"),
    (lambda s: s.qp.to_init(access="RC"), "qp_access_flags must be AccessFlags such as"),
    (lambda s: s.qp.connect(s.qp.address(), path_mtu="RC"), "path_mtu must be an MTU such as"),
    (lambda s: s.qp.post_send(s.mr, opcode="RC"), "opcode must be a WROpcode such as WROpcode."),
    (lambda s: s.qp.post_send(s.mr, send_flags="RC"), "send_flags must be SendFlags such as Send"),
    (lambda s: SendWR(s.mr, opcode="RC"), "opcode must be a WROpcode such as WROpcode.SEND"),
    (lambda s: s.qp.bind_mw(s.mw, s.mr, access="RC"), "access must be AccessFlags such as Access"),
    (lambda s: s.qp.query_data_in_order("RC"), "opcode must be a WROpcode such as WROpcode."),
    (lambda s: s.ctx.find_gid(gid_type="RC"), "gid_type must be a GIDType such as GIDType.ROCE_V2"),
    (lambda s: Flow(s.ud, flow_type="RC"), "flow_type must be a FlowAttrType such as"),
    (lambda s: Flow(s.ud, flags="RC"), "flags must be FlowAttrFlags such as FlowAttrFlags.EGRESS"),
    (lambda s: check_access(s.qp, "RC"), "access must be AccessFlags such as AccessFlags.REMOTE"),
]


def check_access(qp: QP, access: Any) -> None:
    blocking.connect(qp, "127.0.0.1", 1, access=access)


@pytest.mark.parametrize(("call", "says"), TEXT, ids=[says.split(" such")[0] for _, says in TEXT])
def test_text_in_the_place_of_a_member_is_told_which_enum_to_use(
    ctx: Context, pd: PD, cq: CQ, call: Callable[[Any], Any], says: str
) -> None:
    s = SimpleNamespace(ctx=ctx, pd=pd, cq=cq, mr=MR(pd, 64), mw=MW(pd))
    s.qp, s.ud = QP(pd, RC, send_cq=cq), QP(pd, QPType.UD, send_cq=cq)
    with pytest.raises(TypeError, match=f"^{re.escape(says)}.*, not 'RC'$"):
        call(s)


def test_the_limits_themselves_are_taken(ctx: Context, pd: PD, cq: CQ) -> None:
    CQ(ctx, ctx.query_device().max_cqe).close()
    CQ(ctx, 4, comp_vector=ctx.num_comp_vectors - 1).close()
    assert CQ(ctx, 4).wc_flags is None
    access = AccessFlags.REMOTE_READ
    assert MR(pd, 64, access=access).access == access
    mr = MR(pd, 10)
    memoryview(mr)[3] = 7
    assert mr.read(1, 3) == b"\7"
