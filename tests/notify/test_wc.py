# SPDX-License-Identifier: MIT
"""WorkCompletions that come and go: the memory of those that are gone is used again."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import sys
import sysconfig
import tracemalloc
import weakref
from typing import Any

import pytest
from support import GRH, Endpoint, Pair, until, wait_completions, wait_one

from cqnotify import AH, QPState, WCArray, WCOpcode, WCStatus, WorkCompletion, WROpcode

FIELDS = sorted(
    name for name in dir(WorkCompletion) if name[0] != "_" and name != "raise_for_status"
)
KEPT = 256  # of CQN_WC_SPARES: what is kept of those that are gone
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def fields(wc: WorkCompletion) -> dict[str, Any]:
    return {name: getattr(wc, name) for name in FIELDS}


def receive(pair: Pair, ids: list[int], **how: Any) -> None:
    """All are in the receiver's CQ when it returns, and none in the sender's."""
    a, b = pair
    for i in ids:
        b.qp.post_recv(b.mr[0:128], wr_id=i)
        a.qp.post_send(a.mr[0:8], **how)
    wait_completions(a.scq, len(ids))


def one(end: Endpoint) -> WCArray:
    """The next completion, to be made a WorkCompletion of again and again."""
    wcs = WCArray(1)
    until(lambda: end.rcq.poll_into(wcs) == 1, "it is there")
    return wcs


@pytest.fixture
def wcs(pair: Pair) -> WCArray:
    """Three that have succeeded."""
    receive(pair, [2**40, 2**41, 2**42])
    wcs = WCArray(8)
    assert pair[1].rcq.poll_into(wcs) == 3
    return wcs


@pytest.fixture
def kinds(pair: Pair, ud_pair: Pair) -> list[WCArray]:
    """One of each: with fields that the others lack."""
    b = pair[1]
    kinds = []
    for how in ({}, {"opcode": WROpcode.SEND_WITH_IMM, "imm_data": 2**31}):
        receive(pair, [2**33], **how)
        kinds.append(one(b))
    b.qp.post_recv(b.mr[0:8], wr_id=2**34)
    b.qp.modify(qp_state=QPState.ERR)
    kinds.append(one(b))
    a, b = ud_pair
    entry = b.ctx.find_gid()
    with AH(a.pd, dgid=entry.gid, sgid_index=entry.index) as ah:
        to = {"remote_qpn": b.qp.qp_num, "remote_qkey": b.qp.query().qkey}
        receive(ud_pair, [2**35], ah=ah, **to)
    kinds.append(one(b))
    return kinds


def test_a_completion_that_is_kept_does_not_change_when_others_come_and_go(pair: Pair) -> None:
    b = pair[1]
    receive(pair, [2**40])
    kept = wait_one(b.rcq)
    before, text = fields(kept), repr(kept)
    for turn in range(1, 4):
        ids = [turn * 1000 + i for i in range(16)]
        receive(pair, ids)
        assert [wc.wr_id for wc in b.rcq.poll()] == ids
        assert (fields(kept), repr(kept)) == (before, text)
    for i in range(16):
        b.qp.post_recv(b.mr[0:8], wr_id=i)
    b.qp.modify(qp_state=QPState.ERR)
    assert {wc.status for wc in wait_completions(b.rcq, 16)} == {WCStatus.WR_FLUSH_ERR}
    assert (fields(kept), repr(kept)) == (before, text)


def test_nothing_of_one_that_is_gone_shows_in_the_next(kinds: list[WCArray]) -> None:
    held = [kinds[0][0] for _ in range(2 * KEPT)]  # so what comes now is no used memory
    plain, with_imm, failed, datagram = made = [fields(kind[0]) for kind in kinds]
    assert (plain["imm_data"], plain["src_qp"], plain["byte_len"]) == (None, None, 8)
    assert (with_imm["imm_data"], with_imm["src_qp"]) == (2**31, None)
    assert (failed["status"], failed["byte_len"]) == (WCStatus.WR_FLUSH_ERR, None)
    assert (failed["opcode"], failed["ok"]) == (None, False)
    assert (datagram["byte_len"], datagram["sl"], datagram["imm_data"]) == (GRH + 8, 0, None)
    for before, after in itertools.permutations(range(len(kinds)), 2):
        wc = kinds[before][0]
        place = id(wc)
        del wc
        wc = kinds[after][0]
        assert FREE_THREADED or id(wc) == place
        assert fields(wc) == made[after]
    del held


def test_thousands_at_once_are_thousands(wcs: WCArray) -> None:
    """And when they are gone, so is their memory, but for that of a few."""
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(2):
        many = [wcs[i % 3] for i in range(5000)]
        assert len({id(wc) for wc in many}) == 5000
        random.Random(5).shuffle(many)
        del many[2500:]
        many += [wcs[i % 3] for i in range(2500)]
        assert len({id(wc) for wc in many}) == 5000
        assert {wc.wr_id for wc in many} == {2**40, 2**41, 2**42}
        assert {(wc.status, wc.opcode, wc.byte_len) for wc in many} == {
            (WCStatus.SUCCESS, WCOpcode.RECV, 8)
        }
        del many
    gc.collect()
    assert sys.getallocatedblocks() - before < KEPT + 100


@pytest.mark.parametrize("spare", [0, 1, 3, 200])
def test_those_of_one_poll_are_what_they_are_one_by_one(pair: Pair, spare: int) -> None:
    """Whether their memory was another's before, or only that of the first is there."""
    a, b = pair
    lengths = [8] * 5 + [16] + [8, 0] * 2 + [0] * 3
    for i, length in enumerate(lengths):
        b.qp.post_recv(b.mr[0:64], wr_id=2**40 + i)
        a.qp.post_send(a.mr[0:length])
    wait_completions(a.scq, len(lengths))
    b.qp.post_recv(b.mr[0:64], wr_id=2**41)
    b.qp.modify(qp_state=QPState.ERR)
    rows = WCArray(1)
    until(lambda: b.rcq.poll_into(rows) == 1, "it is there")
    counted = (WCStatus.SUCCESS, WCOpcode.RECV, WCStatus.WR_FLUSH_ERR)
    held = [rows[0] for _ in range(KEPT + spare)]  # the spares are used up
    before = [sys.getrefcount(each) for each in counted]
    del held[KEPT:]
    got = wait_completions(b.rcq, len(lengths))
    shown = [(wc.wr_id, wc.byte_len, wc.status, wc.opcode) for wc in got]
    assert shown == [
        *((2**40 + i, n, WCStatus.SUCCESS, WCOpcode.RECV) for i, n in enumerate(lengths) if i),
        (2**41, None, WCStatus.WR_FLUSH_ERR, None),
    ]
    del got, shown
    assert FREE_THREADED or [sys.getrefcount(each) for each in counted] == [
        before[0] - spare,
        before[1] - spare,
        before[2],
    ]


def test_each_has_its_own_length(pair: Pair) -> None:
    a, b = pair
    lengths = [8, 8, 5, 8, 1000, 1000, 0, 1000, 8]
    for length in lengths:
        b.qp.post_recv(b.mr[0:1024])
        a.qp.post_send(a.mr[0:length])
    wait_completions(a.scq, len(lengths))
    got = b.rcq.poll()
    assert [wc.byte_len for wc in got] == lengths
    b.qp.post_recv(b.mr[0:1024])
    b.qp.modify(qp_state=QPState.ERR)
    assert wait_one(b.rcq, WCStatus.WR_FLUSH_ERR).byte_len is None
    assert [wc.byte_len for wc in got] == lengths


def test_only_the_core_makes_them_and_nothing_holds_them_weakly(wcs: WCArray) -> None:
    wc = wcs[0]
    with pytest.raises(TypeError, match="acceptable base type"):
        type("Mine", (WorkCompletion,), {})
    with pytest.raises(TypeError, match="cannot create"):
        WorkCompletion()
    with pytest.raises(TypeError, match="WorkCompletion"):  # the rest of the text is CPython's
        object.__new__(WorkCompletion)
    assert copy.copy(wc) is copy.deepcopy(wc) is wc
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(wc)
    with pytest.raises(TypeError, match="__class__"):
        wc.__class__ = int  # type: ignore[assignment]
    assert not gc.is_tracked(wc)


def test_tracemalloc_tells_where_the_latest_was_made(wcs: WCArray) -> None:
    """Not where the memory was got for another one."""

    def there() -> WorkCompletion:
        return wcs[1]

    def place(wc: WorkCompletion) -> int:
        traceback = tracemalloc.get_object_traceback(wc)
        assert traceback is not None
        return traceback[0].lineno

    tracemalloc.start()
    try:
        held = [wcs[0] for _ in range(2 * KEPT)]  # so what comes now is no used memory
        wc = wcs[0]
        here = place(wc)
        del wc
        wc = there()
        assert wc.wr_id == 2**41
        assert place(wc) == there.__code__.co_firstlineno + 1 != here
        del held
    finally:
        tracemalloc.stop()


EXTENDED = ("completion_ts", "completion_wallclock_ns", "cvlan", "flow_tag", "tm_tag", "tm_priv")


@pytest.mark.parametrize("name", EXTENDED)
def test_what_only_an_extended_cq_brings_is_none_elsewhere(pair: Pair, name: str) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8])
    assert getattr(wait_one(b.rcq), name) is None
