# SPDX-License-Identifier: MIT
"""Devices that can do less or more than rxe, kernels that copy no pinned pages, groups."""

from __future__ import annotations

import errno
import gc
import struct
from contextlib import closing
from typing import Any

import pytest
from fault_world import GROUP, World, core, drain, inside, receive
from support import DEADLINE, Waiter, outstanding, start, until

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AtomicCap,
    BusyError,
    ClosedError,
    Context,
    ForkStatus,
    PlacementType,
    QPType,
    VerbsError,
    WorkCompletion,
    WROpcode,
    fork_status,
)
from cqnotify.aio import AsyncCQ

# ---- a device that can do less ---------------------------------------------------------------


def test_a_device_without_atomics_refuses_them_in_words(ctx: Context) -> None:
    core.hide_features("atomics")
    with closing(World(ctx.name)) as w:
        assert w.ctx.query_device().atomic_cap is AtomicCap.NONE
        far: dict[str, Any] = {"remote_addr": w.mr.addr, "rkey": w.mr.rkey, "compare_add": 1}
        compare_and_swap = {"opcode": WROpcode.ATOMIC_CMP_AND_SWP, "swap": 2}
        for more in ({"opcode": WROpcode.ATOMIC_FETCH_AND_ADD}, compare_and_swap):
            with pytest.raises(VerbsError, match=f"{w.ctx.name} has no atomic operations") as e:
                w.qp.post_send(w.mr[0:8], **far, **more)
            assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_post_send")
            assert more["opcode"].name in str(e.value)
        assert outstanding(w.qp) == (0, 0)
        receive(w)  # everything else goes on


def test_a_device_without_srqs_refuses_them_in_words(ctx: Context) -> None:
    core.hide_features("SRQ")
    with Context(ctx.name) as other, PD(other) as pd:
        with pytest.raises(VerbsError, match=f"{ctx.name} has no shared receive queues") as e:
            SRQ(pd, 4)
        assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_create_srq")


def test_a_device_that_resizes_no_srq_says_so_and_arms_its_limit(ctx: Context) -> None:
    core.hide_features("SRQ resize")
    with Context(ctx.name) as other, SRQ(PD(other), 4) as srq:
        for arguments in ({"max_wr": 16}, {"max_wr": 16, "srq_limit": 8}):
            with pytest.raises(VerbsError, match="does not resize an SRQ") as e:
                srq.modify(**arguments)
            assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_modify_srq")
        assert srq.query().srq_limit == 0
        srq.modify(srq_limit=2)
        assert srq.query().srq_limit == 2


def test_what_a_closed_qp_had_received_stays_until_its_cq_can_be_polled(w: World) -> None:
    drain(w)
    w.srq.post_recv(w.mr[0:64], wr_id=1)
    w.sqp.post_send(w.mr[64:72])
    until(lambda: bool(w.cq.poll_ids()), "sent")
    core.fail_call(2, errno.EIO)
    w.sqp.close()
    assert core.failed() == "ibv_start_poll"
    assert w.srq.outstanding == 1
    with pytest.raises(BusyError):
        w.mr.close()
    assert w.ex.poll_ids() == [1]
    assert w.srq.outstanding == 0
    w.mr.close()
    assert w.ex.poll_ids() == []
    w.srq.close()


def test_all_that_a_closed_qp_has_received_keeps_its_wr_ids(w: World) -> None:
    """More than one poll of the device returns."""
    drain(w)
    n = 40
    cq = CQ(w.ctx, n)
    qp = QP(w.pd, QPType.RC, send_cq=w.ex, recv_cq=cq, max_recv_wr=n)
    qp.connect(qp.address())
    for i in range(n):
        qp.post_recv(None, wr_id=i)
        qp.post_send(None)
        until(lambda: bool(w.ex.poll()), "sent")
    core.before_call("ibv_poll_cq", lambda: core.fail_call(1, errno.EIO))
    qp.close()
    assert core.failed() == "ibv_poll_cq"
    assert [wr_id for _ in range(n // 4) for wr_id in cq.poll_ids(4)] == [*range(n)]


def leave_a_failure(w: World) -> None:
    """Of a QP that is gone by now, in a CQ that could not be polled when the QP was closed."""
    qp = w.new_qp()
    qp.connect(qp.address())
    w.cq.req_notify()
    write = {"opcode": WROpcode.RDMA_WRITE, "remote_addr": w.mr.addr, "rkey": w.mr.rkey ^ 0xFF00}
    qp.post_send(w.mr[0:8], wr_id=1, **write)
    assert w.channel.get_event(timeout=DEADLINE) is w.cq
    w.cq.ack()
    core.before_call("ibv_poll_cq", lambda: core.fail_call(1, errno.EIO))
    qp.close()
    assert core.failed() == "ibv_poll_cq"


async def test_what_fails_of_a_qp_that_is_gone_is_not_taken_for_that_of_a_later_one(
    w: World,
) -> None:
    """Which may be in the memory of the QP that is gone, and is queried only after a failure."""
    drain(w)
    leave_a_failure(w)
    qps = [w.new_qp() for _ in range(8)]
    queried: list[QP] = []
    async with AsyncCQ(w.ex) as acq:
        for round_ in range(2):
            for qp in qps:
                if round_ == 0:
                    qp.connect(qp.address())
                core.before_call("state", lambda qp=qp: queried.append(qp))
                await start(acq.recv(qp, w.mr[0:64]))
            assert queried == qps, "each once, before its first operation"
            if round_ == 0:
                assert [wc.ok for wc in w.cq.poll()] == [False]


# ---- groups of multicast ---------------------------------------------------------------------


def member(w: World) -> QP:
    qp = QP(w.pd, QPType.UD, send_cq=w.cq)
    qp.attach_mcast(GROUP)
    qp.attach_mcast("ff15::c0:2")
    return qp


@pytest.mark.parametrize(
    ("n", "call", "error"),
    [
        (1, "ibv_detach_mcast", errno.EBUSY),  # as the kernel says of a QP that is in a group
        (2, "ibv_detach_mcast", errno.EBUSY),
        (3, "ibv_destroy_qp", errno.EINVAL),
    ],
)
def test_a_qp_that_can_not_be_closed_is_in_its_groups_as_before(
    w: World, n: int, call: str, error: int
) -> None:
    qp = member(w)
    core.fail_call(n, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open") as e:
        qp.close()
    assert (e.value.errno, e.value.verb, core.failed()) == (error, "ibv_destroy_qp", call)
    assert not qp.closed
    qp.detach_mcast(GROUP)  # the kernel refuses it for a QP that is not in the group
    qp.attach_mcast(GROUP)
    qp.detach_mcast("ff15::c0:2")
    qp.close()


def test_what_could_not_be_left_is_not_forgotten(w: World) -> None:
    qp = member(w)
    core.fail_call(1, errno.EINVAL)
    with pytest.raises(VerbsError, match=f"group {GROUP}, lid 0"):
        qp.detach_mcast(GROUP)
    core.fail_call(1, errno.ENOMEM)
    with pytest.raises(VerbsError, match="room for .* groups"):
        qp.attach_mcast("ff15::3")
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast("ff15::3")
    qp.detach_mcast(GROUP)
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast(GROUP)


def test_a_context_with_a_qp_that_can_not_leave_its_groups_closes_at_the_second_try(
    w: World,
) -> None:
    qp = member(w)
    core.fail_call(1, errno.EIO)
    with pytest.raises(VerbsError, match="stays open"):
        w.ctx.close()
    assert not qp.closed
    w.ctx.close()
    assert qp.closed


def test_one_at_a_time_changes_the_groups(w: World) -> None:
    """While one thread is inside the kernel, another waits for its turn, and so does close()."""
    qp = member(w)
    with inside("ibv_detach_mcast", lambda: qp.detach_mcast(GROUP), error=errno.EINVAL) as leaver:
        joiner, closer = Waiter(lambda: qp.attach_mcast("ff15::3")), Waiter(qp.close)
        until(lambda: qp.closed, "it is being closed")
    with pytest.raises(VerbsError):
        leaver.join()
    with pytest.raises(ClosedError):
        joiner.join()
    closer.join()
    assert qp.closed


# ---- kernels that copy no pinned pages -----------------------------------------------------

NO_SUCH_FUNCTION = -1


@pytest.mark.parametrize("answer", [ForkStatus.UNNEEDED, ForkStatus.ENABLED])
def test_where_a_fork_is_safe_nothing_is_done_for_it(ctx: Context, answer: ForkStatus) -> None:
    core.pretend_fork(answer)
    with Context(ctx.name):
        assert fork_status() is answer
    assert core.pretend_fork(answer) == 0


@pytest.mark.parametrize("answer", [ForkStatus.DISABLED, NO_SUCH_FUNCTION])
def test_the_first_context_and_no_other_makes_a_fork_safe(ctx: Context, answer: int) -> None:
    core.pretend_fork(answer)
    assert fork_status() is ForkStatus.DISABLED
    for _ in range(2):
        with Context(ctx.name):
            assert fork_status() is ForkStatus.ENABLED
    assert core.pretend_fork(answer) == 1


@pytest.mark.parametrize("answer", [ForkStatus.DISABLED, NO_SUCH_FUNCTION])
def test_a_fork_that_can_not_be_made_safe_is_warned_of_once(ctx: Context, answer: int) -> None:
    core.pretend_fork(answer, errno.EINVAL)
    with pytest.warns(RuntimeWarning, match="ibv_fork_init: Invalid.*RDMAV_FORK_SAFE=1.*5.13"):
        Context(ctx.name).close()
    Context(ctx.name).close()  # a warning would be an error
    assert fork_status() is ForkStatus.DISABLED
    assert core.pretend_fork(answer) == 1


def test_a_warning_of_forks_that_is_an_error_opens_nothing(ctx: Context) -> None:
    handles = core.live_handles()
    core.pretend_fork(ForkStatus.DISABLED, errno.EINVAL)
    with pytest.raises(RuntimeWarning):
        Context(ctx.name)
    assert core.live_handles() == handles


# ---- a device that can do more ---------------------------------------------------------------


def test_memory_that_is_paged_on_demand_is_like_any_other(w: World) -> None:
    core.use_fake_device(True)
    buffer = bytearray(b"paged")
    with MR(w.pd, buffer, access=AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND) as mr:
        assert mr.access is AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
        drain(w)
        w.qp.post_recv(w.mr[0:64], wr_id=1)
        w.qp.post_send(mr[:], wr_id=2)
        until(lambda: bool(w.ex.poll()), "received")
        assert w.mr.read(5) == b"paged"
        until(lambda: bool(w.cq.poll()), "sent")


def test_an_implicit_mr_lends_its_keys_to_buffers(w: World) -> None:
    core.use_fake_device(True)
    handles = core.live_handles()
    whole = MR.implicit(w.pd, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    assert (whole.addr, whole.length) == (0, 2 ** (8 * struct.calcsize("P")) - 1)
    assert whole.access == (
        AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.ON_DEMAND
    )
    assert (whole.pd, "implicit" in repr(whole)) == (w.pd, True)
    buffer = bytearray(b"0123456789")
    part, own = whole.sub_mr(buffer), whole.sub_mr(4096)
    assert core.live_handles() == handles + 1
    for mr in (part, own):
        assert (mr.lkey, mr.rkey, mr.access) == (whole.lkey, whole.rkey, whole.access)
        assert mr.pd is w.pd
    assert (part.read(), part.length, own.length) == (b"0123456789", 10, 4096)
    assert part[2:4].addr == part.addr + 2
    assert part[2:4].lkey == whole.lkey
    with pytest.raises(BufferError):
        buffer.clear()
    with pytest.raises(BusyError, match="still used by 2 MRs"):
        whole.close()
    part.close()
    buffer.clear()
    own.close()
    whole.close()
    assert core.live_handles() == handles
    with pytest.raises(ClosedError):
        whole.sub_mr(buffer)


def test_a_part_of_an_implicit_mr_is_pinned_by_what_is_posted(w: World) -> None:
    core.use_fake_device(True)
    whole = MR.implicit(w.pd)
    part = whole.sub_mr(64)
    w.qp.post_recv(part, wr_id=1)
    with pytest.raises(BusyError, match="1 work request in flight"):
        part.close()
    with pytest.raises(BusyError, match="1 MR"):
        whole.close()
    w.ctx.close()
    assert part.closed
    assert whole.closed


def test_an_implicit_mr_has_no_bytes(w: World) -> None:
    core.use_fake_device(True)
    whole = MR.implicit(w.pd)
    for call in (
        whole.read,
        lambda: whole.write(b"x"),
        lambda: whole[0:1],
        lambda: memoryview(whole),
        lambda: len(whole),
        lambda: w.qp.post_send(whole),
    ):
        with pytest.raises(ValueError, match="an implicit MR has no bytes|slice it"):
            call()
    with pytest.raises(ValueError, match="for what MR.implicit\\(\\) returned"):
        w.mr.sub_mr(64)
    for bad in (0, bytearray(), -1):
        with pytest.raises(ValueError, match="at least 1|must be 1"):
            whole.sub_mr(bad)
    with pytest.raises(TypeError, match="buffer must be a buffer or a length"):
        whole.sub_mr("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need LOCAL_WRITE"):
        MR.implicit(w.pd, access=AccessFlags.REMOTE_WRITE)
    with pytest.raises(TypeError, match="pd must be a cqnotify.PD"):
        MR.implicit(w.ctx)  # type: ignore[arg-type]


def test_an_implicit_mr_that_is_forgotten_with_its_parts_is_closed(w: World) -> None:
    core.use_fake_device(True)
    handles = core.live_handles()
    whole = MR.implicit(w.pd)
    part = whole.sub_mr(64)
    del whole, part
    gc.collect()
    assert core.live_handles() == handles


def test_a_flush_that_is_refused_is_not_in_the_books(w: World) -> None:
    core.use_fake_device(True)
    try:
        qp = QP(w.pd, QPType.RC, send_cq=w.cq, flush=True)
    except VerbsError as e:
        pytest.skip(str(e))  # before rdma-core 47
    qp.connect(qp.address())
    core.fail_call(1, errno.ENOSPC)
    with pytest.raises(VerbsError, match="is full") as refused:
        qp.post_send(
            None,
            opcode=WROpcode.FLUSH,
            placement=PlacementType.GLOBAL,
            length=8,
            remote_addr=w.mr.addr,
            rkey=w.mr.rkey,
        )
    assert core.failed() == "ibv_wr_complete"
    assert (refused.value.verb, refused.value.errno) == ("ibv_wr_flush", errno.ENOMEM)
    assert outstanding(qp) == (0, 0)
    qp.close()


def test_an_atomic_write_that_is_refused_is_not_in_the_books(w: World) -> None:
    core.use_fake_device(True)
    qp = QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True)
    qp.connect(qp.address())
    request = {"opcode": WROpcode.ATOMIC_WRITE, "remote_addr": w.mr.addr, "rkey": w.mr.rkey}
    core.fail_call(1, errno.ENOSPC)
    with pytest.raises(VerbsError, match="is full") as e:
        qp.post_send(w.mr[0:8], **request)
    assert core.failed() == "ibv_wr_complete"
    assert (e.value.verb, e.value.errno) == ("ibv_wr_atomic_write", errno.ENOMEM)
    assert outstanding(qp) == (0, 0)
    qp.post_send(w.mr[0:8], **request)  # to what is closed to peers, or by what has no such thing
    failed: list[WorkCompletion] = []
    until(lambda: bool(failed.extend(w.cq.poll()) or failed), "it failed")
    assert not failed[0].ok
    assert outstanding(qp) == (0, 0)
    qp.close()
