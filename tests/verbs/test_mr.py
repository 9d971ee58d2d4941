# SPDX-License-Identifier: MIT
import array
import errno
import gc
import mmap
import resource
import sys
import tempfile
import weakref
from typing import Any

import numpy
import pytest
from support import Endpoint, connect, kernel, on_iwarp, python, wait_one

from cqnotify import (
    MR,
    PD,
    SGE,
    AccessFlags,
    Context,
    QPType,
    SendFlags,
    VerbsError,
    WROpcode,
)


def test_own_memory_is_page_aligned_zeroed_and_of_the_length(pd: PD) -> None:
    mr = MR(pd, 5000)
    assert len(mr) == mr.length == 5000
    assert mr.addr % mmap.PAGESIZE == 0
    assert mr.read() == bytes(5000)
    assert mr.lkey != 0
    assert mr.access == AccessFlags.LOCAL_WRITE
    assert mr.pd is pd


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(b"0123456789"),
        lambda: array.array("B", b"0123456789"),
        lambda: memoryview(bytearray(b"xx0123456789xx"))[2:12],
    ],
    ids=["bytearray", "array", "memoryview"],
)
def test_a_buffer_is_registered_where_it_is(pd: PD, make: object) -> None:
    buffer = make()  # type: ignore[operator]
    mr = MR(pd, buffer)
    assert mr.read() == b"0123456789"
    mr.write(b"ab", 8)
    assert bytes(buffer) == b"01234567ab"


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_a_read_only_mmap_is_registered_or_refused_with_what_to_do(pd: PD, flags: int) -> None:
    with mmap.mmap(-1, 8192, flags | mmap.MAP_ANONYMOUS, mmap.PROT_READ) as m:
        if flags == mmap.MAP_SHARED and kernel() < (6, 2):
            with pytest.raises(VerbsError, match="map it with MAP_PRIVATE or writable") as e:
                MR(pd, m, access=0)
            assert e.value.errno == errno.EFAULT
            m.close()  # nothing holds it
            return
        mr = MR(pd, m, access=0)
        assert mr.read(4) == bytes(4)
        with pytest.raises(TypeError, match="read-only"):
            mr.write(b"x")
        mr.close()


def test_a_mapping_beyond_the_end_of_its_file_is_refused_with_what_to_do(pd: PD) -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as m:
            file.truncate(0)
            with pytest.raises(
                VerbsError, match="is it a mapping that is longer than its file"
            ) as e:
                MR(pd, m)
            assert e.value.errno == errno.EFAULT


def test_a_buffer_that_is_registered_can_not_be_resized_or_closed_before_the_mr(pd: PD) -> None:
    with mmap.mmap(-1, 8192) as m:
        mr = MR(pd, m)
        assert mr.length == 8192
        with pytest.raises(BufferError):
            m.close()
        mr.close()
    buffer = bytearray(100)
    mr = MR(pd, buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    mr.close()
    buffer.extend(b"more")


def test_read_only_memory_needs_access_0(pd: PD) -> None:
    with pytest.raises(TypeError, match="writable"):
        MR(pd, b"constant")  # type: ignore[arg-type]
    mr = MR(pd, b"constant", access=0)
    assert mr.read() == b"constant"
    with pytest.raises(TypeError, match="read-only"):
        mr.write(b"x")
    assert memoryview(mr).readonly


def test_relaxed_ordering_is_a_wish_that_any_device_takes(pd: PD) -> None:
    access = AccessFlags.LOCAL_WRITE | AccessFlags.RELAXED_ORDERING
    assert MR(pd, 64, access=access).access == access


def test_an_mr_at_another_address_is_named_by_that(ctx: Context, pd: PD) -> None:
    """The device counts from iova; the bytes stay where they are. siw knows no such thing."""
    if on_iwarp():
        with pytest.raises(VerbsError, match="not supported by this device: iova"):
            MR(pd, 4096, iova=0)
        return
    access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
    a, b = connect(*(Endpoint(ctx, QPType.RC) for _ in range(2)))
    with MR(a.pd, 4096, iova=0) as source, MR(b.pd, 8192, access=access, iova=1 << 40) as target:
        assert (source.addr, source[8:16].addr, target.addr) == (0, 8, 1 << 40)
        source.write(b"from offset 8", 8)
        a.qp.post_send(
            source[8:21],
            opcode=WROpcode.RDMA_WRITE,
            remote_addr=target.addr + 5000,
            rkey=target.rkey,
        )
        wait_one(a.scq).raise_for_status()
        assert bytes(memoryview(target)[5000:5013]) == target.read(13, 5000) == b"from offset 8"
        with pytest.raises(ValueError, match="INLINE copies the bytes from this process"):
            a.qp.post_send(source[:4], send_flags=SendFlags.INLINE)
        a.qp.post_send(
            memoryview(source)[8:12],
            send_flags=SendFlags.INLINE | SendFlags.SIGNALED,
            opcode=WROpcode.RDMA_WRITE,
            remote_addr=target.addr,
            rkey=target.rkey,
        )
        wait_one(a.scq).raise_for_status()
        assert target.read(4) == b"from"
    with pytest.raises(ValueError, match="iova is 1: its place in a page of 4096 bytes must"):
        MR(a.pd, 4096, iova=1)


def test_a_slice_is_an_sge_of_these_bytes(pd: PD) -> None:
    mr = MR(pd, 1000)
    for part, start, stop in [
        (mr[:], 0, 1000),
        (mr[10:20], 10, 20),
        (mr[990:], 990, 1000),
        (mr[:7], 0, 7),
        (mr[-5:], 995, 1000),
        (mr[-10:-4], 990, 996),
        (mr[1000:], 1000, 1000),
    ]:
        assert isinstance(part, SGE)
        assert part.mr is mr
        assert part.addr == mr.addr + start
        assert len(part) == part.length == stop - start
        assert part.lkey == mr.lkey


def test_with_lkey_is_the_same_memory_under_another_key(pd: PD) -> None:
    mr = MR(pd, 1000)
    part = mr[10:20]
    other = part.with_lkey(0xFFFFFFFF)
    assert (other.mr, other.addr, other.length) == (mr, part.addr, 10)
    assert (other.lkey, part.lkey) == (0xFFFFFFFF, mr.lkey)
    assert "lkey=0xffffffff" in repr(other)


@pytest.mark.parametrize(
    ("length", "offset"), [(11, 0), (1, 10), (5, 6), (0, 11), (1 << 64 - 1, 5)]
)
def test_read_and_write_keep_the_bounds(pd: PD, length: int, offset: int) -> None:
    mr = MR(pd, 10)
    with pytest.raises(IndexError, match="this MR has 10 bytes"):
        mr.read(length, offset)
    if length < 100:
        with pytest.raises(IndexError, match="this MR has 10 bytes"):
            mr.write(bytes(length), offset)


def test_read_and_write_copy(pd: PD) -> None:
    mr = MR(pd, 10)
    assert mr.write(b"abc", offset=4) == 3
    assert mr.read(3, 4) == b"abc"
    assert mr.read(offset=4) == b"abc\0\0\0"
    assert mr.read(0, 10) == b""
    with pytest.raises(IndexError, match="1 bytes at offset -1: this MR has 10 bytes"):
        mr.read(1, -1)
    with pytest.raises(TypeError, match="offset must be an integer, not str"):
        mr.read(1, "0")  # type: ignore[arg-type]


def test_a_memoryview_outlives_the_mr(pd: PD) -> None:
    mr = MR(pd, 10)
    view = memoryview(mr)
    mr.write(b"kept")
    mr.close()
    assert bytes(view[:4]) == b"kept"
    view[9] = 1
    view.release()


def test_a_view_keeps_the_users_buffer_pinned(pd: PD) -> None:
    buffer = bytearray(10)
    mr = MR(pd, buffer)
    view = memoryview(mr)
    mr.close()
    with pytest.raises(BufferError):
        buffer.clear()
    view.release()
    buffer.clear()


class Buffer(bytearray):
    """Can be referred to weakly."""

    mr: MR


def test_an_mr_keeps_its_buffer_alive_and_no_longer(pd: PD) -> None:
    buffer = Buffer(64)
    gone = weakref.ref(buffer)
    mr = MR(pd, buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    mr.close()
    gc.collect()
    assert gone() is None


def test_a_cycle_through_the_buffer_is_collected(pd: PD) -> None:
    buffer = Buffer(64)
    buffer.mr = MR(pd, buffer)
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None


def test_too_much_memory_for_the_limit_is_refused_with_the_limit(ctx: Context) -> None:
    """In a child that is nobody: root is above the limit."""
    code = (
        "import os, resource, cqnotify\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "with cqnotify.Context() as ctx:\n"
        "    pd = cqnotify.PD(ctx)\n"
        "    try: cqnotify.MR(pd, 1 << 20)\n"
        "    except cqnotify.VerbsError as e: print(e.errno, e.verb, e)\n"
        "    with cqnotify.MR(pd, 4096): print('small is fine')\n"
    )
    out = python("-c", code, check=True)
    first, second = out.stdout.splitlines()
    assert first.startswith("12 ibv_reg_mr"), out
    assert "1048576 bytes" in first
    assert "65536 bytes" in first
    assert "ulimit -l" in first
    assert second == "small is fine"
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != 65536


# ---- what has no bytes of its own -----------------------------------------------------------

WITH_OBJECTS = {
    "objects": numpy.array([object()] * 3),
    "strings": numpy.array(["a", None]),
    "a field": numpy.zeros(2, [("O", "i4"), ("b", "O")]),
    "a field beside a date": numpy.zeros(2, [("when", "M8[s]"), ("what", "O")]),
    "a memoryview": memoryview(numpy.array([object()])),
}


@pytest.mark.parametrize("what", WITH_OBJECTS)
def test_references_to_objects_are_refused(pd: PD, what: str) -> None:
    """What is read into such an array, or from it, would crash Python."""
    array: Any = WITH_OBJECTS[what]
    kind = type(array).__name__
    with pytest.raises(TypeError, match=f"buffer must have bytes of its own: this .*{kind} has"):
        MR(pd, array)
    with MR(pd, 64) as mr, pytest.raises(TypeError, match="data must have bytes of its own"):
        mr.write(array)


WITH_BYTES = {
    "dates": numpy.arange(4).astype("M8[s]"),
    "spans": numpy.arange(4).astype("m8[ms]"),
    "records with dates": numpy.zeros(3, [("when", "M8[s]"), ("much", "f8")]),
    "a field called O": numpy.zeros(3, [("O", "i4")]),
}
if sys.version_info < (3, 15):  # for which the package has no wheels yet
    import ml_dtypes

    for name in ("bfloat16", "float8_e4m3", "int4"):
        WITH_BYTES[name] = numpy.arange(4).astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("what", WITH_BYTES)
def test_arrays_of_any_other_type_are_registered(pd: PD, what: str) -> None:
    array: Any = WITH_BYTES[what]
    with MR(pd, array) as mr:
        assert mr.length == array.nbytes
        assert mr.read() == array.tobytes()
