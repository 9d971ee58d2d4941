# SPDX-License-Identifier: MIT
"""Meeting the peer over TCP, by an exchange of addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..._core import VerbsError
from ...exchange import listen
from ...exchange.blocking import exchange_as_client, exchange_as_server
from .. import CommandError
from .meeting import cannot_listen, no_peer, note_if_slow, note_listening, note_rejected
from .plan import PeerPlan


def exchange(
    plan: PeerPlan,
    address: Any,
    connect: Callable[[Any], None],
    *,
    payload: Any = None,
    hint: Callable[[Exception], str] = lambda _: "",
) -> Any:
    """Swap addresses with the peer and connect; return what functions of `cqnotify.exchange` do.

    address: that of a QP, or a list of them.
    connect: takes the same of the peer.
    payload: bytes for the peer, or None.
    hint: returns what to add to the message of an error.
    """
    hint_to_bind = _hint_to_bind(plan.host)
    try:
        if plan.host is None:
            with listening(plan) as listener:
                return exchange_as_server(
                    *(listener, address, connect),
                    timeout=plan.timeout,
                    on_reject=lambda peer, error: note_rejected(peer, f"{error}{hint(error)}"),
                    payload=payload,
                )
        with note_if_slow(plan, hint_to_bind):
            remote: Any = exchange_as_client(
                plan.host, plan.port, address, timeout=plan.timeout, payload=payload
            )
        connect(remote if payload is None else remote[0])
        return remote
    except TimeoutError:
        raise no_peer(plan, hint_to_bind) from None
    except VerbsError:
        raise
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise CommandError(f"the exchange of addresses failed: {why}{hint(e)}") from e


@contextmanager
def listening(plan: PeerPlan) -> Iterator[socket.socket]:
    """Listen as a server, and print where."""
    try:
        listener = listen(plan.bind, plan.port)
    except OSError as e:
        raise cannot_listen(plan, e) from e
    with listener:
        host, port = listener.getsockname()[:2]
        note_listening(host, port, plan)
        yield listener


def _hint_to_bind(host: str | None) -> str:
    """Return what a server of ours needs so that a client on another host finds it."""
    if host is None or host == "localhost" or host.startswith("127.") or host == "::1":
        return ""
    return "; `cqnotify` there listens for other hosts only with --bind (0.0.0.0 or ::)"
