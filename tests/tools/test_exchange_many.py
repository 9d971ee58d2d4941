# SPDX-License-Identifier: MIT
"""Many exchanges on one listener: in tasks, in threads, cancelled, and when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
import trio
from support import DEADLINE, Waiter, until

from cqnotify import QPAddress
from cqnotify.exchange import (
    exchange_as_client,
    exchange_as_client_blocking,
    exchange_as_server,
    exchange_as_server_blocking,
    listen,
)

N = 20
NewLoop = Callable[[], asyncio.AbstractEventLoop]
Run = Callable[[Callable[[], Awaitable[Any]]], Any]


def address(number: int) -> QPAddress:
    return QPAddress(0, number, 0, IPv6Address(1))


def ignore(remote: QPAddress) -> None:
    pass


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen(port=0) as sock:
        yield sock


@pytest.fixture
def on_loop(new_loop: NewLoop) -> Run:
    """Runs a coroutine function on asyncio's own loop and on uvloop's."""

    def run(body: Callable[[], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(body(), DEADLINE)

        with contextlib.closing(new_loop()) as loop:
            return loop.run_until_complete(limited())

    return run


async def serve(listener: socket.socket, number: int, **options: Any) -> int:
    """The number of the client that the server of this number got."""
    options = {"timeout": DEADLINE, **options}
    return (await exchange_as_server(listener, address(number), ignore, **options)).qp_num


def serve_blocking(listener: socket.socket, number: int) -> int:
    return exchange_as_server_blocking(listener, address(number), ignore, timeout=DEADLINE).qp_num


async def call(listener: socket.socket, number: int) -> int:
    """The number of the server that the client of this number got."""
    port = port_of(listener)
    return (await exchange_as_client("127.0.0.1", port, address(number), timeout=DEADLINE)).qp_num


def call_blocking(listener: socket.socket, number: int) -> int:
    port = port_of(listener)
    return exchange_as_client_blocking("127.0.0.1", port, address(number), timeout=DEADLINE).qp_num


def waiting(listener: socket.socket, number: int) -> Waiter:
    """A thread that serves, and sleeps."""
    waiter = Waiter(lambda: serve_blocking(listener, number))
    stat = Path(f"/proc/self/task/{waiter.thread.native_id}/stat")

    def sleeps() -> bool:
        waits = not os.get_blocking(listener.fileno())
        return waits and stat.read_text().rpartition(") ")[2].startswith("S")

    until(sleeps, "the thread sleeps")
    return waiter


def assert_matched(servers: dict[int, int], clients: dict[int, int]) -> None:
    """Each server got a client of its own, and the client knows it."""
    assert len(servers) == len(clients) == N
    assert {client: server for server, client in servers.items()} == clients


def test_as_many_tasks_as_clients_are_served(on_loop: Run, listener: socket.socket) -> None:
    async def body() -> None:
        got = await asyncio.gather(
            *(serve(listener, 1000 + n) for n in range(N)), *(call(listener, n) for n in range(N))
        )
        assert_matched({1000 + n: got[n] for n in range(N)}, {n: got[N + n] for n in range(N)})

    on_loop(body)


def test_as_many_threads_as_clients_are_served(listener: socket.socket) -> None:
    with ThreadPoolExecutor(2 * N) as pool:
        servers = {1000 + n: pool.submit(serve_blocking, listener, 1000 + n) for n in range(N)}
        clients = {n: pool.submit(call_blocking, listener, n) for n in range(N)}
        assert_matched(
            {n: f.result(DEADLINE) for n, f in servers.items()},
            {n: f.result(DEADLINE) for n, f in clients.items()},
        )


def test_tasks_of_two_loops_and_threads_share_a_listener(
    new_loop: NewLoop, listener: socket.socket
) -> None:
    def some(first: int) -> dict[int, int]:
        numbers = range(first, first + N // 4)

        async def body() -> list[int]:
            return await asyncio.gather(*(serve(listener, n) for n in numbers))

        with contextlib.closing(new_loop()) as loop:
            return dict(zip(numbers, loop.run_until_complete(body()), strict=True))

    with ThreadPoolExecutor(2 * N) as pool:
        loops = [pool.submit(some, first) for first in (1000, 2000)]
        threads = {n: pool.submit(serve_blocking, listener, n) for n in range(3000, 3000 + N // 2)}
        clients = {n: pool.submit(call_blocking, listener, n) for n in range(N)}
        servers = {n: f.result(DEADLINE) for n, f in threads.items()}
        for future in loops:
            servers.update(future.result(DEADLINE))
        assert_matched(servers, {n: f.result(DEADLINE) for n, f in clients.items()})
    assert os.get_blocking(listener.fileno())


def test_tasks_get_their_clients_in_the_order_in_which_they_came(
    on_loop: Run, listener: socket.socket
) -> None:
    async def body() -> None:
        servers = [asyncio.ensure_future(serve(listener, 1000 + n)) for n in range(N)]
        await asyncio.sleep(0)
        for n in range(N):
            assert await call(listener, n) == 1000 + n
        assert await asyncio.gather(*servers) == list(range(N))

    on_loop(body)


def test_clients_that_come_before_a_server_wait_in_the_backlog(
    on_loop: Run, listener: socket.socket
) -> None:
    async def body() -> None:
        clients = [asyncio.ensure_future(call(listener, n)) for n in range(N)]
        servers = {n: await serve(listener, n) for n in range(1000, 1000 + N // 2)}
        with ThreadPoolExecutor(1) as pool:
            loop = asyncio.get_running_loop()
            for n in range(2000, 2000 + N // 2):
                servers[n] = await loop.run_in_executor(pool, serve_blocking, listener, n)
        assert_matched(servers, dict(enumerate(await asyncio.gather(*clients))))

    on_loop(body)


def test_those_that_are_not_cancelled_go_on(on_loop: Run, listener: socket.socket) -> None:
    async def body() -> None:
        servers = {n: asyncio.ensure_future(serve(listener, n)) for n in range(2 * N)}
        await asyncio.sleep(0)
        for n in range(0, 2 * N, 2):
            servers[n].cancel()
        clients = dict(enumerate(await asyncio.gather(*(call(listener, n) for n in range(N)))))
        assert_matched({n: await servers[n] for n in range(1, 2 * N, 2)}, clients)

    on_loop(body)


def test_one_whose_time_is_over_takes_nothing_from_the_others(
    on_loop: Run, listener: socket.socket
) -> None:
    times = [(0, 0.2), (1, DEADLINE), (2, DEADLINE)]

    async def body() -> None:
        start = time.monotonic()
        servers = [asyncio.ensure_future(serve(listener, n, timeout=t)) for n, t in times]
        with pytest.raises(TimeoutError):
            await servers[0]
        assert time.monotonic() - start >= 0.2, "it did not sleep"
        clients = await asyncio.gather(call(listener, 0), call(listener, 1))
        assert {clients[0]: 0, clients[1]: 1} == {1: await servers[1], 2: await servers[2]}

    on_loop(body)


def test_a_client_that_comes_as_a_server_is_cancelled_is_for_the_next_one(
    on_loop: Run, listener: socket.socket
) -> None:
    """In whichever turn of the loop that is. Once it was accepted it is hung up on, and calls
    again."""

    async def call_again() -> int:
        while True:
            with contextlib.suppress(ConnectionError):
                return await call(listener, 7)

    async def body() -> None:
        for turns in range(8):
            first, second = (asyncio.ensure_future(serve(listener, n)) for n in (1, 2))
            await asyncio.sleep(0)
            client = asyncio.ensure_future(call_again())
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            if await client == 1:  # it had answered by then
                second.cancel()
            else:
                assert await second == 7
            await asyncio.gather(first, second, return_exceptions=True)

    on_loop(body)


def test_nothing_is_left_of_those_that_waited(on_loop: Run, listener: socket.socket) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def all_come_and_go() -> None:
        servers = [asyncio.ensure_future(serve(listener, n)) for n in range(N)]
        await asyncio.sleep(0)
        assert not os.get_blocking(listener.fileno())
        await call(listener, 1)
        await servers[0]
        for server in servers:
            server.cancel()
        await asyncio.gather(*servers, return_exceptions=True)
        assert os.get_blocking(listener.fileno())

    async def body() -> None:
        await all_come_and_go()  # loops open some descriptors for good when they first need them
        before = descriptors()
        await all_come_and_go()
        while descriptors() > before:  # a transport closes its socket in a turn of its own
            await asyncio.sleep(0.01)

    on_loop(body)


def test_closing_the_listener_ends_the_tasks_that_wait(on_loop: Run) -> None:
    """From another thread, and a new file may get the number at once."""

    async def body() -> None:
        listener = listen(port=0)
        servers = [asyncio.ensure_future(serve(listener, n)) for n in range(3)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=listener.close)
        thread.start()
        for server in servers:
            with pytest.raises(OSError, match="the listener was closed") as e:
                await server
            assert e.value.errno == errno.EBADF
        thread.join()
        with pytest.raises(OSError, match="the listener was closed"):
            await serve(listener, 0)

    on_loop(body)


def test_closing_the_listener_ends_the_threads_that_wait() -> None:
    listener = listen(port=0)
    waiters = [waiting(listener, n) for n in range(3)]
    listener.close()
    for waiter in waiters:
        with pytest.raises(OSError, match="the listener was closed"):
            waiter.join()
    with pytest.raises(OSError, match="the listener was closed"):
        serve_blocking(listener, 0)


def test_tasks_of_trio_are_served_and_cancelled(listener: socket.socket) -> None:
    """In its threads: one that is cancelled is left behind, until the listener is closed."""
    ended = threading.Event()

    def abandoned() -> int:
        try:
            return serve_blocking(listener, 0)
        finally:
            ended.set()

    async def run(function: Callable[..., int], *args: Any) -> int:
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True)

    async def main() -> None:
        servers: dict[int, int] = {}
        clients: dict[int, int] = {}

        async def serve(number: int) -> None:
            servers[number] = await run(serve_blocking, listener, number)

        async def call(number: int) -> None:
            clients[number] = await run(call_blocking, listener, number)

        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for n in range(N):
                    nursery.start_soon(serve, 1000 + n)
                    nursery.start_soon(call, n)
            assert_matched(servers, clients)
            with trio.move_on_after(0.2) as scope:
                await run(abandoned)
            assert scope.cancelled_caught

    trio.run(main)
    assert not ended.is_set()
    listener.close()
    assert ended.wait(DEADLINE / 2), "it waits on"


def test_a_listener_that_was_closed_frees_its_port() -> None:
    listener = listen(port=0)
    port = port_of(listener)
    waiter = waiting(listener, 0)
    listener.close()
    with pytest.raises(OSError, match="closed"):
        waiter.join()
    with listen(port=port) as again:
        assert port_of(again) == port


def test_a_socket_of_the_users_own_can_be_shared_too(on_loop: Run) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as plain:
            plain.settimeout(DEADLINE)
            got = await asyncio.gather(
                *(serve(plain, 1000 + n) for n in range(N)), *(call(plain, n) for n in range(N))
            )
            assert_matched({1000 + n: got[n] for n in range(N)}, {n: got[N + n] for n in range(N)})
            assert plain.gettimeout() == DEADLINE

    on_loop(body)


def test_an_abandoned_loop_keeps_nobody_from_the_listener(
    new_loop: NewLoop, listener: socket.socket
) -> None:
    with contextlib.closing(new_loop()) as loop:
        task = loop.create_task(serve(listener, 1))
        loop.run_until_complete(asyncio.sleep(0))
        assert not task.done()
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    waiter = waiting(listener, 2)
    assert call_blocking(listener, 7) == 2
    assert waiter.join() == 7
    until(lambda: os.get_blocking(listener.fileno()), "the listener is as it was")


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])
def test_bad_clients_without_end_do_not_outlast_the_deadline(
    on_loop: Run, listener: socket.socket, is_async: bool
) -> None:
    """The next one is there before the last one is turned away."""
    start = time.monotonic()
    seen = 0

    def another(*_: object) -> None:
        nonlocal seen
        if time.monotonic() - start < DEADLINE / 2:
            seen += 1
            with socket.create_connection(listener.getsockname()) as sock:
                sock.sendall(b"x" * 52)

    def by_thread() -> None:
        exchange_as_server_blocking(listener, address(1), ignore, timeout=0.5, turned_away=another)

    async def by_task() -> None:
        await exchange_as_server(listener, address(1), ignore, timeout=0.5, turned_away=another)

    another()
    with pytest.raises(TimeoutError):
        on_loop(by_task) if is_async else by_thread()
    assert seen > 1
    assert time.monotonic() - start < DEADLINE / 2
