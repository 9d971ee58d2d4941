# SPDX-License-Identifier: MIT
"""Whatever state a request is in, whatever happens to it: it ends as it should, or goes on.

Each cell is one request in one state, and one event. The request returns or raises what the table
says, nothing hangs, the AsyncCQ serves others where it can, and nothing is kept when all is closed.
"""

from __future__ import annotations

import asyncio
import gc
import select
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from support import (
    DEADLINE,
    SOLICITED,
    Link,
    Waiter,
    beside,
    cancel,
    closes,
    eventually,
    fill,
    ids,
    in_child,
    open_fds,
    outstanding,
    start,
    take_all,
    tick,
)

from cqnotify import (
    MR,
    AsyncEventError,
    ClosedError,
    CompletionError,
    Context,
    QPState,
    VerbsError,
    WorkCompletion,
)
from cqnotify.aio import AsyncCQ

ID = 3


class Memory(bytearray):
    """What an MR pins, and with it whatever keeps the MR."""


class UnderTest:
    """One request under test, on the QP of `link`; `side` is another one on the same CQ."""

    def __init__(self, ctx: Context, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.fds = open_fds()
        self.ctx = ctx
        self.new_loop = new_loop
        self.loop = new_loop()
        self.link = Link(ctx, one_cq=True, max_send_wr=4, max_recv_wr=4, cqe=31)
        self.side = beside(self.link, max_send_wr=128, max_recv_wr=16)
        memory = Memory(64)
        self.mr = MR(self.link.a.pd, memory)
        self.cq = self.link.a.scq
        self.acq = AsyncCQ(self.cq)
        self.refs = [weakref.ref(memory), weakref.ref(self.acq)]
        self.fillers: list[asyncio.Future[Any]] = []
        self.task: Any = None
        self.outcome: list[Any] = []  # what the request returned or raised

    def do(self, call: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(call, DEADLINE))

    @staticmethod
    async def record(call: Awaitable[Any], outcome: list[Any]) -> None:
        try:
            outcome.append(await call)
        except GeneratorExit:  # it was forgotten
            raise
        except BaseException as e:
            outcome.append(e.with_traceback(None))

    def begin(self, call: Coroutine[Any, Any, Any]) -> None:
        async def begin() -> None:
            self.task = asyncio.ensure_future(self.record(call, self.outcome))
            await tick()

        self.do(begin())

    def start(self, call: Coroutine[Any, Any, Any]) -> None:
        self.begin(call)
        assert self.outcome == [], "it sleeps"

    def wait_for_the_outcome(self) -> Any:
        self.do(eventually(lambda: bool(self.outcome)))
        return self.outcome[0]

    def close(self) -> None:
        """Everything; a task that is left ends with it. Closing twice is fine."""
        self.ctx.close()
        if self.loop.is_closed():
            return
        self.acq.close()
        tasks = [task for task in (self.task, *self.fillers) if task is not None]
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=DEADLINE))
        self.loop.close()
        assert all(task.done() for task in tasks), tasks
        for task in tasks:
            assert task.cancelled() or task.exception() is not self

    def drop(self) -> None:
        """All that it has."""
        del self.link, self.side, self.mr, self.cq, self.acq, self.task
        self.fillers.clear()
        self.outcome.clear()


# ---- the states -----------------------------------------------------------------------------


def send(w: UnderTest) -> Coroutine[Any, Any, Any]:
    return w.acq.send(w.link.qp, w.mr, wr_id=ID)


def recv(w: UnderTest) -> Coroutine[Any, Any, Any]:
    return w.acq.recv(w.link.qp, w.mr, wr_id=ID)


def posted_send(w: UnderTest) -> None:
    w.start(send(w))
    assert outstanding(w.link.qp) == (1, 0)


def posted_recv(w: UnderTest) -> None:
    w.start(recv(w))
    assert outstanding(w.link.qp) == (0, 1)


def waiting_for_room(w: UnderTest) -> None:
    w.fillers = w.do(fill(w.acq, w.link))
    w.start(send(w))
    assert outstanding(w.link.qp) == (w.link.qp.max_send_wr, 0)


def complete(w: UnderTest) -> None:
    posted_recv(w)
    w.link.bring()
    assert w.acq.poll() == []  # it is the task's, which has not run
    assert outstanding(w.link.qp) == (0, 0)
    assert w.outcome == []


def in_completion_of_the_qp(w: UnderTest) -> None:
    w.link.qp.post_recv(w.mr, wr_id=ID)
    w.start(w.acq.completion(ID, qp=w.link.qp))


def abandon(w: UnderTest) -> None:
    w.task.cancel()
    assert isinstance(w.wait_for_the_outcome(), asyncio.CancelledError)
    w.outcome.clear()
    w.task = None


STATES: dict[str, Callable[[UnderTest], None]] = {
    "posted send": posted_send,
    "posted recv": posted_recv,
    "waiting for room": waiting_for_room,
    "complete": complete,
    "in wait": lambda w: w.start(w.acq.wait()),
    "in wait for solicited ones": lambda w: w.start(w.acq.wait(solicited_only=True)),
    "in completion": lambda w: w.start(w.acq.completion(ID)),
    "in completion of the QP": in_completion_of_the_qp,
}


def finish(w: UnderTest, state: str) -> None:
    """Let it complete."""
    if "send" in state:
        w.link.take()
    elif "room" in state:
        w.link.take(w.link.qp.max_send_wr + 1)
    elif "recv" in state or "of the QP" in state:
        w.link.bring()
    elif state != "complete":
        w.side.qp.post_recv(w.side.into, wr_id=ID)
        w.side.bring(flags=SOLICITED)


# ---- the events -----------------------------------------------------------------------------


def cq_closed(w: UnderTest) -> None:
    for link in (w.link, w.side):
        link.qp.close()
    w.cq.close()


def channel_closed(w: UnderTest) -> None:
    cq_closed(w)
    w.link.a.channel.close()


def loop_closed(w: UnderTest) -> None:
    for task in (w.task, *w.fillers):
        if task is not None:
            task._log_destroy_pending = False  # on purpose
    w.loop.close()
    w.loop = w.new_loop()
    w.task = None
    w.fillers.clear()


def device_failed(w: UnderTest) -> None:
    """The CQ overflows, by completions of the other QP: the device reports CQ_ERR."""
    take_all(w.ctx)
    n = w.cq.cqe + 1
    w.side.take(n)
    for _ in range(n):
        w.side.qp.post_send(w.side.sg)
    assert select.select([w.ctx.async_fd], [], [], DEADLINE)[0]


def collected(w: UnderTest) -> None:
    """Nothing but the AsyncCQ and the loop knows the task."""
    w.task = None
    w.fillers.clear()
    gc.collect()


def forked(w: UnderTest) -> None:
    """The child closes, drops and waits for what it has; and nothing of it is the parent's."""

    def child() -> None:
        collected(w)
        w.acq.close()
        w.ctx.close()
        gc.collect()

    assert in_child(child) == 0


Event = Callable[[UnderTest], object]
EVENTS: dict[str, Event] = {
    "task cancelled": lambda w: w.task.cancel(),
    "AsyncCQ closed": lambda w: w.acq.close(),
    "QP closed": lambda w: w.link.qp.close(),
    "QP reset": lambda w: w.link.qp.modify(qp_state=QPState.RESET),
    "QP to ERR": lambda w: w.link.qp.modify(qp_state=QPState.ERR),
    "CQ closed": cq_closed,
    "channel closed": channel_closed,
    "context closed": lambda w: w.ctx.close(),
    "loop closed": loop_closed,
    "device failed": device_failed,
    "forked": forked,
    "collected": collected,
}


def in_a_thread(event: Event) -> Event:
    return lambda w: Waiter(lambda: event(w)).join()


EVENTS |= {
    f"{name} in a thread": in_a_thread(EVENTS[name])
    for name in ("AsyncCQ closed", "QP closed", "QP to ERR", "context closed")
}

# ---- the table ------------------------------------------------------------------------------


class Outcome:
    """What the request returns or raises, and whether something must complete it first."""

    def __init__(self, kind: Any, text: str = "", *, finish: bool = False) -> None:
        self.kind, self.text, self.finish = kind, text, finish

    def check(self, outcome: Any) -> None:
        if self.kind is None:
            if isinstance(outcome, list):
                (outcome,) = outcome
            assert isinstance(outcome, WorkCompletion), outcome
            assert (outcome.wr_id, outcome.status.name) == (ID, self.text or "SUCCESS")
        else:
            assert isinstance(outcome, self.kind), outcome
            assert self.text in str(outcome)


GONE = None  # its loop was closed: it neither returns nor raises
SERVED = Outcome(None, finish=True)
HAS_IT = Outcome(None)
CANCELLED = Outcome(asyncio.CancelledError)
CLOSED = Outcome(ClosedError, "closed")
WAS_RESET = Outcome(ClosedError, "was reset")
FLUSHED = Outcome(CompletionError, "WR_FLUSH_ERR")
RETURNS_FLUSHED = Outcome(None, "WR_FLUSH_ERR")
REFUSED = Outcome(VerbsError, "is in ERR")
TOLD = Outcome(AsyncEventError, "CQ_ERR")

# What becomes of a request that was posted. The rest closes something.
POSTED: dict[str, Outcome | None] = dict.fromkeys(EVENTS, CLOSED) | {
    "task cancelled": CANCELLED,
    "QP reset": WAS_RESET,
    "QP to ERR": FLUSHED,
    "QP to ERR in a thread": FLUSHED,
    "loop closed": GONE,
    "device failed": TOLD,
    "forked": SERVED,
    "collected": SERVED,
}
TO_ERR = ["QP to ERR", "QP to ERR in a thread"]
ANY_QP = dict.fromkeys(["QP closed", "QP closed in a thread", "QP reset", *TO_ERR], SERVED)
OTHERWISE: dict[str, dict[str, Outcome]] = {
    "waiting for room": dict.fromkeys(TO_ERR, REFUSED),
    "complete": dict.fromkeys(EVENTS.keys() - {"task cancelled", "loop closed"}, HAS_IT),
    # A completion of the CQ that has failed can be there first.
    "in wait": {**ANY_QP, "device failed": Outcome((AsyncEventError, list))},
    "in wait for solicited ones": ANY_QP,
    "in completion": ANY_QP,
    "in completion of the QP": dict.fromkeys(TO_ERR, RETURNS_FLUSHED),
}


@pytest.fixture
def w(ctx: Context, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[UnderTest]:
    gc.collect()
    world = UnderTest(ctx, new_loop)
    yield world
    world.close()


def serves(w: UnderTest) -> None:
    """Others are woken: for messages, to be waited for and received."""

    async def others() -> None:
        for call in (lambda: w.acq.completion(8), lambda: w.acq.recv(w.side.qp, w.side.into)):
            task = await start(call())
            if not w.side.qp.outstanding_recvs:
                w.side.qp.post_recv(w.side.into, wr_id=8)
            w.side.bring()
            await task

    w.do(others())


def is_told_at_last(w: UnderTest) -> None:
    """Nobody was told of the failure yet."""

    async def ask() -> None:
        while True:
            await w.acq.completion(0)  # the other QP's, some of which are lost

    with pytest.raises(AsyncEventError):
        w.do(ask())


def check_nothing_is_kept(w: UnderTest) -> None:
    """When all is closed, and what this test has is dropped."""
    w.close()
    w.drop()
    gc.collect()
    gc.collect()
    assert [ref() for ref in w.refs] == [None, None]
    assert open_fds() <= w.fds


GOES_ON = ["task cancelled", "QP closed", "QP reset", "QP to ERR"]
GOES_ON += ["device failed", "forked", "collected"]


@pytest.mark.not_on_iwarp(
    "sends do not wait, closing a QP flushes its receives", only=r"posted|closed|solicited"
)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_a_request_ends_as_it_should(w: UnderTest, state: str, event: str) -> None:
    STATES[state](w)
    EVENTS[event](w)
    w.do(tick())
    outcome = OTHERWISE.get(state, {}).get(event, POSTED[event])
    if outcome is GONE:
        serves(w)
        finish(w, state)
        w.do(tick())
        assert w.outcome == []
    else:
        if outcome.finish:
            assert w.outcome == [], "it sleeps on"
            finish(w, state)
        outcome.check(w.wait_for_the_outcome())
        if event == "device failed" and not isinstance(w.outcome[0], AsyncEventError):
            is_told_at_last(w)
        if event in GOES_ON:
            serves(w)
        assert len(w.outcome) == 1
    check_nothing_is_kept(w)


# ---- one that was not started ---------------------------------------------------------------

IN_RESET = Outcome(VerbsError, "is in RESET")
NEW: dict[str, Outcome] = {
    "AsyncCQ closed": CLOSED,
    "QP closed": CLOSED,
    "QP reset": IN_RESET,
    "QP to ERR": REFUSED,
    "CQ closed": CLOSED,
    "channel closed": CLOSED,
    "context closed": CLOSED,
    "loop closed": SERVED,
    "device failed": TOLD,
    "forked": SERVED,
    "collected": SERVED,
}


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("what", [send, recv])
@pytest.mark.parametrize("event", NEW)
def test_one_that_was_not_started_meets_what_is_there_when_it_is(
    w: UnderTest, what: Callable[[UnderTest], Coroutine[Any, Any, Any]], event: str
) -> None:
    calls = [what(w)]
    EVENTS[event](w)
    if not w.link.qp.closed:
        assert outstanding(w.link.qp) == (0, 0)
    w.begin(calls.pop())
    outcome = NEW[event]
    if outcome.finish:
        assert w.outcome == [], "it sleeps"
        finish(w, what.__name__)
    outcome.check(w.wait_for_the_outcome())
    if outcome is IN_RESET or outcome is REFUSED:
        assert outstanding(w.link.qp) == (0, 0)
        assert closes(w.mr)
    check_nothing_is_kept(w)


@pytest.mark.parametrize("what", [send, recv])
def test_one_whose_task_is_cancelled_before_its_first_step_posts_nothing(
    w: UnderTest, what: Callable[[UnderTest], Coroutine[Any, Any, Any]]
) -> None:
    async def begin() -> None:
        await cancel(asyncio.ensure_future(what(w)))

    w.do(begin())
    assert outstanding(w.link.qp) == (0, 0)
    assert closes(w.mr)
    check_nothing_is_kept(w)


# ---- one whose task gave up -----------------------------------------------------------------

PINNED = ["AsyncCQ closed", "loop closed", "device failed", "forked", "collected"]
ENDED = ["QP closed", "QP reset", *TO_ERR]
ALL_CLOSED = ["CQ closed", "channel closed", "context closed"]


def drained(w: UnderTest) -> None:
    """Whoever polls, or nobody, nothing is outstanding then."""

    async def until() -> None:
        while not w.link.qp.closed and outstanding(w.link.qp) != (0, 0):
            w.cq.poll()
            await asyncio.sleep(0.001)

    w.do(until())


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits", only=r"send")
@pytest.mark.parametrize("event", [*PINNED, *ENDED, *ALL_CLOSED])
@pytest.mark.parametrize("state", ["posted send", "posted recv"])
def test_one_whose_task_gave_up_keeps_its_memory_as_long_as_the_device_may_use_it(
    w: UnderTest, state: str, event: str
) -> None:
    STATES[state](w)
    abandon(w)
    assert not closes(w.mr)
    EVENTS[event](w)
    w.do(tick())
    if event in PINNED:
        assert not closes(w.mr)
        finish(w, state)
        if event != "AsyncCQ closed":
            if event == "device failed":
                is_told_at_last(w)
            assert w.do(w.acq.completion(ID)).ok
    if event not in ALL_CLOSED:
        drained(w)
    assert closes(w.mr)
    if event in GOES_ON:
        serves(w)
    check_nothing_is_kept(w)


@pytest.mark.parametrize("event", [*PINNED, *ENDED])
def test_what_one_had_got_whose_task_gave_up_is_still_there(w: UnderTest, event: str) -> None:
    complete(w)
    abandon(w)
    EVENTS[event](w)
    w.do(tick())
    if event == "AsyncCQ closed":
        assert ids(w.acq.poll()) == [ID]
    else:
        if event == "device failed":
            is_told_at_last(w)
        assert w.do(w.acq.completion(ID)).wr_id == ID
        serves(w)
    check_nothing_is_kept(w)
