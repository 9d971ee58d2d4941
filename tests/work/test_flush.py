# SPDX-License-Identifier: MIT
"""FLUSH, which rxe has from Linux 6.3 and rdma-core 47 on; before, that it says so."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from posting import remote
from support import Endpoint, Pair, connect, is_rxe, kernel, outstanding, wait_completions, wait_one

from cqnotify import (
    CQ,
    PD,
    QP,
    AccessFlags,
    Context,
    DeviceCapFlags,
    PlacementType,
    QPState,
    QPType,
    SelectivityLevel,
    SendFlags,
    SendWR,
    VerbsError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

GLOBAL, PERSISTENT = PlacementType.GLOBAL, PlacementType.PERSISTENT
RANGE, WHOLE = SelectivityLevel.RANGE, SelectivityLevel.MR
WRITABLE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
FLUSHABLE = WRITABLE | AccessFlags.FLUSH_GLOBAL


def refusal(pd: PD, cq: CQ) -> str:
    """What a QP for FLUSH is refused with; empty where the device and its provider have it."""
    try:
        QP(pd, QPType.RC, send_cq=cq, flush=True).close()
    except VerbsError as e:
        error = e
    else:
        return ""
    assert (error.errno, error.verb) == (errno.EOPNOTSUPP, "ibv_create_qp_ex")
    return str(error)


def test_a_device_has_it_or_says_what_lacks_it(ctx: Context, pd: PD, cq: CQ) -> None:
    there = bool(ctx.query_device_ex().device_cap_flags_ex & DeviceCapFlags.FLUSH_GLOBAL)
    assert not is_rxe(ctx) or there == (kernel() >= (6, 3))
    why = refusal(pd, cq)
    assert (
        not why
        or ("but its provider in this libibverbs does not" if there else "lack FLUSH_GLOBAL") in why
    )
    cq.close()
    pd.close()


@pytest.fixture
def flush_pair(ctx: Context, pd: PD, cq: CQ) -> Pair:
    if why := refusal(pd, cq):
        pytest.skip(why)
    a = Endpoint(ctx, QPType.RC, flush=True)
    b = Endpoint(ctx, QPType.RC, access=FLUSHABLE)
    return connect(a, b, access=FLUSHABLE)


def to(b: Endpoint, offset: int = 0, **more: Any) -> dict[str, Any]:
    return {"opcode": WROpcode.FLUSH, "placement": GLOBAL, **remote(b, offset), **more}


@pytest.mark.parametrize("how", [{"length": 8}, {"length": 8, "level": RANGE}, {"level": WHOLE}])
@pytest.mark.parametrize("built", [False, True])
def test_it_completes_behind_what_was_written(
    flush_pair: Pair, how: dict[str, Any], built: bool
) -> None:
    a, b = flush_pair
    a.mr.write(b"written!")
    write = {**remote(b, 16), "opcode": WROpcode.RDMA_WRITE}
    a.qp.post_send(a.mr[0:8], send_flags=SendFlags(0), **write)
    if built:
        a.qp.post_send(SendWR(None, wr_id=7, **to(b, 16, **how)))
    else:
        a.qp.post_send(None, wr_id=7, **to(b, 16, **how))
    wc = wait_one(a.scq)
    assert (wc.wr_id, wc.opcode) == (7, WCOpcode.FLUSH)
    assert b.mr.read(8, 16) == b"written!"
    assert outstanding(a.qp) == (0, 0)


def test_many_are_in_order_with_the_other_operations(flush_pair: Pair) -> None:
    a, b = flush_pair
    write = {**remote(b), "opcode": WROpcode.RDMA_WRITE}
    for i in range(8):
        a.qp.post_send(a.mr[0:8], wr_id=2 * i, **write)
        a.qp.post_send(None, wr_id=2 * i + 1, **to(b, length=8))
    assert [wc.wr_id for wc in wait_completions(a.scq, 16)] == list(range(16))


@pytest.mark.parametrize("placement", [PERSISTENT, GLOBAL | PERSISTENT])
def test_a_placement_that_the_peers_memory_does_not_allow_fails(
    flush_pair: Pair, placement: PlacementType
) -> None:
    a, b = flush_pair
    a.qp.post_send(None, wr_id=3, **to(b, length=8, placement=placement))
    wc = wait_completions(a.scq, 1)[0]
    assert (wc.wr_id, wc.ok) == (3, False)
    assert wc.status in (WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR)
    assert a.qp.query().qp_state is QPState.ERR


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "length is missing: FLUSH of a RANGE needs it"),
        ({"length": 8, "level": WHOLE}, "length was given, but FLUSH of a whole MR does not take"),
        ({"length": 8, "placement": None}, "placement is missing: FLUSH needs it"),
        ({"length": 8, "placement": 0}, "placement is 0: it must be GLOBAL, PERSISTENT or both"),
        ({"length": 8, "placement": 4}, "placement is 4: it must be 0 to 3"),
        ({"length": 8, "level": 2}, "level is 2: it must be 0 to 1"),
        ({"length": 1 << 32}, "length is 4294967296: it must be 0 to 4294967295"),
        ({"length": 8, "rkey": None}, "rkey is missing: FLUSH needs it"),
        ({"length": 8, "opcode": WROpcode.RDMA_WRITE}, "length was given, but RDMA_WRITE does not"),
        ({"length": 8, "send_flags": SendFlags.INLINE}, "INLINE is not possible with FLUSH"),
        ({"length": 8}, "opcode is FLUSH: that needs a QP made with flush=True"),
    ],
)
def test_what_does_not_go_together_is_refused(pair: Pair, more: dict[str, Any], says: str) -> None:
    a, b = pair
    with pytest.raises(ValueError, match=says):
        a.qp.post_send(None, **to(b, **more))
    assert outstanding(a.qp) == (0, 0)


def test_text_is_told_which_enum_to_use(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(TypeError, match="placement must be a PlacementType such as .*, not 'all'"):
        a.qp.post_send(None, **to(b, length=8, placement="all"))
    with pytest.raises(TypeError, match="level must be a SelectivityLevel such as .*, not 'MR'"):
        a.qp.post_send(None, **to(b, level="MR"))


def test_memory_and_a_list_are_refused(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(ValueError, match="sg was given, but FLUSH does not take it"):
        a.qp.post_send(a.mr, **to(b, length=8))
    flush = SendWR(None, **to(b, length=8))
    with pytest.raises(ValueError, match="FLUSH"):
        a.qp.post_send([SendWR(a.mr[0:8]), flush])


def test_it_is_for_rc(pd: PD, cq: CQ) -> None:
    with pytest.raises(ValueError, match=r"flush is possible with QPType.RC only"):
        QP(pd, QPType.UC, send_cq=cq, flush=True)
