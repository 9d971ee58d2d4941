# SPDX-License-Identifier: MIT
"""Another thread closes what a task is about to wait for, at each place where the task's own call
lets other code run: every such task gets ClosedError, on each event loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from flavors import FLAVORS, Flavor
from support import Link, MakeLink

from cqnotify import ClosedError
from cqnotify.aio import AsyncCQ

Act = Callable[[], object]

ON_TRIO = ["trio", "anyio on trio"]
assert set(ON_TRIO) < set(FLAVORS)


def in_thread(act: Act) -> None:
    """Let another thread do it, while this one is where it is."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


class Once:
    """Does it at the first call only, in another thread."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            in_thread(self.act)


class Number:
    """An argument whose conversion lets another thread run."""

    def __init__(self, value: int, meanwhile: Act) -> None:
        self.value = value
        self.meanwhile = meanwhile

    def __index__(self) -> int:
        self.meanwhile()
        return self.value


class Attached(AsyncCQ):
    """One whose reader has just joined the loop when other threads run."""

    meanwhile: Act

    def _attach(self) -> None:
        super()._attach()
        self.meanwhile()


class Polled(AsyncCQ):
    """One whose poll() lets other threads run."""

    meanwhile: Act

    def _leave_closed_loop(self) -> None:
        super()._leave_closed_loop()
        self.meanwhile()


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    return make_link(one_cq=True, max_send_wr=4)


def close_cq(link: Link) -> None:
    link.qp.close()
    link.a.scq.close()


ENDS: dict[str, Callable[[AsyncCQ, Link], object]] = {
    "AsyncCQ": lambda acq, link: acq.close(),
    "CQ": lambda acq, link: close_cq(link),
    "Context": lambda acq, link: link.a.ctx.close(),
}
QP_ENDS = {**ENDS, "QP": lambda acq, link: link.qp.close()}

CALLS: dict[str, Callable[[AsyncCQ, Link], Awaitable[Any]]] = {
    "wait": lambda acq, link: acq.wait(),
    "completion": lambda acq, link: acq.completion(0),
    "recv": lambda acq, link: acq.recv(link.qp, link.into),
    "send": lambda acq, link: acq.send(link.qp, link.sg),
}

# The number of each is converted in the task's first step.
CONVERTS: dict[str, Callable[[AsyncCQ, Link, Any], Awaitable[Any]]] = {
    "wait": lambda acq, link, n: acq.wait(n),
    "completion": lambda acq, link, n: acq.completion(n),
    "completion of a QP": lambda acq, link, n: acq.completion(n, qp=link.qp),
    "recv": lambda acq, link, n: acq.recv(link.qp, link.into, wr_id=n),
    "send": lambda acq, link, n: acq.send(link.qp, link.sg, imm_data=n),
    "write": lambda acq, link, n: acq.write(link.qp, link.sg, n, link.b.mr.rkey),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", CONVERTS)
async def test_closed_while_an_argument_is_converted(
    link: Link, on: Flavor, call: str, end: str
) -> None:
    acq = AsyncCQ(link.a.scq)
    meanwhile = Once(lambda: QP_ENDS[end](acq, link))
    with pytest.raises(ClosedError):
        await CONVERTS[call](acq, link, Number(1, meanwhile))
    assert meanwhile.calls == 1
    acq.close()


@pytest.mark.parametrize("call", ["completion of a QP", "recv", "send", "write"])
async def test_the_qp_is_closed_while_an_argument_is_converted(
    link: Link, on: Flavor, call: str
) -> None:
    async with AsyncCQ(link.a.scq) as acq:
        with pytest.raises(ClosedError):
            await CONVERTS[call](acq, link, Number(1, Once(link.qp.close)))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", CALLS)
async def test_closed_when_the_loop_has_begun_to_read_the_channel(
    link: Link, on: Flavor, call: str, end: str
) -> None:
    acq = Attached(link.a.scq)
    acq.meanwhile = Once(lambda: QP_ENDS[end](acq, link))
    with pytest.raises(ClosedError):
        await CALLS[call](acq, link)
    assert acq.meanwhile.calls == 1
    acq.close()


@pytest.mark.parametrize("on", ON_TRIO, indirect=True)
@pytest.mark.parametrize(
    ("call", "end"),
    [*itertools.product(["wait", "completion"], ENDS), *itertools.product(["recv"], QP_ENDS)],
)
async def test_closed_while_trio_puts_the_task_to_sleep(
    link: Link, on: Flavor, monkeypatch: pytest.MonkeyPatch, call: str, end: str
) -> None:
    acq = AsyncCQ(link.a.scq)
    event_wait, meanwhile = trio.Event.wait, Once(lambda: QP_ENDS[end](acq, link))

    async def wait(event: trio.Event) -> None:
        meanwhile()
        await event_wait(event)

    monkeypatch.setattr(trio.Event, "wait", wait)
    with pytest.raises(ClosedError):
        await CALLS[call](acq, link)
    assert meanwhile.calls >= 1
    acq.close()


@pytest.mark.parametrize("on", ON_TRIO, indirect=True)
async def test_another_thread_polls_while_trio_puts_the_task_to_sleep(
    link: Link, on: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its poll() finds the completion that the task is about to sleep for."""

    def act() -> None:
        link.bring()
        assert acq.poll() == []

    event_wait, meanwhile = trio.Event.wait, Once(act)

    async def wait(event: trio.Event) -> None:
        meanwhile()
        await event_wait(event)

    monkeypatch.setattr(trio.Event, "wait", wait)
    async with AsyncCQ(link.a.scq) as acq:
        assert (await acq.recv(link.qp, link.into)).ok
    assert meanwhile.calls == 1


@pytest.mark.parametrize("end", ENDS)
async def test_closed_while_poll_asks_for_the_loop(link: Link, on: Flavor, end: str) -> None:
    acq = Polled(link.a.scq)
    acq.meanwhile = Once(lambda: QP_ENDS[end](acq, link))
    async with on.tasks() as start:
        waiting = start(lambda: acq.recv(link.qp, link.into))
        await on.tick()
        if end == "AsyncCQ":
            assert acq.poll() == []
        else:
            with pytest.raises(ClosedError):
                acq.poll()
        with pytest.raises(ClosedError):
            await waiting.result()
    assert acq.meanwhile.calls == 1
    acq.close()


async def test_the_qp_is_being_closed_while_operations_wait_for_room(
    link: Link, on: Flavor
) -> None:
    """Completions have made room when the loop looks, and another thread is destroying the QP: none
    of those that waited for room is posted any more."""
    depth = link.qp.max_send_wr
    link.take(depth)
    async with AsyncCQ(link.a.scq) as acq, on.tasks() as start:
        sends = [start(lambda: acq.send(link.qp, link.sg)) for _ in range(3 * depth)]
        await on.tick()
        closing = threading.Thread(target=link.qp.close)
        closing.start()
        while closing.is_alive():
            await on.tick()
        closed = 0
        for send in sends:
            try:
                assert (await send.result()).ok
            except ClosedError:
                closed += 1
        assert closed >= 2 * depth
