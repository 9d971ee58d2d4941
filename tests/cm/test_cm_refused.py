# SPDX-License-Identifier: MIT
"""Bad arguments are refused in words, before the device is asked."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable
from typing import Any

import pytest
from cm_support import SOON, Side, address_of, connected

from cqnotify import CQ, PD, QP, ClosedError, Context, QPState, QPType, VerbsError, cm
from cqnotify.cm import blocking

OPTIONS = [
    ({"private_data": bytes(57)}, ValueError, "private_data has 57 bytes: at most 56 fit here"),
    ({"private_data": "text"}, TypeError, "private_data must be a bytes-like object, not str"),
    ({"timeout": -1}, ValueError, "timeout is -1: it must be 0 or more seconds, or None"),
    ({"timeout": math.nan}, ValueError, "timeout is nan"),
    ({"timeout": "1"}, TypeError, "timeout must be a number of seconds or None, not '1'"),
    ({"retry_count": 8}, ValueError, "retry_count is 8: it must be 0 to 7"),
    ({"rnr_retry_count": -1}, ValueError, "rnr_retry_count is -1: it must be 0 to 7"),
    ({"ack_timeout": 32}, ValueError, "ack_timeout is 32: it must be 0 to 31"),
    ({"tos": 256}, ValueError, "tos is 256: it must be 0 to 255"),
    ({"responder_resources": 256}, ValueError, "responder_resources is 256"),
    ({"initiator_depth": 1.5}, TypeError, "initiator_depth must be an int, not float"),
    ({"access": "all"}, TypeError, "access must be AccessFlags, not str"),
    ({"source": ""}, ValueError, "host is '': give an address or a name"),
    ({"source": "nowhere.invalid"}, OSError, "'nowhere.invalid' does not resolve"),
]

WHERE = [
    (("", 7), ValueError, "host is '': give an address or a name"),
    (("no.such.name.invalid", 7), OSError, "'no.such.name.invalid' does not resolve"),
    (("10.99.0.1", 0), ValueError, "port is 0: it must be 1 to 65535"),
    (("10.99.0.1", 65536), ValueError, "port is 65536: it must be 1 to 65535"),
    (("10.99.0.1", "7"), TypeError, "port must be an int, not str"),
    (("127.0.0.1", 7), VerbsError, "a loopback address has no RDMA device"),
    (("192.0.2.1", 7), VerbsError, "rdma_resolve_addr: Network is unreachable"),
]


def both(qp: Any, *where: Any, **options: Any) -> list[Callable[[], object]]:
    return [
        lambda: blocking.connect(qp, *where, **options),
        lambda: asyncio.run(cm.connect(qp, *where, **options)),
    ]


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS, ids=lambda x: str(x)[:40])
def test_options(ctx: Context, options: dict[str, Any], error: type[Exception], words: str) -> None:
    side = Side(ctx)
    for call in both(side.qp, address_of(ctx), 9, **options):
        with pytest.raises(error, match=words.replace("(", r"\(")):
            call()
    assert side.qp.state == QPState.RESET


@pytest.mark.parametrize(("where", "error", "words"), WHERE, ids=lambda x: str(x)[:40])
def test_addresses(ctx: Context, where: Any, error: type[Exception], words: str) -> None:
    side = Side(ctx)
    for call in both(side.qp, *where):
        with pytest.raises(error, match=words):
            call()
    assert side.qp.state == QPState.RESET


def test_queue_pairs(ctx: Context, ctx2: Context) -> None:
    ready, unreliable, closed, foreign = Side(ctx), Side(ctx, QPType.UC), Side(ctx), Side(ctx2)
    ready.qp.connect(ready.qp.address())
    closed.qp.close()
    for qp, error, words in (
        (None, TypeError, "qp must be a QP, not NoneType"),
        (ready.qp, ValueError, f"QP {ready.qp.qp_num} is in RTS: rdma_cm makes all transitions"),
        (unreliable.qp, ValueError, "the QP is of type UC: rdma_cm connects RC and UD"),
        (closed.qp, ClosedError, "this QP is closed"),
        (foreign.qp, ValueError, f"leads over device {ctx.name}, and the QP is of {ctx2.name}"),
    ):
        for call in both(qp, address_of(ctx), 9):
            with pytest.raises(error, match=words):
                call()


async def test_a_connected_queue_pair_and_one_that_connects(ctx: Context) -> None:
    async with connected(ctx) as (client, _, _, _):
        with pytest.raises(ValueError, match="is in RTS"):
            await cm.connect(client.qp, address_of(ctx), 9)
    side = Side(ctx)
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(side.qp, *listener.local))
        request = await listener.get_request(SOON)
        with pytest.raises(ValueError, match="belongs to another connection"):
            await cm.connect(side.qp, *listener.local)
        with pytest.raises(ValueError, match="belongs to another connection"):
            await request.accept(side.qp)
        with pytest.raises(cm.RejectedError):
            await asking


async def test_requests_are_answered_once(ctx: Context, ctx2: Context) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        with pytest.raises(ValueError, match=f"and the QP is of {ctx2.name}"):
            await request.accept(Side(ctx2).qp)
        with pytest.raises(ValueError, match="at most 196 fit here"):
            await request.accept(Side(ctx).qp, private_data=bytes(197))
        with pytest.raises(ValueError, match="at most 148 fit here"):
            await request.reject(bytes(149))
        conn = await request.accept(Side(ctx).qp)
        await asking
        with pytest.raises(ValueError, match="this request was accepted already"):
            await request.accept(Side(ctx).qp)
        with pytest.raises(ValueError, match="this request was accepted already"):
            await request.reject()
        assert conn.error is None
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        request.close()
        with pytest.raises(ClosedError, match="this request was closed, and so rejected"):
            await request.accept(Side(ctx).qp)
        await asyncio.wait([asking])


async def test_listeners(ctx: Context) -> None:
    host = address_of(ctx)
    async with cm.listen(host, 0) as listener:
        for where, options, code in (
            (listener.local, {}, errno.EADDRINUSE),
            (("192.0.2.1", 9), {}, errno.EADDRNOTAVAIL),
        ):
            with pytest.raises(VerbsError) as e:
                async with cm.listen(*where, **options):
                    pass
            assert (e.value.errno, e.value.verb) == (code, "rdma_bind_addr")
    for bad, error in (({"backlog": 0}, ValueError), ({"backlog": "1"}, TypeError)):
        with pytest.raises(error, match="backlog"):
            cm.listen(host, 0, **bad)
        with pytest.raises(error, match="backlog"):
            blocking.listen(host, 0, **bad)
    with pytest.raises(ValueError, match="port is 65536"):
        blocking.listen(host, 65536)


def test_a_qp_whose_cq_is_gone(ctx: Context) -> None:
    cq = CQ(ctx, 4)
    qp = QP(PD(ctx), QPType.RC, send_cq=cq)
    qp.close()
    with pytest.raises(ClosedError):
        blocking.connect(qp, address_of(ctx), 9)
