# SPDX-License-Identifier: MIT
"""The type of the completion of a work request that succeeded."""

from __future__ import annotations

from typing import NoReturn, TypeAlias

from ._core import WorkCompletion

__all__ = ["SuccessfulCompletion"]

SuccessfulCompletion: TypeAlias = WorkCompletion[NoReturn]
"""A WorkCompletion that succeeded: its `byte_len`, `opcode` and `wc_flags` are not None.

For annotations: `WorkCompletion.raise_for_status()` returns it, and so do the methods of AsyncCQ
that post and await. The object is an ordinary WorkCompletion, which is the class to give to
isinstance(). If the CQ was created with `wc_flags` that lack WCExFlags.BYTE_LEN, `byte_len` is None
all the same; type checkers cannot see that.
"""
