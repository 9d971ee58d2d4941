# SPDX-License-Identifier: MIT
"""The reference is complete: docs/reference/ shows each public name, and the docstring of each call
explains its parameters and names what it raises."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, cast

import pytest
from doc_support import DOCS

import cqnotify
from cqnotify.qp import QP, QPChanges

MODULES = ["cqnotify", "cqnotify.hw", "cqnotify.aio", "cqnotify.cm", "cqnotify.cm.blocking"]
MODULES += ["cqnotify.messages", "cqnotify.exchange", "cqnotify.exchange.blocking"]
MODULES += ["cqnotify.memory", "cqnotify.memory.blocking", "cqnotify.testing"]
MODULES += ["cqnotify.hosts", "cqnotify.conformance", "cqnotify.metrics"]
MODULES += ["cqnotify.metrics.prometheus", "cqnotify.metrics.opentelemetry"]
MADE_BY_OTHERS = {"Batches", "Scope", "Host", "Program", "PairFactory", "SendDestination"}
MADE_BY_OTHERS |= {"Connection", "Listener", "MulticastGroup", "Request", "Transfer"}
MADE_BY_OTHERS |= {"TransferFuture"}  # nobody calls these
MADE_BY_OTHERS |= {"Snapshot", "Counters", "ChannelCounters", "Histogram", "Instruments"}

# What any call can raise, see docs/reference.md.
ANY_CALL = {"ValueError", "TypeError", "VerbsError", "ClosedError", "DeviceRemovedError"}

TIMED_OUT = {"cqnotify.hosts.Host.restart": "HostError"}

# A line of a docstring such as "port, ports: what it is".
EXPLAINED = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): \S", re.M)
BORROWED = re.compile(r"[Tt]he (?:other )?parameters are those of `([\w.]+)`")
ALSO_RAISES = re.compile(r"(?:so are the errors|the errors of `([\w.]+)`)")


def namespace(module: str) -> dict[str, Any]:
    loaded = importlib.import_module(module)
    return {name: getattr(loaded, name) for name in loaded.__all__}


# ---- the pages ------------------------------------------------------------------------------


def shown() -> Iterator[str]:
    """The names that the pages give to autodoc."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        module = ""
        for line in page.read_text().splitlines():
            if whole := re.match(r"\.\. automodule:: (\S+)", line):
                yield from (f"{whole[1]}.{name}" for name in namespace(whole[1]))
            elif heading := re.match(r"\.\. py:currentmodule:: (\S+)", line):
                module = heading[1]
            elif name := re.match(r"\.\. auto\w+:: (\S+)", line):
                yield f"{module}.{name[1]}"


def test_the_pages_show_each_public_name_once_and_no_other() -> None:
    public = [f"{module}.{name}" for module in MODULES for name in namespace(module)]
    assert sorted(shown()) == sorted(public)


# ---- the calls ------------------------------------------------------------------------------


def methods_of(cls: type) -> Iterator[str]:
    """Also those that it inherits, unless from another class of users."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cqnotify")]
    ours = [cls, *(base for base in ours[1:] if getattr(cqnotify, base.__name__, None) is not base)]
    for name in sorted({name for base in ours for name in vars(base) if not name.startswith("_")}):
        member = inspect.getattr_static(cls, name)
        if callable(getattr(cls, name)) and not isinstance(member, property | type):
            yield name


def public_calls() -> Iterator[tuple[str, Any]]:
    """The name and the object of all that users call."""
    for module in MODULES:
        for name, obj in namespace(module).items():
            if inspect.isroutine(obj):
                yield f"{module}.{name}", obj
            if not isinstance(obj, type) or issubclass(obj, enum.Enum | dict):
                continue
            is_result = issubclass(obj, tuple | BaseException) or name in MADE_BY_OTHERS
            if not is_result and inspect.signature(obj).parameters:
                yield f"{module}.{name}", obj
            if not issubclass(obj, BaseException):
                for method in methods_of(obj):
                    yield f"{module}.{name}.{method}", getattr(obj, method)


CALLS = dict(public_calls())
each_call = pytest.mark.parametrize("name", CALLS)


def test_the_calls_are_found() -> None:
    wanted = {"cqnotify.devices", "cqnotify.CQ", "cqnotify.CQ.poll", "cqnotify.PD.close"}
    wanted |= {"cqnotify.cm.blocking.Request.accept", "cqnotify.aio.AsyncCQ.send"}
    assert wanted - set(CALLS) == set()


def docstring(name: str) -> str:
    return inspect.getdoc(CALLS[name]) or ""


def referred(name: str, other: str) -> str:
    """The call that a docstring names, from the names next to it outwards."""
    parts = name.split(".")
    names = [".".join([*parts[:i], other]) for i in range(len(parts) - 1, -1, -1)]
    return next(full for full in names if full in CALLS)


def explained(name: str) -> set[str]:
    """The parameters that the docstring explains, or those to which it refers."""
    text = docstring(name)
    names = {word for listed in EXPLAINED.findall(text) for word in listed.split(", ")}
    for other in BORROWED.findall(text):
        names |= explained(referred(name, other))
    return names


@each_call
def test_a_docstring_explains_each_parameter(name: str) -> None:
    parameters = set(inspect.signature(CALLS[name]).parameters) - {"self", "cls"}
    assert parameters - explained(name) == set()


def named_errors(name: str) -> str:
    """The docstring, with those whose parameters or errors are its own, too."""
    text = docstring(name)
    others = [*BORROWED.findall(text), *filter(None, ALSO_RAISES.findall(text))]
    return text + "".join(named_errors(referred(name, other)) for other in others)


def raised(function: Any) -> Iterator[str]:
    """The exceptions that the Python code of a call raises."""
    code = inspect.unwrap(function)
    if not hasattr(code, "__code__"):
        return  # it is in C, or a class
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            if name.endswith("Error"):
                yield name


@each_call
def test_a_docstring_names_what_the_call_raises(name: str) -> None:
    errors = set(raised(CALLS[name])) - ANY_CALL
    if "timeout" in inspect.signature(CALLS[name]).parameters:
        errors.add(TIMED_OUT.get(name, "TimeoutError"))
    text = named_errors(name)
    assert {error for error in errors if not re.search(rf"\b{error}\b", text)} == set()


@pytest.mark.parametrize("module", MODULES)
def test_each_exception_is_named_by_what_raises_or_keeps_it(module: str) -> None:
    """Except those that only stand for others."""
    public = namespace(module).values()
    errors = [obj for obj in public if isinstance(obj, type) and issubclass(obj, Exception)]
    bases = {base for error in errors for base in error.__bases__}
    classes = [obj for obj in public if isinstance(obj, type)]
    members = [getattr(cls, name) for cls in classes for name in dir(cls) if name[0] != "_"]
    text = " ".join(inspect.getdoc(what) or "" for what in [*members, *CALLS.values()])
    named = set(re.findall(r"\w+", text))
    assert {error.__name__ for error in errors if error not in bases} - named == set()


def test_the_attributes_of_modify_are_those_that_it_takes() -> None:
    table = re.findall(r"^ {8}((?:\w+, )*\w+)  +\S", inspect.getdoc(QP.modify) or "", re.M)
    names = {name for row in table for name in row.split(", ")}
    assert names == set(cast("dict[str, object]", QPChanges.__annotations__))
