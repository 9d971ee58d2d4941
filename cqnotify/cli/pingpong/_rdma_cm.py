# SPDX-License-Identifier: MIT
"""Meeting the peer by rdma_cm, with what both ends have to agree on in the private data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from ... import cm
from ...cm import blocking
from ...enums import AccessFlags, QPType
from ...qp import QP
from .. import CommandError, device_names
from .._peer.meeting import note_rejected, rejected, server_of
from .._peer.rdma_cm import call, left, listening, meeting, name_of, next_request, on_device
from ._end import PingPongEnd, Plan, open_end
from ._hello import Hello, hello_of
from ._session import Session

NO_ACCESS: Final = AccessFlags(0)
PATIENCE: Final = 10.0  # seconds for one client to connect, and for the peer to disconnect
AT_ONCE: Final = 1.0  # seconds, for what is known by now and may still have to be read

Connected = tuple[PingPongEnd, blocking.Connection, Hello]


@contextmanager
def meet(plan: Plan) -> Iterator[Session]:
    """Connect to the peer.

    At the end of the block the server disconnects, and the client waits for that, since the
    server's last message may not be acknowledged before.
    """
    device_names()
    with ExitStack() as stack:
        with meeting(plan, _hint(plan)):
            end, conn, theirs = _call(plan, stack) if plan.client else _serve(plan, stack)
        yield _session(end, conn, theirs)
        if end.qp_type != QPType.UD:
            _disconnect(plan, conn)


def _hint(plan: Plan) -> str:
    return f": does a server run there, with -R and --type {plan.service}?" if plan.client else ""


def _session(end: PingPongEnd, conn: blocking.Connection, theirs: Hello) -> Session:
    qp = _qp(end)
    path_mtu = None if end.qp_type == QPType.UD else getattr(qp.query().path_mtu, "bytes", None)
    local, remote = (
        [{"address": address, "port": port, "qp_num": number}]
        for (address, port), number in ((conn.local, qp.qp_num), (conn.peer, theirs.qp_num))
    )

    def has_gone() -> bool:
        with suppress(TimeoutError):
            conn.wait_closed(AT_ONCE)
        return conn.error is not None

    return Session(end, path_mtu, local, remote, has_gone)


def _qp(end: PingPongEnd) -> QP:
    (endpoint,) = end.endpoints
    return endpoint.qp


def _disconnect(plan: Plan, conn: blocking.Connection) -> None:
    if plan.client:
        with suppress(TimeoutError):
            conn.wait_closed(PATIENCE)
    else:
        conn.disconnect()


# ---- the client -----------------------------------------------------------------------------


def _call(plan: Plan, stack: ExitStack) -> Connected:
    try:
        end, conn = call(
            *(plan, stack, open_end, _qp),
            lambda end: {
                "private_data": hello_of(plan, _qp(end).qp_num).to_wire(),
                "access": NO_ACCESS,
            },
        )
    except cm.RejectedError as e:
        if e.reason != cm.RejectReason.CONSUMER_DEFINED:
            raise
        raise rejected(plan, _difference(plan, e.private_data)) from e
    try:
        theirs = Hello.from_wire(conn.private_data)
    except ValueError as e:
        raise CommandError(f"{server_of(plan)} cannot be the peer: {e}") from None
    if end.qp_type == QPType.UD:
        (endpoint,) = end.endpoints
        assert conn.remote_qkey is not None
        endpoint.to_peer = {
            "ah": conn.make_ah(endpoint.pd),
            "remote_qpn": conn.remote_qpn,
            "remote_qkey": conn.remote_qkey,
        }
    end.start()  # the server only answers
    return end, conn, theirs


def _difference(plan: Plan, private_data: bytes) -> str:
    """Return why the server has rejected us."""
    try:
        return hello_of(plan).difference(Hello.from_wire(private_data)) or "it does not say why"
    except ValueError as e:
        return f"it has ended, or {e}"


# ---- the server -----------------------------------------------------------------------------


def _serve(plan: Plan, stack: ExitStack) -> Connected:
    deadline = time.monotonic() + plan.timeout
    with listening(plan, datagrams=plan.service == "ud") as listener:
        while True:
            request = next_request(listener, deadline)
            client = name_of(request)
            try:
                return _accept(request, plan, stack, min(PATIENCE, left(deadline)))
            except (UnfitError, cm.RequestExpiredError, TimeoutError) as e:
                note_rejected(client, e)


class UnfitError(Exception):
    """A client was not given the same options as this server, or is another program."""


def _check(request: blocking.Request, plan: Plan) -> Hello:
    """Return the private data of a client; reject it and raise UnfitError if it does not fit."""
    ours = hello_of(plan)
    try:
        theirs = Hello.from_wire(request.private_data)
        why = ours.difference(theirs)
        if why is None:
            return theirs
    except ValueError as e:
        why = str(e)
    with suppress(OSError):  # it may have gone
        request.reject(ours.to_wire())
    raise UnfitError(why)


def _accept(request: blocking.Request, plan: Plan, stack: ExitStack, timeout: float) -> Connected:
    """Create our end on the device of the request, and connect it."""
    theirs = _check(request, plan)
    with ExitStack() as opened:
        end = opened.enter_context(open_end(on_device(plan, request)))
        qp = _qp(end)
        conn = request.accept(
            qp,
            private_data=hello_of(plan, qp.qp_num).to_wire(),
            timeout=timeout,
            on_init=lambda _: end.start(),
            access=NO_ACCESS,
        )
        opened.enter_context(conn)
        stack.push(opened.pop_all())
    return end, conn, theirs
