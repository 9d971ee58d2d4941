# SPDX-License-Identifier: MIT
"""A whole ping-pong: make our end, meet the peer, play, and take stock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .._core import VerbsError
from ..exchange import exchange_as_client_blocking, exchange_as_server_blocking, listen
from ..qp import QPAddress
from . import CommandError, note
from ._pingpong_end import End, Plan, open_end
from ._pingpong_play import Play
from ._pingpong_report import Report
from ._terminal import Progress

SOON: Final = 1.0  # seconds until a client that has not met its server says so


def hold(plan: Plan) -> Report:
    """Hold it, and return its figures. CommandError, VerbsError, CompletionError or AsyncEventError
    where it does not come to its end."""
    with open_end(plan) as end:
        return _play(end, _meet(end))


def _meet(end: End) -> list[QPAddress]:
    """Exchange addresses with the peer, and connect; return the peer's addresses."""
    plan = end.plan
    try:
        return _serve(end) if plan.host is None else _call(end)
    except TimeoutError:
        server = f"{plan.host} port {plan.port}"
        what = "no client came" if plan.host is None else f"{server} did not answer"
        raise CommandError(f"{what} within {plan.timeout:g} s") from None
    except VerbsError:
        raise
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise CommandError(f"the exchange of addresses failed: {why}") from e


def _call(end: End) -> list[QPAddress]:
    plan = end.plan
    assert plan.host is not None
    with _told_soon(f"waiting for {plan.host} port {plan.port} to answer, {_how_long(plan)}"):
        remote = exchange_as_client_blocking(
            plan.host, plan.port, end.addresses, timeout=plan.timeout
        )
    end.connect(remote)
    return remote


def _how_long(plan: Plan) -> str:
    return f"for {plan.timeout:g} s at most (--timeout; Ctrl-C ends it)"


@contextmanager
def _told_soon(text: str) -> Iterator[None]:
    """Say so, unless it is over by then. A thread does, for the name of a host may be looked up and
    a connection tried for long without a word."""
    timer = threading.Timer(SOON, note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _serve(end: End) -> list[QPAddress]:
    plan = end.plan

    def turned_away(who: str, why: Exception) -> None:
        note(f"{who} is turned away: {why}")

    try:
        listener = listen(plan.bind, plan.port)
    except OSError as e:
        why = e.strerror or e
        raise CommandError(f"cannot listen on {plan.bind} port {plan.port}: {why}") from e
    with listener:
        host, port = listener.getsockname()[:2]
        note(f"listening on {host} port {port}, {_how_long(plan)}")
        return exchange_as_server_blocking(
            listener, end.addresses, end.connect, timeout=plan.timeout, turned_away=turned_away
        )


def _play(end: End, remote: list[QPAddress]) -> Report:
    plan = end.plan
    with Progress("messages", plan.iters) as progress:
        play = Play(end, progress)
        play.run()
    stats = end.cq.stats
    return Report(
        plan=plan,
        device=end.device,
        gid_index=end.gid_index,
        local=end.addresses[: plan.num_qp],
        remote=remote[: plan.num_qp],
        nanoseconds=play.nanoseconds,
        latencies=play.latencies,
        events=stats.events,
        wakeups=play.wakeups,
        spurious=stats.spurious,
        checked=play.received if plan.check else None,
    )
