# SPDX-License-Identifier: MIT
"""The registered memory of this process, for all threads and event loops.

    _device.py     a device that is open once, its protection domain and its pools
    _pool.py       registrations: found by their addresses, counted, and kept for the next user
    _buffers.py    the memory behind a buffer, and what holds it
    _bytes.py      the bytes of any buffer
    _pinning.py    threads that register large memory

Everything here may be called from any thread, with and without a GIL. A forked child forgets all of
it: none of that is registered for the child.
"""

from __future__ import annotations

from ._buffers import register
from ._bytes import bytes_of
from ._device import Device, Limits, limits, set_limits
from ._pinning import SLOW, submit
from ._pool import Pool, PoolStats, Registration, close_here, end_use

__all__ = [
    "SLOW",
    "Device",
    "Limits",
    "Pool",
    "PoolStats",
    "Registration",
    "bytes_of",
    "close_here",
    "end_use",
    "limits",
    "register",
    "set_limits",
    "submit",
]
