# SPDX-License-Identifier: MIT
"""The registered memory of a process: shared by threads and loops, and let go of in time."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import mmap
import os
import queue
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy
import pytest
from interpreters import OWN_GIL, program
from support import DEADLINE, eventually, python

from cqnotify import MR, PD, AccessFlags, Context, DeviceCapFlags, _core
from cqnotify import _registered as registered
from cqnotify._registered import SLOW, Device, Pool, _buffers, _device

NONE, WRITE, READ = AccessFlags(0), AccessFlags.LOCAL_WRITE, AccessFlags.REMOTE_READ
BIND = AccessFlags.MW_BIND
SIZE = 1 << 16


@pytest.fixture
def device(ctx: Context) -> Iterator[Device]:
    assert Device.all() == []
    device = Device.of(ctx.name)
    yield device
    device.leave()
    assert device.context.closed
    assert Device.all() == []


@pytest.fixture
def pool(device: Device) -> Iterator[Pool]:
    """In the end none of its MRs is left: else the domain could not be closed."""
    pool = device.new_pool(PD(device.context), 1 << 30)
    pool.join()
    yield pool
    pool.leave()
    assert pool.stats[2:] == (0, 0, 0, 0)
    pool.pd.close()


# ---- devices ----------------------------------------------------------------------------------


def test_a_device_is_open_once_and_counted(ctx: Context) -> None:
    first, second = Device.of(ctx.name), Device.of(ctx.name)
    assert first is second
    assert Device.all() == [first]
    assert first.context.name == ctx.name
    assert first.pd.context is first.context
    assert first.max_msg_sz == ctx.query_port().max_msg_sz
    flags = ctx.query_device().device_cap_flags
    types = DeviceCapFlags.MEM_WINDOW_TYPE_2A | DeviceCapFlags.MEM_WINDOW_TYPE_2B
    assert first.has_windows == bool(flags & types)
    first.leave()
    assert not first.context.closed
    second.leave()
    assert first.context.closed
    third = Device.of(ctx.name)
    assert third is not first
    third.leave()


def test_a_device_is_opened_once_by_many_threads(ctx: Context) -> None:
    barrier, got = threading.Barrier(8), list[Device]()

    def work() -> None:
        barrier.wait(DEADLINE)
        got.append(Device.of(ctx.name))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(got) == 8
    assert len(set(got)) == 1
    for device in got:
        assert not device.context.closed
        device.leave()
    assert got[0].context.closed


def test_the_default_pool_has_the_limits_of_the_process(device: Device) -> None:
    pool, other = device.pool(), device.pool(1000)
    assert pool is device.default_pool
    assert pool is device.pool(_device.DEFAULT_CACHE)
    assert other is device.pool(1000)
    before = registered.limits()
    kept = [numpy.zeros(SIZE, numpy.uint8) for _ in range(4)]
    try:
        for one in kept:
            pool.acquire(one, NONE).release()
        assert pool.stats.kept == 4
        registered.set_limits(max_registrations=3)
        assert pool.stats[2:4] == (3, 3 * SIZE)
        registered.set_limits(max_bytes=2 * SIZE)
        assert pool.stats[2:4] == (2, 2 * SIZE)
        assert registered.limits() == (2 * SIZE, 3)
        pool.acquire(kept[0], NONE).release()
        assert pool.stats[2:4] == (2, 2 * SIZE)
        with pytest.raises(ValueError, match="max_bytes is -1: it must be 0 to"):
            registered.set_limits(max_bytes=-1)
        with pytest.raises(TypeError, match="max_registrations must be an int, not float"):
            registered.set_limits(max_registrations=1.5)  # type: ignore[arg-type]
    finally:
        registered.set_limits(**before._asdict())
    assert registered.limits() == before


# ---- buffers ----------------------------------------------------------------------------------


def test_a_registration_says_where_the_buffer_is(pool: Pool) -> None:
    whole = numpy.arange(SIZE, dtype=numpy.uint8)
    first = pool.acquire(whole, WRITE)
    part = pool.acquire(whole[100:200], WRITE)
    assert part.mr is first.mr
    assert (part.addr, part.nbytes, part.rkey) == (first.addr + 100, 100, first.mr.rkey)
    assert (first.is_new, part.is_new) == (True, False)
    assert first.mr.read(5, part.addr - first.mr.addr) == bytes(whole[100:105])
    sge = part.sge(10, 20)
    assert (sge.addr, sge.length) == (part.addr + 10, 20)
    assert part.sge(90).length == 10
    for offset, length in ((0, 101), (101, None), (-1, 5)):
        with pytest.raises(ValueError, match="this registration has 100 bytes"):
            part.sge(offset, length)
    part.release()
    part.release()
    assert pool.stats.in_use == 1, "twice is fine"
    first.release()


def test_memory_for_windows_is_shared_by_all_that_let_peers_do_nothing(
    device: Device, pool: Pool
) -> None:
    target = numpy.zeros(SIZE)
    first = pool.acquire(target, NONE)
    assert first.mr.access == (WRITE | BIND if device.has_windows else NONE)
    for access in (WRITE, BIND, WRITE | BIND) if device.has_windows else (NONE,):
        again = pool.acquire(target, access)
        assert again.mr is first.mr
        again.release()
    offered = pool.acquire(target, READ)
    assert offered.mr is not first.mr, "a peer may read this one"
    assert offered.mr.access & ~BIND & ~WRITE == READ
    third = pool.acquire(target, NONE)
    assert third.mr is first.mr
    for one in (first, offered, third):
        one.release()


def test_read_only_memory_is_registered_as_it_is(pool: Pool) -> None:
    for buffer in (bytes(SIZE), numpy.frombuffer(bytes(SIZE))):
        one = pool.acquire(buffer, READ)
        assert one.mr.access == READ
        one.release()
        with pytest.raises(TypeError, match="is read-only: pass writable memory"):
            pool.acquire(buffer, WRITE)


@pytest.mark.parametrize(
    ("buffer", "error", "match"),
    [
        (numpy.zeros((4, 4))[:, 1], BufferError, "must be contiguous"),
        (b"", ValueError, "has no bytes"),
        ("text", TypeError, "bytes-like"),
    ],
)
def test_what_is_no_memory_is_refused(
    pool: Pool, buffer: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        pool.acquire(buffer, NONE)


def anonymous() -> mmap.mmap:
    return mmap.mmap(-1, SIZE)


@pytest.mark.parametrize(
    "make",
    [lambda: bytearray(SIZE), lambda: array.array("b", bytes(SIZE)), anonymous],
    ids=["bytearray", "array", "mmap"],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_what_can_move_is_registered_while_it_is_in_use(
    pool: Pool, make: Callable[[], Any], as_array: bool
) -> None:
    """And cannot be resized or closed meanwhile."""
    buffer = make()
    view: Any = numpy.ndarray(SIZE, numpy.uint8, buffer) if as_array else buffer
    one = pool.acquire(view, WRITE)
    again = pool.acquire(memoryview(view)[7:99], WRITE)
    assert again.mr is one.mr
    change = buffer.close if isinstance(buffer, mmap.mmap) else lambda: buffer.extend(b"1")
    again.release()
    with pytest.raises(BufferError):
        change()
    one.release()
    assert pool.stats[2:] == (0, 0, 0, 0)
    del view
    change()


def views_of(buffer: bytearray) -> list[memoryview]:
    """References to the memoryviews of it, as a thread that sleeps may have without a GIL."""
    shared = gc.get_referrers(buffer)  # what the views of a buffer have in common is among these
    return [one for one in gc.get_referrers(*shared) if isinstance(one, memoryview)]


def released_by_python(pool: Pool, buffer: bytearray) -> Callable[[], object]:
    return pool.acquire(buffer, WRITE).release


def released_alone(pool: Pool, buffer: bytearray) -> Callable[[], object]:
    return pool.acquire_alone(buffer, WRITE).release


def released_by_the_core(pool: Pool, buffer: bytearray) -> Callable[[], object]:
    """By an exposure, which uses the region longer than the one that registered it."""
    flags = pool.pd.context.query_device().device_cap_flags
    if not flags & (DeviceCapFlags.MEM_WINDOW_TYPE_2A | DeviceCapFlags.MEM_WINDOW_TYPE_2B):
        pytest.skip("the core finds nothing on a device without windows")
    table = _core.ExposureTable()
    table._set_types(type("Exposure", (_core.Exposure,), {}), READ, (READ,))
    table._set_registered(pool.table)
    registration = pool.acquire(buffer, BIND)
    exposure = table._expose(buffer, READ)
    assert exposure is not None
    del exposure
    registration.release()
    return table._exposures.clear


@pytest.mark.parametrize("way", [released_by_python, released_alone, released_by_the_core])
def test_memory_is_free_when_its_use_ends_whoever_refers_to_a_view(
    pool: Pool, way: Callable[[Pool, bytearray], Callable[[], object]]
) -> None:
    buffer = bytearray(SIZE)
    release = way(pool, buffer)
    views = views_of(buffer)
    assert views
    with pytest.raises(BufferError):
        buffer.append(1)
    release()
    buffer.append(1)


def test_large_memory_is_free_when_a_thread_has_deregistered_it(pool: Pool) -> None:
    buffer = bytearray(SLOW)

    async def scenario() -> list[memoryview]:
        one = await pool.acquire_async(buffer, WRITE)
        registered._pinning.wait_idle()  # the thread that registered it has views of its own
        views = views_of(buffer)
        one.release()
        return views

    views = asyncio.run(asyncio.wait_for(scenario(), DEADLINE))
    assert views
    registered._pinning.wait_idle()
    buffer.append(1)


def test_memory_of_an_mr_that_cannot_be_closed_is_not_let_go_of(pool: Pool) -> None:
    buffer = bytearray(SIZE)
    one = pool.acquire(buffer, WRITE)
    kept: list[MR] = []

    def keep(mr: MR, holder: Any) -> None:
        kept.append(mr)
        _buffers.let_go(holder)

    one.release(keep)
    with pytest.raises(BufferError):
        buffer.append(1)
    assert kept[0].read(1) == b"\0"
    kept.pop().close()
    buffer.append(1)


def test_an_array_that_holds_its_memory_stays_registered(pool: Pool) -> None:
    source = anonymous()
    held = numpy.frombuffer(source, numpy.uint8)
    pool.acquire(held[5:], WRITE).release()
    assert pool.stats.kept == 1
    with pytest.raises(BufferError):
        source.close()
    del held
    assert pool.stats.kept == 0
    source.close()


def test_shared_memory_can_be_closed_after_its_use(pool: Pool) -> None:
    memory = shared_memory.SharedMemory(create=True, size=SIZE)
    try:
        shown = numpy.ndarray(SIZE, numpy.uint8, memory.buf)
        pool.acquire(shown, WRITE).release()
        assert pool.stats.kept == 0
        del shown
    finally:
        memory.close()
        memory.unlink()


def test_a_mapped_file_is_registered(pool: Pool, tmp_path: Path) -> None:
    """Also where it may not be pinned for writing."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("r+b") as file:
        for access in (mmap.ACCESS_COPY, mmap.ACCESS_WRITE):
            with mmap.mmap(file.fileno(), 0, access=access) as mapped:
                one = pool.acquire(mapped, READ)
                assert one.mr.read(3, 1) == b"\1\2\3"
                one.release()
    kept = numpy.memmap(path, numpy.uint8, "c")
    pool.acquire(kept, READ).release()
    assert pool.stats.kept == 0, "numpy does not hold the mapping"


def test_memory_of_ctypes_is_not_kept(pool: Pool) -> None:
    for shown in (numpy.ctypeslib.as_array(ctypes.create_string_buffer(SIZE)),):
        pool.acquire(shown, NONE).release()
        assert pool.stats.kept == 0


def test_an_mr_is_used_as_it_is(device: Device, pool: Pool) -> None:
    with MR(pool.pd, SIZE, access=WRITE) as mr:
        one = pool.acquire(mr, WRITE)
        assert (one.mr, one.addr, one.nbytes) == (mr, mr.addr, SIZE)
        one.release()
        assert not mr.closed
        with pytest.raises(ValueError, match="access of this MR is"):
            pool.acquire(mr, READ)
    with MR(device.pd, SIZE) as other, pytest.raises(ValueError, match="of another PD"):
        pool.acquire(other, NONE)


def test_an_array_that_is_freed_ends_its_registration_in_any_thread(pool: Pool) -> None:
    """Often the next one has the same address."""
    freed: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def free() -> None:
        while (held := freed.get()) is not None:
            held.clear()

    thread = threading.Thread(target=free)
    thread.start()
    mrs: list[MR] = []
    for i in range(100):
        one = numpy.full(SIZE + i % 3, i, numpy.uint8)
        acquired = pool.acquire(one, WRITE)
        assert acquired.is_new
        assert acquired.mr.read(1) == bytes([i])
        mrs.append(acquired.mr)
        acquired.release()
        held = [one]
        del one
        freed.put(held)
        del held
    freed.put(None)
    thread.join(DEADLINE)
    assert all(mr.closed for mr in mrs)
    assert pool.stats == (100, 0, 0, 0, 0, 0)


def test_what_is_in_use_outlives_its_last_reference(pool: Pool) -> None:
    one = numpy.full(SIZE, 7, numpy.uint8)
    acquired = pool.acquire(one, WRITE)
    del one
    gc.collect()
    assert acquired.mr.read(3) == b"\7\7\7"
    acquired.release()
    assert acquired.mr.closed


def test_nothing_is_registered_that_was_not_wanted(pool: Pool) -> None:
    """A peer can read as much as is registered; it is bounded, and each byte is what it was."""
    size, most, rng = 1 << 20, 1 << 18, random.Random(3)
    pool.set_limits(most, 50)
    whole = numpy.frombuffer(bytearray(rng.randbytes(size)), numpy.uint8)
    wanted, base, used = numpy.zeros(size, bool), whole.ctypes.data, list[Any]()
    for _ in range(1000):
        at = rng.randrange(size - 5000)
        part = whole[at : at + rng.randrange(1, 5000)]
        wanted[at : at + len(part)] = True
        one = pool.acquire(part, READ)
        start = one.mr.addr - base
        assert wanted[start : start + one.mr.length].all()
        assert one.mr.read(one.nbytes, one.addr - one.mr.addr) == part.tobytes()
        used.append(one)
        if rng.random() < 0.6:
            used.pop(rng.randrange(len(used))).release()
        assert pool.stats.kept_bytes <= most
        assert pool.stats.kept <= 50
    for one in used:
        one.release()
    assert pool.stats.kept > 0
    assert pool.stats.registered < 900


# ---- threads and loops ------------------------------------------------------------------------


def test_threads_acquire_and_release_at_once(pool: Pool) -> None:
    """Arrays that all share, slices of them, arrays of their own, and other buffers."""
    shared = [numpy.full(SIZE, i, numpy.uint8) for i in range(4)]
    pool.set_limits(3 * SIZE, 5)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        rng, used = random.Random(seed), list[tuple[Any, int]]()
        try:
            for _ in range(300):
                i = rng.randrange(len(shared))
                at = rng.randrange(SIZE - 1)
                buffer: Any = rng.choice(
                    [shared[i], shared[i][at:], numpy.full(99, i), bytes([i] * 500)]
                )
                access = READ if rng.random() < 0.3 else NONE
                used.append((pool.acquire(buffer, access), i))
                while used and rng.random() < 0.55:
                    one, expected = used.pop(rng.randrange(len(used)))
                    assert one.mr.read(1, one.addr - one.mr.addr) == bytes([expected])
                    one.release()
            for one, _ in used:
                one.release()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    if failed:
        raise failed[0]
    stats = pool.stats
    assert stats.in_use == stats.in_use_bytes == 0
    assert stats.registered + stats.reused >= 1800
    assert stats.kept <= 5


class Kernel:
    """Pins large memory when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.threads: list[int] = []
        monkeypatch.setattr(_buffers, "register", self.register)

    def register(self, pd: PD, memory: Any, access: AccessFlags) -> MR:
        self.threads.append(threading.get_ident())
        assert self.may_go_on.wait(DEADLINE)
        return MR(pd, memory, access=access)


@pytest.mark.parametrize("as_array", [False, True])
def test_loops_and_threads_join_a_slow_registration(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, as_array: bool
) -> None:
    kernel = Kernel(monkeypatch)
    buffer: Any = numpy.zeros(SLOW + 5, numpy.uint8) if as_array else bytearray(SLOW + 5)
    got: list[Any] = []

    async def in_loop() -> None:
        got.append(await pool.acquire_async(buffer, WRITE))

    works = [lambda: asyncio.run(in_loop()), lambda: got.append(pool.acquire(buffer, WRITE))]
    threads = [threading.Thread(target=work) for work in works * 3]
    for thread in threads:
        thread.start()

    async def wait() -> None:
        def waiting() -> int:
            return sum(len(one.waiting) for one in pool._registering)

        await eventually(lambda: waiting() == len(threads))

    asyncio.run(asyncio.wait_for(wait(), DEADLINE))
    kernel.may_go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(got) == len(threads)
    assert len(kernel.threads) == 1
    assert len({id(one.mr) for one in got}) == 1
    assert pool.stats[:2] == (1, len(threads) - 1)
    assert sum(one.is_new for one in got) == 1
    for one in got:
        one.release()


def test_who_has_not_found_it_finds_it_when_it_has_been_registered_meanwhile(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, got = bytearray(SLOW), list[Any]()
    wanted = _buffers.wanted_of(buffer, WRITE)
    add = pool._add

    def add_meanwhile(*arguments: Any) -> Any:
        asks.start()  # neither in the list nor in the table
        region = add(*arguments)
        assert got == []
        return region

    def ask() -> None:
        pool.start(wanted, lambda one, _: got.append(one))

    asks = threading.Thread(target=ask)
    monkeypatch.setattr(pool, "_add", add_meanwhile)
    first = pool.acquire(buffer, WRITE)
    asks.join(DEADLINE)
    ask()
    assert [one.mr for one in got] == [first.mr] * 2
    assert pool.stats[:2] == (1, 2)
    for one in (first, *got):
        one.release()


def test_a_loop_goes_on_meanwhile_and_a_task_may_give_up(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, buffer = Kernel(monkeypatch), bytearray(SLOW)

    async def scenario() -> None:
        task = asyncio.ensure_future(pool.acquire_async(buffer, WRITE))
        await eventually(lambda: len(kernel.threads) == 1)
        assert kernel.threads[0] != threading.get_ident()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        kernel.may_go_on.set()
        await eventually(lambda: pool.stats[:] == (1, 0, 0, 0, 0, 0))

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))
    registered._pinning.wait_idle()  # a thread deregisters it
    buffer.append(1)


def test_a_loop_that_is_closed_meanwhile_leaves_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, buffer = Kernel(monkeypatch), bytearray(SLOW)

    async def scenario() -> None:
        pool.start(_buffers.wanted_of(buffer, WRITE), lambda one, _: got.append(one))
        await eventually(lambda: len(kernel.threads) == 1)

    got: list[Any] = []
    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))
    kernel.may_go_on.set()
    registered._pinning.wait_idle()
    (one,) = got
    one.release()


# ---- the end ----------------------------------------------------------------------------------


def test_a_forked_child_forgets_all(device: Device) -> None:
    pool, kept = device.pool(), numpy.zeros(SIZE)
    pool.acquire(kept, WRITE).release()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert Device.all() == []
            del kept  # which ends nothing of the parent's
            own = Device.of(device.name)
            assert own is not device
            one = own.pool().acquire(numpy.zeros(SIZE), WRITE)
            assert one.is_new
            one.release()
            own.leave()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    again = pool.acquire(kept, WRITE)
    assert not again.is_new
    again.release()


@OWN_GIL
def test_each_interpreter_has_a_device_of_its_own(ctx: Context, own_gil: bool) -> None:
    program(f"""
from cqnotify._registered import Device
from cqnotify import AccessFlags
mine = Device.of({ctx.name!r})
code = '''
from cqnotify._registered import Device
from cqnotify import AccessFlags
assert Device.all() == []
device = Device.of({ctx.name!r})
buffer = bytearray(4096)
one = device.pool().acquire(buffer, AccessFlags.LOCAL_WRITE)
assert one.is_new
one.release()
device.leave()
assert device.context.closed
'''
for i in [create({own_gil}) for _ in range(2)]:
    run(i, code)
    interpreters.destroy(i)
assert Device.all() == [mine] and not mine.context.closed
mine.leave()
""")


def test_the_limit_of_locked_memory_is_named_and_what_is_kept_gives_way(ctx: Context) -> None:
    limit = 1 << 20
    out = python(
        "-c",
        f"""
import numpy, os, resource
from cqnotify import AccessFlags, VerbsError, _attr_conversion
from cqnotify._registered import Device
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root is not bound by it
pool = Device.of({ctx.name!r}).pool()
kept = [numpy.zeros({limit} // 2 - 16384, numpy.uint8) for _ in range(3)]
for one in kept:
    pool.acquire(one, AccessFlags.LOCAL_WRITE).release()
print(pool.stats.registered, pool.stats.kept)
try:
    pool.acquire(bytearray(2 * {limit}), AccessFlags.LOCAL_WRITE)
except VerbsError as e:
    print(e)
print(pool.stats.kept)
""",
    )
    assert out.returncode == 0, out.stderr
    first, error, last = out.stdout.splitlines()
    assert first.split()[0] == "3"
    assert int(first.split()[1]) < 3
    assert f"{2 * limit} bytes were asked for, and this process may lock {limit} bytes" in error
    assert last == "0"
