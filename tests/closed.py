# SPDX-License-Identifier: MIT
"""Everything that a closed object can be asked, as the signatures tell."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

from cqnotify import MR

# What a closed object still does, and what is no method of an object.
OPEN_TO_ALL = {
    "closed",
    "close",
    "stats",
    "user_data",
    "remove_close_callback",
    *("from_wc", "implicit", "from_fd", "from_handle", "from_dm", "from_dmabuf", "null", "open"),
}
SPECIAL = {"__enter__", "__iter__", "__len__", "_on_event"}


@functools.cache
def closed_calls(cls: type) -> dict[str, Callable[[Any], Any]]:
    """What a closed object refuses before it looks at the arguments, which are all wrong."""
    calls: dict[str, Callable[[Any], Any]] = {}
    for name in dir(cls):
        if name in OPEN_TO_ALL or (name.startswith("_") and name not in SPECIAL):
            continue
        if inspect.isdatadescriptor(inspect.getattr_static(cls, name)):
            calls[name] = operator.attrgetter(name)
        else:
            calls |= {f"{name}({n})": call for n, call in wrong_calls(getattr(cls, name))}
    if cls is MR:
        calls |= {"__buffer__": memoryview, "__getitem__": lambda mr: mr[0 : 10**9]}
    return calls


def wrong_calls(method: Callable[..., Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """With what it needs; if it is the core's also with all that it takes, and with nothing."""
    parameters = [*inspect.signature(method).parameters.values()][1:]
    parameters = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    needed = sum(p.default is p.empty for p in parameters)
    if not inspect.ismethoddescriptor(method):
        return [("what it needs", lambda o: method(o, *[1] * needed))]
    by_position = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
    by_name = {p.name: print for p in parameters[by_position:]}
    found: list[tuple[str, Callable[[Any], Any]]] = [
        ("what it needs", lambda o: method(o, *[print] * needed)),
        ("all", lambda o: method(o, *[print] * by_position, **by_name)),
    ]
    if [p.kind for p in parameters] != [inspect.Parameter.POSITIONAL_ONLY]:  # Python counts that
        found.append(("nothing", method))
    return found
