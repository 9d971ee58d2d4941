# SPDX-License-Identifier: MIT
"""Every call into librdmacm fails once: the exception says which, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc

import pytest
from fault_world import core, open_files

from cqnotify import CQ, PD, QP, CompletionError, Context, QPType, cm

SOON = 1.0

CALLS = {
    *("rdma_create_event_channel", "rdma_create_id", "rdma_destroy_id", "rdma_get_cm_event"),
    *("rdma_bind_addr", "rdma_listen", "rdma_resolve_addr", "rdma_resolve_route"),
    *("rdma_connect", "rdma_accept", "rdma_reject", "rdma_establish", "rdma_disconnect"),
    *("rdma_init_qp_attr", "rdma_set_option"),
}


def new_qp(ctx: Context) -> QP:
    return QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4))


async def accept(listener: cm.Listener, qp: QP) -> cm.Connection:
    """The first one; the second one is rejected."""
    conn = await (await listener.get_request(SOON)).accept(qp, timeout=SOON)
    await (await listener.get_request(SOON)).reject(b"no")
    return conn


async def script(qps: list[QP], host: str) -> None:
    async with cm.listen(host, 0, reuse_address=True) as listener:
        server = asyncio.create_task(accept(listener, qps[0]))
        try:
            conn = await cm.connect(qps[1], *listener.local, timeout=SOON, ack_timeout=14)
            with contextlib.suppress(cm.RejectedError):
                await cm.connect(qps[2], *listener.local, timeout=SOON)
            accepted = await server
            await conn.disconnect()
            await conn.closed(SOON)
            accepted.close()
            conn.close()
        finally:
            server.cancel()
            await asyncio.wait([server])
            if not server.cancelled() and server.exception() is not None:
                raise server.exception()  # type: ignore[misc]


def run(name: str, host: str, n: int, error: int) -> BaseException | None:
    with Context(name) as ctx:
        qps = [new_qp(ctx) for _ in range(3)]
        core.fail_call(n, error)
        try:
            asyncio.run(script(qps, host))
        except (OSError, CompletionError) as e:
            return e
        finally:
            call = core.failed()
            core.fail_call(0)
            run.call = call  # type: ignore[attr-defined]
    return None


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO])
def test_each_call_of_rdma_cm_fails_once(ctx: Context, error: int) -> None:
    host = next(str(e.gid.ipv4_mapped) for e in ctx.gid_table() if e.gid.ipv4_mapped)
    assert run(ctx.name, host, 0, error) is None
    gc.collect()
    files, handles = open_files(), core.live_handles()
    seen: set[str] = set()
    for n in range(1, 1000):
        exception = run(ctx.name, host, n, error)
        call = run.call  # type: ignore[attr-defined]
        if call is None:
            break
        seen.add(call)
        if call.startswith("rdma_"):
            assert isinstance(exception, OSError | None), (n, call, exception)
        del exception
        gc.collect()
        assert open_files() == files, (n, call)
        assert core.live_handles() == handles, (n, call)
        assert not [o for o in gc.get_objects() if type(o).__name__ in ("CMID", "CMChannel")], call
    assert CALLS - seen == set()
