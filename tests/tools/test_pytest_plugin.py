# SPDX-License-Identifier: MIT
"""pytest_cqnotify, by suites that use it: fixtures, what is closed when, what a failure shows."""

from __future__ import annotations

import errno
import re

import pytest
from plugin_support import Run, told

from cqnotify import VerbsError, _report, devices
from cqnotify.testing import Endpoint
from pytest_cqnotify import SECTION

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.rdma, pytest.mark.usefixtures("conversation")]


def test_each_fixture_is_what_it_says(run_suite: Run) -> None:
    run_suite("""
        def test_devices(rdma_device, rdma_device2):
            assert [rdma_device, rdma_device2] == devices()[:2]

        def test_contexts(rdma_device, rdma_context, rdma_device2, rdma_context2):
            assert rdma_context.name == rdma_device.name
            assert rdma_context2.name == rdma_device2.name

        def test_parts(rdma_context, rdma_pd, rdma_channel, rdma_cq, rdma_mr):
            assert rdma_pd.context is rdma_channel.context is rdma_cq.context is rdma_context
            assert rdma_cq.channel is rdma_channel and rdma_cq.cqe >= 255
            assert rdma_mr.pd is rdma_pd and rdma_mr.length == 65536
            assert rdma_mr.access == AccessFlags.LOCAL_WRITE

        def test_pairs(rdma_context, rdma_rc_pair, rdma_uc_pair, rdma_ud_pair):
            pairs = {QPType.RC: rdma_rc_pair, QPType.UC: rdma_uc_pair, QPType.UD: rdma_ud_pair}
            for qp_type, (a, b) in pairs.items():
                assert type(a) is type(b) is Endpoint
                assert a.qp.qp_type == b.qp.qp_type == qp_type
                assert a.ctx is b.ctx is rdma_context
                send(a, b)
    """).assert_outcomes(passed=4)


def test_a_pair_is_made_to_order(run_suite: Run) -> None:
    run_suite("""
        def test_options(rdma_pair):
            for end in rdma_pair(size=100, cqe=1, one_cq=True, max_send_wr=100, path_mtu=512):
                assert end.mr.length == 100 and end.recv_cq is end.send_cq
                attr = end.qp.query()
                assert attr.cap.max_send_wr >= 100 and attr.path_mtu.bytes == 512

        def test_access_is_that_of_the_memory(rdma_pair):
            a, b = rdma_pair(access=AccessFlags.LOCAL_WRITE)
            assert b.mr.access == AccessFlags.LOCAL_WRITE
            a.qp.post_send(
                a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr, rkey=b.mr.rkey
            )
            assert wait_completions(a.send_cq)[0].status is WCStatus.REM_ACCESS_ERR

        def test_an_unknown_option(rdma_pair):
            with pytest.raises(TypeError, match="bogus"):
                rdma_pair(bogus=1)

        def test_several(rdma_pair):
            pairs = [rdma_pair(), rdma_pair(QPType.UC)]
            for a, b in pairs:
                send(a, b)
    """).assert_outcomes(passed=4)


def test_everything_is_closed_after_each_test(run_suite: Run) -> None:
    run_suite("""
        made = []

        def test_passes(rdma_mr, rdma_cq, rdma_ud_pair, rdma_rc_pair):
            for end in (*rdma_ud_pair, *rdma_rc_pair):
                made.extend([end.pd, end.channel, end.send_cq, end.recv_cq, end.mr, end.qp])
            made.extend([rdma_mr, rdma_mr.pd, rdma_cq, rdma_cq.channel, rdma_cq.context])
            made.append(rdma_ud_pair[0].to_peer["ah"])
            assert not any(part.closed for part in made)

        def test_after_it():
            assert len(made) == 30 and all(part.closed for part in made)
    """).assert_outcomes(passed=2)


def test_a_failed_test_is_one_failure_and_the_next_one_works(run_suite: Run) -> None:
    """What a failed test made itself is held by its traceback, and still in use by then."""
    result = run_suite("""
        def test_fails(rdma_pair, rdma_pd, rdma_cq, rdma_mr):
            a, b = rdma_pair(rnr_retry=7)
            mine = QP(rdma_pd, QPType.RC, send_cq=rdma_cq)
            mine.to_init()
            mine.post_recv(rdma_mr)
            also_mine = QP(b.pd, QPType.RC, send_cq=b.send_cq)
            a.qp.post_send(a.mr)  # for ever: no receive is posted
            a.send_cq.req_notify()
            assert not "this one fails"

        def test_works(rdma_rc_pair, rdma_pd, rdma_cq, rdma_mr):
            send(*rdma_rc_pair)
            with QP(rdma_pd, QPType.RC, send_cq=rdma_cq) as mine:
                mine.to_init()
                mine.post_recv(rdma_mr)
    """)
    result.assert_outcomes(passed=1, failed=1)
    assert "this one fails" in result.stdout.str()


def test_what_does_not_close_goes_with_the_context(
    run_suite: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(end: Endpoint) -> None:
        raise VerbsError(errno.EIO, "the device refuses")

    monkeypatch.setattr(Endpoint, "close", refuse)
    run_suite("""
        kept = []

        def test_it(rdma_rc_pair):
            kept.extend(end.qp for end in rdma_rc_pair)

        def test_after_it():
            assert kept[0].closed and kept[1].closed
    """).assert_outcomes(passed=2)


def test_a_test_may_close_all_or_part_of_it_itself(run_suite: Run) -> None:
    run_suite("""
        def test_parts(rdma_rc_pair, rdma_mr, rdma_pd):
            rdma_rc_pair[0].qp.close()
            rdma_rc_pair[1].close()
            rdma_mr.close()
            rdma_pd.close()

        def test_all(rdma_ud_pair, rdma_cq, rdma_mr, rdma_context):
            rdma_context.close()
    """).assert_outcomes(passed=2)


def test_a_fixture_of_the_user_finds_open_what_it_uses(run_suite: Run) -> None:
    """It was set up before rdma_cq, so it is torn down after that."""
    run_suite("""
        ended = []

        @pytest.fixture
        def service(rdma_pd, rdma_context):
            cq = CQ(rdma_context, 4)
            with QP(rdma_pd, QPType.RC, send_cq=cq) as qp:
                yield qp
                qp.to_init()
                ended.append(qp.state)
            cq.close()

        def test_it(service, rdma_cq, rdma_rc_pair): pass

        def test_after_it():
            assert ended == [QPState.INIT]
    """).assert_outcomes(passed=2)


def test_a_context_can_be_shared_by_a_module(run_suite: Run) -> None:
    run_suite("""
        seen = []

        @pytest.fixture(scope="module")
        def rdma_context(rdma_device):
            with Context(rdma_device) as ctx:
                yield ctx

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(rdma_rc_pair, rdma_cq, rdma_mr, rdma_context, n):
            assert seen.count(rdma_context) == n - 1
            assert all(part.closed for part in seen if part is not rdma_context)
            seen.extend([rdma_context, rdma_cq, rdma_mr, rdma_rc_pair[1].qp])
    """).assert_outcomes(passed=2)


def test_a_failure_tells_what_was_outstanding_and_what_came(run_suite: Run) -> None:
    result = run_suite("""
        def test_it(rdma_rc_pair):
            a, b = rdma_rc_pair
            b.qp.post_recv([RecvWR(b.mr[0:64]), RecvWR(b.mr[64:128])])
            a.qp.post_send(a.mr[0:5])
            wait_completions(b.recv_cq)
            wait_completions(b.recv_cq, timeout=0.1)
    """)
    result.assert_outcomes(failed=1)
    device = devices()[0].name
    head, sender, receiver, *others = told(result)
    assert head == f"{device}: asynchronous events: none seen"
    assert sender == ("QP N: RC, RTS, peer QP N; outstanding: 1 send on CQ 1, 0 receives on CQ 2")
    assert receiver == ("QP N: RC, RTS, peer QP N; outstanding: 0 sends on CQ 3, 1 receive on CQ 4")
    assert others[3].startswith("CQ 4: armed, ")
    assert len(others) == 4 + 2


def test_a_failure_tells_of_dead_queue_pairs_and_unread_events(run_suite: Run) -> None:
    result = run_suite("""
        def test_it(rdma_rc_pair, rdma_pd, rdma_cq):
            a, b = rdma_rc_pair
            mine = QP(rdma_pd, QPType.UD, send_cq=rdma_cq, srq=SRQ(rdma_pd, 4))
            a.send_cq.req_notify()
            a.qp.post_send(
                a.mr[0:8], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr, rkey=b.mr.rkey ^ 1
            )
            while a.qp.state != QPState.ERR: pass
            while not select.select([a.channel.fileno()], [], [], 30)[0]: pass
            assert not "this one fails"
    """)
    result.assert_outcomes(failed=1)
    lines = told(result)
    assert "QP N: RC, ERR; outstanding: 1 send on CQ 1, 0 receives on CQ 2" in lines
    assert "QP N: UD, RESET; outstanding: 0 sends on CQ 5, receives by SRQ 1 on CQ 5" in lines
    assert "SRQ 1: 0 receives outstanding" in lines
    counters = "completions 0, polls 0, arms 1, events 0, acked 0, spurious 0"
    assert any(re.fullmatch(rf"CQ 1: armed, \d+ entries; {counters}", line) for line in lines)
    unread = "the channel of CQ 1, CQ 2: an unread event, 0 threads in get_event()"
    assert unread in lines


def test_a_failure_tells_of_the_devices_reports_and_takes_none(run_suite: Run) -> None:
    result = run_suite("""
        @pytest.fixture
        def looks_on(rdma_context):
            yield
            event = rdma_context.get_async_event(timeout=30)
            assert event.event_type is AsyncEventType.CQ_ERR

        def test_it(rdma_pair, looks_on):
            a, b = rdma_pair(cqe=1)
            for n in range(3):
                b.qp.post_recv(b.mr)
                a.qp.post_send(a.mr[0:1])
            with pytest.raises(AsyncEventError):
                while True:
                    a.channel.get_event(timeout=30)
            assert not "this one fails"
    """)
    result.assert_outcomes(failed=1)
    assert re.search("asynchronous events: .*CQ_ERR of CQ ", told(result)[0])
    assert told(result)[0].endswith(", some unread")


def test_a_failure_across_two_devices_tells_of_both(run_suite: Run) -> None:
    result = run_suite("""
        def test_it(rdma_pair):
            rdma_pair(two_devices=True)
            assert not "this one fails"
    """)
    heads = [line for line in told(result) if ": asynchronous events: " in line]
    assert [head.partition(":")[0] for head in heads] == [d.name for d in devices()[:2]]


def test_nothing_is_told_where_there_is_nothing(run_suite: Run) -> None:
    result = run_suite("""
        def test_closed(rdma_context):
            rdma_context.close()
            assert not "this one fails"

        def test_without(): assert not "this one fails"

        def test_passes(rdma_rc_pair): pass

        @pytest.mark.xfail
        def test_xfails(rdma_rc_pair): assert not "this one fails"

        def test_skips(rdma_rc_pair): pytest.skip()
    """)
    result.assert_outcomes(failed=2, passed=1, xfailed=1, skipped=1)
    assert SECTION not in result.stdout.str()


def test_a_report_that_fails_is_a_line(run_suite: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(context: object) -> None:
        raise VerbsError(errno.EIO, "the device refuses")

    monkeypatch.setattr(_report, "open_objects", fails)
    result = run_suite("""
        def test_it(rdma_rc_pair): assert not "this one fails"
    """)
    result.assert_outcomes(failed=1)
    text = "a Context that cannot be described: VerbsError: [Errno 5] the device refuses"
    assert told(result) == [text]
