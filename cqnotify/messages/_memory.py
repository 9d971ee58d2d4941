# SPDX-License-Identifier: MIT
"""Registered memory: that of the program's buffers, and our own.

A buffer is registered while a message uses it, once for all messages that do. Afterwards the
registration is kept if the buffer is a numpy array: it is found again by its address, and a weak
reference tells when the array goes. Such a registration does not keep the array alive, and while
there is a weak reference numpy refuses to resize it, so the address leads to the same memory. Other
buffers can be resized, or cannot be referenced weakly, and their registrations end with the
messages.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import MR, PD, AccessFlags, VerbsError

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

READABLE = AccessFlags.REMOTE_READ  # by the peer


class MemoryStats(NamedTuple):
    """registered: how often the device was asked to register a buffer.
    reused: how often that was not necessary.
    kept: how many registrations are kept though nothing uses them.
    kept_bytes: what they register.
    """

    registered: int
    reused: int
    kept: int
    kept_bytes: int


def bytes_of(buffer: AnyBuffer) -> memoryview:
    """The bytes of any contiguous buffer, in the order in which they are in memory."""
    contiguous: Any = buffer
    try:
        return PickleBuffer(contiguous).raw()
    except TypeError:
        kind = type(buffer).__name__
        raise TypeError(f"a frame must be a bytes-like object, not {kind}") from None
    except BufferError:
        kind = type(buffer).__name__
        raise BufferError(f"a frame must be contiguous in memory: this {kind} is not") from None


def writable_bytes_of(buffer: AnyBuffer, nbytes: int) -> memoryview:
    """The first bytes of a buffer into which a frame is received."""
    view = bytes_of(buffer)
    if view.readonly:
        raise TypeError(f"cannot receive into a read-only {type(buffer).__name__}")
    if view.nbytes < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit into {view.nbytes} bytes")
    return view[:nbytes]


def own_memory(pd: PD, nbytes: int, access: AccessFlags) -> MR:
    """Pages of our own, which memoryviews keep when they are not registered any more."""
    return MR(pd, nbytes, access=access)


class Registration:
    """A registered buffer, as long as a message uses it, or while it is kept."""

    def __init__(self, mr: MR, key: Hashable, view: memoryview) -> None:
        self.mr = mr
        self.key = key
        self.users = 1
        self.view: memoryview | None = view  # while it is in use
        self.array: weakref.ref[Any] | None = None


class Registrations:
    """Those of one connection."""

    def __init__(self, pd: PD, most_kept: int) -> None:
        self._pd = pd
        self._most_kept = most_kept
        self._used: dict[Hashable, Registration] = {}
        self._kept: OrderedDict[Hashable, Registration] = OrderedDict()  # the oldest first
        self._registered = self._reused = self._kept_bytes = 0

    @property
    def stats(self) -> MemoryStats:
        return MemoryStats(self._registered, self._reused, len(self._kept), self._kept_bytes)

    def take(self, view: memoryview, access: AccessFlags) -> Registration:
        """Have a buffer registered until give_back(). VerbsError (ENOMEM) names the limit."""
        array = _array_of(view)
        key: Hashable = _key_of(view, array, access)
        found = self._used.get(key)
        if found is not None:
            found.users += 1
            self._reused += 1
            return found
        found = self._kept.pop(key, None)
        if found is not None:
            self._reused += 1
            self._kept_bytes -= view.nbytes
            found.users, found.view = 1, view
        else:
            found = Registration(self._register(view, array, access), key, view)
            self._registered += 1
            if array is not None and view.nbytes <= self._most_kept:
                self._watch(found, array)
        self._used[key] = found
        return found

    def _register(self, view: memoryview, array: Any, access: AccessFlags) -> MR:
        memory: Any = view
        if array is not None:
            memory = (ctypes.c_char * view.nbytes).from_address(_address_of(view))
        while True:
            try:
                return MR(self._pd, memory, access=access)
            except VerbsError:
                if not self._kept:
                    raise
                self._drop(next(iter(self._kept)))  # it may have been in the way

    def give_back(self, one: Registration) -> None:
        one.users -= 1
        if one.users:
            return
        if self._used.pop(one.key, None) is None:
            return  # closed meanwhile
        array = None if one.array is None else one.array()
        if array is None:
            one.view = None
            one.mr.close()
            return
        self._kept[one.key] = one
        self._kept_bytes += one.mr.length
        one.view = None
        while self._kept_bytes > self._most_kept:
            self._drop(next(iter(self._kept)))

    def _watch(self, one: Registration, array: Any) -> None:
        """End the registration before the memory is freed, in whichever thread that is."""
        registrations, key = weakref.ref(self), one.key

        def gone(_: object) -> None:
            own = registrations()
            if own is not None:
                own._drop(key)

        one.array = weakref.ref(array, gone)

    def _drop(self, key: Hashable) -> None:
        one = self._kept.pop(key, None)
        if one is not None:
            self._kept_bytes -= one.mr.length
            one.mr.close()

    def close(self) -> None:
        """The queue pair is closed: nothing uses any of them."""
        for one in (*self._used.values(), *self._kept.values()):
            one.mr.close()
            one.view = one.array = None
        self._used.clear()
        self._kept.clear()
        self._kept_bytes = 0


def _owner_of(view: memoryview) -> Any:
    """The object that is behind views of views."""
    owner: Any = view
    while isinstance(owner, memoryview):
        owner = owner.obj
    return owner


def _array_of(view: memoryview) -> Any:
    """The numpy array that owns the memory, or holds what does; None if it is another buffer."""
    numpy = sys.modules.get("numpy")
    array = _owner_of(view)
    if numpy is None or not isinstance(array, numpy.ndarray):
        return None
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def _address_of(view: memoryview) -> int:
    """Of an array's memory, which can be read-only."""
    numpy: Any = sys.modules["numpy"]
    return int(numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0])


def _key_of(view: memoryview, array: Any, access: AccessFlags) -> Hashable:
    """Two buffers with the same key are the same memory, while either of them is in use."""
    if array is not None:
        return _address_of(view), view.nbytes, access
    owner = _owner_of(view)
    if not isinstance(owner, MR) and memoryview(owner).nbytes == view.nbytes:
        return id(owner), view.nbytes, access, "whole"
    return object()  # a part of something, which is found by nobody
