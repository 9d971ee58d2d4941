# SPDX-License-Identifier: MIT
"""Meeting the peer by rdma_cm: at an IP address and a port, which choose the devices."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Final

from ... import cm
from ..._core import VerbsError
from ...cm import blocking
from ...enums import AccessFlags, QPState, QPType
from .. import CommandError, device_names
from .._meeting import (
    cannot_listen,
    nobody_came,
    say_listening,
    say_turned_away,
    server_of,
    told_soon,
)
from ._end import End, Plan, open_end
from ._hello import Hello, hello_of
from ._meeting import Met

NO_ACCESS: Final = AccessFlags(0)
RETRY: Final = 0.05  # seconds until a client tries again
PATIENCE: Final = 10.0  # seconds for a client that has asked, and for a goodbye
AT_ONCE: Final = 1.0  # seconds, for what is known by now and may still have to be read

Attempt = tuple[End, blocking.Connection, Hello]


@contextmanager
def meet(plan: Plan) -> Iterator[Met]:
    """Connect to the peer. At the end of the block the server says goodbye, and the client waits
    for that, since the server's last message may not be acknowledged before.
    """
    device_names()
    with ExitStack() as stack:
        try:
            end, conn, theirs = _call(plan, stack) if plan.client else _serve(plan, stack)
        except TimeoutError:
            raise nobody_came(plan, _hint(plan)) from None
        except VerbsError:
            raise
        except OSError as e:
            raise CommandError(str(e.strerror or e)) from e
        yield _met(end, conn, theirs)
        if end.qp_type != QPType.UD:
            _part(plan, conn)


def _hint(plan: Plan) -> str:
    return f": does a server run there, with -R and --type {plan.service}?" if plan.client else ""


def _met(end: End, conn: blocking.Connection, theirs: Hello) -> Met:
    (qp,) = (endpoint.qp for endpoint in end.endpoints)
    path_mtu = None if end.qp_type == QPType.UD else getattr(qp.query().path_mtu, "bytes", None)
    local, remote = (
        [{"address": address, "port": port, "qp_num": number}]
        for (address, port), number in ((conn.local, qp.qp_num), (conn.peer, theirs.qp_num))
    )

    def has_gone() -> bool:
        with suppress(TimeoutError):
            conn.closed(AT_ONCE)
        return conn.error is not None

    return Met(end, path_mtu, local, remote, has_gone)


def _part(plan: Plan, conn: blocking.Connection) -> None:
    if plan.client:
        with suppress(TimeoutError):
            conn.closed(PATIENCE)
    else:
        conn.disconnect()


def _left(deadline: float) -> float:
    """Return the seconds until then; TimeoutError if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


# ---- the client -----------------------------------------------------------------------------


def _call(plan: Plan, stack: ExitStack) -> Attempt:
    assert plan.host is not None
    deadline = time.monotonic() + plan.timeout
    with told_soon(plan):
        way = blocking.resolve(plan.host, timeout=plan.timeout)
        found = replace(plan, device=way.device, port_num=way.port_num)
        end, conn = _connect(found, way.peer, deadline, stack)
    try:
        theirs = Hello.from_wire(conn.private_data)
    except ValueError as e:
        raise CommandError(f"{server_of(plan)} cannot play: {e}") from None
    if end.qp_type == QPType.UD:
        endpoint = end.endpoints[0]
        assert conn.remote_qkey is not None
        endpoint.to_peer = {
            "ah": conn.make_ah(endpoint.pd),
            "remote_qpn": conn.remote_qpn,
            "remote_qkey": conn.remote_qkey,
        }
    end.start()  # the server only answers
    return end, conn, theirs


def _connect(
    plan: Plan, peer: str, deadline: float, stack: ExitStack
) -> tuple[End, blocking.Connection]:
    """Try until a server is there."""
    with ExitStack() as made:
        end = made.enter_context(open_end(plan))
        while (conn := _try(end, peer, _left(deadline))) is None:
            time.sleep(min(RETRY, _left(deadline)))
            if end.endpoints[0].qp.state == QPState.ERR:  # an iWARP device can use it only once
                made.close()
                end = made.enter_context(open_end(plan))
        made.enter_context(conn)
        stack.push(made.pop_all())
        return end, conn


def _try(end: End, peer: str, timeout: float) -> blocking.Connection | None:
    """Return None where no server is there."""
    plan, qp = end.plan, end.endpoints[0].qp
    ours = hello_of(plan, qp.qp_num)
    try:
        return blocking.connect(
            qp, peer, plan.port, private_data=ours.to_wire(), timeout=timeout, access=NO_ACCESS
        )
    except (cm.RejectedError, VerbsError) as e:
        if _nobody_listens(e):
            return None
        raise _refused(plan, ours, e) from e


def _nobody_listens(error: OSError) -> bool:
    """Whether a server may still come."""
    reason = getattr(error, "reason", None)
    return reason == cm.RejectReason.INVALID_SERVICE_ID


def _refused(plan: Plan, ours: Hello, error: OSError) -> Exception:
    """Return what to say if the server does not want us."""
    if not isinstance(error, cm.RejectedError):
        return error
    if error.reason != cm.RejectReason.CONSUMER_DEFINED:
        return CommandError(str(error))
    try:
        why = ours.difference(Hello.from_wire(error.private_data)) or "it does not say why"
    except ValueError as e:
        why = f"it has ended, or {e}"
    return CommandError(f"{server_of(plan)} has turned us away: {why}")


# ---- the server -----------------------------------------------------------------------------


def _serve(plan: Plan, stack: ExitStack) -> Attempt:
    deadline = time.monotonic() + plan.timeout
    try:
        listener = blocking.listen(plan.bind, plan.port, datagrams=plan.service == "ud")
    except OSError as e:
        if e.errno == errno.EADDRNOTAVAIL:  # the kernel says that of a port, too
            why = OSError(e.errno, "the address is of another host, or the port is taken")
            raise cannot_listen(plan, why) from e
        raise cannot_listen(plan, e) from e
    with listener:
        say_listening(*listener.local, plan)
        while True:
            request = listener.get_request(_left(deadline))
            host, port = request.peer
            try:
                return _accept(request, plan, stack, min(PATIENCE, _left(deadline)))
            except (Unfit, cm.PeerGoneError, TimeoutError) as e:
                say_turned_away(f"{host} port {port}", e)


class Unfit(Exception):
    """A client cannot play with us."""


def _check(request: blocking.Request, plan: Plan) -> Hello:
    """Return what a client says; it is rejected, and Unfit raised, unless that fits."""
    ours = hello_of(plan, 0)
    try:
        theirs = Hello.from_wire(request.private_data)
        why = ours.difference(theirs)
        if why is None:
            return theirs
    except ValueError as e:
        why = str(e)
    with suppress(OSError):  # it may have gone
        request.reject(ours.to_wire())
    raise Unfit(why)


def _accept(request: blocking.Request, plan: Plan, stack: ExitStack, timeout: float) -> Attempt:
    """Make our end on the device of the request."""
    theirs = _check(request, plan)
    found = replace(plan, device=request.device, port_num=request.port_num)
    with ExitStack() as made:
        end = made.enter_context(open_end(found))
        (endpoint,) = end.endpoints
        conn = request.accept(
            endpoint.qp,
            private_data=hello_of(plan, endpoint.qp.qp_num).to_wire(),
            timeout=timeout,
            on_init=lambda _: end.start(),
            access=NO_ACCESS,
        )
        made.enter_context(conn)
        stack.push(made.pop_all())
    return end, conn, theirs
