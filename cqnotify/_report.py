# SPDX-License-Identifier: MIT
"""The open objects and what they wait for, as text: for a program that sleeps, and a failed test.

A report only looks. It takes no completion and no event, posts nothing, arms nothing, and waits for
no lock of this package.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from ._core import (
    CQ,
    QP,
    SRQ,
    AsyncEvent,
    Awaitable,
    ClosedError,
    CompletionChannel,
    Context,
    known_async_events,
    open_contexts,
    open_objects,
)
from .enums import AsyncEventType, QPState, QPType, enum_or_int

if TYPE_CHECKING:
    import asyncio

__all__ = ["register_report", "report", "unregister_report"]

_AT_MOST = 8  # objects of a kind, and tasks of an AsyncCQ
_CONNECTED = (QPState.RTR, QPState.RTS, QPState.SQD)


class HasFileno(Protocol):
    def fileno(self) -> int: ...


# ---- the text -----------------------------------------------------------------------------------


def report(context: Context | None = None) -> str:
    """Describe what is open and what it waits for, in lines of text.

    context: one of them; by default all that are open in this process.

    For each context there are the asynchronous events of the device, its QPs with their states,
    peers and outstanding work requests, its SRQs, its CQs, its channels with the threads that wait
    in get_event(), and the tasks that wait in each AsyncCQ. The names of tasks are those of
    asyncio. Takes no completion and no event, and never raises: where something cannot be told, the
    line says why. Wraps ibv_query_qp(3).
    """
    contexts = list(reversed(open_contexts())) if context is None else [context]
    return "\n".join(line for one in contexts for line in _lines(one)) or "no Context is open"


def _lines(context: Context) -> list[str]:
    try:
        return ["a Context that is closed"] if context.closed else _Report(context).lines()
    except Exception as e:  # it may be closed meanwhile, or forked; a report must not fail
        return [f"a Context that cannot be described: {type(e).__name__}: {e}"]


class _Report:
    def __init__(self, context: Context) -> None:
        self._context = context
        found = open_objects(context)
        self._qps = [o for o in found if isinstance(o, QP)]
        self._srqs = [o for o in found if isinstance(o, SRQ)]
        self._cqs = [o for o in found if isinstance(o, CQ)]
        self._channels = [o for o in found if isinstance(o, CompletionChannel)]
        self._names = {id(cq): f"CQ {n}" for n, cq in enumerate(self._cqs, 1)}
        self._names |= {id(srq): f"SRQ {n}" for n, srq in enumerate(self._srqs, 1)}

    def lines(self) -> list[str]:
        return [
            f"{self._context.name}: {self._events()}",
            *_some("QPs", self._qps, self._qp),
            *_some("SRQs", self._srqs, self._srq),
            *_some("CQs", self._cqs, self._cq),
            *_some("channels", self._channels, self._channel),
            *(line for cq in self._cqs[:_AT_MOST] for line in self._tasks(cq)),
        ]

    def _qp(self, qp: QP) -> str:
        attrs = QP.query(qp)  # from the device, which changes the state by itself after an error
        sends, receives = qp.outstanding_sends, qp.outstanding_recvs
        state = enum_or_int(QPState, attrs["qp_state"])
        text = f"QP {qp.qp_num}: {_name(QPType, qp.qp_type)}, {_name(QPState, state)}"
        if qp.qp_type in (QPType.RC, QPType.UC) and state in _CONNECTED:
            text += f", peer QP {attrs['dest_qp_num']}"
        if qp.qp_type == QPType.XRC_RECV or qp.rwq_ind_tbl is not None:  # it has no queues
            return text
        by_srq = "" if qp.srq is None else f" by {self._called(qp.srq)}"
        posted = _count(receives, "receive") if qp.srq is None else "receives"
        return (
            f"{text}; outstanding: {_count(sends, 'send')} on {self._called(qp.send_cq)}, "
            f"{posted}{by_srq} on {self._called(qp.recv_cq)}"
        )

    def _srq(self, srq: SRQ) -> str:
        return f"{self._called(srq)}: {_count(srq.outstanding, 'receive')} outstanding"

    def _cq(self, cq: CQ) -> str:
        name = f" {cq.name!r}" if cq.name else ""
        fetched = f", {_count(cq._held, 'completion')} fetched and not polled" if cq._held else ""
        counters = ", ".join(
            f"{counter} {getattr(cq.stats, counter)}"
            for counter in ("completions", "polls", "arms", "events", "acked", "spurious")
        )
        return f"{self._called(cq)}{name}: {_armed(cq)}, {cq.cqe} entries{fetched}; {counters}"

    def _channel(self, channel: CompletionChannel) -> str:
        mine = [cq for cq in self._cqs if not cq.closed and cq.channel is channel]
        names = [self._called(cq) for cq in mine]
        event = "an unread event" if _is_readable(channel.fileno()) else "no unread event"
        threads = _count(channel._waiting, "thread")
        return f"the channel of {', '.join(names) or 'no CQ'}: {event}, {threads} in get_event()"

    def _tasks(self, cq: CQ) -> Iterator[str]:
        """Yield what the tasks of the AsyncCQ wait for."""
        try:
            acq = cq._engine
        except ClosedError:  # meanwhile
            return
        if acq is None:
            return
        requests = acq._pending()
        yield f"the AsyncCQ of {self._called(cq)}: {_count(len(requests), 'request')} awaited"
        names = _task_names(getattr(getattr(acq, "_reader", None), "loop", None))
        yield from _some("requests", requests, lambda one: f"  {one._call}{names.get(id(one), '')}")

    def _events(self) -> str:
        known = ", ".join(self._event(event) for event in known_async_events(self._context))
        unread = ", some unread" if _is_readable(self._context.async_fd) else ""
        return f"asynchronous events: {known or 'none seen'}{unread}"

    def _event(self, event: AsyncEvent) -> str:
        name = _name(AsyncEventType, event.event_type)
        if event.qp is not None:
            return f"{name} of QP {event.qp.qp_num}"
        if event.port_num is not None:
            return f"{name} of port {event.port_num}"
        element = event.cq or event.srq
        return name if element is None else f"{name} of {self._called(element)}"

    def _called(self, element: CQ | SRQ) -> str:
        return self._names.get(id(element), "one made meanwhile")


def _some(kind: str, things: list[Any], line: Callable[[Any], str]) -> Iterator[str]:
    """Yield a line for each of the first ones, and how many more there are."""
    for thing in things[:_AT_MOST]:
        try:
            yield line(thing)
        except Exception as e:  # it was closed meanwhile
            yield f"one of the {kind}: {e}"
    if len(things) > _AT_MOST:
        yield f"and {len(things) - _AT_MOST} {kind} more"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _name(kind: type[AsyncEventType | QPState | QPType], value: int) -> str:
    return str(getattr(enum_or_int(kind, value), "name", value))


def _armed(cq: CQ) -> str:
    if cq.channel is None:
        return "no channel"
    if cq._armed == "solicited":
        return "armed for solicited completions"
    return "armed" if cq._armed == "any" else "not armed"


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _task_names(loop: Any) -> dict[int, str]:
    """Return the names of asyncio's tasks by the id of the request that each of them awaits."""
    raw: asyncio.AbstractEventLoop | None = getattr(loop, "asyncio", None)
    names: dict[int, str] = {}
    if raw is None or raw.is_closed():
        return names
    for task in sys.modules["asyncio"].all_tasks(raw):
        inner: Any = task.get_coro()
        while inner is not None and not isinstance(inner, Awaitable):
            inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
        if inner is not None:
            names[id(inner)] = f", task {task.get_name()!r}"
    return names


# ---- on a signal --------------------------------------------------------------------------------


class _Registration:
    """The handler of a signal, and the one that was there before."""

    def __init__(self, file: int | HasFileno, chain: bool) -> None:
        self._file = file  # which stays open as long
        self._fd: int = file if isinstance(file, int) else file.fileno()
        self._chain = chain
        self.before: Any = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        # Not by the file's own write(): it may be this that the signal has interrupted.
        text = f"{report()}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(self._fd, text) :]
        if not self._chain:
            return
        if callable(self.before):
            self.before(signum, frame)
        elif self.before == signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
            signal.signal(signum, self)


_registered: dict[int, _Registration] = {}


def register_report(signum: int, file: int | HasFileno | None = None, chain: bool = False) -> None:
    """Write `report()` to a file whenever the process gets a signal, as faulthandler.register.

    signum: the signal, such as signal.SIGUSR1.
    file: a file with a descriptor, or the descriptor, which must stay open; by default sys.stderr.
    chain: whether the handler that was there before is called after that.

    Call it in the main thread, which also writes the report: a wait of this package, or an event
    loop, goes on after it. Raises ValueError in other threads.
    """
    registration = _Registration(sys.stderr if file is None else file, chain)
    old = _registered.get(signum)
    before: Any = signal.signal(signum, registration)
    registration.before = old.before if old is not None and before is old else before
    _registered[signum] = registration


def unregister_report(signum: int) -> bool:
    """Stop what `register_report` began: the handler from before is back.

    signum: the signal.

    Return whether there was something to stop. Raises ValueError outside of the main thread.
    """
    registration = _registered.get(signum)
    if registration is None:
        return False
    now: Any = signal.getsignal(signum)
    if now is registration:
        before = registration.before
        signal.signal(signum, signal.SIG_DFL if before is None else before)
    del _registered[signum]
    return True
