# SPDX-License-Identifier: MIT
"""The memory behind a buffer: how it is registered, and what holds it meanwhile.

The memory of a numpy array stays where it is until the array is freed, if the array allocated it or
has it from an object that cannot let go of it. A weak reference tells when that is, so such
memory may stay registered while nothing uses it; and while there is a weak reference, numpy refuses
to resize the array. Other buffers can be resized, closed or unmapped at any time, unless a
memoryview holds them: their registration holds one, and ends with its last user. numpy keeps no
memoryview of what numpy.ndarray() takes as `buffer`: the arrays of numpy.memmap, and those that are
usual over shared_memory, count as other buffers.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import sys
from typing import TYPE_CHECKING, Any, cast

from .. import MR, PD, AccessFlags, _core

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

Wanted = _core.WantedMemory  # a buffer that is to be registered

WRITING = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
_C_DATA: Any = ctypes.Structure.__mro__[1]  # of all types of ctypes, which can be resized
MOVABLE = (bytearray, mmap.mmap, array.array, _C_DATA)  # unless a memoryview holds them


def wanted_of(buffer: AnyBuffer, access: AccessFlags) -> Wanted:
    """Raises TypeError and BufferError if it cannot be registered so."""
    view = memoryview(cast("Any", buffer))
    if not view.contiguous:
        raise BufferError(
            f"memory must be contiguous to be registered: this {type(buffer).__name__} is not"
        )
    if view.readonly and access & WRITING:
        raise TypeError(
            f"access is {access!r}, and this {type(buffer).__name__} is read-only: pass writable "
            "memory"
        )
    if not view.nbytes:
        raise ValueError(f"this {type(buffer).__name__} has no bytes to be registered")
    return Wanted(view, access)


def _source(array: Any) -> tuple[Any, bool]:
    """The object that gave an array its memory, or None; and whether a memoryview holds that."""
    numpy, is_held = sys.modules["numpy"], False
    source: Any = array.base
    while True:
        if isinstance(source, memoryview):
            source, is_held = source.obj, True
        elif isinstance(source, numpy.ndarray):
            source, is_held = getattr(source, "base", None), False
        else:
            return source, is_held


def hold(wanted: Wanted) -> tuple[Any, bool]:
    """Return an object that keeps the memory where it is as long as it exists; and whether the
    memory stays without that, until a weak reference tells that it goes."""
    if wanted.array is None:
        return memoryview(wanted.view), False  # one of our own, for let_go()
    source, is_held = _source(wanted.array)
    if is_held or not isinstance(source, MOVABLE):
        return wanted.array, not isinstance(source, _C_DATA)
    return (wanted.array, memoryview(source)), False


def let_go(holder: Any) -> None:
    """End what hold() returned. Without a GIL an object that another thread has made, which may
    sleep, lives on without references until that thread runs."""
    view = holder[1] if isinstance(holder, tuple) else holder
    if isinstance(view, memoryview):
        with contextlib.suppress(BufferError):  # its MR could not be closed, and needs the memory
            view.release()


def memory_of(wanted: Wanted, held: Any, start: int, end: int) -> Any:
    """What an MR is made of, of what hold() returned. It does not keep an array alive."""
    if wanted.array is None:
        return held
    return (ctypes.c_char * (end - start)).from_address(start)


def register(pd: PD, memory: Any, access: AccessFlags) -> MR:
    """In whichever thread."""
    return MR(pd, memory, access=access)
