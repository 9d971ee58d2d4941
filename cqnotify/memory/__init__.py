# SPDX-License-Identifier: MIT
"""Memory that peers fetch: one process exposes it, another one reads or writes it.

    with memory.expose(array) as exposed:            # in one process
        send(pickle.dumps(exposed))

    array = await memory.get(pickle.loads(data))     # in another, on any host

The first access of a peer takes a message to the process that exposes the memory, and one back; for
all others its CPU does nothing. `cqnotify.memory.blocking` is for threads without an event loop.

The files, from above:
    blocking.py      get() and put() for threads
    _transfer.py     a get or a put, in pieces
    _process.py      the process: where it listens, its connections
    _connection.py   a connection to another process; opens tokens, and answers those of the peer
    _exposure.py     what is exposed: tokens and memory windows
    _service.py      the thread for all that
    _wire.py         the format of hellos and frames
    _descriptor.py   descriptors
    _errors.py       the exceptions
The registrations are those of cqnotify/_registered, which cqnotify.messages uses, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from .. import MR, PD
from .._registered import PoolStats
from .._registered import set_limits as registered_limits
from .._timeouts import FOREVER, seconds_of
from . import _process
from . import blocking as blocking
from ._descriptor import Access, Descriptor
from ._errors import ConnectionLostError, RefusedError, RevokedError, TransferError
from ._exposure import Exposure
from ._process import current, end
from ._transfer import Transfer, get, put

if TYPE_CHECKING:
    from .._core import _Buffer as AnyBuffer

__all__ = [
    "READ",
    "WRITE",
    "Access",
    "ConnectionLostError",
    "Descriptor",
    "Exposure",
    "PoolStats",
    "RefusedError",
    "RevokedError",
    "Transfer",
    "TransferError",
    "close",
    "expose",
    "get",
    "listen",
    "pd",
    "put",
    "set_limits",
    "stats",
]

READ: Final = Access.READ
"""Peers may read it."""

WRITE: Final = Access.WRITE
"""Peers may write to it."""


def expose(
    memory: AnyBuffer | MR, access: Access = READ, *, lifetime: float | None = None
) -> Exposure:
    """Let peers that get the descriptor read, or write, memory, until it is closed.

    memory: any contiguous buffer, which stays alive, and cannot be resized, until then: `bytes`,
        numpy arrays, mmap, shared memory and so on; or an MR of the PD that `pd` returns, with
        access MW_BIND, for device memory or a dma-buf. The program may use it meanwhile: nothing
        says when a peer reads or writes it.
    access: READ, WRITE or READ | WRITE.
    lifetime: in seconds, after which it is closed.

    The first call makes the process listen, see `listen`. Raises VerbsError (ENOMEM) if registering
    the memory would exceed the limit of locked memory, which it names; LookupError without an RDMA
    device with an IP address; TypeError for WRITE to a read-only buffer.
    """
    if lifetime is None:
        exposure = _process.expose_registered(memory, access)
        if exposure is not None:
            return exposure
    return _expose(memory, access, seconds_of(lifetime))


def _expose(memory: AnyBuffer | MR, access: Access, seconds: float | None) -> Exposure:
    """Expose memory that may have to be registered, or by a process that does not listen yet."""
    if not isinstance(access, Access) or not access:
        raise TypeError(f"access must be READ, WRITE or READ | WRITE, not {access!r}")
    process = current()
    process.listen(None, 0)
    expires = None if seconds is None else time.time() + seconds
    return process.table.expose(memory, access, expires, process.device())


def listen(host: str | None = None, port: int = 0) -> tuple[tuple[str, ...], int]:
    """Choose where peers connect to this process, before the first `expose`.

    host: an IP address of this host that leads to an RDMA device; None: all of them.
    port: 0 chooses a free one.

    Returns the addresses and the port, which all descriptors have. If the process listens already,
    it goes on as it does. Raises VerbsError (EADDRINUSE, EADDRNOTAVAIL).
    """
    process = current()
    process.listen(host, port)
    return process.table.hosts, process.table.port


def pd(device: str | None = None) -> PD:
    """Return the protection domain of this process on a device, for MRs of the program.

    device: its name; by default the first device.

    An MR of it may be exposed, and be the buffer of a `get` or `put`: memory of a device
    (MR.from_dm), a dma-buf of a GPU (MR.from_dmabuf), memory that stays registered.
    """
    return current().device(device).pd


def stats(device: str | None = None) -> PoolStats:
    """Return what this process has registered on a device: for exposures, transfers and messages.

    device: its name; by default the first device.
    """
    return current().device(device).default_pool.stats


def set_limits(
    *,
    max_bytes: int | None = None,
    max_registrations: int | None = None,
    idle: float | None = None,
) -> None:
    """Change the limits of this process; a limit that is None stays as it is.

    max_bytes, max_registrations: how much stays registered on each device while nothing uses it; by
        default 64 MiB, and 4096 registrations. The one that was used least recently goes first.
    idle: after how many seconds a connection is closed that neither end uses; by default 60.
    """
    if idle is not None:
        seconds = seconds_of(idle)
        current().idle = FOREVER if seconds is None else seconds
    registered_limits(max_bytes=max_bytes, max_registrations=max_registrations)


def close() -> None:
    """Close all exposures and connections of this process, and end its thread.

    The end of the program does the same. If another function is called later, the process listens
    on another port.
    """
    end()
