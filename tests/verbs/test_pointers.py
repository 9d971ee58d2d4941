# SPDX-License-Identifier: MIT
"""The structs of libibverbs by their addresses, for calls by ctypes."""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Any

import pytest
import world
from support import take_all

from cqnotify import ClosedError, Context

verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)


def first(address: int) -> int | None:
    """The pointer that a struct begins with."""
    return ctypes.c_void_p.from_address(address).value


def test_each_object_has_the_address_of_its_struct_until_it_is_closed(ctx: Context) -> None:
    """All structs but that of the context begin with the context's address."""
    w: Any = world.World(ctx.name)
    names = ("pd", "mr", "channel", "cq", "qp", "srq", "ah", "mw")
    assert len({getattr(w, name).pointer for name in names}) == len(names)
    for name in names:
        assert first(getattr(w, name).pointer) == w.ctx.pointer, name
    context, things = w.ctx, [getattr(w, name) for name in (*names, "ctx")]
    take_all(w.ctx)
    w.close()
    assert context.closed
    for thing in things:
        with pytest.raises(ClosedError):
            thing.pointer  # noqa: B018


def test_a_function_of_the_library_takes_it(ctx: Context) -> None:
    device = first(ctx.pointer)
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    assert verbs.ibv_get_device_name(device).decode() == ctx.name

    verbs.ibv_query_pkey.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_int, ctypes.c_void_p]
    pkey = ctypes.c_uint16()
    result = verbs.ibv_query_pkey(ctx.pointer, 1, 0, ctypes.byref(pkey))
    if ctx.query_port().pkey_tbl_len:
        assert (result, int.from_bytes(bytes(pkey), "big")) == (0, ctx.query_pkey(0))


def test_cmd_fd_is_the_file_of_the_device(ctx: Context) -> None:
    with Context(ctx.name) as own:
        status = os.fstat(own.cmd_fd)
        assert stat.S_ISCHR(status.st_mode)
        assert os.readlink(f"/proc/self/fd/{own.cmd_fd}").startswith("/dev/infiniband/uverbs")
    with pytest.raises(ClosedError):
        own.cmd_fd  # noqa: B018


def test_a_file_that_is_no_device_is_no_context(ctx: Context) -> None:
    files = os.listdir("/proc/self/fd")
    with open(__file__) as file, pytest.raises(ValueError, match="it must be the cmd_fd of a Con"):
        Context.from_fd(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Context.from_fd(1 << 20)
    with pytest.raises(TypeError):
        Context.from_fd("3")  # type: ignore[arg-type]
    assert os.listdir("/proc/self/fd") == files
