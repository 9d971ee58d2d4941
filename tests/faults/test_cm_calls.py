# SPDX-License-Identifier: MIT
"""Every call into librdmacm fails once: the exception says which, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc

import pytest
from fault_world import core, held_objects, open_files
from support import address_of

from cqnotify import CQ, PD, QP, CompletionError, Context, QPType, cm

SOON = 5.0  # seconds until an end gives up; that of three failures waits for so long

CALLS = {
    *("rdma_create_event_channel", "rdma_create_id", "rdma_destroy_id", "rdma_get_cm_event"),
    *("rdma_bind_addr", "rdma_listen", "rdma_resolve_addr", "rdma_resolve_route"),
    *("rdma_connect", "rdma_accept", "rdma_reject", "rdma_establish", "rdma_disconnect"),
    *("rdma_init_qp_attr", "rdma_set_option", "rdma_join_multicast"),
}


def new_qp(ctx: Context, qp_type: QPType = QPType.RC) -> QP:
    return QP(PD(ctx), qp_type, send_cq=CQ(ctx, 4))


async def accept(listener: cm.Listener, qp: QP) -> cm.Connection:
    """The first one; the second one is rejected."""
    conn = await (await listener.get_request(SOON)).accept(qp, timeout=SOON)
    await (await listener.get_request(SOON)).reject(b"no")
    return conn


async def script(qps: list[QP], host: str) -> None:
    async with cm.listen(host, 0, reuse_address=True) as listener:
        where = listener.local
        server = asyncio.create_task(accept(listener, qps[0]))
        try:
            conn = await cm.connect(qps[1], *where, timeout=SOON, ack_timeout=14)
            with contextlib.suppress(cm.RejectedError):
                await cm.connect(qps[2], *where, timeout=SOON)
            accepted = await server
            await conn.disconnect()
            await conn.wait_closed(SOON)
            accepted.close()
            conn.close()
            (await cm.join_multicast(qps[3], "239.192.0.8", source=host, timeout=SOON)).close()
        finally:
            server.cancel()
            await asyncio.wait([server])
            if not server.cancelled() and server.exception() is not None:
                raise server.exception()  # type: ignore[misc]


def run(device: str, host: str, n: int, error: int, only: str = "") -> BaseException | None:
    """The n-th call fails, or the n-th one of that name."""
    with Context(device) as ctx:
        qps = [new_qp(ctx) for _ in range(3)] + [new_qp(ctx, QPType.UD)]
        core.fail_call(n, error, False, False, only)
        try:
            asyncio.run(script(qps, host))
        except (OSError, CompletionError) as e:
            return e
        finally:
            call = core.failed()
            core.fail_call(0)
            run.call = call  # type: ignore[attr-defined]
    return None


def objects_of_cm() -> dict[str, int]:
    """The channel of threads stays, once a test has needed it."""
    return {name: n for name, n in held_objects().items() if name in ("CMID", "CMChannel")}


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO])
def test_each_call_of_rdma_cm_fails_once(ctx: Context, error: int) -> None:
    host = address_of(ctx)
    assert run(ctx.name, host, 0, error) is None
    gc.collect()
    files, handles, objects = open_files(), core.live_handles(), objects_of_cm()

    def fail_nth(n: int, only: str = "") -> str | None:
        exception = run(ctx.name, host, n, error, only)
        call: str | None = run.call  # type: ignore[attr-defined]
        if call is not None and call.startswith("rdma_"):
            assert isinstance(exception, OSError | None), (n, call, exception)
            # The peer has not given up.
            assert not isinstance(exception, cm.RequestExpiredError), (n, call, exception)
        del exception
        gc.collect()
        assert open_files() == files, (n, call)
        assert core.live_handles() == handles, (n, call)
        assert objects_of_cm() == objects, (n, call)
        return call

    seen = {fail_nth(n) for n in range(1, 120)}
    # How often a look finds no event differs from run to run, so this pass can miss a call.
    for call in CALLS - seen:
        assert fail_nth(1, call) == call
