# SPDX-License-Identifier: MIT
"""Every public callable with arguments that are right, wrong, hostile, too many or too few.

What there is to call, and with which parameters, is read from the signatures, which are the stubs'.
Only what is right for a parameter is written down here, by its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz_arguments import ALLOWED, NASTY_FRESH, Boom, Stock, Values
from fuzz_things import Tally
from hypothesis import note

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    ClosedError,
    CompletionChannel,
    Context,
    FailureWatch,
    QPAddress,
    QPState,
    RecvWR,
    SendWR,
    VerbsError,
    WCArray,
)
from cqnotify.aio import AsyncCQ
from cqnotify.hw import DM, TD, WQ, XRCD, Flow, FlowCounters, ParentDomain, RwqIndTable

Good = dict[str, tuple[str, ...]]

SMALL, ZERO, ONE = ("1", "7", "64"), ("0",), ("1",)
ACCESS, MEMORY = ("1", "7", "0"), ("mr", "sge", "None")
BUFFERS = ("bytes16", "bytearray", "view", "readonly", "view_of_mr")
PATIENT = ("0", "0.001", "0.0")

# What is right for a parameter of this name, by names of arguments.
GOOD: Good = {
    **dict.fromkeys(("max_wr", "max_send_wr", "max_recv_wr", "capacity", "max_entries"), SMALL),
    **dict.fromkeys(("wr_id", "cq_count", "cq_period", "compare_add", "swap", "value"), SMALL),
    **dict.fromkeys(("comp_vector", "sl", "traffic_class", "flow_label", "static_rate"), ZERO),
    **dict.fromkeys(("n", "lid", "dlid", "src_path_bits", "pkey_index"), ZERO),
    **dict.fromkeys(("port_num", "retry_cnt", "rnr_retry", "max_rd_atomic", "rq_psn"), ONE),
    **dict.fromkeys(("max_dest_rd_atomic", "min_rnr_timer", "lkey"), ONE),
    **dict.fromkeys(("max_sge", "max_send_sge", "max_recv_sge", "mw_type"), ("1", "2")),
    **dict.fromkeys(("name", "netdev", "qkey", "exc_type", "exc", "tb"), ("None",)),
    # Of what the device lacks.
    **dict.fromkeys(
        ("create_flags", "srq_type", "wq_type", "max_num_tags", "max_ops", "max_tso_header"), ZERO
    ),
    **dict.fromkeys(("flow_type", "priority", "flags", "options", "comp_mask"), ZERO),
    **dict.fromkeys(("recv_wr_id", "handle", "unexpected_cnt", "tag", "mask"), ZERO),
    **dict.fromkeys(("source_qpn", "xrcd", "rwq_ind_tbl", "rx_hash_conf", "fd"), ("None",)),
    **dict.fromkeys(("remote_srqn", "tso_header", "mss", "counters"), ("None",)),
    **dict.fromkeys(("vendor_id", "qp_num"), ONE),
    **dict.fromkeys(("specs", "wqs"), ("()",)),
    "oflags": ("64",),
    "qp": ("ud", "qp"),
    **dict.fromkeys(("advice", "flags", "log_align_req"), ZERO),
    **dict.fromkeys(("parent_domain", "td"), ("None",)),
    **dict.fromkeys(("cmd_fd", "fd"), ("own_cmd_fd",)),
    "access": ACCESS,
    "addr": ("own_addr",),
    "address": ("own_gid", "None"),
    "ah": ("ah",),
    "ah_attr": ("dict",),
    "buffer": ("64", "bytearray", "view"),
    "callback": ("lambda",),
    "cap": ("dict",),
    "channel": ("channel", "None"),
    "context": ("ctx", "other"),
    "cq": ("cq", "acq_cq", "xcq", "closed_cq"),
    "cqe": ("64", "255"),
    "data": BUFFERS,
    "dgid": ("own_gid",),
    "dm": ("object",),  # which only other devices have
    "gid": ("group", "'group'"),
    "gid_index": ("None", "own_index"),
    "gid_type": ("own_type", "None"),
    "grh": ("bytes40",),
    "handle": ONE,
    "hop_limit": ("64",),
    "imm_data": ("None", "7"),
    "index": ("own_index",),
    "invalidate_rkey": ("own_rkey",),
    "iova": ("None", "0"),
    "key": ("slice",),
    "length": ("64", "None", "0"),
    "max_inline_data": ("0", "64"),
    "memo": ("dict",),
    "mw": ("mw",),
    "offset": ("0", "64", "2"),
    "opcode": ("2",),
    "path_mtu": ("None", "1"),
    "pd": ("pd",),
    "pkey": ("65535",),
    "qp_access_flags": ("7",),
    "qp_type": ("2",),
    "recv_cq": ("cq", "None"),
    "remote": ("address",),
    "remote_addr": ("own_addr",),
    "remote_qkey": ("own_qkey",),
    "remote_qpn": ("own_qpn",),
    "rkey": ("own_rkey",),
    "send_cq": ("cq",),
    "send_flags": ("2", "0"),
    "sg": MEMORY,
    "sgid_index": ("own_index",),
    "solicited_only": ("True", "False", "1"),
    "spin": PATIENT,
    "sq_sig_all": ("True", "False"),
    **dict.fromkeys(("atomic_write", "flush"), ("False",)),
    **dict.fromkeys(("placement", "level"), ("None",)),
    "srq": ("None", "None", "srq"),
    "srq_limit": ("0", "1"),
    **dict.fromkeys(("timeout", "ack_timeout"), ("7",)),
    "transient_errors": ("True", "False"),
    "user_data": ("object", "None"),
    "wc": ("wc",),
    "wc_flags": ("None", "1"),
    "wcs": ("array",),
}

# What goes together in one call, where not all that there is does.
ATTRS = ("min_rnr_timer", "qp_access_flags", "path_mtu", "port_num", "cap", "ah_attr")
ATTRS += ("max_rd_atomic", "rq_psn", "qkey")
REMOTE = {"opcode": ("0", "1", "4"), "remote_addr": GOOD["remote_addr"], "rkey": GOOD["rkey"]}
SENDS: list[Good] = [
    {"sg": MEMORY, "wr_id": SMALL, "opcode": ("2",), "send_flags": ("2", "0", "7")},
    {
        "sg": ("sge", "None"),
        "ah": ("ah",),
        "remote_qpn": ("own_qpn",),
        "remote_qkey": ("own_qkey",),
    },
    {"sg": ("sge",), **REMOTE, "imm_data": ("None", "7"), "send_flags": ("2",)},
    {"sg": BUFFERS, "send_flags": ("inline",), "wr_id": SMALL},
]
AWAITED: Good = {
    "qp": (*["aqp"] * 8, "qp", "closed_qp"),
    "sg": ("eight", "sge", "None"),
    "remote_addr": ("acq_addr",),
    "rkey": ("acq_rkey",),
    "send_flags": ("2", "0"),
    "wr_id": SMALL,
}
EIGHT = {**AWAITED, "sg": ("eight",), "compare_add": SMALL, "swap": SMALL}
WHOLE = dict.fromkeys(("port_num", "gid_index", "access", "path_mtu", "ack_timeout", "hop_limit"))
FORMS: dict[str, list[Good]] = {
    "CQ()": [
        dict.fromkeys(("context", "cqe", "channel", "comp_vector", "user_data", "wc_flags"), ())
    ],
    "SRQ()": [dict.fromkeys(("pd", "max_wr", "max_sge", "srq_limit", "user_data"), ())],
    "QP.modify": [dict.fromkeys(ATTRS, ()), {"min_rnr_timer": ("1", "7", "0")}],
    "QP.check_modify": [dict.fromkeys(ATTRS, ())],
    "QP.connect": [dict.fromkeys(("remote", *WHOLE, "max_rd_atomic"), ())],
    "QP.to_rtr": [dict.fromkeys(("remote", *WHOLE.keys() - {"ack_timeout"}), ())],
    "QP.post_send": [
        *SENDS,
        {"sg": ("send_wr", "send_wrs", "foreign_send_wr", "mixed_wrs")},
    ],
    "QP.post_recv": [
        {"sg": MEMORY, "wr_id": SMALL},
        {"sg": ("recv_wr", "recv_wrs", "closed_recv_wr", "mixed_sges")},
    ],
    "QP.bind_mw": [
        {"mw": ("mw",), "sg": ("mr", "sge"), "access": ("2", "4", "7"), "wr_id": SMALL}
        | {"send_flags": ("2", "0")}
    ],
    "SendWR()": [{**form, "opcode": form.get("opcode", ("2",))} for form in SENDS],
    "AsyncCQ.send": [{**AWAITED, "imm_data": ("None", "7")}],
    "AsyncCQ.recv": [AWAITED],
    "AsyncCQ.write": [{**AWAITED, "imm_data": ("None", "7")}],
    "AsyncCQ.read": [AWAITED],
    "AsyncCQ.atomic_cmp_and_swp": [EIGHT],
    "AsyncCQ.atomic_fetch_and_add": [EIGHT],
    "AsyncCQ.completion": [{"wr_id": SMALL, "qp": ("aqp", "None")}],
    "CompletionChannel.get_event": [{"timeout": PATIENT}],
    "Context.get_async_event": [{"timeout": PATIENT}],
    "Context.query_pkey": [{"index": ZERO, "port_num": ONE}],
    "MR.sub_mr": [{"buffer": BUFFERS}],
    "SGE.__getitem__": [{"key": ("slice",)}],
    "WCArray.__getitem__": [{"key": ZERO}, {"key": ("slice",)}],
    "WCArray.index": [{"value": ("wc",), "start": ZERO, "stop": SMALL}],
    "WCArray.count": [{"value": ("wc",)}],
}

# On what the methods are called.
RECEIVERS = (
    *("ctx", "closed_ctx", "pd", "mr", "ro_mr", "closed_mr", "channel", "closed_channel"),
    *("cq", "xcq", "closed_cq", "srq", "closed_srq", "qp", "ud", "closed_qp", "new_qp"),
    *("ah", "mw", "watch", "sge", "wc", "array", "send_wr", "recv_wr", "acq", "closed_acq"),
)
MAKERS = (Context, PD, MR, CompletionChannel, FailureWatch, CQ, QP, SRQ, AH, MW, WCArray)
MAKERS += (SendWR, RecvWR, AsyncCQ, XRCD, Flow, FlowCounters, WQ, RwqIndTable)
MAKERS += (DM, TD, ParentDomain)
CLASS_METHODS = (QPAddress.from_wire, MR.implicit, AH.from_wc, Context.from_fd, PD.from_handle)
CLASS_METHODS += (MR.from_dm, MR.from_dmabuf, MR.null, MR.from_handle, DM.from_handle, QP.open)
DUNDERS = ("enter", "repr", "len", "getitem", "next", "iter", "aiter", "copy", "deepcopy")
PRIVATE = {"_on_event", *(f"__{name}__" for name in DUNDERS)}
AWAITABLE = {"wait", "completion", "send", "recv", "write", "read"}
AWAITABLE |= {"atomic_cmp_and_swp", "atomic_fetch_and_add"}


@dataclass
class Target:
    """Something to call: what is right for its parameters, and how many go by position."""

    function: Callable[..., Any]
    good: Good = field(default_factory=dict)
    positional: int = 0
    required: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()  # parameters that do not go with those

    @property
    def waits(self) -> bool:
        return "timeout" in self.good and self.good["timeout"] is PATIENT


def is_method(cls: type, name: str) -> bool:
    """Whether it is there for users, or for the layer above."""
    return (
        callable(getattr(cls, name))
        and not inspect.isdatadescriptor(inspect.getattr_static(cls, name))
        and (not name.startswith("_") or name in PRIVATE)
    )


signature = functools.cache(inspect.signature)  # they are asked for again for each new world


def forms(name: str, function: Callable[..., Any], method: bool) -> Iterator[Target]:
    """A target for each of its forms, without the receiver."""
    parameters = [*signature(function).parameters.values()][method:]
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    by_position = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    needed = frozenset(p.name for p in parameters if p.default is p.empty) & {*names}
    for form in FORMS.get(name, [dict.fromkeys(names, ())]):
        chosen = [*(n for n in names if n in form), *form.keys() - {*names}]
        if len(names) == len(parameters):  # else it takes others by keyword
            chosen = [n for n in chosen if n in names]
        good = {n: form[n] or GOOD[n] for n in chosen}
        yield Target(function, good, by_position, needed, tuple({*names} - {*chosen}))


def targets(w: Stock) -> dict[str, Target]:
    o = w.objects
    found: dict[str, Target] = {}

    def add(
        name: str, function: Callable[..., Any], call: Callable[..., Any] | None = None
    ) -> None:
        for i, target in enumerate(forms(name.partition(":")[0], function, call is not None)):
            target.function = call or function
            found[f"{name}#{i}"] = target

    for cls in MAKERS:
        add(f"{cls.__name__}()", cls)
    for function in CLASS_METHODS:
        add(function.__qualname__, function)
    found["QPAddress.from_wire#0"].good = {"data": ("own_wire",)}
    for name, address in (("address", o["address"]), ("bad", w.constants["bad_address"])):
        found[f"QPAddress.to_wire:{name}"] = Target(address.to_wire)
    for name in RECEIVERS:
        add_methods(w, name, add)
        found[f"{type(o[name]).__name__}.attributes:{name}"] = Target(
            lambda name=name: attributes(o[name])
        )
    add("closed_qp.__exit__", QP.__exit__, lambda *a, **k: o["closed_qp"].__exit__(*a, **k))
    for name in ("send_wr", "recv_wr"):
        found[f"{name}.wr_id="] = Target(
            lambda *a, name=name, **k: setattr(o[name], "wr_id", *a, *k.values()),
            {"value": SMALL},
            1,
            frozenset({"value"}),
        )
    return found


def add_methods(w: Stock, name: str, add: Callable[..., None]) -> None:
    cls = type(w.objects[name])
    for method in filter(lambda method: is_method(cls, method), dir(cls)):
        function = getattr(cls, method)
        if inspect.ismethod(function) or "class" in type(vars(cls).get(method)).__name__:
            continue  # of the class
        if (name, method) == ("ctx", "close"):
            continue

        def call(*a: Any, function: Any = function, method: str = method, **k: Any) -> Any:
            thing = w.objects[name]
            if cls is AsyncCQ and method in AWAITABLE:
                return first_step(w, function, thing, *a, **k)
            if name == "new_qp" and method in ("to_rtr", "to_rts"):
                thing = prepared(w.objects, method)
            return function(thing, *a, **k)

        add(f"{cls.__name__}.{method}:{name}", function, call)


def first_step(w: Stock, method: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """The coroutine of a call takes the first step, and is closed."""
    asyncio._set_running_loop(w.loop)
    try:
        call = method(*args, **kwargs)
        try:
            call.send(None)
        except StopIteration:
            pass
        finally:
            call.close()
    finally:
        asyncio._set_running_loop(None)
    return 1


def prepared(o: dict[str, Any], transition: str) -> QP:
    """A QP in the state that it starts from."""
    qp: QP = o["new_qp"]
    with contextlib.suppress(VerbsError):
        qp.modify(qp_state=QPState.RESET)
        qp.to_init()
        if transition == "to_rts":
            qp.to_rtr(o["address"])
    return qp


def attributes(thing: Any) -> int:
    """Reads all; ClosedError is all that any of them may say."""
    for name in dir(type(thing)):
        static = inspect.getattr_static(type(thing), name)
        if inspect.isdatadescriptor(static) and not name.startswith("__"):
            with contextlib.suppress(ClosedError):
                getattr(thing, name)
    return 1


class Barrage:
    """Calls one target after another, and keeps what must not have happened."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.begin()
        self.faults: list[str] = []

    def begin(self) -> None:
        self.world = Stock()
        self.targets = targets(self.world)
        self.keys = sorted(self.targets)
        self.nasty = [*self.world.constants, *self.world.objects, *NASTY_FRESH]

    def close(self) -> None:
        self.world.close()
        del self.world, self.targets

    def arguments(self, rng: random.Random, target: Target) -> Values:
        """By name, so that they can be shown."""
        if not target.good and rng.random() < 0.95:
            return [], {}
        wild = rng.choice((0.0, 0.0, 0.1, 0.3, 0.6))
        positional: list[str] = []
        keywords: dict[str, str] = {}
        for i, (name, good) in enumerate(target.good.items()):
            if name not in target.required and rng.random() < 0.5:
                continue
            value = rng.choice(self.nasty) if rng.random() < wild else rng.choice(good)
            if i < target.positional and len(positional) == i and rng.random() < 0.7:
                positional.append(value)
            else:
                keywords[name] = value
        if target.others and rng.random() < wild:
            keywords[rng.choice(target.others)] = rng.choice(self.nasty)
        if rng.random() < 0.1 * wild:
            positional.append(rng.choice(self.nasty))
        if rng.random() < 0.1 * wild:
            keywords["nonsense"] = rng.choice(self.nasty)
        return positional, keywords

    def is_long(self, name: str) -> bool:
        """Whether a wait for that long would not end."""
        value = self.world.constants.get(name)
        if ":" in name or name in self.world.objects:
            return False
        return (
            value is None or value is True or (isinstance(value, int | float) and not value <= 0.01)
        )

    def too_much(self, key: str, target: Target, values: Values) -> bool:
        """A wait that would not end, or memory that the guest does not have."""
        positional, keywords = values
        names = {*positional, *keywords.values()}
        if "spin" in target.good and self.is_long(keywords.get("spin", "0")):
            return True
        if target.waits or "__next__" in key:
            endless = not names or any(map(self.is_long, names))
            if endless and key.startswith("CompletionChannel"):
                with contextlib.suppress(ClosedError):
                    self.world.objects["channel"].interrupt()
                return False
            return endless
        if key.startswith(("SRQ()", "SRQ.modify")):
            return "65535" in names  # kernel memory, of which the guest has little
        return key.startswith(("MR()", "MR.sub_mr", "MR.rereg")) and bool(
            {"2**24", "2**31-1", "2**32"} & names
        )

    def call(self, seed: str) -> None:
        rng = random.Random(seed)
        key = rng.choice(self.keys)
        target = self.targets[key]
        positional, keywords = values = self.arguments(rng, target)
        if self.too_much(key, target, values):
            return
        text = f"{key}({', '.join([*positional, *(f'{k}={v}' for k, v in keywords.items())])})"
        note(text)
        if fault := self.fault_of(key, target, values):
            self.faults.append(f"{text} -> {fault}")

    def fault_of(self, key: str, target: Target, values: Values) -> str:
        """What happened that must not; nothing, most of the time."""
        positional, keywords = values
        names = {*positional, *keywords.values()}
        method = key.partition("#")[0].partition(":")[0]
        self.tally.made[method] += 1
        args = [self.world.value(n) for n in positional]
        kwargs = {k: self.world.value(v) for k, v in keywords.items()}
        try:
            result = target.function(*args, **kwargs)
        except StopIteration:
            return "" if "__next__" in key else "StopIteration"
        except Boom:
            # What is to be removed is compared with what an earlier call may have added.
            compares = method.endswith("remove_close_callback")
            return "" if compares or "boom" in names else "Boom from nowhere"
        except ALLOWED as e:
            return "" if str(e) else f"{type(e).__name__} without a message"
        except BaseException as e:
            much = {"2**31-1", "2**63-1", "own_addr"} & names
            real = isinstance(e, MemoryError) and str(e) and much
            return "" if real else f"{type(e).__name__}: {e}"
        self.tally.done[method] += 1
        self.dispose(result)
        return ""

    def dispose(self, result: Any) -> None:
        objects = self.world.objects
        if type(result) is CQ or result is objects["cq"]:
            self.settle_debts()
        close = getattr(result, "close", None)
        if close is not None and not any(result is o for o in objects.values()):
            close()

    def settle_debts(self) -> None:
        for name in ("cq", "xcq"):
            cq = self.world.objects[name]
            if not cq.closed:
                cq.ack(cq.unacked)

    def tidy(self) -> None:
        """Between calls: drain, and a new world for one that is broken."""
        if not self.world.spent:
            for name in ("cq", "foreign_cq", "xcq"):
                while self.world.objects[name].poll(64):
                    pass
            while self.world.objects["acq"].poll(255):
                pass
            self.traffic()
        if self.world.spent:
            self.world.close()
            self.begin()

    def traffic(self) -> None:
        """So that there is something to get, to ack and to poll."""
        o = self.world.objects
        with contextlib.suppress(VerbsError):
            if o["new_qp"].state != QPState.RESET:
                o["new_qp"].modify(qp_state=QPState.RESET)
            o["cq"].req_notify()
            for _ in range(2):
                o["qp"].post_recv(o["mr"][0:64])
                o["qp"].post_send(o["mr"][64:72])
            o["cq"].poll_into(o["array"])
            while o["aqp"].outstanding_recvs < 8:
                o["aqp"].post_recv(None)
