# SPDX-License-Identifier: MIT
"""Connections that are being made: what a peer costs before it has completed its own, and what
becomes of each end where the other one stops on the way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hostile import Raw, answered, data, header
from messages_support import SMALL, SOON, address_of, connected, receives_posted, took
from support import cancel, eventually, start

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlags,
    CompletionError,
    Context,
    QPType,
    VerbsError,
    cm,
    messages,
)
from cqnotify._core import CMID, CMChannel, open_objects
from cqnotify.cm._link import Options as CMOptions
from cqnotify.messages import (
    ConnectionLostError,
    ConnectionOptions,
    Listener,
    PeerClosedError,
    ProtocolError,
    RefusedError,
    _endpoints,
    _liveness,
    _resources,
)
from cqnotify.messages import _wire as wire
from cqnotify.messages._queue import SendQueue
from cqnotify.messages._resources import Device, Resources
from cqnotify.messages._session import Session
from cqnotify.messages._wire import Kind

HELLO = wire.hello(ConnectionOptions())
PAGE = resource.getpagesize() >> 10  # KiB
SILENT = "no answer in time; the peer has accepted, and has not posted its receives"


def no_memory() -> VerbsError:
    return VerbsError(errno.ENOMEM, "ibv_reg_mr: the limit of locked memory")


def pinned() -> int:
    """KiB that the kernel holds in memory for the devices of this process."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return int(sizes["VmPin"].split()[0])


def regions(listener: Listener) -> list[int]:
    """The bytes of each that the connections of a listener's devices have registered."""
    contexts = [device.context for device in listener._devices.values()]
    found = [one for context in contexts for one in open_objects(context)]
    return [one.length for one in found if isinstance(one, MR)]


def ask_and_say_no_more(ctx: Context, where: tuple[str, int], channel: CMChannel) -> CMID:
    """A client that never says that it is ready."""
    one = CMID(channel)
    one.bind_qp(QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4)))
    one.prepare(CMOptions(private_data=HELLO, access=0))
    one.resolve_addr(None, where, 4000, "RESPONDED")
    return one


@asynccontextmanager
async def asking(ctx: Context, listener: Listener, count: int) -> AsyncIterator[Callable[[], bool]]:
    """Such clients; and whether each of them was answered."""
    channel = CMChannel()
    silent: list[CMID] = []

    def are_answered() -> bool:
        while channel.read_event() is not None:
            pass
        return all(one.state in ("RESPONDED", "FAILED") for one in silent)

    for _ in range(count):
        silent.append(ask_and_say_no_more(ctx, listener.local, channel))
    yield are_answered
    for one in silent:
        one.close()
    channel.close()


@asynccontextmanager
async def silent_clients(
    ctx: Context, listener: Listener, count: int
) -> AsyncIterator[Callable[[], bool]]:
    """The same of clients that complete the handshake of rdma_cm, and send nothing."""
    conns = []
    for _ in range(count):
        qp = QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4))
        conns.append(await cm.connect(qp, *listener.local, private_data=HELLO))
    yield lambda: True
    for conn in conns:
        await conn.aclose()


async def comes_in(listener: Listener) -> None:
    """The listener goes on."""
    async with (
        await messages.connect(*listener.local, timeout=SOON) as a,
        await listener.accept(SOON) as b,
    ):
        await a.send(b"in")
        assert took(await b.recv(timeout=SOON)) == [b"in"]


CLIENTS = {"asked": asking, "silent": silent_clients}
ASKED = pytest.mark.not_on_iwarp("what is accepted there is established, without a further message")
BOTH = [pytest.param("asked", marks=ASKED), "silent"]


@pytest.mark.parametrize(
    ("clients", "count"),
    [pytest.param("asked", _endpoints.MAX_HALF_OPEN, marks=ASKED), ("silent", 8)],
)
async def test_what_is_half_open_has_a_page_of_memory(
    ctx: Context, clients: str, count: int
) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        before = pinned()
        async with CLIENTS[clients](ctx, listener, count) as are_answered:
            await eventually(lambda: are_answered() and len(listener._half_open) == count)
            assert pinned() <= before + count * PAGE
            assert regions(listener) == [256] * count


async def test_the_page_goes_when_the_memory_is_made(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        before = pinned()
        async with await messages.connect(*listener.local), await listener.accept(SOON):
            assert regions(listener) == [35 * 32768] * 2
            assert pinned() >= before + 2 * 1024


async def test_the_peer_has_its_receives_when_connect_returns(ctx: Context) -> None:
    options = ConnectionOptions(credits=5, offers=3)
    async with connected(ctx, SMALL, options) as (a, b):
        assert receives_posted(b) == options.receives
        assert receives_posted(a) == SMALL.receives


async def test_an_end_has_its_receives_before_it_opens(ctx: Context) -> None:
    """So the peer may send whatever its credits allow behind its first acknowledgement."""
    async with answered(ctx, ConnectionOptions(credits=2)) as (raw, connecting):
        await raw.let_begin()
        for one in (b"1", b"2"):
            await raw.send(data(one))
        async with await connecting as client:
            assert took(await client.recv(timeout=SOON)) == [b"1"]
            assert took(await client.recv(timeout=SOON)) == [b"2"]
        await raw.close()


@pytest.mark.parametrize("clients", BOTH)
async def test_peers_that_never_complete_their_connection_make_way(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, clients: str
) -> None:
    """When others wait; the oldest first."""
    monkeypatch.setattr(_endpoints, "MAX_HALF_OPEN", 2)
    monkeypatch.setattr(_endpoints, "HALF_OPEN_TIMEOUT", 0.01)
    async with (
        messages.listen(address_of(ctx), 0) as listener,
        CLIENTS[clients](ctx, listener, 5) as are_answered,
    ):

        def have_all_been_answered() -> bool:
            assert len(listener._half_open) <= 2
            return are_answered()

        await eventually(have_all_been_answered)
        await comes_in(listener)


OPENINGS = {
    "nothing": (b"", "a frame of 0 bytes has no header"),
    "kind": (header(Kind.CLOSE), "not an ACK of nothing"),
    "counters": (header(Kind.ACK, 0, 1), "not an ACK of nothing"),
    "a message": (data(b"1"), "not an ACK of nothing"),
}


@pytest.mark.parametrize("what", OPENINGS)
async def test_an_opening_that_is_none_ends_the_connection(ctx: Context, what: str) -> None:
    frame, words = OPENINGS[what]
    async with messages.listen(address_of(ctx), 0) as listener:
        raw = Raw(ctx)
        raw.conn = await cm.connect(
            raw.qp, *listener.local, private_data=HELLO, on_init=raw.post_all
        )
        await raw.send(frame)
        assert words in wire.parse_error(memoryview(await raw.recv_kind(Kind.ERROR)))
        await eventually(lambda: not listener._half_open)
        await comes_in(listener)
        await raw.close()


async def test_a_long_opening_ends_the_connection(ctx: Context) -> None:
    """There is no memory for it."""
    async with messages.listen(address_of(ctx), 0) as listener:
        raw = Raw(ctx)
        raw.conn = await cm.connect(raw.qp, *listener.local, private_data=HELLO)
        with contextlib.suppress(CompletionError):  # of iWARP the peer's end only fails
            await raw.send(bytes(1000))
        await eventually(lambda: not listener._half_open)
        await comes_in(listener)
        await raw.close()


async def test_a_client_that_goes_before_it_opens_leaves_nothing(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        async with silent_clients(ctx, listener, 1):
            await eventually(lambda: len(listener._half_open) == 1)
        await eventually(lambda: not listener._half_open)
        await comes_in(listener)


def fail_memory(
    monkeypatch: pytest.MonkeyPatch, listener: Listener, error: Exception, least: int
) -> None:
    """What the listener's ends register fails, from so many bytes on."""
    make = _resources.own_memory

    def own_memory(pd: PD, nbytes: int, access: AccessFlags) -> MR:
        if nbytes >= least and asyncio.current_task() in listener._tasks:
            raise error
        return make(pd, nbytes, access)

    monkeypatch.setattr(_resources, "own_memory", own_memory)


@pytest.mark.parametrize(
    "make", [no_memory, lambda: MemoryError("nothing left")], ids=["MR", "any"]
)
async def test_a_client_is_told_that_there_is_no_memory_for_it(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception]
) -> None:
    """Which the listener knows when it has accepted; it goes on."""
    error = make()
    async with messages.listen(address_of(ctx), 0) as listener:
        with monkeypatch.context() as patch:
            fail_memory(patch, listener, error, 1024)
            with pytest.raises(RefusedError) as e:
                await messages.connect(*listener.local, timeout=SOON)
        host, port = listener.local
        assert str(e.value).startswith(
            f"{host} port {port} has refused the connection: there is no room for another "
            f"connection there: {error}"
        )
        await eventually(lambda: not listener._half_open)
        await comes_in(listener)


async def test_receives_that_cannot_be_posted_are_a_refusal_as_well(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Resources.post_receives

    def post_receives(resources: Resources, qp: QP) -> None:
        if asyncio.current_task() in listener._tasks:
            raise no_memory()
        post(resources, qp)

    async with messages.listen(address_of(ctx), 0) as listener:
        with monkeypatch.context() as patch:
            patch.setattr(Resources, "post_receives", post_receives)
            with pytest.raises(RefusedError, match="there is no room for another connection"):
                await messages.connect(*listener.local, timeout=SOON)
        await comes_in(listener)


async def test_a_client_for_which_there_is_no_memory_at_all_is_refused(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        with monkeypatch.context() as patch:
            fail_memory(patch, listener, no_memory(), 0)
            with pytest.raises(RefusedError, match="there is no room for another connection"):
                await messages.connect(*listener.local, timeout=SOON)
        await comes_in(listener)


@pytest.mark.parametrize("clients", BOTH)
async def test_a_listener_that_is_closed_ends_what_is_half_open(ctx: Context, clients: str) -> None:
    async with (
        messages.listen(address_of(ctx), 0) as listener,
        CLIENTS[clients](ctx, listener, 3) as are_answered,
    ):
        await eventually(lambda: are_answered() and len(listener._half_open) == 3)
        await listener.aclose()
        assert not listener._tasks
    assert Device._known == {}


async def test_a_client_whose_listener_closes_is_lost(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the memory was made."""

    async def wait_first_frame(resources: Resources, end: float | None) -> None:
        waiting.set()
        await asyncio.sleep(SOON)

    waiting = asyncio.Event()
    async with messages.listen(address_of(ctx), 0) as listener:
        monkeypatch.setattr(Resources, "wait_first_frame", wait_first_frame)
        connecting = await start(messages.connect(*listener.local, timeout=SOON))
        await waiting.wait()
        await listener.aclose()
        with pytest.raises(ConnectionLostError):
            await connecting
    assert Device._known == {}


async def test_an_accept_that_is_cancelled_loses_no_connection(ctx: Context) -> None:
    async with messages.listen(address_of(ctx), 0) as listener:
        accepting = await start(listener.accept())
        connecting = await start(messages.connect(*listener.local, timeout=SOON))
        await cancel(accepting)
        async with await connecting as a, await listener.accept(SOON) as b:
            await a.send(b"in")
            assert took(await b.recv(timeout=SOON)) == [b"in"]


# ---- the end that connects -------------------------------------------------------------------


async def test_a_server_that_is_never_ready_is_given_up_in_time(ctx: Context) -> None:
    async with answered(ctx, timeout=2) as (raw, connecting):
        with pytest.raises(TimeoutError, match=SILENT):
            await connecting
        await raw.close()
    assert Device._known == {}


async def test_a_connect_that_is_cancelled_leaves_nothing(ctx: Context) -> None:
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        assert not connecting.done()
        await cancel(connecting)
        await raw.close()
    assert Device._known == {}


async def test_a_server_that_goes_before_it_is_ready_is_lost(ctx: Context) -> None:
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        await raw.close()
        with pytest.raises(ConnectionLostError):
            await connecting
    assert Device._known == {}


async def test_a_server_says_why_it_has_no_room(ctx: Context) -> None:
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        await raw.send(header(Kind.ERROR) + b"no\nroom")
        with pytest.raises(RefusedError, match="has refused the connection: no.room"):
            await connecting
        await raw.close()
    assert Device._known == {}


async def test_what_a_server_sends_before_it_closes_at_once_is_received(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """connect() goes on only after the peer has closed."""
    until = Session._wait_until

    async def until_it_is_over(
        session: Session, condition: Callable[[], bool], end: float | None, what: str
    ) -> None:
        await until(session, condition, end, what)
        await until(session, lambda: session.error is not None, end, what)

    monkeypatch.setattr(Session, "_wait_until", until_it_is_over)
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        for frame in (header(Kind.ACK), data(b"all"), header(Kind.CLOSE)):
            await raw.send(frame)
        client = await connecting
        assert took(await client.recv(timeout=SOON)) == [b"all"]
        with pytest.raises(PeerClosedError):
            await client.recv(timeout=SOON)
        await raw.close()
        client.abort()
        await client.aclose()
    assert Device._known == {}


async def test_a_server_that_begins_with_nonsense_is_told_so(ctx: Context) -> None:
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        await raw.send(header(9))
        with pytest.raises(ProtocolError, match="a frame of the unknown kind 9"):
            await connecting
        said = wire.parse_error(memoryview(await raw.recv_kind(Kind.ERROR)))
        assert said == "a frame of the unknown kind 9"
        await raw.close()
    assert Device._known == {}


@pytest.mark.not_on_iwarp("a write completes before the peer has it, and tells nothing")
async def test_a_server_whose_host_dies_before_it_is_ready_is_asked(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So connect() ends without a timeout, too."""
    monkeypatch.setattr(_liveness, "PROBE_INTERVAL", 0.01)
    async with answered(ctx) as (raw, connecting):
        assert await raw.recv() == header(Kind.ACK)
        asked = []
        monkeypatch.setattr(SendQueue, "post_probe", lambda queue: asked.append(queue))
        await eventually(lambda: len(asked) > 2)
        await raw.send(header(Kind.ACK))
        async with await connecting:
            count = len(asked)
            await asyncio.sleep(0.05)
            assert len(asked) == count
        await raw.close()
