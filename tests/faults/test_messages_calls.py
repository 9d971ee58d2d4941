# SPDX-License-Identifier: MIT
"""Every call into the libraries that messages make fails once: while ends connect, send, receive
and close. An end then has raised, works, or is closed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import Any

import pytest
from fault_world import core, fail_each, held_objects, open_files
from support import DEADLINE, address_of

from cqnotify import ClosedError, Context, messages
from cqnotify.messages import Connection, ConnectionLostError, ConnectionOptions
from cqnotify.messages._resources import Device

SOON = 60.0  # seconds until an end knows, at most: none waits for so long
STEP = 2  # one call of so many is made to fail by a run
OPTIONS = ConnectionOptions(credits=2, eager=256, offers=1, cache=0)
LARGE = bytes(range(250)) * 100
FAILURES = (OSError, TimeoutError, MemoryError, ClosedError)

CALLS = {
    *("ibv_create_cq", "ibv_reg_mr", "ibv_dereg_mr", "ibv_post_send", "ibv_post_recv"),
    *("ibv_post_send when made", "ibv_post_recv when made", "ibv_poll_cq", "ibv_req_notify_cq"),
    *("ibv_get_cq_event", "ibv_modify_qp", "rdma_get_cm_event"),
}


async def talk(a: Connection, b: Connection) -> None:
    for _ in range(3):  # more than there are credits
        await a.send(b"small")
        assert await b.recv(timeout=SOON) == [b"small"]
    sending = asyncio.ensure_future(a.send(LARGE, timeout=SOON))
    taking = asyncio.ensure_future(b.recv(timeout=SOON))
    try:
        await asyncio.gather(sending, taking)
    finally:
        for task in (sending, taking):
            task.cancel()
        await asyncio.wait([sending, taking])
    assert [bytes(frame) for frame in taking.result()] == [LARGE]


async def is_over(conn: Connection) -> None:
    """It was open a moment ago, and its peer is not: it hears of that by itself, perhaps behind a
    message that was sent although posting it has failed."""
    with pytest.raises(FAILURES):
        while True:
            await conn.recv(timeout=SOON)
    assert conn.closed, conn


async def check(a: Connection, b: Connection) -> None:
    """Both are open, and messages pass in both directions; or none is."""
    if a.closed or b.closed:
        for conn in (a, b):
            if not conn.closed:
                await is_over(conn)
            for call in (conn.send(b""), conn.send(LARGE)):
                with pytest.raises(FAILURES):
                    await call
        return
    await a.send(b"after all")
    await b.send(b"after all")
    for conn in (a, b):
        while bytes((await conn.recv(timeout=SOON))[0]) != b"after all":
            pass


async def script(host: str, n: int, error: int, only: str) -> BaseException | None:
    """What was raised, if anything; afterwards everything is closed."""
    ours = asyncio.all_tasks()
    failure: BaseException | None = None
    made: list[Connection] = []
    core.fail_call(n, error, False, False, only)
    try:
        async with messages.listen(host, 0, options=OPTIONS) as listener:
            accepting = asyncio.ensure_future(listener.accept(SOON))
            try:
                made.append(await messages.connect(*listener.local, options=OPTIONS, timeout=SOON))
                made.append(await accepting)
            finally:
                accepting.cancel()
                await asyncio.wait([accepting])
        await talk(*made)
        await talk(*reversed(made))
        await made[0].aclose(SOON)
        await made[1].aclose(SOON)
    except FAILURES as e:
        failure = e
    finally:
        script.call = core.failed()  # type: ignore[attr-defined]
        core.fail_call(0)
    if len(made) == 2:
        await check(*made)
    for conn in made:
        conn.abort()
        await conn.aclose()
    for task in asyncio.all_tasks() - ours:
        await asyncio.wait([task])
    return failure


def run(host: str, n: int, error: int, only: str = "") -> tuple[str | None, BaseException | None]:
    """The n-th call fails, or the n-th one of that name: the call, and what was raised."""
    failure = asyncio.run(asyncio.wait_for(script(host, n, error, only), DEADLINE))
    return script.call, failure  # type: ignore[attr-defined]


def left() -> tuple[Any, ...]:
    gc.collect()
    return open_files(), core.live_handles(), held_objects(), dict(Device._known)


def test_each_call_of_messages_fails_once(ctx: Context) -> None:
    host = address_of(ctx)
    assert run(host, 0, 0) == (None, None)
    before = left()

    def fail_nth(n: int, only: str = "") -> str | None:
        call, failure = run(host, n, (errno.ENOMEM, errno.EIO)[n // STEP % 2], only)
        assert call is not None or failure is None
        what = f"{n}: {call}, {failure!r}"
        del failure
        assert left() == before, what
        return call

    fail_each(fail_nth, CALLS, STEP)


async def test_a_look_for_credits_that_fails_ends_the_connection(ctx: Context) -> None:
    """A sender looks once half of its credits are used up."""
    async with messages.listen(address_of(ctx), 0, options=OPTIONS) as listener:
        a = await messages.connect(*listener.local, options=OPTIONS)
        b = await listener.accept(SOON)
    core.before_call("ibv_poll_cq", lambda: core.fail_call(1, errno.EIO))
    sending = a.send(b"")
    with pytest.raises(StopIteration):
        sending.send(None)
    assert core.failed() == "ibv_poll_cq"
    with pytest.raises(ConnectionLostError, match="ibv_poll_cq"):
        await a.recv(timeout=SOON)
    assert a.closed
    await is_over(b)
    await asyncio.gather(a.aclose(), b.aclose())
