# SPDX-License-Identifier: MIT
"""iWARP devices: what they are told by, and how tests do there what others do by verbs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from cqnotify import (
    QP,
    Context,
    QPState,
    QPType,
    TransportType,
    WCOpcode,
    WorkCompletion,
    devices,
)
from cqnotify.testing._by_address import connect_by_address


def is_iwarp(ctx: Context) -> bool:
    """Whether its QPs are connected by rdma_cm alone, and its one GID is its MAC."""
    return ctx.transport_type == TransportType.IWARP


@functools.cache
def on_iwarp() -> bool:
    return any(device.transport_type == TransportType.IWARP for device in devices())


def new_state(ctx: Context) -> QPState:
    """What the device says of a QP that was never modified: siw does not know RESET."""
    return QPState.INIT if is_iwarp(ctx) else QPState.RESET


def need_room_for_queues(ctx: Context) -> None:
    """Skips a test with so many queues that libsiw takes the place of one of them for an error."""
    if is_iwarp(ctx):
        pytest.skip("libsiw has room for 144 pages of queues in a context")


def is_sent(result: object) -> bool:
    opcodes = (WCOpcode.SEND, WCOpcode.RDMA_WRITE)
    return isinstance(result, WorkCompletion) and result.ok and result.opcode in opcodes


def join(a: QP, b: QP, **options: Any) -> object:
    """Connect two RC QPs by verbs; on iWARP by rdma_cm, as long as what is returned is kept."""
    if is_iwarp(a.context):
        return connect_by_address(a, b, options)
    a.connect(b.address(), **options)
    b.connect(a.address(), **options)
    return None


def another(old: QP) -> QP:
    """In the place of an RC QP, which is closed."""
    sizes = {
        name: getattr(old, name)
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge")
    }
    pd, cqs = old.pd, {"send_cq": old.send_cq, "recv_cq": old.recv_cq}
    old.close()
    return QP(pd, QPType.RC, **cqs, **sizes)


def number_of(wc: WorkCompletion) -> int | None:
    """Of a message that bring() has brought. Where there is no immediate data it is the length."""
    return wc.byte_len if wc.imm_data is None else wc.imm_data
