# SPDX-License-Identifier: MIT
"""Why a connection is over, or was not made."""

from __future__ import annotations

from typing import TypeVar

_E = TypeVar("_E", bound=BaseException)


class MessagesError(ConnectionError):
    """A connection of messages is over, or was not made."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class RefusedError(MessagesError, ConnectionRefusedError):
    """The two ends do not fit: another version, no memory for the connection, or no peer of
    cqnotify.messages at all. The message says which."""


class PeerClosedError(MessagesError, EOFError):
    """The peer has closed the connection, after everything that it had sent had arrived."""


class ConnectionLostError(MessagesError, ConnectionResetError):
    """The connection has ended without being closed: the peer has aborted it, its process or its
    host has died, or the network has failed. Messages under way may be lost."""


class ProtocolError(MessagesError, ConnectionAbortedError):
    """One end has sent what the protocol does not allow, and the connection was closed for it."""


def fresh(error: _E) -> _E:
    """A copy for one task: raising an exception adds that task's frames to it."""
    try:
        own = type(error)(*error.args)
    except TypeError:  # one that is made of something else
        return error
    own.__cause__ = error.__cause__
    return own
