# SPDX-License-Identifier: MIT
"""What happens at an unlucky moment: between two steps, in another thread, in the collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cm_support import SOON, Side, address_of, serve_once
from support import is_iwarp

from cqnotify import ClosedError, Context, QPState, cm
from cqnotify.cm import _event_reader, blocking
from cqnotify.cm._errors import Event


@contextlib.contextmanager
def collecting_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_the_collector_takes_the_last_link_while_the_next_is_made(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel of an event loop is closed with its last link: not if there is another then."""
    host = address_of(ctx)
    new_link = _event_reader.LoopReader.new_link

    def collect(reader: _event_reader.LoopReader, *what: Any) -> Any:
        gc.collect()
        return new_link(reader, *what)

    for _ in range(2):
        with collecting_by_hand():
            listener = await cm.listen(host, 0).__aenter__()
            cycle: list[Any] = [listener]
            cycle.append(cycle)
            del listener, cycle
            monkeypatch.setattr(_event_reader.LoopReader, "new_link", collect)
            assert (await cm.resolve(host)).device == ctx.name
        monkeypatch.setattr(_event_reader.LoopReader, "new_link", new_link)


async def test_a_server_that_goes_when_it_has_accepted_is_no_other_error(ctx: Context) -> None:
    """Mostly both of its messages are there before the client has read the first."""
    async with cm.listen(address_of(ctx), 0) as listener:
        side = Side(ctx)
        asking = asyncio.create_task(cm.connect(side.qp, *listener.local))
        request = await listener.get_request(SOON)
        with pytest.raises(TimeoutError):
            await request.accept(Side(ctx).qp, timeout=0)
        await asyncio.wait([asking])
        if asking.exception() is None:  # established before the server went
            conn = asking.result()
            await conn.wait_closed(SOON)
            error: BaseException | None = conn.error
        else:
            error = asking.exception()
        assert isinstance(error, (cm.DisconnectedError, cm.RejectedError))


async def test_a_request_that_comes_as_the_listener_is_closed_is_rejected(ctx: Context) -> None:
    """Its event had been read, and another thread closed the listener."""
    async with cm.listen(address_of(ctx), 0) as listener:
        link, channel = listener._link, listener._link.channel
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(blocking.connect, Side(ctx).qp, *listener.local)
            request: Any = None
            while request is None:  # the loop, which would deliver it, stands still
                request = channel.read_event()
            listener.close()
            link.deliver(request)
            with pytest.raises(cm.RejectedError):
                asking.result()
    with pytest.raises(ClosedError):
        await listener.get_request()


async def test_hubs_come_and_go_in_other_threads(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        """The reader of a loop of another thread, where one more begins just now."""

        @property
        def loop(self) -> Elsewhere:
            return self

        def is_closed(self) -> bool:
            readers[object()] = self
            return False

    readers: dict[object, Any] = {object(): Elsewhere()}
    monkeypatch.setattr(_event_reader.LoopReader, "_readers", readers)
    assert (await cm.resolve(address_of(ctx))).device == ctx.name


async def test_a_client_that_has_gone_can_be_rejected(ctx: Context) -> None:
    """A program cannot know: no event tells."""
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        asking.cancel()
        await asyncio.wait([asking])
        await request.reject(b"no room")
        assert request._link.id.closed


def test_an_error_that_is_raised_often_does_not_grow(ctx: Context) -> None:
    with blocking.listen(address_of(ctx), 0) as listener:
        pass
    lengths = []
    for _ in range(3):
        with pytest.raises(ClosedError) as e:
            listener.get_request()
        lengths.append(len(e.traceback))
    assert len(set(lengths)) == 1


def test_closed_returns_when_the_queue_pair_has_failed(ctx: Context) -> None:
    """The reason is known before: a thread that sees the flush finds it. Not on iWARP, where it is
    the device that ends the queue pair."""
    client, server = Side(ctx), Side(ctx)
    accepted: list[Any] = []
    with blocking.listen(address_of(ctx), 0) as listener:
        thread = threading.Thread(target=serve_once, args=(listener, server, accepted))
        thread.start()
        conn = blocking.connect(client.qp, *listener.local)
        thread.join()
    link = accepted[0]._link
    link.reason = cm.DisconnectedError("the reader has come so far")
    with pytest.raises(TimeoutError):
        accepted[0].wait_closed(0.05)
    assert server.qp.state == QPState.RTS
    link.reason = None
    conn.disconnect()
    while not (flushed := server.cq.poll()):
        pass
    assert not flushed[0].ok
    assert is_iwarp(ctx) or isinstance(link.reason, (Event, cm.DisconnectedError))
    accepted[0].wait_closed(SOON)
    assert server.qp.state == QPState.ERR
    accepted[0].close()
    conn.close()
