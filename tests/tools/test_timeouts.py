# SPDX-License-Identifier: MIT
"""Timeouts mean the same in every call that has one, in C or in Python."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support import Pair, deliver

from cqnotify import QP, CompletionChannel, Context, QPType, cm, exchange, messages
from cqnotify._timeouts import FOREVER, deadline, seconds_of
from cqnotify.cm import blocking
from cqnotify.testing import Endpoint, wait_completions

Call = Callable[[Any], object]
HERE = "127.0.0.1"


def own_port() -> int:
    """One to which nobody listens."""
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture(params=[
    "get_event", "get_async_event", "wait_completions",
    "connect", "resolve", "join", "connect, awaited", "resolve, awaited", "messages",
    "client", "server", "client, awaited", "server, awaited",
])  # fmt: skip
def call(request: pytest.FixtureRequest, ctx: Context) -> Iterator[Call]:
    """What takes a timeout; nothing comes within it."""
    end = Endpoint(ctx)
    ud = QP(end.pd, QPType.UD, send_cq=end.send_cq)
    own, names = end.qp.address(), request.param
    listener = exchange.listen(HERE, 0)

    def awaited(call: Callable[[Any], Any]) -> Call:
        async def run(timeout: Any) -> object:
            return await call(timeout)

        return lambda timeout: asyncio.run(run(timeout))

    calls: dict[str, Call] = {
        "get_event": CompletionChannel(ctx).get_event,
        "get_async_event": ctx.get_async_event,
        "wait_completions": lambda t: wait_completions(end.recv_cq, timeout=t),
        "connect": lambda t: blocking.connect(end.qp, HERE, 1, timeout=t),
        "resolve": lambda t: blocking.resolve(HERE, timeout=t),
        "join": lambda t: blocking.join_multicast(ud, "ff0e::1", timeout=t),
        "connect, awaited": awaited(lambda t: cm.connect(end.qp, HERE, 1, timeout=t)),
        "resolve, awaited": awaited(lambda t: cm.resolve(HERE, timeout=t)),
        "messages": awaited(lambda t: messages.connect(HERE, 1, timeout=t)),
        "client": lambda t: exchange.blocking.exchange_as_client(HERE, own_port(), own, timeout=t),
        "server": lambda t: exchange.blocking.exchange_as_server(
            listener, own, end.qp.connect, timeout=t
        ),
        "client, awaited": awaited(
            lambda t: exchange.exchange_as_client(HERE, own_port(), own, timeout=t)
        ),
        "server, awaited": awaited(
            lambda t: exchange.exchange_as_server(listener, own, end.qp.connect, timeout=t)
        ),
    }
    with listener:
        yield calls[names]


NO_TIMES = [-1, -0.5, math.nan, -math.inf, pytest.param(np.float32(-1), id="numpy"), -(10**400)]


@pytest.mark.parametrize("timeout", NO_TIMES)
def test_a_timeout_that_is_no_time_is_refused(call: Call, timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout is .*: it must be 0 or more seconds, or None"):
        call(timeout)


@pytest.mark.parametrize("timeout", ["1", [], b"1"])
def test_what_is_no_number_is_refused(call: Call, timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not "):
        call(timeout)


LONG = [1e10, math.inf, 10**400, np.float64(1e12), FOREVER, 4e6]


@pytest.mark.parametrize("timeout", LONG, ids=range(len(LONG)))
def test_a_long_timeout_waits_for_what_comes(pair: Pair, ctx: Context, timeout: Any) -> None:
    a, b = pair
    deliver(pair)
    assert len(wait_completions(b.rcq, timeout=timeout)) == 1
    address = cm.local_addresses(ctx)[0]
    assert blocking.resolve(address, timeout=timeout).device == ctx.name
    with QP(a.pd, QPType.RC, send_cq=a.scq) as client, pytest.raises(cm.RejectedError):
        blocking.connect(client, address, own_port(), timeout=timeout)


@pytest.mark.parametrize("timeout", [2, 2.0, np.int64(2), np.float32(2), Fraction(2)])
def test_any_number_is_a_number_of_seconds(timeout: Any) -> None:
    assert seconds_of(timeout) == 2.0
    assert type(seconds_of(timeout)) is float


def test_thirty_years_are_for_ever() -> None:
    assert deadline(FOREVER) is None
    assert deadline(None) is None
