# SPDX-License-Identifier: MIT
"""Failures whose consequences are to be told apart: closing, posting, polling, sending."""

from __future__ import annotations

import errno
import gc
import select
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from fault_world import (
    World,
    arrived,
    bind,
    core,
    drain,
    emptied,
    event_pending,
    inside,
    receive,
    receive_shared,
    report_pending,
    starves,
)
from support import (
    DEADLINE,
    FREE_THREADED,
    SPIN,
    Waiter,
    outstanding,
    unraisables,
    until,
    wait_completions,
    waiting,
)

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AsyncEventType,
    ClosedError,
    CompletionChannel,
    Context,
    DeviceRemovedError,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
    WROpcode,
    devices,
)

# ---- particular failures -----------------------------------------------------------------


class Failure(NamedTuple):
    verb: str
    fault: tuple[Any, ...]  # for fail_call(): which call it is, the errno, and how that is told
    call: Callable[[World], Any]
    match: str = "Errno"  # what the exception says


POSTS: dict[str, Callable[[World], None]] = {
    "ibv_post_send": lambda w: w.qp.post_send(w.mr[0:8]),
    "ibv_post_recv": lambda w: w.qp.post_recv(w.mr),
    "ibv_post_srq_recv": lambda w: w.srq.post_recv(w.mr),
}
PAGED = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
NONE, FEW, NO_MEMORY = (1, errno.EOPNOTSUPP), (1, errno.ENOMEM), (2, errno.ENOMEM)
FAILURES = [
    Failure("ibv_modify_srq", NO_MEMORY, lambda w: SRQ(w.pd, 4, srq_limit=2), "srq_limit 2"),
    Failure("ibv_alloc_mw", NONE, lambda w: MW(w.pd), "of type 1 are not supported by {name}"),
    Failure("ibv_alloc_mw", FEW, lambda w: MW(w.pd), "of type 1: {name} has at most"),
    Failure("ibv_query_device_ex", (1, errno.EINVAL), lambda w: MR.implicit(w.pd)),
    Failure(
        "ibv_reg_mr",  # by a device that has said it can
        (2, errno.EOPNOTSUPP),
        lambda w: MR(w.pd, bytearray(64), access=PAGED),
        "not supported by this device: .*access 0x41",
    ),
    *(
        Failure(verb, fault, lambda w: QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True))
        for verb, fault in (("ibv_query_device_ex", FEW), ("ibv_create_qp_ex", NO_MEMORY))
    ),
    Failure(
        "ibv_create_qp_ex",  # by the provider of an older rdma-core
        (2, errno.EOPNOTSUPP),
        lambda w: QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True),
        "atomic_write: {name} has it, but its provider",
    ),
    Failure(
        "ibv_create_qp_ex",
        (2, errno.EOPNOTSUPP),
        lambda w: QP(w.pd, QPType.RC, send_cq=w.cq, flush=True),
        "flush: {name} has it, but its provider",
    ),
    Failure("ibv_query_device_ex", FEW, lambda w: QP(w.pd, QPType.RC, send_cq=w.cq, flush=True)),
    Failure(
        "ibv_bind_mw",  # as older ones of rxe
        (1, -errno.ENOMEM),
        lambda w: w.qp.bind_mw(w.mw1, w.mr[0:64], access=AccessFlags.REMOTE_READ),
        "is full",
    ),
    # As libsiw tells errors: negated, or as -1 with the errno in its place.
    *(Failure(verb, (1, -errno.ENOMEM), POSTS[verb], "is full") for verb in POSTS),
    *(Failure(verb, (1, errno.ENOMEM, False, True), POSTS[verb], "is full") for verb in POSTS),
    Failure(
        "ibv_resize_cq",
        (1, -errno.EOPNOTSUPP),
        lambda w: w.cq.resize(32),
        "not supported by this device",
    ),
    # As the kernel refuses what the limit of a cgroup forbids.
    Failure("ibv_alloc_pd", (1, errno.EAGAIN), lambda w: PD(w.ctx), r"rdma\.max of an rdma cgroup"),
    Failure(
        "ibv_create_qp",
        (1, errno.EAGAIN),
        lambda w: QP(w.pd, QPType.RC, send_cq=w.cq),
        r"rdma\.max of an rdma cgroup\): max_send_wr=.* max_inline_data=\d+$",
    ),
    Failure(
        "ibv_create_srq",
        (1, errno.EAGAIN),
        lambda w: SRQ(w.pd, 4),
        r"rdma\.max of an rdma cgroup\): max_wr=4, max_sge=1: close others",
    ),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.verb)
def test_what_fails_is_told_in_words_and_leaves_nothing_behind(w: World, failure: Failure) -> None:
    core.use_fake_device(True)
    handles, posted = core.live_handles(), (outstanding(w.qp), w.srq.outstanding)
    core.fail_call(*failure.fault)
    with pytest.raises(VerbsError, match=failure.match.format(name=w.ctx.name)) as e:
        failure.call(w)
    assert e.value.verb == core.failed() == failure.verb
    assert e.value.errno == abs(failure.fault[1])
    assert core.live_handles() == handles
    assert (outstanding(w.qp), w.srq.outstanding) == posted


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("call", [devices, Context], ids=["devices", "Context"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errno.EMFILE, "this process has reached its limit, ulimit -n): looking for devices"),
        (errno.ENFILE, "its limit is sysctl fs.file-max): looking for devices takes 4 free"),
        (errno.ENOMEM, "Cannot allocate memory: /sys/class/infiniband_verbs"),
    ],
    ids=["EMFILE", "ENFILE", "ENOMEM"],
)
def test_a_lack_of_files_or_memory_is_told_by_its_name(
    call: Callable[[], object], error: int, text: str
) -> None:
    for n in range(1, 5):  # as many as it makes sure of
        core.fail_call(n, error)
        with pytest.raises(VerbsError) as e:
            call()
        assert core.failed() == "eventfd"
        assert (e.value.errno, e.value.verb) == (error, "ibv_get_device_list")
        assert text in str(e.value)


@pytest.mark.parametrize(
    "kind",
    ["pd", "channel", "cq", "ex", "mr", "foreign", "srq", "sqp", "qp", "ah", "mw", "ctx"],
)
def test_what_cannot_be_destroyed_stays_open_and_usable(w: World, kind: str) -> None:
    drain(w)
    thing = getattr(w, kind)
    qps = ("sqp", "srq", "qp")
    for name in (*qps, "mw1", "mw", "ah", "foreign", "mr", "ex", "cq", "channel", "pd", "ctx"):
        if name == kind:
            break
        getattr(w, name).close()
    core.fail_call(1, errno.EINVAL)
    with pytest.raises(VerbsError, match=f"this {type(thing).__name__} stays open") as e:
        thing.close()
    assert e.value.errno == errno.EINVAL
    assert core.failed() == e.value.verb
    assert not thing.closed
    if kind == "qp":
        receive(w)
    if kind == "sqp":
        receive_shared(w)
    thing.close()
    assert thing.closed


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize("n", [1, 5])
def test_what_a_device_keeps_that_it_says_failed_stays_alive(w: World, kind: str, n: int) -> None:
    """rxe does so where only the last step of a post fails, and may send it later."""
    emptied(w)
    mr = MR(w.pd, 64)
    wrs: Any = [SendWR(mr[0:8]) if kind == "send" else RecvWR(mr[0:8]) for _ in range(n)]
    post: Any = w.qp.post_send if kind == "send" else w.qp.post_recv
    core.fail_call(2, errno.EINVAL)
    with pytest.raises(VerbsError, match="it may still be carried out") as e:
        post(wrs if n > 1 else wrs[0])
    assert core.failed() == f"ibv_post_{kind} when made"
    assert (e.value.posted, e.value.bad_wr) == (n, None)
    assert sum(outstanding(w.qp)) == n
    with pytest.raises(VerbsError, match=f"needed by {n} work request"):
        mr.close()
    w.qp.modify(qp_state=QPState.RESET)
    mr.close()


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_list_is_one_call(w: World, kind: str) -> None:
    emptied(w)
    wrs: Any = [SendWR() if kind == "send" else RecvWR() for _ in range(10)]
    post: Any = w.qp.post_send if kind == "send" else w.qp.post_recv
    core.fail_call(3, errno.EINVAL)  # each call is asked for twice: before it, and when made
    post(wrs)
    assert core.failed() is None
    with pytest.raises(VerbsError) as e:
        post(wrs[3])
    assert core.failed() == f"ibv_post_{kind}"
    assert (e.value.posted, e.value.bad_wr) == (0, wrs[3])
    assert sum(outstanding(w.qp)) == 10


def finish(w: World) -> dict[int, int]:
    """The wr_ids of what completed last on the two CQs, until nothing is in flight."""
    got: dict[int, int] = {}

    def is_over() -> bool:
        for cq in (w.cq, w.ex):
            for wr_id in cq.poll_ids():
                got[wr_id] = got.get(wr_id, 0) + 1
        return (outstanding(w.qp), outstanding(w.sqp), w.srq.outstanding) == ((0, 0), (0, 0), 0)

    until(is_over, "all completions")
    return got


@pytest.mark.parametrize("n", [1, 3])
def test_what_was_refused_is_none_of_what_is_posted_next(w: World, n: int) -> None:
    emptied(w)
    for post in (w.qp.post_recv, w.srq.post_recv, w.qp.post_send):
        make: Any = SendWR if post == w.qp.post_send else RecvWR
        refused = [make(w.mr[0:8], wr_id=90) for _ in range(n)]
        core.fail_call(1, errno.ENOMEM)
        with pytest.raises(VerbsError) as e:
            post(refused if n > 1 else refused[0])
        assert (e.value.posted, e.value.bad_wr) == (0, refused[0])
    assert (outstanding(w.qp), w.srq.outstanding) == ((0, 0), 0)
    for wr_id in (1, 2):
        w.qp.post_recv(w.mr[0:8], wr_id=wr_id)
        w.srq.post_recv(w.mr[0:8], wr_id=wr_id + 2)
    for wr_id in (5, 6):
        w.qp.post_send(w.mr[8:16], wr_id=wr_id)
        w.sqp.post_send(w.mr[8:16], wr_id=wr_id + 2)
    assert finish(w) == dict.fromkeys(range(1, 9), 1)


@pytest.mark.parametrize("in_a_list", [False, True])
@pytest.mark.parametrize("kind", ["send", "recv", "srq"])
def test_what_was_refused_and_completes_all_the_same_is_none_of_what_is_posted_next(
    w: World, kind: str, in_a_list: bool
) -> None:
    """Some devices keep what they have refused."""
    emptied(w)
    qp = w.sqp if kind == "srq" else w.qp
    post_recv = w.srq.post_recv if kind == "srq" else w.qp.post_recv
    post: Any = qp.post_send if kind == "send" else post_recv
    cq = w.cq if kind == "send" else w.ex

    def posted() -> int:
        return w.srq.outstanding if kind == "srq" else outstanding(qp)[kind == "recv"]

    for _ in range(2 if kind == "send" else 0):
        post_recv(w.mr[0:8])
    core.fail_call(1, errno.ENOMEM, True)
    with pytest.raises(VerbsError):
        if in_a_list:
            post([(SendWR if kind == "send" else RecvWR)(w.mr[8:16], wr_id=90)])
        else:
            post(w.mr[8:16], wr_id=90)
    core.fail_call(0)
    post(w.mr[16:24], wr_id=1)
    for _ in range(0 if kind == "send" else 2):
        qp.post_send(w.mr[24:32])
    assert posted() == 1
    (refused,) = wait_completions(cq, 1)
    assert refused.wr_id != 1
    assert posted() == 1
    (mine,) = wait_completions(cq, 1)
    assert mine.wr_id == 1
    assert posted() == 0


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_what_completed_keeps_its_wr_id_where_a_cq_can_not_be_polled_at_the_end(
    w: World, end: str, n: int
) -> None:
    emptied(w)
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1 << 63)
    w.qp.post_send(w.mr[64:72], wr_id=1 << 62)
    assert w.channel.get_event(timeout=DEADLINE) is w.ex
    w.ex.ack()
    w.qp.post_recv(w.mr[0:64], wr_id=3)  # it will not complete
    core.fail_call(n + (end == "close"), errno.EIO)  # those before end it, the others poll
    w.qp.close() if end == "close" else w.qp.modify(qp_state=QPState.RESET)
    assert core.failed() in ("ibv_poll_cq", "ibv_start_poll", None)
    core.fail_call(0)
    expected = {1 << 63}
    if end == "reset":
        assert outstanding(w.qp) == (0, 0)
        w.qp.connect(w.qp.address(), rnr_retry=7)
        w.qp.post_recv(w.mr[0:64], wr_id=5)
        w.qp.post_send(w.mr[64:72], wr_id=6)
        expected |= {5, 6}
    got: set[int] = set()

    def all_came() -> bool:
        got.update(w.ex.poll_ids(), w.cq.poll_ids())
        return expected <= got

    until(all_came, "completions")
    assert got <= {*expected, 1 << 62}  # some kernels complete a send later than its message
    assert end == "close" or outstanding(w.qp) == (0, 0)
    w.mr.close()


def test_a_bind_that_is_refused_leaves_everything_as_it_was(w: World) -> None:
    for mw in (w.mw1, w.mw):
        rkey = mw.rkey
        core.fail_call(1, errno.EINVAL)
        with pytest.raises(VerbsError) as e:
            w.qp.bind_mw(mw, w.mr[0:64], access=AccessFlags.REMOTE_READ)
        assert core.failed() == e.value.verb
        assert (mw.rkey, outstanding(w.qp)) == (rkey, (0, 0))
    bind(w)


def test_a_failure_while_a_context_closes_leaves_it_open_and_can_be_repeated(ctx: Context) -> None:
    for n in range(1, 10):
        w = World(ctx.name)
        w.sqp.close()  # that would poll its CQ as well
        core.fail_call(n, errno.EINVAL)
        with pytest.raises(VerbsError, match="stays open"):
            w.ctx.close()
        assert not w.ctx.closed
        w.ctx.close()
        assert w.ctx.closed


def test_what_cannot_be_destroyed_when_forgotten_is_reported(ctx: Context) -> None:
    """It is tried twice, by the finalizer and at last; then it is leaked, but nothing crashes."""
    pd = PD(ctx)
    reports: list[type[BaseException]] = []
    with unraisables(reports.append):
        mr = MR(pd, 64)
        core.fail_call(1)
        del mr
    assert reports == [VerbsError]
    pd.close()  # the second try did it


def test_a_cq_that_the_collector_can_not_close_is_whole_for_who_gets_its_event(w: World) -> None:
    channel = CompletionChannel(w.ctx)
    cq = CQ(w.ctx, 4, channel=channel, name="mine")
    with QP(w.pd, QPType.RC, send_cq=cq) as qp:
        qp.connect(qp.address())
        cq.req_notify()
        qp.post_send(w.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=0, rkey=0)
        assert select.select([channel], [], [], DEADLINE)[0]  # of a failure, as it happens
    names: list[str] = []

    def look(_: object) -> None:
        got = channel.try_get_event()
        if got is not None:
            got.ack()
            names.append(got.name)

    goes = (lambda: None).__code__.replace(co_name="goes")  # the collector does not know it
    ref = weakref.ref(goes, look)  # so this is called as the list that has it is cleared,
    gc.collect()  # which is younger than the CQ, and so comes after it
    first: list[Any] = [cq, goes]
    second = [first]
    first.append(second)
    cq.user_data = first
    handles = core.live_handles()
    reports: list[type[BaseException]] = []
    with unraisables(reports.append):
        core.fail_call(1, errno.EINVAL)
        del cq, goes, first, second
        gc.collect()
    assert ref() is None
    assert (reports, names) == ([VerbsError], ["mine"])
    assert core.live_handles() == handles - 1  # the second try did it
    channel.close()


def test_an_event_that_is_read_while_its_cq_is_destroyed_in_vain_is_not_lost(w: World) -> None:
    event_pending(w)
    w.ex.poll()
    for qp in (w.qp, w.sqp):
        qp.close()
    with inside("ibv_destroy_cq", w.ex.close, error=errno.EINVAL) as closer:
        assert w.channel.try_get_event() is None  # acked at once: the destroying would wait for it
        waiter = Waiter(lambda: w.channel.get_event(DEADLINE)).asleep()
    with pytest.raises(VerbsError, match="this CQ stays open"):
        closer.join()
    assert waiter.join() is w.ex
    assert w.ex.unacked == 1
    w.ex.ack()
    with pytest.raises(ValueError, match="0 unacked"):
        w.ex.ack()
    # The same once more, and now it is closed with the late event not yet handed out.
    w.qp = w.new_qp()
    w.qp.connect(w.qp.address())
    event_pending(w)
    w.qp.close()
    with inside("ibv_destroy_cq", w.ex.close, error=errno.EINVAL) as closer:
        assert w.channel.try_get_event() is None
    with pytest.raises(VerbsError):
        closer.join()
    w.ex.close()
    assert w.channel.try_get_event() is None
    stats = w.ex.stats
    assert stats.events == stats.acked


def test_a_wait_looks_for_a_late_event_before_it_sleeps(w: World) -> None:
    """Although the wait before it had to sleep."""
    for qp in (w.qp, w.sqp):
        qp.close()
    with waiting(w.channel.get_event) as waiter:
        w.channel.interrupt()
    with pytest.raises(InterruptedError):
        waiter.join()
    w.qp = w.new_qp()
    w.qp.connect(w.qp.address())
    event_pending(w)
    w.ex.poll()
    w.qp.close()
    with inside("ibv_destroy_cq", w.ex.close, error=errno.EINVAL) as closer:
        assert w.channel.try_get_event() is None
    with pytest.raises(VerbsError, match="this CQ stays open"):
        closer.join()
    assert Waiter(w.channel.get_event).join() is w.ex
    w.ex.ack()


def test_a_wait_goes_on_after_a_signal_that_the_kernel_reports(w: World) -> None:
    for first in ("ibv_get_cq_event", "ppoll"):  # who had to sleep does so at once the next time
        core.fail_call(1, errno.EINTR)
        with pytest.raises(TimeoutError):
            w.channel.get_event(timeout=0.01)
        assert core.failed() == first
    core.fail_call(1, errno.EINTR)
    assert w.ctx.try_get_async_event() is None
    assert core.failed() == "ibv_get_async_event"


def test_a_second_waiter_without_a_descriptor_fails_and_leaves_the_first_alone(w: World) -> None:
    first = Waiter(lambda: w.channel.get_event(timeout=DEADLINE)).asleep()
    for n in (1, 2):  # some waits look before they sleep
        core.fail_call(n, errno.EMFILE)
        with pytest.raises(OSError, match="Too many open files"):
            w.channel.get_event(timeout=DEADLINE)
        if core.failed() == "eventfd":
            break
    assert core.failed() == "eventfd"
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.qp.post_send(w.mr[64:72], wr_id=2)
    assert first.join() is w.ex
    drain(w)


def test_a_device_that_breaks_is_reported_to_who_polls_after_what_came(w: World) -> None:
    arrived(w)
    w.ex.resize(64)
    core.fail_call(2, errno.EIO)
    assert len(w.ex.poll()) == 1  # first what there is
    core.fail_call(1, errno.EIO)
    with pytest.raises(DeviceRemovedError, match="can't be polled"):
        w.ex.poll()
    assert w.ex.poll() == []


@pytest.mark.parametrize("reused", [True, False])
def test_a_completion_is_whole_or_there_is_none(w: World, reused: bool) -> None:
    """Also in the memory of one that is gone, which there is unless many are kept."""
    wcs = WCArray(2)
    for length in (1000, 2000):  # Python has no ints of these at hand
        w.qp.post_recv(w.mr[0:2048], wr_id=2**40 + length)
        w.qp.post_send(w.mr[2048 : 2048 + length])
    wait_completions(w.cq, 2)
    assert w.ex.poll_into(wcs) == 2
    held = [wcs[0] for _ in range(600)]
    starved = 0
    while True:
        held.append(wcs[0])
        if reused:
            held.pop()
        try:
            core.fail_alloc(starved + 1)
            wc = wcs[1]
        except MemoryError:
            core.fail_alloc(0)
        else:
            core.fail_alloc(0)
            break
        starved += 1
    assert (wc.wr_id, wc.byte_len, wc.ok) == (2**40 + 2000, 2000, True)
    assert starved == (2 if reused and not FREE_THREADED else 3)  # two ints, and itself
    assert {(wc.wr_id, wc.byte_len) for wc in held} == {(2**40 + 1000, 1000)}


@pytest.mark.parametrize("extended", [False, True])
def test_what_comes_while_one_spins_is_not_lost_to_a_lack_of_memory(
    w: World, extended: bool
) -> None:
    failures = 0
    for n in range(1, 100):
        cq = CQ(w.ctx, 16, wc_flags=WCExFlags(0x7F) if extended else None)
        qp = QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=cq)
        qp.connect(qp.address())
        qp.post_recv(w.mr[0:64], wr_id=n)
        seen: list[Any] = []

        def starving(n: int = n, cq: CQ = cq, seen: list[Any] = seen) -> list[Any]:
            core.fail_alloc(n)
            try:
                return cq.poll(spin=SPIN)
            finally:
                core.fail_alloc(0)
                seen.append(core.failed())

        waiter = Waiter(starving)
        until(lambda cq=cq, seen=seen: cq.stats.polls > 0 or bool(seen), "it spins")  # type: ignore[misc]
        qp.post_send(w.mr[64:72])
        try:
            got = waiter.join()
        except MemoryError:
            failures += 1
            assert seen[0] is not None
            got = cq.poll(spin=SPIN)
        assert [wc.wr_id for wc in got] == [n]
        assert qp.outstanding_recvs == 0
        qp.close()
        cq.close()
        drain(w)
        if seen == [None]:
            break
    assert failures > 0
    assert seen == [None]


def test_a_spin_does_not_poll_a_cq_that_is_being_closed(w: World) -> None:
    cq = CQ(w.ctx, 4)
    with inside("ibv_poll_cq", lambda: cq.poll(spin=SPIN), n=2) as spinner:
        closer = Waiter(cq.close)
        until(lambda: cq.closed, "it is being closed")
        core.fail_call(1, 0)  # the spin goes on; the next call succeeds, and is noted
        with pytest.raises(ClosedError):
            spinner.join()
        closer.join()
        assert core.failed() == "ibv_destroy_cq"


def test_a_device_that_breaks_ends_the_spin(w: World) -> None:
    drain(w)
    for cq, error in ((w.cq, errno.EPROTO), (w.ex, errno.EIO)):
        core.fail_call(20, errno.EIO)  # the first look finds nothing, and nothing is wrong
        with pytest.raises(VerbsError, match="can't be polled") as e:
            cq.poll(spin=SPIN)
        assert e.value.errno == error
        assert cq.poll(spin=1e-6) == []


def test_the_report_of_a_queue_pair_is_not_lost_to_a_lack_of_memory(w: World) -> None:
    report_pending(w)
    assert starves(w.ctx.try_get_async_event, 1)
    assert w.ctx.get_async_event(timeout=DEADLINE).event_type is AsyncEventType.SQ_DRAINED


def test_closed_is_closed_even_if_there_is_no_memory_to_say_so(w: World) -> None:
    w.close()
    with pytest.raises((ClosedError, MemoryError)):
        core.fail_alloc(1)
        w.cq.poll()


@pytest.mark.parametrize("call", ["ibv_poll_cq", "ibv_req_notify_cq"])
@pytest.mark.parametrize("use", ["arm and poll", "arm_if_empty"])
def test_a_completion_that_comes_between_the_poll_and_the_arm_is_not_missed(
    w: World, call: str, use: str
) -> None:
    cq = CQ(w.ctx, 4, channel=w.channel)
    qp = QP(w.pd, QPType.RC, send_cq=w.ex, recv_cq=cq)
    qp.connect(qp.address())
    qp.post_recv(w.mr[0:64], wr_id=5)
    drain(w)

    def race() -> None:
        qp.post_send(w.mr[64:72])
        until(lambda: bool(w.ex.poll()), "sent")  # the receive completes before

    core.before_call(call, race)
    if use == "arm_if_empty":
        assert not cq.arm_if_empty()
        got = cq.poll_ids()
    else:
        got = cq.poll_ids()
        cq.req_notify()
        got += cq.poll_ids()
    assert got == [5]
    assert cq.arm_if_empty()
    assert cq.stats.arms == 1


# ---- a QP that is closed while it sends ------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_qp_that_can_not_be_stopped_is_closed_all_the_same(w: World, whole: bool) -> None:
    """Nobody receives, so that it sends again and again."""
    qp = sending(w)
    core.fail_call(1, errno.EINVAL)
    (w.ctx if whole else qp).close()
    assert core.failed() == "ibv_modify_qp"
    assert qp.closed


def test_a_qp_that_was_stopped_and_can_not_be_closed_has_lost_its_requests(w: World) -> None:
    qp = sending(w)
    core.fail_call(2, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open"):
        qp.close()
    assert core.failed() == "ibv_destroy_qp"
    assert (qp.state, qp.outstanding_sends) == (QPState.RESET, 0)
    qp.close()


def test_all_qps_are_stopped_before_the_first_one_is_closed(w: World) -> None:
    qps = [sending(w) for _ in range(3)]
    core.fail_call(4, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open"):
        w.ctx.close()
    assert core.failed() == "ibv_destroy_qp"
    assert all(qp.closed or qp.state == QPState.RESET for qp in qps)
    w.ctx.close()
    assert all(qp.closed for qp in qps)


def sending(w: World) -> QP:
    qp = w.new_qp()
    qp.connect(qp.address())
    qp.post_send(w.mr[0:8])
    return qp
