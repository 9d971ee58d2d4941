# SPDX-License-Identifier: MIT
"""cm.resolve(): which device leads to an address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from cm_support import NOBODY, Side, address_of, link_local, serve_once
from support import DEADLINE, on_iwarp

from cqnotify import Context, VerbsError, cm
from cqnotify.cm import blocking


def awaited(*args: Any, **options: Any) -> cm.Resolved:
    return asyncio.run(cm.resolve(*args, **options))


Resolve = Callable[..., cm.Resolved]
each_way = pytest.mark.parametrize("resolve", [awaited, blocking.resolve], ids=["task", "thread"])


@each_way
def test_our_own_address_leads_to_its_device(ctx: Context, resolve: Resolve) -> None:
    host = address_of(ctx)
    assert resolve(host) == cm.Resolved(ctx.name, 1, host, host)
    assert resolve(host, source=host).local == host


@each_way
def test_the_interface_of_a_link_local_address_decides(
    ctx: Context, ctx2: Context, netdev: str, resolve: Resolve
) -> None:
    """`netdev` is that of ctx2."""
    host = link_local(ctx, netdev)
    found = resolve(host)
    assert (found.device, found.peer) == (ctx2.name, host)
    assert found.local == link_local(ctx2)


@each_way
def test_what_it_says_connects(ctx: Context, resolve: Resolve) -> None:
    with blocking.listen(address_of(ctx), 0) as listener:
        assert (listener.device, listener.port_num) == (ctx.name, 1)
        host, port = listener.local
        found = resolve(host)
        accepted: list[Any] = []
        thread = threading.Thread(target=serve_once, args=(listener, Side(ctx), accepted))
        thread.start()
        with (
            Context(found.device) as ours,
            blocking.connect(Side(ours).qp, found.peer, port) as conn,
        ):
            thread.join()
            assert conn.local[0] == found.local
            assert conn.port_num == accepted[0].port_num == found.port_num


@each_way
def test_addresses_that_no_device_leads_to(resolve: Resolve) -> None:
    of_loopback = errno.EINVAL if on_iwarp() else errno.ENODEV
    for host, code in (("127.0.0.1", of_loopback), ("192.0.2.1", errno.ENETUNREACH)):
        with pytest.raises(VerbsError) as e:
            resolve(host)
        assert e.value.errno == code
    with pytest.raises(OSError, match="does not resolve"):
        resolve("no.such.name.invalid")


@each_way
def test_an_address_that_no_host_has(ctx: Context, resolve: Resolve) -> None:
    with pytest.raises(cm.UnreachableError, match=f"^the way to {NOBODY}: ADDR_ERROR"):
        resolve(NOBODY, timeout=DEADLINE)  # the kernel gives up before
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"^the way to {NOBODY}: no answer in time"):
        resolve(NOBODY, timeout=0.05)
    assert time.monotonic() - began >= 0.049  # uvloop counts milliseconds


@each_way
def test_arguments(resolve: Resolve) -> None:
    for args, options in ((("",), {}), (("10.99.0.1",), {"timeout": -1})):
        with pytest.raises(ValueError, match=r"host is ''|timeout is -1"):
            resolve(*args, **options)


async def test_of_a_names_addresses_the_first_that_works_is_told(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = address_of(ctx)
    found = [(2, 1, 6, "", ("192.0.2.1", 0)), (2, 1, 6, "", (host, 0))]

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        return found

    with contextlib.suppress(AttributeError):  # uvloop's loop has no room for it
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        assert (await cm.resolve("some.where")).peer == host


async def test_a_cancelled_one_leaves_nothing(ctx: Context) -> None:
    asking = asyncio.create_task(cm.resolve(NOBODY))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await cm.resolve(address_of(ctx))).device == ctx.name
