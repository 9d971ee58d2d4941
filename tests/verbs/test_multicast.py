# SPDX-License-Identifier: MIT
"""Multicast: a message to a group reaches each QP that is attached to it, once, and no other."""

from __future__ import annotations

import errno
import gc
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from support import (
    DEADLINE,
    GRH,
    QKEY,
    Endpoint,
    Waiter,
    is_rxe,
    wait_completions,
    wait_one,
    waiting,
)

from cqnotify import (
    AH,
    CQ,
    PD,
    QP,
    ClosedError,
    Context,
    QPType,
    SendFlags,
    VerbsError,
    WCFlags,
    WCStatus,
    WROpcode,
)

EVERYBODY = 0xFFFFFF  # the number that stands for all QPs of a group
GROUP, OTHER_GROUP = "ff15::c0:1", "ff15::c0:2"
IPV4_GROUP, OTHER_IPV4_GROUP = "239.192.0.1", "239.192.0.2"
ROOM = 64  # bytes, for a message and its GRH
N = 8


def join(address: IPv4Address | IPv6Address, index: int) -> socket.socket:
    if address.version == 6:
        s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        request = struct.pack("=16sI", address.packed, index)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)
    else:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        request = struct.pack("=4s4sI", address.packed, bytes(4), index)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    return s


@contextmanager
def membership(groups: list[str], *contexts: Context) -> Iterator[None]:
    """The network devices are in the groups, too: else the network drops what is sent to them."""
    with ExitStack() as stack:
        for ctx in contexts:
            netdev = ctx.query_gid_table()[0].netdev
            assert netdev is not None
            for group in groups:
                stack.enter_context(join(ip_address(group), socket.if_nametoindex(netdev)))
        yield


def ready(ctx: Context) -> Endpoint:
    """A UD endpoint that waits for messages; place i of its memory is for the i-th."""
    end = Endpoint(ctx, QPType.UD, size=2 * N * ROOM)
    end.qp.connect()
    for i in range(2 * N):
        end.qp.post_recv(end.mr[i * ROOM : (i + 1) * ROOM], wr_id=i)
    return end


class Sender:
    """Sends numbers, from a GID of the group's kind, to the group or to one endpoint alone."""

    def __init__(self, ctx: Context, group: str) -> None:
        self.end = Endpoint(ctx, QPType.UD)
        self.end.qp.connect()
        ipv4 = ip_address(group).version == 4
        self.gid = next(e for e in ctx.query_gid_table() if bool(e.gid.ipv4_mapped) == ipv4)
        self.group = AH(self.end.pd, dgid=group, sgid_index=self.gid.index)
        self.alone = AH(self.end.pd, dgid=self.gid.gid, sgid_index=self.gid.index)

    def send(
        self, number: int, to: Endpoint | None = None, flags: SendFlags = SendFlags.SIGNALED
    ) -> None:
        self.end.mr.write(number.to_bytes(4, "big"))
        self.end.qp.post_send(
            self.end.mr[:4],
            opcode=WROpcode.SEND_WITH_IMM,
            send_flags=flags,
            imm_data=number,
            ah=self.group if to is None else self.alone,
            remote_qpn=EVERYBODY if to is None else to.qp.qp_num,
            remote_qkey=QKEY,
        )
        wait_one(self.end.scq)

    def received(self, end: Endpoint, n: int) -> list[int]:
        """The next n numbers that arrived there, each whole and from here."""
        wcs = wait_completions(end.rcq, n)
        for wc in wcs:
            assert wc.status == WCStatus.SUCCESS
            assert wc.wc_flags == WCFlags.GRH | WCFlags.WITH_IMM
            assert (wc.byte_len, wc.src_qp) == (GRH + 4, self.end.qp.qp_num)
            assert end.mr.read(4, wc.wr_id * ROOM + GRH) == wc.imm_data.to_bytes(4, "big")
        return [wc.imm_data for wc in wcs]


def closed_in_turn(*things: Any) -> None:
    for thing in things:
        thing.close()
        assert thing.closed


@pytest.mark.parametrize(
    ("group", "other"), [(GROUP, OTHER_GROUP), (IPV4_GROUP, OTHER_IPV4_GROUP)], ids=["IPv6", "IPv4"]
)
def test_a_message_reaches_each_attached_qp_once_and_no_other(
    ctx: Context, group: str, other: str
) -> None:
    sender = Sender(ctx, group)
    members = [ready(ctx), ready(ctx)]
    for end in members:
        end.qp.attach_mcast(group)
    members[0].qp.attach_mcast(group)  # twice is once
    left, elsewhere, never = ready(ctx), ready(ctx), ready(ctx)
    left.qp.attach_mcast(group)
    left.qp.detach_mcast(group)
    elsewhere.qp.attach_mcast(other)
    with membership([group, other], ctx):
        for i in range(N):
            sender.send(i)
        for end in members:
            assert sender.received(end, N) == list(range(N))
    # What came by mistake would have come before this.
    for end in (*members, left, elsewhere, never):
        sender.send(N, to=end)
        assert sender.received(end, 1) == [N]


def test_the_header_of_a_message_names_its_group(ctx: Context) -> None:
    for group in (GROUP, IPV4_GROUP):
        sender, end = Sender(ctx, group), ready(ctx)
        end.qp.attach_mcast(group)
        with membership([group], ctx):
            sender.send(1)
            assert sender.received(end, 1) == [1]
        packed = ip_address(group).packed
        assert end.mr.read(len(packed), GRH - len(packed)) == packed


def test_a_message_crosses_the_wire_and_stays_at_home(ctx: Context, ctx2: Context) -> None:
    sender, near, far, never = Sender(ctx, GROUP), ready(ctx), ready(ctx2), ready(ctx2)
    near.qp.attach_mcast(GROUP)
    far.qp.attach_mcast(GROUP)
    never.qp.attach_mcast(OTHER_GROUP)
    with membership([GROUP], ctx, ctx2):
        for i in range(N):
            sender.send(i)
        assert sender.received(near, N) == sender.received(far, N) == list(range(N))
        far.qp.detach_mcast(GROUP)
        sender.send(N)
        assert sender.received(near, 1) == [N]
        far.qp.attach_mcast(GROUP)
        sender.send(N + 1)
        assert sender.received(far, 1) == [N + 1]
    assert never.rcq.poll() == []


def test_a_solicited_message_wakes_who_sleeps_for_one(ctx: Context) -> None:
    sender, end = Sender(ctx, GROUP), ready(ctx)
    end.qp.attach_mcast(GROUP)
    end.rcq.req_notify(solicited_only=True)
    with membership([GROUP], ctx):
        with waiting(lambda: end.channel.get_event(DEADLINE)) as waiter:
            sender.send(1)
            sender.send(2, flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
        assert waiter.join() is end.rcq
    end.rcq.ack()
    assert sender.received(end, 2) == [1, 2]
    assert end.rcq.stats.events == 1


def test_the_network_drops_what_its_device_is_no_member_for(ctx: Context) -> None:
    """Not a wish, but what the documentation warns of."""
    if not is_rxe(ctx):
        pytest.skip("another device may not need it")
    sender, end = Sender(ctx, GROUP), ready(ctx)
    end.qp.attach_mcast(GROUP)
    sender.send(1)
    sender.send(2, to=end)
    assert sender.received(end, 1) == [2]


@pytest.mark.parametrize("gid", [GROUP, IPv6Address(GROUP), IPv6Address(GROUP).packed, IPV4_GROUP])
def test_a_group_is_named_in_any_form(ctx: Context, gid: Any) -> None:
    qp = ready(ctx).qp
    qp.attach_mcast(gid)
    qp.detach_mcast(gid=gid, lid=0)
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast(gid)


def test_what_is_no_group_is_refused(ctx: Context) -> None:
    qp = ready(ctx).qp
    for bad in ("fe80::1", "::", "10.0.0.1", "223.255.255.255", "240.0.0.1", "fe15::1"):
        for call in (qp.attach_mcast, qp.detach_mcast):
            with pytest.raises(ValueError, match="gid is .*: it must be a multicast address"):
                call(bad)
    with pytest.raises(TypeError, match="missing required argument 'gid'"):
        qp.attach_mcast()  # type: ignore[call-arg]
    no_address = "gid must be an IP address, its text, or 16 bytes"
    wrong: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        (("nonsense",), ValueError, "gid is 'nonsense': that is no IP address"),
        *(((bad,), TypeError, no_address) for bad in (5, None, b"short", [GROUP])),
        *(((GROUP, n), ValueError, f"lid is {n}: it must be 0 to 65535") for n in (-1, 65536)),
        ((GROUP, "0"), TypeError, "lid must be an integer, not str"),
    ]
    for arguments, error, words in wrong:
        with pytest.raises(error, match=words):
            qp.attach_mcast(*arguments)


@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC])
def test_only_datagrams_go_to_groups(pd: PD, cq: CQ, qp_type: QPType) -> None:
    qp = QP(pd, qp_type, send_cq=cq)
    for call in (qp.attach_mcast, qp.detach_mcast):
        with pytest.raises(ValueError, match=f"of type UD; this is {qp_type.name}"):
            call(GROUP)
    qp.close()


def test_a_group_is_left_only_by_who_is_in_it_and_by_the_same_name(ctx: Context) -> None:
    qp = ready(ctx).qp
    with pytest.raises(ValueError, match=f"not attached to group {GROUP} with lid 0"):
        qp.detach_mcast(GROUP)
    qp.attach_mcast(GROUP, lid=0xC001)
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast(GROUP)
    qp.detach_mcast(GROUP, lid=0xC001)
    for i in range(10):
        qp.attach_mcast(f"ff15::{i:x}")
    for i in (3, 9, 0, 5, 1, 8, 2, 7, 4, 6):
        qp.detach_mcast(f"ff15::{i:x}")
    for i in range(10):
        with pytest.raises(ValueError, match="not attached"):
            qp.detach_mcast(f"ff15::{i:x}")


def test_a_group_has_room_for_as_many_as_the_device_says(ctx: Context) -> None:
    limit = ctx.query_device().max_mcast_qp_attach
    if limit > 100:
        pytest.skip(f"{limit} QPs in a group are too many for a test")
    pd, cq = PD(ctx), CQ(ctx, 4)
    qps = [QP(pd, QPType.UD, send_cq=cq, max_send_wr=1, max_recv_wr=1) for _ in range(limit + 1)]
    for qp in qps[:limit]:
        qp.attach_mcast(GROUP)
    with pytest.raises(VerbsError, match=f"room for .* groups, and for {limit} queue pairs") as e:
        qps[limit].attach_mcast(GROUP)
    assert (e.value.errno, e.value.verb) == (errno.ENOMEM, "ibv_attach_mcast")
    qps[0].close()
    qps[limit].attach_mcast(GROUP)


@pytest.mark.parametrize("groups", [1, 3])
def test_closing_leaves_the_groups(ctx: Context, groups: int) -> None:
    sender, end, other = Sender(ctx, GROUP), ready(ctx), ready(ctx)
    for i in range(1, groups + 1):
        end.qp.attach_mcast(f"ff15::c0:{i}")
    other.qp.attach_mcast(GROUP)
    closed_in_turn(end.qp, end.mr, end.rcq, end.scq, end.channel, end.pd)
    with membership([GROUP], ctx):
        sender.send(1)
        assert sender.received(other, 1) == [1]


def test_a_qp_in_a_group_that_is_forgotten_is_closed(pd: PD, cq: CQ) -> None:
    qp = QP(pd, QPType.UD, send_cq=cq)
    qp.attach_mcast(GROUP)
    del qp
    gc.collect()
    closed_in_turn(cq, pd)  # nothing uses them any more


def test_attaching_and_detaching_from_many_threads_ends_in_order(ctx: Context) -> None:
    qp = ready(ctx).qp

    def work() -> None:
        for _ in range(30):
            qp.attach_mcast(GROUP)
            with suppress(ValueError):  # another was faster
                qp.detach_mcast(GROUP)

    for waiter in [Waiter(work) for _ in range(4)]:
        waiter.join()
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast(GROUP)
    qp.close()


def test_closing_while_others_attach_waits_for_them(ctx: Context) -> None:
    qp = ready(ctx).qp
    started = threading.Event()

    def work() -> None:
        for i in range(100_000):
            qp.attach_mcast(f"ff15::{i:x}")
            started.set()
            qp.detach_mcast(f"ff15::{i:x}")

    waiter = Waiter(work)
    assert started.wait(DEADLINE)
    qp.close()
    with pytest.raises(ClosedError):
        waiter.join()
