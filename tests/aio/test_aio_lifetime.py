# SPDX-License-Identifier: MIT
"""AsyncCQ between loops, threads and the garbage collector: none is forgotten, nothing is kept."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import (
    DEADLINE,
    SPIN,
    Endpoint,
    Lane,
    Waiter,
    cancel,
    eventually,
    ids,
    in_child,
    open_fds,
    python,
    start,
    tick,
    until,
)

from cqnotify import ClosedError, Context, QPState, QPType, WorkCompletion
from cqnotify.aio import AsyncCQ

NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def collected(gone: weakref.ref[Any]) -> bool:
    for _ in range(3):
        gc.collect()
        await tick()
    return gone() is None


# ---- threads --------------------------------------------------------------------------------


async def woken(lane: Lane, acq: AsyncCQ) -> list[int]:
    """What a task that waits gets of one message, which is sent once it sleeps."""
    task = await start(acq.wait())
    lane.send()
    return ids(await asyncio.wait_for(task, DEADLINE))


def test_a_forked_child_can_not_wait(lane: Lane, new_loop: NewLoop) -> None:
    acq = AsyncCQ(lane.cq)

    def wait_there() -> None:
        with pytest.raises(ClosedError, match="before a fork"):
            asyncio.run(acq.wait())

    with contextlib.closing(new_loop()) as loop:
        assert loop.run_until_complete(woken(lane, acq)) == [0]
        assert in_child(wait_there) == 0
        acq.close()


def test_a_loop_may_move_to_another_thread(lane: Lane, new_loop: NewLoop) -> None:
    """Who polls in its first thread is a stranger then, and hands to the loop what it waits for."""
    loop = new_loop()
    acq = AsyncCQ(lane.cq)
    asleep = threading.Event()

    async def wait() -> list[WorkCompletion]:
        task = await start(acq.wait(solicited_only=True))
        loop.call_soon(asleep.set)
        return await task

    loop.run_until_complete(woken(lane, acq))
    future = asyncio.run_coroutine_threadsafe(wait(), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    assert asleep.wait(DEADLINE)
    lane.send()  # not solicited: it wakes nobody
    assert lane.cq.poll() == []
    assert ids(future.result(DEADLINE)) == [1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE)
    acq.close()
    loop.close()


async def test_a_thread_that_spins_leaves_a_send_its_completion(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    a, b = pair
    async with AsyncCQ(a.scq) as acq:
        acq._reader.attach()  # so the thread is a stranger from the start
        polls = acq.stats.polls
        spinner = Waiter(lambda: a.scq.poll(spin=SPIN))
        until(lambda: acq.stats.polls > polls, "it spins")
        task = asyncio.ensure_future(acq.send(a.qp, a.mr[0:8]))
        await tick()
        b.qp.post_recv(b.mr[0:64])
        assert (await task).ok
        # Either thread took it from the device; if the spinner did not, it spins on.
        if spinner.thread.is_alive():
            b.qp.post_recv(b.mr[0:64])
            a.qp.post_send(a.mr[0:8], wr_id=5)
        assert ids(spinner.join()) in ([], [5])


def test_what_a_poll_finds_goes_to_the_task_of_another_thread_that_began_to_wait_meanwhile(
    lane: Lane, new_loop: NewLoop
) -> None:
    loop, acq, polled = new_loop(), AsyncCQ(lane.cq), threading.Event()

    async def wait() -> list[int]:
        until(lambda: acq.stats.polls == 1, "the other thread has looked, and spins")
        task = await start(acq.wait())
        lane.send()
        assert polled.wait(DEADLINE), "it polls for ever"  # the loop stands, and reads no event
        return ids(await asyncio.wait_for(task, DEADLINE))

    waiting = Waiter(lambda: loop.run_until_complete(wait()))
    assert acq.poll(spin=SPIN) == []
    polled.set()
    assert waiting.join() == [0]
    acq.close()
    loop.close()


async def test_a_reset_by_another_thread_leaves_what_is_posted_after_it(ctx: Context) -> None:
    """The loop learns of the reset later than the task that posts."""
    end = Endpoint(ctx, QPType.RC)
    end.qp.connect(end.qp.address())

    def reset() -> None:
        end.qp.modify(qp_state=QPState.RESET)
        end.qp.connect(end.qp.address())

    async with AsyncCQ(end.rcq) as acq:
        before = await start(acq.recv(end.qp, end.mr[0:64], wr_id=1))
        Waiter(reset).join()
        asyncio.get_running_loop().call_soon(end.qp.post_send, end.mr[64:72])
        assert (await acq.recv(end.qp, end.mr[0:64], wr_id=2)).ok
        with pytest.raises(ClosedError, match="was reset"):
            await before


async def test_close_by_a_signal_ends_a_spin(lane: Lane) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    signal.signal(signal.SIGALRM, lambda *_: acq.close())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(ClosedError):
            await acq.wait(spin=1.0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert open_fds() == before


# ---- what is kept, and what is not ----------------------------------------------------------


async def test_a_task_that_only_the_asynccq_knows_is_not_collected(lane: Lane) -> None:
    got: list[int] = []

    async def work() -> None:
        async with AsyncCQ(lane.cq) as acq:
            got.extend(ids(await acq.wait()))

    gone = weakref.ref(asyncio.ensure_future(work()))
    await tick()
    gc.collect()
    lane.send()
    await eventually(lambda: got == [0])
    assert await collected(gone)


async def test_what_the_collector_sees_of_an_asynccq_that_is_waited_for_is_a_reference(
    lane: Lane,
) -> None:
    """The channel refers to it then."""
    acq = AsyncCQ(lane.cq)

    def unseen() -> int:
        return sys.getrefcount(acq) - len(gc.get_referrers(acq))

    before = unseen()
    task = await start(acq.wait())
    assert lane.cq.channel in gc.get_referrers(acq)
    assert unseen() == before
    await cancel(task)
    assert lane.cq.channel not in gc.get_referrers(acq)
    assert unseen() == before
    acq.close()


async def test_the_context_of_the_first_waiter_is_not_kept(lane: Lane) -> None:
    before = open_fds()
    acq = AsyncCQ(lane.cq)
    async with acq.scope():
        (await start(acq.wait())).cancel()
        await tick()
    gone = weakref.ref(acq)
    del acq
    assert await collected(gone)
    assert open_fds() == before


async def test_a_receive_that_was_cancelled_keeps_nothing_once_its_qp_is_closed(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    _, b = pair
    acq = AsyncCQ(b.rcq)
    await cancel(await start(acq.recv(b.qp, b.mr[0:8])))
    b.qp.close()
    gone = weakref.ref(acq)
    del acq
    assert await collected(gone)


def test_what_nobody_awaits_keeps_nothing_without_the_garbage_collector(lane: Lane) -> None:
    acq = AsyncCQ(lane.cq)
    held = sys.getrefcount(acq)
    with pytest.warns(RuntimeWarning, match="'AsyncCQ.wait' was never awaited"):
        acq.wait()
    assert sys.getrefcount(acq) == held


async def test_each_task_has_an_error_of_its_own_that_keeps_no_other(lane: Lane) -> None:
    class Local:
        pass

    acq = AsyncCQ(lane.cq)
    locals_: list[weakref.ref[Local]] = []

    async def wait() -> None:
        local = Local()
        locals_.append(weakref.ref(local))
        await acq.wait()

    tasks = [await start(wait()) for _ in range(2)]
    lane.close()
    lane.cq.close()
    await asyncio.wait(tasks)
    kinds = [type(task.exception()) for task in tasks]
    own = tasks[0].exception() is not tasks[1].exception()
    assert kinds == [ClosedError] * 2
    assert own
    tasks.clear()
    await tick()
    gc.collect()
    assert [ref() for ref in locals_] == [None, None]
    with contextlib.suppress(ClosedError):
        acq.close()


# ---- the end of the interpreter -------------------------------------------------------------

UNCLOSED = """
import asyncio, os, sys
from cqnotify import CQ, CompletionChannel, Context
from cqnotify.aio import AsyncCQ

ctx = Context()
acq = AsyncCQ(CQ(ctx, 4, channel=CompletionChannel(ctx)))
"""
IN_A_LOOP = """
loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(asyncio.wait_for(acq.wait(), 0.01))
except asyncio.TimeoutError:
    pass
"""
# A module that is kept is emptied, the last one that was imported first.
KEPT = {
    "by its module": "",
    "by an older module": "os.acq = acq; del acq; sys.kept = list(sys.modules.values())",
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("used", ["", IN_A_LOOP], ids=["unused", "used"])
def test_one_that_is_not_closed_at_the_end_of_the_interpreter_says_nothing(
    ctx: Context, used: str, kept: str
) -> None:
    program = UNCLOSED + used + KEPT[kept]
    out = python("-c", program)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
