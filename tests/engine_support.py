# SPDX-License-Identifier: MIT
"""What the tests of the engine share: two connected queue pairs, and tasks that are asleep.

Nothing completes before the test wants it: a receive waits for the peer's send, and a send waits
for the peer's receive, since the sender tries again for ever where it meets none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aio_support import Scenario, tick
from support import ALL_REMOTE, Endpoint, connect, wait_completions

from cqnotify import (
    MR,
    QP,
    AccessFlags,
    BusyError,
    Context,
    QPState,
    QPType,
    SendFlags,
    WROpcode,
)
from cqnotify.aio import AsyncCQ

REMOTE = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
UNSIGNALED = SendFlags(0)
PATIENCE = 6.0  # seconds for a test, which takes some milliseconds where nothing is lost


class Link:
    """Two connected QPs of one device: that of `a` is under test, `b` is its peer.

    With `one_cq` what `a` sends and what it receives completes on one CQ.
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
        connect(self.a, self.b)
        self.qp = self.a.qp
        self.sg = self.a.mr[0:8]  # what is sent
        self.into = self.a.mr[64:128]  # where it is received

    def take(self, n: int = 1) -> None:
        """Let the peer take n of our messages."""
        for _ in range(n):
            self.b.qp.post_recv(self.b.mr[0:64])

    def bring(self, n: int = 1, imm: int = 0, flags: SendFlags = SendFlags.SIGNALED) -> None:
        """Let the peer send n empty messages, with the numbers from `imm` on. Each has arrived, and
        its receive has completed, when this returns."""
        opcode = WROpcode.SEND_WITH_IMM
        for i in range(n):
            self.b.qp.post_send(None, opcode=opcode, imm_data=imm + i, send_flags=flags)
            wait_completions(self.b.scq, 1, timeout=PATIENCE)

    def fail(self, wr_id: int = 0) -> None:
        """Post by hand what the peer refuses; all that is posted behind it is flushed."""
        self.qp.post_send(
            self.sg,
            wr_id=wr_id,
            opcode=WROpcode.RDMA_WRITE,
            remote_addr=self.b.mr.addr,
            rkey=self.wrong_key,
        )

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
    reconnect(other)
    return other


def reconnect(link: Link) -> None:
    """The first end is new, or was reset."""
    link.b.qp.modify(qp_state=QPState.RESET)
    connect(link.a, link.b)


MakeLink = Callable[..., Link]


async def start(call: Awaitable[Any]) -> asyncio.Future[Any]:
    """A task that is asleep in `call` by now."""
    task = asyncio.ensure_future(call)
    await tick()
    assert not task.done(), task.result()  # of one that failed that raises the error
    return task


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


async def until(condition: Callable[[], bool]) -> None:
    """Polls nothing itself: the loop has to bring it about. Ends with the scenario's deadline."""
    while not condition():
        await asyncio.sleep(0.001)


async def the_first_done(tasks: list[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """The one of them that ends, when all could go on that others have woken."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await tick()
    (done,) = [task for task in tasks if task.done()]
    return done


Body = Callable[[AsyncCQ, Link], Awaitable[None]]


def with_one(run: Scenario, link: Link, body: Body, *, recv: bool = False) -> None:
    """Run it with an AsyncCQ on the CQ of the sends, or of the receives."""

    async def scenario() -> None:
        async with AsyncCQ(link.a.rcq if recv else link.a.scq) as acq:
            async with reaping():
                await asyncio.wait_for(body(acq, link), PATIENCE)
            assert acq.poll() == [], "nothing is left over"

    run(scenario())


def closes(mr: MR) -> bool:
    """Whether no work request needs it any more."""
    try:
        mr.close()
    except BusyError:
        return False
    return True
