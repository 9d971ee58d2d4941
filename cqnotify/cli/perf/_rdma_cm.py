# SPDX-License-Identifier: MIT
"""Meeting the peer by rdma_cm: a connection for the control, and then one for each other QP.

UD QPs need none: they use the path that rdma_cm has found for the control.

A client sends a random number with each of its connections, by which the server recognizes them.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from ... import cm
from ...cm import blocking
from .. import CommandError
from .._peer.meeting import note_rejected, rejected, server_of
from .._peer.rdma_cm import call, listening, meeting, name_of, next_request, on_device
from ._control import Control
from ._description import MAGIC, OTHER_PROGRAM, swap_descriptions
from ._end import PerfEnd, open_end
from ._plan import Plan

FOR_CONTROL: Final = 0xFFFF  # instead of the index of a QP


class Token(NamedTuple):
    """The private data of each connection of a client."""

    client: bytes
    qp_index: int

    def to_wire(self) -> bytes:
        return _TOKEN.pack(MAGIC, *self)

    @classmethod
    def from_wire(cls, data: bytes) -> Token:
        """Parse private data; ValueError, with an explanation, if it is of another program."""
        magic, client, index = _TOKEN.unpack_from(data.ljust(_TOKEN.size, b"\0"))
        if magic != MAGIC:
            raise ValueError(OTHER_PROGRAM)
        return cls(client, index)


_TOKEN: Final = struct.Struct(f"!{len(MAGIC)}s8sH")


@contextmanager
def meet(plan: Plan) -> Iterator[PerfEnd]:
    """Connect to the peer; the connections are closed at the end of the block."""
    with ExitStack() as stack:
        try:
            with meeting(plan):
                end = _call(plan, stack) if plan.client else _serve(plan, stack)
        except cm.RejectedError as e:
            raise rejected(plan, e) from e
        yield end


def _for_control(end: PerfEnd) -> dict[str, Any]:
    """Return the options of the control's connection."""
    return {"on_init": lambda _: end.own_control.start(), "access": Control.access}


# ---- the client -----------------------------------------------------------------------------


def _call(plan: Plan, stack: ExitStack) -> PerfEnd:
    us = os.urandom(8)
    end, control = call(
        *(plan, stack, open_end),
        lambda end: end.own_control.qp,
        lambda end: _for_control(end) | {"private_data": Token(us, FOR_CONTROL).to_wire()},
    )
    if not control.private_data.startswith(MAGIC):
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
            *(qp, control.peer[0], plan.port),
            private_data=Token(us, index).to_wire(),
            timeout=plan.timeout,
            on_init=lambda _, index=index: end.start(index),  # type: ignore[misc]
            access=end.access,
        )
        stack.enter_context(conn)
    return end


# ---- the server -----------------------------------------------------------------------------


def _serve(plan: Plan, stack: ExitStack) -> PerfEnd:
    with listening(plan) as listener:
        request, token = _next(listener, None, plan.timeout)
        end = stack.enter_context(open_end(on_device(plan, request)))
        conn = request.accept(
            end.own_control.qp,
            private_data=MAGIC,
            timeout=plan.timeout,
            **_for_control(end),
        )
        stack.enter_context(conn)
        swap_descriptions(end)
        if plan.connection == "UD":
            end.connect()
            return end
        for _ in end.qps:
            _accept(end, *_next(listener, token.client, plan.timeout), stack)
    return end


def _accept(end: PerfEnd, request: blocking.Request, token: Token, stack: ExitStack) -> None:
    conn = request.accept(
        end.qps[token.qp_index],
        timeout=end.plan.timeout,
        on_init=lambda _: end.start(token.qp_index),
        access=end.access,
    )
    stack.enter_context(conn)


def _next(
    listener: blocking.Listener, client: bytes | None, timeout: float
) -> tuple[blocking.Request, Token]:
    """Return the next request: of any client for a control, or of this client for a QP."""
    deadline = time.monotonic() + timeout
    while True:
        request = next_request(listener, deadline)
        name = name_of(request)
        why: object = "another client is measured"
        try:
            token = Token.from_wire(request.private_data)
        except ValueError as e:
            why = e
        else:
            if client == token.client or (client is None and token.qp_index == FOR_CONTROL):
                return request, token
        request.reject()
        note_rejected(name, why)
