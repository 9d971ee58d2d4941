# SPDX-License-Identifier: MIT
"""pytest_cqnotify, by suites that use it: fixtures, what is closed when, options, the marker."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support import ip_link, until

import cqnotify
from cqnotify import AtomicCap, Context, DeviceAttr, PortState, VerbsError, devices
from cqnotify.testing import Endpoint, _state_report
from cqnotify.testing._requirements import Requirements
from pytest_cqnotify import SECTION

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.rdma

DOCS = Path(__file__).parents[2] / "docs" / "pytest.md"
FIXTURES = [
    *["rdma_device", "rdma_device2", "rdma_context", "rdma_context2"],
    *["rdma_pd", "rdma_channel", "rdma_cq", "rdma_mr"],
    *["rdma_pair", "rdma_rc_pair", "rdma_uc_pair", "rdma_ud_pair"],
    "hosts",
]
HEADER = """\
import select
import pytest
from cqnotify import *
from cqnotify.testing import Endpoint, wait_completions

def send(a, b):
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:5], **a.to_peer)
    wait_completions(b.recv_cq)[0].raise_for_status()
    wait_completions(a.send_cq)[0].raise_for_status()
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite of one file, in which a forgotten object or any other warning is an error.

    With no other plugins, which would be loaded each time, and take much longer than the tests.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(
        "[pytest]\n"
        "filterwarnings = error\n"
        "addopts = --strict-markers -rs -p no:cacheprovider -p no:faulthandler -p pytest_cqnotify\n"
    )

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEADER + dedent(source))
        return pytester.runpytest_inprocess(*options)

    return run


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cqnotify, "devices", list)


# Fixtures ---------------------------------------------------------------------


@pytest.mark.usefixtures("conversation")
def test_each_fixture_is_what_it_says(run: Run) -> None:
    result = run("""
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
    """)
    result.assert_outcomes(passed=4)


@pytest.mark.usefixtures("conversation")
def test_a_pair_is_made_to_order(run: Run) -> None:
    result = run("""
        @pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC, QPType.UD])
        def test_two_devices(rdma_pair, rdma_context, rdma_context2, qp_type):
            a, b = rdma_pair(qp_type, two_devices=True)
            assert a.ctx is rdma_context and b.ctx is rdma_context2
            send(a, b)
            send(b, a)

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
    """)
    result.assert_outcomes(passed=7)


@pytest.mark.usefixtures("conversation")
def test_everything_is_closed_after_each_test(run: Run) -> None:
    result = run("""
        made = []

        def test_passes(rdma_mr, rdma_cq, rdma_ud_pair, rdma_rc_pair):
            for end in (*rdma_ud_pair, *rdma_rc_pair):
                made.extend([end.pd, end.channel, end.send_cq, end.recv_cq, end.mr, end.qp])
            made.extend([rdma_mr, rdma_mr.pd, rdma_cq, rdma_cq.channel, rdma_cq.context])
            made.append(rdma_ud_pair[0].to_peer["ah"])
            assert not any(part.closed for part in made)

        def test_after_it():
            assert len(made) == 30 and all(part.closed for part in made)
    """)
    result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("conversation")
def test_a_failed_test_is_one_failure_and_the_next_one_works(run: Run) -> None:
    """What a failed test made itself is held by its traceback, and still in use by then."""
    result = run("""
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


@pytest.mark.usefixtures("conversation")
def test_what_does_not_close_goes_with_the_context(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(end: Endpoint) -> None:
        raise VerbsError(errno.EIO, "the device refuses")

    monkeypatch.setattr(Endpoint, "close", refuse)
    result = run("""
        kept = []

        def test_it(rdma_rc_pair):
            kept.extend(end.qp for end in rdma_rc_pair)

        def test_after_it():
            assert kept[0].closed and kept[1].closed
    """)
    result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("conversation")
def test_a_test_may_close_all_or_part_of_it_itself(run: Run) -> None:
    result = run("""
        def test_parts(rdma_rc_pair, rdma_mr, rdma_pd):
            rdma_rc_pair[0].qp.close()
            rdma_rc_pair[1].close()
            rdma_mr.close()
            rdma_pd.close()

        def test_all(rdma_ud_pair, rdma_cq, rdma_mr, rdma_context):
            rdma_context.close()
    """)
    result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("conversation")
def test_a_fixture_of_the_user_finds_open_what_it_uses(run: Run) -> None:
    """It was set up before rdma_cq, so it is torn down after that."""
    result = run("""
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
    """)
    result.assert_outcomes(passed=2)


@pytest.mark.usefixtures("conversation")
def test_a_context_can_be_shared_by_a_module(run: Run) -> None:
    result = run("""
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
    """)
    result.assert_outcomes(passed=2)


# What is told of a failure ----------------------------------------------------


def told(result: pytest.RunResult) -> list[str]:
    """The lines of the section, the names of QPs and of the device left out."""
    text = result.stdout.str()
    assert text.count(f" {SECTION} ") == 1
    lines = text.partition(f" {SECTION} ")[2].splitlines()[1:]
    end = next(n for n, line in enumerate(lines) if line.startswith(("---", "===", "___")))
    return [re.sub(r"QP \d+", "QP N", line) for line in lines[:end]]


@pytest.mark.usefixtures("conversation")
def test_a_failure_tells_what_was_outstanding_and_what_came(run: Run) -> None:
    result = run("""
        def test_it(rdma_rc_pair):
            a, b = rdma_rc_pair
            b.qp.post_recv([RecvWR(b.mr[0:64]), RecvWR(b.mr[64:128])])
            a.qp.post_send(a.mr[0:5])
            wait_completions(b.recv_cq)
            wait_completions(b.recv_cq, timeout=0.1)
    """)
    result.assert_outcomes(failed=1)
    device = devices()[0].name
    head, sender, receiver, *cqs = told(result)
    assert head == f"{device}: asynchronous events: none seen"
    assert sender == "QP N: RC, RTS; outstanding: 1 send on CQ 1, 0 receives on CQ 2"
    assert receiver == "QP N: RC, RTS; outstanding: 0 sends on CQ 3, 1 receive on CQ 4"
    assert [cq.partition(",")[0] for cq in cqs] == [
        "CQ 1: completions 0",
        "CQ 2: completions 0",
        "CQ 3: completions 0",
        "CQ 4: completions 1",
    ]
    assert re.fullmatch(
        r"CQ 4: completions 1, polls \d+, arms \d+, events (\d+), acked \1, spurious \d+", cqs[3]
    )


@pytest.mark.usefixtures("conversation")
def test_a_failure_tells_of_dead_queue_pairs_and_unread_events(run: Run) -> None:
    result = run("""
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
    assert "CQ 1: completions 0, polls 0, arms 1, events 0, acked 0, spurious 0" in lines
    assert lines[-1] == "the channel of CQ 1, CQ 2 has an unread event"


@pytest.mark.usefixtures("conversation")
def test_a_failure_tells_of_the_devices_reports_and_takes_none(run: Run) -> None:
    result = run("""
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


@pytest.mark.usefixtures("conversation")
def test_a_failure_across_two_devices_tells_of_both(run: Run) -> None:
    result = run("""
        def test_it(rdma_pair):
            rdma_pair(two_devices=True)
            assert not "this one fails"
    """)
    heads = [line for line in told(result) if ": asynchronous events: " in line]
    assert [head.partition(":")[0] for head in heads] == [d.name for d in devices()[:2]]


def test_many_objects_are_told_in_few_lines(run: Run) -> None:
    result = run("""
        def test_it(rdma_context):
            kept = [Endpoint(rdma_context) for _ in range(20)]
            assert not "this one fails"
    """)
    lines = told(result)
    assert len(lines) == 1 + 8 + 1 + 8 + 1
    assert "and 12 QPs more" in lines
    assert lines[-1] == "and 32 CQs more"


@pytest.mark.usefixtures("conversation")
def test_nothing_is_told_where_there_is_nothing(run: Run) -> None:
    result = run("""
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


@pytest.mark.usefixtures("conversation")
def test_a_report_that_fails_is_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(qp: object) -> None:
        raise VerbsError(errno.EIO, "the device refuses")

    monkeypatch.setattr(_state_report, "_state", fails)
    result = run("""
        def test_it(rdma_rc_pair): assert not "this one fails"
    """)
    result.assert_outcomes(failed=1)
    assert told(result) == ["cannot be told: VerbsError: [Errno 5] the device refuses"]


# No device, another device ----------------------------------------------------

TWO_TESTS = """
    def test_fixture(rdma_rc_pair): pass

    @pytest.mark.rdma
    def test_marker(): pass
"""


@pytest.mark.usefixtures("no_device")
def test_without_a_device_tests_are_skipped(run: Run) -> None:
    result = run(TWO_TESTS)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * rdma: there is no RDMA device"] * 2)


@pytest.mark.usefixtures("no_device")
def test_without_a_device_that_is_required_they_fail(run: Run) -> None:
    result = run(TWO_TESTS, "--rdma-required")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["rdma: there is no RDMA device (--rdma-required)"] * 2)


def test_a_device_that_is_named_and_not_there_is_an_error(run: Run) -> None:
    result = run(TWO_TESTS, "--rdma-device", "nosuch")
    result.assert_outcomes(errors=2)
    there = ", ".join(device.name for device in devices())
    says = f"--rdma-device: no device 'nosuch'; there are: {there}"
    result.stdout.fnmatch_lines([says] * 2)


@pytest.mark.usefixtures("conversation")
def test_named_devices_are_the_ones_and_in_this_order(run: Run) -> None:
    first, second = (device.name for device in devices()[:2])
    result = run(
        f"""
        def test_it(rdma_context, rdma_context2):
            assert (rdma_context.name, rdma_context2.name) == ({second!r}, {first!r})
        """,
        f"--rdma-device={second},{first}",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("conversation")
def test_no_other_than_the_named_devices_are_used(run: Run) -> None:
    name = devices()[1].name
    result = run(
        f"""
        def test_one(rdma_context):
            assert rdma_context.name == {name!r}

        def test_fixture(rdma_pair):
            rdma_pair(two_devices=True)

        @pytest.mark.rdma(devices=2)
        def test_marker(): pass
        """,
        f"--rdma-device={name}",
    )
    result.assert_outcomes(passed=1, skipped=2)
    says = f"SKIPPED * rdma: 2 devices are needed, --rdma-device names 1: {name}"
    result.stdout.fnmatch_lines([says] * 2)


@pytest.mark.usefixtures("conversation")
def test_a_pair_uses_the_gid_of_the_given_index(run: Run, ctx: Context) -> None:
    source = """
        def test_it(rdma_ud_pair, rdma_rc_pair):
            for end in rdma_rc_pair:
                path = end.qp.query().ah_attr
                assert path.sgid_index == 1 and path.dgid == end.ctx.query_gid(1).gid
            send(*rdma_rc_pair)
            send(*rdma_ud_pair)
    """
    run(source, "--rdma-gid-index=1").assert_outcomes(passed=1)
    result = run(source, "--rdma-gid-index=99")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E * no GID at index 99; {ctx.name} port 1 has *"])


@pytest.mark.usefixtures("conversation")
def test_a_port_that_is_not_there_is_an_error(run: Run) -> None:
    result = run(TWO_TESTS, "--rdma-port=2")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["E * port_num is 2: it must be 1 to 1*"] * 2)


@pytest.mark.usefixtures("conversation")
def test_a_pair_is_not_made_on_a_port_that_is_down(run: Run, netdev: str) -> None:
    name = devices()[0].name
    with Context(name) as ctx:
        ip_link(netdev, "down")  # which cuts both off
        until(lambda: ctx.query_port().state == PortState.DOWN, "the port is down")
    source = """
        def test_it(rdma_pair):
            rdma_pair(two_devices=True)
    """
    result = run(source)
    result.assert_outcomes(skipped=1)
    says = f"rdma: port 1 of device {name} is DOWN, not ACTIVE"
    result.stdout.fnmatch_lines([f"SKIPPED * {says}"])
    result = run(source, "--rdma-required")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{says} (--rdma-required)"])


# The marker -------------------------------------------------------------------


@pytest.mark.rdma(atomics=True, mw=True, multicast=True)
def test_what_is_there_is_there(run: Run) -> None:
    result = run(
        """
        @pytest.mark.rdma(
            devices=2, atomics=True, srq=True, mw=True, multicast=True, link_layer="Ethernet",
            min_mtu=1024, min_kernel="6.1",
        )
        def test_all_at_once(): pass

        @pytest.mark.rdma
        def test_device(): pass
        """,
        "--rdma-required",
    )
    result.assert_outcomes(passed=2)


def lacking(monkeypatch: pytest.MonkeyPatch, name: str, **attrs: Any) -> None:
    """The device of this name says so."""
    real = Context.query_device

    def query_device(self: Context) -> DeviceAttr:
        attr = real(self)
        return attr._replace(**attrs) if self.name == name else attr

    monkeypatch.setattr(Context, "query_device", query_device)


LACKS = {
    "atomics=True": "no atomics (atomic_cap is NONE)",
    "srq=True": "no shared receive queues (max_srq is 0)",
    "mw=True": "no memory windows (max_mw is 0)",
    "multicast=True": "no multicast (max_mcast_grp is 0)",
    "link_layer='InfiniBand'": "link layer Ethernet, not InfiniBand, on port 1",
    "min_mtu=4096": "an active MTU of 1024 bytes, not 4096, on port 1",
    "mw=True, multicast=True": (
        "no memory windows (max_mw is 0) and no multicast (max_mcast_grp is 0)"
    ),
}


@pytest.mark.parametrize("which", [0, 1], ids=["first device", "second device"])
def test_a_skip_names_what_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    name = devices()[which].name
    none = {"max_srq": 0, "max_mw": 0, "max_mcast_grp": 0}
    lacking(monkeypatch, name, atomic_cap=AtomicCap.NONE, **none)
    source = "".join(
        f"@pytest.mark.rdma(devices={which + 1}, {wants})\ndef test_{i}(): assert False\n"
        for i, wants in enumerate(LACKS)
    )
    result = run(source)
    result.assert_outcomes(skipped=len(LACKS))
    reasons = [f"device {name} has {what}" for what in LACKS.values()]
    lines = result.stdout.str().splitlines()
    told = [line.partition(": rdma: ")[2] for line in lines if line.startswith("SKIPPED")]
    assert [any(reason in text for text in told) for reason in reasons] == [True] * len(LACKS)
    result = run(source, "--rdma-required")
    result.assert_outcomes(errors=len(LACKS))
    assert result.stdout.str().count("(--rdma-required)") >= len(LACKS)


def test_all_markers_of_a_test_count(run: Run) -> None:
    result = run("""
        @pytest.mark.rdma(min_mtu=4096)
        class TestThem:
            @pytest.mark.rdma(min_kernel="99.1")
            def test_both(self): pass

            def test_one(self): pass

        @pytest.mark.rdma(devices=9)
        def test_devices(): pass
    """)
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * rdma: the test needs kernel 99.1, this is [0-9]*",
            "SKIPPED * rdma: * has an active MTU of 1024 *",
            f"SKIPPED * rdma: 9 devices are needed, this machine has {len(devices())}: *",
        ]
    )


KNOWN = "devices, atomics, srq, mw, multicast, link_layer, min_mtu, min_kernel"


def test_what_the_marker_does_not_know_is_an_error_at_collection(run: Run) -> None:
    result = run(
        """
        @pytest.mark.rdma(atomic=True)
        def test_it(): pass
        """,
        "--collect-only",
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *.py::test_it: rdma() knows {KNOWN}; not atomic"])


@pytest.mark.parametrize(
    ("name", "bad", "wanted"),
    [
        ("atomics", False, "True, or left out"),
        ("srq", 1, "True, or left out"),
        ("devices", 0, "a number of at least 1"),
        ("devices", True, "a number of at least 1"),
        ("link_layer", "RoCE", "InfiniBand or Ethernet"),
        ("link_layer", ["Ethernet"], "InfiniBand or Ethernet"),
        ("min_mtu", 1500, "one of 256, 512, 1024, 2048, 4096: bytes"),
        ("min_kernel", 6.1, "a version such as '6.12'"),
        ("min_kernel", "new", "a version such as '6.12'"),
    ],
)
def test_the_marker_refuses_what_an_argument_cannot_be(name: str, bad: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match="rdma") as e:
        Requirements.of(**{name: bad})
    assert str(e.value) == f"rdma({name}={bad!r}): {name} must be {wanted}"


def test_the_marker_takes_names_only() -> None:
    with pytest.raises(ValueError, match=rf"^rdma\(\) knows {KNOWN}; not 'atomics', warp$"):
        Requirements.of("atomics", warp=1, min_mtu=1024)


# What pytest says of it -------------------------------------------------------


def test_each_fixture_has_a_docstring_and_no_other_names(run: Run) -> None:
    listed = run("", "--fixtures").stdout.str().partition("defined from pytest_cqnotify")[2]
    listed = re.split("\n---", listed)[0]
    assert re.findall(r"^(\w+).* -- .*pytest_cqnotify", listed, re.M) == FIXTURES
    assert "no docstring" not in listed


def test_the_marker_and_the_options_are_described(run: Run) -> None:
    markers = run("", "--markers").stdout.str()
    assert all(name in markers for name in KNOWN.split(", "))
    options = run("", "--help").stdout.str()
    group = options.partition("RDMA devices (cqnotify):")[2]
    for option in ("--rdma-device=", "--rdma-port=", "--rdma-gid-index=", "--rdma-required"):
        assert option in group
        assert option.removesuffix("=") in DOCS.read_text()
    for option in ("--rdma-lab=", "--rdma-seed="):
        assert option in group
        assert option.removesuffix("=") in DOCS.with_name("hosts.md").read_text()


def test_the_docs_name_all_that_there_is(run: Run) -> None:
    text = DOCS.read_text()
    assert [name for name in FIXTURES if f"`{name}`" not in text] == []
    assert [name for name in KNOWN.split(", ") if f"`{name}=" not in text] == []


# Where nobody uses it ---------------------------------------------------------


def test_unused_it_does_not_load_the_package(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        from pathlib import Path

        def test_it():
            assert "pytest_cqnotify" in sys.modules
            assert "cqnotify" not in sys.modules
            assert "libibverbs" not in Path("/proc/self/maps").read_text()
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(rdma_context): pass")
    result = pytester.runpytest_inprocess("-p", "no:cqnotify", "-p", "no:faulthandler")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'rdma_context' not found"])


def test_it_can_be_named_besides(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['pytest_cqnotify']")
    pytester.makepyfile("def test_it(rdma_context): pass")
    result = pytester.runpytest_inprocess("-p", "pytest_cqnotify", "-p", "no:faulthandler")
    result.assert_outcomes(passed=1)
