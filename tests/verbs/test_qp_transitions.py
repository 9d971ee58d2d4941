# SPDX-License-Identifier: MIT
"""What the error of a refused modify() names: attributes that a transition lacks or does not take,
and those that are beyond what the device has."""

from __future__ import annotations

import errno
import re
from typing import Any

import pytest
from support import Endpoint, connect, until, wait_one

from cqnotify import (
    AH,
    CQ,
    MTU,
    PD,
    QP,
    AHAttr,
    Context,
    MigState,
    QPState,
    QPType,
    VerbsError,
    WCStatus,
    WROpcode,
)

pytestmark = pytest.mark.not_on_iwarp("siw has a table of its own")

RESET, INIT, RTR = QPState.RESET, QPState.INIT, QPState.RTR
RTS, SQD = QPState.RTS, QPState.SQD
TYPES = [QPType.RC, QPType.UC, QPType.UD]
TRANSITIONS = [
    (RESET, INIT),
    (INIT, INIT),
    (INIT, RTR),
    (RTR, RTS),
    (RTS, RTS),
    (RTS, SQD),
    (SQD, SQD),
    (SQD, RTS),
]
# Which states lead to one.
BEFORE = {RESET: [], INIT: [INIT], RTR: [INIT, RTR], RTS: [INIT, RTR, RTS]}
BEFORE[SQD] = [*BEFORE[RTS], SQD]

# cap, rate_limit and an alternate path are for the device to take or to refuse, however it stands.
VALUES: dict[str, Any] = {
    "path_mtu": MTU.MTU_512,
    "path_mig_state": MigState.REARM,
    "qkey": 5,
    "rq_psn": 6,
    "sq_psn": 7,
    "dest_qp_num": 8,
    "qp_access_flags": 0,
    "pkey_index": 0,
    "en_sqd_async_notify": 1,
    "max_rd_atomic": 2,
    "max_dest_rd_atomic": 2,
    "min_rnr_timer": 3,
    "port_num": 1,
    "timeout": 14,
    "retry_cnt": 5,
    "rnr_retry": 4,
}

Attributes = dict[str, Any]


@pytest.fixture
def values(ctx: Context) -> Attributes:
    gid = ctx.find_gid()
    return {**VALUES, "ah_attr": AHAttr(dgid=gid.gid, sgid_index=gid.index)}


def named(error: VerbsError, what: str) -> list[str]:
    """The attributes that an error names after these words."""
    found = re.search(rf"{what}: ([\w, ]+)", str(error))
    return found[1].split(", ") if found else []


def try_it(qp: QP, attrs: Attributes) -> VerbsError | None:
    try:
        qp.modify(**attrs)
    except VerbsError as e:
        error = e
    else:
        return None
    assert error.errno == errno.EINVAL
    return error


def needed(qp: QP, to: QPState, values: Attributes) -> Attributes:
    """All that a transition needs, as the error names it; few take the one that is given."""
    error = try_it(qp, {"qp_state": to, "dest_qp_num": 8})
    assert error is not None
    names = named(error, "missing")
    if not named(error, "not of this transition"):
        names.append("dest_qp_num")
    return {"qp_state": to, **{name: values[name] for name in names}}


def bring_to(qp: QP, state: QPState, values: Attributes) -> None:
    until(lambda: not qp.query().sq_draining, "it is drained")
    qp.modify(qp_state=RESET)
    for step in BEFORE[state]:
        qp.modify(**needed(qp, step, values))
    until(lambda: not qp.query().sq_draining, "it is drained")
    assert qp.state is state


@pytest.mark.parametrize("qp_type", TYPES)
@pytest.mark.parametrize(("before", "after"), TRANSITIONS)
def test_what_is_missing_is_named_and_makes_the_transition(
    pd: PD, cq: CQ, qp_type: QPType, before: QPState, after: QPState, values: Attributes
) -> None:
    with QP(pd, qp_type, send_cq=cq) as qp:
        bring_to(qp, before, values)
        whole = needed(qp, after, values)
        for name in whole.keys() - {"qp_state"}:
            error = try_it(qp, {k: v for k, v in whole.items() if k != name})
            assert error is not None
            assert named(error, "missing") == [name]
            assert f"QP {qp.qp_num} from {before.name} to {after.name}: " in str(error)
        assert qp.state is before
        qp.modify(**whole)
        assert qp.state is after


@pytest.mark.parametrize("qp_type", TYPES)
@pytest.mark.parametrize(("before", "after"), TRANSITIONS)
def test_the_error_names_an_attribute_that_the_kernel_does_not_take(
    pd: PD, cq: CQ, qp_type: QPType, before: QPState, after: QPState, values: Attributes
) -> None:
    """Of all that the transition does not need, one by one: the kernel decides."""
    refused = []
    with QP(pd, qp_type, send_cq=cq) as qp:
        bring_to(qp, before, values)
        whole = needed(qp, after, values)
        for name in values.keys() - whole.keys():
            error = try_it(qp, {**whole, name: values[name]})
            if error is not None:
                assert named(error, "not of this transition") == [name]
                refused.append(name)
            bring_to(qp, before, values)
    assert refused


def test_both_are_named_in_one_error(pd: PD, cq: CQ) -> None:
    qp = QP(pd, QPType.RC, send_cq=cq)
    words = (
        "from RESET to INIT: missing: qp_access_flags, pkey_index; not of this transition: qkey$"
    )
    with pytest.raises(VerbsError, match=words):
        qp.modify(qp_state=INIT, port_num=1, qkey=5)


@pytest.mark.parametrize("to", [RTR, RTS, SQD, QPState.SQE])
def test_where_there_is_no_transition_the_error_says_where_it_goes(
    pd: PD, cq: CQ, to: QPState
) -> None:
    qp = QP(pd, QPType.RC, send_cq=cq)
    words = f"from RESET to {to.name}: there is no such transition, it can go to INIT, RESET, ERR"
    with pytest.raises(VerbsError, match=words):
        qp.modify(qp_state=to)


def test_the_state_is_the_one_in_which_the_device_has_it(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
    a.qp.post_send(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr, rkey=0)
    wait_one(a.scq, WCStatus.REM_ACCESS_ERR)  # which moves it to ERR
    with pytest.raises(VerbsError, match="from ERR to RTS: there is no such transition"):
        a.qp.modify(qp_state=RTS)


# ---- beyond what the device has -------------------------------------------------------------


def test_a_gid_that_is_not_there_is_named_with_those_that_are(ctx: Context) -> None:
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    there = ", ".join(str(entry.index) for entry in ctx.query_gid_table(1))
    words = rf"port 1 has no GID at index 99 \(sgid_index.*; it has GIDs at {there}$"
    for call in (
        lambda: a.qp.connect(b.qp.address(), gid_index=99),
        lambda: AH(a.pd, dgid=ctx.find_gid().gid, sgid_index=99),
    ):
        with pytest.raises(VerbsError, match=words) as e:
            call()
        assert e.value.errno == errno.ENODATA


def test_depths_beyond_the_device_are_refused(ctx: Context) -> None:
    device = ctx.query_device()
    for name, limit in (
        ("max_rd_atomic", "max_qp_init_rd_atom"),
        ("max_dest_rd_atomic", "max_qp_rd_atom"),
    ):
        most = getattr(device, limit)
        if most == 255:
            continue
        a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
        words = rf"{name} is {most + 1}: {ctx.name} has at most {most} \({limit}\)"
        with pytest.raises(ValueError, match=words):
            connect(a, b, **{name: most + 1})
        assert a.qp.state is b.qp.state is RESET
        connect(a, b, **{name: most})
        assert getattr(a.qp.query(), name) == most


def test_a_pkey_beyond_the_table_is_refused(ctx: Context) -> None:
    entries = ctx.query_port().pkey_tbl_len
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    words = f"pkey_index is {entries}: port 1 has {entries} P_Key"
    for call in (
        lambda: connect(a, b, pkey_index=entries),
        lambda: a.qp.to_init(pkey_index=entries),
        lambda: a.qp.check_modify(pkey_index=entries, port_num=1),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert a.qp.state is RESET
    a.qp.to_init(pkey_index=entries - 1)
    with pytest.raises(ValueError, match=words):  # of the port that is known now
        a.qp.modify(pkey_index=entries)
