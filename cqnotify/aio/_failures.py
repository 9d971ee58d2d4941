# SPDX-License-Identifier: MIT
"""The exceptions that tasks get for failures of the device."""

from __future__ import annotations

from typing import Any

from .._core import AsyncEvent, AsyncEventError
from ..enums import AsyncEventType


def failure(event: AsyncEvent) -> AsyncEventError:
    kind = event.event_type
    name = kind.name if isinstance(kind, AsyncEventType) else str(kind)
    error = AsyncEventError(
        f"the device reports {name}: completions that are awaited here may never come; see the "
        "attribute event"
    )
    error.event = event
    return error


def same(a: AsyncEvent, b: AsyncEvent) -> bool:
    if (a.event_type, a.port_num) != (b.event_type, b.port_num):
        return False
    return a.cq is b.cq and a.qp is b.qp and a.srq is b.srq


def fresh(error: Exception) -> Exception:
    """Return a copy for one task: raising an exception adds that task's frames to it.

    Not by copy.copy(), whose inner functions share variables: see _reader.py.
    """
    try:
        reduced: Any = error.__reduce_ex__(4)
        own: Any = reduced[0](*reduced[1])
        if type(own) is not type(error):
            return error
        if len(reduced) > 2 and reduced[2] is not None:
            own.__setstate__(reduced[2])
    except Exception:  # the class cannot be copied
        return error
    copied: Exception = own.with_traceback(None)
    return copied
