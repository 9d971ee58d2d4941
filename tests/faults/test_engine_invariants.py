# SPDX-License-Identifier: MIT
"""What must hold of an AsyncCQ's lists and counters holds in each state of what is awaited. The
steps of all tests of this build check it as well, and end the process if it does not."""

from __future__ import annotations

import asyncio
import ctypes

import pytest
from fault_world import core
from support import Link, MakeLink

from cqnotify import ClosedError
from cqnotify.aio import AsyncCQ

MANY = 40  # more receives than the queue takes


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    return make_link(one_cq=True, max_send_wr=2, max_recv_wr=4)


def check(acq: AsyncCQ) -> None:
    assert core.check_engine(acq) is None


async def cancelled(task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0)  # it has taken its first step
    task.cancel()
    await asyncio.wait([task])


async def test_each_state_keeps_the_invariants(link: Link) -> None:
    acq = AsyncCQ(link.a.scq)
    check(acq)
    waits = [asyncio.ensure_future(acq.wait(solicited_only=one)) for one in (True, False)]
    claims = [asyncio.ensure_future(acq.completion(7, qp=qp)) for qp in (None, link.qp)]
    recv = asyncio.ensure_future(acq.recv(link.qp, link.into))
    await asyncio.sleep(0)
    check(acq)
    for task in (*waits, *claims):
        await cancelled(task)
        check(acq)
    await cancelled(recv)  # abandoned: the device has it
    check(acq)
    link.bring()
    assert not link.a.scq.arm_if_empty()  # its message is in the stash
    check(acq)
    assert len(acq.poll()) == 1
    check(acq)
    acq.close()
    check(acq)


async def test_receive_that_is_taken_over_keeps_the_invariants(link: Link) -> None:
    async with AsyncCQ(link.a.scq) as acq:
        for _ in range(3):
            await cancelled(asyncio.ensure_future(acq.recv(link.qp, link.into)))
            check(acq)
        recv = asyncio.ensure_future(acq.recv(link.qp, link.into))
        await asyncio.sleep(0)
        check(acq)
        link.bring()
        await recv
        check(acq)
        await cancelled(asyncio.ensure_future(acq.recv(link.qp, link.into)))
        link.bring()
        assert not link.a.scq.arm_if_empty()
        check(acq)
        await acq.recv(link.qp, link.into)  # the message of the abandoned one
        check(acq)


async def test_full_queue_and_a_closed_queue_pair_keep_the_invariants(link: Link) -> None:
    async with AsyncCQ(link.a.scq) as acq:
        recvs = [asyncio.ensure_future(acq.recv(link.qp, link.into)) for _ in range(MANY)]
        await asyncio.sleep(0)
        check(acq)
        await cancelled(recvs[-1])  # it waited for the queue
        check(acq)
        link.qp.close()
        check(acq)
        ended = await asyncio.gather(*recvs, return_exceptions=True)
        assert sum(isinstance(error, ClosedError) for error in ended) == MANY - 1
        check(acq)


async def test_counter_that_is_wrong_is_found(link: Link) -> None:
    async with AsyncCQ(link.a.scq) as acq:
        recv = asyncio.ensure_future(acq.recv(link.qp, link.into))
        await asyncio.sleep(0)
        words = type(acq).__mro__[-2].__basicsize__ // 8
        counters = (ctypes.c_ssize_t * words).from_address(id(acq))
        places = [i for i in range(6, len(counters)) if counters[i] == 1]  # len, wanted
        assert len(places) >= 2
        for i in places[:2]:
            counters[i] += 1
            wrong = core.check_engine(acq)
            counters[i] -= 1
            assert "len" in wrong
        check(acq)
        await cancelled(recv)
