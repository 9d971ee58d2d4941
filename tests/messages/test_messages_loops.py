# SPDX-License-Identifier: MIT
"""Connections and listeners belong to one event loop, and to the thread that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import pytest
from messages_support import SOON, address_of, data_of, took

from cqnotify import ClosedError, Context, messages
from cqnotify.messages import Connection, ConnectionLostError, Listener
from cqnotify.messages._resources import Device

LARGE = 300000
Loop = asyncio.AbstractEventLoop
NewLoop = Callable[[], Loop]


class ListenerAndPair(NamedTuple):
    listener: Listener
    client: Connection
    server: Connection


CALLS: dict[str, Callable[[ListenerAndPair], Awaitable[object]]] = {
    "recv, a message is there": lambda ends: ends.client.recv(),
    "recv, none is there": lambda ends: ends.server.recv(),
    "the next of a loop": lambda ends: anext(aiter(ends.server)),
    "send, a small message": lambda ends: ends.client.send(b"1"),
    "send, a large message": lambda ends: ends.client.send(bytes(LARGE)),
    "accept": lambda ends: ends.listener.accept(),
    "aclose": lambda ends: ends.client.aclose(),
    "aclose of a listener": lambda ends: ends.listener.aclose(),
}


async def make(ctx: Context) -> ListenerAndPair:
    listener = await messages.listen(address_of(ctx), 0).__aenter__()
    client = await messages.connect(*listener.local)
    server = await listener.accept(SOON)
    await server.send(b"a message")
    return ListenerAndPair(listener, client, server)


async def close(ends: ListenerAndPair) -> None:
    ends.client.abort()
    ends.server.abort()
    await asyncio.gather(ends.client.aclose(), ends.server.aclose(), ends.listener.aclose())


def elsewhere(ends: ListenerAndPair, new_loop: NewLoop, state: str) -> None:
    """Each call, in another loop, is refused before it waits or does anything."""

    async def calls() -> None:
        for call in CALLS.values():
            with pytest.raises(RuntimeError, match=f"belongs to the event loop in .*{state}"):
                await asyncio.wait_for(call(ends), SOON)

    with contextlib.closing(new_loop()) as other:
        other.run_until_complete(calls())


async def still_works(ends: ListenerAndPair) -> None:
    assert took(await ends.client.recv(timeout=SOON)) == [b"a message"]
    await ends.client.send(b"2")
    assert took(await ends.server.recv(timeout=SOON)) == [b"2"], "nothing came from another loop"


def test_another_loop_is_refused(ctx: Context, new_loop: NewLoop) -> None:
    with contextlib.closing(new_loop()) as loop:
        ends = loop.run_until_complete(make(ctx))
        elsewhere(ends, new_loop, "is not the one that runs here")
        loop.run_until_complete(still_works(ends))
        loop.run_until_complete(close(ends))


@contextlib.contextmanager
def running(loop: Loop) -> Iterator[Callable[[Awaitable[object]], object]]:
    """In another thread; to run something there."""
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def awaited(one: Awaitable[object]) -> object:
        return await one

    try:
        yield lambda one: asyncio.run_coroutine_threadsafe(awaited(one), loop).result(SOON)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SOON)


def test_another_thread_is_refused(ctx: Context, new_loop: NewLoop) -> None:
    with contextlib.closing(new_loop()) as loop:
        ends = loop.run_until_complete(make(ctx))
        with running(loop) as there:
            elsewhere(ends, new_loop, "is not the one that runs here")
            there(still_works(ends))
            there(close(ends))


def test_another_thread_may_abort_and_close(ctx: Context, new_loop: NewLoop) -> None:
    with contextlib.closing(new_loop()) as loop:
        ends = loop.run_until_complete(make(ctx))
        with running(loop) as there:
            taking = asyncio.run_coroutine_threadsafe(ends.server.recv(), loop)
            accepting = asyncio.run_coroutine_threadsafe(ends.listener.accept(), loop)
            there(asyncio.sleep(0))  # both wait
            ends.server.abort()
            ends.listener.close()
            for future in (taking, accepting):
                with pytest.raises(ClosedError):
                    future.result(SOON)
            with pytest.raises(ConnectionLostError):
                there(ends.client.send(data_of(LARGE)))
            there(close(ends))
    assert Device._known == {}


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_what_a_closed_loop_has_left_can_only_be_closed(ctx: Context, new_loop: NewLoop) -> None:
    loop = new_loop()
    loop.set_exception_handler(lambda *_: None)  # it would tell that tasks were pending
    ends = loop.run_until_complete(make(ctx))
    tasks = [loop.create_task(ends.server.recv()), loop.create_task(ends.server.send(bytes(LARGE)))]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    elsewhere(ends, new_loop, "is closed")
    ends.client.abort()
    ends.server.abort()
    ends.listener.close()
    assert ends.client.closed
    assert ends.server._session.resources.is_closed
    assert Device._known == {}
    del ends, tasks
    gc.collect()


def test_a_listener_is_used_in_its_block(ctx: Context, new_loop: NewLoop) -> None:
    with contextlib.closing(new_loop()) as loop:
        listener = messages.listen(address_of(ctx), 0)
        with pytest.raises(RuntimeError, match="was not entered"):
            loop.run_until_complete(listener.accept())
        loop.run_until_complete(listener.aclose())
