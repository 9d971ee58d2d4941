# SPDX-License-Identifier: MIT
"""Two ports with different MTUs: both ends of a connection take the smaller one, or an error names
the MTU."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Pair,
    connect,
    ip_link,
    is_rxe,
    kernel,
    until,
    wait_completions,
    wait_one,
)

from cqnotify import (
    MTU,
    AccessFlags,
    CompletionError,
    Context,
    QPAddress,
    QPType,
    VerbsError,
    WCStatus,
    cm,
    messages,
)

pytestmark = pytest.mark.not_on_iwarp("a connection of TCP has no path MTU")

SIZE = 65536  # many packets


@pytest.fixture
def larger(ctx2: Context, netdev: str) -> Iterator[Context]:
    """The second device, whose port has a larger MTU than that of the first."""
    if not is_rxe(ctx2):
        pytest.skip("the MTU of a port follows that of its net device on rxe")
    before = Path("/sys/class/net", netdev, "mtu").read_text().strip()
    ip_link(netdev, "mtu", "4500")
    try:
        until(lambda: ctx2.query_port().active_mtu == MTU.MTU_4096, "it has the larger MTU")
        yield ctx2
    finally:
        ip_link(netdev, "mtu", before)
        until(lambda: ctx2.query_port().active_mtu == MTU.MTU_1024, "it is as before")


def check(a: Endpoint, b: Endpoint, path_mtu: MTU = MTU.MTU_1024) -> None:
    """Long messages go both ways, in packets that both take."""
    assert a.qp.query().path_mtu == b.qp.query().path_mtu == path_mtu
    for one, other in ((a, b), (b, a)):
        other.qp.post_recv(other.mr[0:SIZE])
        one.qp.post_send(one.mr[0:SIZE])
        assert wait_one(other.rcq).byte_len == SIZE
        wait_one(one.scq)


@pytest.fixture
def ends(ctx: Context, larger: Context) -> Pair:
    assert ctx.query_port().active_mtu == MTU.MTU_1024
    return Endpoint(ctx, QPType.RC, size=SIZE), Endpoint(larger, QPType.RC, size=SIZE)


@pytest.mark.parametrize("turned", [False, True], ids=["first to second", "second to first"])
def test_two_ends_take_the_smaller_mtu(ends: Pair, turned: bool) -> None:
    check(*connect(*(reversed(ends) if turned else ends)))


def test_the_ends_of_one_port_take_its_own(larger: Context) -> None:
    ends = Endpoint(larger, QPType.RC, size=SIZE), Endpoint(larger, QPType.RC, size=SIZE)
    check(*connect(*ends), MTU.MTU_4096)


def test_an_address_tells_the_mtu_of_its_port(ends: Pair) -> None:
    a, b = ends
    there, here = (pickle.loads(pickle.dumps(end.qp.address())) for end in (b, a))
    assert (here.mtu, there.mtu) == (MTU.MTU_1024, MTU.MTU_4096)
    for end, remote in ((a, there), (b, here)):
        end.qp.connect(remote, access=AccessFlags.REMOTE_WRITE)
    check(a, b)


def test_a_path_mtu_beyond_the_port_of_the_peer_is_refused(ends: Pair) -> None:
    a, b = ends
    with pytest.raises(ValueError, match="path_mtu is 2048 bytes: the peer's port's active MTU is"):
        b.qp.connect(a.qp.address(), path_mtu=2048)
    with pytest.raises(ValueError, match=r"remote\.mtu is 0: it must be an MTU, or None"):
        b.qp.connect(a.qp.address()._replace(mtu=0))
    with pytest.raises(TypeError, match=r"remote\.mtu must be an MTU or None, not 'x'"):
        b.qp.connect(a.qp.address()._replace(mtu="x"))  # type: ignore[arg-type]
    check(*connect(a, b, path_mtu=512), MTU.MTU_512)


def test_an_address_from_the_wire_needs_a_path_mtu(ends: Pair) -> None:
    """Where it is not given, the error names it."""
    a, b = ends
    here, there = (QPAddress.from_wire(end.qp.address().to_wire()) for end in ends)
    assert here.mtu is None
    a.qp.connect(there, retry_cnt=1)
    b.qp.connect(here, retry_cnt=1)
    assert (a.qp.query().path_mtu, b.qp.query().path_mtu) == (MTU.MTU_1024, MTU.MTU_4096)
    b.qp.post_recv(b.mr[0:SIZE])
    a.qp.post_send(a.mr[0:SIZE])
    (wc,) = wait_completions(a.scq)
    if kernel() < (6, 2):  # rxe takes shorter packets than the QP expects, too
        assert wc.status == WCStatus.SUCCESS
        wait_one(b.rcq)
        return
    assert wc.status == WCStatus.REM_INV_REQ_ERR
    with pytest.raises(CompletionError, match="or the path MTU of its QP is another one"):
        wc.raise_for_status()


# ---- over rdma_cm ---------------------------------------------------------------------------


def link_local(ctx: Context, netdev: str) -> tuple[str, str]:
    """Where its port listens, and how that is reached by the other one."""
    for host in cm.local_addresses(ctx):
        address, _, own = host.partition("%")
        if own:
            return host, f"{address}%{netdev}"
    raise AssertionError("the device has no address of the link")


def other_netdev(ctx: Context) -> str:
    return next(entry.netdev for entry in ctx.query_gid_table() if entry.netdev)


async def test_who_connects_from_the_smaller_port_chooses_its_mtu(
    ctx: Context, larger: Context, ends: Pair
) -> None:
    client, server = ends
    own, reached = link_local(larger, other_netdev(ctx))
    async with cm.listen(own, 0) as listener:
        asking = asyncio.create_task(cm.connect(client.qp, reached, listener.local[1]))
        accepted = await (await listener.get_request(DEADLINE)).accept(server.qp)
        async with await asking, accepted:
            await asyncio.to_thread(check, client, server)


async def test_who_connects_from_the_larger_port_is_refused_and_told_of_the_mtu(
    ctx: Context, larger: Context, ends: Pair
) -> None:
    server, client = ends
    own, reached = link_local(ctx, other_netdev(larger))
    async with cm.listen(own, 0) as listener:
        asking = asyncio.create_task(cm.connect(client.qp, reached, listener.local[1]))
        request = await listener.get_request(DEADLINE)
        words = f"packets of 4096 bytes .its MTU., and port 1 of {ctx.name} takes 1024: give both"
        with pytest.raises(VerbsError, match=words) as e:
            await request.accept(server.qp)
        assert e.value.errno == errno.EMSGSIZE
        await request.reject(b"as you like")
        with pytest.raises(cm.RejectedError, match="the MTU of its port is smaller") as rejected:
            await asking
        assert rejected.value.private_data.startswith(b"as you like")


async def test_messages_take_the_smaller_mtu_or_refuse_with_its_name(
    ctx: Context, larger: Context
) -> None:
    own, reached = link_local(larger, other_netdev(ctx))
    async with messages.listen(own, 0) as listener:
        client = await messages.connect(reached, listener.local[1])
        server = await listener.accept(DEADLINE)
        for one, other in ((client, server), (server, client)):
            received: Any = (await asyncio.gather(other.recv(), one.send(bytes(SIZE))))[0]
            assert len(received[0]) == SIZE
        await asyncio.gather(client.aclose(), server.aclose())
    own, reached = link_local(ctx, other_netdev(larger))
    async with messages.listen(own, 0) as listener:
        with pytest.raises(messages.RefusedError, match="the MTU of your port is larger than that"):
            await messages.connect(reached, listener.local[1])
