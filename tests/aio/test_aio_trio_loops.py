# SPDX-License-Identifier: MIT
"""AsyncCQ in loops of trio and anyio: one after another, several at once, and what is posted."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import trio
from flavors import FLAVORS, Flavor
from support import DEADLINE, Lane, MakeLane, Pair, Waiter, ids, open_fds

from cqnotify import BusyError, ClosedError, CompletionError, Context, QPState, WCStatus
from cqnotify.aio import AsyncCQ

# ---- loops ----------------------------------------------------------------------------------


async def one_message(on: Flavor, acq: AsyncCQ, lane: Lane) -> int:
    """The wr_id of a message that a sleeping task was woken for; another one sleeps to the end."""
    async with on.tasks() as start:
        task = start(acq.wait)
        await on.tick()
        assert not task.done
        lane.send()
        (got,) = ids(await task.result())
        start(acq.wait)
        await on.tick()
    return got


def test_one_asynccq_works_in_one_loop_after_the_other(lane: Lane) -> None:
    gc.collect()
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    flavors = [*FLAVORS.values(), *FLAVORS.values()]
    for i, on in enumerate(flavors):
        assert on.run(lambda on=on: one_message(on, acq, lane)) == i  # type: ignore[misc]
    asyncio.run(asyncio.wait_for(native_message(acq, lane, len(flavors)), DEADLINE))
    assert acq.stats.events == len(flavors) + 1
    acq.close()
    gc.collect()
    assert open_fds() == before


async def native_message(acq: AsyncCQ, lane: Lane, i: int) -> None:
    task = asyncio.ensure_future(acq.wait())
    await asyncio.sleep(0)
    lane.send()
    assert ids(await task) == [i]


@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_two_living_loops_on_one_channel_are_refused(lane: Lane, first: str) -> None:
    acq = AsyncCQ(lane.cq)
    attached, ended = threading.Event(), threading.Event()

    async def refused() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.completion(1)

    async def holds(on: Flavor) -> None:
        async with on.tasks() as start:
            task = start(acq.wait)
            await on.tick()
            attached.set()
            while not ended.is_set():
                await on.tick()
            lane.send()
            assert ids(await task.result()) == [0]

    flavors = ["anyio on asyncio", "trio"]
    holder, other = (FLAVORS[f] for f in (flavors if first == "asyncio" else flavors[::-1]))
    thread = Waiter(lambda: holder.run(lambda: holds(holder)))
    assert attached.wait(DEADLINE)
    try:
        other.run(refused)
    finally:
        ended.set()
    thread.join()
    acq.close()


async def test_no_descriptor_is_left(new_lane: MakeLane, on: Flavor) -> None:
    lanes = [new_lane(), new_lane()]

    before = open_fds()
    for _ in range(3):
        async with AsyncCQ(lanes[0].cq) as acq, AsyncCQ(lanes[1].cq) as acq2:
            await one_message(on, acq, lanes[0])
            await one_message(on, acq2, lanes[1])
            assert open_fds() > before
        assert open_fds() == before


async def test_one_that_is_dropped_unclosed_goes_away_with_its_reader(
    lane: Lane, on: Flavor
) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    await one_message(on, acq, lane)
    assert open_fds() > before
    del acq
    await on.tick()
    gc.collect()
    await on.tick()
    assert open_fds() == before


def test_trio_as_a_guest_of_asyncio(lane: Lane) -> None:
    """Its tasks are trio's, though an asyncio loop runs in their thread; the host closes it."""
    on = FLAVORS["trio"]
    acq = AsyncCQ(lane.cq)
    asleep = threading.Event()

    async def guest() -> None:
        for i in range(3):
            assert await one_message(on, acq, lane) == i
        async with on.tasks() as start:
            task = start(acq.wait)
            await on.tick()
            asleep.set()
            with pytest.raises(ClosedError):
                await task.result()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=over.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        while not (asleep.is_set() or over.done()):
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another event loop"):
            await acq.wait()
        acq.close()
        (await asyncio.wait_for(over, DEADLINE)).unwrap()

    asyncio.run(host())


WITHOUT_TRIO = """
import sys
sys.modules["trio"] = sys.modules["anyio"] = None  # an import of it fails
import asyncio
from cqnotify import CQ, CompletionChannel, Context
from cqnotify.aio import AsyncCQ

async def main():
    with Context() as ctx:
        async with AsyncCQ(CQ(ctx, 4, channel=CompletionChannel(ctx))) as acq:
            try:
                await asyncio.wait_for(acq.wait(), 0.01)
            except asyncio.TimeoutError:
                pass
            async with acq.scope():
                pass

asyncio.run(main())
"""


def test_it_works_where_there_is_no_trio(ctx: Context) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRIO], check=True, timeout=DEADLINE)


# ---- posting --------------------------------------------------------------------------------


async def test_a_send_and_a_receive_wake_those_who_posted_them(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async with AsyncCQ(a.scq) as sent, AsyncCQ(b.rcq) as received, on.tasks() as start:
        for i in range(10):
            receive = start(lambda: received.recv(b.qp, b.mr[0:64]))
            await on.tick()
            assert not receive.done
            a.mr.write(bytes([i]) * 8)
            assert (await sent.send(a.qp, a.mr[0:8], imm_data=i)).ok
            assert (await receive.result()).imm_data == i
            assert b.mr.read(8) == bytes([i]) * 8
        assert received.stats.events == received.stats.wakeups == 10


async def test_a_failed_send_raises_what_the_device_says(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async with AsyncCQ(a.scq) as acq:
        with pytest.raises(CompletionError) as e:
            await acq.write(a.qp, a.mr[0:8], b.mr.addr, b.mr.rkey ^ 1)
        assert e.value.status == WCStatus.REM_ACCESS_ERR


async def test_a_message_for_a_cancelled_receive_goes_to_who_waits(pair: Pair, on: Flavor) -> None:
    a, b = pair

    async with AsyncCQ(a.scq) as sent, AsyncCQ(b.rcq) as received, on.tasks() as start:
        receive = start(lambda: received.recv(b.qp, b.mr[0:64]))
        await on.tick()
        receive.scope.cancel()
        await on.tick()
        assert receive.done
        waiter = start(received.wait)
        await on.tick()
        await sent.send(a.qp, a.mr[0:8], imm_data=5)
        ((wc,),) = [await waiter.result()]
        assert wc.imm_data == 5


async def test_a_scope_ends_only_when_all_has_completed_though_a_scope_around_is_cancelled(
    pair: Pair, on: Flavor
) -> None:
    """The send waits for a receive at the peer. Its memory is pinned till then, and no longer."""
    a, b = pair

    async with AsyncCQ(a.scq) as acq, on.tasks() as start:
        left = False

        async def body() -> None:
            nonlocal left
            async with acq.scope() as scope:
                assert scope.outstanding == 0
                try:
                    await acq.send(a.qp, a.mr[0:8])
                finally:
                    assert scope.outstanding == 1
            left = True  # never: the cancellation is raised at the end of the block

        task = start(body)
        await on.tick()
        task.scope.cancel()
        await on.tick()
        assert not task.done
        with pytest.raises(BusyError):
            a.mr.close()
        cpu = time.process_time()
        await on.lib.sleep(1)
        assert time.process_time() - cpu < 0.2, "it sleeps"
        b.qp.post_recv(b.mr[0:64])
        while not task.done:
            await on.tick()
        assert task.scope.cancelled_caught
        assert not left
        a.mr.close()


async def test_a_scope_whose_body_has_ended_waits_though_it_is_cancelled_then(
    pair: Pair, on: Flavor
) -> None:
    a, b = pair

    async with AsyncCQ(a.scq) as acq, on.tasks() as start:

        async def body() -> None:
            async with acq.scope() as scope, on.tasks() as start_inside:
                start_inside(lambda: acq.send(a.qp, a.mr[0:8]))
                await on.tick()
            assert scope.outstanding == 0

        task = start(body)
        await on.tick()
        await on.tick()
        task.scope.cancel()
        await on.tick()
        assert not task.done
        b.qp.post_recv(b.mr[0:64])
        while not task.done:
            await on.tick()
        a.mr.close()


async def test_a_scope_ends_with_an_error_when_its_receives_are_closed_away(
    pair: Pair, on: Flavor
) -> None:
    _, b = pair

    acq = AsyncCQ(b.rcq)
    async with on.tasks() as start:

        async def body() -> None:
            async with acq.scope():
                with on.cancelled():
                    await acq.recv(b.qp, b.mr[0:64])

        task = start(body)
        await on.tick()
        assert not task.done
        acq.close()
        with pytest.raises(ClosedError):
            await task.result()


async def test_flushed_receives_end_a_scope(pair: Pair, on: Flavor) -> None:
    _, b = pair

    async with AsyncCQ(b.rcq) as acq, on.tasks() as start:

        async def body() -> None:
            async with acq.scope():
                with on.cancelled():
                    await acq.recv(b.qp, b.mr[0:64])

        task = start(body)
        await on.tick()
        assert not task.done
        b.qp.modify(qp_state=QPState.ERR)
        await task.result()
