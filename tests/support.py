# SPDX-License-Identifier: MIT
"""What the tests share: endpoints and connections, threads that wait, tasks that await."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import types
import warnings
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from iwarp import another, is_sent
from iwarp import is_iwarp as is_iwarp
from iwarp import join as join
from iwarp import need_room_for_queues as need_room_for_queues
from iwarp import new_state as new_state
from iwarp import number_of as number_of
from iwarp import on_iwarp as on_iwarp

from cqnotify import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AsyncEvent,
    AsyncEventType,
    BusyError,
    CompletionChannel,
    Context,
    QPAddress,
    QPState,
    QPType,
    SendFlags,
    WCStatus,
    WorkCompletion,
    WROpcode,
    testing,
)
from cqnotify.aio import AsyncCQ
from cqnotify.cm import local_addresses
from cqnotify.qp import DEFAULT_QKEY
from cqnotify.testing import connect as connect
from cqnotify.testing import wait_completions as wait_completions

# Seconds: only a hang reaches it, however busy the machine is, and with ThreadSanitizer.
DEADLINE = 480.0 if "TSAN_OPTIONS" in os.environ else 120.0
SPIN = 60.0  # seconds, the most that poll() takes: only a hang reaches them
ALL_REMOTE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
GRH = 40
QKEY = DEFAULT_QKEY
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
PPOLL = "271"  # numbers of the system calls on x86-64
EPOLL_WAIT, EPOLL_PWAIT = "232", "281"

SOLICITED = SendFlags.SIGNALED | SendFlags.SOLICITED
UNSIGNALED = SendFlags(0)
REMOTE = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC

Scenario = Callable[[Coroutine[Any, Any, Any]], Any]
_T = TypeVar("_T")


def is_rxe(ctx: Context) -> bool:
    """Whether the device is Soft-RoCE, which departs from the manual in places."""
    return bool(ctx.query_device().vendor_id == 0xFFFFFF)


def address_of(ctx: Context) -> str:
    """The IPv4 address that leads to the device of this context."""
    return local_addresses(ctx)[0]


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def ip_link(*arguments: str) -> None:
    subprocess.run(["ip", "link", "set", *arguments], check=True, timeout=DEADLINE)


class Endpoint(testing.Endpoint):
    """One whose memory the peer may write and read; with short names for its CQs."""

    def __init__(
        self, ctx: Context, qp_type: QPType, *, access: AccessFlags = ALL_REMOTE, **options: Any
    ) -> None:
        super().__init__(ctx, qp_type, access=access, **options)

    @property
    def scq(self) -> CQ:
        return self.send_cq

    @property
    def rcq(self) -> CQ:
        return self.recv_cq


Pair = tuple[Endpoint, Endpoint]


def connected_by_srq(ctx: Context) -> tuple[Endpoint, Endpoint, SRQ]:
    """Two ends, of which the first receives from the SRQ."""
    pd = PD(ctx)
    srq = SRQ(pd, 16)
    a, b = connect(Endpoint(ctx, QPType.RC, pd=pd, srq=srq), Endpoint(ctx, QPType.RC))
    return a, b, srq


def send(pair: Pair, wr_ids: Iterable[int] = (0,), flags: SendFlags = SendFlags.SIGNALED) -> None:
    """Messages from the first to the second, each with a receive for it; nothing is polled."""
    a, b = pair
    for wr_id in wr_ids:
        b.qp.post_recv(b.mr[0:64], wr_id=wr_id)
        a.qp.post_send(a.mr[0:8], wr_id=wr_id, send_flags=flags)


def deliver(
    pair: Pair, wr_ids: Collection[int] = (0,), flags: SendFlags = SendFlags.SIGNALED
) -> None:
    """As send(); when it returns they are acknowledged, and in the CQ of the second."""
    send(pair, wr_ids, flags)
    wait_completions(pair[0].scq, len(wr_ids))


def until_addresses_are_back(ctx: Context) -> None:
    """After the link was down: the kernel restores them, and ways to them, by and by."""

    def reaches_itself() -> bool:
        try:
            with PD(ctx) as pd:
                AH(pd, dgid=ctx.query_gid(0).gid, sgid_index=0).close()
        except (OSError, ValueError):
            return False
        return True

    until(reaches_itself, "its addresses are back")


def remind(end: testing.Endpoint, other: testing.Endpoint) -> None:
    """rxe of Linux 7.2 can lose the timer by which it sends a lost frame again; with the next
    request it does. Nobody hears of this one where all goes well."""
    there = {"remote_addr": other.mr.addr, "rkey": other.mr.rkey}
    end.qp.post_send(
        end.mr[0:1], opcode=WROpcode.RDMA_READ, send_flags=SendFlags(0), wr_id=0, **there
    )


def wait_one(cq: CQ, status: WCStatus = WCStatus.SUCCESS) -> WorkCompletion:
    (wc,) = wait_completions(cq, 1)
    assert wc.status == status, wc
    return wc


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, which has ended, and what it said."""
    options = {"timeout": 4 * DEADLINE, **options}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


@contextmanager
def unraisables(told: Callable[[type[BaseException]], object]) -> Iterator[None]:
    """Inside, the types of exceptions that nobody can catch go there."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda u: told(u.exc_type)
    try:
        yield
    finally:
        sys.unraisablehook = hook


def until(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline} s"
        time.sleep(0.001)


def sits_in(task: str, *numbers: str) -> bool:
    """Whether a task below /proc sits in one of these system calls. Linux 6.1 as a process does not
    tell the number: there it is whether the task sleeps."""
    try:
        with open(f"{task}/syscall") as file:
            return file.read().split()[0] in numbers
    except FileNotFoundError:
        with open(f"{task}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"


SITS_IN = inspect.getsource(sits_in)  # for programs that run by themselves


def is_asleep(thread: threading.Thread) -> bool:
    """Whether the kernel says that the thread sits in ppoll(2), as a waiter does."""
    try:
        return sits_in(f"/proc/self/task/{thread.native_id}", PPOLL)
    except OSError:
        return False


def signal_when_asleep(number: signal.Signals, *calls: str) -> None:
    """To the main thread, when it sits in one of these system calls; by default, when its event
    loop sleeps. In a forked child, Python 3.11 has the parent's number for it."""
    task = f"/proc/self/task/{os.getpid()}"
    until(partial(sits_in, task, *(calls or (EPOLL_WAIT, EPOLL_PWAIT))), "the main thread sleeps")
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def switches(thread: threading.Thread) -> int:
    """How often the thread has gone to sleep, for whatever reason."""
    for line in Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError("no such line")


class Waiter:
    """A thread that runs one call, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.call = call
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as e:
            self.error = e

    def asleep(self) -> Waiter:
        """Returns when it sleeps: what happens from now on must wake it."""
        until(lambda: is_asleep(self.thread), "the waiter sleeps")
        return self

    def join(self) -> Any:
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive(), "the waiter did not wake"
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def waiting(call: Callable[[], Any]) -> Iterator[Waiter]:
    """A call that is asleep inside the block, and has ended after it."""
    waiter = Waiter(call).asleep()
    yield waiter
    waiter.thread.join(DEADLINE)
    assert not waiter.thread.is_alive(), "the waiter did not wake"


class Overflow:
    """A sender whose CQ is too small: each completion beyond its room is lost, with a CQ_ERR."""

    def __init__(self, ctx: Context, **options: Any) -> None:
        small = Endpoint(ctx, QPType.RC, cqe=1, **options)
        self.a, self.b = connect(small, Endpoint(ctx, QPType.RC))

    def fill(self) -> None:
        self.send(self.a.scq.cqe)

    def send(self, n: int) -> None:
        """Returns when all have arrived. Does not sleep, which would read the reports."""
        for _ in range(n):
            self.b.qp.post_recv(self.b.mr[0:64])
            self.a.qp.post_send(self.a.mr[0:8])
        got: list[int] = []
        until(lambda: got.extend(self.b.rcq.poll_ids()) or len(got) == n, "all have arrived")


def take_all(ctx: Context) -> list[AsyncEvent]:
    """What there is; a link that came up lately may have left something."""
    events = []
    while (event := ctx.try_get_async_event()) is not None:
        events.append(event)
    return events


def take_cq_err(ctx: Context) -> AsyncEvent:
    """The next one, besides what a link that came up lately has left."""
    while True:
        event = ctx.get_async_event(timeout=DEADLINE)
        if event.event_type == AsyncEventType.CQ_ERR:
            return event


@contextmanager
def peer(end: Endpoint, program: str, *args: object) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, whose QP is connected to ours: by its standard streams, it speaks first."""
    command = [sys.executable, "-c", program, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            end.qp.connect(QPAddress.from_wire(child.stdout.read(52)))
            child.stdin.write(end.qp.address().to_wire())
            child.stdin.flush()
            yield child
        finally:
            child.kill()


def hang_up(fd: int) -> None:
    """Puts a terminal whose other end is closed in the place of fd: reading it is EIO."""
    master, slave = os.openpty()
    os.set_blocking(slave, False)
    os.dup2(slave, fd)
    os.close(slave)
    os.close(master)


def device_fd(ctx: Context) -> int:
    """The device's own descriptor of asynchronous events, behind Context.async_fd."""
    info = Path(f"/proc/self/fdinfo/{ctx.async_fd}").read_text()
    behind = [int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")]
    (fd,) = [fd for fd in behind if "eventfd" not in os.readlink(f"/proc/self/fd/{fd}")]
    return fd


@contextmanager
def device_gone(ctx: Context) -> Iterator[None]:
    """Inside, the device's asynchronous events end as they do when it was removed."""
    fd = device_fd(ctx)
    keep = os.dup(fd)
    try:
        hang_up(fd)
        yield
    finally:
        os.dup2(keep, fd, inheritable=False)
        os.close(keep)


def no_thread_is_ending() -> bool:
    """Whether those that Python does not know are asleep. One that was joined has its last steps
    before it; in them it holds locks of the sanitizer, which a forked child would have for ever."""
    awake = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just gone
            if (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                awake.add(task.name)
    # Asked last: one that Python still knows was not ending when its state was read.
    known = {str(thread.native_id) for thread in threading.enumerate()}
    known.add(str(threading.get_native_id()))  # in a child the thread may have that of the parent
    return awake <= known


def fork() -> int:
    """As os.fork(), when no thread is ending. Python warns of other threads, and from 3.15 on of
    faulthandler's, too."""
    until(no_thread_is_ending, "threads have ended")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        return os.fork()


def in_child(action: Callable[[], object]) -> int:
    """The exit status of a forked child that runs it."""
    pid = fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException as e:
            os.write(2, repr(e).encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- connections --------------------------------------------------------------------------


class Lane:
    """A one-way connection on one device, into a CQ of the test's choice."""

    def __init__(self, ctx: Context, channel: CompletionChannel, cq_type: type[CQ] = CQ) -> None:
        self.cq = cq_type(ctx, 255, channel=channel)
        self.sent = 0
        self._in = Endpoint(ctx, QPType.RC, recv_cq=self.cq, max_recv_wr=255)
        self._out = Endpoint(ctx, QPType.RC, max_recv_wr=1)
        connect(self._out, self._in)

    def send(self, n: int = 1, flags: SendFlags = SendFlags.SIGNALED) -> None:
        for _ in range(n):
            self._in.qp.post_recv(self._in.mr[0:64], wr_id=self.sent)
            self._out.qp.post_send(self._out.mr[0:8], wr_id=self.sent, send_flags=flags)
            self.sent += 1
            # The receive completes before the send is acknowledged.
            wait_completions(self._out.scq, 1)

    @property
    def untaken(self) -> int:
        """Messages whose completions nobody has taken from the device."""
        return self._in.qp.outstanding_recvs

    def close(self) -> None:
        self._in.qp.close()


MakeLane = Callable[..., Lane]


PATIENT: dict[str, Any] = {"retry_cnt": 7}
"""For ever on rxe, where a send that waits for a receive of the peer runs out of retries on a busy
machine, although its rnr_retry is for ever."""


class Link:
    """Two connected QPs of one device: that of `a` is under test, `b` is its peer.

    With `one_cq` what `a` sends and what it receives completes on one CQ. No send fails because it
    waits for long.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        one_cq: bool = False,
        max_send_wr: int = 16,
        max_recv_wr: int = 16,
        cqe: int = 256,
        qp_type: QPType = QPType.RC,
    ) -> None:
        self.a = Endpoint(
            ctx,
            qp_type,
            cqe=cqe,
            access=ALL_REMOTE | REMOTE,
            one_cq=one_cq,
            max_send_wr=max_send_wr,
            max_recv_wr=max_recv_wr,
            max_recv_sge=2,
            max_inline_data=64,
        )
        self.b = Endpoint(
            ctx, qp_type, access=ALL_REMOTE | REMOTE, max_send_wr=255, max_recv_wr=255
        )
        connect(self.a, self.b, **PATIENT)
        self.iwarp = is_iwarp(ctx)
        self.qp = self.a.qp
        self.sg = self.a.mr[0:8]  # what is sent
        self.into = self.a.mr[64:128]  # where it is received

    def take(self, n: int = 1) -> None:
        """Let the peer take n of our messages."""
        for _ in range(n):
            self.b.qp.post_recv(self.b.mr[0:64])

    def bring(self, n: int = 1, imm: int = 0, flags: SendFlags = SendFlags.SIGNALED) -> None:
        """Let the peer send n empty messages, with the numbers from `imm` on: see number_of(). Each
        has arrived, and its receive has completed, when this returns."""
        opcode = WROpcode.SEND_WITH_IMM
        for i in range(imm, imm + n):
            if self.iwarp:
                self.b.qp.post_send(self.b.mr[0:i] if i else None, send_flags=flags)
            else:
                self.b.qp.post_send(None, opcode=opcode, imm_data=i, send_flags=flags)
            wait_completions(self.b.scq, 1, timeout=DEADLINE)

    def fail(self, wr_id: int = 0) -> None:
        """Post by hand what the peer refuses; all that is posted behind it is flushed."""
        self.qp.post_send(
            self.sg,
            wr_id=wr_id,
            opcode=WROpcode.RDMA_WRITE,
            remote_addr=self.b.mr.addr,
            rkey=self.wrong_key,
        )

    def arrived(self, n: int) -> list[int | None]:
        """The immediate data of the next n messages that the peer got: they come in the order in
        which they were posted."""
        return [wc.imm_data for wc in wait_completions(self.b.rcq, n)]

    def reconnect(self) -> None:
        """From any state of both ends. On iWARP, where a QP is connected once, with new ones."""
        for end in (self.a, self.b):
            if not self.iwarp:
                end.qp.modify(qp_state=QPState.RESET)
            elif end.qp.state != QPState.INIT:
                end.qp = another(end.qp)
        self.qp = self.a.qp
        connect(self.a, self.b, **PATIENT)

    @property
    def remote(self) -> tuple[int, int]:
        return self.b.mr.addr, self.b.mr.rkey

    @property
    def wrong_key(self) -> int:
        return self.b.mr.rkey ^ 0xFF00


def beside(link: Link, **options: Any) -> Link:
    """Another connection, whose first end works with the memory and the CQs of that of `link`."""
    other = Link(link.a.ctx)
    other.a.qp.close()
    cqs = {"send_cq": link.a.scq, "recv_cq": link.a.rcq}
    other.qp = other.a.qp = QP(link.a.pd, QPType.RC, **cqs, **options)
    other.sg, other.into = link.sg, link.into
    other.reconnect()
    return other


MakeLink = Callable[..., Link]


# ---- tasks that await ---------------------------------------------------------------------


async def tick() -> None:
    """Let every task that can run do so, up to where it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


@types.coroutine
def just_before_it_sleeps(call: Awaitable[_T], act: Callable[[], None]) -> Generator[Any, Any, _T]:
    """Await it. When it is about to sleep for the first time, and the loop is not told yet, act."""
    steps = call.__await__()
    try:
        yielded = steps.send(None)
        act()
        while True:
            try:
                value = yield yielded
            except BaseException as e:
                yielded = steps.throw(e)
            else:
                yielded = steps.send(value)
    except StopIteration as e:
        result: _T = e.value
        return result


async def start(call: Awaitable[Any]) -> asyncio.Future[Any]:
    """A task that is asleep in `call` by now."""
    (task,) = await start_all(call)
    return task


async def wake(acq: AsyncCQ, lane: Lane, times: int = 1) -> None:
    """A task that is asleep in wait() is woken by a completion, that many times."""
    for _ in range(times):
        task = await start(acq.wait())
        lane.send()
        await task


async def start_all(*calls: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Tasks that are asleep in these calls by now."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await tick()
    if any(task.done() and is_sent(task.result()) for task in tasks) and on_iwarp():
        for task in tasks:
            task.cancel()
        pytest.skip("iWARP: a send completes when TCP has it, without a receive of the peer")
    for task in tasks:
        assert not task.done(), task.result()  # of one that failed that raises the error
    return tasks


async def cancel(task: asyncio.Future[Any]) -> None:
    """Returns when it has ended, cancelled."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@contextlib.asynccontextmanager
async def reaping() -> AsyncIterator[None]:
    """At the end all tasks that were made inside end: a test that fails has left some behind."""
    before = asyncio.all_tasks()
    try:
        yield
    except BaseException:
        # What else has failed need not be told, in the midst of pytest's own report.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        raise
    finally:
        left = asyncio.all_tasks() - before
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def eventually(condition: Callable[[], bool]) -> None:
    """Polls nothing itself: the loop has to bring it about. Ends with the test's deadline."""
    while not condition():
        await asyncio.sleep(0.001)


async def the_first_done(tasks: list[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """The one of them that ends, when all could go on that others have woken."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await tick()
    (done,) = [task for task in tasks if task.done()]
    return done


def closes(mr: MR) -> bool:
    """Whether no work request needs it any more."""
    try:
        mr.close()
    except BusyError:
        return False
    return True


CHOSEN = 1 << 63  # the least wr_id that an operation without one gets


async def anext_of(acq: AsyncCQ) -> WorkCompletion:
    (wc,) = await acq.wait(1)
    return wc


def ids(wcs: list[WorkCompletion]) -> list[int]:
    return [wc.wr_id for wc in wcs]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


IDLE = 1.0  # seconds
BUSY = 0.3 * IDLE  # of CPU time: what never sleeps takes all of it, and what sleeps next to nothing
WAKES = 20  # of all threads: what looks again and again sleeps more often


Sleep = Callable[[float], Awaitable[object]]


async def sleeps(sleep: Sleep = asyncio.sleep, more: Callable[[], object] = lambda: None) -> bool:
    """Whether the process sleeps while its tasks wait, and `more` stays as it is: it does not
    compute, and is not woken again and again. Something may be under way at first, and a stall of
    the machine can look like work: so once in a few times is enough."""
    await sleep(0)
    gc.collect()
    for _ in range(5):
        before, seen = resource.getrusage(resource.RUSAGE_SELF), more()
        await sleep(IDLE)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if cpu < BUSY and after.ru_nvcsw - before.ru_nvcsw < WAKES and more() == seen:
            return True
    return False


async def fill(acq: AsyncCQ, link: Link) -> list[asyncio.Future[Any]]:
    """As many sends as the queue takes, none of which completes before the peer takes them."""
    tasks = [await start(acq.send(link.qp, link.sg)) for _ in range(link.qp.max_send_wr)]
    assert link.qp.outstanding_sends == link.qp.max_send_wr
    return tasks


def outstanding(qp: QP) -> tuple[int, int]:
    """Return how many sends and receives were posted and not polled yet."""
    return qp.outstanding_sends, qp.outstanding_recvs
