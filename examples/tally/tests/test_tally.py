# SPDX-License-Identifier: MIT
"""On real devices: rdma_rc_pair and rdma_pair are fixtures of cqnotify's pytest plugin."""

from __future__ import annotations

import sys

import pytest
from tally import Tally

from cqnotify import CompletionError, QPType, WCStatus
from cqnotify.testing import Endpoint, PairFactory


def tally_between(a: Endpoint, b: Endpoint) -> Tally:
    """Return a tally of the number at the start of b's memory."""
    return Tally(a.qp, a.mr, b.mr.addr, b.mr.rkey)


@pytest.mark.rdma(atomics=True)
def test_it_counts(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = rdma_rc_pair
    tally = tally_between(a, b)
    assert [tally.add(), tally.add(10), tally.add()] == [0, 1, 11]
    assert int.from_bytes(b.mr.read(8), sys.byteorder) == 12


@pytest.mark.rdma(devices=2, atomics=True)
def test_it_counts_across_the_wire(rdma_pair: PairFactory) -> None:
    tally = tally_between(*rdma_pair(QPType.RC, two_devices=True))
    assert [tally.add() for _ in range(100)] == list(range(100))


@pytest.mark.rdma(atomics=True)
def test_a_peer_that_does_not_permit_it_is_an_error(
    rdma_rc_pair: tuple[Endpoint, Endpoint],
) -> None:
    a, b = rdma_rc_pair
    with pytest.raises(CompletionError) as failure:
        Tally(a.qp, a.mr, b.mr.addr, b.mr.rkey ^ 1).add()
    assert failure.value.wc.status is WCStatus.REM_ACCESS_ERR


@pytest.mark.rdma(atomics=True)
def test_a_peer_that_is_gone_is_an_error_and_does_not_hang(rdma_pair: PairFactory) -> None:
    a, b = rdma_pair(QPType.RC, ack_timeout=8, retry_cnt=1)
    tally = tally_between(a, b)
    b.qp.close()
    with pytest.raises(CompletionError) as failure:
        tally.add()
    assert failure.value.wc.status is WCStatus.RETRY_EXC_ERR
