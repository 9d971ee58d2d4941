# SPDX-License-Identifier: MIT
"""The bytes of any buffer, as a memoryview."""

from __future__ import annotations

import contextlib
import re
import sys
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

SIMPLE: Final = frozenset("bBhHiIlLqQnNfde?c")  # formats of plain numbers


def bytes_of(buffer: AnyBuffer, what: str) -> memoryview:
    """The bytes of any contiguous buffer, in the order in which they are in memory.

    what: names it in errors.
    """
    contiguous: Any = buffer
    try:
        view = memoryview(contiguous)
        if view.c_contiguous and view.format in SIMPLE:  # most buffers
            return view.cast("B")
    except (TypeError, ValueError, BufferError):  # what is below knows more, or says why
        pass
    if has_objects(contiguous):
        raise TypeError(
            f"{what} must have bytes of its own: this {type(buffer).__name__} has references to "
            "Python objects, which mean nothing to a peer; convert it to a type of a fixed size, "
            "or pickle it"
        )
    if isinstance(contiguous, memoryview) and contiguous.c_contiguous:
        # Up to 3.12, Python crashes when it collects a memoryview together with a PickleBuffer of
        # it, as when an exception keeps the frames of functions that have both.
        with contextlib.suppress(TypeError):  # PickleBuffer takes any format
            return contiguous.cast("B")
    try:
        return PickleBuffer(contiguous).raw()
    except TypeError:
        kind = type(buffer).__name__
        raise TypeError(f"{what} must be a bytes-like object, not {kind}") from None
    except BufferError:
        kind = type(buffer).__name__
        raise BufferError(f"{what} must be contiguous in memory: this {kind} is not") from None
    except ValueError:  # numpy has no format for a date, nor for types of other packages
        array = flat(contiguous, what)
        if array is None:
            raise
        return memoryview(array)


def has_objects(buffer: Any) -> bool:
    """Whether it has references to Python objects, in the place of bytes."""
    if isinstance(buffer, memoryview):
        return "O" in re.sub(":[^:]*:", "", buffer.format)
    dtype = getattr(buffer, "dtype", None)
    return dtype is not None and getattr(dtype, "hasobject", False) is True


def flat(array: Any, what: str) -> Any:
    """The bytes of a numpy array, as an array; None if it is something else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        return None
    plain = array.view(numpy.ndarray)
    if not plain.flags.c_contiguous:
        plain = plain.T
    if not plain.flags.c_contiguous:
        raise BufferError(f"{what} must be contiguous in memory: this array is not")
    return plain.reshape(-1).view(numpy.uint8)
