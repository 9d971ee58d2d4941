# SPDX-License-Identifier: MIT
"""Exposing memory, and reading and writing it; both ends are this process, unless it says so."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import pickle
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy
import pytest
from memory_support import connection_to, connections, pattern, peer
from support import DEADLINE, eventually, kernel, sleeps

from cqnotify import MR, PD, AccessFlags, Context, VerbsError, memory
from cqnotify.memory import READ, WRITE, Descriptor, RevokedError, _transfer
from cqnotify.memory._connection import UNDER_WAY

DATA = pattern(10_000)
LARGE = 40 * 4096
ARRAYS: dict[str, Any] = {
    "floats": numpy.arange(1000.0),
    "matrix": numpy.arange(600, dtype="i2").reshape(20, 30),
    "by columns": numpy.asfortranarray(numpy.arange(600, dtype="i2").reshape(20, 30)),
    "dates": numpy.array(["2026-11-26", "1970-01-01"], "M8[D]"),
    "big-endian": numpy.arange(100, dtype=">i4"),
    "text": numpy.array(["plain", "text"]),
    "scalar": numpy.array(3.5),
    "bools": numpy.array([True, False, True]),
    "complex": numpy.arange(5) * 1j,
}


def sent(one: memory.Exposure) -> Descriptor:
    """The descriptor as a peer has it."""
    found = pickle.loads(pickle.dumps(one))
    assert type(found) is Descriptor
    return found


@pytest.mark.parametrize("name", ARRAYS)
async def test_an_array_arrives_as_it_was(name: str) -> None:
    with memory.expose(ARRAYS[name]) as one:
        got = await memory.get(sent(one))
    assert got.dtype == ARRAYS[name].dtype
    assert got.shape == ARRAYS[name].shape
    assert numpy.array_equal(got, ARRAYS[name])
    assert got.flags.f_contiguous == ARRAYS[name].flags.f_contiguous


async def test_an_array_of_another_packages_type() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    own = numpy.arange(100).astype(ml_dtypes.bfloat16)
    with memory.expose(own) as one:
        got = await memory.get(sent(one))
    assert got.dtype == own.dtype
    assert (got == own).all()


async def test_an_array_of_records_arrives_as_bytes() -> None:
    own = numpy.zeros(10, [("a", "i4"), ("b", "f8")])
    with memory.expose(own) as one:
        assert one.dtype is None
        assert bytes(await memory.get(sent(one))) == own.tobytes()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_any_buffer_arrives_as_bytes(kind: Any) -> None:
    with memory.expose(kind(DATA)) as one:
        got = await memory.get(sent(one))
    assert got == DATA
    assert not got.readonly


async def test_an_mmap_can_be_closed_as_soon_as_its_exposure_is() -> None:
    own = mmap.mmap(-1, 8192)
    own[:5] = b"hello"
    with memory.expose(own) as one:
        assert bytes(await memory.get(sent(one), length=5)) == b"hello"
        with pytest.raises(BufferError):
            own.close()
    own.close()


async def test_shared_memory() -> None:
    own = shared_memory.SharedMemory(create=True, size=len(DATA))
    own.buf[: len(DATA)] = DATA
    with memory.expose(own.buf) as one:
        assert bytes(await memory.get(sent(one), length=len(DATA))) == DATA
    own.close()
    own.unlink()


async def test_a_part_goes_into_a_part() -> None:
    into = bytearray(100)
    with memory.expose(DATA) as one:
        got = await memory.get(sent(one), memoryview(into)[10:20], offset=1000, length=10)
    assert bytes(got) == DATA[1000:1010]
    assert into == bytes(10) + DATA[1000:1010] + bytes(80)


async def test_into_is_returned() -> None:
    into = numpy.zeros(1000)
    with memory.expose(ARRAYS["floats"]) as one:
        assert await memory.get(sent(one), into) is into
        part = numpy.zeros(2000)
        await memory.get(sent(one), part)
    assert (into == ARRAYS["floats"]).all()
    assert (part[:1000] == into).all()
    assert not part[1000:].any()


async def test_put_writes_a_part() -> None:
    own = bytearray(100)
    with memory.expose(own, READ | WRITE) as one:
        await memory.put(sent(one), b"here", offset=50)
        assert bytes(await memory.get(sent(one), offset=50, length=4)) == b"here"
    assert own == bytes(50) + b"here" + bytes(46)


async def test_an_mr_of_the_program() -> None:
    mr = MR(memory.pd(), 4096, access=AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND)
    mr.write(b"hello")
    into = MR(memory.pd(), 4096)
    with memory.expose(mr) as one:
        assert await memory.get(sent(one), into) is into
    assert into.read(5) == b"hello"
    mr.close()
    into.close()


async def test_a_large_one_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transfer, "PIECE", 4096)
    own = pattern(LARGE + 1)
    with memory.expose(own) as one:
        getting = memory.get(sent(one))
        assert (getting.nbytes, getting.nbytes_done) == (len(own), 0)
        assert await getting == own
        assert getting.nbytes_done == len(own)


async def test_nothing_may_be_transferred() -> None:
    with memory.expose(DATA) as one:
        assert await memory.get(sent(one), offset=len(DATA)) == b""
        assert await memory.get(sent(one), length=0) == b""


# ---- descriptors ----------------------------------------------------------------------------


def test_a_descriptor_goes_through_json_and_pickle() -> None:
    with memory.expose(ARRAYS["matrix"], lifetime=1000) as one:
        by_json = Descriptor.from_dict(json.loads(json.dumps(one.to_dict())))
        assert by_json == sent(one) == one
        assert hash(by_json) == hash(one)
        assert (by_json.length, by_json.dtype, by_json.shape) == (1200, "<i2", (20, 30))
        assert by_json.expires == one.expires is not None
        assert str(one.token) not in repr(by_json)
        assert one.process not in repr(by_json)


def test_two_exposures_of_the_same_memory_differ() -> None:
    with memory.expose(DATA) as a, memory.expose(DATA) as b:
        assert a != b


def test_listen_says_where_peers_connect() -> None:
    hosts, port = memory.listen()
    with memory.expose(DATA) as one:
        assert (one.hosts, one.port) == (hosts, port)
    assert memory.listen() == (hosts, port)


# ---- what is refused ------------------------------------------------------------------------


async def test_what_was_not_granted_is_refused() -> None:
    with memory.expose(bytearray(DATA)) as one, memory.expose(bytearray(DATA), WRITE) as other:
        with pytest.raises(PermissionError, match="exposed for READ, not for WRITE"):
            memory.put(sent(one), b"x")
        with pytest.raises(PermissionError, match="exposed for WRITE, not for READ"):
            memory.get(sent(other))
        assert not connections()


async def test_parts_that_the_memory_does_not_have_are_refused() -> None:
    with memory.expose(bytearray(10), READ | WRITE) as one:
        for bad in ({"offset": -1}, {"offset": 11}, {"length": 11}, {"offset": 5, "length": 6}):
            with pytest.raises(ValueError, match="the memory has 10 bytes"):
                memory.get(sent(one), **bad)
        with pytest.raises(ValueError, match="the memory has 10 bytes"):
            memory.put(sent(one), bytes(6), offset=5)
        with pytest.raises(ValueError, match="10 bytes do not fit into 9"):
            memory.get(sent(one), bytearray(9))
        with pytest.raises(TypeError, match="into is a read-only bytes"):
            memory.get(sent(one), bytes(10))
        with pytest.raises(TypeError, match="give a Descriptor, not dict"):
            memory.get(one.to_dict())  # type: ignore[arg-type]


def test_memory_that_cannot_be_exposed_is_refused() -> None:
    with pytest.raises(TypeError, match="a read-only bytes cannot be exposed for WRITE"):
        memory.expose(DATA, WRITE)
    with pytest.raises(ValueError, match="0 bytes"):
        memory.expose(b"")
    with pytest.raises(TypeError, match="access must be"):
        memory.expose(DATA, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="references to Python objects"):
        memory.expose(numpy.array([None]))
    with pytest.raises(ValueError, match="MW_BIND"):
        memory.expose(MR(memory.pd(), 100))


async def test_the_wrong_process_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory.expose(DATA) as one:
        data = one.to_dict() | {"process": "0" * 32}
        with pytest.raises(memory.RefusedError, match="another process listens there now"):
            await memory.get(Descriptor.from_dict(data))


# ---- revoking -------------------------------------------------------------------------------


async def test_a_closed_exposure_gives_nothing() -> None:
    one = memory.expose(DATA)
    never, known = sent(one), sent(one)
    await memory.get(known)
    assert not one.closed
    one.close()
    one.close()
    assert one.closed
    for descriptor in (never, known):
        with pytest.raises(RevokedError, match="not exposed"):
            await memory.get(descriptor)


async def test_a_peer_learns_of_it_without_losing_the_connection() -> None:
    with peer() as other:
        a, b = other.expose(100), other.expose(100)
        await memory.get(a)
        await memory.get(b)
        conn = connection_to(a)
        other.tell("close", 0)
        await eventually(lambda: a.token not in conn.grants)
        with pytest.raises(RevokedError):
            await memory.get(a)
        assert await memory.get(b) == pattern(100)
        assert connection_to(a) is conn
        assert conn.error is None


async def test_others_go_on_when_one_breaks_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer has revoked one, and this end has not learned of it when it reads."""
    with memory.expose(DATA) as kept, memory.expose(pattern(LARGE)) as large:
        one = memory.expose(DATA)
        for exposure in (one, kept, large):
            await memory.get(sent(exposure))
        conn = connection_to(one)
        grant = conn.grants[one.token]
        one.close()
        await eventually(lambda: one.token not in conn.grants)
        conn.grants[one.token] = grant
        monkeypatch.setattr(_transfer, "PIECE", 4096)
        wanted = [memory.get(sent(exposure)) for exposure in (kept, large, one, kept, large)]
        results = await asyncio.gather(*wanted, return_exceptions=True)
        assert isinstance(results.pop(2), RevokedError)
        assert results == [DATA, pattern(LARGE)] * 2
        assert connection_to(kept) is not conn


async def test_an_exposure_expires() -> None:
    one = memory.expose(DATA, lifetime=0.05)
    descriptor = sent(one)
    await eventually(lambda: one.closed)
    with pytest.raises(RevokedError):
        await memory.get(descriptor)
    with memory.expose(DATA, lifetime=DEADLINE) as later:
        assert await memory.get(sent(later)) == DATA


async def test_it_is_revoked_in_the_midst_of_a_large_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transfer, "PIECE", 4096)
    own = memory.expose(pattern(100 * LARGE))
    getting = memory.get(sent(own))
    task = asyncio.ensure_future(getting)
    await eventually(lambda: getting.nbytes_done > 0)
    own.close()
    with pytest.raises(RevokedError):
        await task
    assert 0 < getting.nbytes_done < getting.nbytes
    assert (
        bytes(getting._result[: getting.nbytes_done]) == pattern(100 * LARGE)[: getting.nbytes_done]
    )


# ---- many -----------------------------------------------------------------------------------


async def test_ten_thousand_at_a_time_use_one_connection() -> None:
    expected = pattern(64)
    with peer() as other:
        one = other.expose(64)
        await memory.get(one)
        conn = connection_to(one)
        most = 0

        async def get() -> None:
            nonlocal most
            getting = memory.get(one, bytearray(64))
            most = max(most, conn.qp.outstanding_sends)
            assert await getting == expected

        await asyncio.gather(*(get() for _ in range(10_000)))
        assert connections() == 1
        assert most <= UNDER_WAY
        assert other.tell("connections") == 1


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_many_descriptors_are_opened_together(number: int) -> None:
    own = numpy.arange(number)
    exposed = [memory.expose(own[i : i + 1]) for i in range(number)]
    got = await asyncio.gather(*(memory.get(sent(one)) for one in exposed))
    assert [int(one[0]) for one in got] == list(range(number))
    for one in exposed:
        one.close()


# ---- sleeping -------------------------------------------------------------------------------


async def test_all_of_it_sleeps() -> None:
    with peer() as other:
        one = other.expose(100)
        await memory.get(one)
        assert await sleeps()


async def test_an_idle_connection_is_closed() -> None:
    memory.set_limits(idle=0.05)
    with peer() as other:
        one = other.expose(100)
        await memory.get(one)
        await eventually(lambda: not connections())
        memory.set_limits(idle=DEADLINE)
        await asyncio.gather(*(memory.get(one) for _ in range(100)))
        assert connections() == 1


async def test_a_connection_that_the_peer_uses_is_not_idle() -> None:
    memory.set_limits(idle=0.05)
    with peer() as other, memory.expose(DATA) as own:
        one = other.expose(100)
        await memory.get(one)
        for _ in range(20):
            assert bytes.fromhex(other.tell("get", own.to_dict())) == DATA
            await asyncio.sleep(0.01)
            assert await memory.get(one) == pattern(100)
        await eventually(lambda: not connections())


async def test_memory_that_may_only_be_read() -> None:
    """For windows the kernel pins pages for writing, which it may not do with these."""
    path = Path("/dev/shm") / f"cqnotify-{os.getpid()}"
    path.write_bytes(DATA)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as own:
            if kernel() < (6, 2):
                with pytest.raises(VerbsError, match="before Linux 6.2"):
                    memory.expose(own)
                return
            one = memory.expose(own)
            assert bytes(await memory.get(sent(one))) == DATA
            one.close()
            with pytest.raises(RevokedError):
                await memory.get(sent(one))
    finally:
        path.unlink()


async def test_parts_of_an_mr() -> None:
    mr = MR(memory.pd(), 4096)
    mr.write(DATA[:100], 1000)
    own = bytearray(10)
    with memory.expose(own, READ | WRITE) as one:
        await memory.put(sent(one), mr[1000:1010])
        assert own == DATA[:10]
        await memory.get(sent(one), mr[2000:2010])
    assert mr.read(10, 2000) == DATA[:10]
    mr.close()
    with memory.expose(DATA) as one, Context() as other:
        foreign = MR(PD(other), 10_000)
        with pytest.raises(ValueError, match="another PD"):
            await memory.get(sent(one), foreign)
