# SPDX-License-Identifier: MIT
"""AsyncCQ: who waits for which completion, and when it is safe to sleep.

Two rules make lost wake-ups impossible:

*Before anybody sleeps*, the CQ is armed, and polled after that; only if that poll finds nothing,
and nothing is queued, may he sleep. That is CQ.safe_to_sleep().

*Completions are put down before any task is woken*: those that somebody claims by their wr_id into
his claim, all others into the queue. A wake-up carries no completion, it only says "look". So a
task that is cancelled at the very moment it is woken loses nothing: on its way out it puts back
what it was given and wakes the next one, or sees to it that the CQ is armed for him.

Mostly one task waits, and for whatever comes. As long as nothing else is going on (`_quick`) it is
the sleeper of the CQ, see CQ.sleep(), which keeps these rules: it looks, arms and looks, and what
comes stays in the CQ until the task takes it. As soon as there is more to do (_slow_down) that task
is one of the waiters here, in its place; when all that is over (_speed_up) the next one sleeps in
the CQ again.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from .._core import CQ, AsyncEvent, AsyncEventError, ClosedError, VerbsError, WorkCompletion
from .._core import QP as CoreQP
from .._core import SRQ as CoreSRQ
from ..enums import QPState
from ..qp import QP
from . import _loops, _reader
from ._batches import Batches
from ._claims import RECV, SEND, Claim, Claims, Operation, serials
from ._failures import failure, fresh, same
from ._flow import Flow, is_outstanding
from ._loops import Loop, Wakeup
from ._posting import Posting, check_wr_id
from ._reader import Reader, weak_callback
from ._scope import Scope
from ._stats import AsyncCQStats

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")
_POLL_BATCH: Final = 16  # a poll costs the same for one as for a few
_DRAIN_BATCHES: Final = 4  # then the loop gets its turn
_running_loop: Final = asyncio._get_running_loop
_STREAK: Final = 64  # completions that come without a sleep; then the loop gets its turn, too


class AsyncCQ(Posting):
    """Awaits the completions of one CQ, in asyncio (uvloop, too), trio or anyio.

    The CQ must have a channel, and can have one open AsyncCQ at a time. While it has, leave arming
    and acknowledging the CQ and reading the channel's events to it; CQ.poll() is its poll().
    Closing the AsyncCQ leaves the CQ open. It belongs to the thread of its event loop.

    Raises ValueError for a CQ without a channel or with an AsyncCQ, ClosedError for a closed one.
    """

    __slots__ = (
        "__weakref__",
        "_claims",
        "_closed",
        "_cq",
        "_error",
        "_flows",
        "_flushing",
        "_looks_later",
        "_max_per_wake",
        "_on_cq_closed",
        "_quick",
        "_reader",
        "_ready",
        "_reports",
        "_streak",
        "_waiters",
        "_wakeups",
    )

    def __init__(self, cq: CQ) -> None:
        if not isinstance(cq, CQ):
            raise TypeError(f"cq must be a CQ, not {type(cq).__name__}")
        if cq.closed:
            raise ClosedError("this CQ is closed")
        channel = cq.channel
        if channel is None:
            raise ValueError("this CQ has no completion channel: nothing can wake a waiter")
        self._cq = cq
        self._ready: deque[WorkCompletion] = deque()
        self._waiters: deque[Wakeup] = deque()  # who is in wait()
        self._claims = Claims()
        self._flows: dict[int, Flow] = {}  # by QP number
        self._flushing: weakref.WeakSet[CoreQP] = weakref.WeakSet()  # moved to an error state
        # The loop of asyncio that the reader is in, as long as nothing is going on but that one
        # task waits for any completions. See wait() and _slow_down().
        self._quick: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._error: Exception | None = None  # for good
        self._reports: list[AsyncEvent] = []  # failures of which nobody was told
        self._looks_later = False
        self._streak = 0
        self._wakeups = 0
        self._max_per_wake = 0
        self._reader = Reader.of(channel)
        self._on_cq_closed = weak_callback(self._cq_closed)
        cq.set_consumer(self)  # from here on other threads can come in
        self._reader.register(self)
        cq.add_close_callback(self._on_cq_closed)

    @property
    def cq(self) -> CQ:
        """The CQ that it was made for."""
        return self._cq

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return self._closed

    @property
    def stats(self) -> AsyncCQStats:
        """The counters of the CQ, which begin with the CQ, and those of the tasks here."""
        return AsyncCQStats(*self._cq.stats, *self._count_woken())

    async def wait(
        self, max_entries: int = 16, *, spin: float = 0.0, solicited_only: bool = False
    ) -> list[WorkCompletion]:
        """Return the next completions, at least one and at most `max_entries`.

        Those that a task awaits by completion(), send() and so on are not among them. Completions
        that are there already are returned at once. Otherwise it polls for up to `spin` seconds
        without the GIL (the loop stands still meanwhile), and then sleeps until the CQ raises an
        event. With `solicited_only` only a solicited completion wakes it, together with all that
        came before; some devices (rxe among them) count a failed one as unsolicited, so such a
        waiter can sleep through the death of its QP, unless the program itself moved it to ERR. It
        is woken by others, too, while some other task waits for any completion.

        Several tasks may wait: they are served in the order in which they came. It can be cancelled
        and put under a timeout: a completion that nobody took stays queued.

        Raises ClosedError when this, the CQ or the channel is closed, also while waiting and by
        another thread; AsyncEventError when the device reports a failure after which completions
        may be missing, once, and when it is a fatal one from then on; RuntimeError while another
        event loop that is not closed uses the channel, VerbsError for what the device refuses.
        Wraps ibv_req_notify_cq(3), ibv_get_cq_event(3) and ibv_poll_cq(3).
        """
        if max_entries is not _POLL_BATCH:
            _check_max_entries(max_entries)
        # If nothing else is going on, the CQ itself sees to the one that waits.
        loop = self._quick
        if loop is None or spin or self._streak >= _STREAK or loop is not _running_loop():
            return await self._wait_in_line(max_entries, spin, solicited_only)
        found = waiter = None
        try:
            got = self._cq.sleep(loop, max_entries, solicited_only)
            if isinstance(got, list):
                found = got
            else:
                waiter = got
        except BaseException as e:
            self._lost_sleeper()
            if isinstance(e, (VerbsError, ClosedError)):
                self._fail(e)
            raise
        if found is not None:
            self._streak += len(found)
            return found
        if waiter is None:
            return await self._wait_in_line(max_entries, spin, solicited_only)
        try:
            if self._quick is None:  # a signal's handler can have closed it, or anything
                if self._cq.sleeper is waiter:
                    self._stand_in_line()
                self._check()
                self._serve()
            if wcs := await waiter:
                self._streak = 0
                return wcs
            # It was told, or others took them.
            self._slow_down()
            if waiter not in self._waiters:
                self._waiters.append(waiter)
            return await self._sleep(waiter, True)
        except BaseException:
            self._slow_down()
            self._keep_report(waiter.error)
            raise
        finally:
            if self._quick is None:  # it stood in line with others
                self._leave(waiter)

    async def completion(self, wr_id: int, *, qp: QP | None = None) -> WorkCompletion:
        """Return the completion of this work request, whatever its status; leave all others.

        For work requests that were posted with QP.post_send() and post_recv(). With `qp` only those
        of that QP count. It may be there already, and goes before wait(). Of several tasks that
        await the same the first one gets it.

        Errors and cancellation are as for wait(), and with `qp` it is ClosedError, too, when that
        QP is closed or reset. Wraps the same verbs.
        """
        if not 0 <= wr_id < 1 << 64:
            raise ValueError(f"wr_id is {wr_id}: it must be 0 to 2**64 - 1")
        if qp is not None:
            self._check_qp(qp, SEND, RECV)
        loop = self._begin(qp)
        self._slow_down()
        self._look_once()
        claim = Claim(wr_id, None if qp is None else self._flow(qp))
        if not self._deliver_ready(claim):
            self._claims.add(claim)
        return await self._outcome(claim, loop)

    def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[WorkCompletion]:
        """Return the completions that are there, without waiting; those that tasks wait for go to
        them, and while one is in wait() all others do.

        After close() it returns what had been taken from the CQ and not been handed out by then,
        and raises ClosedError when nothing is left. It may be called from other threads, as
        CQ.poll(), which comes here. Wraps ibv_poll_cq(3).
        """
        _check_max_entries(max_entries)
        if self._reader.is_elsewhere() and not self._closed:
            return self._poll_elsewhere(max_entries, spin)
        self._reader.leave_closed_loop()
        self._slow_down()
        if self._waiters and not self._closed:
            self._look_once()
            self._serve()
            return []
        if not self._ready:
            self._check()
            wcs = self._cq.take(max(max_entries, _POLL_BATCH), spin=spin)
            if self._reader.is_elsewhere():  # meanwhile a loop has begun to wait, in its thread
                self._reader.in_loop(lambda: self._put_and_serve(wcs))
                return []
            self._put(wcs)
        return self._take(max_entries)

    def batches(
        self, max_entries: int = 16, *, spin: float = 0.0, solicited_only: bool = False
    ) -> Batches:
        """Iterate over lists of completions: `async for wcs in acq.batches()`. See wait()."""
        return Batches(self, max_entries, spin, solicited_only)

    def scope(self) -> Scope:
        """A block that ends when everything that was posted inside has completed or failed.

        `async with acq.scope(): ...` counts what send(), recv() and so on of this AsyncCQ post in
        the block and in tasks that are started in it, also if they were cancelled; nothing of it
        pins memory after the block. A cancellation does not shorten the wait at the end of the
        block, it is raised after it: to end a receive that nothing comes for, close its QP or move
        it to ERR. Raises ClosedError or AsyncEventError where completions will never come.
        """
        return Scope(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkCompletion:
        return (await self._next_batch(1, 0.0, False))[0]

    def close(self) -> None:
        """Stop waiting: who waits gets ClosedError, `async for` ends. Closing twice is fine.

        The CQ stays open, its events are acknowledged. It may be called from other threads.
        Wraps ibv_ack_cq_events(3).
        """
        with _reader.lock:  # the consumer after this one may be another's
            counted = self._count_woken()
            if self._closed:
                return
            with contextlib.suppress(ClosedError):
                self._cq.set_consumer(None)  # first: who polls the CQ must not find us closed
            self._closed = True
            self._wakeups, self._max_per_wake = counted
            self._quick = None
            self._stand_in_line()  # at once: so may the sleeper
            self._cq.remove_close_callback(self._on_cq_closed)
        if self._reader.is_elsewhere():
            self._reader.in_loop(self._end)
        else:
            self._end()

    def _end(self) -> None:
        """The part of close() that belongs to the loop's thread."""
        self._reader.unregister(self)
        for flow in list(self._flows.values()):
            flow.release()
        self._tell(ClosedError("this AsyncCQ is closed"))

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what the tasks do ----

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("this AsyncCQ is closed")
        if self._error is not None:
            raise fresh(self._error)

    def _begin(self, qp: QP | None = None) -> Loop:
        """At the start of each call that may wait, for a completion of `qp` or of any QP."""
        self._check()
        loop = self._reader.attach()
        if self._closed:  # meanwhile, by another thread, which may have found no loop to tell
            self._reader.unregister(self)
            self._check()
        for event in self._reports:
            if qp is None or event.qp is None or event.qp is qp:
                self._reports.remove(event)
                raise failure(event)
        return loop

    async def _let_others_run(self) -> None:
        """Who never has to sleep does so here, where he has his place and nobody overtakes him."""
        if self._streak >= _STREAK:
            self._streak = 0
            await _loops.pause()

    async def _wait_in_line(
        self, max_entries: int, spin: float, solicited_only: bool
    ) -> list[WorkCompletion]:
        loop = self._begin()
        self._slow_down()
        found = not self._waiters and self._look(max_entries, spin)
        if found and self._streak < _STREAK and (wcs := self._take(max_entries)):
            self._streak += len(wcs)
            self._speed_up(loop)
            return wcs
        self._check()  # a signal's handler can have closed it while it spun
        waiter = loop.wakeup(max_entries, solicited_only)
        self._waiters.append(waiter)
        try:
            return await self._sleep(waiter)
        except BaseException:
            self._keep_report(waiter.error)
            raise
        finally:
            self._leave(waiter)
            if not self._waiters:
                self._speed_up(loop)

    async def _sleep(self, waiter: Wakeup, slept: bool = False) -> list[WorkCompletion]:
        while True:
            self._serve()
            slept = slept or not waiter.done()
            await self._let_others_run()
            await waiter
            if waiter.error is not None:
                error, waiter.error = waiter.error, None
                raise fresh(error)
            if wcs := self._take(waiter.max_entries):
                if slept:
                    self._count_wakeup(len(wcs))
                else:
                    self._streak += len(wcs)
                return wcs
            self._check()
            waiter.again()

    def _leave(self, waiter: Wakeup) -> None:
        """At the end of wait(), served or cancelled."""
        with contextlib.suppress(ValueError):  # forgotten already: its loop was closed
            self._waiters.remove(waiter)
        self._serve()  # the baton goes on

    def _speed_up(self, loop: Loop) -> None:
        """If nothing is going on any more but wait()."""
        special = self._ready or self._flows or self._claims.by_id or self._flushing
        if not (special or self._reports or self._closed or self._error is not None):
            self._quick = loop.asyncio

    def _slow_down(self) -> None:
        """Something else is going on: from now on the events come to on_event(), and who waits
        is one of the waiters."""
        self._quick = None
        if not self._closed:
            self._stand_in_line()

    def _stand_in_line(self) -> None:
        if (sleeper := self._cq.forget_sleeper()) is not None:
            self._waiters.appendleft(sleeper)
            self._anchor()

    def _lost_sleeper(self) -> None:
        """A signal's handler has raised when it was made: then nobody will await it."""
        sleeper = self._cq.sleeper
        if sleeper is not None and not sleeper.awaited:
            self._cq.forget_sleeper()

    async def _outcome(self, claim: Claim, loop: Loop) -> WorkCompletion:
        """Sleep until the claim is served."""
        try:
            self._serve()
            if claim.done:
                self._streak += 1
                await self._let_others_run()
            else:
                claim.wakeup = loop.wakeup()
                await claim.wakeup
                self._count_wakeup(1)
        except BaseException:
            self._give_up(claim)
            raise
        self._anchor()
        if claim.error is not None:
            raise fresh(claim.error)
        assert claim.wc is not None
        return claim.wc

    def _give_up(self, claim: Claim) -> None:
        """Its task was cancelled."""
        claim.abandoned = True
        if isinstance(claim, Operation):
            claim.flow.withdraw(claim)
        else:
            self._claims.discard(claim)
        if claim.wc is not None and claim.keep and not self._claims.give(claim.wc):
            self._slow_down()
            self._ready.appendleft(claim.wc)
        self._keep_report(claim.error)
        self._serve()

    async def _perform(
        self, qp: QP, queue: int, post: Callable[[int], None], wr_id: int | None
    ) -> WorkCompletion:
        check_wr_id(wr_id)
        self._check_qp(qp, queue)
        loop = self._begin(qp)
        op = Operation(self._flow(qp), qp, queue, post, wr_id, Scope.current(self))
        op.flow.submit(op)
        wc = await self._outcome(op, loop)
        wc.raise_for_status()
        return wc

    async def _next_batch(
        self, max_entries: int, spin: float, solicited_only: bool
    ) -> list[WorkCompletion]:
        """For iterators: close() ends them."""
        try:
            return await self.wait(max_entries, spin=spin, solicited_only=solicited_only)
        except ClosedError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    def _prepare_to_sleep(self) -> Loop:
        """For a scope: what it waits for may have come when this returns."""
        loop = self._reader.attach()
        self._serve()
        return loop

    def _take(self, max_entries: int) -> list[WorkCompletion]:
        ready = self._ready
        wcs: list[WorkCompletion] = []
        try:
            while ready and len(wcs) < max_entries:
                wcs.append(ready.popleft())
        except IndexError:
            pass  # another thread was quicker
        return wcs

    def _deliver_ready(self, claim: Claim) -> bool:
        for wc in _snapshot(self._ready):
            if wc.wr_id == claim.wr_id and claim.fits(wc):
                with contextlib.suppress(ValueError):  # another thread was quicker
                    self._ready.remove(wc)
                    return claim.deliver(wc)
        return False

    def _count_woken(self) -> tuple[int, int]:
        """Also those whom the CQ woke, which counts them for its consumer."""
        woken, most = (0, 0) if self._closed else self._cq.woken
        return self._wakeups + woken, max(self._max_per_wake, most)

    def _count_wakeup(self, completions: int) -> None:
        self._streak = 0
        self._wakeups += 1
        self._max_per_wake = max(self._max_per_wake, completions)

    # ---- where completions go ----

    def _look(self, max_entries: int, spin: float = 0.0) -> bool:
        """Is one there that nobody claims? Asks the CQ only when none is queued."""
        if not self._ready:
            self._look_once(max(max_entries, _POLL_BATCH), spin)
        return bool(self._ready)

    def _look_once(self, max_entries: int = _POLL_BATCH, spin: float = 0.0) -> int:
        wcs = self._cq.take(max_entries, spin=spin)
        self._put(wcs)
        return len(wcs)

    def _put(self, wcs: list[WorkCompletion]) -> None:
        """Each to who claims it, or else into the queue; then post what there is room for now."""
        self._slow_down()
        if not self._claims.by_id and not self._flows:
            self._ready.extend(wcs)
            return
        for wc in wcs:
            if not self._claims.give(wc):
                self._ready.append(wc)
        for wc in wcs:
            flow = self._flows.get(wc.qp_num)
            if flow is not None:
                flow.completed(wc)

    def _serve(self) -> None:
        """Whoever waits: give them what there is, or make it safe to sleep."""
        if (first := self._prepare()) is not None:
            first.wake()

    def on_event(self) -> Wakeup | None:
        """Called when the reader has read an event of this CQ. Returns whom to resume."""
        if self._cq.sleeper is not None:  # it could not be seen to in the CQ
            self._slow_down()
        return self._prepare()

    def _prepare(self) -> Wakeup | None:
        """As _serve(), but returns the first one in wait() if there is something for him."""
        try:
            for _ in range(_DRAIN_BATCHES):
                if not self._is_awaited():
                    return None
                if self._waiters and self._ready:
                    # He may be woken already, or cancelled without having run since: either way he
                    # passes the baton on when he does.
                    return self._waiters[0]
                if self._cq.safe_to_sleep(self._only_solicited()):
                    return None
                first = self._waiters[0].max_entries if self._waiters else 0
                self._look_once(max(first, _POLL_BATCH))
            self._look_later()
        except Exception as e:
            self._fail(e)
        finally:
            self._anchor()
        return None

    def _anchor(self) -> None:
        """While somebody waits here the reader holds us, or nobody might."""
        if self._is_awaited():
            self._reader.busy.add(self)
        else:
            self._reader.busy.discard(self)

    def _is_awaited(self) -> bool:
        if self._closed or self._error is not None:
            return False
        return bool(self._waiters or self._claims.by_id or self._cq.sleeper is not None)

    def _look_later(self) -> None:
        loop = self._reader.loop
        if not self._looks_later and loop is not None and not loop.is_closed():
            self._looks_later = True
            loop.call_soon(self._look_now)

    def _look_now(self) -> None:
        self._looks_later = False
        self._serve()

    def _only_solicited(self) -> bool:
        if self._claims.by_id:
            return False
        for waiter in _snapshot(self._waiters):
            if not waiter.solicited_only:
                return False
        # What is flushed raises no solicited event on some devices, and concerns everybody.
        return not any(map(is_outstanding, _snapshot(self._flushing)))

    def _poll_elsewhere(self, max_entries: int, spin: float) -> list[WorkCompletion]:
        """Another thread polls. While somebody waits it is the loop that takes them, in order."""
        if not self._waiters and (wcs := self._take(max_entries)):
            return wcs
        self._check()
        if self._is_awaited():
            self._reader.in_loop(self._drain)
            return []
        wcs = self._cq.take(max_entries, spin=spin)
        if wcs and self._is_awaited():
            # Somebody has begun to wait since: it may be his, or make room for him.
            self._reader.in_loop(lambda: self._put_and_serve(wcs))
            return []
        for wc in wcs:
            if not wc.ok and (flow := self._flows.get(wc.qp_num)) is not None:
                self._reader.in_loop(flow.suspect)
        return wcs

    def _put_and_serve(self, wcs: list[WorkCompletion]) -> None:
        self._put(wcs)
        self._serve()

    def _check_qp(self, qp: QP, *queues: int) -> None:
        """One of these queues of it must complete here."""
        if isinstance(qp, CoreSRQ):
            raise TypeError(
                "qp must be a QP, not an SRQ, whose receives complete on the CQs of all its QPs: "
                "use its post_recv(), and wait() or completion() here"
            )
        if not isinstance(qp, QP):
            raise TypeError(f"qp must be a QP, not {type(qp).__name__}")
        cqs = {SEND: qp.send_cq, RECV: qp.recv_cq}
        if not any(cqs[queue] is self._cq for queue in queues):
            does = " and ".join("receives" if queue == RECV else "sends" for queue in queues)
            names = " and ".join("recv_cq" if queue == RECV else "send_cq" for queue in queues)
            raise ValueError(
                f"QP {qp.qp_num} {does} on another CQ than that of this AsyncCQ: see QP.{names}"
            )

    def _flow(self, qp: CoreQP) -> Flow:
        flow = self._flows.get(qp.qp_num)
        if flow is None or not flow.is_of(qp):
            self._slow_down()
            flow = Flow(qp, self._claims)
            flow.on_close(_weakly(self, AsyncCQ._qp_closed, flow))
            self._flows[qp.qp_num] = flow
        return flow

    # ---- what happens meanwhile ----

    def qp_changed(self, qp: CoreQP) -> None:
        """Called by the CQ, when the program has moved a QP of it to ERR, SQE or RESET.

        And when it was closed; but then _qp_closed() is called, too.
        """
        with contextlib.suppress(ClosedError):
            # Asked at once: by the time the loop knows it may be connected anew.
            was_reset = CoreQP.query(qp)["qp_state"] == QPState.RESET
            qp_num = qp.qp_num
            serial = next(serials)
            if self._reader.is_elsewhere():
                self._reader.in_loop(lambda: self._qp_changed(qp, qp_num, serial, was_reset))
            else:
                self._qp_changed(qp, qp_num, serial, was_reset)

    def _qp_changed(self, qp: CoreQP, qp_num: int, serial: int, was_reset: bool) -> None:
        self._drain()
        flow = self._flows.get(qp_num)
        if was_reset:
            self._flushing.discard(qp)
            if flow is not None and flow.is_of(qp):
                error = ClosedError(f"QP {qp_num} was reset: its work requests were dropped")
                flow.fail(error, before=serial)
                self._anchor()
            return
        self._slow_down()
        self._flushing.add(qp)
        if flow is not None:
            flow.suspect()
        self._serve()

    def _qp_closed(self, flow: Flow) -> None:
        """Called by whoever closed the QP, in his thread."""

        def drop() -> None:
            self._drain()
            flow.fail(ClosedError("the QP was closed: its work requests were dropped"))
            self._anchor()
            if self._flows.get(flow.qp_num) is flow:
                del self._flows[flow.qp_num]

        self._reader.in_loop(drop)

    def _cq_closed(self) -> None:
        """Called by whoever closed the CQ, in his thread."""
        self._reader.in_loop(lambda: self._fail(ClosedError("the CQ was closed")))

    def _on_failure(self, event: AsyncEvent, *, for_good: bool) -> None:
        """The device reports something after which completions may be missing."""
        if for_good:
            self._fail(failure(event))
            return
        self._drain()
        qp = event.qp
        if not self._tell(failure(event), None if qp is None else qp.qp_num):
            self._keep_report(failure(event))

    def _keep_report(self, error: Exception | None) -> None:
        """Nobody was told of it; the next one who waits will be."""
        if isinstance(error, AsyncEventError):
            self._slow_down()
            new = error.event
            self._reports = [old for old in self._reports if not same(old, new)] + [new]

    def _drain(self) -> None:
        """Take what the CQ has; everything that is left over after it has not completed."""
        try:
            left = 0 if self._closed else self._cq.cqe  # more than that came only since
            while left > 0 and (got := self._look_once(_DRAIN_BATCHES * _POLL_BATCH)) > 0:
                left -= got
        except Exception as e:
            self._fail(e)
        self._serve()

    def _fail(self, error: Exception) -> None:
        """For good: everybody who waits, and every later wait, raises `error`."""
        if self._error is None:
            self._error = error.with_traceback(None)
        self._tell(error)
        self._anchor()

    def _tell(self, error: Exception, qp_num: int | None = None) -> bool:
        """Everybody who waits, as far as it may be for this QP; was there anybody?

        Each is told one error: of two reports in a row the second is for whoever waits next.
        """
        self._slow_down()
        told = False
        for waiter in _snapshot(self._waiters):  # a task of a loop that was closed can go now
            if waiter.error is None:
                waiter.error = error
                waiter.wake()
                told = True
        for claim in self._claims:
            if qp_num is None or claim.may_be_of(qp_num):
                told = claim.fail(error) or told
        self._drop_finished()
        return told

    def _forget_waiters(self) -> None:
        """Their event loop was closed: they will never run again."""
        self._slow_down()
        self._looks_later = False
        self._waiters.clear()
        for claim in self._claims:
            claim.abandoned = True
        self._drop_finished()

    def _drop_finished(self) -> None:
        """Forget who waits no more; the device has not finished what was posted."""
        for claim in self._claims:
            if not isinstance(claim, Operation) and (claim.done or claim.abandoned):
                self._claims.discard(claim)
        for flow in list(self._flows.values()):
            flow.prune()


def _snapshot(items: Iterable[_T]) -> list[_T]:
    """What was in it at some time: other threads take some out, which without a GIL disturbs."""
    while True:
        try:
            return list(items)
        except RuntimeError:  # it changed meanwhile
            continue


def _check_max_entries(max_entries: int) -> None:
    if not 1 <= operator.index(max_entries) < 1 << 31:
        raise ValueError(f"max_entries is {max_entries}: it must be 1 to 2**31 - 1")


def _weakly(
    acq: AsyncCQ, method: Callable[[AsyncCQ, Flow], None], flow: Flow
) -> Callable[[], None]:
    """A callback that does not keep the AsyncCQ alive."""
    ref = weakref.ref(acq)

    def call() -> None:
        if (alive := ref()) is not None:
            method(alive, flow)

    return call
