# SPDX-License-Identifier: MIT
"""Meeting the peer by rdma_cm: a connection for the control, and then one for each other QP.

UD QPs need none: they are addressed by the path that rdma_cm has found for the control.

The connections of a client have a number that it has chosen, so that a server knows them.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from ... import cm
from ..._core import VerbsError
from ...cm import blocking
from ...enums import QPState
from .. import CommandError
from .._meeting import (
    cannot_listen,
    nobody_came,
    say_listening,
    say_turned_away,
    server_of,
    told_soon,
)
from ._control import Control
from ._description import MAGIC, OTHER_PROGRAM, swap_descriptions
from ._end import End, open_end
from ._plan import Plan

RETRY: Final = 0.05  # seconds until a client tries again
FOR_CONTROL: Final = 0xFFFF  # instead of the index of a QP


class Token(NamedTuple):
    """What a client says of each connection, in its private data."""

    client: bytes
    qp_index: int

    def to_wire(self) -> bytes:
        return _TOKEN.pack(MAGIC, *self)

    @classmethod
    def from_wire(cls, data: bytes) -> Token:
        """Return what a client said; ValueError, in words, if it is another program."""
        magic, client, index = _TOKEN.unpack_from(data.ljust(_TOKEN.size, b"\0"))
        if magic != MAGIC:
            raise ValueError(OTHER_PROGRAM)
        return cls(client, index)


_TOKEN: Final = struct.Struct(f"!{len(MAGIC)}s8sH")


@contextmanager
def meet(plan: Plan) -> Iterator[End]:
    """Connect to the peer; the connections are closed at the end of the block."""
    with ExitStack() as stack:
        try:
            yield _call(plan, stack) if plan.client else _serve(plan, stack)
        except _NobodyError:
            raise nobody_came(plan) from None
        except cm.RejectedError as e:
            raise CommandError(f"{server_of(plan)} has turned us away: {e}") from e


class _NobodyError(Exception):
    """No peer came in time."""


def _left(deadline: float) -> float:
    """Return the seconds until then; _NobodyError if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise _NobodyError
    return left


# ---- the client -----------------------------------------------------------------------------


def _call(plan: Plan, stack: ExitStack) -> End:
    assert plan.host is not None
    deadline = time.monotonic() + plan.timeout
    us = os.urandom(8)
    with told_soon(plan):
        try:
            way = blocking.resolve(plan.host, timeout=plan.timeout)
            found = replace(plan, device=way.device, port_num=way.port_num)
            end, said = _connect_control(found, way.peer, us, deadline, stack)
        except VerbsError:
            raise
        except TimeoutError:
            raise _NobodyError from None
    if not said.startswith(MAGIC):
        raise CommandError(
            f"{server_of(plan)}: {OTHER_PROGRAM}, such as rping: does `cqnotify {plan.name} -R` "
            "run there?"
        )
    swap_descriptions(end)
    if plan.connection == "UD":
        end.connect()
        return end
    for index, qp in enumerate(end.qps):
        conn = blocking.connect(
            *(qp, way.peer, plan.port),
            private_data=Token(us, index).to_wire(),
            timeout=plan.timeout,
            on_init=lambda _, index=index: end.start(index),  # type: ignore[misc]
            access=end.access,
        )
        stack.enter_context(conn)
    return end


def _connect_control(
    plan: Plan, peer: str, us: bytes, deadline: float, stack: ExitStack
) -> tuple[End, bytes]:
    """Try until a server is there; return also what it says."""
    with ExitStack() as made:
        end = made.enter_context(open_end(plan))
        while (conn := _try(end, peer, us, _left(deadline))) is None:
            time.sleep(min(RETRY, _left(deadline)))
            if end.own_control.qp.state == QPState.ERR:  # an iWARP device can use it only once
                made.close()
                end = made.enter_context(open_end(plan))
        made.enter_context(conn)
        stack.push(made.pop_all())
        return end, conn.private_data


def _try(end: End, peer: str, us: bytes, timeout: float) -> blocking.Connection | None:
    """Return None where no server is there."""
    try:
        return blocking.connect(
            *(end.own_control.qp, peer, end.plan.port),
            private_data=Token(us, FOR_CONTROL).to_wire(),
            timeout=timeout,
            on_init=lambda _: end.own_control.start(),
            access=Control.access,
        )
    except (cm.RejectedError, VerbsError) as e:
        if getattr(e, "reason", None) == cm.RejectReason.INVALID_SERVICE_ID:
            return None
        raise


# ---- the server -----------------------------------------------------------------------------


def _serve(plan: Plan, stack: ExitStack) -> End:
    deadline = time.monotonic() + plan.timeout
    try:
        listener = blocking.listen(plan.bind, plan.port)
    except OSError as e:
        if e.errno == errno.EADDRNOTAVAIL:  # the kernel says that of a port, too
            why = OSError(e.errno, "the address is of another host, or the port is taken")
            raise cannot_listen(plan, why) from e
        raise cannot_listen(plan, e) from e
    with listener:
        say_listening(*listener.local, plan)
        request, token = _next(listener, None, deadline)
        found = replace(plan, device=request.device, port_num=request.port_num)
        end = stack.enter_context(open_end(found))
        conn = request.accept(
            end.own_control.qp,
            private_data=MAGIC,
            timeout=plan.timeout,
            on_init=lambda _: end.own_control.start(),
            access=Control.access,
        )
        stack.enter_context(conn)
        swap_descriptions(end)
        if plan.connection == "UD":
            end.connect()
            return end
        for _ in end.qps:
            _accept(end, *_next(listener, token.client, time.monotonic() + plan.timeout), stack)
    return end


def _accept(end: End, request: blocking.Request, token: Token, stack: ExitStack) -> None:
    conn = request.accept(
        end.qps[token.qp_index],
        timeout=end.plan.timeout,
        on_init=lambda _: end.start(token.qp_index),
        access=end.access,
    )
    stack.enter_context(conn)


def _next(
    listener: blocking.Listener, client: bytes | None, deadline: float
) -> tuple[blocking.Request, Token]:
    """Return the next request for a control, or of this client for another QP."""
    while True:
        try:
            request = listener.get_request(_left(deadline))
        except TimeoutError:
            raise _NobodyError from None
        why: object = "another client is measured"
        try:
            token = Token.from_wire(request.private_data)
        except ValueError as e:
            why = e
        else:
            if client == token.client or (client is None and token.qp_index == FOR_CONTROL):
                return request, token
        host, port = request.peer
        request.reject()
        say_turned_away(f"{host} port {port}", why)
