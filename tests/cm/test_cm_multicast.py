# SPDX-License-Identifier: MIT
"""Multicast groups that are joined by rdma_cm, which tells the network, too."""

from __future__ import annotations

import errno

import pytest
from cm_support import Side, address_of
from support import GRH, until

from cqnotify import ClosedError, Context, QPState, QPType, VerbsError, cm
from cqnotify.cm import blocking

GROUP = "239.192.0.7"


def new_member(ctx: Context) -> Side:
    return Side(ctx, QPType.UD)


def send(side: Side, group: cm.MulticastGroup | blocking.MulticastGroup, text: bytes) -> None:
    """To all members, the sender among them."""
    side.mr.write(text)
    to = {"remote_qpn": group.remote_qpn, "remote_qkey": group.remote_qkey}
    side.qp.post_send(side.mr[: len(text)], ah=group.make_ah(side.pd), wr_id=1, **to)


def arrived(side: Side) -> list[int]:
    """The receives that have completed."""
    found = [wc.raise_for_status() for wc in side.cq.poll(8)]
    return [wc.wr_id for wc in found if wc.wr_id == 5]


async def test_what_is_sent_to_the_group_reaches_its_members(ctx: Context) -> None:
    a, b = new_member(ctx), new_member(ctx)
    source = address_of(ctx)
    async with await cm.join_multicast(a.qp, GROUP, source=source) as ours:
        async with await cm.join_multicast(b.qp, GROUP, source=source) as theirs:
            assert ours.gid == theirs.gid
            assert str(ours.gid.ipv4_mapped) == GROUP
            assert ours.address == GROUP
            assert (ours.device, ours.remote_qpn, ours.qp) == (ctx.name, 0xFFFFFF, a.qp)
            b.post_recv()
            send(a, ours, b"to all")
            until(lambda: arrived(b), "it reaches the other member")
            assert arrived(b) == []
            assert b.mr.read(6, 2048 + GRH) == b"to all"
        assert isinstance(theirs.error, ClosedError)
        assert b.qp.state == QPState.RTS
        # It has left: what is sent now reaches the first one alone.
        b.post_recv()
        a.post_recv()
        send(a, ours, b"to me")
        until(lambda: arrived(a), "it reaches the sender")
        assert arrived(b) == []


def test_a_thread_joins_and_leaves(ctx: Context) -> None:
    a = new_member(ctx)
    with blocking.join_multicast(a.qp, GROUP, source=address_of(ctx)) as group:
        a.post_recv()
        send(a, group, b"echo")
        until(lambda: arrived(a), "it reaches the sender")
        assert a.mr.read(4, 2048 + GRH) == b"echo"
    group.close()
    with blocking.join_multicast(a.qp, GROUP, source=address_of(ctx)):  # in RTS
        pass


async def test_a_queue_pair_that_closes_leaves(ctx: Context) -> None:
    a = new_member(ctx)
    group = await cm.join_multicast(a.qp, GROUP, source=address_of(ctx))
    a.qp.close()
    assert isinstance(group.error, ClosedError)
    group.close()


async def test_a_group_of_ipv6_is_more_than_kernels_can_join(ctx: Context) -> None:
    with pytest.raises(VerbsError, match="rdma_join_multicast: not supported") as e:
        await cm.join_multicast(new_member(ctx).qp, "ff12::c0:7%v0")
    assert e.value.errno == errno.EOPNOTSUPP


async def test_what_cannot_be_a_member(ctx: Context) -> None:
    with pytest.raises(ValueError, match=r"10\.99\.0\.1 is no multicast address: take one of 224"):
        await cm.join_multicast(new_member(ctx).qp, "10.99.0.1")
    with pytest.raises(ValueError, match="only a UD QP can be a member"):
        await cm.join_multicast(Side(ctx).qp, GROUP)
    with pytest.raises(ValueError, match="is of rxe1"), Context("rxe1") as other:
        await cm.join_multicast(new_member(other).qp, GROUP, source=address_of(ctx))
