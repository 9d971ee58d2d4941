# SPDX-License-Identifier: MIT
"""Who else polls, and polling that spins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Link, Waiter, cancel, ids, start, tick

from cqnotify import CQ, ClosedError, WorkCompletion
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.link(recv=True)

# ---- who else polls -------------------------------------------------------------------------

Poll = Callable[[CQ], list[WorkCompletion]]


@pytest.fixture(params=["here", "in a thread"])
def poll(request: pytest.FixtureRequest) -> Poll:
    return CQ.poll if request.param == "here" else lambda cq: Waiter(cq.poll).join()


async def test_a_foreign_poll_feeds_the_tasks_that_wait(
    acq: AsyncCQ, link: Link, poll: Poll
) -> None:
    """No event is raised here: a solicited completion would raise one."""
    for i in range(3):
        link.qp.post_recv(None, wr_id=i)
    task = await start(acq.wait(solicited_only=True))
    link.bring(3)
    await tick()
    assert not task.done()
    assert poll(link.a.rcq) == []
    assert ids(await task) == [0, 1, 2]
    assert acq.stats.events == 0


async def test_a_foreign_poll_feeds_the_operations(both: Link, poll: Poll, into: AsyncCQ) -> None:
    received = await start(into.recv(both.qp, None))
    named = await start(into.completion(5))
    both.qp.post_recv(None, wr_id=5)
    both.bring(2)
    assert poll(both.a.rcq) == []
    assert (await received).ok
    assert (await named).wr_id == 5


async def test_tasks_are_woken_by_arm_if_empty_if_another_took_the_event(
    both: Link, into: AsyncCQ
) -> None:
    received = await start(into.recv(both.qp, None))
    named = await start(into.completion(5))
    both.qp.post_recv(None, wr_id=5)
    both.bring(2)
    cq = Waiter(both.a.channel.get_event).join()
    cq.ack()
    assert cq.arm_if_empty()  # both were awaited
    assert (await received).ok
    assert (await named).wr_id == 5
    assert into.stats.events == 1


async def test_a_foreign_poll_while_nobody_waits_returns_the_completions(
    acq: AsyncCQ, link: Link, poll: Poll
) -> None:
    await cancel(await start(acq.wait()))  # the loop reads the channel from now on
    for i in range(3):
        link.qp.post_recv(None, wr_id=i)
    link.bring(3)
    assert ids(poll(link.a.rcq)) == [0, 1, 2]
    assert acq.poll() == []


async def test_poll_after_close_does_not_touch_the_cq(acq: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None)
    task = await start(acq.wait())
    acq.close()
    link.bring()
    with pytest.raises(ClosedError):
        acq.poll()
    with pytest.raises(ClosedError):
        await task
    assert len(link.a.rcq.poll()) == 1


@pytest.mark.parametrize("bad", [0, 1 << 31, 1 << 40])
async def test_a_bad_max_entries_harms_nobody_else(acq: AsyncCQ, link: Link, bad: int) -> None:
    task = await start(acq.wait())
    for call in (acq.wait, acq.poll):
        with pytest.raises(ValueError, match="max_entries"):
            await call(bad)  # type: ignore[misc]
    with pytest.raises(ValueError, match="spin is -1"):
        acq.poll(spin=-1)
    with pytest.raises(TypeError):
        await acq.wait(1.5)  # type: ignore[arg-type]
    link.qp.post_recv(None, wr_id=1)
    link.bring()
    assert ids(await task) == [1]


# ---- spinning -------------------------------------------------------------------------------


async def test_a_completion_that_comes_while_wait_spins_needs_no_event(
    acq: AsyncCQ, link: Link
) -> None:
    link.qp.post_recv(None, wr_id=1)
    # It waits for the receive's queue of the other side: nothing is sent before the spin.
    sender = Waiter(lambda: send_when_polled(link))
    assert ids(await acq.wait(spin=30)) == [1]
    sender.join()
    assert acq.stats.events == acq.stats.arms == acq.stats.wakeups == 0


def send_when_polled(link: Link) -> None:
    """In a thread, as soon as the CQ is polled."""
    while link.a.rcq.stats.polls == 0:
        pass
    link.b.qp.post_send(None)


async def test_wait_falls_asleep_when_nothing_came_while_it_span(acq: AsyncCQ, link: Link) -> None:
    link.qp.post_recv(None, wr_id=1)
    task = await start(acq.wait(spin=0.001))
    link.bring()
    assert ids(await task) == [1]
    assert acq.stats.events == acq.stats.wakeups == 1
