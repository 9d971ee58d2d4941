# SPDX-License-Identifier: MIT
"""What is closed says so, whatever it is asked and whatever is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from closed import closed_calls

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    ClosedError,
    CompletionChannel,
    Context,
    FailureWatch,
    QPType,
    RecvWR,
    SendWR,
)

MAKE: dict[type, Callable[[Context], Any]] = {
    Context: lambda ctx: Context(ctx.name),
    PD: PD,
    CompletionChannel: CompletionChannel,
    FailureWatch: FailureWatch,
    CQ: lambda ctx: CQ(ctx, 4, channel=CompletionChannel(ctx)),
    MR: lambda ctx: MR(PD(ctx), 64),
    SRQ: lambda ctx: SRQ(PD(ctx), 4),
    QP: lambda ctx: QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4)),
    AH: lambda ctx: AH(PD(ctx), dgid=ctx.find_gid().gid, sgid_index=ctx.find_gid().index),
    MW: lambda ctx: MW(PD(ctx)),
}

# What can't be made of it, beside other things that are open.
MADE_OF: dict[type, list[Callable[[Any, PD, CQ], Any]]] = {
    Context: [
        lambda ctx, *_: PD(ctx),
        lambda ctx, *_: CompletionChannel(ctx),
        lambda ctx, *_: FailureWatch(ctx),
        lambda ctx, *_: CQ(ctx, 1),
    ],
    PD: [
        lambda pd, *_: MR(pd, 64),
        lambda pd, *_: SRQ(pd, 4),
        lambda pd, *_: MW(pd),
        lambda pd, *_: AH(pd, dgid=bytes(16)),
        lambda pd, _, cq: QP(pd, QPType.RC, send_cq=cq),
    ],
    CompletionChannel: [lambda channel, pd, _: CQ(pd.context, 1, channel=channel)],
    CQ: [
        lambda cq, pd, _: QP(pd, QPType.RC, send_cq=cq),
        lambda cq, pd, other: QP(pd, QPType.RC, send_cq=other, recv_cq=cq),
    ],
    SRQ: [lambda srq, pd, cq: QP(pd, QPType.RC, send_cq=cq, srq=srq)],
    MR: [lambda mr, *_: SendWR(mr), lambda mr, *_: RecvWR(mr)],
}


def made_and_closed(cls: type, ctx: Context) -> Any:
    thing = MAKE[cls](ctx)
    number = f" {thing.qp_num}" if isinstance(thing, QP) else ""
    thing.close()
    thing.close()
    assert thing.closed
    assert repr(thing) == f"<{cls.__name__}{number} closed>"
    return thing


@pytest.mark.parametrize("cls", MAKE)
def test_each_attribute_and_each_method_says_so_before_it_looks_at_the_arguments(
    ctx: Context, cls: type
) -> None:
    thing = made_and_closed(cls, ctx)
    for name, call in closed_calls(cls).items():
        with pytest.raises(ClosedError, match=f"this {cls.__name__} is closed"):
            pytest.fail(f"{name} returns {call(thing)!r}")


@pytest.mark.parametrize("cls", MADE_OF)
def test_nothing_is_made_of_it(ctx: Context, pd: PD, cq: CQ, cls: type) -> None:
    thing = made_and_closed(cls, ctx)
    for make in MADE_OF[cls]:
        with pytest.raises(ClosedError, match=f"this {cls.__name__} is closed"):
            make(thing, pd, cq)


def test_counters_of_a_closed_cq_stay(cq: CQ) -> None:
    cq.close()
    assert cq.stats.events == 0
