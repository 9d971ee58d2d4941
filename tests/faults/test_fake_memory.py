# SPDX-License-Identifier: MIT
"""Memory as other devices have it: registered anew, on the device, in dma-bufs, of other processes.

No software device has these verbs, so the fake device does, see csrc/faults/fake_memory.c: messages
really go through the memory, and what the verbs were given is compared."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_world import World, asked, calls, core, drain, each_that_failed, inside, open_files
from support import outstanding, until

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    SGE,
    AccessFlags,
    BusyError,
    ClosedError,
    Context,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCExFlags,
    WorkCompletion,
    WROpcode,
)
from cqnotify.hw import DM, TD, AdviseMRAdvice, AdviseMRFlags, ParentDomain

REREG_INPUT, DONT_FORK_NEW, DO_FORK_OLD, COMMAND, COMMAND_AND_FORK = range(-1, -6, -1)
LOCAL_WRITE, REMOTE_WRITE = AccessFlags.LOCAL_WRITE, AccessFlags.REMOTE_WRITE


@pytest.fixture(autouse=True)
def able() -> Iterator[None]:
    core.use_fake_device(True)
    yield
    core.use_fake_device(False)


def pass_on(w: World, source: MR | SGE, target: MR | SGE, qp: QP | None = None) -> WorkCompletion:
    """A message from one to the other, through a QP that sends to itself."""
    qp = qp or w.qp
    drain(w)
    qp.post_recv(target, wr_id=1)
    qp.post_send(source, wr_id=2)
    sent: list[WorkCompletion] = []
    until(lambda: bool(sent.extend(w.cq.poll()) or sent), "sent")
    until(lambda: bool(w.ex.poll()), "received")
    return sent[0]


@contextmanager
def device_file() -> Iterator[int]:
    """The descriptor of a file that is taken for a dma-buf, of two pages."""
    fd = os.memfd_create("device")
    try:
        os.ftruncate(fd, 8192)
        yield fd
    finally:
        os.close(fd)


# ---- registering anew ------------------------------------------------------------------------


def test_an_mr_moves_to_another_buffer_and_lets_go_of_the_old_one(w: World) -> None:
    old, new = bytearray(b"old memory"), bytearray(b"new memory, and more")
    mr = MR(w.pd, old)
    mr.rereg(new)
    assert asked() == "flags 1, pd 0, 20 bytes, access 0"
    old.clear()
    with pytest.raises(BufferError):
        new.clear()
    assert (mr.length, mr.read(3), mr.access) == (20, b"new", LOCAL_WRITE)
    assert mr[2:4].addr == mr.addr + 2
    assert pass_on(w, mr[:10], w.mr[:64]).ok
    assert w.mr.read(10) == b"new memory"
    mr.rereg(4096)  # of its own
    new.clear()
    assert mr.read() == bytes(4096)
    mr.rereg(old := bytearray(b"again"))
    mr.close()
    old.clear()


def test_an_mr_moves_to_another_pd_and_keeps_no_other(w: World) -> None:
    with PD(w.ctx) as other:
        mr = MR(other, bytearray(b"across"))
        with pytest.raises(ValueError, match="MR belongs to another PD than the QP"):
            w.qp.post_send(mr)
        mr.rereg(pd=w.pd)
        assert asked() == "flags 2, pd 1, 0 bytes, access 0"
        assert mr.pd is w.pd
    assert pass_on(w, mr, w.mr[:64]).ok
    assert w.mr.read(6) == b"across"
    mr.rereg(pd=(domain := PD(w.ctx)))
    with pytest.raises(BusyError, match="still used by 1 MR"):
        domain.close()
    mr.close()
    domain.close()


def test_an_mr_gets_other_access(w: World) -> None:
    mr = MR(w.pd, 64, access=0)
    with pytest.raises(ValueError, match="LOCAL_WRITE"):
        w.qp.post_recv(mr)
    mr.rereg(access=LOCAL_WRITE)
    assert asked() == "flags 4, pd 0, 0 bytes, access 1"
    assert mr.access == LOCAL_WRITE
    w.mr.write(b"hello")
    assert pass_on(w, w.mr[:5], mr[:]).ok
    assert mr.read(5) == b"hello"
    mr.rereg(bytearray(16), pd=w.pd, access=LOCAL_WRITE | REMOTE_WRITE)
    assert asked() == "flags 7, pd 1, 16 bytes, access 3"
    sealed = MR(w.pd, b"read-only", access=0)
    with pytest.raises(TypeError, match="over a read-only buffer"):
        sealed.rereg(access=LOCAL_WRITE)
    with pytest.raises(TypeError, match="buffer must be writable"):
        mr.rereg(b"read-only")
    sealed.rereg(bytearray(b"may be written"), access=LOCAL_WRITE)


def test_what_was_made_of_an_mr_before_is_refused_and_never_reaches_the_device(w: World) -> None:
    """INLINE would copy from memory that may be gone."""
    mr = MR(w.pd, bytearray(64), access=LOCAL_WRITE | AccessFlags.MW_BIND)
    part, send, receive = mr[:8], SendWR(mr[:8]), RecvWR(mr[:8])
    inline = SendWR(mr[:8], send_flags=SendFlags.INLINE | SendFlags.SIGNALED)
    mr.rereg(bytearray(64))
    assert part == part.with_lkey(part.lkey) != mr[:8]
    for call in (
        lambda: w.qp.post_send(part),
        lambda: w.qp.post_send([mr[:8], part.with_lkey(mr.lkey)]),
        lambda: w.qp.post_send(part, send_flags=SendFlags.INLINE),
        lambda: w.qp.post_send(send),
        lambda: w.qp.post_send([send]),
        lambda: w.qp.post_send(inline),
        lambda: w.qp.post_recv(part),
        lambda: w.qp.post_recv(part, wr_id=1),
        lambda: w.qp.post_recv(receive),
        lambda: w.srq.post_recv(receive),
        lambda: w.qp.bind_mw(w.mw1, part, access=0),
        lambda: SendWR(part),
        lambda: w.pd.advise_mr(0, part),
    ):
        with pytest.raises(ValueError, match=r"by rereg\(\): slice that again"):
            call()
    assert outstanding(w.qp) == (0, 0)
    assert pass_on(w, mr[:8], w.mr[:64]).ok


def test_an_mr_that_is_in_use_stays_what_it_is(w: World) -> None:
    mr = MR(w.pd, bytearray(64), access=LOCAL_WRITE | AccessFlags.MW_BIND)
    w.qp.post_recv(mr[:8])
    for change in ({"buffer": 64}, {"pd": w.pd}, {"access": 0}):
        with pytest.raises(BusyError, match="1 work request in flight and 0 bound windows") as e:
            mr.rereg(**change)
        assert e.value.verb == "ibv_rereg_mr"
    w.mr.write(b"arrived")
    drain(w)
    w.qp.post_send(w.mr[:7])
    until(lambda: bool(w.ex.poll()), "received")
    until(lambda: bool(w.cq.poll_ids()), "sent")
    with memoryview(mr) as view:
        with pytest.raises(BufferError, match="this MR has memoryviews"):
            mr.rereg(64)
        mr.rereg(access=LOCAL_WRITE | AccessFlags.MW_BIND | REMOTE_WRITE)
        assert bytes(view[:7]) == b"arrived"
    w.qp.bind_mw(w.mw1, mr[:8], access=REMOTE_WRITE)
    until(lambda: bool(w.cq.poll_ids()), "bound")
    with pytest.raises(BusyError, match="0 work requests in flight and 1 bound window"):
        mr.rereg(64)
    w.mw1.close()
    mr.rereg(64)


@pytest.mark.parametrize("result", [REREG_INPUT, DONT_FORK_NEW])
def test_a_failure_that_leaves_the_mr_as_it_was(w: World, result: int) -> None:
    mr, new = MR(w.pd, bytearray(b"old")), bytearray(b"new one")
    before, part = (mr.addr, mr.length, mr.lkey, mr.access), mr[:]
    core.rereg_returns(result, errno.EINVAL)
    with pytest.raises(
        VerbsError, match=r"7 bytes at .*, access 0x3\. The MR stays as it was"
    ) as e:
        mr.rereg(new, pd=PD(w.ctx), access=LOCAL_WRITE | REMOTE_WRITE)
    assert (e.value.verb, e.value.errno) == ("ibv_rereg_mr", errno.EINVAL)
    new.clear()  # nothing holds it
    assert (mr.addr, mr.length, mr.lkey, mr.access) == before
    assert mr.pd is w.pd
    assert pass_on(w, part, w.mr[:64]).ok  # which was sliced before
    assert w.mr.read(3) == b"old"


def test_a_failure_after_which_the_mr_is_the_new_one(w: World) -> None:
    old, new = bytearray(b"old"), bytearray(b"new one")
    mr = MR(w.pd, old)
    core.rereg_returns(DO_FORK_OLD, errno.EINVAL)
    with pytest.raises(VerbsError, match="registered anew, but forked children stay without its"):
        mr.rereg(new)
    old.clear()
    assert pass_on(w, mr[:], w.mr[:64]).ok
    assert w.mr.read(7) == b"new one"


@pytest.mark.parametrize("result", [COMMAND, COMMAND_AND_FORK])
@pytest.mark.parametrize("change", ["buffer", "access"])
def test_a_failure_after_which_nobody_knows_closes_the_mr(
    w: World, result: int, change: str
) -> None:
    old, new = bytearray(b"old"), bytearray(b"new one")
    mr, handles = MR(w.pd, old), core.live_handles()
    core.rereg_returns(result, errno.EFAULT)
    with pytest.raises(VerbsError, match="Nothing is known of the MR any more, so it was closed"):
        mr.rereg(**({"buffer": new} if change == "buffer" else {"access": 0}))
    assert mr.closed
    assert core.live_handles() == handles - 1
    old.clear()
    new.clear()
    with pytest.raises(ClosedError):
        mr.rereg(64)


def test_an_mr_that_is_lost_and_can_not_be_closed_keeps_all_memory_that_the_device_may_use(
    w: World,
) -> None:
    old, new = bytearray(b"old"), bytearray(b"new one")
    mr, handles = MR(w.pd, old), core.live_handles()
    core.rereg_returns(COMMAND, errno.EINVAL)
    core.fail_call(2, errno.EBUSY)
    with pytest.raises(VerbsError, match="Nothing is known .* and it can't be closed now"):
        mr.rereg(new)
    assert core.failed() == "ibv_dereg_mr"
    for buffer in (old, new):
        with pytest.raises(BufferError):
            buffer.clear()
    assert not mr.closed
    mr.close()
    assert core.live_handles() == handles - 1
    old.clear()
    with pytest.raises(BufferError):
        new.clear()


def test_while_an_mr_is_registered_anew_nobody_posts_or_closes_it(w: World) -> None:
    mr = MR(w.pd, bytearray(b"old"))
    with inside("ibv_rereg_mr", lambda: mr.rereg(bytearray(b"new"))) as changer:
        part = None
        for call in (lambda: w.qp.post_send(mr), lambda: mr[:2], lambda: memoryview(mr)):
            with pytest.raises(ClosedError, match="being registered anew by another thread"):
                part = call()
        assert part is None
    changer.join()
    assert not mr.closed
    assert mr.read() == b"new"
    with inside("ibv_rereg_mr", lambda: mr.rereg(bytearray(8))) as changer:
        core.fail_call(0)
    changer.join()
    mr.close()


def test_a_buffer_that_closes_the_mr_while_it_is_taken_is_refused(w: World) -> None:
    class Closes:
        def __buffer__(self, flags: int) -> memoryview:
            mr.close()
            return memoryview(bytearray(8))

    mr = MR(w.pd, 64)
    with pytest.raises((ClosedError, TypeError)):  # the latter before Python 3.12
        mr.rereg(Closes())


def test_a_slice_is_of_the_memory_that_the_mr_has_when_its_ends_are_known(w: World) -> None:
    class Shrinks:
        def __index__(self) -> int:
            mr.rereg(bytearray(8))
            return 64

    mr = MR(w.pd, 64)
    with pytest.raises(IndexError, match="64 bytes at offset 0: this MR has 8 bytes"):
        mr[0 : Shrinks()]  # type: ignore[misc]
    assert mr[:].length == 8


def test_what_can_not_be_registered_anew_says_so(w: World) -> None:
    whole = MR.implicit(w.pd)
    at_0 = MR(w.pd, 4096, iova=0)
    dm = DM(w.ctx, 4096)
    for mr in (whole, whole.sub_mr(64), at_0, MR.null(w.pd), MR.from_dm(w.pd, dm)):
        with pytest.raises(ValueError, match="rereg.. is for an MR over memory of this process"):
            mr.rereg(64)
    with pytest.raises(TypeError, match=r"rereg\(\) needs buffer, pd or access"):
        w.mr.rereg()
    with pytest.raises(ValueError, match="need LOCAL_WRITE"):
        w.mr.rereg(access=REMOTE_WRITE)
    with pytest.raises(TypeError, match="pd must be a cqnotify.PD"):
        w.mr.rereg(pd=w.cq)  # type: ignore[arg-type]
    with Context(w.ctx.name) as other, pytest.raises(ValueError, match="pd belongs to another Con"):
        w.mr.rereg(pd=PD(other))


# ---- memory on the device --------------------------------------------------------------------


def test_device_memory_is_written_sent_and_read(w: World) -> None:
    assert w.ctx.query_device_ex().max_dm_size == 1 << 20
    dm = DM(w.ctx, 8192, log_align_req=6)
    assert asked() == "8192 bytes, log_align_req 6, comp_mask 0"
    assert (dm.length, dm.context, dm.handle, repr(dm)) == (
        *(8192, w.ctx, 77),
        f"<DM on {w.ctx.name}, 8192 bytes>",
    )
    assert dm.write(b"on the device", 4096) == 13
    assert (dm.read(13, 4096), dm.read(offset=8190)) == (b"on the device", b"\0\0")
    mr = MR.from_dm(w.pd, dm, 4000, offset=4096, access=LOCAL_WRITE | REMOTE_WRITE)
    assert asked() == "4000 bytes at 4096, access 35"  # and ZERO_BASED
    assert (mr.addr, mr.length, mr[8:12].addr, len(mr)) == (0, 4000, 8, 4000)
    assert pass_on(w, mr[:13], w.mr[:64]).ok
    assert w.mr.read(13) == b"on the device"
    w.mr.write(b"back again")
    assert pass_on(w, w.mr[:10], mr[100:200]).ok
    assert dm.read(10, 4096 + 100) == b"back again"
    with pytest.raises(BusyError, match="this DM is still used by 1 MR"):
        dm.close()
    assert MR.from_dm(w.pd, dm).length == 8192
    w.ctx.close()
    assert dm.closed
    assert mr.closed
    with pytest.raises(ClosedError):
        dm.read()


def test_device_memory_keeps_its_bounds(w: World) -> None:
    dm = DM(w.ctx, 64)
    for call in (lambda: dm.read(65), lambda: dm.read(1, 64), lambda: dm.write(bytes(9), 56)):
        with pytest.raises(IndexError, match="this DM has 64 bytes"):
            call()
    for call, words in (
        (lambda: DM(w.ctx, 0), "length is 0: it must be 1"),
        (lambda: DM(w.ctx, 8, log_align_req=64), "log_align_req is 64: it must be 0 to 63"),
        (lambda: MR.from_dm(w.pd, dm, 65), "length is 65: it must be 1 to 64"),
        (lambda: MR.from_dm(w.pd, dm, offset=64), "offset is 64: it must be 0 to 63"),
        (lambda: MR.from_dm(w.pd, dm, 60, offset=5), "length is 60: it must be 1 to 59"),
        (lambda: dm.read(-1), "length is -1"),
        (lambda: dm.write(b"", -1), "offset is -1"),
        (lambda: MR.from_dm(w.pd, dm, access=REMOTE_WRITE), "need LOCAL_WRITE"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with Context(w.ctx.name) as other, pytest.raises(ValueError, match="dm belongs to another Con"):
        MR.from_dm(PD(other), dm)
    with pytest.raises(TypeError, match="dm must be a cqnotify.hw.DM"):
        MR.from_dm(w.pd, w.mr)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["dm", "dmabuf", "null"])
def test_bytes_that_are_not_in_this_process_are_for_the_device_alone(w: World, kind: str) -> None:
    with device_file() as fd:
        mr = {
            "dm": lambda: MR.from_dm(w.pd, DM(w.ctx, 4096)),
            "dmabuf": lambda: MR.from_dmabuf(w.pd, fd, 4096),
            "null": lambda: MR.null(w.pd),
        }[kind]()
    for call in (mr.read, lambda: mr.write(b"x"), lambda: memoryview(mr)):
        with pytest.raises(ValueError, match="bytes of this MR are not in this process's memory"):
            call()
    with pytest.raises(ValueError, match="INLINE copies the bytes from this process"):
        w.qp.post_send(mr[:8], send_flags=SendFlags.INLINE)
    atomic = QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True)
    atomic.connect(atomic.address())
    with pytest.raises(ValueError, match="ATOMIC_WRITE copies the bytes from this process"):
        atomic.post_send(
            mr[:8], opcode=WROpcode.ATOMIC_WRITE, remote_addr=w.mr.addr, rkey=w.mr.rkey
        )
    assert outstanding(w.qp) == outstanding(atomic) == (0, 0)


def test_a_dmabuf_is_memory_by_its_descriptor(w: World) -> None:
    with device_file() as fd, os.fdopen(fd, "r+b", closefd=False) as file:
        os.pwrite(fd, b"in a dma-buf", 4096)
        mr = MR.from_dmabuf(w.pd, file, 4096, offset=4096, iova=1 << 20)
        assert asked() == "4096 bytes at 4096, iova 1048576, access 1"
        assert (mr.addr, mr.length, mr[5:9].addr) == (1 << 20, 4096, (1 << 20) + 5)
        assert pass_on(w, mr[:12], w.mr[:64]).ok
        assert w.mr.read(12) == b"in a dma-buf"
        w.mr.write(b"rewritten")
        assert pass_on(w, w.mr[:9], mr[:64]).ok
        assert os.pread(file.fileno(), 9, 4096) == b"rewritten"
        assert MR.from_dmabuf(w.pd, file.fileno(), 4096, offset=4096).addr == 4096
    for change, words in (
        ({"length": 0}, "length is 0"),
        ({"offset": -1}, "offset is -1"),
        ({"iova": 1 << 64}, "iova is"),
        ({"access": LOCAL_WRITE | AccessFlags.MW_BIND}, "access is 0x11: a dma-buf can have LOC"),
    ):
        arguments: dict[str, Any] = {"fd": 0, "length": 64} | change
        with pytest.raises(ValueError, match=words):
            MR.from_dmabuf(w.pd, **arguments)
    with pytest.raises(TypeError):
        MR.from_dmabuf(w.pd, "file", 64)  # type: ignore[arg-type]


def test_a_null_mr_has_as_many_bytes_as_a_slice_can_name(w: World) -> None:
    null = MR.null(w.pd)
    assert (null.addr, len(null), null.access) == (0, 2**63 - 1, LOCAL_WRITE)
    w.mr.write(b"dropped")
    assert pass_on(w, w.mr[:7], null[: w.mr.length]).ok
    with pytest.raises(ValueError, match="it can have at most"):
        null[:]
    with pytest.raises(TypeError, match="pd must be a cqnotify.PD"):
        MR.null(w.ctx)  # type: ignore[arg-type]


def test_advice_names_the_memory(w: World) -> None:
    w.pd.advise_mr(AdviseMRAdvice.PREFETCH_WRITE, [w.mr[:100], w.mr], flags=AdviseMRFlags.FLUSH)
    assert asked() == "advice 1, flags 1, 2 elements, first of 100 bytes"
    w.pd.advise_mr(7, w.mr[:8])
    assert asked() == "advice 7, flags 0, 1 elements, first of 8 bytes"
    with (
        PD(w.ctx) as other,
        pytest.raises(ValueError, match="MR belongs to another PD than the PD"),
    ):
        other.advise_mr(AdviseMRAdvice.PREFETCH, w.mr)
    with pytest.raises(TypeError, match="advice must be an AdviseMRAdvice such as"):
        w.pd.advise_mr("prefetch", w.mr)  # type: ignore[arg-type]
    with inside("ibv_advise_mr", lambda: w.pd.advise_mr(0, w.foreign), error=errno.EINVAL) as giver:
        pass
    with pytest.raises(VerbsError, match="advice is for MRs with access ON_DEMAND"):
        giver.join()


# ---- domains ---------------------------------------------------------------------------------


def test_a_parent_domain_stands_for_its_pd(w: World) -> None:
    td = TD(w.ctx)
    domain = ParentDomain(w.pd, td)
    assert asked() == "td 1, comp_mask 0"
    assert isinstance(domain, PD)
    assert (domain.pd, domain.td, domain.context) == (w.pd, td, w.ctx)
    assert domain.handle == w.pd.handle
    assert domain.pointer != w.pd.pointer
    assert repr(domain).startswith(f"<ParentDomain on {w.ctx.name}, handle ")
    qp = QP(domain, QPType.RC, send_cq=w.cq, recv_cq=w.ex)
    qp.connect(qp.address())
    mine = MR(domain, bytearray(b"of the domain"))
    assert (qp.pd, mine.pd) == (domain, domain)
    # Each with the QP of the other, and both in one request.
    assert pass_on(w, mine, w.mr[:64], qp).ok
    assert pass_on(w, mine, w.mr[:64]).ok
    assert w.mr.read(13) == b"of the domain"
    assert SendWR([mine[:1], w.mr[:1]]).wr_id == 0
    stranger = MR(PD(w.ctx), 64)
    with pytest.raises(ValueError, match="MR belongs to another PD than the QP"):
        qp.post_send(stranger)
    for used, words in ((w.pd, "ParentDomain"), (td, "1 ParentDomain"), (domain, "1 QP, 1 MR")):
        with pytest.raises(BusyError, match=words):
            used.close()
    w.ctx.close()
    assert all(thing.closed for thing in (td, domain, qp, mine))


def test_a_cq_of_a_parent_domain_is_an_extended_one(w: World) -> None:
    domain = ParentDomain(w.pd)
    assert asked() == "td 0, comp_mask 0"
    assert domain.td is None
    cq = CQ(w.ctx, 4, parent_domain=domain)  # rxe's provider takes it, and does nothing with it
    assert cq.wc_flags == WCExFlags(0x7F)  # the fields of a plain one
    own = CQ(w.ctx, 4, wc_flags=WCExFlags.BYTE_LEN, parent_domain=domain)
    assert own.wc_flags == WCExFlags.BYTE_LEN | WCExFlags.QP_NUM
    with pytest.raises(BusyError, match="this ParentDomain is still used by 2 CQs"):
        domain.close()
    cq.close()
    own.close()
    domain.close()
    with pytest.raises(ClosedError):
        CQ(w.ctx, 4, parent_domain=domain)
    with Context(w.ctx.name) as other, pytest.raises(ValueError, match="parent_domain belongs to"):
        CQ(w.ctx, 4, wc_flags=WCExFlags.BYTE_LEN, parent_domain=ParentDomain(PD(other)))
    with pytest.raises(TypeError, match="parent_domain must be a cqnotify.hw.ParentDomain"):
        CQ(w.ctx, 4, parent_domain=w.pd)  # type: ignore[arg-type]


def test_a_parent_domain_is_of_a_pd_and_a_td_of_one_context(w: World) -> None:
    domain = ParentDomain(w.pd)
    with pytest.raises(TypeError, match="pd must be a PD, and not itself a ParentDomain"):
        ParentDomain(domain)
    with pytest.raises(TypeError, match="td must be a cqnotify.hw.TD"):
        ParentDomain(w.pd, w.pd)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a ParentDomain is made of a PD"):
        ParentDomain.from_handle(w.ctx, 1)
    with Context(w.ctx.name) as other, pytest.raises(ValueError, match="td belongs to another Con"):
        ParentDomain(w.pd, TD(other))


# ---- of other processes ----------------------------------------------------------------------


def test_what_is_imported_is_forgotten_and_not_destroyed(w: World) -> None:
    files, handles = len(open_files()), core.live_handles()
    with Context.from_fd(w.ctx.cmd_fd) as context:
        assert isinstance(context, Context)
        assert context.name == w.ctx.name
        assert context.query_port() == w.ctx.query_port()
        pd = PD.from_handle(context, w.pd.handle)
        assert asked() == f"handle {w.pd.handle}"
        mr = MR.from_handle(pd, w.mr.handle, addr=w.mr.addr, access=w.mr.access)
        assert asked() == f"handle {w.mr.handle}"
        assert (mr.addr, mr.length, mr.access) == (w.mr.addr, 4096, w.mr.access)
        assert mr[8:16].addr == w.mr.addr + 8
        dm = DM.from_handle(context, 5, 4096)
        assert (asked(), dm.length, dm.handle) == ("handle 5", 4096, 5)
        with pytest.raises(ValueError, match="not in this process's memory"):
            mr.read()
        with pytest.raises(BusyError, match="still used by 1 MR"):
            pd.close()
        mr.close()
        dm.close()
        assert MR.from_handle(pd, 9).length == 4096
        assert len(MR.from_handle(pd, 2**32 - 1)) == 2**63 - 1  # as many as a slice can name
    assert (len(open_files()), core.live_handles()) == (files, handles)
    for call in (
        lambda: PD.from_handle(w.ctx, -1),
        lambda: MR.from_handle(w.pd, 1 << 32),
        lambda: DM.from_handle(w.ctx, 1 << 32, 1),
    ):
        with pytest.raises(ValueError, match="handle is"):
            call()
    with pytest.raises(ValueError, match="length is 0"):
        DM.from_handle(w.ctx, 1, 0)


@pytest.mark.parametrize("limit", [None, 256])
def test_an_imported_file_has_a_number_that_no_other_gets_when_it_is_closed(
    w: World, limit: int | None
) -> None:
    """The library closes it, and may do so before it fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        Context.from_fd(w.ctx.cmd_fd).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    _, _, arguments = next(call for call in calls() if call[0] == "ibv_import_device")
    number = int(arguments.decode().removeprefix("fd "))
    assert number >= 512 if limit is None else number == lowest


# ---- failures --------------------------------------------------------------------------------


def everything(w: World) -> None:
    dm, td = DM(w.ctx, 4096), TD(w.ctx)
    dm.write(b"x")
    dm.read(1)
    domain = ParentDomain(w.pd, td)
    mr = MR(domain, bytearray(8))
    mr.rereg(64)
    with device_file() as fd:
        foreign = [MR.from_dmabuf(w.pd, fd, 4096), MR.from_dm(w.pd, dm), MR.null(w.pd)]
    foreign.append(MR(w.pd, 4096, iova=0))
    w.pd.advise_mr(0, mr)
    w.made[0] = Context.from_fd(w.ctx.cmd_fd)  # to be closed in any case
    MR.from_handle(PD.from_handle(w.made[0], 1), 1)
    DM.from_handle(w.made[0], 1, 1)
    w.made[0].close()
    for thing in foreign:
        thing.close()
    for thing in (mr, domain, td, dm):  # (*foreign, ...) would leak a list in CPython
        thing.close()


CALLS = {
    *("ibv_alloc_dm", "ibv_free_dm", "ibv_memcpy_to_dm", "ibv_memcpy_from_dm", "ibv_reg_dm_mr"),
    *("ibv_alloc_td", "ibv_dealloc_td", "ibv_alloc_parent_domain", "ibv_dealloc_pd"),
    *("ibv_rereg_mr", "ibv_reg_dmabuf_mr", "ibv_alloc_null_mr", "ibv_reg_mr_iova2"),
    *("ibv_advise_mr", "ibv_import_device", "ibv_import_pd", "ibv_import_mr", "ibv_import_dm"),
}


@contextmanager
def nothing_leaks(name: str) -> Iterator[World]:
    w = World(name)
    w.made = [w.ctx]
    try:
        yield w
    finally:
        core.fail_call(0)
        core.fail_alloc(0)
        for thing in w.made:
            thing.close()
        w.close()


@pytest.mark.parametrize("what", ["call", "allocation"])
def test_each_call_and_each_allocation_fails_once(ctx: Context, what: str) -> None:
    def run(begin: Callable[[], None]) -> None:
        with nothing_leaks(ctx.name) as w:
            begin()
            everything(w)

    seen = each_that_failed(what, run)
    assert what == "allocation" or seen >= CALLS
