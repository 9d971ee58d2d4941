# SPDX-License-Identifier: MIT
"""The device and the port over which a peer is reached."""

from __future__ import annotations

import os

from ...attrs import PortAttr
from ...context import Context, devices, needs_rdma_cm
from ...enums import MTU, LinkLayer
from .. import check_connects, check_limit, check_port
from .plan import PeerPlan


def check_path(context: Context, plan: PeerPlan, rdma_cm: str) -> PortAttr:
    """Return the attributes of the port; CommandError unless it is up, and has the path MTU.

    rdma_cm: the option for it, which some devices need.
    """
    if not plan.rdma_cm:
        check_connects(context, f": use {rdma_cm}")
    port = check_port(context, plan.port_num)
    check_limit(where(context, plan), "--mtu", plan.path_mtu or 0, active_mtu(port))
    return port


def where(context: Context, plan: PeerPlan) -> str:
    """Return the name of the port, for messages."""
    return f"{context.name} port {plan.port_num}"


def active_mtu(port: PortAttr) -> int:
    """Return the MTU of a port, in bytes."""
    return port.active_mtu.bytes if isinstance(port.active_mtu, MTU) else port.active_mtu


def gid_index(context: Context, plan: PeerPlan) -> int | None:
    """Return the index of the GID to use; None on InfiniBand, and where rdma_cm chooses it."""
    if plan.rdma_cm:
        return None
    if plan.gid_index is not None:
        return context.query_gid(plan.gid_index, plan.port_num).index
    if context.query_port(plan.port_num).link_layer != LinkLayer.ETHERNET:
        return None
    return context.find_gid(port_num=plan.port_num).index


def any_address() -> str:
    """Return all addresses: of IPv6 and IPv4, or, where there is an iWARP device, of IPv4 only."""
    return "0.0.0.0" if any(map(needs_rdma_cm, devices())) else "::"


def has_one_cpu() -> bool:
    """Whether an end that polls must yield the CPU, because this host has no other one.

    The peer may be on this host, too, and a device in software always is. Then a completion comes
    only while the end that waits for it does not run, or else a tick of the scheduler later.
    """
    return os.cpu_count() == 1
