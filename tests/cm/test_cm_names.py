# SPDX-License-Identifier: MIT
"""Names with several addresses: one after the other, each with its share of the time."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from cm_support import SOON, Side, address_of, link_local, serve_once

from cqnotify import Context, cm
from cqnotify._several import share_of
from cqnotify.cm import blocking

NAME = "some.where"
Names = Callable[..., None]


def awaited(*args: Any, **options: Any) -> Any:
    async def call() -> str:
        async with await cm.connect(*args, **options) as conn:
            return conn.peer[0]

    return asyncio.run(call())


def in_thread(*args: Any, **options: Any) -> Any:
    with blocking.connect(*args, **options) as conn:
        return conn.peer[0]


Connect = Callable[..., str]
each_way = pytest.mark.parametrize("connect", [awaited, in_thread], ids=["task", "thread"])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Sets what the name servers say of NAME."""
    real = socket.getaddrinfo

    def set_them(*hosts: str) -> None:
        def getaddrinfo(host: str, *args: Any, **options: Any) -> list[Any]:
            if options.get("flags") or host != NAME:
                return real(host, *args, **options)
            return [real(one, *args, **options)[0] for one in hosts]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return set_them


def served(listener: blocking.Listener, ctx: Context, connect: Connect, **options: Any) -> str:
    """Connect by NAME, where a thread accepts it."""
    side, accepted, port = Side(ctx), list[Any](), listener.local[1]
    thread = threading.Thread(target=serve_once, args=(listener, Side(ctx), accepted))
    thread.start()
    try:
        return connect(side.qp, NAME, port, **options)
    finally:
        thread.join(SOON)
        accepted[0].close()


@each_way
def test_the_next_address_is_tried(ctx: Context, names: Names, connect: Connect) -> None:
    own = address_of(ctx)
    with blocking.listen(own, 0) as listener:
        for other in (link_local(ctx), "192.0.2.1"):
            names(other, own)
            assert served(listener, ctx, connect) == own


@each_way
def test_an_address_that_leads_to_another_device_is_passed_over(
    ctx: Context, ctx2: Context, names: Names, connect: Connect
) -> None:
    names(address_of(ctx2), address_of(ctx))
    with blocking.listen(address_of(ctx), 0) as listener:
        assert served(listener, ctx, connect) == address_of(ctx)
    names(address_of(ctx2))
    with pytest.raises(ValueError, match="leads over device"):
        connect(Side(ctx).qp, NAME, 9)


@each_way
def test_a_silent_address_takes_its_share_of_the_time(
    ctx: Context, names: Names, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, silent = address_of(ctx), link_local(ctx)
    attempts: list[int] = []

    def share(end: float | None, left: int) -> float:
        assert end is not None
        attempts.append(left)
        return time.monotonic() + 0.1 if left == 2 else share_of(end, left) or 0.0

    names(silent, own)
    monkeypatch.setattr("cqnotify.cm._async.share_of", share)
    monkeypatch.setattr(blocking, "share_of", share)
    with blocking.listen(own, 0) as listener, blocking.listen(silent, listener.local[1]):
        assert served(listener, ctx, connect, timeout=SOON) == own
    assert attempts == [2, 1]


@each_way
def test_the_error_names_each_address(ctx: Context, names: Names, connect: Connect) -> None:
    own, other = address_of(ctx), link_local(ctx)
    names(own, other)
    words = f"none of 2 addresses works: .*{re.escape(own)} .*; .*{re.escape(other)} "
    with pytest.raises(cm.RejectedError, match=words) as caught:
        connect(Side(ctx).qp, NAME, 9)
    assert caught.value.reason == cm.RejectReason.INVALID_SERVICE_ID


def test_the_shares_are_what_is_left() -> None:
    end = time.monotonic() + 90
    third = share_of(end, 3)
    assert third is not None
    assert 0 < end - third <= 60.1
    assert share_of(end, 1) == pytest.approx(end)
    assert share_of(None, 3) is None


async def test_an_address_is_its_own(ctx: Context) -> None:
    own, other = address_of(ctx), link_local(ctx)
    assert await cm.lookup(own) == [own]
    assert await cm.lookup(other) == [other]
    with pytest.raises(ValueError, match="host is ''"):
        await cm.lookup("")


def test_the_addresses_of_a_name_are_told_in_their_order(ctx: Context, names: Names) -> None:
    own, other = address_of(ctx), link_local(ctx)
    names(other, own, other)
    assert asyncio.run(cm.lookup(NAME)) == [other, own]
