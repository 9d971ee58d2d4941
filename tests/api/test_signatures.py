# SPDX-License-Identifier: MIT
"""Whatever is public says by itself what it takes and what it is for: inspect and help() work."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, get_origin, is_typeddict

import cqnotify
from cqnotify import CQ, QP, SRQ, QPAttr, RecvWR, SendWR, exchange
from cqnotify._qp_connect import ConnectOptions
from cqnotify.aio import AsyncCQ
from cqnotify.exchange import blocking
from cqnotify.qp import QPChanges
from cqnotify.testing import Endpoint, connect
from cqnotify.testing._options import PairOptions, QPOptions


def modules() -> Iterator[ModuleType]:
    """The public ones, which say by `__all__` what is in them; not those of the commands' tools,
    nor what needs torch."""
    tools = ("cqnotify.check", "cqnotify.trace", "cqnotify.torch")
    names = [
        info.name
        for info in pkgutil.walk_packages(cqnotify.__path__, "cqnotify.")
        if not info.name.startswith(tools)
    ]
    for name in ["cqnotify", *names]:
        if "._" not in name and hasattr(module := importlib.import_module(name), "__all__"):
            yield module


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Its classes and functions, and the methods and attributes of the classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if get_origin(value) is not None:
            continue  # an alias, which isclass() takes for a class before Python 3.11
        if inspect.isclass(value) or inspect.isroutine(value):
            yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            yield from members(value, f"{module.__name__}.{name}")


def members(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    """What it and its bases in this package define, besides what Python makes by itself."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("cqnotify")]
    for name in sorted({name for base in bases for name in vars(base)}):
        what = inspect.getattr_static(cls, name)
        if name.startswith("_") and name not in ("__enter__", "__exit__", "__aenter__"):
            continue
        if name in vars(cls).get("__slots__", ()):
            continue  # of Python code: its class explains it
        if isinstance(what, classmethod | staticmethod):
            what = getattr(cls, name)
        if inspect.isroutine(what) or inspect.isdatadescriptor(what):
            yield f"{prefix}.{name}", what


ALL = dict(pair for module in modules() for pair in public(module))
CALLABLE = {name: what for name, what in ALL.items() if callable(what) and not is_typeddict(what)}


def test_everything_is_looked_at() -> None:
    assert {f"cqnotify.{name}" for name in ("CQ", "CQ.poll", "CQ.__exit__", "devices")} <= set(ALL)
    assert {"cqnotify.aio.AsyncCQ.wait", "cqnotify.aio.AsyncCQ.send"} <= set(ALL)
    assert {"cqnotify.MR.implicit", "cqnotify.MR.addr", "cqnotify.testing.connect"} <= set(ALL)


def names(what: Any) -> set[str]:
    """Of its parameters, without what stands for the object itself."""
    return inspect.signature(what).parameters.keys() - {"self", "cls"}


def is_known(what: Any) -> bool:
    """Whether the signature can be read, and tells more than that anything is taken."""
    try:
        parameters = inspect.signature(what).parameters.values()
    except ValueError:
        return False
    anything_goes = inspect.isclass(what) and (
        issubclass(what, Exception | Enum) or getattr(what, "_is_protocol", False)
    )
    return anything_goes or all(
        p.kind != p.VAR_POSITIONAL or p.annotation is not p.empty for p in parameters
    )


def test_every_signature_is_known() -> None:
    assert [name for name, what in CALLABLE.items() if not is_known(what)] == []


def has_docstring(what: Any) -> bool:
    doc: str | None = vars(what).get("__doc__") if inspect.isclass(what) else what.__doc__
    return doc is not None and "--\n\n" not in doc  # which ends a signature, and is not for readers


def test_everything_has_a_docstring_of_its_own() -> None:
    undocumented = [name for name, what in ALL.items() if not has_docstring(what)]
    assert [name for name in undocumented if not name.endswith("__")] == []
    for_the_package = [n for n, what in ALL.items() if "consumer:" in (inspect.getdoc(what) or "")]
    assert for_the_package == []


def test_what_a_docstring_explains_is_a_parameter() -> None:
    explained = {
        (name, parameter)
        for name, what in CALLABLE.items()
        for listed in re.findall("^([a-z_]+(?:, [a-z_]+)*): ", inspect.getdoc(what) or "", re.M)
        for parameter in listed.split(", ")
    }
    assert ("cqnotify.QP.connect", "max_dest_rd_atomic") in explained
    assert [(name, p) for name, p in explained if p not in names(ALL[name])] == []


# ---- what is handed on, is taken there -----------------------------------------------------


def parameters(what: Any) -> list[tuple[str, Any, Any]]:
    """Their names, kinds and defaults, but for the first one: the object itself."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(what).parameters.values()][1:]


def test_a_work_request_takes_what_posting_takes() -> None:
    assert names(QP.post_send) == names(SendWR)
    assert names(QP.post_recv) == names(SRQ.post_recv) == names(RecvWR)
    operations = [AsyncCQ.send, AsyncCQ.recv, AsyncCQ.write, AsyncCQ.read]
    operations += [AsyncCQ.atomic_cmp_and_swp, AsyncCQ.atomic_fetch_and_add]
    for operation in operations:
        assert names(operation) - {"qp"} <= names(SendWR)


def test_what_does_the_same_takes_the_same() -> None:
    assert parameters(AsyncCQ.batches) == parameters(AsyncCQ.wait)
    assert parameters(AsyncCQ.poll) == parameters(CQ.poll)
    for role in ("client", "server"):
        name = f"exchange_as_{role}"
        assert parameters(getattr(exchange, name)) == parameters(getattr(blocking, name))


def test_a_call_for_threads_takes_what_the_awaited_one_takes() -> None:
    for name in ("connect", "join_multicast", "resolve", "Request.accept"):
        awaited, blocking = ALL[f"cqnotify.cm.{name}"], ALL[f"cqnotify.cm.blocking.{name}"]
        assert inspect.signature(awaited).parameters == inspect.signature(blocking).parameters
    assert inspect.signature(ALL["cqnotify.cm.blocking.connect"]).return_annotation == "Connection"


def keys(options: type) -> set[str]:
    """Of a TypedDict, with those of its bases."""
    return set(options.__annotations__)


def test_typed_options_are_those_of_the_calls() -> None:
    of_hardware = {"create_flags", "source_qpn", "max_tso_header"}
    of_hardware |= {"xrcd", "rwq_ind_tbl", "rx_hash_conf"}
    assert keys(QPOptions) == names(QP) - {"pd", "qp_type", "send_cq", "recv_cq"} - of_hardware
    of_both_ends = {"remote", "port_num", "gid_index"}
    assert keys(ConnectOptions) == names(QP.connect) - of_both_ends
    assert names(connect) >= {"port_num", "gid_index"}
    shared = {"pd", "channel", "send_cq", "recv_cq", "mr"}
    of_endpoints = names(Endpoint) - {"ctx", "qp_type", "qp"} - shared
    assert keys(PairOptions) == (
        of_endpoints | keys(QPOptions) | keys(ConnectOptions) | {"port_num", "gid_index"}
    )
    assert keys(QPChanges) == set(QPAttr._fields) - {"sq_draining"}
