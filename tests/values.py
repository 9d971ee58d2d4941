# SPDX-License-Identifier: MIT
"""One of each public value and exception, and what a process that is asked does with them."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from support import DEADLINE, Endpoint, Overflow, Pair, connect, deliver, take_cq_err, wait_one

import cqnotify
from cqnotify import (
    CQ,
    MR,
    AsyncEventError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
    WCStatus,
    WorkCompletion,
    WROpcode,
    metrics,
)
from cqnotify.cm import CMEventType, RejectedError, RejectReason
from cqnotify.demo import Report
from cqnotify.hw import FlowSpecActionCount
from cqnotify.memory import Access, Descriptor
from cqnotify.messages import ConnectionOptions

STAYS = {
    "AH",
    "AsyncCQ",
    "Backend",
    "Batches",
    "CQ",
    "Collector",
    "Comm",
    "CompletionChannel",
    "Connection",
    "Connector",
    "Context",
    "DM",
    "Endpoint",
    "Exposure",
    "FailureWatch",
    "Flow",
    "FlowCounters",
    "FlowSpecActionCount",
    "Host",
    "Hosts",
    "Instruments",
    "Listener",
    "MR",
    "MW",
    "PairFactory",
    "MulticastGroup",
    "PD",
    "ParentDomain",
    "Program",
    "QP",
    "Request",
    "RwqIndTable",
    "SRQ",
    "Scope",
    "TD",
    "SendDestination",
    "Transfer",
    "TransferFuture",
    "WQ",
    "XRCD",
}
"""What owns a handle, a task or a program: it cannot leave its process."""


def modules() -> Iterator[ModuleType]:
    """The package, and all its modules that are for users: not those of the commands' tools."""
    yield cqnotify
    for module in pkgutil.walk_packages(cqnotify.__path__, "cqnotify."):
        parts = module.name.split(".")[1:]
        # torch is not there.
        if parts[0] not in ("lab", "check", "trace", "torch") and not any(
            part.startswith("_") for part in parts
        ):
            yield importlib.import_module(module.name)


def public_classes() -> set[type]:
    return {
        value
        for module in modules()
        for name in getattr(module, "__all__", ())
        if inspect.isclass(value := getattr(module, name))
    }


# ---- one of each --------------------------------------------------------------------------


def refused_post(end: Endpoint) -> VerbsError:
    try:
        while True:
            end.qp.post_recv([RecvWR(end.mr[0:8], wr_id=i) for i in range(3)])
    except VerbsError as e:
        return e


def overflow(ctx: Context) -> Overflow:
    channel = CompletionChannel(ctx)
    small = CQ(ctx, 1, channel=channel, name="small")
    world = Overflow(ctx, channel=channel, send_cq=small)
    world.fill()
    world.send(1)
    return world


def made(ctx: Context, pair: Pair) -> list[Any]:
    """Values and exceptions as programs get them."""
    a, b = pair
    deliver(pair, [7])
    array = WCArray(4)
    while b.rcq.poll_into(array) == 0:
        pass
    refused = refused_post(b)
    b.qp.modify(qp_state=QPState.ERR)
    failed = wait_one(b.rcq, WCStatus.WR_FLUSH_ERR)
    try:
        failed.raise_for_status()
    except cqnotify.CompletionError as e:
        completion_error = e
    full = overflow(ctx)  # a report about a CQ goes with it
    event = take_cq_err(full.a.ctx)
    event_error = AsyncEventError(f"the device reports {event!r}")
    event_error.event = event
    return [
        *(array[0], failed, with_everything(array[0]), array, a.scq.stats, event),
        *(a.mr[8:16], a.mr[8:16].with_lkey(5), RecvWR(a.mr[0:8], wr_id=5), RecvWR()),
        SendWR(a.mr[0:8], wr_id=6, opcode=WROpcode.SEND_WITH_IMM, imm_data=7),
        SendWR(b"bytes", wr_id=8, send_flags=SendFlags.INLINE),
        *(refused, completion_error, event_error, metrics.snapshot(ctx)),
        RejectedError("no", CMEventType.REJECTED, 28, RejectReason.CONSUMER_DEFINED, b"why"),
        ConnectionOptions(credits=3),
        Descriptor(("10.0.0.1",), 7471, "0" * 32, 2**60, 24, Access.READ, "<f8", (3,)),
        Report("rxe0", "rxe1", None, 5, 0.5, [], ["c"], ["p"]),
    ]


def with_everything(wc: WorkCompletion) -> WorkCompletion:
    """The same with the fields of devices that have a clock, VLANs and tags of flows."""
    row, _ = wc.__reduce__()[1]
    extra = WCExFlags.COMPLETION_TIMESTAMP | WCExFlags.COMPLETION_TIMESTAMP_WALLCLOCK
    numbers = [(2**60, 8), (2**61, 8), (0, 8), (0, 4), (3, 4), (4, 2), (0, 2)]
    flags = extra | WCExFlags.FLOW_TAG | WCExFlags.CVLAN
    fields = b"".join(n.to_bytes(size, "little") for n, size in [*numbers, (int(flags), 4)])
    full = WorkCompletion._restore(row, fields)
    assert (full.completion_ts, full.completion_wallclock_ns) == (2**60, 2**61)
    assert (full.flow_tag, full.cvlan, full.tm_tag) == (3, 4, None)
    return full


def of_class(cls: type) -> Any:
    """The simplest one, of a class that needs nothing for it."""
    if issubclass(cls, enum.Enum):
        return next(iter(cls))
    if issubclass(cls, cqnotify.VerbsError):
        error = cls(5, "a text")
        error.verb, error.posted = "ibv_x", 2
        return error
    if issubclass(cls, BaseException):
        return cls("a text")
    if issubclass(cls, tuple):
        return cls._make(range(len(cls._fields)))  # type: ignore[attr-defined]
    assert dataclasses.is_dataclass(cls), cls
    return cls()


def values(ctx: Context, pair: Pair) -> list[Any]:
    """At least one of each public class but those of STAYS."""
    found = made(ctx, pair)
    classes = public_classes()
    assert {cls.__name__ for cls in classes} >= STAYS
    left = {cls for cls in classes if cls.__name__ not in STAYS} - {type(v) for v in found}
    return found + [of_class(cls) for cls in sorted(left, key=str)]


def look(value: Any) -> Any:
    """What there is to see of one, to be compared with another."""
    if isinstance(value, BaseException):
        parts = {name: look(part) for name, part in vars(value).items()}
        return type(value), str(value), look(value.args), parts
    if isinstance(value, (RecvWR, SendWR)):
        return repr(value), value.wr_id
    if isinstance(value, cqnotify.AsyncEvent):
        return repr(value), value.event_type, value.port_num, value.transient
    if isinstance(value, cqnotify.SGE):
        return value.addr, value.length, value.lkey  # the MR stays
    if isinstance(value, WCArray):
        return value.capacity, list(value)
    if isinstance(value, (list, tuple)):
        return type(value), [look(part) for part in value]
    return value


def unpicklable(pd: cqnotify.PD) -> list[Any]:
    mr = MR(pd, 64)
    counts = FlowSpecActionCount(mr)  # type: ignore[arg-type]
    return [pd, pd.context, mr, counts]


# ---- in another process -------------------------------------------------------------------


def give_back(value: Any) -> Any:
    return value


def raise_it(error: BaseException) -> None:
    raise error


def fail(what: str) -> Any:
    """In a process of its own: what a verb, a completion and a device say of a mistake."""
    with Context() as ctx, Endpoint(ctx, QPType.RC) as a, Endpoint(ctx, QPType.RC) as b:
        connect(a, b)
        if what == "post":
            raise refused_post(b)
        if what == "completion":
            there = {"remote_addr": b.mr.addr, "rkey": b.mr.rkey ^ 1}
            a.qp.post_send(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, wr_id=9, **there)
            wait_one(a.scq, WCStatus.REM_ACCESS_ERR).raise_for_status()
        if what == "event":
            full = overflow(ctx)
            full.a.channel.get_event(DEADLINE)
        assert what == "value"
        deliver((a, b), [11])
        return wait_one(b.rcq), b.mr[0:8], RecvWR(b.mr[0:8], wr_id=12)
