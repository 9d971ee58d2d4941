# SPDX-License-Identifier: MIT
"""A name with several addresses: each has its share of the time, and its words in the error."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Final

# The errors that say most about the peer come first: its host has answered; it may answer later.
TELLING: Final = (ConnectionRefusedError, TimeoutError, ConnectionError, OSError)


def share_of(end: float | None, attempts: int) -> float | None:
    """When the first of so many attempts ends, if all of them end at `end`."""
    if end is None:
        return None
    now = time.monotonic()
    return now + max(0.0, end - now) / attempts


def none_works(failures: Sequence[tuple[str, Exception]]) -> Exception:
    """What is raised where no address works: an error of the kind that tells most, with the words
    of all. The errors themselves are its cause."""
    if len(failures) == 1:
        return failures[0][1]
    errors = [error for _, error in failures]
    words = [
        str(error) if address in str(error) else f"{address}: {error}"
        for address, error in failures
    ]
    text = f"none of {len(failures)} addresses works: {'; '.join(words)}"
    told = copy.copy(min(errors, key=_rank))
    if isinstance(told, OSError) and told.errno is not None:
        told.args = (told.errno, text)
        told.strerror = text
    else:
        told.args = (text,)
    told.__cause__ = ExceptionGroup("each address", errors)
    return told


def _rank(error: Exception) -> int:
    kinds = (i for i, kind in enumerate(TELLING) if isinstance(error, kind))
    return next(kinds, len(TELLING))
