# SPDX-License-Identifier: MIT
"""What other threads can do while a call is in the kernel."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from fault_world import World, core, inside
from support import DEADLINE, Link, Waiter, cancel, start, tick, until

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    VerbsError,
    WCExFlags,
    devices,
)
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint, connect

FREE = 4  # descriptors: so many are made before devices are listed, to see that they can be
# What makes one call after the first `n - 1`, by its name.
ENTERING: dict[str, tuple[int, Callable[[World], Any]]] = {
    "ibv_get_device_list": (1 + FREE, lambda w: devices()),
    "ibv_open_device": (2 + FREE, lambda w: Context(w.ctx.name)),
    "ibv_alloc_pd": (1, lambda w: PD(w.ctx)),
    "ibv_create_comp_channel": (3, lambda w: CompletionChannel(w.ctx)),
    "ibv_create_cq": (1, lambda w: CQ(w.ctx, 4, channel=w.channel)),
    "ibv_create_cq_ex": (1, lambda w: CQ(w.ctx, 4, channel=w.channel, wc_flags=WCExFlags(0))),
    "ibv_create_srq": (1, lambda w: SRQ(w.pd, 4)),
    "ibv_create_qp": (1, World.new_qp),
    "ibv_alloc_mw": (1, lambda w: MW(w.pd)),
    "ibv_reg_mr": (1, lambda w: MR(w.pd, bytearray(64))),
    "ibv_create_ah": (1, lambda w: AH(w.pd, dgid=w.gid.gid, sgid_index=w.gid.index)),
    "ibv_query_device": (1, lambda w: w.ctx.query_device()),
    "ibv_query_device_ex": (1, lambda w: w.ctx.query_device_ex()),
    "ibv_query_port": (1, lambda w: w.ctx.query_port()),
    "ibv_query_pkey": (2, lambda w: w.ctx.query_pkey(0)),
    "ibv_query_gid_table": (2, lambda w: w.ctx.query_gid_table()),
    "ibv_query_qp": (1, lambda w: w.qp.query()),
    "ibv_query_srq": (1, lambda w: w.srq.query()),
    "ibv_modify_qp": (1, lambda w: w.qp.modify(qp_state=QPState.ERR)),
    "ibv_resize_cq": (1, lambda w: w.cq.resize(64)),
}
# What has nothing to do with the context that is open.
ELSEWHERE = {"ibv_get_device_list", "ibv_open_device"}


@pytest.mark.parametrize("verb", ENTERING)
def test_others_run_while_a_call_is_in_the_kernel(w: World, verb: str) -> None:
    n, call = ENTERING[verb]
    with inside(verb, lambda: call(w), n, errno.EINVAL) as waiter:
        assert waiter.thread.is_alive()
    with pytest.raises(VerbsError) as e:
        waiter.join()
    assert (e.value.verb, e.value.errno) == (verb, errno.EINVAL)


@pytest.mark.parametrize("verb", [verb for verb in ENTERING if verb not in ELSEWHERE])
def test_a_context_that_is_closed_while_a_call_is_in_the_kernel_waits_for_it(
    w: World, verb: str
) -> None:
    n, call = ENTERING[verb]
    with inside(verb, lambda: call(w), n) as waiter:
        closer = Waiter(w.ctx.close)
        until(lambda: w.ctx.closed, "it is being closed")
        assert closer.thread.is_alive()
    closer.join()
    with suppress(ClosedError):  # which a QP says that was just being made
        made = waiter.join()
        assert getattr(made, "closed", True)
    assert core.live_handles() == 1  # that of the fixture


def test_nothing_is_posted_while_a_context_that_is_closed_resets_its_qps(w: World) -> None:
    """A QP whose send waits for a receive is reset first of all."""
    w.qp.post_send(w.mr[:8])
    with inside("ibv_modify_qp", w.ctx.close) as closer:
        assert w.ctx.closed
        for call in (lambda: w.qp.post_send(w.mr[:8]), w.qp.query, lambda: PD(w.ctx)):
            with pytest.raises(ClosedError):
                call()
    closer.join()


# What is made of what: the verb, the parent and the child.
CHILDREN: list[tuple[str, Callable[[World], Any], Callable[[World, Any], Any]]] = [
    ("ibv_create_cq", lambda w: CompletionChannel(w.ctx), lambda w, ch: CQ(w.ctx, 4, channel=ch)),
    (
        "ibv_create_cq_ex",
        lambda w: CompletionChannel(w.ctx),
        lambda w, channel: CQ(w.ctx, 4, channel=channel, wc_flags=WCExFlags(0)),
    ),
    (
        "ibv_create_qp",
        lambda w: CQ(w.ctx, 4),
        lambda w, cq: QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=cq),
    ),
    (
        "ibv_create_qp",
        lambda w: SRQ(w.pd, 4),
        lambda w, srq: QP(w.pd, QPType.RC, send_cq=w.cq, srq=srq),
    ),
    ("ibv_create_qp", lambda w: PD(w.ctx), lambda w, pd: QP(pd, QPType.RC, send_cq=w.cq)),
    ("ibv_create_srq", lambda w: PD(w.ctx), lambda w, pd: SRQ(pd, 4)),
    ("ibv_alloc_mw", lambda w: PD(w.ctx), lambda w, pd: MW(pd)),
    ("ibv_reg_mr", lambda w: PD(w.ctx), lambda w, pd: MR(pd, bytearray(8))),
    (
        "ibv_create_ah",
        lambda w: PD(w.ctx),
        lambda w, pd: AH(pd, dgid=w.gid.gid, sgid_index=w.gid.index),
    ),
]


@pytest.mark.parametrize(("verb", "make_parent", "make"), CHILDREN)
def test_a_parent_is_not_closed_while_a_child_is_made(
    w: World,
    verb: str,
    make_parent: Callable[[World], Any],
    make: Callable[[World, Any], Any],
) -> None:
    parent = make_parent(w)
    with inside(verb, lambda: make(w, parent)) as waiter:
        closer = Waiter(parent.close)
        until(lambda: parent.closed, "it is being closed")
        assert closer.thread.is_alive()
    child = waiter.join()
    names = type(parent).__name__, type(child).__name__
    with pytest.raises(BusyError, match="this {} is still used by 1 {}".format(*names)):
        closer.join()
    assert not child.closed
    assert not parent.closed
    child.close()
    parent.close()


def test_one_gid_is_asked_for_by_one_verb(w: World) -> None:
    core.fail_call(2, errno.EIO)
    assert w.ctx.query_gid(w.gid.index) == w.gid
    assert core.failed() is None


async def test_a_task_that_waits_while_destroying_its_cq_fails_is_woken_later(w: World) -> None:
    """A cancelled task leaves the CQ unarmed, and it can't be armed while it has no handle."""
    link = Link(w.ctx)
    cq = link.a.scq
    link.qp.close()
    acq = AsyncCQ(cq)
    waits, behind = await start(acq.wait()), await start(acq.wait())
    with inside("ibv_destroy_cq", cq.close, 1, errno.EBUSY) as closing:
        await cancel(waits)
        await tick()
    with pytest.raises(VerbsError, match="stays open"):
        closing.join()
    assert not cq.closed
    end = Endpoint(w.ctx, send_cq=cq)
    other = Endpoint(w.ctx)
    connect(end, other)
    other.qp.post_recv(other.mr[:8])
    end.qp.post_send(end.mr[:8])
    (wc,) = await asyncio.wait_for(behind, DEADLINE)
    assert wc.ok
    acq.close()
