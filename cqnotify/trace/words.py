# SPDX-License-Identifier: MIT
"""What a record is called: in a tooltip, in Chrome's trace, in the search."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable
from typing import Final

from ..check.chaos import FAULTS
from ..enums import AsyncEventType, QPType, WCOpcode, WCStatus, WROpcode, enum_or_int
from .records import NO_TIMEOUT, Call, Flag, Record, What, method_name, task_name

CALLS: Final = {
    Call.GET_CQ_EVENT: "ibv_get_cq_event()",
    Call.READ: "read()",
    Call.POLL: "poll()",
    Call.SELECT: "select()",
    Call.EPOLL_WAIT: "epoll_wait()",
}


def duration(ns: int) -> str:
    """Return a time span as people write it: three digits and a unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size * 0.9995:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns} ns"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def describe(record: Record) -> str:
    """Return a record as a sentence without its subject, which is the thread."""
    text = _WORDS[record.what](record)
    return f"{text}; injected by cqnotify chaos" if record.flags & Flag.INJECTED else text


def status_of(record: Record) -> int:
    """Return the status of a completion: `enum ibv_wc_status`, 0 for success."""
    return record.detail >> 16


def _name(cls: type[enum.Enum], value: int) -> str:
    member = enum_or_int(cls, value)
    return member.name if isinstance(member, enum.Enum) else str(member)


def _cm_event(value: int) -> str:
    from ..cm import CMEventType  # which brings much, and is rarely there

    return _name(CMEventType, value)


def _errno(value: int) -> str:
    return errno.errorcode.get(value, str(value))


def many(number: int, one: str, several: str = "") -> str:
    """Return a count and its noun."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _wr_id(record: Record) -> str:
    """Return the wr_id; a large one is an address."""
    return str(record.value) if record.value < 1 << 32 else f"{record.value:#x}"


def _request(record: Record) -> str:
    return f"wr_id {_wr_id(record)}, {many(record.number, 'byte')}"


def _post_send(record: Record) -> str:
    flags = "signaled" if record.flags & Flag.SIGNALED else "unsignaled"
    solicited = ", solicited" if record.flags & Flag.SOLICITED else ""
    what = _name(WROpcode, record.detail)
    return f"QP {record.object}: posts {what}, {_request(record)}, {flags}{solicited}"


def _completion(record: Record) -> str:
    qp = f" of QP {record.other}" if record.other else ""
    if status := status_of(record):
        what = f"fails with {_name(WCStatus, status)}, wr_id {_wr_id(record)}"
    else:
        what = f"{_name(WCOpcode, record.detail & 0xFFFF)}, {_request(record)}"
    seen = "; seen by the observer, before the program polled" if record.flags & Flag.SEEN else ""
    return f"CQ {record.object}: completion{qp}: {what}{seen}"


def _poll(record: Record) -> str:
    asked = f", {record.detail:,} asked for" if record.detail else ""
    if not record.number:
        return f"CQ {record.object}: polled, nothing there{asked}"
    return f"CQ {record.object}: polled {many(record.number, 'completion')}{asked}"


def _sleep(record: Record) -> str:
    call = CALLS.get(Call(record.detail)) if record.detail in CALLS else "a call"
    channel = f" on channel {record.object}" if record.object else ""
    if record.number > 1:
        channel += f", {record.number} descriptors"
    limit = "" if record.value == NO_TIMEOUT else f", at most {duration(record.value)}"
    return f"sleeps in {call}{channel}{limit}"


def awaited(record: Record) -> str:
    """Return what a TASK_SLEEP record says that a task awaits."""
    method = method_name(record)
    what = f"{method}()" if method else "a completion"
    return what + (f" of CQ {record.object}" if record.object else "")


def _wake(record: Record) -> str:
    if record.object:
        return f"wakes: channel {record.object} is readable"
    if record.detail:
        return f"wakes: {_errno(record.detail)}"
    return "wakes" if record.number else "wakes: timed out"


def _qp_created(record: Record) -> str:
    kind = f", {_name(QPType, record.detail)}" if record.detail else ""
    return (
        f"QP {record.object} created: number {record.number}{kind}, "
        f"sends to CQ {record.other}, receives to CQ {record.value}"
    )


def _async_event(record: Record) -> str:
    return f"asynchronous event {_name(AsyncEventType, record.detail)}"


def _fault(record: Record) -> str:
    """Return what a fault did: csrc/check/log.h says what its number is."""
    name = FAULTS[record.detail] if record.detail < len(FAULTS) else str(record.detail)
    number = record.value
    match name:
        case "split":
            what = f"the poll gets {many(number, 'completion')} of more"
        case "hold":
            what = f"the poll gets none of {many(number, 'completion')}"
        case "eintr":
            what = f"a signal ends {CALLS[Call(number)] if number in CALLS else 'a call'}"
        case "late" | "destroy":
            what = f"{number} ms"
        case "post":
            what = f"the list is refused after {many(number, 'request')}"
        case "fail":
            what = _name(WCStatus, number)
        case "async":
            what = _name(AsyncEventType, number)
        case _:
            what = _errno(number)
    return f"fault {name}: {what}"


_WORDS: Final[dict[int, Callable[[Record], str]]] = {
    What.CHANNEL_CREATED: lambda r: f"channel {r.object} created: descriptor {r.number}",
    What.CHANNEL_DESTROYED: lambda r: f"channel {r.object} destroyed",
    What.CQ_CREATED: lambda r: (
        f"CQ {r.object} created: {many(r.number, 'entry', 'entries')}"
        + (f", on channel {r.other}" if r.other else ", without a channel")
    ),
    What.CQ_DESTROYED: lambda r: f"CQ {r.object} destroyed",
    What.QP_CREATED: _qp_created,
    What.QP_DESTROYED: lambda r: f"QP {r.object} destroyed",
    What.SRQ_CREATED: lambda r: f"SRQ {r.object} created: {r.number} work requests",
    What.SRQ_DESTROYED: lambda r: f"SRQ {r.object} destroyed",
    What.POST_SEND: _post_send,
    What.POST_RECV: lambda r: f"QP {r.object}: posts a receive, {_request(r)}",
    What.POST_SRQ_RECV: lambda r: f"SRQ {r.object}: posts a receive, {_request(r)}",
    What.POST_REFUSED: lambda r: (
        f"QP {r.object}: post refused, wr_id {_wr_id(r)}, {_errno(r.detail)}"
    ),
    What.COMPLETION: _completion,
    What.POLL: _poll,
    What.ARM: lambda r: (
        f"CQ {r.object}: armed{' for solicited completions only' if r.detail else ''}"
    ),
    What.ARM_FAILED: lambda r: f"CQ {r.object}: not armed, {_errno(r.detail)}",
    What.EVENT: lambda r: f"CQ {r.object}: event read from channel {r.other}",
    What.ACK: lambda r: f"CQ {r.object}: acknowledges {many(r.number, 'event')}",
    What.ASYNC_EVENT: _async_event,
    What.CM_EVENT: lambda r: (
        f"QP {r.object}: rdma_cm event {_cm_event(r.detail)}"
        + (f", status {r.number}" if r.number else "")
    ),
    What.SLEEP: _sleep,
    What.WAKE: _wake,
    What.FINDING: lambda r: f"finding {r.other}",
    What.FAULT: _fault,
    What.TASK_SLEEP: lambda r: f"a task awaits {awaited(r)}",
    What.TASK_WAKE: lambda r: "a task wakes" + (f" that awaited CQ {r.object}" if r.object else ""),
    What.TASK: lambda r: f"task {task_name(r)} runs",
}
