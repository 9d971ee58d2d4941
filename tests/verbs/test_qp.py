# SPDX-License-Identifier: MIT
import errno
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Any

import pytest
from support import (
    DEADLINE,
    QKEY,
    Endpoint,
    Link,
    Pair,
    connect,
    join,
    new_state,
    outstanding,
    take_all,
    wait_completions,
    wait_one,
)

from cqnotify import (
    AH,
    CQ,
    MTU,
    PD,
    QP,
    AccessFlags,
    AHAttr,
    AsyncEventType,
    Context,
    MigState,
    QPAddress,
    QPState,
    QPType,
    VerbsError,
    WCStatus,
)
from cqnotify._core import QP as CoreQP

TYPES = [QPType.RC, QPType.UC, QPType.UD]


@pytest.mark.parametrize("qp_type", TYPES)
def test_a_new_qp_is_in_reset_and_knows_what_it_was_made_of(
    pd: PD, cq: CQ, qp_type: QPType
) -> None:
    with CQ(pd.context, 4) as other:
        qp = QP(pd, qp_type, send_cq=cq, recv_cq=other, user_data="mine")
        assert qp.state is new_state(pd.context)
        assert qp.qp_type == qp_type
        assert (qp.pd, qp.send_cq, qp.recv_cq, qp.context) == (pd, cq, other, pd.context)
        assert qp.user_data == "mine"
        assert outstanding(qp) == (0, 0)
        assert qp.max_send_wr >= 16
        assert 0 <= qp.sq_psn < 1 << 24
        assert qp.sq_psn == qp.sq_psn  # drawn once
        qp.close()


def test_without_recv_cq_both_sides_complete_on_send_cq(ctx: Context) -> None:
    a, b = connect(Endpoint(ctx, QPType.RC, one_cq=True), Endpoint(ctx, QPType.RC, one_cq=True))
    assert b.qp.recv_cq is b.qp.send_cq is b.scq
    b.qp.post_recv(b.mr[0:64], wr_id=1)
    a.qp.post_send(a.mr[0:8], wr_id=2)
    assert wait_one(b.scq).wr_id == 1
    assert wait_one(a.scq).wr_id == 2
    assert outstanding(a.qp) == outstanding(b.qp) == (0, 0)


def test_more_inline_data_than_the_device_takes_is_refused(pd: PD, cq: CQ) -> None:
    with pytest.raises(VerbsError, match="max_inline_data=100000") as e:
        QP(pd, QPType.RC, send_cq=cq, max_inline_data=100_000)
    assert e.value.verb == "ibv_create_qp"
    assert e.value.errno == errno.EINVAL


@pytest.mark.not_on_iwarp("a connection of TCP has neither path nor timers")
def test_connect_sets_what_was_asked_for(pair: Pair) -> None:
    a, b = pair
    attr = a.qp.query()
    assert attr.qp_state is a.qp.state is QPState.RTS
    assert attr.dest_qp_num == b.qp.qp_num
    assert attr.sq_psn == a.qp.sq_psn
    assert attr.rq_psn == b.qp.sq_psn
    assert attr.path_mtu is a.ctx.query_port().active_mtu
    assert attr.ah_attr.dgid == b.qp.address().gid
    remote = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
    assert attr.qp_access_flags == remote
    assert attr.cap.max_send_wr >= a.qp.max_send_wr >= 64


@pytest.mark.usefixtures("conversation")
def test_every_transition_with_its_attributes_by_hand(ctx: Context) -> None:
    """What connect() does, in the verbs' own terms, and back to RESET."""
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    gid = ctx.find_gid()
    to_rtr = {"path_mtu": MTU.MTU_512, "max_dest_rd_atomic": 4, "min_rnr_timer": 12}
    to_rts = {"timeout": 10, "retry_cnt": 3, "rnr_retry": 2, "max_rd_atomic": 4}
    path = AHAttr(dgid=gid.gid, sgid_index=gid.index, traffic_class=3)
    for me, peer in ((a, b), (b, a)):
        me.qp.modify(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        assert me.qp.state is QPState.INIT
        whom = {"dest_qp_num": peer.qp.qp_num, "rq_psn": 0x123456, "ah_attr": path}
        me.qp.modify(qp_state=QPState.RTR, **whom, **to_rtr)
        assert me.qp.state is QPState.RTR
        me.qp.modify(qp_state=QPState.RTS, sq_psn=0x123456, **to_rts)
    attr = a.qp.query()
    assert {name: getattr(attr, name) for name in to_rtr} == to_rtr
    assert {name: getattr(attr, name) for name in to_rts} == to_rts
    assert (attr.ah_attr.dgid, attr.ah_attr.traffic_class) == (gid.gid, 3)
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:64])
    wait_one(b.rcq)
    b.qp.post_recv(b.mr[0:64])
    for state in (QPState.ERR, QPState.RESET):
        b.qp.modify(qp_state=state)
        assert b.qp.state is state
    assert outstanding(b.qp) == (0, 0)
    b.mr.close()


@pytest.mark.not_on_iwarp("siw knows no RESET")
def test_a_reset_drops_the_work_requests_and_keeps_the_completions(link: Link) -> None:
    a, b = link.a, link.b
    for i in range(4):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    a.qp.post_send(a.mr[0:8])
    wait_one(a.scq)
    b.qp.modify(qp_state=QPState.RESET)
    assert outstanding(b.qp) == (0, 0)
    assert [wc.wr_id for wc in b.rcq.poll()] == [0]
    link.reconnect()
    b.qp.post_recv(b.mr[0:64], wr_id=9)
    a.qp.post_send(a.mr[0:8])
    assert wait_one(b.rcq).wr_id == 9


def send(a: Endpoint, b: Endpoint, wr_id: int) -> None:
    b.qp.post_recv(b.mr[0:64], wr_id=wr_id)
    path: dict[str, Any] = {}
    if a.qp.qp_type == QPType.UD:
        gid = a.ctx.find_gid()
        ah = AH(a.pd, dgid=gid.gid, sgid_index=gid.index)
        path = {"ah": ah, "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}
    a.qp.post_send(a.mr[0:8], wr_id=wr_id, **path)


def drain(end: Endpoint) -> None:
    """The send queue is told to drain, and then reports that it did."""
    take_all(end.ctx)
    end.qp.modify(qp_state=QPState.SQD, en_sqd_async_notify=1)
    event = end.ctx.get_async_event(timeout=DEADLINE)
    assert (event.event_type, event.qp) == (AsyncEventType.SQ_DRAINED, end.qp)
    attr = end.qp.query()
    assert (attr.qp_state, attr.sq_draining) == (QPState.SQD, 0)


@pytest.mark.not_on_iwarp("siw knows no SQD")
@pytest.mark.parametrize("qp_type", TYPES)
def test_a_drained_send_queue_keeps_what_is_posted_and_still_receives(
    ctx: Context, qp_type: QPType
) -> None:
    a, b = connect(Endpoint(ctx, qp_type), Endpoint(ctx, qp_type))
    drain(a)
    send(a, b, 1)
    send(b, a, 5)
    assert wait_one(a.rcq).wr_id == 5
    assert (a.scq.poll(), b.rcq.poll()) == ([], [])
    assert outstanding(a.qp) == (1, 0)
    a.qp.modify(qp_state=QPState.RTS)
    send(a, b, 2)  # rxe does not look at its queue before
    for cq in (a.scq, b.rcq):
        assert [wc.wr_id for wc in wait_completions(cq, 2)] == [1, 2]


@pytest.mark.not_on_iwarp("siw knows no SQD")
def test_a_send_queue_that_drains_is_named_as_why_its_state_can_not_be_left(pair: Pair) -> None:
    a = pair[0]
    a.qp.post_send(a.mr[0:8], wr_id=1)  # waits for a receive
    a.qp.modify(qp_state=QPState.SQD)
    with pytest.raises(VerbsError, match=r"from SQD to RTS: the send queue is still draining: "):
        a.qp.modify(qp_state=QPState.RTS)
    a.qp.modify(qp_state=QPState.ERR)
    assert wait_one(a.scq, WCStatus.WR_FLUSH_ERR).wr_id == 1


@pytest.mark.not_on_iwarp("a connection of TCP has neither path nor timers")
def test_what_a_ready_qp_lets_change_is_read_back(pair: Pair) -> None:
    qp = pair[0].qp
    qp.modify(
        cur_qp_state=QPState.RTS,
        min_rnr_timer=5,
        qp_access_flags=AccessFlags.REMOTE_READ,
        path_mig_state=MigState.REARM,
    )
    attr = qp.query()
    assert (attr.min_rnr_timer, attr.qp_access_flags) == (5, AccessFlags.REMOTE_READ)
    assert (attr.qp_state, attr.path_mig_state) == (QPState.RTS, MigState.REARM)


@pytest.mark.not_on_iwarp("a connection of TCP has neither path nor timers")
def test_a_drained_qp_lets_its_path_and_timers_change(pair: Pair) -> None:
    a, b = pair
    drain(a)
    gid = a.ctx.find_gid()
    new = {
        "ah_attr": AHAttr(dgid=gid.gid, sgid_index=gid.index, traffic_class=7),
        "timeout": 9,
        "retry_cnt": 3,
        "rnr_retry": 2,
        "max_rd_atomic": 4,
        "max_dest_rd_atomic": 8,
        "pkey_index": 0,
        "port_num": 1,
    }
    for name, value in new.items():
        a.qp.modify(**{name: value})
    attr = a.qp.query()
    assert {name: getattr(attr, name) for name in new} == new
    a.qp.modify(qp_state=QPState.RTS, cur_qp_state=QPState.SQD)
    send(a, b, 1)
    assert wait_one(b.rcq).wr_id == 1


@pytest.mark.not_on_iwarp("siw takes transitions that are not allowed")
@pytest.mark.parametrize("qp_type", TYPES)
def test_only_the_device_moves_a_qp_to_sqe(ctx: Context, qp_type: QPType) -> None:
    a, b = connect(Endpoint(ctx, qp_type), Endpoint(ctx, qp_type))
    with pytest.raises(VerbsError, match="from RTS to SQE: there is no such transition") as e:
        a.qp.modify(qp_state=QPState.SQE)
    assert e.value.errno == errno.EINVAL
    send(a, b, 1)
    assert wait_one(b.rcq).wr_id == 1


@pytest.mark.not_on_iwarp("a connection of TCP has neither path nor timers")
def test_an_alternate_path_is_complete_and_not_for_roce(pair: Pair) -> None:
    qp = pair[0].qp
    gid = qp.context.find_gid()
    path = AHAttr(dgid=gid.gid, sgid_index=gid.index)
    qp.check_modify(alt_ah_attr=path, alt_timeout=14, alt_pkey_index=0, alt_port_num=1)
    for name in ("alt_timeout", "alt_pkey_index", "alt_port_num"):
        with pytest.raises(TypeError, match="alt_timeout go with alt_ah_attr"):
            qp.check_modify(**{name: 1})
    with pytest.raises(ValueError, match="alt_port_num is 2: this device has port 1 to 1"):
        qp.check_modify(alt_ah_attr=path, alt_port_num=2)
    with pytest.raises(VerbsError, match="port is of RoCE, which has no alternate path") as e:
        qp.modify(alt_ah_attr=path, path_mig_state=MigState.REARM)
    assert e.value.errno == errno.EINVAL
    assert qp.query().alt_ah_attr.dgid in (None, IPv6Address("::"))


def test_the_capacities_are_those_that_the_device_has(pair: Pair) -> None:
    """It may refuse to change them, or ignore it, as rxe does since Linux 6.3."""
    a, _ = pair
    with suppress(VerbsError):
        a.qp.modify(cap={"max_send_wr": 5, "max_send_sge": 9, "max_inline_data": 300})
    cap = a.qp.query().cap
    assert (a.qp.max_send_sge, a.qp.max_inline_data) == (cap.max_send_sge, cap.max_inline_data)
    with pytest.raises(ValueError, match="sg has more elements than the"):
        a.qp.post_send([a.mr[0:8]] * (cap.max_send_sge + 1))


@pytest.mark.parametrize(
    ("attrs", "error", "message"),
    [
        ({"qp_state": 9}, ValueError, "qp_state is 9: it must be 0 to 6"),
        ({"retry_cnt": 8}, ValueError, "retry_cnt is 8: it must be 0 to 7"),
        ({"timeout": 32}, ValueError, "timeout is 32: it must be 0 to 31"),
        ({"rq_psn": 1 << 24}, ValueError, "rq_psn is 16777216"),
        ({"port_num": 0}, ValueError, "port_num is 0: this device has port 1"),
        ({"port_num": -1}, ValueError, "port_num is -1"),
        ({"path_mtu": 6}, ValueError, "path_mtu is 6: it must be 0 to 5"),
        ({"ah_attr": {"port_num": 3}}, ValueError, "port_num is 3"),
        ({"ah_attr": {"nonsense": 1}}, TypeError, "has no field 'nonsense'"),
        ({"nonsense": 1}, TypeError, "unexpected keyword argument 'nonsense'"),
        ({"retry_cnt": "7"}, TypeError, "retry_cnt must be an integer, not str"),
        ({}, TypeError, "at least one attribute"),
    ],
)
def test_an_attribute_that_can_not_be_is_refused_with_the_limit(
    pair: Pair, attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pair[0].qp.modify(**attrs)
    assert pair[0].qp.state is QPState.RTS


def test_names_of_attributes_are_strings(pair: Pair) -> None:
    with pytest.raises(TypeError, match="keywords must be strings"):
        CoreQP.modify(pair[0].qp, **{1: 2})  # type: ignore[misc]


def test_connect_wants_a_peer_where_there_is_one(pd: PD, cq: CQ) -> None:
    rc, ud = QP(pd, QPType.RC, send_cq=cq), QP(pd, QPType.UD, send_cq=cq)
    with pytest.raises(ValueError, match="remote"):
        rc.connect()
    with pytest.raises(ValueError, match="remote"):
        ud.connect(rc.address())
    ud.connect()
    assert ud.state is QPState.RTS
    with pytest.raises(ValueError, match="RTS"):
        ud.connect()
    with pytest.raises(TypeError, match="remote must be a QPAddress, not str"):
        rc.connect("peer")  # type: ignore[arg-type]


def test_a_connect_that_is_refused_changes_nothing(ctx: Context) -> None:
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    peer = b.qp.address()
    wrong = [("retry_cnt", 9), ("ack_timeout", 32), ("port_num", 2), ("hop_limit", 256)]
    wrong += [("path_mtu", mtu) for mtu in (0, 1000, 4096)]
    for name, value in wrong:
        with pytest.raises(ValueError, match=name):
            a.qp.connect(peer._replace(qp_num=99), **{name: value})  # type: ignore[arg-type]
        assert a.qp.state is QPState.RESET
    connect(a, b, path_mtu=512)
    assert a.qp.query().path_mtu is MTU.MTU_512
    assert a.qp.query().dest_qp_num == b.qp.qp_num
    with pytest.raises(ValueError, match="connect"):
        a.qp.connect(peer)


def test_a_peer_that_can_not_be_reached_is_an_error_not_a_hang(pd: PD, cq: CQ) -> None:
    qp = QP(pd, QPType.RC, send_cq=cq)
    nobody = QPAddress(lid=0, qp_num=5, psn=0, gid=IPv6Address("2001:db8::1"))
    with pytest.raises(VerbsError, match="reached"):
        qp.connect(nobody)


def test_receives_can_be_posted_before_the_connection(ctx: Context) -> None:
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    b.qp.to_init()
    b.qp.post_recv(b.mr[0:64], wr_id=3)
    connect(a, b)
    a.qp.post_send(a.mr[0:8])
    assert wait_one(b.rcq).wr_id == 3


@pytest.mark.not_on_iwarp("libsiw has room for 144 pages of queues in a context")
def test_many_qps_share_a_cq_and_keep_their_numbers_apart(ctx: Context) -> None:
    """More than fit the first table, closed in a mixed order."""
    hub = Endpoint(ctx, QPType.RC, cqe=256)
    sender = Endpoint(ctx, QPType.RC, cqe=256)
    rows, joined = [], []
    for _ in range(40):
        a = QP(sender.pd, QPType.RC, send_cq=sender.scq)
        b = QP(hub.pd, QPType.RC, send_cq=hub.rcq)
        joined.append(join(a, b))
        b.post_recv(hub.mr[0:64], wr_id=b.qp_num)
        rows.append((a, b))
    for a, b in rows[::3]:
        a.close()
        b.close()
    rest = [row for i, row in enumerate(rows) if i % 3]
    for a, b in rest:
        a.post_send(sender.mr[0:8])
        wc = wait_one(hub.rcq)
        assert wc.wr_id == wc.qp_num == b.qp_num
        assert outstanding(b) == (0, 0)


@pytest.mark.parametrize("gid", [None, "fe80::1", bytes(16)])
def test_an_address_whose_gid_is_none_changes_nothing(pd: PD, cq: CQ, gid: object) -> None:
    qp = QP(pd, QPType.RC, send_cq=cq)
    remote = qp.address()._replace(gid=gid)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gid must be an IPv6Address"):
        qp.connect(remote)
    with pytest.raises(TypeError, match="gid must be an IPv6Address"):
        remote.to_wire()
    assert qp.state == QPState.RESET
