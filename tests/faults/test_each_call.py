# SPDX-License-Identifier: MIT
"""Every call into libibverbs and the system fails once.

After each failure: the exception is the documented one, no handle of the device and no file is
leaked, nothing that was there is lost, and everything still works and closes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from fault_world import (
    TOLERATED,
    CauseUnknownError,
    World,
    core,
    fail_each,
    held_objects,
    open_files,
    script,
)

from cqnotify import Context, DeviceRemovedError, VerbsError, devices


def run(armed: Callable[[], None]) -> BaseException | None:
    """The script with a fault somewhere; what came of it. Everything is closed afterwards."""
    w = None
    try:
        armed()
        w = World(devices()[0].name)  # by default it would be any that can be opened
        script(w)
    except Exception as e:
        return e
    finally:
        core.fail_call(0)
        core.fail_alloc(0)
        if w is not None:
            w.close()
    return None


EACH_CALL = {
    *("ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port"),
    *("ibv_query_device_ex", "ibv_query_rt_values_ex", "ibv_query_pkey"),
    *("ibv_attach_mcast", "ibv_detach_mcast"),
    *("ibv_query_gid_ex", "ibv_query_gid_table"),
    *("ibv_alloc_pd", "ibv_create_comp_channel", "ibv_create_cq"),
    *("ibv_create_cq_ex", "ibv_reg_mr", "ibv_create_ah", "ibv_create_qp", "ibv_modify_qp"),
    "ibv_init_ah_from_wc",
    *("ibv_query_qp", "ibv_post_recv", "ibv_post_send", "ibv_req_notify_cq", "ibv_poll_cq"),
    *("ibv_post_recv when made", "ibv_post_send when made", "ibv_post_srq_recv when made"),
    *("ibv_alloc_mw", "ibv_bind_mw", "ibv_dealloc_mw"),
    *("ibv_start_poll", "ibv_get_cq_event", "ibv_get_async_event", "ibv_resize_cq"),
    *("ibv_modify_cq", "ibv_destroy_qp", "ibv_destroy_ah", "ibv_dereg_mr", "ibv_destroy_cq"),
    *("ibv_destroy_comp_channel", "ibv_dealloc_pd", "ibv_close_device"),
    *("ibv_create_srq", "ibv_modify_srq", "ibv_query_srq", "ibv_post_srq_recv"),
    *("ibv_destroy_srq",),
    *("eventfd", "epoll_create1", "epoll_ctl", "fcntl", "mmap", "ppoll"),
}


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO])
def test_each_call_fails_once(ctx: Context, error: int) -> None:
    run(lambda: None)
    handles, files, objects = core.live_handles(), open_files(), held_objects()

    def fail_nth(n: int, only: str = "") -> str | None:
        """The n-th call, or the n-th one of that name; None if there are fewer."""
        exception = run(lambda: core.fail_call(n, error, False, False, only))
        call: str | None = core.failed()
        if call is None:
            assert exception is None
            return None
        where = f"call {n}, {call}: {exception!r}"
        if exception is None:
            assert call in TOLERATED, where
        elif isinstance(exception, CauseUnknownError):
            assert exception.args == (call,), where
        elif call == "mmap":
            assert isinstance(exception, MemoryError), where
        elif call.startswith("ibv_"):
            assert isinstance(exception, VerbsError), where
            assert call.startswith(exception.verb), where
            assert exception.errno == (errno.EPROTO if call == "ibv_poll_cq" else error), where
            assert isinstance(exception, DeviceRemovedError) == (exception.errno == errno.EIO)
        else:
            assert isinstance(exception, OSError), where
            assert exception.errno == error, where
        del exception
        assert held_objects() == objects, where
        assert core.live_handles() == handles, where
        assert open_files() == files, where
        return call

    fail_each(fail_nth, EACH_CALL)
    assert run(lambda: None) is None
