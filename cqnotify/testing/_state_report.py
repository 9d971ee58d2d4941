# SPDX-License-Identifier: MIT
"""The state of a device's objects, in a few lines, for the report of a failed test.

Reading the state changes nothing: no completion and no event is taken.
"""

from __future__ import annotations

import select
from collections.abc import Iterable

from .._core import (
    CQ,
    QP,
    SRQ,
    AsyncEvent,
    CompletionChannel,
    Context,
    known_async_events,
    open_objects,
)
from ..enums import AsyncEventType, QPState, QPType, enum_or_int

__all__ = ["state_of"]

_AT_MOST = 8  # objects of a kind


def state_of(context: Context) -> list[str]:
    """Return the device's asynchronous events and its QPs, SRQs and CQs, a line each.

    A closed context has none. Never raises: if the state cannot be read, the line says why.
    """
    try:
        return [] if context.closed else _State(context).lines()
    except Exception as e:  # it may be closed meanwhile, or forked; a report must not fail
        return [f"cannot be told: {type(e).__name__}: {e}"]


class _State:
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
            *_some("QPs", [self._qp(qp) for qp in self._qps[:_AT_MOST]], len(self._qps)),
            *_some("SRQs", [self._srq(srq) for srq in self._srqs[:_AT_MOST]], len(self._srqs)),
            *_some("CQs", [self._cq(cq) for cq in self._cqs[:_AT_MOST]], len(self._cqs)),
            *[self._unread(c) for c in self._channels[:_AT_MOST] if _is_readable(c.fileno())],
        ]

    def _qp(self, qp: QP) -> str:
        sends, receives = qp.outstanding
        by_srq = "" if qp.srq is None else f" by {self._name(qp.srq)}"
        posted = _count(receives, "receive") if qp.srq is None else "receives"
        return (
            f"QP {qp.qp_num}: {_type(qp)}, {_state(qp)}; outstanding: "
            f"{_count(sends, 'send')} on {self._name(qp.send_cq)}, "
            f"{posted}{by_srq} on {self._name(qp.recv_cq)}"
        )

    def _srq(self, srq: SRQ) -> str:
        return f"{self._name(srq)}: {_count(srq.outstanding, 'receive')} outstanding"

    def _cq(self, cq: CQ) -> str:
        counters = ", ".join(
            f"{name} {getattr(cq.stats, name)}"
            for name in ("completions", "polls", "arms", "events", "acked", "spurious")
        )
        return f"{self._name(cq)}: {counters}"

    def _unread(self, channel: CompletionChannel) -> str:
        names = [self._name(cq) for cq in self._cqs if cq.channel is channel]
        return f"the channel of {', '.join(names) or 'no CQ'} has an unread event"

    def _events(self) -> str:
        known = ", ".join(self._event(event) for event in known_async_events(self._context))
        unread = ", some unread" if _is_readable(self._context.async_fd) else ""
        return f"asynchronous events: {known or 'none seen'}{unread}"

    def _event(self, event: AsyncEvent) -> str:
        kind = enum_or_int(AsyncEventType, event.event_type)
        name = kind.name if isinstance(kind, AsyncEventType) else str(kind)
        if event.qp is not None:
            return f"{name} of QP {event.qp.qp_num}"
        if event.port_num is not None:
            return f"{name} of port {event.port_num}"
        element = event.cq or event.srq
        return name if element is None else f"{name} of {self._name(element)}"

    def _name(self, element: CQ | SRQ) -> str:
        return self._names.get(id(element), "one made meanwhile")


def _some(kind: str, lines: list[str], count: int) -> Iterable[str]:
    yield from lines
    if count > len(lines):
        yield f"and {count - len(lines)} {kind} more"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _type(qp: QP) -> str:
    kind = enum_or_int(QPType, qp.qp_type)
    return kind.name if isinstance(kind, QPType) else f"type {kind}"


def _state(qp: QP) -> str:
    """Query the state from the device, which changes it by itself after an error."""
    state = enum_or_int(QPState, QP.query(qp)["qp_state"])
    return state.name if isinstance(state, QPState) else f"state {state}"


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
