# SPDX-License-Identifier: MIT
"""Arguments of all kinds: right ones, numbers and texts of all sizes, objects that do harm."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

from support import until

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AsyncEventError,
    CompletionChannel,
    CompletionError,
    Context,
    FailureWatch,
    QPAddress,
    QPCap,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    WCArray,
    WCExFlags,
    devices,
)
from cqnotify.aio import AsyncCQ
from cqnotify.qp import DEFAULT_QKEY


class Boom(Exception):
    """What hostile objects raise."""


class Hostile:
    """Converts to 1 whatever it is asked for, and does something on the way."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def _one(self) -> int:
        self.action()
        return 1

    __index__ = __hash__ = __len__ = _one

    def _true(self, *_: object) -> bool:
        self.action()
        return True

    __bool__ = __eq__ = _true  # type: ignore[assignment]

    def __float__(self) -> float:
        self.action()
        return 0.001

    def __iter__(self) -> Iterator[int]:
        self.action()
        return iter([1])

    def __call__(self) -> None:
        self.action()

    def __repr__(self) -> str:
        self.action()
        return "<hostile>"

    @property
    def packed(self) -> bytes:
        self.action()
        return bytes(16)

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        self.action()
        return memoryview(bytearray(8))


def boom() -> None:
    raise Boom("hostile")


ALLOWED = (
    TypeError,
    ValueError,  # ClosedError is one
    OSError,  # VerbsError, TimeoutError, InterruptedError
    BufferError,
    LookupError,
    CompletionError,
    AsyncEventError,
)


LITERALS = (
    *("None", "True", "False", "-1", "0", "1", "2", "4", "7", "64", "255", "65535", "2**24"),
    *("2**31-1", "2**32", "2**63-1", "2**63", "2**64", "-2**63-1", "10**400", "1 << 20000"),
    *("0.0", "0.001", "1.5", "-0.5", "float('nan')", "float('inf')", "float('-inf')"),
    *("''", "'text'", "'a\\0b'", "'\\ud800'", "'::1'", "b''", "b'0' * 51 + b'\\0'"),
    *("()", "{1: 2}", "{'sl': 'x', 'nonsense': 1}", "[1, None]", "slice(-(1 << 70), 'x', 0.5)"),
)


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


# Arguments that can't be used twice, or hold on to something.
FRESH: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(64),
    "view": lambda: memoryview(bytearray(64)),
    "readonly": lambda: memoryview(bytes(64)),
    "gaps": lambda: memoryview(bytearray(64))[::2],
    "released": released,
    "boom": lambda: Hostile(boom),
}
VICTIMS = ("ctx", "pd", "cq", "mr", "qp", "channel", "ah", "srq", "acq", "aqp")
NASTY_FRESH = [*FRESH, "view_of_mr", "boom", "boom"]
NASTY_FRESH += [*(f"close:{name}" for name in VICTIMS), "poll", "reset"]
# Without one of these it is a new world's turn.
LASTING = (
    *("ctx", "other", "pd", "channel", "cq", "mr", "qp", "srq", "ah", "mw", "ud", "xcq", "watch"),
    *("new_qp", "ro_mr", "acq", "acq_cq", "acq_channel", "aqp", "amr"),
)

Values = tuple[list[str], dict[str, str]]  # by position, and by keyword


class Stock:
    """One of everything, open, closed, and of another context; and the arguments to choose from."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.other = Context(self.ctx.name)
        gid = self.ctx.find_gid()
        o: dict[str, Any] = {"ctx": self.ctx, "other": self.other}
        for prefix, ctx in (("", self.ctx), ("foreign_", self.other), ("closed_", self.ctx)):
            pd = o[prefix + "pd"] = PD(ctx)
            channel = o[prefix + "channel"] = CompletionChannel(ctx)
            cq = o[prefix + "cq"] = CQ(ctx, 64, channel=channel)
            mr = o[prefix + "mr"] = MR(pd, 4096, access=0x17)
            o[prefix + "mw"] = MW(pd)
            o[prefix + "sge"] = mr[0:64]
            qp = o[prefix + "qp"] = QP(pd, QPType.RC, send_cq=cq, max_inline_data=64)
            o[prefix + "ah"] = AH(pd, dgid=gid.gid, sgid_index=gid.index)
            o[prefix + "srq"] = SRQ(pd, 16)
            o[prefix + "send_wr"] = SendWR(mr[0:64])
            o[prefix + "recv_wr"] = RecvWR(mr[0:64])
            if prefix == "closed_":
                for name in ("ah", "qp", "srq", "mw", "mr", "cq", "channel", "pd"):
                    o[prefix + name].close()
            else:
                qp.connect(qp.address(), ack_timeout=8, retry_cnt=1, rnr_retry=1, access=7)
        pd, cq, mr, qp = o["pd"], o["cq"], o["mr"], o["qp"]
        o["ud"] = QP(pd, QPType.UD, send_cq=cq)
        o["ud"].connect()
        o["new_qp"] = QP(pd, QPType.RC, send_cq=cq)
        o["xcq"] = CQ(self.ctx, 16, wc_flags=WCExFlags.BYTE_LEN)
        o["ro_mr"] = MR(pd, bytes(64), access=0)
        o["array"] = WCArray(8)
        o["watch"] = FailureWatch(self.ctx)
        qp.post_recv(mr[0:64])
        qp.post_send(mr[64:72])
        self.wcs: list[Any] = []

        def arrived() -> bool:
            self.wcs += cq.poll()
            return len(self.wcs) == 2

        until(arrived, "a message")
        o["wc"] = self.wcs[0]
        o["address"] = qp.address()
        o["closed_ctx"] = Context(self.ctx.name)
        o["closed_ctx"].close()
        self.add_awaited(o)
        self.objects = o
        self.constants: dict[str, Any] = {
            **{text: eval(text) for text in LITERALS},
            "bytes16": bytes(16),
            "bytes40": bytes(40),
            "object": object(),
            "type": CQ,
            "lambda": lambda: None,
            "dict": {},
            "list_sge": [o["sge"]] * 100,
            "send_wrs": [o["send_wr"]] * 3,
            "recv_wrs": (o["recv_wr"],) * 3,
            "mixed_wrs": [o["send_wr"], o["closed_send_wr"], o["recv_wr"], o["sge"]],
            "mixed_sges": [o["sge"], o["send_wr"]],
            "slice": slice(0, 8),
            "IPv4": ipaddress.IPv4Address("10.0.0.1"),
            "IPv6": ipaddress.IPv6Address("fe80::1"),
            "group": ipaddress.IPv6Address("ff15::c0:1"),
            "'group'": "ff15::c0:1",
            "bad_address": QPAddress("x", None, 1.5, "y"),  # type: ignore[arg-type]
            "far_address": QPAddress(1 << 70, -1, 1 << 24, gid.gid),
            "bad_device": devices()[0]._replace(name=5),  # type: ignore[arg-type]
            "bad_cap": QPCap(-1, None, "x", 1 << 40, 1.5),  # type: ignore[arg-type]
            "inline": SendFlags.INLINE | SendFlags.SIGNALED,
            "own_gid": gid.gid,
            "own_index": gid.index,
            "own_type": gid.gid_type,
            "own_wire": o["address"].to_wire(),
            "own_addr": mr.addr + 64,
            "own_cmd_fd": self.ctx.cmd_fd,
            "own_rkey": mr.rkey,
            "own_qpn": o["ud"].qp_num,
            "own_qkey": DEFAULT_QKEY,
            "acq_addr": o["amr"].addr + 64,
            "acq_rkey": o["amr"].rkey,
        }

    def add_awaited(self, o: dict[str, Any]) -> None:
        """On a CQ of its own, and a channel."""
        self.loop = asyncio.new_event_loop()
        channel = o["acq_channel"] = CompletionChannel(self.ctx)
        for prefix in ("", "closed_"):
            cq = o[prefix + "acq_cq"] = CQ(self.ctx, 255, channel=channel)
            o[prefix + "acq"] = AsyncCQ(cq)
        o["closed_acq"].close()
        o["amr"] = MR(o["pd"], 4096, access=0xF)
        o["eight"] = o["amr"][0:8]
        qp = o["aqp"] = QP(o["pd"], QPType.RC, send_cq=o["acq_cq"], max_recv_wr=64)
        qp.connect(qp.address(), ack_timeout=8, retry_cnt=1, access=0xF)

    def fresh(self, name: str) -> Any:
        o = self.objects
        if name in FRESH:
            return FRESH[name]()
        if name == "view_of_mr":
            return bytearray(8) if o["mr"].closed else memoryview(o["mr"])[:64]
        if name == "poll":
            return Hostile(lambda: self.attempt(o["cq"].poll))
        if name == "reset":
            return Hostile(lambda: self.attempt(o["qp"].modify, qp_state=0))
        victim = o[name.removeprefix("close:")]
        return Hostile(lambda: self.attempt(victim.close))

    @staticmethod
    def attempt(function: Callable[..., Any], **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            function(**kwargs)

    def value(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        return self.objects[name] if name in self.objects else self.fresh(name)

    @property
    def spent(self) -> bool:
        o = self.objects
        if any(o[name].closed for name in LASTING) or o["acq"]._error is not None:
            return True
        return any(o[name].state != QPState.RTS for name in ("qp", "aqp"))

    def close(self) -> None:
        self.objects["acq"].close()
        self.ctx.close()
        self.other.close()
        self.loop.close()
