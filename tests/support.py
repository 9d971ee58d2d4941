# SPDX-License-Identifier: MIT
"""What several test files need: endpoints, waiting for completions, waiting for a sleeper."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cqnotify import (
    CQ,
    AccessFlags,
    AsyncEvent,
    AsyncEventType,
    Context,
    QPAddress,
    QPState,
    QPType,
    TransportType,
    WCStatus,
    WorkCompletion,
    testing,
)
from cqnotify.testing import connect as connect
from cqnotify.testing import wait_completions as wait_completions

DEADLINE = 30.0  # seconds: the lab's guest is emulated, and can stall for a while
ALL_REMOTE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
GRH = 40
PPOLL = "271"  # number of the system call on x86-64


def is_rxe(ctx: Context) -> bool:
    """Whether the device is Soft-RoCE, which departs from the manual in places."""
    return bool(ctx.query_device().vendor_id == 0xFFFFFF)


def is_iwarp(ctx: Context) -> bool:
    """Whether its QPs are connected by rdma_cm alone, and its one GID is its MAC."""
    return ctx.transport_type == TransportType.IWARP


def new_state(ctx: Context) -> QPState:
    """What the device says of a QP that was never modified: siw does not know RESET."""
    return QPState.INIT if is_iwarp(ctx) else QPState.RESET


def need_room_for_queues(ctx: Context) -> None:
    """Skips a test with so many queues that libsiw takes the place of one of them for an error."""
    if is_iwarp(ctx):
        pytest.skip("libsiw has room for 144 pages of queues in a context")


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


def wait_one(cq: CQ, status: WCStatus = WCStatus.SUCCESS) -> WorkCompletion:
    (wc,) = wait_completions(cq, 1)
    assert wc.status == status, wc
    return wc


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

    def __init__(self, ctx: Context) -> None:
        self.a, self.b = connect(Endpoint(ctx, QPType.RC, cqe=1), Endpoint(ctx, QPType.RC))

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


def in_child(action: Callable[[], object]) -> int:
    """The exit status of a forked child that runs it."""
    pid = os.fork()
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
