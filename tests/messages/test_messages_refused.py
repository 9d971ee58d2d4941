# SPDX-License-Identifier: MIT
"""Ends that do not fit, and strangers: they are refused, and told why."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct

import pytest
from hostile import Raw
from messages_support import SMALL, SOON, address_of, took
from support import eventually, start

from cqnotify import ClosedError, Context, VerbsError, cm, messages
from cqnotify.messages import Connection, ConnectionOptions, RefusedError
from cqnotify.messages import _wire as wire
from cqnotify.messages._resources import Device

HELLO = wire.hello(ConnectionOptions())


def changed(at: int, fmt: str, value: object) -> bytes:
    hello = bytearray(HELLO)
    struct.pack_into(fmt, hello, at, value)
    return bytes(hello)


STRANGERS = {
    "nothing": (b"", "does not speak the protocol of cqnotify.messages"),
    "noise": (bytes(range(56)), "does not speak the protocol of cqnotify.messages"),
    "magic": (b"CQNX" + HELLO[4:], "does not speak the protocol of cqnotify.messages"),
    "version": (changed(4, "<H", 7), "one end has version 2 of the protocol, the other 7"),
    "version 1": (changed(4, "<H", 1), "one end has version 2 of the protocol, the other 1"),
    "credits": (changed(6, "<H", 0), "a hello with 0 credits"),
    "eager": (changed(8, "<I", 3), "a hello with 16 credits of 3 bytes"),
    "frames": (changed(12, "<I", 0), "0 frames: too few"),
}


@pytest.mark.parametrize("what", STRANGERS)
async def test_a_client_that_does_not_fit_is_told_why(ctx: Context, what: str) -> None:
    hello, words = STRANGERS[what]
    async with messages.listen(address_of(ctx), 0) as listener:
        with pytest.raises(cm.RejectedError) as e:
            await cm.connect(Raw(ctx).qp, *listener.local, private_data=hello)
        assert e.value.reason == cm.RejectReason.CONSUMER_DEFINED
        assert words in (wire.parse_refusal(e.value.private_data) or "")
        conn = await messages.connect(*listener.local)  # it goes on
        async with conn, await listener.accept(SOON) as accepted:
            await accepted.send(b"1")
            assert took(await conn.recv(timeout=SOON)) == [b"1"]


@pytest.mark.parametrize("what", STRANGERS)
async def test_a_server_that_does_not_fit_is_left(ctx: Context, what: str) -> None:
    hello, words = STRANGERS[what]
    raw = Raw(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.ensure_future(messages.connect(*listener.local))
        request = await listener.get_request(SOON)
        assert wire.parse_hello(request.private_data) == wire.parse_hello(HELLO)
        async with await request.accept(raw.qp, private_data=hello) as accepted:
            with pytest.raises(RefusedError, match=words):
                await asking
            await accepted.wait_closed(SOON)
    raw.acq.close()
    assert Device._known == {}


async def test_our_client_is_told_in_the_servers_words(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        for said, error, words in (
            (
                wire.refusal("no \x1bbecause"),
                RefusedError,
                "has refused the connection: no .because",
            ),
            (b"", cm.RejectedError, "rejected, CONSUMER_DEFINED"),
        ):
            asking = asyncio.ensure_future(messages.connect(*listener.local))
            await (await listener.get_request(SOON)).reject(said)
            with pytest.raises(error, match=words):
                await asking
    assert Device._known == {}


async def test_rping_is_refused(ctx: Context) -> None:
    program = shutil.which("rping")
    assert program is not None
    host = address_of(ctx)
    async with messages.listen(host, 0) as listener:
        port = str(listener.local[1])
        process = await asyncio.create_subprocess_exec(
            *(program, "-c", "-a", host, "-p", port, "-C", "1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), SOON)
        assert b"REJECTED" in output
        async with await messages.connect(*listener.local):
            pass


async def test_rping_as_a_server_is_left(ctx: Context) -> None:
    program = shutil.which("rping")
    assert program is not None
    host = address_of(ctx)
    process = await asyncio.create_subprocess_exec(
        *(program, "-s", "-a", host, "-p", "7473", "-C", "1"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        with pytest.raises(RefusedError, match="does not speak the protocol"):
            while True:
                with contextlib.suppress(cm.RejectedError):  # it does not listen yet
                    await messages.connect(host, 7473)
                await asyncio.sleep(0.02)
    finally:
        process.kill()
        await process.wait()


async def test_nobody_listens(ctx: Context) -> None:
    with pytest.raises(cm.RejectedError, match="nothing listens on that port"):
        await messages.connect(address_of(ctx), 9)
    assert Device._known == {}


async def test_a_client_gives_up_in_time(ctx: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        with pytest.raises(TimeoutError):
            await messages.connect(*listener.local, timeout=0.2)
    assert Device._known == {}


async def test_an_address_in_use_is_refused(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        with pytest.raises(VerbsError):
            await messages.listen(*listener.local).__aenter__()


async def test_more_peers_than_the_backlog_are_refused(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0, backlog=3) as listener:
        conns = []
        with pytest.raises(RefusedError, match="too many connections wait for the program there"):
            for _ in range(10):
                conns.append(await messages.connect(*listener.local))
        assert 1 <= len(conns) <= 3
        async with await listener.accept(SOON):
            pass
        for conn in conns:
            await conn.aclose()


async def test_as_many_peers_as_the_backlog_wait(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0, backlog=8) as listener:
        conns = [await messages.connect(*listener.local, options=SMALL) for _ in range(8)]
        with pytest.raises(RefusedError, match="too many connections wait for the program there"):
            await messages.connect(*listener.local)
        for conn in conns:
            (await listener.accept(SOON)).abort()
            conn.abort()
        await asyncio.gather(*(conn.aclose() for conn in conns))


@pytest.mark.parametrize(("count", "backlog"), [(8, 8), (64, 64), (150, 64), (20, 1)])
async def test_a_burst_of_peers_is_not_refused_while_the_program_accepts(
    ctx: Context, count: int, backlog: int
) -> None:
    host = address_of(ctx)
    async with messages.listen(host, 0, options=SMALL, backlog=backlog) as listener:

        async def accept_all() -> None:
            for _ in range(count):
                accepted.append(await listener.accept(SOON))

        accepted: list[Connection] = []
        accepting = asyncio.ensure_future(accept_all())
        calls = (
            messages.connect(*listener.local, options=SMALL, timeout=SOON) for _ in range(count)
        )
        conns = await asyncio.gather(*calls)
        await accepting
        await eventually(lambda: len(listener._half_open) == 0)
    for conn in (*conns, *accepted):
        conn.abort()
    await asyncio.gather(*(conn.aclose() for conn in (*conns, *accepted)))


async def test_a_listener_that_is_closed(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        accepting = await start(listener.accept())
        with pytest.raises(TimeoutError, match="no peer has connected in time"):
            await listener.accept(0.01)
        conn = await messages.connect(*listener.local)
        async with await accepting:
            pass
        waiting = await messages.connect(*listener.local)
        async with await listener.accept(SOON):
            pass
        left = await messages.connect(*listener.local)
        async for accepted in listener:
            await accepted.aclose()
            break
        iterating = await start(anext(aiter(listener)))
        listener.close()
        with pytest.raises(StopAsyncIteration):
            await iterating
        with pytest.raises(ClosedError):
            await listener.accept()
        await left.aclose()
        for one in (conn, waiting):
            await one.aclose()


@pytest.mark.parametrize(
    "name", ["credits", "eager", "max_message", "max_frames", "offers", "cache"]
)
def test_options_are_checked(name: str) -> None:
    for value in (-1, 1 << 60):
        with pytest.raises(ValueError, match=f"{name} is {value}: it must be"):
            ConnectionOptions(**{name: value})
    for value in ("1", True, 1.0):
        with pytest.raises(TypeError, match=f"{name} must be an int"):
            ConnectionOptions(**{name: value})  # type: ignore[arg-type]
