# SPDX-License-Identifier: MIT
"""What both sides see of each end, in each state of a connection, in event loops and in threads.

The peer is a raw one, which does nothing by itself: so each state lasts until the action.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cm_support import GIVEN_UP, NOBODY, SOON, Side, address_of, asleep
from raw_peer import RawPeer
from support import eventually, is_iwarp, until

from cqnotify import Context, VerbsError, cm
from cqnotify._core import CMID, CMChannel
from cqnotify.cm import blocking

AT_ONCE = 30.0  # seconds that a close takes only if it waits for the peer, which does nothing
BRIEF = 0.3

# ---- our side, in a loop or in threads ------------------------------------------------------


class InLoop:
    """Calls are tasks, which are given up by cancelling them."""

    connect = staticmethod(cm.connect)

    def start(self, call: Callable[..., Any], *args: Any, **options: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(call(*args, **options))

    async def listen(self, host: str) -> Any:
        return await cm.listen(host, 0).__aenter__()

    def give_up(self, call: asyncio.Future[Any]) -> None:
        call.cancel()


class InThreads:
    """Calls are threads, which give up by their deadlines."""

    connect = staticmethod(blocking.connect)

    def start(self, call: Callable[..., Any], *args: Any, **options: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.to_thread(call, *args, **options))

    async def listen(self, host: str) -> Any:
        return blocking.listen(host, 0)

    def give_up(self, call: asyncio.Future[Any]) -> None:
        pass


FACES: dict[str, Any] = {"asyncio": InLoop, "threads": InThreads}

# ---- the peer, in this process or in its own ------------------------------------------------


class NearPeer:
    def __init__(self, ctx: Context) -> None:
        self.raw = RawPeer(ctx)

    async def do(self, name: str, *arguments: object) -> str:
        if name.isupper():
            await eventually(lambda: self.raw.has_seen(name))
            return ""
        return str(getattr(self.raw, name)(*arguments))

    async def leave(self) -> None:
        self.raw.drop()


class FarPeer:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def do(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        answer = await self.process.stdout.readline()
        assert answer.endswith(b"\n"), words
        return answer.decode()

    async def leave(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.communicate()


async def new_peer(ctx: Context, *, far: bool) -> Any:
    if not far:
        return NearPeer(ctx)
    program = str(Path(__file__).with_name("raw_peer.py"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return FarPeer(await asyncio.create_subprocess_exec(sys.executable, program, ctx.name, **pipes))


# ---- states ---------------------------------------------------------------------------------


class Scene:
    """One side of each kind, the call of ours that is waiting, and what it is about."""

    def __init__(self, face: Any, ctx: Context, own: Context, peer: Any, timeout: float) -> None:
        self.face, self.ctx, self.own, self.peer, self.timeout = face, ctx, own, peer, timeout
        self.side = Side(own)
        self.qp = self.side.qp
        self.host = address_of(ctx)
        self.end: Any = None
        self.listener: Any = None
        self.call: asyncio.Future[Any] | None = None
        self.others: list[NearPeer] = []

    async def wait_in(self, call: Callable[..., Any], *args: Any, timeout: float) -> None:
        self.call = self.face.start(call, *args, timeout=timeout)
        await eventually(lambda: asleep() == 1)

    async def resolving(self) -> None:
        await self.wait_in(self.face.connect, self.qp, NOBODY, 9, timeout=self.timeout)

    async def connecting(self, *, timeout: float = 0) -> None:
        """The request has arrived, and the peer has not read it."""
        port = int(await self.peer.do("listen", self.host))
        timeout = timeout or self.timeout
        await self.wait_in(self.face.connect, self.qp, self.host, port, timeout=timeout)
        await self.peer.do("UNREAD")

    async def unanswered(self, *, timeout: float = 0) -> None:
        await self.connecting(timeout=timeout)
        await self.peer.do("CONNECT_REQUEST")

    async def requested(self) -> None:
        self.listener = await self.face.listen(self.host)
        await self.peer.do("ask", *self.listener.local)
        self.end = await self.face.start(self.listener.get_request, SOON)

    async def accepting(self, *, timeout: float = 0) -> None:
        """The peer knows, and has not answered."""
        await self.requested()
        await self.wait_in(self.end.accept, self.qp, timeout=timeout or self.timeout)
        await self.peer.do("CONNECT_RESPONSE")

    async def accepted(self) -> None:
        if is_iwarp(self.ctx):  # the peer's kernel answers
            await self.requested()
            self.call = self.face.start(self.end.accept, self.qp)
            await self.peer.do("ESTABLISHED")
            return await self.connected()
        await self.accepting(timeout=SOON)
        await self.peer.do("establish")
        await self.connected()

    async def established(self) -> None:
        await self.unanswered(timeout=SOON)
        await self.peer.do("accept")
        await self.connected()
        await self.peer.do("ESTABLISHED")  # before that the peer's kernel drops its goodbye

    async def connected(self) -> None:
        assert self.call is not None
        self.end = await self.call
        await self.wait_in(self.end.wait_closed, timeout=self.timeout)

    async def busy(self) -> None:
        """The peer has no receive for our message."""
        await self.established()
        self.side.post_recv()
        self.qp.post_send(self.side.mr[:8], wr_id=5)

    async def disconnecting(self) -> None:
        """The peer knows, and has not answered."""
        await self.established()
        await self.face.start(self.end.disconnect)
        await self.peer.do("DISCONNECTED")
        if is_iwarp(self.ctx):  # our kernel does not wait for the peer
            await eventually(lambda: self.end.error is not None)

    async def disconnected(self) -> None:
        await self.established()
        await self.peer.do("disconnect")
        assert self.call is not None
        await self.call
        await self.peer.do("DISCONNECTED")
        self.call = None

    async def listening(self) -> None:
        """Two requests wait; nobody asks for one."""
        self.end = await self.face.listen(self.host)
        self.others = [NearPeer(self.ctx)]
        for peer in (self.peer, *self.others):
            await peer.do("ask", *self.end.local)
        await eventually(lambda: len(self.end._link.events) == 2)


# ---- actions --------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[Scene], Awaitable[object] | None]] = {
    "close": lambda s: s.end.close(),
    "give up": lambda s: s.face.give_up(s.call),
    "close the QP": lambda s: s.qp.close(),
    "close the context": lambda s: s.own.close(),
    "peer closes": lambda s: s.peer.do("close"),
    "peer disconnects": lambda s: s.peer.do("disconnect"),
    "peer rejects": lambda s: s.peer.do("reject"),
    "peer is killed": lambda s: s.peer.leave(),
}

# State, action; how our call ends, of a request its accept(); what the peer sees, or what fails
# there; our QP, which may be unused where nobody can know when the peer's goodbye comes; why the
# connection is over.
TABLE = """
resolving      give up            gives up             -               RESET   -
resolving      close the QP       ClosedError          -               closed  -
resolving      close the context  ClosedError          -               closed  -
connecting     give up            gives up             finds us gone   RESET   -
connecting     close the QP       ClosedError          finds us gone   closed  -
connecting     close the context  ClosedError          finds us gone   closed  -
connecting     peer closes        RejectedError        -               RESET   -
connecting     peer is killed     RejectedError        -               RESET   -
unanswered     give up            gives up             finds us gone   RESET   -
unanswered     close the QP       ClosedError          finds us gone   closed  -
unanswered     close the context  ClosedError          finds us gone   closed  -
unanswered     peer closes        RejectedError        -               RESET   -
unanswered     peer rejects       RejectedError        -               RESET   -
unanswered     peer is killed     RejectedError        -               RESET   -
requested      close              ClosedError          REJECTED        RESET   -
requested      peer closes        RequestExpiredError  -               unused  -
requested      peer is killed     RequestExpiredError  -               unused  -
accepting      close              ClosedError          REJECTED        ERR     -
accepting      give up            gives up             REJECTED        ERR     -
accepting      close the QP       ClosedError          REJECTED        closed  -
accepting      close the context  ClosedError          REJECTED        closed  -
accepting      peer closes        RequestExpiredError  -               ERR     -
accepting      peer is killed     RequestExpiredError  -               ERR     -
accepted       close              returns              DISCONNECTED    ERR     ClosedError
accepted       give up            gives up             -               RTS     -
accepted       close the QP       returns              DISCONNECTED    closed  ClosedError
accepted       close the context  returns              DISCONNECTED    closed  ClosedError
accepted       peer closes        returns              -               ERR     DisconnectedError
accepted       peer disconnects   returns              DISCONNECTED    ERR     DisconnectedError
accepted       peer is killed     returns              -               ERR     DisconnectedError
established    close              returns              DISCONNECTED    ERR     ClosedError
established    give up            gives up             -               RTS     -
established    close the QP       returns              DISCONNECTED    closed  ClosedError
established    close the context  returns              DISCONNECTED    closed  ClosedError
established    peer closes        returns              -               ERR     DisconnectedError
established    peer disconnects   returns              DISCONNECTED    ERR     DisconnectedError
established    peer is killed     returns              -               ERR     DisconnectedError
busy           close              returns              DISCONNECTED    ERR     ClosedError
busy           give up            gives up             -               RTS     -
busy           close the QP       returns              DISCONNECTED    closed  ClosedError
busy           close the context  returns              DISCONNECTED    closed  ClosedError
busy           peer closes        returns              -               ERR     DisconnectedError
busy           peer disconnects   returns              DISCONNECTED    ERR     DisconnectedError
busy           peer is killed     returns              -               ERR     DisconnectedError
disconnecting  close              returns              -               ERR     ClosedError
disconnecting  give up            gives up             -               ERR     -
disconnecting  close the QP       returns              -               closed  ClosedError
disconnecting  close the context  returns              -               closed  ClosedError
disconnecting  peer closes        returns              -               ERR     DisconnectedError
disconnecting  peer disconnects   returns              -               ERR     DisconnectedError
disconnecting  peer is killed     returns              -               ERR     DisconnectedError
disconnected   close              -                    -               ERR     DisconnectedError
disconnected   close the QP       -                    -               closed  DisconnectedError
disconnected   close the context  -                    -               closed  DisconnectedError
disconnected   peer closes        -                    -               ERR     DisconnectedError
disconnected   peer is killed     -                    -               ERR     DisconnectedError
listening      close              -                    REJECTED        RESET   -
listening      peer closes        RequestExpiredError  -               unused  -
listening      peer is killed     RequestExpiredError  -               unused  -
"""

# What is otherwise on an iWARP device, whose attempts have touched the QP when they have begun.
ON_IWARP = """
resolving      give up            gives up             -               INIT    -
connecting     give up            gives up             finds us gone   ERR     -
connecting     peer closes        RejectedError        -               ERR     -
connecting     peer is killed     RejectedError        -               ERR     -
unanswered     give up            gives up             finds us gone   ERR     -
unanswered     peer closes        RejectedError        -               ERR     -
unanswered     peer rejects       RejectedError        -               ERR     -
unanswered     peer is killed     RejectedError        -               ERR     -
requested      close              ClosedError          REJECTED        INIT    -
disconnecting  close              returns              -               ERR     DisconnectedError
disconnecting  give up            returns              -               ERR     DisconnectedError
disconnecting  close the QP       returns              -               closed  DisconnectedError
disconnecting  close the context  returns              -               closed  DisconnectedError
listening      close              -                    REJECTED        INIT    -
"""
NOT_ON_IWARP = {
    "accepting": "iWARP: what is accepted is established, without a further message",
    "busy": "iWARP: a message without a receive ends the connection",
}


def rows(table: str) -> list[list[str]]:
    return [re.split("  +", line) for line in table.split("\n") if line]


IWARP_ROWS = {(row[0], row[1]): row for row in rows(ON_IWARP)}


async def outcome(call: asyncio.Future[Any] | None) -> str:
    if call is None:
        return "-"
    (done,) = await asyncio.gather(call, return_exceptions=True)
    if isinstance(done, TimeoutError | asyncio.CancelledError):
        return "gives up"
    return type(done).__name__ if isinstance(done, BaseException) else "returns"


async def seen_by_peer(s: Scene, what: str) -> None:
    if what == "finds us gone":
        if s.peer.raw.listener is None:
            await s.peer.do("CONNECT_REQUEST")
        with contextlib.suppress(VerbsError):
            s.peer.raw.accept()
            # Our goodbye came later than its accept.
            await s.peer.do("DISCONNECTED" if is_iwarp(s.ctx) else "REJECTED")
    elif what != "-":
        await s.peer.do(what)
        for other in s.others:
            await other.do(what)


async def act(s: Scene, action: str) -> None:
    began = time.monotonic()
    done = ACTIONS[action](s)
    if not action.startswith("peer"):
        assert time.monotonic() - began < AT_ONCE
    if done is not None:
        await done


async def run_row(s: Scene, row: list[str]) -> None:
    state, action, call, peer, qp, error = row
    await getattr(s, state)()
    await act(s, action)
    if state == "listening" and action.startswith("peer"):
        s.listener, s.end = s.end, await s.face.start(s.end.get_request, SOON)
    if isinstance(s.end, cm.Request | blocking.Request) and s.call is None:
        s.call = s.face.start(s.end.accept, s.qp)
    ended = await outcome(s.call)
    expired = (ended, call) == ("returns", "RequestExpiredError")
    if expired and is_iwarp(s.ctx):  # it is noticed later
        assert s.call is not None
        s.end = s.call.result()
        await eventually(lambda: s.end.error is not None)
        ended, error = call, "DisconnectedError"
    assert ended == call
    await seen_by_peer(s, peer)
    state_of_qp = "closed" if s.qp.closed else s.qp.state.name
    assert state_of_qp == qp or (qp == "unused" and state_of_qp in ("RESET", "INIT", "ERR"))
    if error != "-":
        assert type(s.end.error).__name__ == error
        await eventually(lambda: s.end.closed)
    elif isinstance(s.end, cm.Connection | blocking.Connection):
        assert (s.end.error, s.end.closed) == (None, False)
    if state == "busy" and qp == "ERR":
        found: list[Any] = []
        await eventually(lambda: found.extend(s.side.cq.poll(4)) or len(found) == 2)
        assert {wc.status.name for wc in found} == {"WR_FLUSH_ERR"}


@contextlib.asynccontextmanager
async def scene(ctx: Context, face: str, row: list[str]) -> AsyncIterator[Scene]:
    far = row[1] == "peer is killed"
    timeout = GIVEN_UP if is_iwarp(ctx) else SOON
    if (face, row[1]) == ("threads", "give up"):
        timeout = BRIEF
    peer = await new_peer(ctx, far=far)
    with Context(ctx.name) as own:
        s = Scene(FACES[face](), ctx, own, peer, timeout)
        try:
            yield s
        finally:
            for end in (s.end, s.listener):
                if end is not None:
                    end.close()
            for one in (peer, *s.others):
                await one.leave()


def on_iwarp(row: list[str]) -> list[str]:
    if row[0] in NOT_ON_IWARP:
        pytest.skip(NOT_ON_IWARP[row[0]])
    return IWARP_ROWS.get((row[0], row[1]), row)


async def play(ctx: Context, face: str, row: list[str]) -> None:
    async with scene(ctx, face, row) as s:
        await run_row(s, row)


def identifiers() -> list[CMID | CMChannel]:
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, CMID | CMChannel)]


def descriptors() -> Counter[str]:
    """How many of each file are open, except the steps of a build for tests."""
    names: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that has listed them
            names[os.readlink(f"/proc/self/fd/{number}")] += 1
    steps = os.environ.get("CQNOTIFY_STEPS")
    return Counter({name: n for name, n in names.items() if not steps or steps not in name})


class Leftovers:
    """What the test leaves. What was there before it may go meanwhile, and does not count."""

    def __init__(self) -> None:
        self.earlier = identifiers()  # kept, so that nothing new gets the address of one
        self.open_before = descriptors()

    def __call__(self) -> tuple[list[CMID | CMChannel], Counter[str]]:
        known = {id(thing) for thing in self.earlier}
        new = [thing for thing in identifiers() if id(thing) not in known]
        return new, descriptors() - self.open_before


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("row", rows(TABLE), ids=lambda row: f"{row[0]}, {row[1]}")
def test_each_end_in_each_state(ctx: Context, face: str, row: list[str]) -> None:
    blocking.listen(address_of(ctx), 0).close()  # the threads' channel stays
    left = Leftovers()
    if is_iwarp(ctx):
        row = on_iwarp(row)
    asyncio.run(asyncio.wait_for(play(ctx, face, row), 2 * GIVEN_UP if is_iwarp(ctx) else SOON))
    if is_iwarp(ctx) or face == "threads":  # closing, or taking in an event, may go on in a thread
        until(lambda: left() == ([], {}), "all has gone")
    assert left() == ([], {})
