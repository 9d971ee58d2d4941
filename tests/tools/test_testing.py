# SPDX-License-Identifier: MIT
"""cqnotify.testing: endpoints, their connection, and the wait for completions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv6Address
from typing import Any

import pytest
from support import GRH, Waiter, new_state, until

from cqnotify import (
    AH,
    CQ,
    MR,
    MTU,
    PD,
    QP,
    SRQ,
    AccessFlags,
    BusyError,
    CompletionChannel,
    Context,
    QPAddress,
    QPState,
    QPType,
    WCStatus,
    WROpcode,
    testing,
)
from cqnotify.testing import Endpoint, PairFactory, _endpoint, connect, wait_completions

pytestmark = pytest.mark.rdma

TYPES = [QPType.RC, QPType.UC, QPType.UD]
LOCAL_WRITE = AccessFlags.LOCAL_WRITE
REMOTE_WRITE, REMOTE_READ = AccessFlags.REMOTE_WRITE, AccessFlags.REMOTE_READ
REMOTE_ATOMIC = AccessFlags.REMOTE_ATOMIC
RIGHTS = {
    QPType.RC: REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC,
    QPType.UC: REMOTE_WRITE,
    QPType.UD: AccessFlags(0),
}


@pytest.fixture
def end(ctx: Context) -> Iterator[Endpoint]:
    with Endpoint(ctx) as end:
        yield end


def parts(end: Endpoint) -> list[Any]:
    return [end.qp, end.mr, end.recv_cq, end.send_cq, end.channel, end.pd]


def test_the_example_of_the_module_runs() -> None:
    assert testing.__doc__ is not None
    lines = testing.__doc__.partition("asleep:\n")[2].splitlines()
    names = {"Context": Context, **vars(testing)}
    exec("\n".join(line[4:] for line in lines), names)
    assert names["wc"].byte_len == 5


def test_its_parts_belong_together(end: Endpoint, ctx: Context) -> None:
    assert end.ctx is end.pd.context is end.channel.context is ctx
    assert end.qp.send_cq is end.send_cq is not end.recv_cq is end.qp.recv_cq
    assert end.send_cq.channel is end.recv_cq.channel is end.channel
    assert end.qp.pd is end.mr.pd is end.pd
    assert (end.qp.qp_type, end.qp.state) == (QPType.RC, new_state(ctx))
    assert end.to_peer == {}


def test_what_it_is_told_counts(ctx: Context) -> None:
    options: dict[str, Any] = {"max_send_wr": 100, "max_send_sge": 3, "sq_sig_all": True}
    with Endpoint(ctx, size=100, access=LOCAL_WRITE, cqe=3, one_cq=True, **options) as end:
        assert (end.mr.length, end.mr.access) == (100, LOCAL_WRITE)
        assert end.send_cq is end.recv_cq
        assert 3 <= end.send_cq.cqe < 10
        assert end.qp.max_send_wr >= 100
        assert end.qp.max_send_sge >= 3


@pytest.mark.not_on_iwarp("siw has no atomics, and does not tell the access of a QP")
@pytest.mark.parametrize("qp_type", TYPES)
def test_a_peer_may_do_what_the_type_of_the_qp_can(ctx: Context, qp_type: QPType) -> None:
    with Endpoint(ctx, qp_type) as a, Endpoint(ctx, qp_type) as b:
        connect(a, b)
        for end in (a, b):
            assert end.mr.access == LOCAL_WRITE | RIGHTS[qp_type]
            assert end.qp.query().qp_access_flags & RIGHTS[QPType.RC] == RIGHTS[qp_type]


@pytest.mark.not_on_iwarp("path and timers are those of TCP")
def test_connect_hands_its_options_on(ctx: Context) -> None:
    with Endpoint(ctx) as a, Endpoint(ctx) as b:
        assert connect(a, b, path_mtu=512, access=REMOTE_READ, gid_index=1) == (a, b)
        for end in (a, b):
            attr = end.qp.query()
            assert attr.path_mtu is MTU.MTU_512
            assert attr.qp_access_flags == REMOTE_READ
            assert attr.ah_attr.sgid_index == 1
            assert attr.ah_attr.dgid == ctx.query_gid(1).gid


def assert_reaches(one: Endpoint, other: Endpoint) -> None:
    header = GRH if one.qp.qp_type == QPType.UD else 0
    one.mr.write(b"hello")
    other.qp.post_recv(other.mr[100:200])
    one.qp.post_send(one.mr[0:5], **one.to_peer)
    assert wait_completions(other.recv_cq)[0].raise_for_status().byte_len == 5 + header
    assert other.mr.read(5, 100 + header) == b"hello"
    wait_completions(one.send_cq)[0].raise_for_status()


@pytest.mark.parametrize("two_devices", [False, True], ids=["one device", "wire"])
@pytest.mark.parametrize("qp_type", TYPES)
def test_to_peer_reaches_it(
    rdma_pair: PairFactory, qp_type: QPType, two_devices: bool, ctx: Context, ctx2: Context
) -> None:
    a, b = rdma_pair(qp_type, two_devices=two_devices)
    assert a.ctx is ctx
    assert b.ctx is (ctx2 if two_devices else ctx)
    for one, other in ((a, b), (b, a)):
        assert_reaches(one, other)


def test_datagrams_carry_the_qkey_that_was_given(rdma_pair: PairFactory) -> None:
    a, b = rdma_pair(QPType.UD, qkey=0x1234)
    assert a.to_peer["remote_qkey"] == 0x1234
    assert_reaches(a, b)


@pytest.mark.parametrize(
    ("options", "path"),
    [({}, {}), ({"sl": 3, "hop_limit": 2, "timeout": 14}, {"sl": 3, "hop_limit": 2})],
    ids=["no options", "options of connect"],
)
def test_without_a_gid_a_datagram_goes_to_the_lid_on_the_path_that_connect_was_given(
    end: Endpoint, options: dict[str, Any], path: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is on InfiniBand, which rxe is not: AH itself would refuse it."""
    given: dict[str, int] = {}
    monkeypatch.setattr(_endpoint, "AH", lambda pd, **attr: given.update(attr))
    peer = QPAddress(lid=7, qp_num=1, psn=0, gid=IPv6Address(0))
    _endpoint._address_handle(end, peer, 1, None, options)
    assert given == {"dlid": 7, "port_num": 1, **path}


def test_ends_share_the_parts_that_they_are_given(ctx: Context) -> None:
    with Endpoint(ctx) as a:
        shared = {"pd": a.pd, "channel": a.channel, "recv_cq": a.recv_cq, "mr": a.mr}
        with Endpoint(ctx, **shared) as b:
            assert {name: getattr(b, name) for name in shared} == shared
            assert b.send_cq is not a.send_cq
            assert b.send_cq.channel is a.channel
        assert b.qp.closed
        assert b.send_cq.closed
        assert not any(part.closed for part in parts(a))
        with Endpoint(ctx, send_cq=a.send_cq, one_cq=True) as c:
            assert c.recv_cq is c.send_cq is a.send_cq
        assert not a.send_cq.closed


def test_an_end_uses_the_pd_of_the_memory_that_it_is_given(ctx: Context) -> None:
    with PD(ctx) as pd, MR(pd, 64, access=AccessFlags.LOCAL_WRITE) as mr:
        with Endpoint(ctx, mr=mr) as a, Endpoint(ctx) as b:
            assert (a.pd, a.qp.pd, a.mr) == (pd, pd, mr)
            connect(a, b)
            a.qp.post_recv(mr)
            b.mr.write(b"into it")
            b.qp.post_send(b.mr[:7])
            wait_completions(a.recv_cq)
            assert mr.read(7) == b"into it"
        assert (mr.closed, pd.closed) == (False, False)


def test_an_end_receives_from_an_srq(ctx: Context) -> None:
    pd = PD(ctx)
    srq = SRQ(pd, 4)
    with Endpoint(ctx) as a, Endpoint(ctx, pd=pd, srq=srq) as b:
        connect(a, b)
        srq.post_recv(b.mr)
        a.qp.post_send(a.mr[0:8])
        assert wait_completions(b.recv_cq)[0].raise_for_status().byte_len == 8


# The end of it ----------------------------------------------------------------


@pytest.mark.parametrize("qp_type", TYPES)
def test_close_closes_all_of_it_with_work_in_flight(ctx: Context, qp_type: QPType) -> None:
    a, b = connect(Endpoint(ctx, qp_type), Endpoint(ctx, qp_type))
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:8], **a.to_peer)
    ah = a.to_peer.get("ah")
    for end in (a, b, a):
        end.close()
    assert all(part.closed for part in parts(a) + parts(b))
    assert ah is None or ah.closed
    assert not ctx.closed


def left_open() -> list[Any]:
    """What can still be found of any context that is open."""
    kinds = (PD, CompletionChannel, CQ, MR, AH, QP)
    return [thing for thing in gc.get_objects() if isinstance(thing, kinds) and not thing.closed]


def test_connecting_again_leaves_no_address_handle_behind(ctx: Context) -> None:
    with Endpoint(ctx, QPType.UD) as a, Endpoint(ctx, QPType.UD) as b:
        for _ in range(2):
            connect(a, b)
            a.qp.modify(qp_state=QPState.RESET)
            b.qp.modify(qp_state=QPState.RESET)
    assert left_open() == []


def test_what_was_made_from_its_pd_is_closed_with_it(ctx: Context) -> None:
    with Endpoint(ctx) as end:
        made = [
            *(MR(end.pd, 4096), SRQ(end.pd, 4), QP(end.pd, QPType.RC, send_cq=end.send_cq)),
            Endpoint(ctx, pd=end.pd, channel=end.channel, send_cq=end.send_cq, recv_cq=end.recv_cq),
        ]
        end.qp.to_init()
        end.qp.post_recv(made[0])  # in flight
    assert all(part.closed for part in (*made[:3], made[3].qp, made[3].mr, *parts(end)))
    assert left_open() == []


def test_what_was_made_from_a_pd_that_was_given_stays_open(ctx: Context) -> None:
    with PD(ctx) as pd, Endpoint(ctx, pd=pd) as end, MR(pd, 4096) as mr:
        end.close()
        assert end.qp.closed
        assert end.mr.closed
        assert not mr.closed


def test_what_somebody_else_uses_is_a_busy_error_that_names_it(end: Endpoint) -> None:
    pd = PD(end.ctx)
    other = QP(pd, QPType.RC, send_cq=end.send_cq)
    with pytest.raises(BusyError, match="QP"):
        end.close()
    assert end.qp.closed
    assert not end.send_cq.closed
    other.close()
    pd.close()
    end.close()
    assert all(part.closed for part in parts(end))


def test_an_exception_is_worth_more_than_what_is_busy(ctx: Context) -> None:
    pd = PD(ctx)
    with pytest.raises(ZeroDivisionError), Endpoint(ctx) as end:
        other = QP(pd, QPType.RC, send_cq=end.send_cq)
        raise ZeroDivisionError
    with pytest.raises(BusyError), end:
        pass
    other.close()
    pd.close()
    end.close()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("bogus", "'?bogus"),
        ("size", "length is -1"),
        ("cqe", "cqe is -1"),
        ("max_send_wr", "is -1"),
    ],
)
def test_one_that_cannot_be_made_leaves_nothing_open(ctx: Context, option: str, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        Endpoint(ctx, **{option: -1})
    assert left_open() == []


# Waiting ----------------------------------------------------------------------


def polled(cq: CQ, n: int) -> bool:
    return cq.stats.completions == n


def test_a_wait_sleeps_until_the_last_of_them(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = rdma_rc_pair
    waiter = Waiter(lambda: wait_completions(b.recv_cq, 3))
    for i in range(3):
        until(partial(polled, b.recv_cq, i), "the waiter has those before")
        waiter.asleep()
        b.qp.post_recv(b.mr[0:64], wr_id=i)
        a.qp.post_send(a.mr[0:8])
    assert [wc.wr_id for wc in waiter.join()] == [0, 1, 2]
    assert (b.recv_cq.stats.events, b.recv_cq.unacked) == (3, 0)


def test_it_takes_no_more_than_it_was_asked_for(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    a, _ = rdma_rc_pair
    for i in range(3):
        a.qp.post_send(None, wr_id=i, opcode=WROpcode.RDMA_WRITE, remote_addr=0, rkey=0)
    got = wait_completions(a.send_cq, 2) + wait_completions(a.send_cq)
    assert [wc.wr_id for wc in got] == [0, 1, 2]


def test_nor_does_it_if_more_come_while_it_sleeps(
    rdma_rc_pair: tuple[Endpoint, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = rdma_rc_pair

    def bring(n: int) -> None:
        for _ in range(n):
            a.qp.post_send(a.mr[0:8])
        wait_completions(a.send_cq, n)  # so they have arrived

    def two_come(*_: object) -> None:
        monkeypatch.undo()
        bring(2)

    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    bring(1)
    monkeypatch.setattr(_endpoint, "_sleep", two_come)
    assert [wc.wr_id for wc in wait_completions(b.recv_cq, 2)] == [0, 1]
    assert [wc.wr_id for wc in wait_completions(b.recv_cq)] == [2]


@pytest.mark.not_on_iwarp("a write completes when TCP has it, though the peer refuses it")
def test_it_returns_failures_too(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = rdma_rc_pair
    a.qp.post_send(a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr, rkey=b.mr.rkey ^ 1)
    (wc,) = wait_completions(a.send_cq)
    assert wc.status is WCStatus.REM_ACCESS_ERR


def test_what_came_by_the_deadline_is_told(rdma_rc_pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = rdma_rc_pair
    b.qp.post_recv(b.mr[0:64], wr_id=77)
    a.qp.post_send(a.mr[0:8])
    wait_completions(a.send_cq)
    with pytest.raises(TimeoutError, match=r"1 of 2 completions within 0\.5 s: .*wr_id=77"):
        wait_completions(b.recv_cq, 2, timeout=0.5)


def test_a_cq_without_a_channel_is_refused(ctx: Context) -> None:
    with CQ(ctx, 4) as cq, pytest.raises(ValueError, match="channel"):
        wait_completions(cq)
