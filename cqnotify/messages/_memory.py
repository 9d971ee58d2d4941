# SPDX-License-Identifier: MIT
"""Registered memory: that of the program's buffers, and our own.

A buffer is registered while a message uses it, once for all messages that do. Afterwards the
registration is kept if the buffer is a numpy array: it is found again by its address, and a weak
reference tells when the array goes. Such a registration does not keep the array alive, and while
there is a weak reference numpy refuses to resize it, so the address leads to the same memory. Other
buffers can be resized, or cannot be referenced weakly, and their registrations end with the
messages. What takes the kernel long is done in threads: see _pinning.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import MR, PD, AccessFlags, ClosedError, VerbsError
from ._pinning import SLOW, Pinning

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
    if has_objects(contiguous):
        raise TypeError(
            f"a frame must have bytes of its own: this {type(buffer).__name__} has references to "
            "Python objects, which mean nothing to the peer; convert it to a type of a fixed size, "
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
        raise TypeError(f"a frame must be a bytes-like object, not {kind}") from None
    except BufferError:
        kind = type(buffer).__name__
        raise BufferError(f"a frame must be contiguous in memory: this {kind} is not") from None
    except ValueError:  # numpy has no format for a date, nor for types of other packages
        array = flat(contiguous)
        if array is None:
            raise
        return memoryview(array)


def has_objects(buffer: Any) -> bool:
    """Whether it has references to Python objects, in the place of bytes."""
    if isinstance(buffer, memoryview):
        return "O" in re.sub(":[^:]*:", "", buffer.format)
    dtype = getattr(buffer, "dtype", None)
    return dtype is not None and getattr(dtype, "hasobject", False) is True


def flat(array: Any) -> Any:
    """The bytes of a numpy array, as an array; None if it is something else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        return None
    plain = array.view(numpy.ndarray)
    if not plain.flags.c_contiguous:
        plain = plain.T
    if not plain.flags.c_contiguous:
        raise BufferError("a frame must be contiguous in memory: this array is not")
    return plain.reshape(-1).view(numpy.uint8)


def writable_bytes_of(buffer: AnyBuffer, nbytes: int) -> memoryview:
    """The first bytes of a buffer into which a frame is received."""
    view = bytes_of(buffer)
    if view.readonly:
        raise TypeError(f"cannot receive into a read-only {type(buffer).__name__}")
    if view.nbytes < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit into {view.nbytes} bytes")
    return view[:nbytes]


def register(pd: PD, memory: Any, access: AccessFlags) -> MR:
    """In whichever thread."""
    return MR(pd, memory, access=access)


def own_memory(pd: PD, nbytes: int, access: AccessFlags) -> MR:
    """Pages of our own, which memoryviews keep when they are not registered any more."""
    return register(pd, nbytes, access)


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
        self.pd: PD = pd
        self._most_kept = most_kept
        self._used: dict[Hashable, Registration] = {}
        self._kept: OrderedDict[Hashable, Registration] = OrderedDict()  # the oldest first
        self._registered = self._reused = self._kept_bytes = 0
        self.is_closed: bool = False
        self.pinning: Pinning = Pinning()

    @property
    def stats(self) -> MemoryStats:
        return MemoryStats(self._registered, self._reused, len(self._kept), self._kept_bytes)

    def take(self, view: memoryview, access: AccessFlags) -> Registration:
        """Have a buffer registered until give_back(). VerbsError (ENOMEM) names the limit."""
        array = _array_of(view)
        key: Hashable = _key_of(view, array, access)
        found = self._known(key, view)
        if found is None:
            found = self._add(self._register(view, array, access), key, view, array)
        return found

    def is_slow(self, view: memoryview, access: AccessFlags) -> bool:
        """Whether the kernel would take long for it."""
        if view.nbytes < SLOW:
            return False
        key = _key_of(view, _array_of(view), access)
        return key not in self._used and key not in self._kept

    def take_slowly(self, view: memoryview, access: AccessFlags) -> asyncio.Future[Registration]:
        """The same as take(), in a thread."""
        return _Making(self, view, access).future

    def take_made(self, mr: MR, key: Hashable, view: memoryview, array: Any) -> Registration:
        found = self._known(key, view)
        if found is None:
            return self._add(mr, key, view, array)
        self.pinning.close(mr)  # another message has done it meanwhile
        return found

    def _known(self, key: Hashable, view: memoryview) -> Registration | None:
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
            self._used[key] = found
        return found

    def _add(self, mr: MR, key: Hashable, view: memoryview, array: Any) -> Registration:
        found = self._used[key] = Registration(mr, key, view)
        self._registered += 1
        if array is not None and view.nbytes <= self._most_kept:
            self._watch(found, array)
        return found

    def _register(self, view: memoryview, array: Any, access: AccessFlags) -> MR:
        memory = _memory_of(view, array)
        while True:
            try:
                return register(self.pd, memory, access)
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
            self.pinning.close(one.mr)
            return
        self._kept[one.key] = one
        self._kept_bytes += one.mr.length
        one.view = None
        while self._kept_bytes > self._most_kept:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.mr.length
            self.pinning.close(oldest.mr)

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

    def drop_all(self) -> bool:
        """Let go of what is kept, which may be in the way. Return False if nothing is."""
        is_any = bool(self._kept)
        while self._kept:
            self._drop(next(iter(self._kept)))
        return is_any

    def close(self) -> None:
        """The queue pair is closed: nothing uses any of them."""
        self.is_closed = True
        for one in (*self._used.values(), *self._kept.values()):
            self.pinning.close(one.mr)
            one.view = one.array = None
        self._used.clear()
        self._kept.clear()
        self._kept_bytes = 0


class _Making:
    """A registration that a thread makes.

    It has none of this when it is over, because its future may then be part of a reference cycle,
    by the traceback of an exception: the garbage collector of Python 3.11 crashes where it finds a
    memoryview there whose memory an MR still uses.
    """

    def __init__(self, registrations: Registrations, view: memoryview, access: AccessFlags) -> None:
        self._registrations = registrations
        self._array = _array_of(view)
        self._key = _key_of(view, self._array, access)
        memory = _memory_of(view, self._array)
        self._view: memoryview | None = view
        self._call: Callable[[], MR] | None = functools.partial(
            register, registrations.pd, memory, access
        )
        self.future: asyncio.Future[Registration] = asyncio.get_running_loop().create_future()
        self._start()

    def _start(self) -> None:
        assert self._call is not None, "it is not over"
        self._registrations.pinning.start(self._call).add_done_callback(self._made)

    def _made(self, making: asyncio.Future[MR]) -> None:
        owner = self._registrations
        error = making.exception()
        if isinstance(error, VerbsError) and owner.drop_all():
            self._start()  # once more, with more room
            return
        view, array, key = self._view, self._array, self._key
        self._call = self._view = self._array = self._key = None
        assert view is not None, "it was not over"
        if error is None and owner.is_closed:
            error = ClosedError("this connection was closed")
            owner.pinning.close(making.result())
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(owner.take_made(making.result(), key, view, array))


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


def _memory_of(view: memoryview, array: Any) -> Any:
    """What an MR is made of. It does not keep an array alive."""
    if array is None:
        return view
    return (ctypes.c_char * view.nbytes).from_address(_address_of(view))


def _key_of(view: memoryview, array: Any, access: AccessFlags) -> Hashable:
    """Two buffers with the same key are the same memory, while either of them is in use."""
    if array is not None:
        return _address_of(view), view.nbytes, access
    owner = _owner_of(view)
    if not isinstance(owner, MR) and memoryview(owner).nbytes == view.nbytes:
        return id(owner), view.nbytes, access, "whole"
    return object()  # a part of something, which is found by nobody
