# SPDX-License-Identifier: MIT
"""Transports in two processes: much, many at once, peers that stop and die, and who sleeps."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from support import DEADLINE
from torch.distributed._transport import wait_all
from torch_support import Peer, peer

from cqnotify import memory
from cqnotify.torch import CqnotifyTransport, RemoteBuffer, Work

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("ctx")]

A_MOMENT = timedelta(seconds=0.2)
LARGE = 1 << 26  # bytes


@pytest.fixture
def transport() -> Iterator[CqnotifyTransport]:
    with CqnotifyTransport("cpu", timeout=DEADLINE) as one:
        yield one


def counting(nbytes: int) -> torch.Tensor:
    """As the tensors of the peer."""
    return torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)


def switches() -> dict[str, int]:
    """How often each thread of this process has gone to sleep, or was made to wait."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        counts = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
        found[task.name] = sum(counts)
    return found


def test_a_gigabyte_is_read_and_written(transport: CqnotifyTransport) -> None:
    with peer(LARGE) as other:
        transport.connect(other.url)
        target, source = torch.zeros(LARGE, dtype=torch.uint8), torch.ones(LARGE, dtype=torch.uint8)
        here, ours = transport.register_memory(target), transport.register_memory(source)
        for _ in range(8):
            target.zero_()
            transport.read(here.to_mutable_view(), other.buffers[0])
            assert torch.equal(target, counting(LARGE))
        for byte in range(1, 9):
            source.fill_(byte)
            transport.write(ours.to_view(), other.buffers[0])
            assert other.ask("sum") == str([byte * LARGE])


def test_10_000_small_reads_are_under_way(transport: CqnotifyTransport) -> None:
    number, size = 10_000, 64
    with peer(size, 4) as other:
        transport.connect(other.url)
        target = torch.zeros(number * size, dtype=torch.uint8)
        here = transport.register_memory(target)
        before = memory.stats().registered
        other.stop()  # and has yet to grant its memory
        works = [
            transport.read(
                here.to_mutable_view(i * size, size), other.buffers[i % 4], async_op=True
            )
            for i in range(number)
        ]
        assert not any(work.is_completed() for work in works)
        other.go_on()
        for work in works:
            work.wait()
        assert memory.stats().registered == before
        assert torch.equal(target, counting(size).repeat(number))


def test_threads_share_a_transport(transport: CqnotifyTransport) -> None:
    with peer(4096, 4) as other, ThreadPoolExecutor(4) as pool:
        transport.connect(other.url)

        def run(buffer: RemoteBuffer) -> bool:
            target = torch.zeros(4096, dtype=torch.uint8)
            here = transport.register_memory(target)
            for _ in range(100):
                target.zero_()
                transport.read(here.to_mutable_view(), buffer)
                if not torch.equal(target, counting(4096)):
                    return False
            return True

        assert all(pool.map(run, other.buffers))


# ---- a peer that does not answer ------------------------------------------------------------


def pending(
    transport: CqnotifyTransport, other: Peer, number: int = 1
) -> tuple[torch.Tensor, list[Work]]:
    """Reads of memory that the peer has yet to grant; its program is stopped, and does not."""
    transport.connect(other.url)
    other.stop()
    target = torch.zeros(4096, dtype=torch.uint8)
    view = transport.register_memory(target).to_mutable_view()
    return target, [transport.read(view, other.buffers[0], async_op=True) for _ in range(number)]


def test_a_timeout_stops_the_wait_and_not_the_transfer(transport: CqnotifyTransport) -> None:
    with peer(4096) as other:
        target, (work,) = pending(transport, other)
        with pytest.raises(TimeoutError, match="not completed yet, and goes on"):
            work.wait(A_MOMENT)
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        registered = transport.register_memory(target)
        with pytest.raises(RuntimeError, match="1 transfers use this memory"):
            transport.unregister_memory(registered)
        with pytest.raises(TimeoutError, match="not completed yet, and goes on"):
            transport.read(registered.to_mutable_view(), other.buffers[0], timeout=0.1)
        other.go_on()
        assert work.wait()
        assert torch.equal(target, counting(4096))


async def test_a_cancelled_task_stops_waiting_and_not_the_transfer(
    transport: CqnotifyTransport,
) -> None:
    with peer(4096) as other:
        target, (work,) = pending(transport, other)
        task = asyncio.ensure_future(wait_all([work]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError, match="operations remain pending"):
            view = transport.register_memory(target).to_mutable_view()
            await transport.read_async(view, other.buffers[0], timeout=0.1)
        assert not work.is_completed()
        other.go_on()
        await wait_all([work])
        assert torch.equal(target, counting(4096))


async def test_closing_waits_and_can_be_tried_again(transport: CqnotifyTransport) -> None:
    with peer(4096) as other:
        target, (work,) = pending(transport, other)
        registered = transport.register_memory(target)
        with pytest.raises(TimeoutError, match="1 transfers are still under way"):
            transport.close(timeout=0.1)
        with pytest.raises(TimeoutError, match="1 transfers are still under way"):
            await transport.close_async(timeout=0.1)
        assert registered.registration.active
        with pytest.raises(RuntimeError, match="this transport is closed"):
            transport.read(registered.to_mutable_view(), other.buffers[0])
        other.go_on()
        await transport.close_async()
        assert work.is_success()
        assert torch.equal(target, counting(4096))
        assert not registered.registration.active


def test_a_callback_may_begin_transfers_and_wait_for_none(transport: CqnotifyTransport) -> None:
    with peer(4096) as other:
        target, (work,) = pending(transport, other)
        view = transport.register_memory(target).to_mutable_view()
        refused: list[str] = []
        done = threading.Event()

        def callback(_: object) -> None:
            second = transport.read(view, other.buffers[0], async_op=True)
            calls: list[Callable[[], object]] = [second.wait, transport.close]
            for call in [*calls, lambda: transport.read(view, other.buffers[0])]:
                try:
                    call()
                except RuntimeError as error:
                    refused.append(str(error))
            second.get_future().add_done_callback(lambda _: done.set())

        work.get_future().add_done_callback(callback)
        assert not work.is_completed()
        other.go_on()
        assert done.wait(DEADLINE)
        assert len(refused) == 3
        assert all("in a callback of a Work" in text for text in refused)


# ---- a peer that dies -----------------------------------------------------------------------


def test_all_works_fail_when_the_peer_is_killed(transport: CqnotifyTransport) -> None:
    with peer(4096) as other:
        target, works = pending(transport, other, 500)
        with pytest.raises(TimeoutError):
            works[0].wait(A_MOMENT)
        other.kill()
        for work in works:
            with pytest.raises(memory.TransferError):
                work.wait()
        assert not transport.connected()
        with pytest.raises(memory.TransferError):
            transport.read(transport.register_memory(target).to_mutable_view(), other.buffers[0])
        assert not transport.connected()


def test_a_peer_killed_amid_large_transfers_fails_those(transport: CqnotifyTransport) -> None:
    with peer(LARGE) as other:
        transport.connect(other.url)
        targets = [torch.zeros(LARGE, dtype=torch.uint8) for _ in range(4)]
        memories = [transport.register_memory(target) for target in targets]
        transport.read(memories[0].to_mutable_view(0, 8), other.buffers[0])
        works = [
            transport.read(each.to_mutable_view(), other.buffers[0], async_op=True)
            for each in memories
        ]
        # It is behind their first pieces, and before their last.
        transport.read(memories[0].to_mutable_view(0, 8), other.buffers[0])
        other.kill()
        for work in works:
            with pytest.raises(memory.TransferError):
                work.wait()
        assert not transport.connected()


# ---- who sleeps -----------------------------------------------------------------------------


def test_everybody_sleeps_while_a_transfer_waits(transport: CqnotifyTransport) -> None:
    with peer(4096) as other:
        _, works = pending(transport, other, 100)
        with pytest.raises(TimeoutError):  # until all of them wait
            works[-1].wait(A_MOMENT)
        before = switches()
        with pytest.raises(TimeoutError):
            works[0].wait(timedelta(seconds=1))
        after = switches()
        main = str(os.getpid())
        assert before.keys() == after.keys()
        assert after[main] > before[main]
        assert {
            name: n - before[name] for name, n in after.items() if name != main
        } == dict.fromkeys(before.keys() - {main}, 0)


def test_a_process_has_one_thread_for_all_transports() -> None:
    with peer(4096) as other:
        before = set(threading.enumerate())
        transports = [CqnotifyTransport(timeout=DEADLINE) for _ in range(10)]
        for one in transports:
            one.connect(other.url)
            target = torch.zeros(4096, dtype=torch.uint8)
            one.read(one.register_memory(target).to_mutable_view(), other.buffers[0])
            assert torch.equal(target, counting(4096))
        assert len(set(threading.enumerate()) - before) <= 1
        for one in transports:
            one.close()
        # Besides, cqnotify.cm has a thread for the keepalives of accepted connections.
        threads = {"MainThread", "cqnotify.memory", "cqnotify.cm keepalive"}
        assert set(other.ask("threads").split(", ")) <= threads
