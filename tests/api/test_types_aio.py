# SPDX-License-Identifier: MIT
"""What users of cqnotify.aio await has the types that it is said to have; see test_types.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from types_support import DEADLINE, Pair

from cqnotify import CQ, QPAddress, SuccessfulCompletion, WCStatus, WorkCompletion
from cqnotify.aio import AsyncCQ, AsyncCQStats, Batches, Scope
from cqnotify.exchange import exchange_as_client, exchange_as_server, listen
from cqnotify.testing import Endpoint, PairFactory, wait_completions

if TYPE_CHECKING:
    from typing import assert_type
else:
    from runtime_types import assert_type


def send(a: Endpoint, b: Endpoint, wr_id: int = 0) -> None:
    """One message, which completes at the receiver only after this."""
    b.qp.post_recv(b.mr[0:64], wr_id=wr_id)
    a.qp.post_send(a.mr[0:8])
    wait_completions(a.send_cq)


async def test_waiting(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    async with AsyncCQ(b.recv_cq, spin="auto") as acq:
        assert_type(acq, AsyncCQ)
        assert_type(acq.spin, float | Literal["auto"])
        assert_type(acq.cq, CQ)
        send(a, b)
        assert_type(await acq.wait(), list[WorkCompletion])
        send(a, b)
        found = await acq.wait(4, spin=1e-6, solicited_only=False)
        assert_type(found, list[WorkCompletion])
        send(a, b)
        assert_type(await acq.wait(spin="auto"), list[WorkCompletion])
        send(a, b, wr_id=7)
        assert_type(await acq.completion(7), WorkCompletion)
        send(a, b, wr_id=8)
        wc = await asyncio.wait_for(acq.completion(8, qp=b.qp), DEADLINE)
        assert_type(wc, WorkCompletion)
        assert_type(wc.status, WCStatus | int)
        assert_type(acq.poll(), list[WorkCompletion])
        assert_type(acq.stats, AsyncCQStats)
        assert_type(acq.stats.wakeups, int)
    assert_type(acq.closed, bool)


async def test_iteration(rdma_rc_pair: Pair) -> None:
    a, b = rdma_rc_pair
    async with AsyncCQ(b.recv_cq) as acq:
        send(a, b)
        async for wc in acq:
            assert_type(wc, WorkCompletion)
            break
        send(a, b)
        batches = acq.batches(8, solicited_only=False)
        assert_type(batches, Batches)
        async for wcs in batches:
            assert_type(wcs, list[WorkCompletion])
            break


async def post_and_await(acq: AsyncCQ, peer: AsyncCQ, a: Endpoint, b: Endpoint) -> None:
    """Each operation, inside a scope."""
    qp, mr, there, rkey = a.qp, a.mr, b.mr.addr, b.mr.rkey
    async with acq.scope() as scope:
        assert_type(scope, Scope)
        assert_type(scope.outstanding, int)
        receive = asyncio.ensure_future(peer.recv(b.qp, b.mr[64:128]))
        assert_type(await acq.send(qp, mr[:8], imm_data=1), SuccessfulCompletion)
        assert_type(await receive, SuccessfulCompletion)
        assert_type((await receive).byte_len, int)
        assert_type(await acq.write(qp, mr[:8], there, rkey), SuccessfulCompletion)
        assert_type(await acq.read(qp, mr[:8], there, rkey), SuccessfulCompletion)
        swapped = await acq.atomic_cmp_and_swp(qp, mr[:8], there, rkey, 0, 1)
        assert_type(swapped, SuccessfulCompletion)
        assert_type(
            await acq.atomic_fetch_and_add(qp, mr[:8], there, rkey, 1), SuccessfulCompletion
        )
        both = await asyncio.gather(
            acq.write(qp, mr[:8], there, rkey), acq.read(qp, mr[8:16], there, rkey)
        )
        assert_type(both[0], SuccessfulCompletion)


async def test_posting(rdma_pair: PairFactory) -> None:
    a, b = rdma_pair(one_cq=True)
    async with AsyncCQ(a.send_cq) as acq, AsyncCQ(b.recv_cq) as there:
        await post_and_await(acq, there, a, b)


async def test_addresses_are_exchanged(rdma_rc_pair: Pair) -> None:
    # The MTU is not sent.
    ours, theirs = (end.qp.address()._replace(mtu=None) for end in rdma_rc_pair)
    got: list[QPAddress] = []
    lists: list[list[QPAddress]] = []
    with listen(port=0) as listener:
        port: int = listener.getsockname()[1]
        served, answered = await asyncio.gather(
            exchange_as_server(listener, ours, got.append),
            exchange_as_client("127.0.0.1", port, theirs),
        )
        assert_type(served, QPAddress)
        assert_type(answered, QPAddress)
        all_served, all_answered = await asyncio.gather(
            exchange_as_server(listener, [ours], lists.append),
            exchange_as_client("127.0.0.1", port, [theirs]),
        )
        assert_type(all_served, list[QPAddress])
        assert_type(all_answered, list[QPAddress])
    assert (got, lists) == ([theirs], [[theirs]])
