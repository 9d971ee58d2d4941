# SPDX-License-Identifier: MIT
"""assert_type() at run time: the value that a device gave must be of the type that was promised.

The type checkers see that of `typing_extensions`, which does nothing when it runs.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, is_typeddict

from cqnotify import WorkCompletion

_T = TypeVar("_T")


def assert_type(value: _T, expected: Any) -> _T:
    assert is_of(value, expected), f"{value!r} is a {type(value).__name__}, not {expected}"
    return value


def is_of(value: object, expected: Any) -> bool:
    origin, args = get_origin(expected), get_args(expected)
    if expected is None:
        return value is None
    if origin in (Union, types.UnionType):
        return _is_of_union(value, args)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if origin is tuple:
        return isinstance(value, tuple) and _are_of(value, args)
    if origin is list:
        return isinstance(value, list) and all(is_of(item, args[0]) for item in value)
    if origin is WorkCompletion:
        return isinstance(value, origin) and _is_successful(value)
    if is_typeddict(expected):
        return isinstance(value, Mapping) and value.keys() <= expected.__annotations__.keys()
    if expected in (int, float):  # for which a flag or a bool would pass, too
        return type(value) is expected
    return isinstance(value, origin or expected)  # Any is a TypeError: it promises nothing


def _is_successful(wc: WorkCompletion) -> bool:
    """Whether it has all the fields that a SuccessfulCompletion promises."""
    return None not in (wc.byte_len, wc.opcode, wc.wc_flags)


def _is_of_union(value: object, choices: tuple[Any, ...]) -> bool:
    """A number beside an enum is one that the enum has no name for."""
    enums = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Enum)]
    if type(value) is int and any(value == member.value for enum in enums for member in enum):
        return False
    return any(is_of(value, choice) for choice in choices)


def _are_of(values: tuple[object, ...], args: tuple[Any, ...]) -> bool:
    if args[1:] == (...,):
        return all(is_of(value, args[0]) for value in values)
    return len(values) == len(args) and all(map(is_of, values, args))
