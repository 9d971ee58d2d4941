# SPDX-License-Identifier: MIT
"""Compare-and-swap and fetch-and-add: the numbers at both ends, and what is refused."""

import sys
from typing import Any

import pytest
from support import ALL_REMOTE, DEADLINE, Endpoint, Pair, connect, outstanding, wait_one, waiting

from cqnotify import (
    MR,
    PD,
    AccessFlags,
    Context,
    QPType,
    SendFlags,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

pytestmark = pytest.mark.rdma(atomics=True)

CMP_AND_SWP = WROpcode.ATOMIC_CMP_AND_SWP
FETCH_AND_ADD = WROpcode.ATOMIC_FETCH_AND_ADD
ATOMIC = AccessFlags.REMOTE_ATOMIC
MAX = 2**64 - 1
COUNTER = 64  # where the number is in the peer's memory
RESULT = 128  # and where in ours what it was before arrives
UNEVEN = 0x0123456789ABCDEF  # no byte is like another, so no order of them is


def put(mr: MR, value: int, at: int = COUNTER) -> None:
    mr.write(value.to_bytes(8, sys.byteorder), at)


def get(mr: MR, at: int = COUNTER) -> int:
    return int.from_bytes(mr.read(8, at), sys.byteorder)


def endpoint(ctx: Context, **options: Any) -> Endpoint:
    return Endpoint(ctx, QPType.RC, access=ALL_REMOTE | ATOMIC, **options)


@pytest.fixture(params=["one device", "wire"])
def pair(request: pytest.FixtureRequest, ctx: Context) -> Pair:
    there = ctx if request.param == "one device" else request.getfixturevalue("ctx2")
    return connect(endpoint(ctx), endpoint(there), access=ATOMIC)


@pytest.fixture
def local_pair(ctx: Context) -> Pair:
    return connect(endpoint(ctx, max_send_sge=2), endpoint(ctx), access=ATOMIC)


def call(b: Endpoint, opcode: WROpcode = FETCH_AND_ADD, **changes: Any) -> dict[str, Any]:
    """The arguments of an atomic operation on the counter of `b`."""
    full = {"opcode": opcode, "remote_addr": b.mr.addr + COUNTER, "rkey": b.mr.rkey}
    full |= {"compare_add": 1} | ({"swap": 2} if opcode == CMP_AND_SWP else {})
    return full | changes


def cmp_and_swp(a: Endpoint, b: Endpoint, compare: int, swap: int) -> int:
    a.qp.post_send(
        a.mr[RESULT : RESULT + 8], **call(b, CMP_AND_SWP, compare_add=compare, swap=swap), wr_id=7
    )
    wc = wait_one(a.scq)
    assert (wc.wr_id, wc.opcode, wc.qp_num) == (7, WCOpcode.COMP_SWAP, a.qp.qp_num)
    return get(a.mr, RESULT)


def fetch_and_add(a: Endpoint, b: Endpoint, add: int) -> int:
    a.qp.post_send(SendWR(a.mr[RESULT : RESULT + 8], **call(b, compare_add=add), wr_id=8))
    wc = wait_one(a.scq)
    assert (wc.wr_id, wc.opcode, wc.qp_num) == (8, WCOpcode.FETCH_ADD, a.qp.qp_num)
    return get(a.mr, RESULT)


# ---- what they do ----------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(0, 1), (UNEVEN, MAX), (MAX, 0), (1 << 63, UNEVEN)])
def test_compare_and_swap_that_hits_puts_the_new_number(pair: Pair, old: int, new: int) -> None:
    a, b = pair
    put(b.mr, old)
    assert cmp_and_swp(a, b, old, new) == old
    assert get(b.mr) == new


@pytest.mark.parametrize("miss", [0, UNEVEN + 1, UNEVEN ^ 1 << 63, MAX])
def test_compare_and_swap_that_misses_tells_the_number_and_leaves_it(pair: Pair, miss: int) -> None:
    a, b = pair
    put(b.mr, UNEVEN)
    assert cmp_and_swp(a, b, miss, 5) == UNEVEN
    assert get(b.mr) == UNEVEN


@pytest.mark.parametrize(
    ("old", "add"),
    [
        *[(0, 0), (5, 7), (UNEVEN, 0x1020304050607080), (0, MAX), (1 << 63, 1 << 62)],
        *[(MAX, 1), (MAX, MAX), (1 << 63, 1 << 63), (UNEVEN, MAX)],  # it wraps around
    ],
)
def test_fetch_and_add_adds_and_tells_what_was_there(pair: Pair, old: int, add: int) -> None:
    a, b = pair
    put(b.mr, old)
    assert fetch_and_add(a, b, add) == old
    assert get(b.mr) == (old + add) % 2**64


def test_eight_bytes_change_at_each_end_and_the_peer_is_not_told(pair: Pair) -> None:
    a, b = pair
    a.mr.write(b"\xaa" * 256)
    b.mr.write(b"\xbb" * 256)
    put(b.mr, 1)
    assert fetch_and_add(a, b, 1) == 1
    put(a.mr, 0xAAAAAAAAAAAAAAAA, RESULT)
    put(b.mr, 0xBBBBBBBBBBBBBBBB)
    assert a.mr.read(256) == b"\xaa" * 256
    assert b.mr.read(256) == b"\xbb" * 256
    assert b.rcq.poll() == []


def test_many_in_a_row_count_without_a_gap(pair: Pair) -> None:
    a, b = pair
    for _ in range(20):
        a.qp.post_send(a.mr[0:8], **call(b), send_flags=0)
    assert a.qp.outstanding_signaled == 0
    assert fetch_and_add(a, b, 1) == 20
    assert get(b.mr) == 21
    assert outstanding(a.qp) == (0, 0)


def test_the_result_may_be_a_whole_mr_or_a_list_of_one_and_fenced(local_pair: Pair) -> None:
    a, b = local_pair
    whole = MR(a.pd, 8)
    for i, sg in enumerate((whole, [whole], (whole[:],))):
        a.qp.post_send(sg, **call(b), send_flags=SendFlags.SIGNALED | SendFlags.FENCE)
        wait_one(a.scq)
        assert get(whole, 0) == i


def test_the_completion_of_an_atomic_wakes_a_sleeper(pair: Pair) -> None:
    a, b = pair
    put(b.mr, 41)
    assert a.scq.arm_if_empty()
    with waiting(lambda: a.channel.get_event(DEADLINE)) as waiter:
        a.qp.post_send(a.mr[RESULT : RESULT + 8], **call(b))
    assert waiter.join() is a.scq
    a.scq.ack()
    assert wait_one(a.scq).opcode is WCOpcode.FETCH_ADD
    assert (get(a.mr, RESULT), get(b.mr)) == (41, 42)


# ---- what the peer refuses -------------------------------------------------------------------


def test_memory_without_remote_atomic_is_a_remote_access_error(local_pair: Pair) -> None:
    a, b = local_pair
    private = MR(b.pd, 64, access=ALL_REMOTE)
    a.qp.post_send(a.mr[0:8], **call(b, remote_addr=private.addr, rkey=private.rkey))
    wait_one(a.scq, WCStatus.REM_ACCESS_ERR)
    assert private.read() == bytes(64)


def test_a_qp_without_remote_atomic_lets_no_atomic_in(ctx: Context) -> None:
    readable = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
    a, b = connect(endpoint(ctx), endpoint(ctx), access=readable)
    a.qp.post_send(a.mr[0:8], **call(b))
    wait_one(a.scq, WCStatus.REM_INV_REQ_ERR)
    assert get(b.mr) == 0


# ---- what is refused before the device sees it -----------------------------------------------


def test_a_result_that_is_not_eight_bytes_in_one_element_is_refused(local_pair: Pair) -> None:
    """For the other arguments see test_post_refused.py."""
    a, b = local_pair
    mr = a.mr
    wrong: list[tuple[Any, str]] = [
        (None, "sg has 0 bytes in 0 elements"),
        ([], "sg has 0 bytes in 0 elements"),
        (mr[0:4], "sg has 4 bytes in 1 element: ATOMIC_CMP_AND_SWP needs 8 bytes in"),
        (mr[0:9], "sg has 9 bytes"),
        (mr[0:16], "sg has 16 bytes"),
        ([mr[0:4], mr[4:8]], "sg has 8 bytes in 2 elements"),
        ([mr[0:8], mr[8:8]], "sg has 8 bytes in 2 elements"),
        (MR(a.pd, b"constant", access=AccessFlags(0)), "needs access LOCAL_WRITE"),
    ]
    for sg, message in wrong:
        for take in (a.qp.post_send, SendWR):
            with pytest.raises(ValueError, match=message):
                take(sg, **call(b, CMP_AND_SWP))
    with pytest.raises(ValueError, match="needs access LOCAL_WRITE"):
        a.qp.post_send(MR(a.pd, b"constant", access=AccessFlags(0)), **call(b))
    assert outstanding(a.qp) == (0, 0)


def test_an_mr_for_remote_atomics_needs_local_write(pd: PD) -> None:
    with pytest.raises(ValueError, match="REMOTE_ATOMIC need LOCAL_WRITE"):
        MR(pd, 64, access=ATOMIC)
    assert MR(pd, 64, access=ATOMIC | AccessFlags.LOCAL_WRITE).access == 9
