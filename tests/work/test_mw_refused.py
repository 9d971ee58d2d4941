# SPDX-License-Identifier: MIT
"""Memory windows: what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mw_support import ATOMIC, BINDABLE, READ, TYPES, WRITE
from support import Endpoint, Pair, connect, wait_one

from cqnotify import (
    MR,
    MW,
    PD,
    QP,
    AccessFlags,
    ClosedError,
    Context,
    MWType,
    QPType,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)


def test_a_window_says_what_it_is(ctx: Context, pd: PD) -> None:
    first, second = MW(pd), MW(pd, MWType.TYPE_2)
    assert (first.mw_type, second.mw_type) == (MWType.TYPE_1, MWType.TYPE_2)
    assert type(second.mw_type) is MWType
    assert first.rkey != second.rkey
    assert first.pd is pd
    assert repr(first) == f"<MW on {ctx.name}, TYPE_1, rkey=0x{first.rkey:x}>"
    first.close()
    assert repr(first) == "<MW closed>"
    for read in (lambda: first.rkey, lambda: first.mw_type, lambda: first.pd):
        with pytest.raises(ClosedError):
            read()


UNBINDABLE: list[tuple[MWType | None, Callable[[Endpoint], Any], AccessFlags | int, str]] = [
    (None, lambda e: e.mr[0:8], AccessFlags.MW_BIND, "access is 0x10: it can have REMOTE_WRITE"),
    (None, lambda e: e.mr[0:8], READ | AccessFlags.MW_BIND, "access is 0x14: it can have"),
    (
        MWType.TYPE_1,
        lambda e: e.mr[0:8],
        READ | AccessFlags.ZERO_BASED,
        "access is 0x24: it can have",
    ),
    (None, lambda e: e.mr[0:8], 1 << 40, "access is 1099511627776"),
    (None, lambda e: MR(e.pd, 64), READ, "an MR needs access MW_BIND"),
    (
        None,
        lambda e: MR(e.pd, bytes(64), access=AccessFlags.MW_BIND),
        WRITE,
        "for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE",
    ),
    (
        None,
        lambda e: MR(e.pd, bytes(64), access=AccessFlags.MW_BIND),
        ATOMIC,
        "for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE",
    ),
    (MWType.TYPE_1, lambda e: e.mr[0:0], READ, "0 bytes unbind the window, and nobody has access"),
    (MWType.TYPE_2, lambda e: e.mr[0:0], 0, "a window of type 2 is unbound by LOCAL_INV"),
    (
        None,
        lambda e: MR(PD(e.ctx), 64, access=BINDABLE),
        READ,
        "the MR belongs to another PD than the QP",
    ),
]


@pytest.mark.parametrize("mw_type", TYPES)
def test_what_can_not_be_bound_is_refused(mw_pair: Pair, mw_type: MWType) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    for only, make, access, message in UNBINDABLE:
        if only in (None, mw_type):
            with pytest.raises(ValueError, match=message):
                owner.qp.bind_mw(mw, make(owner), access=access)
    for bad in ([owner.mr[0:8]], b"bytes", 5):
        with pytest.raises(
            TypeError, match="sg must be mr\\[a:b\\] or an MR, what mw is bound to, not"
        ):
            owner.qp.bind_mw(mw, bad, access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sg is missing"):
        owner.qp.bind_mw(mw, None, access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the MW belongs to another PD than the QP"):
        owner.qp.bind_mw(MW(PD(owner.ctx), mw_type), owner.mr[0:8], access=READ)
    with pytest.raises(TypeError, match=r"mw must be a cqnotify.MW, not cqnotify.MR"):
        owner.qp.bind_mw(owner.mr, owner.mr[0:8], access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SOLICITED is not possible with BIND_MW"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, send_flags=SendFlags.SOLICITED)
    with pytest.raises(ValueError, match="INLINE is not possible with BIND_MW"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ, send_flags=SendFlags.INLINE)
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        owner.qp.bind_mw(mw)  # type: ignore[call-arg]
    mr = MR(owner.pd, 64, access=BINDABLE)
    part = mr[0:8]
    mr.close()
    with pytest.raises(ClosedError, match="this MR is closed"):
        owner.qp.bind_mw(mw, part, access=READ)
    assert (mw.rkey, owner.qp.outstanding) == (rkey, (0, 0))
    mw.close()
    with pytest.raises(ClosedError, match="this MW is closed"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ)


@pytest.mark.parametrize("mw_type", TYPES)
def test_no_window_is_bound_where_no_request_can_be_posted(ctx: Context, mw_type: MWType) -> None:
    ud = Endpoint(ctx, QPType.UD, access=BINDABLE)
    mw = MW(ud.pd, mw_type)
    with pytest.raises(ValueError, match="BIND_MW is not possible on a UD QP"):
        ud.qp.bind_mw(mw, ud.mr[0:8], access=READ)
    rc = QP(ud.pd, QPType.RC, send_cq=ud.scq)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        rc.bind_mw(mw, ud.mr[0:8], access=READ)
    rc.close()
    with pytest.raises(ClosedError):
        rc.bind_mw(mw, ud.mr[0:8], access=READ)
    with pytest.raises(ValueError, match="LOCAL_INV is not possible on a UD QP"):
        ud.qp.post_send(None, opcode=WROpcode.LOCAL_INV, invalidate_rkey=1)


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_queue_that_is_full_binds_nothing(ctx: Context, mw_type: MWType) -> None:
    owner, peer = Endpoint(ctx, QPType.RC, access=BINDABLE, max_send_wr=4), Endpoint(ctx, QPType.RC)
    connect(owner, peer, rnr_retry=7)
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            owner.qp.post_send(None)  # the peer receives nothing
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    with pytest.raises(VerbsError, match="is full"):
        owner.qp.bind_mw(mw, owner.mr[0:8], access=READ)
    assert mw.rkey == rkey
    mw.close()


def test_requests_that_bind_are_checked_when_they_are_built(mw_pair: Pair) -> None:
    owner = mw_pair[0]
    mw, part = MW(owner.pd, MWType.TYPE_2), owner.mr[0:8]
    good: dict[str, Any] = {"opcode": WROpcode.BIND_MW, "mw": mw, "access": READ}
    for changes, message in (
        ({"mw": None}, "mw is missing: BIND_MW needs it"),
        ({"mw": MW(owner.pd)}, "mw is of type 1: that is bound by QP.bind_mw"),
        ({"access": AccessFlags.MW_BIND}, "access is 0x10"),
        ({"imm_data": 1}, "imm_data was given, but BIND_MW does not take it"),
        ({"invalidate_rkey": 1}, "invalidate_rkey was given, but BIND_MW does not take it"),
        ({"remote_addr": 1}, "remote_addr was given, but BIND_MW does not take it"),
        ({"rkey": mw.rkey ^ 0x100}, "only the last byte can be chosen"),
        ({"opcode": WROpcode.SEND}, "mw was given, but SEND does not take it"),
        ({"opcode": WROpcode.SEND, "mw": None}, "access was given, but SEND does not take it"),
    ):
        for call in (SendWR, owner.qp.post_send):
            with pytest.raises(ValueError, match=message):
                call(part, **{**good, **changes})
    foreign = MR(PD(owner.ctx), 64, access=BINDABLE)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the rest"):
        SendWR(foreign, **good)
    wr = SendWR(part, **good)
    mw.close()
    with pytest.raises(ClosedError, match="this MW is closed"):
        owner.qp.post_send(wr)


def test_a_list_binds_a_window_once(mw_pair: Pair) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, MWType.TYPE_2)
    rkey = mw.rkey
    wr = SendWR(owner.mr[0:8], opcode=WROpcode.BIND_MW, mw=mw, access=READ)
    empty = SendWR(opcode=WROpcode.LOCAL_INV, invalidate_rkey=rkey)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\[2\] of the list: its mw is bound by another"):
            owner.qp.post_send([wr, empty, wr])
        assert (mw.rkey, owner.qp.outstanding) == (rkey, (0, 0))
    owner.qp.post_send([wr])
    wait_one(owner.scq)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"opcode": WROpcode.LOCAL_INV}, "invalidate_rkey is missing: LOCAL_INV needs it"),
    ({"opcode": WROpcode.SEND_WITH_INV}, "invalidate_rkey is missing: SEND_WITH_INV needs it"),
    ({"invalidate_rkey": 1}, "invalidate_rkey was given, but SEND does not take it"),
    ({"opcode": WROpcode.LOCAL_INV, "invalidate_rkey": 1 << 32}, "invalidate_rkey is 4294967296"),
    (
        {"opcode": WROpcode.LOCAL_INV, "invalidate_rkey": 1, "send_flags": SendFlags.SOLICITED},
        "SOLICITED is not possible with LOCAL_INV",
    ),
    (
        {"opcode": WROpcode.SEND_WITH_INV, "invalidate_rkey": 1, "imm_data": 1},
        "imm_data was given, but SEND_WITH_INV does not take it",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID, ids=[m for _, m in INVALID])
def test_what_can_not_invalidate_is_refused(
    mw_pair: Pair, arguments: dict[str, Any], message: str
) -> None:
    owner = mw_pair[0]
    for call in (SendWR, owner.qp.post_send):
        with pytest.raises(ValueError, match=message):
            call(None, **arguments)
    with pytest.raises(ValueError, match="sg was given, but LOCAL_INV does not take it"):
        SendWR(owner.mr, opcode=WROpcode.LOCAL_INV, invalidate_rkey=1)
    with pytest.raises(ValueError, match="SEND_WITH_INV is not possible on a UD QP"):
        QP(owner.pd, QPType.UD, send_cq=owner.scq).post_send(
            owner.mr, opcode=WROpcode.SEND_WITH_INV, invalidate_rkey=1
        )
    assert owner.qp.outstanding == (0, 0)
