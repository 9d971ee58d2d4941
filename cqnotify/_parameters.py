# SPDX-License-Identifier: MIT
"""Parameters that are declared once: a call for threads has those of the awaited one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def parameters_of(
    awaited: Callable[P, object],
) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Return a decorator that gives a function the parameters of another one, which is awaited.

    The function is called with all of them, as `inspect.Signature.bind` has them. To type checkers,
    and to `help()`, it has the declared signature.
    """
    signature = inspect.signature(awaited)

    def declare(function: Callable[..., T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        returns = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return call

    return declare


def parameters_of_method(
    awaited: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Return the same for a method, whose object is of another class."""
    return parameters_of(awaited)
