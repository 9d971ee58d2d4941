# SPDX-License-Identifier: MIT
"""Memory windows: what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mw_support import ATOMIC, BINDABLE, READ, TYPES, WRITE
from posting import stuck
from support import Endpoint, Pair, outstanding, wait_one

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
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


def test_a_window_says_what_it_is(pd: PD) -> None:
    first, second = MW(pd), MW(pd, MWType.TYPE_2)
    assert (first.mw_type, second.mw_type) == (MWType.TYPE_1, MWType.TYPE_2)
    assert type(second.mw_type) is MWType
    assert first.rkey != second.rkey
    assert first.pd is pd


MW_BIND = AccessFlags.MW_BIND
CONSTANT = "for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE"


OTHER_PD = "the MR belongs to another PD than the QP"


ONE_PART = r"sg must be mr\[a:b\] or an MR, what mw is bound to, not"


def part(e: Endpoint) -> SGE:
    return e.mr[0:8]


def constant(e: Endpoint) -> MR:
    return MR(e.pd, bytes(64), access=MW_BIND)


def closed(e: Endpoint) -> SGE:
    with MR(e.pd, 64, access=BINDABLE) as mr:
        return mr[0:8]


# For windows of that type, or of both.
UNBINDABLE: list[
    tuple[MWType | None, Callable[[Endpoint], Any], AccessFlags | int, type[Exception], str]
] = [
    (None, part, MW_BIND, ValueError, "access is 0x10: it can have REMOTE_WRITE"),
    (None, part, READ | MW_BIND, ValueError, "access is 0x14: it can have"),
    (MWType.TYPE_1, part, READ | AccessFlags.ZERO_BASED, ValueError, "access is 0x24: it can have"),
    (None, part, 1 << 40, ValueError, "access is 1099511627776"),
    (None, lambda e: MR(e.pd, 64), READ, ValueError, "an MR needs access MW_BIND"),
    (None, constant, WRITE, ValueError, CONSTANT),
    (None, constant, ATOMIC, ValueError, CONSTANT),
    (MWType.TYPE_1, lambda e: e.mr[0:0], READ, ValueError, "0 bytes unbind the window, and nobody"),
    (MWType.TYPE_2, lambda e: e.mr[0:0], 0, ValueError, "of type 2 is unbound by LOCAL_INV"),
    (None, lambda e: MR(PD(e.ctx), 64, access=BINDABLE), READ, ValueError, OTHER_PD),
    (None, lambda e: None, READ, ValueError, "sg is missing"),
    *((None, lambda e, bad=bad: bad, READ, TypeError, ONE_PART) for bad in ([], b"bytes", 5)),
    (None, closed, READ, ClosedError, "this MR is closed"),
]


@pytest.mark.parametrize("mw_type", TYPES)
def test_what_can_not_be_bound_is_refused(mw_pair: Pair, mw_type: MWType) -> None:
    owner = mw_pair[0]
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    for only, make, access, error, message in UNBINDABLE:
        if only in (None, mw_type):
            with pytest.raises(error, match=message):
                owner.qp.bind_mw(mw, make(owner), access=access)
    with pytest.raises(ValueError, match="the MW belongs to another PD than the QP"):
        owner.qp.bind_mw(MW(PD(owner.ctx), mw_type), part(owner), access=READ)
    with pytest.raises(TypeError, match=r"mw must be a cqnotify.MW, not cqnotify.MR"):
        owner.qp.bind_mw(owner.mr, part(owner), access=READ)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SOLICITED is not possible with BIND_MW"):
        owner.qp.bind_mw(mw, part(owner), access=READ, send_flags=SendFlags.SOLICITED)
    with pytest.raises(TypeError, match="missing required argument 'sg'"):
        owner.qp.bind_mw(mw)  # type: ignore[call-arg]
    assert (mw.rkey, outstanding(owner.qp)) == (rkey, (0, 0))
    mw.close()
    with pytest.raises(ClosedError, match="this MW is closed"):
        owner.qp.bind_mw(mw, part(owner), access=READ)


@pytest.mark.parametrize("mw_type", TYPES)
def test_no_window_is_bound_where_no_request_can_be_posted(pd: PD, cq: CQ, mw_type: MWType) -> None:
    mw, mr = MW(pd, mw_type), MR(pd, 64, access=BINDABLE)
    with pytest.raises(ValueError, match="BIND_MW is not possible on a UD QP"):
        QP(pd, QPType.UD, send_cq=cq).bind_mw(mw, mr, access=READ)
    with pytest.raises(VerbsError, match="is in RESET, and needs RTS"):
        QP(pd, QPType.RC, send_cq=cq).bind_mw(mw, mr, access=READ)


@pytest.mark.parametrize("mw_type", TYPES)
def test_a_queue_that_is_full_binds_nothing(ctx: Context, mw_type: MWType) -> None:
    owner, _peer = stuck(ctx, access=BINDABLE, max_send_wr=4)
    with pytest.raises(VerbsError, match="is full"):
        for _ in range(10_000):
            owner.qp.post_send(None)
    mw = MW(owner.pd, mw_type)
    rkey = mw.rkey
    with pytest.raises(VerbsError, match="is full"):
        owner.qp.bind_mw(mw, part(owner), access=READ)
    assert mw.rkey == rkey
    mw.close()


def test_requests_that_bind_are_checked_when_they_are_built(mw_pair: Pair) -> None:
    """For the arguments that go together see test_post_refused.py."""
    owner = mw_pair[0]
    mw = MW(owner.pd, MWType.TYPE_2)
    good: dict[str, Any] = {"opcode": WROpcode.BIND_MW, "mw": mw, "access": READ}
    for changes, message in (
        ({"mw": MW(owner.pd)}, r"mw is of type 1: only QP.bind_mw\(\) binds it"),
        ({"access": MW_BIND}, "access is 0x10"),
        ({"rkey": mw.rkey ^ 0x100}, "only the last byte can be chosen"),
    ):
        for call in (SendWR, owner.qp.post_send):
            with pytest.raises(ValueError, match=message):
                call(part(owner), **{**good, **changes})
    foreign = MR(PD(owner.ctx), 64, access=BINDABLE)
    with pytest.raises(ValueError, match="the MR belongs to another PD than the rest"):
        SendWR(foreign, **good)
    wr = SendWR(part(owner), **good)
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
        assert (mw.rkey, outstanding(owner.qp)) == (rkey, (0, 0))
    owner.qp.post_send([wr])
    wait_one(owner.scq)
