# SPDX-License-Identifier: MIT
"""Addresses of IPv6: all of them, those of the link, and our own.

Packets cross the cable only between addresses of the link: any other address of this host leads to
the device that has it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cm_support import SOON, Side, address_of, link_local, serve_once
from support import Waiter, is_iwarp, wait_one

from cqnotify import Context, VerbsError, cm
from cqnotify.cm import RejectReason, blocking


def meet(host: str) -> None:
    """Makes a neighbour known. One that answers at once, as over the cable, the kernel's rdma_cm
    notices only at the end of its timeout."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(b"", socket.getaddrinfo(host, 9)[0][4])


def interface(ctx: Context) -> str:
    return link_local(ctx).partition("%")[2]


@contextmanager
def connected(
    client: Side, server: Side, listener: blocking.Listener, host: str, source: str | None = None
) -> Iterator[tuple[blocking.Connection, blocking.Connection]]:
    """Both ends, between which a message has gone."""
    accepted: list[blocking.Connection] = []
    waiter = Waiter(lambda: serve_once(listener, server, accepted))
    with blocking.connect(client.qp, host, listener.local[1], source=source) as conn:
        waiter.join()
        client.qp.post_send(client.mr[:4])
        assert wait_one(server.cq).byte_len == 4
        yield conn, accepted[0]
    accepted[0].wait_closed(SOON)


def test_a_listener_on_any_address_takes_clients_of_both_kinds(ctx: Context) -> None:
    with blocking.listen("::", 0) as listener:
        assert listener.local[0] == "::"
        assert listener.device is None
        hosts = [address_of(ctx), link_local(ctx)]
        if is_iwarp(ctx):  # the kernel listens for each kind by itself
            with pytest.raises(cm.RejectedError, match="listens on"):
                blocking.connect(Side(ctx).qp, hosts.pop(0), listener.local[1])
        for host in hosts:
            with connected(Side(ctx), Side(ctx), listener, host) as (conn, accepted):
                assert conn.peer == accepted.local == (host, listener.local[1])
                assert conn.local == accepted.peer
                assert accepted.device == ctx.name


def test_a_listener_on_ipv6_alone_leaves_the_port_of_ipv4(ctx: Context) -> None:
    iwarp = is_iwarp(ctx)
    reason = RejectReason.INVALID_SERVICE_ID if iwarp else RejectReason.CONSUMER_DEFINED
    with blocking.listen("::", 0, only_ipv6=True) as listener:
        port = listener.local[1]
        with pytest.raises(cm.RejectedError, match="listens on") as e:
            blocking.connect(Side(ctx).qp, address_of(ctx), port)
        assert e.value.reason == reason
        with connected(Side(ctx), Side(ctx), listener, link_local(ctx)):
            pass
        with (
            blocking.listen("0.0.0.0", port) as other,
            connected(Side(ctx), Side(ctx), other, address_of(ctx)),
        ):
            pass


def test_a_listener_on_any_address_of_ipv4_takes_no_client_of_ipv6(ctx: Context) -> None:
    with blocking.listen("0.0.0.0", 0) as listener, pytest.raises(cm.RejectedError):
        blocking.connect(Side(ctx).qp, link_local(ctx), listener.local[1])


def test_within_one_link(ctx: Context) -> None:
    host = link_local(ctx)
    with (
        blocking.listen(host, 0) as listener,
        connected(Side(ctx), Side(ctx), listener, host) as (conn, accepted),
    ):
        assert listener.local[0] == conn.local[0] == accepted.local[0] == host
        assert listener.device == ctx.name


@pytest.mark.parametrize("source", ["chosen", "given"])
def test_across_the_cable_each_side_names_its_own_interface(
    ctx: Context, ctx2: Context, source: str
) -> None:
    near, far = interface(ctx), interface(ctx2)
    meet(link_local(ctx2, near))
    ours = link_local(ctx) if source == "given" else None
    with (
        blocking.listen(link_local(ctx2), 0) as listener,
        connected(Side(ctx), Side(ctx2), listener, link_local(ctx2, near), ours) as (conn, other),
    ):
        assert (conn.device, other.device) == (ctx.name, ctx2.name)
        assert (conn.peer[0], other.local[0]) == (link_local(ctx2, near), link_local(ctx2))
        assert (conn.local[0], other.peer[0]) == (link_local(ctx), link_local(ctx, far))
        assert (conn.peer[1], conn.local[1]) == (other.local[1], other.peer[1])


def test_the_interface_decides_which_device_it_is(ctx: Context, ctx2: Context) -> None:
    """Not whose address it is."""
    host = link_local(ctx2, interface(ctx))
    with pytest.raises(ValueError, match=f"leads over device {ctx.name}, and the QP is of"):
        blocking.connect(Side(ctx2).qp, host, 9)


def test_our_own_address_is_the_one_that_was_given(ctx: Context) -> None:
    host = address_of(ctx)
    with blocking.listen(host, 0) as listener:
        with connected(Side(ctx), Side(ctx), listener, host, host) as (conn, accepted):
            assert conn.local[0] == accepted.peer[0] == host
        for source, code in ((link_local(ctx), errno.EINVAL), ("192.0.2.1", errno.EADDRNOTAVAIL)):
            with pytest.raises(VerbsError, match="rdma_resolve_addr") as e:
                blocking.connect(Side(ctx).qp, *listener.local, source=source)
            assert e.value.errno == code
