# SPDX-License-Identifier: MIT
"""What the device reports, as the exceptions that the tasks raise."""

from __future__ import annotations

import copy

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
    """For each task its own: an exception collects the frames through which it goes."""
    try:
        own = copy.copy(error)
    except Exception:  # of a class whose instances can't be made of their arguments
        return error
    return own.with_traceback(None) if type(own) is type(error) else error
