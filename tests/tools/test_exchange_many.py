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
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
import trio
from exchange_support import ROLES, ignore, port_of
from support import DEADLINE, Scenario, Waiter, cancel, start_all, until

from cqnotify import QPAddress
from cqnotify.exchange import blocking, exchange_as_client, exchange_as_server, listen

N = 20


def address(number: int) -> QPAddress:
    return QPAddress(0, number, 0, IPv6Address(1))


async def serve(listener: socket.socket, number: int, **options: Any) -> int:
    """The number of the client that the server of this number got."""
    options = {"timeout": DEADLINE, **options}
    return (await exchange_as_server(listener, address(number), ignore, **options)).qp_num


def serve_blocking(listener: socket.socket, number: int) -> int:
    return int(ROLES["blocking"].server(listener, address(number)).qp_num)


async def call(listener: socket.socket, number: int) -> int:
    """The number of the server that the client of this number got."""
    port = port_of(listener)
    return (await exchange_as_client("127.0.0.1", port, address(number), timeout=DEADLINE)).qp_num


def call_blocking(listener: socket.socket, number: int) -> int:
    return int(ROLES["blocking"].client(port_of(listener), address(number)).qp_num)


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


async def by_number(
    act: Callable[[socket.socket, int], Awaitable[int]], listener: socket.socket, numbers: range
) -> dict[int, int]:
    """What tasks that serve, or call, got."""
    got = await asyncio.gather(*(act(listener, n) for n in numbers))
    return dict(zip(numbers, got, strict=True))


async def assert_all_are_served(listener: socket.socket) -> None:
    servers = by_number(serve, listener, range(1000, 1000 + N))
    assert_matched(*await asyncio.gather(servers, by_number(call, listener, range(N))))


async def test_as_many_tasks_as_clients_are_served(listener: socket.socket) -> None:
    await assert_all_are_served(listener)


async def test_a_socket_of_the_users_own_can_be_shared_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(DEADLINE)
        await assert_all_are_served(plain)
        assert plain.gettimeout() == DEADLINE


def test_tasks_of_two_loops_and_threads_share_a_listener(
    run: Scenario, listener: socket.socket
) -> None:
    def some(first: int) -> Any:
        return run(by_number(serve, listener, range(first, first + N // 4)))

    with ThreadPoolExecutor(2 * N) as pool:
        loops = pool.map(some, (1000, 2000))
        threads = pool.map(partial(serve_blocking, listener), range(3000, 3000 + N // 2))
        clients = pool.map(partial(call_blocking, listener), range(N))
        servers = dict(enumerate(threads, 3000))
        for got in loops:
            servers |= got
        assert_matched(servers, dict(enumerate(clients)))
    assert os.get_blocking(listener.fileno())


async def test_tasks_get_their_clients_in_the_order_in_which_they_came(
    listener: socket.socket,
) -> None:
    servers = await start_all(*(serve(listener, 1000 + n) for n in range(N)))
    for n in range(N):
        assert await call(listener, n) == 1000 + n
    assert await asyncio.gather(*servers) == list(range(N))


async def test_clients_that_come_before_a_server_wait_in_the_backlog(
    listener: socket.socket,
) -> None:
    clients = asyncio.ensure_future(by_number(call, listener, range(N)))
    servers = {n: await serve(listener, n) for n in range(1000, 1000 + N // 2)}
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        for n in range(2000, 2000 + N // 2):
            servers[n] = await loop.run_in_executor(pool, serve_blocking, listener, n)
    assert_matched(servers, await clients)


async def test_those_that_are_not_cancelled_go_on(listener: socket.socket) -> None:
    servers = await start_all(*(serve(listener, n) for n in range(2 * N)))
    for n in range(0, 2 * N, 2):
        servers[n].cancel()
    clients = await by_number(call, listener, range(N))
    assert_matched({n: await servers[n] for n in range(1, 2 * N, 2)}, clients)


async def test_one_whose_time_is_over_takes_nothing_from_the_others(
    listener: socket.socket,
) -> None:
    begin = time.monotonic()
    times = (0.2, DEADLINE, DEADLINE)
    servers = await start_all(*(serve(listener, n, timeout=t) for n, t in enumerate(times)))
    with pytest.raises(TimeoutError):
        await servers[0]
    assert time.monotonic() - begin >= 0.2, "it did not sleep"
    clients = await by_number(call, listener, range(2))
    assert {server: client for client, server in clients.items()} == {
        1: await servers[1],
        2: await servers[2],
    }


async def test_a_client_that_comes_as_a_server_is_cancelled_is_for_the_next_one(
    listener: socket.socket,
) -> None:
    """In whichever turn of the loop that is. Once it was accepted it is hung up on, and calls
    again."""

    async def call_again() -> int:
        while True:
            with contextlib.suppress(ConnectionError):
                return await call(listener, 7)

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


async def test_nothing_is_left_of_those_that_waited(listener: socket.socket) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def all_come_and_go() -> None:
        servers = await start_all(*(serve(listener, n) for n in range(N)))
        assert not os.get_blocking(listener.fileno())
        await call(listener, 1)
        await servers[0]
        for server in servers[1:]:
            await cancel(server)
        assert os.get_blocking(listener.fileno())

    await all_come_and_go()  # loops open some descriptors for good when they first need them
    before = descriptors()
    await all_come_and_go()
    while descriptors() > before:  # a transport closes its socket in a turn of its own
        await asyncio.sleep(0.01)


async def test_closing_the_listener_ends_the_tasks_that_wait() -> None:
    """From another thread, and a new file may get the number at once."""
    listener = listen(port=0)
    servers = await start_all(*(serve(listener, n) for n in range(3)))
    thread = threading.Thread(target=listener.close)
    thread.start()
    for server in servers:
        with pytest.raises(OSError, match="the listener was closed") as e:
            await server
        assert e.value.errno == errno.EBADF
    thread.join()
    with pytest.raises(OSError, match="the listener was closed"):
        await serve(listener, 0)


def test_closing_the_listener_ends_the_threads_that_wait_and_frees_its_port() -> None:
    listener = listen(port=0)
    port = port_of(listener)
    waiters = [waiting(listener, n) for n in range(3)]
    listener.close()
    for waiter in waiters:
        with pytest.raises(OSError, match="the listener was closed"):
            waiter.join()
    with listen(port=port) as again:
        assert port_of(again) == port
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

        async def keep(got: dict[int, int], function: Callable[..., int], number: int) -> None:
            got[number] = await run(function, listener, number)

        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for n in range(N):
                    nursery.start_soon(keep, servers, serve_blocking, 1000 + n)
                    nursery.start_soon(keep, clients, call_blocking, n)
            assert_matched(servers, clients)
            with trio.move_on_after(0.2) as scope:
                await run(abandoned)
            assert scope.cancelled_caught

    trio.run(main)
    assert not ended.is_set()
    listener.close()
    assert ended.wait(DEADLINE / 2), "it waits on"


def test_an_abandoned_loop_keeps_nobody_from_the_listener(
    new_loop: Callable[[], asyncio.AbstractEventLoop], listener: socket.socket
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
    run: Scenario, listener: socket.socket, is_async: bool
) -> None:
    """The next one is there before the last one is rejected."""
    start = time.monotonic()
    seen = 0

    def another(*_: object) -> None:
        nonlocal seen
        if time.monotonic() - start < DEADLINE / 2:
            seen += 1
            with socket.create_connection(listener.getsockname()) as sock:
                sock.sendall(b"x" * 52)

    options: dict[str, Any] = {"timeout": 0.5, "on_reject": another}
    another()
    with pytest.raises(TimeoutError):
        if is_async:
            run(exchange_as_server(listener, address(1), ignore, **options))
        else:
            blocking.exchange_as_server(listener, address(1), ignore, **options)
    assert seen > 1
    assert time.monotonic() - start < DEADLINE / 2
