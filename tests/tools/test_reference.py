# SPDX-License-Identifier: MIT
"""docs/reference.md has every public call, with its signature and the meaning of each parameter."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from doc_support import DOCS

import cqnotify
from cqnotify import hw
from cqnotify.qp import QPChanges

MODULES = ["cqnotify", "cqnotify.hw", "cqnotify.aio", "cqnotify.cm", "cqnotify.cm.blocking"]
MODULES += ["cqnotify.messages", "cqnotify.exchange", "cqnotify.exchange.blocking"]
MODULES += ["cqnotify.testing"]
MODULES += ["cqnotify.hosts", "cqnotify.conformance", "cqnotify.metrics"]
MODULES += ["cqnotify.metrics.prometheus", "cqnotify.metrics.opentelemetry"]
OF_ALL = {"close", "add_close_callback", "remove_close_callback"}  # of objects that own a handle
MADE_BY_OTHERS = {"Batches", "Scope", "Host", "Program", "PairFactory", "SendDestination"}
MADE_BY_OTHERS |= {"Connection", "Listener", "MulticastGroup", "Request"}  # nobody calls these
MADE_BY_OTHERS |= {"Snapshot", "Counters", "ChannelCounters", "Histogram", "Instruments"}

CALL = re.compile(r"\*\*`([\w.]+)\((.*?)\)`\*\*")
MEANING = re.compile(r"- (`\w+`(?:, `\w+`)*): ")
BORROWED = re.compile(r"(?:Parameters|The others)\s+as\s+for\s+`([\w.]+)\(\)`")


@dataclass
class Call:
    """What the page has of a call."""

    arguments: str
    text: str = ""
    explained: set[str] = field(default_factory=set)


def read_page() -> dict[str, Call]:
    """By module and name; calls that share a paragraph share what stands below it."""
    page: dict[str, Call] = {}
    module = "cqnotify"
    sharing: list[Call] = []
    for paragraph in re.split(r"\n\n", (DOCS / "reference.md").read_text()):
        if heading := re.match(r"## (.*)", paragraph):
            module = heading[1] if heading[1] in MODULES else "cqnotify"
        if calls := CALL.findall(paragraph.replace("\n", " ")):
            sharing = [Call(arguments) for _, arguments in calls]
            page |= {f"{module}.{calls[i][0]}": call for i, call in enumerate(sharing)}
        for call in sharing:
            call.text += paragraph + "\n\n"
            for names in MEANING.findall(paragraph):
                call.explained |= set(re.findall(r"\w+", names))
    return page


PAGE = read_page()


def explained(module: str, call: Call) -> set[str]:
    """The parameters that the page explains with a call, or with those that it refers to."""
    names = set(call.explained)
    for other in BORROWED.findall(call.text):
        names |= explained(module, PAGE.get(f"{module}.{other}") or PAGE[f"cqnotify.{other}"])
    return names


def methods_of(cls: type) -> Iterator[str]:
    """Also those that it inherits, unless from another class of users."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cqnotify")]
    ours = [cls, *(base for base in ours[1:] if getattr(cqnotify, base.__name__, None) is not base)]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in sorted(names - (OF_ALL if hasattr(cls, "add_close_callback") else set())):
        member = inspect.getattr_static(cls, name)
        if callable(getattr(cls, name)) and not isinstance(member, property | type):
            yield name


def public_calls() -> Iterator[tuple[str, str, Any]]:
    """The module, the name and the object of all that users call."""
    for module in MODULES:
        namespace = importlib.import_module(module)
        for name in namespace.__all__:
            obj = getattr(namespace, name)
            if inspect.isroutine(obj):
                yield module, name, obj
            if not isinstance(obj, type) or issubclass(obj, enum.Enum | dict):
                continue
            is_result = issubclass(obj, tuple | BaseException) or name in MADE_BY_OTHERS
            if not is_result and inspect.signature(obj).parameters:
                yield module, name, obj
            if not issubclass(obj, BaseException):
                for method in methods_of(obj):
                    yield module, f"{name}.{method}", getattr(obj, method)
    for name in OF_ALL:
        yield "cqnotify", f"object.{name}", getattr(cqnotify.CQ, name)


CALLS = list(public_calls())


def parameters_of(function: Any) -> list[inspect.Parameter]:
    signature = inspect.signature(function)
    return [p for p in signature.parameters.values() if p.name not in ("self", "cls")]


def shape(parameters: list[inspect.Parameter]) -> list[tuple[str, bool, object]]:
    """Names, whether by keyword alone, and defaults; `...` on the page stands for any."""
    return [
        (p.name, p.kind is p.KEYWORD_ONLY, ... if inspect.isfunction(p.default) else p.default)
        for p in parameters
    ]


@pytest.mark.parametrize(("module", "name", "obj"), CALLS, ids=lambda x: x if str(x) == x else "")
def test_a_call_has_its_signature_and_the_meaning_of_each_parameter(
    module: str, name: str, obj: Any
) -> None:
    shown = PAGE[f"{module}.{name}"]
    namespace = {"hw": hw, **vars(cqnotify), **vars(importlib.import_module(module))}
    function = eval(f"lambda {shown.arguments}: None", namespace)
    parameters = parameters_of(obj)
    assert shape(parameters_of(function)) == shape(parameters)
    assert {p.name for p in parameters} - explained(module, shown) == set()


def test_the_page_has_no_call_that_there_is_not() -> None:
    assert set(PAGE) - {f"{module}.{name}" for module, name, _ in CALLS} == set()


def test_the_attributes_of_modify_are_those_that_it_takes() -> None:
    table = re.findall(r"^\| (`.*?) \|", PAGE["cqnotify.QP.modify"].text, re.M)
    shown = {name for row in table for name in re.findall(r"\w+", row)}
    assert shown == set(cast("dict[str, object]", QPChanges.__annotations__))
