# SPDX-License-Identifier: MIT
"""Meeting the peer by rdma_cm: at an IP address and a port, which choose the devices."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ... import cm
from ..._core import VerbsError
from ...cm import blocking
from ...enums import QPState
from ...qp import QP
from .. import CommandError
from .meeting import RETRY, cannot_listen, no_peer, note_if_slow, note_listening
from .plan import PeerPlan

Plan = TypeVar("Plan", bound=PeerPlan)
Opened = TypeVar("Opened")


class NoPeerError(Exception):
    """No peer came in time."""


class OnDevice(Protocol):
    """A request, or what an address leads to."""

    @property
    def device(self) -> str | None: ...
    @property
    def port_num(self) -> int: ...


@contextmanager
def meeting(plan: PeerPlan, hint: str = "") -> Iterator[None]:
    """Turn errors of the block, in which two ends meet, into those of the command."""
    try:
        yield
    except NoPeerError:
        raise no_peer(plan, hint) from None
    except socket.gaierror as e:
        raise CommandError(str(e.strerror)) from e


def left(deadline: float) -> float:
    """Return the seconds until the deadline; NoPeerError if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise NoPeerError
    return seconds


def on_device(plan: Plan, found: OnDevice) -> Plan:
    """Return the plan with the device and port that rdma_cm has chosen."""
    return replace(plan, device=found.device, port_num=found.port_num)


def call(
    plan: Plan,
    stack: ExitStack,
    open_end: Callable[[Plan], AbstractContextManager[Opened]],
    qp_of: Callable[[Opened], QP],
    options_of: Callable[[Opened], dict[str, Any]],
) -> tuple[Opened, blocking.Connection]:
    """Connect an end on the device that leads to the server; try until the server listens.

    stack: closes both.
    open_end: makes the end.
    qp_of: returns the QP to connect.
    options_of: returns the other options of `cm.blocking.connect`.

    Raises NoPeerError.
    """
    assert plan.host is not None
    deadline = time.monotonic() + plan.timeout
    try:
        with note_if_slow(plan), ExitStack() as opened:
            way = blocking.resolve(plan.host, timeout=plan.timeout)
            here = on_device(plan, way)
            end = opened.enter_context(open_end(here))
            while (conn := _try(qp_of(end), way.peer, here, deadline, options_of(end))) is None:
                time.sleep(min(RETRY, left(deadline)))
                if qp_of(end).state == QPState.ERR:  # an iWARP device can use it only once
                    opened.close()
                    end = opened.enter_context(open_end(here))
            opened.enter_context(conn)
            stack.push(opened.pop_all())
            return end, conn
    except TimeoutError:
        raise NoPeerError from None


def _try(
    qp: QP, peer: str, plan: PeerPlan, deadline: float, options: dict[str, Any]
) -> blocking.Connection | None:
    """Return None where no server listens."""
    try:
        return blocking.connect(qp, peer, plan.port, timeout=left(deadline), **options)
    except (cm.RejectedError, VerbsError) as e:
        if getattr(e, "reason", None) == cm.RejectReason.INVALID_SERVICE_ID:
            return None
        raise


@contextmanager
def listening(plan: PeerPlan, *, datagrams: bool = False) -> Iterator[blocking.Listener]:
    """Listen as a server, and print where."""
    try:
        listener = blocking.listen(plan.bind, plan.port, datagrams=datagrams)
    except OSError as e:
        if e.errno == errno.EADDRNOTAVAIL:  # the kernel says that of a port, too
            why = OSError(e.errno, "the address is of another host, or the port is taken")
            raise cannot_listen(plan, why) from e
        raise cannot_listen(plan, e) from e
    with listener:
        note_listening(*listener.local, plan)
        yield listener


def next_request(listener: blocking.Listener, deadline: float) -> blocking.Request:
    """Wait for the next client. Raises NoPeerError."""
    try:
        return listener.get_request(left(deadline))
    except TimeoutError:
        raise NoPeerError from None


def name_of(request: blocking.Request) -> str:
    """Return the address of a client, as text; it has to be open."""
    host, port = request.peer
    return f"{host} port {port}"
