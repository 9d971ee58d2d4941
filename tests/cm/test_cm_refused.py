# SPDX-License-Identifier: MIT
"""Bad arguments are refused with an error message, before the device is asked."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from cm_support import SOON, Side, address_of, connected, link_local
from support import is_iwarp, new_state

from cqnotify import ClosedError, Context, QPType, VerbsError, cm
from cqnotify.cm import blocking

OPTIONS = [
    ({"private_data": "text"}, TypeError, "private_data must be a bytes-like object, not str"),
    ({"retry_count": 8}, ValueError, "retry_count is 8: it must be 0 to 7"),
    ({"rnr_retry_count": -1}, ValueError, "rnr_retry_count is -1: it must be 0 to 7"),
    ({"ack_timeout": 32}, ValueError, "ack_timeout is 32: it must be 0 to 31"),
    ({"tos": 256}, ValueError, "tos is 256: it must be 0 to 255"),
    ({"responder_resources": 256}, ValueError, "responder_resources is 256"),
    (
        {"responder_resources": 255},
        ValueError,
        "is 255: .* at most .*max_qp_rd_atom",
    ),
    (
        {"initiator_depth": 254},
        ValueError,
        "is 254: .* at most .*max_qp_init_rd_atom",
    ),
    ({"initiator_depth": 1.5}, TypeError, "initiator_depth must be an int, not float"),
    ({"retry_count": True}, TypeError, "retry_count must be an int, not bool"),
    ({"rnr_retry_count": [7]}, TypeError, "rnr_retry_count must be an int, not list"),
    (
        {"access": "all"},
        TypeError,
        "access must be AccessFlags such as AccessFlags.REMOTE_WRITE, not 'all'",
    ),
    ({"source": ""}, ValueError, "host is '': give an address or a name"),
    ({"source": "nowhere.invalid"}, OSError, "'nowhere.invalid' does not resolve"),
]

# Of connect, accept and reject; on iWARP or not.
LIMITS = {False: (56, 196, 148), True: (251, 251, 251)}

WHERE = [
    (("", 7), ValueError, "host is '': give an address or a name"),
    (("no.such.name.invalid", 7), OSError, "'no.such.name.invalid' does not resolve"),
    (("10.99.0.1", 0), ValueError, "port is 0: it must be 1 to 65535"),
    (("10.99.0.1", 65536), ValueError, "port is 65536: it must be 1 to 65535"),
    (("10.99.0.1", "7"), TypeError, "port must be an int, not str"),
    (("10.99.0.256", 7), OSError, "'10.99.0.256' does not resolve"),
    (("a\0b", 7), ValueError, "give an address or a name"),
    (("127.0.0.1", 7), VerbsError, "a loopback address has no RDMA device"),
    (("::1", 7), VerbsError, "a loopback address has no RDMA device"),
    (("192.0.2.1", 7), VerbsError, "rdma_resolve_addr: Network is unreachable"),
]


async def listen(*args: Any) -> None:
    async with cm.listen(*args):
        pass


def test_an_address_of_the_link_is_bound_with_its_interface(ctx: Context) -> None:
    """Each interface can have it; the kernel says EINVAL."""
    whole = link_local(ctx)
    host = whole.partition("%")[0]
    words = f"{host} is a link-local address, .* add the interface, as in {whole}"
    qp = Side(ctx).qp
    calls: list[Callable[[], object]] = [
        lambda: asyncio.run(listen(host, 0)),
        lambda: blocking.listen(host, 0),
        lambda: asyncio.run(cm.connect(qp, whole, 9, source=host)),
        lambda: blocking.connect(qp, whole, 9, source=host),
        lambda: asyncio.run(cm.resolve(whole, source=host)),
        lambda: blocking.resolve(whole, source=host),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(ValueError, match=r"as in fe80::1234%eth0"):
        blocking.listen("fe80::1234", 0)


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
    assert side.qp.state == new_state(ctx)


def test_private_data_has_a_limit(ctx: Context) -> None:
    most, *_ = LIMITS[is_iwarp(ctx)]
    words = f"private_data has {most + 1} bytes: at most {most} fit here"
    for call in both(Side(ctx).qp, address_of(ctx), 9, private_data=bytes(most + 1)):
        with pytest.raises(ValueError, match=words):
            call()


async def test_the_most_private_data_arrives(ctx: Context) -> None:
    of_connect, of_accept, of_reject = (os.urandom(most) for most in LIMITS[is_iwarp(ctx)])
    async with cm.listen(address_of(ctx), 0) as listener:
        for answer in ("accept", "reject"):
            where = listener.local
            asking = asyncio.create_task(cm.connect(Side(ctx).qp, *where, private_data=of_connect))
            request = await listener.get_request(SOON)
            assert request.private_data == of_connect
            if answer == "accept":
                async with await request.accept(Side(ctx).qp, private_data=of_accept):
                    assert (await asking).private_data == of_accept
            else:
                await request.reject(of_reject)
                with pytest.raises(cm.RejectedError) as e:
                    await asking
                assert e.value.private_data == of_reject


@pytest.mark.parametrize(("where", "error", "words"), WHERE, ids=lambda x: str(x)[:40])
def test_addresses(ctx: Context, where: Any, error: type[Exception], words: str) -> None:
    side = Side(ctx)
    for call in both(side.qp, *where):
        with pytest.raises(error, match=words):
            call()
    assert side.qp.state == new_state(ctx)


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
        _, most, most_of_reject = LIMITS[is_iwarp(ctx)]
        with pytest.raises(ValueError, match=f"at most {most} fit here"):
            await request.accept(Side(ctx).qp, private_data=bytes(most + 1))
        with pytest.raises(ValueError, match=f"at most {most_of_reject} fit here"):
            await request.reject(bytes(most_of_reject + 1))
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
        asking = asyncio.create_task(cm.connect(Side(ctx).qp, *listener.local))
        request = await listener.get_request(SOON)
        await request.reject()
        for answer in (request.accept(Side(ctx).qp), request.reject()):
            with pytest.raises(ValueError, match="this request was rejected already"):
                await answer
        await asyncio.wait([asking])


async def test_listeners(ctx: Context) -> None:
    host = address_of(ctx)
    async with cm.listen(host, 0) as listener:
        for where, options, code in (
            (listener.local, {}, errno.EADDRINUSE),
            (("192.0.2.1", 9), {}, errno.EADDRNOTAVAIL),
        ):
            with pytest.raises(VerbsError, match=f"{where[0]}.*{where[1]}") as e:
                async with cm.listen(*where, **options):
                    pass
            assert (e.value.errno, e.value.verb) == (code, "rdma_bind_addr")
        listener.close()
        with pytest.raises(ClosedError, match="listening on .* port [1-9][0-9]*: closed"):
            await listener.get_request()
    with pytest.raises(socket.gaierror, match="'nowhere.invalid' does not resolve"):
        async with cm.listen("nowhere.invalid", 0):
            pass
    for bad, error in (({"backlog": 0}, ValueError), ({"backlog": "1"}, TypeError)):
        with pytest.raises(error, match="backlog"):
            cm.listen(host, 0, **bad)
        with pytest.raises(error, match="backlog"):
            blocking.listen(host, 0, **bad)
    with pytest.raises(ValueError, match="port is 65536"):
        blocking.listen(host, 65536)


async def test_a_listener_whose_block_was_not_entered(ctx: Context) -> None:
    listener = cm.listen(address_of(ctx), 7)
    assert repr(listener) == f"<Listener: {address_of(ctx)} port 7, not entered>"
    with pytest.raises(RuntimeError, match="does not listen yet: enter its `async with` block"):
        _ = listener.local
    listener.close()
    with pytest.raises(RuntimeError, match="does not listen yet"):
        await listener.get_request()


async def test_datagrams_have_limits_of_their_own(ctx: Context) -> None:
    ends = [Side(ctx, QPType.UD).qp for _ in range(2)]
    with pytest.raises(ValueError, match="private_data has 181 bytes: at most 180 fit here"):
        await cm.connect(ends[0], address_of(ctx), 9, private_data=bytes(181))
    async with cm.listen(address_of(ctx), 0, datagrams=True) as listener:
        most = bytes(range(180))
        asking = asyncio.create_task(cm.connect(ends[0], *listener.local, private_data=most))
        request = await listener.get_request(SOON)
        assert request.private_data[:180] == most
        for answer in (
            request.accept(ends[1], private_data=bytes(137)),
            request.reject(bytes(137)),
        ):
            with pytest.raises(ValueError, match="at most 136 fit here"):
                await answer
        (await request.accept(ends[1], private_data=most[:136])).close()
        assert (await asking).private_data[:136] == most[:136]
