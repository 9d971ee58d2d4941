# SPDX-License-Identifier: MIT
"""What libibverbs has and the device lacks is refused in the same words, before it is relied on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from support import Endpoint, connect, is_rxe, wait_one

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlags,
    Context,
    DeviceCapFlags,
    ODPGeneralCaps,
    QPState,
    QPType,
    VerbsError,
    WCExFlags,
)


def refused(call: Callable[[], Any], verb: str, what: str) -> None:
    with pytest.raises(VerbsError, match=f"^.*{verb}: not supported by this device: .*{what}") as e:
        call()
    assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, verb)


@pytest.fixture
def rxe(ctx: Context) -> Context:
    if not is_rxe(ctx):
        pytest.skip(f"{ctx.name} is not Soft-RoCE, and may be able to do it")
    return ctx


@pytest.mark.parametrize("flag", [f for f in WCExFlags if f >= WCExFlags.COMPLETION_TIMESTAMP])
def test_fields_of_completions(rxe: Context, flag: WCExFlags) -> None:
    assert rxe.query_device_ex().completion_timestamp_mask == 0
    refused(lambda: CQ(rxe, 4, wc_flags=flag), "ibv_create_cq_ex", f"wc_flags {int(flag):#x}")
    assert CQ(rxe, 4, wc_flags=WCExFlags.BYTE_LEN).wc_flags == WCExFlags.BYTE_LEN | WCExFlags.QP_NUM


def test_the_devices_clock(rxe: Context) -> None:
    assert rxe.query_device_ex().hca_core_clock == 0
    refused(rxe.query_rt_values, "ibv_query_rt_values_ex", "clock")


def test_moderation(rxe: Context, cq: CQ) -> None:
    assert rxe.query_device_ex().cq_mod_caps == (0, 0)
    refused(lambda: cq.modify(4, 10), "ibv_modify_cq", "moderation of events")
    with pytest.raises(ValueError, match="cq_count is 65536: it must be 0 to 65535"):
        cq.modify(65536, 0)
    with pytest.raises(ValueError, match="cq_period is -1"):
        cq.modify(1, -1)


def test_a_rate_limit(rxe: Context) -> None:
    a, _ = connect(Endpoint(rxe, QPType.RC), Endpoint(rxe, QPType.RC))
    assert rxe.query_device_ex().packet_pacing_caps.supported_qpts == 0
    refused(lambda: a.qp.modify(rate_limit=1000), "ibv_modify_qp", "rate_limit")
    assert a.qp.state is QPState.RTS


@pytest.mark.parametrize("qp_type", [QPType.XRC_SEND, QPType.XRC_RECV])
def test_xrc(ctx: Context, pd: PD, cq: CQ, qp_type: QPType) -> None:
    if ctx.query_device().device_cap_flags & DeviceCapFlags.XRC:
        with pytest.raises(ValueError, match=f"qp_type is QPType.{qp_type.name}: cqnotify has no"):
            QP(pd, qp_type, send_cq=cq)
    else:
        refused(lambda: QP(pd, qp_type, send_cq=cq), "ibv_create_qp", f"QPType.{qp_type.name}")


def test_paging_on_demand(ctx: Context) -> None:
    """rxe has it from Linux 6.15 on."""
    caps = ctx.query_device_ex().odp_caps
    access = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
    if caps.general_caps & ODPGeneralCaps.SUPPORT:
        a, b = connect(*(Endpoint(ctx, QPType.RC, access=access) for _ in range(2)))
        b.qp.post_recv(b.mr[:64])
        a.mr.write(b"paged")
        a.qp.post_send(a.mr[:5])
        wait_one(b.rcq)
        assert b.mr.read(5) == b"paged"
    else:
        assert set(caps.per_transport_caps) == {0}
        refused(lambda: MR(PD(ctx), 4096, access=access), "ibv_reg_mr", "on-demand paging")


def test_paging_of_all_memory_on_demand(ctx: Context) -> None:
    if ctx.query_device_ex().odp_caps.general_caps & ODPGeneralCaps.SUPPORT_IMPLICIT:
        a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
        b.qp.post_recv(b.mr[:64])
        a.qp.post_send(MR.implicit(a.pd).over(bytearray(b"anywhere"))[:])
        wait_one(b.rcq)
        assert b.mr.read(8) == b"anywhere"
    else:
        refused(lambda: MR.implicit(PD(ctx)), "ibv_reg_mr", "implicit on-demand paging")


def test_an_access_flag_that_the_device_does_not_know_is_hinted_at(pd: PD) -> None:
    with pytest.raises(VerbsError, match="access 0x40001: does the device know all these") as e:
        MR(pd, 4096, access=AccessFlags.LOCAL_WRITE | 0x40000)
    assert e.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)


def test_after_a_refusal_everything_goes_on(rxe: Context) -> None:
    a, b = connect(Endpoint(rxe, QPType.RC), Endpoint(rxe, QPType.RC))
    for call in (
        lambda: a.rcq.modify(1, 1),
        lambda: a.qp.modify(rate_limit=1),
        lambda: QP(a.pd, QPType.XRC_SEND, send_cq=a.scq),
        rxe.query_rt_values,
    ):
        with pytest.raises(VerbsError, match="not supported by this device"):
            call()
    b.qp.post_recv(b.mr[:64])
    a.qp.post_send(a.mr[:8])
    assert wait_one(b.rcq).byte_len == 8
