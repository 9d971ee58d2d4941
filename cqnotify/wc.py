# SPDX-License-Identifier: MIT
"""What type checkers know of a work request that has not failed."""

from __future__ import annotations

from typing import NoReturn, TypeAlias

from ._core import WorkCompletion

__all__ = ["SuccessfulCompletion"]

SuccessfulCompletion: TypeAlias = WorkCompletion[NoReturn]
"""A WorkCompletion that succeeded: its `byte_len`, `opcode` and `wc_flags` are not None.

For annotations. `WorkCompletion.raise_for_status()` returns it, and so do the methods of AsyncCQ
that post and await. The object is an ordinary WorkCompletion, for which isinstance() asks. A type
checker does not see what a CQ was asked for: with `wc_flags` that lack WCExFlags.BYTE_LEN,
`byte_len` is None all the same.
"""
