# SPDX-License-Identifier: MIT
"""What this process exposes: memory, found by tokens, and the windows through which peers have it.

A connection that opens a token gets a memory window of type 2, bound through its queue pair: so
only that peer can use its key, and closing the window revokes it, while the memory may stay
registered for others. A device without windows registers each exposure by itself, for peers, and
deregisters it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import MR, MW, AccessFlags, ClosedError, MWType, VerbsError, _core
from .._registered import bytes_of, end_use
from ._descriptor import Access, Described, Descriptor
from ._service import CLOSED
from ._wire import Answer, Status

if TYPE_CHECKING:
    from typing import Self

    from .._registered import Device, Pool, Registration
    from ._service import Service

RIGHTS: Final = {
    Access.READ: AccessFlags.REMOTE_READ,
    Access.WRITE: AccessFlags.REMOTE_WRITE,
    Access.READ | Access.WRITE: AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE,
}
WRITING: Final = AccessFlags.LOCAL_WRITE  # of a region into which peers may write
MAX_WINDOWS: Final = 1 << 16  # of one connection


class Opener(Protocol):
    """A connection, to this file. windows: by token, what it has opened; None without windows."""

    device: Device
    windows: dict[int, MW | None]

    def bind(self, mw: MW, token: int, registration: Registration, access: AccessFlags) -> None: ...
    def settle(self, token: int) -> None: ...
    def revoked(self, token: int) -> None: ...


class Exposure(_core.Exposure, Described):
    """Memory that peers may access: a descriptor, with the same attributes, which `expose` returns.

    Its `close`, or the end of a `with` block, revokes it. Pickled, it is a plain Descriptor.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def _table(self) -> Table: ...

        _registrations: dict[str, Registration] | None  # by device
        _openers: set[Opener] | None
        _timer: asyncio.TimerHandle | None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The IP addresses of this process, the best first."""
        return self._table.hosts

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._table.port

    @property
    def process(self) -> str:
        """Its id, 32 hexadecimal digits."""
        return self._table.process

    @property
    def dtype(self) -> str | None:
        """The dtype of a numpy array, as `numpy.dtype()` takes it; None for other memory."""
        return dtype_of(self._memory)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a numpy array; None for other memory."""
        return None if self.dtype is None else tuple(self._memory.shape)

    @property
    def order(self) -> str:
        """ "F" for a numpy array by columns, else "C"."""
        return "C" if self.dtype is None or self._memory.flags.c_contiguous else "F"

    def __reduce__(self) -> tuple[Any, ...]:
        return Descriptor, astuple(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Exposure | Descriptor):
            return NotImplemented
        return astuple(self) == astuple(other)

    def __hash__(self) -> int:
        return hash(astuple(self))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.access}"
        return f"<Exposure of {self.length} bytes, {state}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has expired."""
        return self._table.get(self.token) is not self

    def close(self) -> None:
        """Revoke it: the next access of each peer fails. When this returns, no peer reaches the
        memory any more, and it is free. Any thread may call this, also twice."""
        self._table.revoke(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


AnyDescriptor = Descriptor | Exposure


def astuple(one: AnyDescriptor) -> tuple[Any, ...]:
    return tuple([getattr(one, name) for name in Descriptor.__dataclass_fields__])


def dtype_of(array: Any) -> str | None:
    """The dtype of an array, as numpy.dtype() takes it; None for a dtype of fields, or no array."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.names is not None:
        return None
    return str(dtype.name if dtype.kind == "V" else dtype.str)


class Table(_core.ExposureTable):
    """The exposures of the process, by token. Any thread may use it.

    process, hosts, port: where peers find it.
    """

    def __init__(self, service: Service, process: str) -> None:
        self.process: str = process
        self.hosts: tuple[str, ...] = ()
        self.port: int = 0  # 0: it does not listen yet
        self._service = service
        self._lock = threading.RLock()
        self._is_closed = False
        # By token, the thread that revokes it, and a lock that is free when it has.
        self._revoking: dict[int, tuple[int, threading.Lock]] = {}
        self.device: str = ""  # in whose pool _expose() looks for memory
        self.pool: Pool
        self._set_types(Exposure, Access.READ, tuple(RIGHTS))

    def __len__(self) -> int:
        return len(self._exposures)

    def get(self, token: int) -> Exposure | None:
        return self._exposures.get(token)

    def expose(
        self, memory: Any, access: Access, expires: float | None, device: Device
    ) -> Exposure:
        """Expose memory, and register it on a device."""
        exposure: Exposure = self._new_exposure(memory, access, bytes_in(memory, access), expires)
        registered(exposure, device)
        with self._lock:
            if self._is_closed:
                release(exposure)
                raise ClosedError(CLOSED)
            self._exposures[exposure.token] = exposure
            if device.has_windows and not self.device:
                self.device, self.pool = device.name, device.default_pool
                self._set_registered(device.default_pool.table)
        if expires is not None:
            self._service.call(self._expire_later, exposure)
        return exposure

    def _expire_later(self, exposure: Exposure) -> None:
        """In the thread of the service."""
        assert exposure.expires is not None, "the caller has looked"
        left = max(0.0, exposure.expires - time.time())
        exposure._timer = self._service.loop.call_later(left, exposure.close)
        if exposure.closed:
            exposure._timer.cancel()

    # ---- opening ----

    def open(self, token: int, opener: Opener) -> Answer:
        """Let a connection have the memory of a token."""
        with self._lock:
            exposure = self._exposures.get(token)
            if exposure is None:
                return Answer(token, 0, 0, 0, Status.UNKNOWN)
            try:
                return self._grant(exposure, opener)
            except (VerbsError, MemoryError, ClosedError):
                return Answer(token, 0, 0, 0, Status.NO_ROOM)

    def _grant(self, exposure: Exposure, opener: Opener) -> Answer:
        registration = registered(exposure, opener.device)
        rights = RIGHTS[exposure.access]
        token = exposure.token
        mw = opener.windows.get(token)
        if mw is None and len(opener.windows) >= MAX_WINDOWS:
            return Answer(token, 0, 0, 0, Status.NO_ROOM)
        if registration.mr.access & AccessFlags.MW_BIND:
            if mw is None:
                mw = MW(opener.device.pd, MWType.TYPE_2)
                try:
                    opener.bind(mw, token, registration, rights)
                except BaseException:
                    mw.close()
                    raise
                opener.windows[token] = mw
            rkey = mw.rkey
        else:
            opener.windows[token] = None
            rkey = registration.rkey
        if exposure._openers is None:
            exposure._openers = set()
        exposure._openers.add(opener)
        return Answer(token, registration.addr, exposure.length, rkey, Status.GRANTED)

    def end(self, opener: Opener) -> list[int]:
        """A connection ends: close its windows. Returns their tokens, for forget()."""
        with self._lock:
            tokens = list(opener.windows)
            for mw in opener.windows.values():
                close(mw)
            opener.windows.clear()
            return tokens

    def forget(self, opener: Opener, tokens: list[int]) -> None:
        """Its queue pair is closed, too, and needs no registration any more."""
        with self._lock:
            for token in tokens:
                exposure = self._exposures.get(token)
                if exposure is not None and exposure._openers is not None:
                    exposure._openers.discard(opener)

    # ---- revoking ----

    def revoke(self, exposure: Exposure) -> None:
        token = exposure.token
        ended = threading.Lock()
        ended.acquire()
        with self._lock:
            is_first = self._exposures.get(token) is exposure
            if is_first:
                del self._exposures[token]
                self._revoking[token] = threading.get_ident(), ended
            thread, others = self._revoking.get(token, (0, ended))
            openers = list(exposure._openers or ())
        if is_first:
            try:
                self._revoke(exposure, openers)
            finally:
                del self._revoking[token]
                ended.release()
        # The service, which others may wait for, waits for none: nobody needs to know there.
        elif thread not in (0, threading.get_ident()) and not self._service.is_here:
            with others:
                pass

    def _revoke(self, exposure: Exposure, openers: list[Opener]) -> None:
        for opener in openers:
            opener.settle(exposure.token)
        with self._lock:
            for opener in openers:
                close(opener.windows.pop(exposure.token, None))
            exposure._openers = None
        release(exposure)
        timer = exposure._timer
        if timer is not None:
            self._service.call(timer.cancel)
        for opener in openers:
            self._service.call(opener.revoked, exposure.token)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._set_registered(None)
            exposures = list(self._exposures.values())
        for exposure in exposures:
            self.revoke(exposure)

    def forget_all(self) -> None:
        """In a forked child: closing an exposure of the parent does nothing."""
        self._lock = threading.RLock()
        self._revoking.clear()
        self._exposures.clear()
        self._set_registered(None)


def bytes_in(memory: Any, access: Access) -> int:
    """How many bytes memory has that is to be exposed."""
    if isinstance(memory, MR):
        if not memory.access & AccessFlags.MW_BIND:
            raise ValueError("an MR that is exposed needs access MW_BIND")
        return memory.length
    view = bytes_of(memory, "memory")
    if access & Access.WRITE and view.readonly:
        raise TypeError(f"a read-only {type(memory).__name__} cannot be exposed for WRITE")
    if not view.nbytes:
        raise ValueError("memory of 0 bytes cannot be exposed")
    return view.nbytes


def registered(exposure: Exposure, device: Device) -> Registration:
    """The memory of an exposure on a device, registered there if it is not yet."""
    registrations = exposure._registrations
    if registrations is None:
        registrations = exposure._registrations = {}
    region = exposure._take_region()
    if region is not None:  # of the pool of that device
        pool = exposure._table.pool
        taken = pool.taken_over(region, exposure._start, exposure.length)
        registrations[exposure._table.device] = taken
    registration = registrations.get(device.name)
    if registration is None:
        registration = registrations[device.name] = register(exposure, device)
    return registration


def register(exposure: Exposure, device: Device) -> Registration:
    memory, pool = exposure._memory, device.default_pool
    if memory is None:
        raise ClosedError("this exposure is closed")
    access = WRITING if exposure.access & Access.WRITE else AccessFlags(0)
    if isinstance(memory, MR):
        if not device.has_windows:
            raise ValueError(f"{device.name} has no memory windows, which exposing an MR needs")
        return pool.acquire(memory, access | AccessFlags.MW_BIND)
    view: Any = bytes_of(memory, "memory")
    if device.has_windows:
        try:
            return pool.acquire(view, access | AccessFlags.MW_BIND)
        except VerbsError as e:
            # For windows the kernel pins pages for writing, which some mappings do not allow.
            if e.errno != errno.EFAULT or not view.readonly:
                raise
    return pool.acquire_alone(view, access | RIGHTS[exposure.access])


def release(exposure: Exposure) -> None:
    """Nobody reaches its memory any more."""
    region = exposure._take_region()
    if region is not None:
        end_use(exposure._table.pool.table, region)
    registrations, exposure._registrations = exposure._registrations, None
    for registration in (registrations or {}).values():
        registration.release()
    exposure._memory = None


def close(mw: MW | None) -> None:
    if mw is not None:
        with contextlib.suppress(VerbsError, ClosedError):  # of a device that is gone
            mw.close()
