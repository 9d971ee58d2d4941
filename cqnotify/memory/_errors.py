# SPDX-License-Identifier: MIT
"""Why a transfer has failed."""

from __future__ import annotations


class TransferError(ConnectionError):
    """A get or put has failed. The first `nbytes_done` bytes of the transfer are done."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class RevokedError(TransferError, PermissionError):
    """The memory is not exposed: the exposure was closed, has expired, or never existed."""


class ConnectionLostError(TransferError, ConnectionResetError):
    """The connection has ended meanwhile, since the peer's process or its host has died, or the
    network has failed. `Transfer.resume` goes on."""


class RefusedError(TransferError, ConnectionRefusedError):
    """No connection was made: no process listens there any more, or it has another version, or no
    room."""
