# SPDX-License-Identifier: MIT
"""Connecting two endpoints of iWARP devices: by rdma_cm, which alone can."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypedDict

from .._core import ClosedError
from ..cm import blocking, local_addresses
from ..context import Context
from ..enums import AccessFlags

if TYPE_CHECKING:
    from .._qp_connect import ConnectOptions
    from ..qp import QP

_TIMEOUT = 30.0


class _Shared(TypedDict, total=False):
    """The parameters that both ends of a connection have."""

    timeout: float
    access: AccessFlags | int
    responder_resources: int
    initiator_depth: int


def connect_by_address(
    a: QP, b: QP, options: ConnectOptions
) -> tuple[blocking.Connection, blocking.Connection]:
    """Connect two queue pairs of this process; options that TCP decides on are ignored."""
    where, host = _way(a.context, b.context)
    shared: _Shared = {"timeout": _TIMEOUT, "access": options.get("access", 0)}
    if "max_dest_rd_atomic" in options:
        shared["responder_resources"] = options["max_dest_rd_atomic"]
    if "max_rd_atomic" in options:
        shared["initiator_depth"] = options["max_rd_atomic"]
    with blocking.listen(host, 0) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.local[1]
        asking = pool.submit(blocking.connect, a, where, port, **shared)
        asking.add_done_callback(lambda done: _wake(listener, done))
        try:
            request = listener.get_request(_TIMEOUT)
        except ClosedError:
            asking.result()
            raise
        try:
            accepted = request.accept(b, **shared)
        except BaseException:
            request.close()  # the other end waits for that
            raise
        return asking.result(), accepted


def _wake(listener: blocking.Listener, done: Future[blocking.Connection]) -> None:
    """Wake the server if connecting has failed: no request will come."""
    if done.exception() is not None:
        listener.close()


def _way(a: Context, b: Context) -> tuple[str, str]:
    """Return the address to which the first connects, and the one on which the second listens.

    A link-local address names our own interface, so the traffic between two devices takes the cable
    between them.
    """
    addresses = local_addresses(b)
    if not addresses:
        raise LookupError(f"no address of this host leads to device {b.name}")
    if a.name == b.name:
        return addresses[0], addresses[0]
    for host in addresses:
        for entry in a.query_gid_table() if "%" in host else ():
            if entry.netdev is not None:
                return f"{host.partition('%')[0]}%{entry.netdev}", host
    return addresses[0], addresses[0]
