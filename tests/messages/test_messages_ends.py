# SPDX-License-Identifier: MIT
"""How connections end, and that both ends know how."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from messages_support import (
    SMALL,
    SOON,
    address_of,
    connected,
    data_of,
    read_a_part,
    read_slowly,
    reads,
    took,
)
from support import eventually, open_fds, start, tick

from cqnotify import ClosedError, Context, QPState, WCStatus, messages
from cqnotify.messages import (
    Connection,
    ConnectionLostError,
    ConnectionOptions,
    MessagesError,
    PeerClosedError,
    ProtocolError,
)
from cqnotify.messages._resources import Device

LARGE = 300000
BLINK = 0.05
GONE = 1.0  # seconds


async def over(conn: Connection) -> None:
    """Until it is over, and closed."""
    await eventually(lambda: conn.closed)
    await conn.aclose()
    assert conn._session.resources.is_closed


# ---- closing --------------------------------------------------------------------------------


async def test_closing_is_known_on_both_sides(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        taking = await start(b.recv())
        await a.aclose()
        with pytest.raises(PeerClosedError, match="the peer has closed the connection$"):
            await taking
        with pytest.raises(PeerClosedError):
            await b.recv()
        with pytest.raises(PeerClosedError):
            await b.send(b"1")
        assert isinstance(b.error, EOFError)
        assert isinstance(a.error, ClosedError)
        for call in (a.send(b"1"), a.recv()):
            with pytest.raises(ClosedError, match="this connection was closed"):
                await call
        await b.aclose()
        await a.aclose()


async def test_what_was_sent_arrives_before_the_end(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        for i in range(10):
            await a.send(bytes([i]))
        sending = await start(a.send(data_of(LARGE)))
        closing = await start(a.aclose())
        with pytest.raises(ClosedError, match="this connection was closed"):
            await a.send(b"too late")
        for i in range(10):
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        assert not closing.done()
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await closing
        await sending
        with pytest.raises(PeerClosedError):
            await b.recv()


async def test_messages_are_received_when_everything_else_is_closed(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        for i in range(5):
            await a.send(bytes([i]), data_of(1000))
        await a.aclose()
        await over(b)
        for i in range(5):
            assert took(await b.recv()) == [bytes([i]), data_of(1000)]
        with pytest.raises(PeerClosedError):
            await b.recv()


async def test_closing_that_is_not_acknowledged_in_time(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sending = await start(a.send(data_of(LARGE)))
        with pytest.raises(TimeoutError, match="has not received everything in time"):
            await a.aclose(BLINK)
        with pytest.raises(ClosedError, match="aborted"):
            await sending
        with pytest.raises(ConnectionLostError):
            await b.recv(timeout=SOON)


async def test_closing_that_is_cancelled_aborts(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sending = await start(a.send(data_of(LARGE)))
        closing = await start(a.aclose())
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClosedError):
            await sending
        await eventually(lambda: b.closed)
        assert isinstance(b.error, ConnectionLostError)


async def test_both_close_at_once(ctx: Context) -> None:
    for _ in range(10):
        async with connected(ctx) as (a, b):
            await a.send(b"1")
            await asyncio.gather(a.aclose(), b.aclose(), a.aclose())
            assert isinstance(a.error, ClosedError | PeerClosedError)
            assert isinstance(b.error, ClosedError | PeerClosedError)


async def test_a_peer_that_closes_first_has_received_everything(ctx: Context) -> None:
    """Its end may be seen before the completion that says that our last frame has arrived."""
    async with connected(ctx) as (a, b):
        await a.send(b"1")
        closing = asyncio.ensure_future(a.aclose())
        while a._session._close_frame is None:
            await asyncio.sleep(0)
        a._session._on_failed_receive(WCStatus.WR_FLUSH_ERR)
        await closing
        assert isinstance(a.error, ClosedError)
        await over(b)
        assert isinstance(b.error, PeerClosedError)


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that no frame is on its way")
async def test_a_peer_that_disconnects_as_it_gets_our_last_frame_has_it(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device may be told of the end before the acknowledgement of that frame has come."""
    async with connected(ctx) as (a, b):
        await a.send(b"1")
        assert took(await b.recv(timeout=SOON)) == [b"1"]
        monkeypatch.setattr(a._session._queue, "post_frame", lambda **_: None)  # on its way
        closing = await start(a.aclose())
        assert a._session._close_frame is not None
        b.abort()
        await closing
        assert isinstance(a.error, ClosedError)


async def test_a_receiver_here_is_told_of_our_own_end(ctx: Context) -> None:
    async with connected(ctx) as (a, _):
        taking = await start(a.recv())
        iterating = await start(anext(aiter(a)))
        await a.aclose()
        with pytest.raises(ClosedError):
            await taking
        with pytest.raises(StopAsyncIteration):
            await iterating


async def test_a_block_closes_and_an_exception_aborts(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        async with a:
            await a.send(b"1")
        await over(b)
        assert isinstance(b.error, PeerClosedError)
    async with connected(ctx) as (a, b):
        with pytest.raises(ZeroDivisionError):
            async with a:
                raise ZeroDivisionError
        await over(b)
        assert isinstance(b.error, ConnectionLostError)


async def test_two_ends_that_close_with_unread_messages_wait_for_nothing(ctx: Context) -> None:
    """Neither receives what the other has offered, and both say so; the end that closes first may
    hear of the other's end at once."""
    async with connected(ctx) as (a, b):
        sending = [await start(end.send(data_of(LARGE))) for end in (a, b) for _ in range(3)]
        await asyncio.gather(a.aclose(SOON), b.aclose(SOON))
        for task in sending:
            with pytest.raises(PeerClosedError, match="receives no more|has closed the connection"):
                await task
        for end in (a, b):
            assert isinstance(end.error, ClosedError | PeerClosedError)
            assert end._session.resources.is_closed


async def test_an_end_that_closes_gives_up_what_its_peer_sends_and_waits_for_its_own(
    ctx: Context,
) -> None:
    async with connected(ctx) as (a, b):
        ours = await start(a.send(data_of(LARGE)))
        theirs = await start(b.send(data_of(LARGE)))
        closing = await start(a.aclose(SOON))
        for send in (theirs, b.send(b"1"), b.send(data_of(LARGE))):
            with pytest.raises(PeerClosedError, match="receives no more"):
                await send
        assert not closing.done()
        assert not b.closed
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await closing
        await ours
        with pytest.raises(PeerClosedError, match="has closed the connection"):
            await b.recv(timeout=SOON)


async def test_a_message_that_is_being_read_is_received_although_both_close(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(b)
        first = await start(a.send(data_of(LARGE)))
        others = [await start(end.send(data_of(LARGE))) for end in (a, b)]
        taking = asyncio.ensure_future(b.recv())
        await reads(b)
        await asyncio.gather(a.aclose(SOON), b.aclose(SOON))
        assert took(await taking) == [data_of(LARGE)]
        await first
        for task in others:
            with pytest.raises(PeerClosedError):
                await task


async def test_a_peer_that_closes_although_it_has_not_read_all_is_no_breach(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sending = [await start(end.send(data_of(LARGE))) for end in (a, b)]
        closing = await start(a.aclose(SOON))
        with pytest.raises(PeerClosedError):
            await sending[1]
        await b.aclose(SOON)
        await closing
        assert isinstance(a.error, PeerClosedError)
        with pytest.raises(PeerClosedError):
            await sending[0]


# ---- losses ---------------------------------------------------------------------------------


async def test_an_abort_is_a_loss_for_the_peer(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await a.send(b"arrived")
        await eventually(lambda: bool(b._session.poll_received() or b._session.messages_waiting))
        read_slowly(a)
        read_a_part(a)  # and so not all that the peer sends
        taking = [await start(a.recv()), await start(a.send(data_of(LARGE)))]
        sending = await start(b.send(data_of(LARGE)))
        a.abort()
        a.abort()
        for task in taking:
            with pytest.raises(ClosedError, match="this connection was aborted"):
                await task
        with pytest.raises(ConnectionLostError, match="is lost: .*(disconnected|failed)"):
            await sending
        assert took(await b.recv()) == [b"arrived"]
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await b.recv()
        assert isinstance(b.error, ConnectionResetError)
        with pytest.raises(ConnectionLostError):
            async for _ in b:
                pass
        await b.aclose()


async def test_an_offer_that_is_lost_is_no_message(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sending = await start(a.send(data_of(LARGE)))
        await eventually(lambda: bool(b._session.poll_received() or b._session.messages_waiting))
        a.abort()
        await over(b)
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await b.recv()
        with pytest.raises(ClosedError):
            await sending


async def test_a_read_under_way_ends_with_the_connection(ctx: Context) -> None:
    for end in (0, 1):
        async with connected(ctx) as pair:
            a, b = pair
            read_slowly(b)
            read_a_part(b)
            sending = asyncio.ensure_future(a.send(data_of(LARGE)))
            target = bytearray(LARGE)
            taking = asyncio.ensure_future(b.recv(into=[target]))
            while b._session.reader._max_in_flight:
                await asyncio.sleep(0)
            pair[end].abort()
            with pytest.raises(MessagesError if end == 0 else ClosedError):
                await taking
            target.append(1)  # the device has done with it
            with pytest.raises(ClosedError if end == 0 else ConnectionLostError):
                await sending


async def test_a_queue_pair_that_fails_is_a_loss(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        taking = await start(a.recv())
        a._session.resources.qp.modify(qp_state=QPState.ERR)
        with pytest.raises(ConnectionLostError, match="is lost: .*(WR_FLUSH_ERR|disconnected)"):
            await taking
        await over(a)
        await over(b)
        assert isinstance(b.error, ConnectionLostError)


PEER_ACCESS = """
import asyncio, sys
from cqnotify import messages

async def main():
    conn = await messages.connect(sys.argv[1], int(sys.argv[2]))
    await conn.send(b"hello")
    await conn.send(bytes(300000))
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("action", ["receive", "send"])
async def test_a_peer_that_is_killed_is_lost(ctx: Context, action: str) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        host, port = listener.local
        with subprocess.Popen([sys.executable, "-c", PEER_ACCESS, host, str(port)]) as process:
            conn = await listener.accept(3 * SOON)
            assert took(await conn.recv(timeout=SOON)) == [b"hello"]
            if action == "receive":
                assert len((await conn.recv(timeout=SOON))[0]) == LARGE
                task = await start(conn.recv())
            else:
                task = await start(conn.send(bytes(LARGE)))
            process.kill()
            with pytest.raises(ConnectionLostError):
                await task
            await conn.aclose()


@pytest.mark.not_on_iwarp("a write completes before the peer has it, so that keepalive is refused")
async def test_a_dead_peer_is_found_by_keepalive(ctx: Context) -> None:
    async with connected(ctx, ConnectionOptions(keepalive=GONE), ConnectionOptions()) as (a, b):
        await asyncio.sleep(2 * GONE)
        assert not a.closed, "a peer that lives is not lost"
        taking = await start(a.recv())
        b._session.resources.qp.modify(qp_state=QPState.RESET)  # as that of a dead host
        with pytest.raises(ConnectionLostError, match="no sign of life|not answered"):
            await asyncio.wait_for(taking, SOON)


async def test_whatever_fails_here_is_a_loss(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(ctx) as (a, b):
        taking = await start(b.recv())

        def fails(*_: object) -> None:
            raise MemoryError

        sending = await start(b.send(data_of(LARGE)))
        monkeypatch.setattr(b._session, "post_pending", fails)
        b._session.is_watched = True
        await a.recv(timeout=SOON)
        with pytest.raises(ConnectionLostError, match="is lost: MemoryError"):
            await taking
        await sending
        await over(a)
        assert isinstance(a.error, ConnectionLostError)


# ---- what is dropped ------------------------------------------------------------------------


async def test_a_connection_that_is_dropped_is_closed(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        conn = await messages.connect(*listener.local)
        server = await listener.accept(SOON)
    session = weakref.ref(conn._session)
    qp = weakref.ref(conn._session.resources.qp)
    await tick()
    with pytest.warns(ResourceWarning, match="unclosed <Connection"):
        del conn
        gc.collect()
    await over(server)
    assert isinstance(server.error, ConnectionLostError)
    await eventually(lambda: not gc.collect() and session() is None and qp() is None)


async def test_nothing_is_left_of_connections(ctx: Context) -> None:
    async def one() -> None:
        async with connected(ctx, SMALL) as (a, b):
            await asyncio.gather(a.send(data_of(5000)), b.recv(timeout=SOON))
            await a.aclose()
            await over(b)

    await one()
    fds, tasks = open_fds(), len(asyncio.all_tasks())
    for _ in range(5):
        await one()
    await tick()
    assert open_fds() <= fds
    assert len(asyncio.all_tasks()) <= tasks
    assert Device._known == {}


async def test_a_listener_has_no_more_open_after_its_first_peer_than_before(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        fds = open_fds()
        conn = await messages.connect(*listener.local)
        server = await listener.accept(SOON)
        assert open_fds() > fds
        await conn.aclose()
        await over(server)
        await eventually(lambda: open_fds() <= fds)
    assert Device._known == {}


def test_a_loop_that_ends_takes_its_connections_along(
    ctx: Context, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    kept: list[Any] = []

    async def scenario() -> None:
        listener = await messages.listen(address_of(ctx), 0).__aenter__()
        kept.append(await messages.connect(*listener.local))
        kept.append(await listener.accept(SOON))
        kept.append(asyncio.ensure_future(kept[0].recv()))
        kept.append(asyncio.ensure_future(kept[1].send(bytes(LARGE))))
        await tick()
        listener.close()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(scenario())
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    assert kept[0].closed
    assert kept[1].closed
    assert Device._known == {}


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_program_that_closes_nothing_ends(ctx: Context) -> None:
    program = f"""
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from cqnotify import messages

async def main():
    listener = await messages.listen({address_of(ctx)!r}, 0).__aenter__()
    a = await messages.connect(*listener.local)
    b = await listener.accept()
    asyncio.ensure_future(a.send(bytes(300000)))
    globals().update(kept=(a, b, listener))
    await asyncio.sleep(0)
    if sys.argv[1] == "raise":
        raise SystemExit(3)

run = asyncio.run if sys.argv[1] != "loop" else asyncio.new_event_loop().run_until_complete
run(main())
"""
    for how, code in (("return", 0), ("raise", 3), ("loop", 0)):
        done = subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, timeout=3 * SOON
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr


async def test_an_error_is_a_connection_error(ctx: Context) -> None:
    for kind in (PeerClosedError, ConnectionLostError, ProtocolError, messages.RefusedError):
        assert issubclass(kind, MessagesError)
        assert issubclass(kind, ConnectionError)
