# SPDX-License-Identifier: MIT
"""Meeting the peer over TCP, by an exchange of addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..._core import VerbsError
from ...exchange import exchange_as_client_blocking, exchange_as_server_blocking, listen
from ...exchange._protocol import PerftestError
from .. import CommandError
from .._meeting import (
    cannot_listen,
    nobody_came,
    say_listening,
    say_turned_away,
    to_be_reached,
    told_soon,
)
from ._description import MAGIC, OTHER_PROGRAM, swap_descriptions
from ._end import End, open_end
from ._plan import Plan


@contextmanager
def meet(plan: Plan) -> Iterator[End]:
    """Exchange the address of the control's QP, connect it, and then all others."""
    with open_end(plan) as end:
        try:
            payload = _serve(end) if plan.host is None else _call(end, plan.host)
        except TimeoutError:
            raise nobody_came(plan, to_be_reached(plan)) from None
        except VerbsError:
            raise
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or e
            raise CommandError(f"the exchange of addresses failed: {why}{_hint(plan, e)}") from e
        if payload != MAGIC:
            raise CommandError(OTHER_PROGRAM)
        swap_descriptions(end)
        end.connect()
        yield end


def _hint(plan: Plan, error: Exception) -> str:
    """Return what to do about a peer that seems to be one of perftest.

    A server of these hangs up without a word.
    """
    if isinstance(error, PerftestError) or (plan.client and isinstance(error, ConnectionError)):
        return "; if the peer is a program of perftest, such as ib_send_lat: --perftest"
    return ""


def _call(end: End, host: str) -> bytes:
    plan = end.plan
    with told_soon(plan, to_be_reached(plan)):
        remote, payload = exchange_as_client_blocking(
            host, plan.port, end.control_address, timeout=plan.timeout, payload=MAGIC
        )
    end.connect_control(remote)
    return payload


def _serve(end: End) -> bytes:
    plan = end.plan

    def turned_away(peer: str, error: Exception) -> None:
        say_turned_away(peer, f"{error}{_hint(plan, error)}")

    try:
        listener = listen(plan.bind, plan.port)
    except OSError as e:
        raise cannot_listen(plan, e) from e
    with listener:
        host, port = listener.getsockname()[:2]
        say_listening(host, port, plan)
        _, payload = exchange_as_server_blocking(
            listener,
            end.control_address,
            end.connect_control,
            timeout=plan.timeout,
            turned_away=turned_away,
            payload=MAGIC,
        )
    return payload
