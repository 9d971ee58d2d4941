# SPDX-License-Identifier: MIT
"""The lines that are printed while two ends meet, over TCP or by rdma_cm, and the errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .. import CommandError, note
from .plan import PeerPlan

SOON: Final = 1.0  # seconds after which a client says that it still waits for its server
RETRY: Final = 0.05  # seconds until a client tries again


def server_of(plan: PeerPlan) -> str:
    """Return the address of a client's server, as text."""
    return f"{plan.host} port {plan.port}"


def no_peer(plan: PeerPlan, hint: str = "") -> CommandError:
    """Return the error of a peer that has not come before the timeout."""
    what = "no client came" if plan.host is None else f"{server_of(plan)} did not answer"
    return CommandError(f"{what} within {plan.timeout:g} s{hint}")


def cannot_listen(plan: PeerPlan, error: OSError) -> CommandError:
    """Return the error of an address that cannot be taken."""
    why = error.strerror or error
    return CommandError(f"cannot listen on {plan.bind} port {plan.port}: {why}")


def rejected(plan: PeerPlan, why: object) -> CommandError:
    """Return the error of a client that the server has rejected."""
    return CommandError(f"{server_of(plan)} has turned us away: {why}")


def note_listening(host: str, port: int, plan: PeerPlan) -> None:
    """Print where a server listens."""
    note(f"listening on {host} port {port}, {_how_long(plan)}")


def note_rejected(peer: str, why: object) -> None:
    """Print why a client is not the peer."""
    note(f"{peer} is rejected: {why}")


@contextmanager
def note_if_slow(plan: PeerPlan, hint: str = "") -> Iterator[None]:
    """Print that a client waits for its server, if the block takes long.

    A thread prints it, since looking up a host name and connecting may block.
    """
    text = f"waiting for {server_of(plan)} to answer, {_how_long(plan)}{hint}"
    timer = threading.Timer(SOON, note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _how_long(plan: PeerPlan) -> str:
    return f"for {plan.timeout:g} s at most (--timeout; Ctrl-C ends it)"
