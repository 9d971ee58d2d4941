# SPDX-License-Identifier: MIT
"""What the commands that have a peer say while they meet it, by TCP or by rdma_cm."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ..context import devices, needs_rdma_cm
from . import CommandError, note

SOON: Final = 1.0  # seconds after which a client says that it still waits for its server


class Plan(Protocol):
    """What a command was told about its peer. `timeout` is in seconds."""

    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def bind(self) -> str: ...
    @property
    def timeout(self) -> float: ...


def has_one_cpu() -> bool:
    """Whether an end that polls must yield the CPU: this host has no other one.

    The peer may be on this host, too, and a device in software always is. What an end waits for
    then comes only while it does not run, else a tick of the scheduler later.
    """
    return os.cpu_count() == 1


def server_of(plan: Plan) -> str:
    """Return the address of a client's server, in words."""
    return f"{plan.host} port {plan.port}"


def nobody_came(plan: Plan, hint: str = "") -> CommandError:
    """Return what to say when the timeout is over."""
    what = "no client came" if plan.host is None else f"{server_of(plan)} did not answer"
    return CommandError(f"{what} within {plan.timeout:g} s{hint}")


def to_be_reached(plan: Plan) -> str:
    """Return what a server of ours needs so that a client on another host finds it by TCP."""
    host = plan.host
    if host is None or host == "localhost" or host.startswith("127.") or host == "::1":
        return ""
    return "; `cqnotify` there listens for other hosts only with --bind (0.0.0.0 or ::)"


def say_listening(host: str, port: int, plan: Plan) -> None:
    """Print where a server listens."""
    note(f"listening on {host} port {port}, {_how_long(plan)}")


def cannot_listen(plan: Plan, error: OSError) -> CommandError:
    """Return what to say of an address that cannot be taken."""
    why = error.strerror or error
    return CommandError(f"cannot listen on {plan.bind} port {plan.port}: {why}")


def say_turned_away(peer: str, why: object) -> None:
    """Print that a client was not the right one."""
    note(f"{peer} is turned away: {why}")


def _how_long(plan: Plan) -> str:
    return f"for {plan.timeout:g} s at most (--timeout; Ctrl-C ends it)"


@contextmanager
def told_soon(plan: Plan, hint: str = "") -> Iterator[None]:
    """If the block, in which a client waits for its server, takes long: say so.

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


def everywhere() -> str:
    """Return all addresses: those of IPv6 and IPv4, but for iWARP devices only one kind at once."""
    return "0.0.0.0" if any(map(needs_rdma_cm, devices())) else "::"
