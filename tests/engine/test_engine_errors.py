# SPDX-License-Identifier: MIT
"""What a call raises: the error itself, also where it comes later, of what another task does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import Link, fill, outstanding, start, tick

from cqnotify import CQ, CompletionChannel, Context, QPState, VerbsError
from cqnotify.aio import AsyncCQ
from cqnotify.aio._reader import Reader


class Odd(Exception):
    """One that cannot be made again from its args."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code
        self.why = why


class Refusing:
    """A number that raises when it is asked for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __index__(self) -> int:
        raise self.error


def call(acq: AsyncCQ, link: Link, number: Any) -> Awaitable[Any]:
    return acq.send(link.qp, link.sg, imm_data=number)


@pytest.mark.parametrize("room", [True, False], ids=["at once", "after it has waited for room"])
@pytest.mark.parametrize(
    "make",
    [lambda: Odd(7, why="so"), lambda: KeyError("mine"), lambda: OSError(5, "mine", "file")],
    ids=["Odd", "KeyError", "OSError"],
)
@pytest.mark.link(max_send_wr=4)
async def test_an_error_of_a_post_is_raised_as_it_is(
    acq: AsyncCQ, link: Link, make: Callable[[], Exception], room: bool
) -> None:
    """With its type, its arguments and its attributes. Those behind it are posted."""
    error = make()
    full = [] if room else await fill(acq, link)
    bad = asyncio.ensure_future(call(acq, link, Refusing(error)))
    good = await start(acq.send(link.qp, link.sg))
    link.take(len(full) + 1)
    await asyncio.gather(*full)
    await asyncio.wait([bad])
    raised = bad.exception()
    assert type(raised) is type(error)
    assert (raised.args, str(raised)) == (error.args, str(error))  # type: ignore[union-attr]
    assert vars(raised) == vars(error)
    assert (await good).ok
    assert outstanding(link.qp) == (0, 0)


@pytest.mark.link(max_send_wr=4)
async def test_a_cancelled_error_of_a_post_that_waited_for_room_is_its_tasks_alone(
    acq: AsyncCQ, link: Link
) -> None:
    """It is no Exception; the loop, or the task that made the room, must not get it."""
    full = await fill(acq, link)
    bad = asyncio.ensure_future(call(acq, link, Refusing(asyncio.CancelledError("mine"))))
    good = asyncio.ensure_future(acq.send(link.qp, link.sg))
    await tick()
    link.take(len(full) + 1)
    await asyncio.gather(*full)
    await asyncio.wait([bad])
    assert bad.cancelled()
    assert (await good).ok


@pytest.mark.link(max_send_wr=4)
async def test_what_the_device_refuses_later_has_its_errno_and_verb(
    acq: AsyncCQ, link: Link
) -> None:
    full = await fill(acq, link)
    waiting = [await start(acq.send(link.qp, link.sg)) for _ in range(3)]
    link.qp.modify(qp_state=QPState.ERR)
    await asyncio.wait([*full, *waiting])
    errors = [task.exception() for task in waiting]
    for error in errors:
        assert isinstance(error, VerbsError)
        assert (error.errno, error.verb) == (errno.EINVAL, "ibv_post_send")
        assert "is in ERR" in str(error)
    assert len(set(map(id, errors))) == 3, "each has its own"
    for task in full:
        task.exception()


@pytest.mark.link(recv=True)
async def test_of_two_failures_before_the_task_goes_on_it_gets_the_first(
    acq: AsyncCQ, link: Link
) -> None:
    task = await start(acq.recv(link.qp, link.into))
    acq._notify(OSError("the first"))
    acq._notify(OSError("the second"))
    with pytest.raises(OSError, match="the first"):
        await task


# ---- completion() ---------------------------------------------------------------------------


@pytest.mark.parametrize("wr_id", [0, 1 << 63, (1 << 64) - 1])
@pytest.mark.link(recv=True)
async def test_completion_takes_every_wr_id(acq: AsyncCQ, link: Link, wr_id: int) -> None:
    task = await start(acq.completion(wr_id))
    link.qp.post_recv(link.into, wr_id=wr_id)
    link.bring()
    assert (await task).wr_id == wr_id


class Unmade(AsyncCQ):
    """Its author forgot something."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda acq: acq.poll(),
        lambda acq: acq.wait(),
        lambda acq: acq.completion(1),
        lambda acq: acq.send(None, b""),
        lambda acq: acq.recv(None, b""),
        lambda acq: acq.scope(),
        lambda acq: acq.__anext__().send(None),
        lambda acq: acq._drain(),
        lambda acq: acq.cq,
        lambda acq: acq.stats,
    ],
)
def test_one_that_was_not_made_is_refused(call: Callable[[AsyncCQ], object]) -> None:
    acq = Unmade()
    with pytest.raises(RuntimeError, match=r"__init__\(\) was not called"):
        call(acq)
    assert "Unmade" in repr(acq) or "AsyncCQ" in repr(acq)


def test_one_that_was_not_made_can_be_closed(cq: CQ) -> None:
    acq = Unmade()
    acq.close()
    acq.close()
    assert acq.closed
    assert "Unmade" in repr(acq)
    with pytest.raises(RuntimeError, match="was made or closed before"):
        AsyncCQ.__init__(acq, cq)


async def test_what_an_unmade_one_lacks_is_what_its_block_raises() -> None:
    with pytest.raises(RuntimeError, match=r"__init__\(\) was not called"):
        async with Unmade() as acq:
            await acq.wait()


def test_one_whose_making_failed_midway_can_be_closed(
    ctx: Context, channel: CompletionChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cq = CQ(ctx, 4, channel=channel)
    acq = AsyncCQ.__new__(AsyncCQ)
    with monkeypatch.context() as m:
        m.setattr(Reader, "of", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            acq.__init__(cq)  # type: ignore[misc]
    acq.close()
    with contextlib.closing(AsyncCQ(cq)):
        assert repr(acq) == f"<AsyncCQ of {cq!r}, closed>"


@pytest.mark.link(recv=True)
async def test_a_call_that_is_awaited_as_it_is_dropped_is_known_until_it_goes(
    acq: AsyncCQ, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reports that it was never awaited can do so."""
    kept: list[Any] = []

    def awaits(unraisable: Any) -> None:
        kept.append(unraisable.object)
        kept[0].send(None)

    monkeypatch.setattr(sys, "unraisablehook", awaits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acq.completion(7)
    assert "waits" in repr(kept[0])
    assert acq._awaited == 1
    kept.clear()
    assert acq._awaited == 0
    link.qp.post_recv(link.into, wr_id=7)
    link.bring(1)
    assert (await acq.completion(7)).wr_id == 7
