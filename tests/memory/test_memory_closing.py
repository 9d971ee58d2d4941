# SPDX-License-Identifier: MIT
"""The end, of this process's part, of an exposure, of a loop or of the program, in every phase of a
transfer; and what a forked child and a sub-interpreter have of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import interpreters
import pytest
from memory_support import connection_to, pattern
from raw_process import AT, SIZE, Raw, RawServer, raw_server
from support import (
    DEADLINE,
    Waiter,
    eventually,
    in_child,
    open_fds,
    python,
    sits_in,
    start,
    until,
)

from cqnotify import (
    MR,
    MW,
    QP,
    ClosedError,
    CompletionError,
    Context,
    QPState,
    VerbsError,
    memory,
)
from cqnotify._core import open_objects
from cqnotify._registered import Device
from cqnotify.memory import (
    ConnectionLostError,
    RefusedError,
    RevokedError,
    TransferError,
    _transfer,
    blocking,
)
from cqnotify.memory._connection import Connection
from cqnotify.memory._process import current

DATA = pattern(64 * 4096)
FUTEX = "202"
ENDS = (TransferError, ClosedError, asyncio.CancelledError)


def threads() -> int:
    return sum(thread.name.startswith("cqnotify.memory") for thread in threading.enumerate())


def nothing_is_left() -> bool:
    """Of the objects of the process: the device is closed if only cqnotify.memory has used it."""
    return threads() == 0 and not Device.all()


@pytest.fixture(autouse=True)
def _counted(ctx: Context) -> Iterator[None]:
    """Each test ends without a thread, and without an object on a device."""
    yield
    memory.close()
    gc.collect()
    until(nothing_is_left, "the last transfer has let go of its device")


# ---- close() in every phase of a get ------------------------------------------------------------


@contextlib.asynccontextmanager
async def beginning(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    """A get that was not begun in the service yet."""
    yield await start(memory.get(server.descriptor()))


@contextlib.asynccontextmanager
async def connecting(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    """The peer has the request, and has not answered."""
    getting = await start(memory.get(server.descriptor()))
    request = await server.request()
    yield getting
    with contextlib.suppress(OSError):
        await request.reject(b"")


@contextlib.asynccontextmanager
async def opening(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    getting = await start(memory.get(server.descriptor()))
    raw = await server.accept()
    await raw.asked()
    yield getting


async def granted(server: RawServer) -> Raw:
    """A get has been carried out: there is a connection, and its home is this loop."""
    getting = await start(memory.get(server.descriptor()))
    raw = await server.accept()
    await raw.asked()
    await raw.grant(raw.answer(1, length=64 * SIZE))
    await getting
    return raw


@contextlib.asynccontextmanager
async def reading(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    """One piece. The peer's queue pair is of no use any more, so its device does not answer."""
    raw = await granted(server)
    deaf(raw)
    getting = await start(memory.get(server.descriptor()))
    yield getting


@contextlib.asynccontextmanager
async def in_pieces(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    raw = await granted(server)
    deaf(raw)
    getting = await start(memory.get(server.descriptor(length=9 * SIZE), bytearray(9 * SIZE)))
    yield getting


@contextlib.asynccontextmanager
async def moving(server: RawServer) -> AsyncIterator[asyncio.Future[Any]]:
    """A thread wants the connection, which moves to the service when the transfer here ends."""
    raw = await granted(server)
    deaf(raw)
    getting = await start(memory.get(server.descriptor()))
    other = Waiter(lambda: blocking.get(server.descriptor()))
    conn = connection_to(server.descriptor())
    await eventually(lambda: conn.home is not None and conn.home.leaving is not None)
    yield getting
    with pytest.raises(ENDS):
        await asyncio.to_thread(other.join)


def deaf(raw: Raw) -> None:
    """Its device drops what comes."""
    raw.qp.modify(qp_state=6)  # ERR
    raw.acq.close()


PHASES: dict[str, Callable[[RawServer], contextlib.AbstractAsyncContextManager[Any]]] = {
    phase.__name__: phase for phase in (beginning, connecting, opening, reading, in_pieces, moving)
}


async def close_here() -> None:
    """The call blocks the loop of the transfer."""
    memory.close()


async def close_in_a_thread() -> None:
    await asyncio.to_thread(memory.close)


async def close_twice() -> None:
    await asyncio.gather(*(asyncio.to_thread(memory.close) for _ in range(2)))


@pytest.mark.parametrize("close", [close_here, close_in_a_thread, close_twice])
@pytest.mark.parametrize("phase", PHASES)
async def test_close_ends_a_get_in_each_phase(
    ctx: Context,
    phase: str,
    close: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_transfer, "PIECE", SIZE)
    async with raw_server(ctx) as server, PHASES[phase](server) as getting:
        assert not getting.done()
        await close()
        with pytest.raises(ENDS) as e:
            await asyncio.wait_for(getting, DEADLINE)
        assert not isinstance(e.value, asyncio.CancelledError), "nobody has cancelled it"


@pytest.mark.parametrize("phase", PHASES)
async def test_cancelling_ends_a_get_in_each_phase(
    ctx: Context, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the device has begun: then close() is what ends it."""
    monkeypatch.setattr(_transfer, "PIECE", SIZE)
    async with raw_server(ctx) as server, PHASES[phase](server) as getting:
        getting.cancel()
        if phase in ("reading", "in_pieces", "moving"):
            await asyncio.to_thread(memory.close)
        await asyncio.wait([getting], timeout=DEADLINE)
        assert getting.cancelled() or (
            phase in ("reading", "in_pieces", "moving")
            and isinstance(getting.exception(), ClosedError)
        )
        if phase == "moving":
            return
        await asyncio.to_thread(memory.close)


@pytest.mark.parametrize("phase", ["beginning", "connecting", "opening", "reading", "in_pieces"])
def test_the_end_of_the_loop_ends_a_get_in_each_phase(
    ctx: Context, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.run() cancels its tasks, and waits for them."""
    monkeypatch.setattr(_transfer, "PIECE", SIZE)
    done: list[asyncio.Future[Any]] = []

    async def main() -> None:
        async with raw_server(ctx) as server, PHASES[phase](server) as getting:
            done.append(getting)
            closing.start()

    closing = threading.Timer(0.05, memory.close)
    asyncio.run(main())
    closing.join()
    assert done[0].done()


# ---- exposures ----------------------------------------------------------------------------------


async def test_an_exposure_that_is_closed_during_a_get_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the loop, and from other threads, wherever that is."""
    monkeypatch.setattr(_transfer, "PIECE", 4096)
    outcomes = set()
    for turns in range(24):
        one = memory.expose(DATA)
        getting = await start(memory.get(one))
        for _ in range(turns // 2):
            await asyncio.sleep(0)
        if turns % 2:
            one.close()
        else:
            await asyncio.to_thread(one.close)
        try:
            assert bytes(await getting) == DATA
            outcomes.add("done")
        except RevokedError:
            outcomes.add("revoked")
    assert "revoked" in outcomes
    assert not len(current().table)


async def test_a_second_close_returns_when_the_first_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when an exposure expires while it is closed: then the memory must be free, too."""
    own = bytearray(DATA)
    one = memory.expose(own)
    assert bytes(await memory.get(one)) == DATA
    is_there, may_go_on = threading.Event(), threading.Event()
    settle = Connection.settle

    def slow(conn: Connection, token: int) -> None:
        is_there.set()
        may_go_on.wait()
        settle(conn, token)

    def close() -> None:
        one.close()
        own.append(0)  # a BufferError if it is not free

    monkeypatch.setattr(Connection, "settle", slow)
    first = Waiter(one.close)
    assert is_there.wait(DEADLINE)
    second = Waiter(close)
    task = f"/proc/self/task/{second.thread.native_id}"
    until(lambda: not second.thread.is_alive() or sits_in(task, FUTEX), "it waits")
    may_go_on.set()
    await asyncio.to_thread(second.join)
    await asyncio.to_thread(first.join)


async def test_others_go_on_when_one_exposure_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A get that is refused breaks the connection; the others go on over the next one."""
    monkeypatch.setattr(_transfer, "PIECE", 4096)
    with memory.expose(DATA) as kept:
        for _ in range(8):
            one = memory.expose(DATA)
            doomed = [await start(memory.get(one)) for _ in range(4)]
            innocent = [await start(memory.get(kept)) for _ in range(4)]
            await asyncio.sleep(0.001)
            await asyncio.to_thread(one.close)
            for task in innocent:
                assert bytes(await task) == DATA
            got = await asyncio.gather(*doomed, return_exceptions=True)
            assert {type(result) for result in got} <= {RevokedError, memoryview}


@pytest.mark.parametrize("by", ["flush", "access", "post"])
async def test_a_get_that_waits_for_its_grant_goes_on_over_the_next_connection(
    ctx: Context, by: str
) -> None:
    """Another transfer has broken this one: one of this end, or the peer's, with an old key."""
    async with raw_server(ctx) as server, opening(server) as getting:
        conn = current().connections[server.id.hex()]
        if by == "flush":
            conn.qp.modify(qp_state=QPState.ERR)
        if by == "post":  # of a transfer
            conn.failed(VerbsError(errno.EINVAL, "the QP is in ERR"))
        if by == "access":
            # Our end may hang up before its refusal has arrived there.
            with pytest.raises(CompletionError, match="REM_ACCESS_ERR|WR_FLUSH_ERR"):
                await server.raws[0].read(1 << 20, 1, 1)
        raw = await server.accept()
        assert await raw.asked() == [1]
        raw.mr.write(DATA[:SIZE], AT + SIZE)
        await raw.grant(raw.answer(1))
        assert bytes(await getting) == DATA[:SIZE]


async def test_exposing_while_closing_is_refused_or_begins_anew() -> None:
    """No exposure is left that nobody closes, nor anybody who waits for ever."""

    def expose() -> int:
        count = 0
        for _ in range(200):
            with contextlib.suppress(ClosedError, OSError):
                one = memory.expose(DATA)
                count += 1
                assert one.closed or one.port
        return count

    exposing = [Waiter(expose) for _ in range(3)]
    while any(waiter.thread.is_alive() for waiter in exposing):
        await asyncio.to_thread(memory.close)
    assert sum(waiter.join() for waiter in exposing) > 0
    memory.close()


# ---- threads ------------------------------------------------------------------------------------


def test_a_thread_that_waits_wakes_when_all_is_closed(ctx: Context) -> None:
    async def main() -> None:
        async with raw_server(ctx) as server:
            waiter = Waiter(lambda: blocking.get(server.descriptor()))
            raw = await server.accept()
            await raw.asked()
            assert waiter.thread.is_alive()
            await asyncio.to_thread(memory.close)
            with pytest.raises((ConnectionLostError, ClosedError)):
                await asyncio.to_thread(waiter.join)

    asyncio.run(main())


def test_a_loop_that_stands_still_keeps_no_thread_waiting() -> None:
    """It may be run again, or never."""
    loop = asyncio.new_event_loop()
    with memory.expose(DATA) as one, contextlib.closing(loop):
        assert bytes(loop.run_until_complete(memory.get(one)))[:4096] == DATA[:4096]
        assert bytes(blocking.get(one)) == DATA, "the loop of this thread"
        assert bytes(loop.run_until_complete(memory.get(one))) == DATA
    other = asyncio.new_event_loop()
    with memory.expose(DATA) as one, contextlib.closing(other):
        other.run_until_complete(memory.get(one))
        assert bytes(Waiter(lambda: blocking.get(one)).join()) == DATA, "of another one"
        assert bytes(other.run_until_complete(memory.get(one))) == DATA


def test_loops_and_threads_share_one_connection() -> None:
    def in_a_loop() -> list[Any]:
        async def main() -> list[Any]:
            return await asyncio.gather(*(memory.get(one, length=9) for _ in range(50)))

        return asyncio.run(main())

    def in_a_thread() -> list[Any]:
        return [blocking.get(one, length=9) for _ in range(50)]

    with memory.expose(DATA) as one:
        blocking.get(one)
        waiters = [Waiter(call) for call in (in_a_loop, in_a_thread) * 3]
        for waiter in waiters:
            assert {bytes(got) for got in waiter.join()} == {DATA[:9]}
        assert len(current()._all) == 2, "two ends of one"


# ---- what is left ------------------------------------------------------------------------------


async def test_nothing_is_left_after_close(ctx: Context) -> None:
    counts = []
    for _ in range(3):
        ones = [memory.expose(DATA) for _ in range(10)]
        got = await asyncio.gather(*map(memory.get, ones))
        assert all(bytes(data) == DATA for data in got)
        contexts = [device.context for device in Device.all()]
        kinds = {type(one) for context in contexts for one in open_objects(context)}
        assert {QP, MR, MW} <= kinds
        del got
        memory.close()
        assert all(context.closed for context in contexts)
        assert not Device.all()
        assert all(one.closed for one in ones)
        await asyncio.sleep(0)  # this loop watches the connection's channel no more
        gc.collect()
        counts.append(open_fds())
    assert counts[0] == counts[1] == counts[2], counts


# ---- forks ---------------------------------------------------------------------------------------


async def test_a_forked_child_forgets_and_its_parent_goes_on(ctx: Context) -> None:
    """In every phase."""
    with memory.expose(DATA) as one:
        process = current()

        def child() -> None:
            assert one.closed
            one.close()
            mine = memory.expose(DATA)
            assert mine.process != process.id.hex()
            assert mine.port != one.port
            assert bytes(blocking.get(mine)) == DATA
            memory.close()

        assert in_child(child) == 0
        assert bytes(await memory.get(one)) == DATA
        conn = connection_to(one)
        assert in_child(child) == 0
        assert in_child(memory.close) == 0
        assert not one.closed
        assert bytes(await memory.get(one)) == DATA
        assert connection_to(one) is conn
    async with raw_server(ctx) as server, opening(server) as getting:
        assert in_child(memory.close) == 0
        assert not getting.done()
        (raw,) = server.raws
        raw.mr.write(DATA[:SIZE], AT + SIZE)
        await raw.grant(raw.answer(1))
        assert bytes(await getting) == DATA[:SIZE]


async def test_a_child_gets_what_its_parent_exposes() -> None:
    with memory.expose(DATA) as one:
        await memory.get(one)

        def child() -> None:
            assert bytes(blocking.get(one)) == DATA
            memory.close()

        # The parent's service answers meanwhile: in_child() blocks this thread alone.
        assert in_child(child) == 0


def test_a_child_that_just_ends_says_nothing() -> None:
    out = python(
        "-W",
        "always",
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        "import os, sys\n"
        "from cqnotify import memory\n"
        "one = memory.expose(bytes(4096))\n"
        "memory.blocking.get(one)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(0)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "assert bytes(memory.blocking.get(one)) == bytes(4096)\n"
        "sys.exit(code)\n",
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


# ---- the end of the program --------------------------------------------------------------------

PROGRAM = """
import asyncio, sys, threading
from cqnotify import memory
one = memory.expose(bytes(1 << 16))
"""
LAST = {
    "exposed": "",
    "connected": "memory.blocking.get(one)",
    "home in a loop": "asyncio.run(asyncio.wait_for(memory.get(one), 60))",
    "a loop that stands still": (
        "loop = asyncio.new_event_loop()\nloop.run_until_complete(memory.get(one))\nloop.close()"
    ),
    "a future": "futures = [memory.blocking.get_future(one) for _ in range(100)]",
    "an error": "memory.blocking.get(one); sys.exit(3)",
    "closed": "one.close(); memory.close()",
    "closed twice": "memory.close(); memory.close()",
    "a cycle": "me = [one]; me.append(me); memory.blocking.get(one)",
    "a daemon": (
        "def forever():\n"
        "    try:\n"
        "        while True: memory.blocking.get(one)\n"
        "    except Exception: pass\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "memory.blocking.get(one)"
    ),
}


@pytest.mark.parametrize("last", LAST)
def test_a_program_ends_promptly_and_says_nothing(last: str) -> None:
    start_time = time.monotonic()
    out = python("-W", "always", "-c", PROGRAM + LAST[last])
    assert (out.returncode, out.stdout, out.stderr) == (3 if "error" in last else 0, "", "")
    assert time.monotonic() - start_time < DEADLINE


SUB = """
SUB = '''
import asyncio
from cqnotify import memory
with memory.expose(bytes(range(256)) * 16) as one:
    assert bytes(memory.blocking.get(one)) == bytes(range(256)) * 16
    if END == "open":
        kept = memory.expose(bytes(100))
if END != "left":
    memory.close()
'''
"""


@pytest.mark.skipif(
    sys.version_info < (3, 12),
    reason="asyncio of Python 3.11 takes the running loops of two interpreters for one",
)
@pytest.mark.parametrize("end", ["closed", "open", "left"])
def test_interpreters_come_and_go_with_memory_of_their_own(ctx: Context, end: str) -> None:
    interpreters.program(
        SUB
        + f"""
import os, time
from cqnotify import memory
with memory.expose(bytes(4096)) as own:
    counts = []
    for _ in range(3):
        i = create(False)
        run(i, "END = {end!r}\\n" + SUB)
        interpreters.destroy(i)
        late = time.monotonic() + 120
        while len(os.listdir("/proc/self/task")) > 2 and time.monotonic() < late:
            time.sleep(0.001)
        counts.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    assert counts[1:] == counts[:1] * 2, counts
    assert bytes(memory.blocking.get(own)) == bytes(4096)
memory.close()
"""
    )


# ---- simultaneous connects ---------------------------------------------------------------------

MEET = """
import json, sys
from cqnotify import memory
from cqnotify.memory._connection import Connection
from cqnotify.memory._process import current
one = memory.expose(bytes([7]) * 4096)
print(json.dumps(one.to_dict()), flush=True)
for line in sys.stdin:
    if line.startswith("{"):
        other = memory.Descriptor.from_dict(json.loads(line))
        future = memory.blocking.get_future(other)
        assert len(future.result(60)) == 4096
        print("got", flush=True)
    else:
        print(sum(c.error is None and c._conn is not None for c in current()._all), flush=True)
memory.close()
"""


def test_two_that_connect_to_each_other_at_once_have_one_connection() -> None:
    met = 0
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", MEET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            theirs = memory.Descriptor.from_dict(json.loads(peer.stdout.readline()))
            with memory.expose(DATA[:4096]) as one:
                peer.stdin.write(json.dumps(one.to_dict()) + "\n")
                peer.stdin.flush()
                future = blocking.get_future(theirs)
                assert bytes(future.result(DEADLINE)) == b"\7" * 4096
                assert peer.stdout.readline() == "got\n"
                peer.stdin.write("count\n")
                peer.stdin.flush()
                assert int(peer.stdout.readline()) <= 2
                met += 1
            peer.stdin.close()
            assert peer.wait(DEADLINE) == 0
        memory.close()
    assert met == 6


async def test_an_idle_connection_is_closed_and_made_again() -> None:
    with memory.expose(DATA) as one:
        memory.set_limits(idle=0.05)
        await memory.get(one)
        await eventually(lambda: not current()._all)
        assert bytes(await memory.get(one)) == DATA


async def test_a_connection_in_use_is_not_closed(ctx: Context) -> None:
    """A get waits for the peer's answer for longer than that."""
    async with raw_server(ctx) as server:
        memory.set_limits(idle=0.05)
        one = server.descriptor()
        async with opening(server) as getting:
            await asyncio.sleep(0.5)
            assert not getting.done()
            (raw,) = server.raws
            await raw.grant(raw.answer(1))
            await getting
    with pytest.raises((RefusedError, ConnectionLostError)):
        await memory.get(one)
