# SPDX-License-Identifier: MIT
"""What an object has, and answers when it is asked for nothing in particular, is of the type that
the stub of the core promises, or the class itself. test_types.py has what depends on arguments."""

from __future__ import annotations

import ast
import collections.abc
import inspect
import ipaddress
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_types import is_of
from types_support import Pair, exchange

import cqnotify
from cqnotify import (
    AH,
    MW,
    QP,
    SRQ,
    AsyncEventType,
    Context,
    FailureWatch,
    QPState,
    RecvWR,
    SendWR,
    VerbsError,
    WCArray,
    _core,
    devices,
    hw,
)
from cqnotify.testing import wait_completions


class Names(dict[str, Any]):
    """Those of the stub, and of annotations of the package."""

    def __missing__(self, name: str) -> Any:
        for module in (_core, cqnotify, hw, typing, collections.abc, ipaddress):
            if hasattr(module, name):
                return getattr(module, name)
        raise KeyError(name)


NAMES = Names(_MaybeNone=None, _Absent=None)
NAMES |= {f"_{cls.__name__}": cls for cls in (Context, QP, SRQ, hw.WQ)}
STUB = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text())
ASKED = re.compile(r"query\w*|find_gid$|address$|fileno$|try_get\w*|poll$|arm_if_empty$|read$")


def answer(node: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name, and what an attribute is, or a call without arguments returns, if that can be."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target), node.annotation
    if not isinstance(node, ast.FunctionDef):
        return "", None
    arguments = node.args
    needed = len(arguments.posonlyargs + arguments.args) - len(arguments.defaults) > 1
    return node.name, None if needed or None in arguments.kw_defaults else node.returns


CLASSES = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
IN_STUB = {cls.name: dict(map(answer, cls.body)) for cls in CLASSES}


def promised(cls: type, name: str) -> Any:
    """The type of this attribute, or of what this method returns; None if that is not told."""
    owners = cls.__mro__
    found = next(vars(owner)[name] for owner in owners if name in vars(owner))
    function = found.fget if isinstance(found, property) else found
    if inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        alone = sum(p.default is p.empty for p in parameters) == 1
        return typing.get_type_hints(function, None, NAMES).get("return") if alone else None
    names = [*(owner.__name__ for owner in owners), "_Object"]
    told = (IN_STUB.get(owner, {}).get(name) for owner in names)
    expression = next((each for each in told if each is not None), None)
    hint = None if expression is None else eval(ast.unparse(expression), {}, NAMES)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Final else hint


def answers(thing: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each name, what is there, and what should be."""
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        hints = typing.get_type_hints(type(thing), None, NAMES)
        yield from ((name, getattr(thing, name), hints[name]) for name in thing._fields)
        return
    for name in dir(type(thing)):
        hint, called = promised(type(thing), name), callable(getattr(type(thing), name))
        if hint in (None, Any, typing.Final) or name[0] == "_" or called > bool(ASKED.match(name)):
            continue
        try:
            value = getattr(thing, name)() if called else getattr(thing, name)
        except VerbsError:  # this device lacks it
            continue
        yield name, value, hint


def check(thing: Any, where: str, seen: set[tuple[str, str]]) -> None:
    for name, value, hint in answers(thing):
        assert is_of(value, hint), f"{where}.{name}: {value!r} is not {hint}"
        seen.add((type(thing).__name__, name))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            check(value, f"{where}.{name}", seen)


@pytest.mark.not_on_iwarp("siw has no windows of memory, and knows no SQD")
def test_each_object_has_what_is_promised(rdma_context: Context, rdma_rc_pair: Pair) -> None:
    ctx, (a, b) = rdma_context, rdma_rc_pair
    (received,) = exchange(a, b)
    b.qp.post_recv(b.mr)
    b.qp.modify(qp_state=QPState.ERR)
    (failed,) = wait_completions(b.recv_cq)
    a.qp.modify(qp_state=QPState.SQD)
    event = ctx.get_async_event()
    while event.event_type != AsyncEventType.SQ_DRAINED:
        event = ctx.get_async_event()
    gid = ctx.find_gid()
    things: list[Any] = [ctx, a.pd, a.channel, a.send_cq, a.mr, a.mr[0:8], a.qp, *devices()]
    things += [SRQ(a.pd, 4), MW(a.pd), AH(a.pd, dgid=gid.gid, sgid_index=gid.index), WCArray(4)]
    things += [SendWR(a.mr), RecvWR(a.mr), FailureWatch(ctx), received, failed, event]
    seen: set[tuple[str, str]] = set()
    for thing in things:
        check(thing, type(thing).__name__, seen)
    assert {name for name, _ in seen} >= {type(thing).__name__ for thing in things}
    assert len(seen) > 200
