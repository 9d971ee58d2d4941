# SPDX-License-Identifier: MIT
"""Meeting the peer over TCP, as the ping-pong programs of rdma-core do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..._core import VerbsError
from ...context import gid_text
from ...exchange import exchange_as_client_blocking, exchange_as_server_blocking, listen
from ...qp import QPAddress
from .. import CommandError
from .._meeting import (
    cannot_listen,
    nobody_came,
    say_listening,
    say_turned_away,
    to_be_reached,
    told_soon,
)
from ._end import End, Plan, open_end
from ._meeting import Met


@contextmanager
def meet(plan: Plan) -> Iterator[Met]:
    """Exchange addresses with the peer, and connect."""
    with open_end(plan) as end:
        remote = _exchange(end)[: plan.num_qp]
        yield Met(end, plan.path_mtu, _plain(end.addresses[: plan.num_qp]), _plain(remote))


def _plain(addresses: list[QPAddress]) -> list[dict[str, Any]]:
    return [{**address._asdict(), "gid": gid_text(address.gid)} for address in addresses]


def _exchange(end: End) -> list[QPAddress]:
    """Return the peer's addresses."""
    try:
        return _serve(end) if end.plan.host is None else _call(end, end.plan.host)
    except TimeoutError:
        raise nobody_came(end.plan, to_be_reached(end.plan)) from None
    except VerbsError:
        raise
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise CommandError(f"the exchange of addresses failed: {why}") from e


def _call(end: End, host: str) -> list[QPAddress]:
    plan = end.plan
    with told_soon(plan, to_be_reached(plan)):
        remote = exchange_as_client_blocking(host, plan.port, end.addresses, timeout=plan.timeout)
    end.connect(remote)
    return remote


def _serve(end: End) -> list[QPAddress]:
    plan = end.plan
    try:
        listener = listen(plan.bind, plan.port)
    except OSError as e:
        raise cannot_listen(plan, e) from e
    with listener:
        host, port = listener.getsockname()[:2]
        say_listening(host, port, plan)
        return exchange_as_server_blocking(
            listener,
            end.addresses,
            end.connect,
            timeout=plan.timeout,
            turned_away=say_turned_away,
        )
