# SPDX-License-Identifier: MIT
"""What libibverbs has and the device lacks is refused in the same words, before it is relied on."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from support import Endpoint, connect, is_rxe, wait_one

from cqnotify import CQ, MR, PD, QP, AccessFlags, Context, QPState, QPType, VerbsError, WCExFlags
from cqnotify.hw import DM, TD, AdviseMRAdvice, AdviseMRFlags, ODPGeneralCaps, ParentDomain


def refused(call: Callable[[], Any], verb: str, what: str) -> None:
    with pytest.raises(VerbsError, match=f"^.*{verb}: not supported by this device: .*{what}") as e:
        call()
    assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, verb)


@pytest.fixture
def rxe(ctx: Context) -> Context:
    if not is_rxe(ctx):
        pytest.skip(f"{ctx.name} is not Soft-RoCE, and may be able to do it")
    return ctx


@pytest.mark.parametrize("flag", [f for f in WCExFlags if f >= WCExFlags.COMPLETION_TIMESTAMP])
def test_fields_of_completions(rxe: Context, flag: WCExFlags) -> None:
    assert rxe.query_device_ex().completion_timestamp_mask == 0
    refused(lambda: CQ(rxe, 4, wc_flags=flag), "ibv_create_cq_ex", f"wc_flags {int(flag):#x}")
    assert CQ(rxe, 4, wc_flags=WCExFlags.BYTE_LEN).wc_flags == WCExFlags.BYTE_LEN | WCExFlags.QP_NUM


def test_the_devices_clock(rxe: Context) -> None:
    assert rxe.query_device_ex().hca_core_clock == 0
    refused(rxe.query_rt_values, "ibv_query_rt_values_ex", "clock")


def test_moderation(rxe: Context, cq: CQ) -> None:
    assert rxe.query_device_ex().cq_mod_caps == (0, 0)
    refused(lambda: cq.modify(4, 10), "ibv_modify_cq", "moderation of events")
    with pytest.raises(ValueError, match="cq_count is 65536: it must be 0 to 65535"):
        cq.modify(65536, 0)
    with pytest.raises(ValueError, match="cq_period is -1"):
        cq.modify(1, -1)


def test_a_rate_limit(rxe: Context) -> None:
    a, _ = connect(Endpoint(rxe, QPType.RC), Endpoint(rxe, QPType.RC))
    assert rxe.query_device_ex().packet_pacing_caps.supported_qpts == 0
    refused(lambda: a.qp.modify(rate_limit=1000), "ibv_modify_qp", "rate_limit")
    assert a.qp.state is QPState.RTS


def test_paging_on_demand(ctx: Context) -> None:
    """rxe has it from Linux 6.15 on."""
    caps = ctx.query_device_ex().odp_caps
    access = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
    if caps.general_caps & ODPGeneralCaps.SUPPORT:
        a, b = connect(*(Endpoint(ctx, QPType.RC, access=access) for _ in range(2)))
        b.qp.post_recv(b.mr[:64])
        a.mr.write(b"paged")
        a.qp.post_send(a.mr[:5])
        wait_one(b.rcq)
        assert b.mr.read(5) == b"paged"
    else:
        assert set(caps.per_transport_caps) == {0}
        refused(lambda: MR(PD(ctx), 4096, access=access), "ibv_reg_mr", "on-demand paging")


def test_paging_of_all_memory_on_demand(ctx: Context) -> None:
    if ctx.query_device_ex().odp_caps.general_caps & ODPGeneralCaps.SUPPORT_IMPLICIT:
        a, b = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))
        b.qp.post_recv(b.mr[:64])
        a.qp.post_send(MR.implicit(a.pd).sub_mr(bytearray(b"anywhere"))[:])
        wait_one(b.rcq)
        assert b.mr.read(8) == b"anywhere"
    else:
        refused(lambda: MR.implicit(PD(ctx)), "ibv_reg_mr", "implicit on-demand paging")


SOFTWARE = [
    ("ibv_rereg_mr", "The MR stays as it was", lambda c, pd, mr: mr.rereg(access=0)),
    ("ibv_rereg_mr", "8192 bytes at .* stays as it was", lambda c, pd, mr: mr.rereg(8192)),
    ("ibv_rereg_mr", "stays as it was", lambda c, pd, mr: mr.rereg(pd=PD(c))),
    ("ibv_alloc_dm", "64 bytes of device memory.*max_dm_size", lambda c, pd, mr: DM(c, 64)),
    ("ibv_alloc_null_mr", "null MRs", lambda c, pd, mr: MR.null(pd)),
    ("ibv_alloc_td", "thread domains", lambda c, pd, mr: TD(c)),
    ("ibv_alloc_parent_domain", "parent domains", lambda c, pd, mr: ParentDomain(pd)),
    ("ibv_import_pd", "handle 5", lambda c, pd, mr: PD.from_handle(c, 5)),
    ("ibv_import_mr", "handle 6", lambda c, pd, mr: MR.from_handle(pd, 6)),
    ("ibv_import_dm", "handle 7", lambda c, pd, mr: DM.from_handle(c, 7, 4096)),
    ("ibv_import_device", "only some providers", lambda c, pd, mr: Context.from_fd(c.cmd_fd)),
]


@pytest.mark.parametrize(("verb", "what", "call"), SOFTWARE)
def test_a_verb_of_other_devices_is_refused_and_nothing_is_left_of_it(
    ctx: Context, verb: str, what: str, call: Callable[[Context, PD, MR], object]
) -> None:
    """By rxe and siw alike: their providers have none of these."""
    with Context(ctx.name) as own, PD(own) as pd, MR(pd, 4096) as mr:
        before = (mr.addr, mr.length, mr.lkey, mr.access, mr.pd)
        files = os.listdir("/proc/self/fd")
        refused(lambda: call(own, pd, mr), verb, what)
        assert os.listdir("/proc/self/fd") == files
        assert (mr.addr, mr.length, mr.lkey, mr.access, mr.pd) == before
        mr.write(b"as before")


def test_a_dmabuf(pd: PD) -> None:
    """The fd is a file's: who takes dma-bufs says that it is none."""
    with tempfile.TemporaryFile() as file:
        refused(lambda: MR.from_dmabuf(pd, file, 4096), "ibv_reg_dmabuf_mr", "4096 bytes at offset")


def test_advice_about_memory(ctx: Context, pd: PD) -> None:
    """The provider of rdma-core 44 takes none; from 59 on it passes advice on to rxe."""
    with MR(pd, 8192) as mr, pytest.raises(VerbsError, match="4096 bytes in 1 element") as e:
        pd.advise_mr(AdviseMRAdvice.PREFETCH, mr[4096:], flags=AdviseMRFlags.FLUSH)
    assert e.value.verb == "ibv_advise_mr"
    assert e.value.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.EFAULT)  # it is not paged
    with pytest.raises(ValueError, match="sg is empty"):
        pd.advise_mr(AdviseMRAdvice.PREFETCH, [])


IMPORT = """
import socket, sys
from cqnotify import MR, PD, Context, VerbsError

_, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 1)
try:
    with Context.from_fd(fds[0]) as ctx:
        pd = PD.from_handle(ctx, int(sys.argv[2]))
        print(MR.from_handle(pd, int(sys.argv[3])).lkey)
except VerbsError as e:
    print(e)
"""


def test_a_context_of_another_process(ctx: Context) -> None:
    with Context(ctx.name) as own, PD(own) as pd, MR(pd, 4096) as mr:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-c", IMPORT, str(theirs.fileno()), str(pd.handle)]
            child = subprocess.Popen(
                [*command, str(mr.handle)],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
            socket.send_fds(ours, [b"1"], [own.cmd_fd])
            printed = child.communicate(timeout=60)[0]
        assert child.returncode == 0
        if "ibv_import_device: not supported by this device" not in printed:
            assert int(printed) == mr.lkey
        # What belongs to this process is as before.
        MR(pd, 64).close()


def test_an_access_flag_that_the_device_does_not_know_is_hinted_at(pd: PD) -> None:
    with pytest.raises(VerbsError, match="access 0x40001: does the device know all these") as e:
        MR(pd, 4096, access=AccessFlags.LOCAL_WRITE | 0x40000)
    assert e.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)


def test_after_a_refusal_everything_goes_on(rxe: Context) -> None:
    a, b = connect(Endpoint(rxe, QPType.RC), Endpoint(rxe, QPType.RC))
    for call in (
        lambda: a.rcq.modify(1, 1),
        lambda: a.qp.modify(rate_limit=1),
        lambda: QP(a.pd, QPType.XRC_SEND, send_cq=a.scq),
        rxe.query_rt_values,
    ):
        with pytest.raises(VerbsError, match="not supported by this device"):
            call()
    b.qp.post_recv(b.mr[:64])
    a.qp.post_send(a.mr[:8])
    assert wait_one(b.rcq).byte_len == 8
