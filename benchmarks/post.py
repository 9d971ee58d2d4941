# SPDX-License-Identifier: MIT
"""Posting work requests: receives of 64 bytes, and RDMA writes of 8 to the QP itself.

Either one request is posted again and again, or each post gets arguments, or lists of 100.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from cqnotify import QPState, RecvWR, SendWR, WROpcode

from .endpoints import FIRST_ID, SIZE, IbverbsLoopback, Loopback, PyverbsLoopback
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

POSTS = 800  # in one measurement; fewer than a queue has room for
LIST = 100
RECEIVE = 64


def reusable(post: Callable[[Any], object], wr: object) -> None:
    for _ in repeat(None, POSTS):
        post(wr)


def receives_by_arguments(end: Loopback) -> None:
    post, sge = end.receiver.post_recv, end.mr[:RECEIVE]
    for _ in repeat(None, POSTS):
        post(sge, wr_id=FIRST_ID)


def sends_by_arguments(end: Loopback) -> None:
    post, sge, addr, rkey = end.qp.post_send, end.mr[:SIZE], end.mr.addr, end.mr.rkey
    write = WROpcode.RDMA_WRITE
    for _ in repeat(None, POSTS):
        post(sge, wr_id=FIRST_ID, opcode=write, remote_addr=addr, rkey=rkey)


def as_lists(post: Callable[[Any], object], wrs: list[Any]) -> None:
    for _ in repeat(None, POSTS // LIST):
        post(wrs)


def timed(what: Callable[..., None], *arguments: object) -> Figures:
    start = clock()
    what(*arguments)
    return {"ops": POSTS, "total": clock() - start}


def cqnotify(way: str) -> Round:
    end = Loopback()
    receive, write = RecvWR(end.mr[:RECEIVE], wr_id=FIRST_ID), end.wrs[0]
    receives: list[RecvWR] = [receive] * LIST
    writes: list[SendWR] = [write] * LIST

    def run() -> dict[str, Figures]:
        end.receiver.modify(qp_state=QPState.RESET)
        end.receiver.to_init()
        if way == "reusable":
            figures = (
                timed(reusable, end.receiver.post_recv, receive),
                timed(reusable, end.qp.post_send, write),
            )
        elif way == "arguments":
            figures = timed(receives_by_arguments, end), timed(sends_by_arguments, end)
        else:
            figures = (
                timed(as_lists, end.receiver.post_recv, receives),
                timed(as_lists, end.qp.post_send, writes),
            )
        end.drain(POSTS)
        return {"post_recv": figures[0], "post_send": figures[1]}

    return run


def pyverbs(way: str) -> Round:
    from pyverbs import wr

    end = PyverbsLoopback()
    address, lkey = end.mr.buf, end.mr.lkey

    def receive() -> Any:
        return wr.RecvWR(FIRST_ID, num_sge=1, sg=[wr.SGE(address, RECEIVE, lkey)])

    def built_each_time() -> None:
        for _ in repeat(None, POSTS):
            end.receiver.post_recv(receive())

    def run() -> dict[str, Figures]:
        end.reset_receiver()
        if way != "reusable":
            return {"post_recv": timed(built_each_time)}
        figures = (
            timed(reusable, end.receiver.post_recv, receive()),
            timed(reusable, end.qp.post_send, end.wrs[0]),
        )
        end.drain(POSTS)
        return {"post_recv": figures[0], "post_send": figures[1]}

    return run


def ibverbs(way: str) -> Round:
    import ibverbs

    end = IbverbsLoopback()
    mr, write = end.mr, end.wrs[0]

    def receive() -> Any:
        return ibverbs.RecvWR(FIRST_ID, [mr.sge(RECEIVE)])

    def each_receive_built() -> None:
        for _ in repeat(None, POSTS):
            end.receiver.post_recv(receive())

    def each_write_built() -> None:
        for _ in repeat(None, POSTS):
            end.qp.post_send(end.write(FIRST_ID))

    def run() -> dict[str, Figures]:
        end.reset_receiver()
        if way == "reusable":
            figures = (
                timed(reusable, end.receiver.post_recv, receive()),
                timed(reusable, end.qp.post_send, write),
            )
        elif way == "arguments":
            figures = timed(each_receive_built), timed(each_write_built)
        else:
            figures = (
                timed(as_lists, end.receiver.post_recv, [receive()] * LIST),
                timed(as_lists, end.qp.post_send, [write] * LIST),
            )
        end.drain(POSTS)
        return {"post_recv": figures[0], "post_send": figures[1]}

    return run


BENCHMARK = Benchmark(
    title="Posting a work request",
    op="work request",
    subjects={
        "C": InC("post"),
        "C, lists": InC("post", "lists"),
        "pyverbs": lambda: pyverbs("reusable"),
        "pyverbs, built each time": lambda: pyverbs("arguments"),
        "ibverbs": lambda: ibverbs("reusable"),
        "ibverbs, built each time": lambda: ibverbs("arguments"),
        "ibverbs, lists": lambda: ibverbs("lists"),
        "cqnotify": lambda: cqnotify("reusable"),
        "cqnotify, arguments": lambda: cqnotify("arguments"),
        "cqnotify, lists": lambda: cqnotify("lists"),
    },
    places=("native", "device"),
    limits=(
        Limit("cqnotify", case="post_recv", over="C", at_most=4),
        Limit("cqnotify", case="post_recv", over="ibverbs", at_most=0.25),
        Limit("cqnotify", case="post_send", over="ibverbs", at_most=0.95),
        Limit("cqnotify, arguments", case="post_recv", over="C", at_most=5.4),
        Limit("cqnotify, lists", case="post_recv", over="C", at_most=2.2),
    ),
    quick=True,
)
