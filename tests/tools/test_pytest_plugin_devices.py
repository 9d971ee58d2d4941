# SPDX-License-Identifier: MIT
"""pytest_cqnotify where a device is missing or is another one; options and the marker."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest
from plugin_support import Run
from support import ip_link, until

import cqnotify
from cqnotify import AtomicCap, Context, Device, DeviceAttr, PortState, VerbsError, devices
from cqnotify.testing._requirements import Requirements

pytest_plugins = ["pytester"]
DOCS = Path(__file__).parents[2] / "docs" / "pytest.md"
FIXTURES = [
    *["rdma_device", "rdma_device2", "rdma_context", "rdma_context2"],
    *["rdma_pd", "rdma_channel", "rdma_cq", "rdma_mr"],
    *["rdma_pair", "rdma_rc_pair", "rdma_uc_pair", "rdma_ud_pair"],
    *["rdma_chaos", "hosts"],
]


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cqnotify, "devices", list)


# No device, another device ----------------------------------------------------

TWO_TESTS = """
    def test_fixture(rdma_rc_pair): pass

    @pytest.mark.rdma
    def test_marker(): pass
"""


@pytest.mark.usefixtures("no_device")
def test_without_a_device_tests_are_skipped(run_suite: Run) -> None:
    result = run_suite(TWO_TESTS)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * rdma: there is no RDMA device"] * 2)


@pytest.mark.usefixtures("no_device")
def test_without_a_device_that_is_required_they_fail(run_suite: Run) -> None:
    result = run_suite(TWO_TESTS, "--rdma-required")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["rdma: there is no RDMA device (--rdma-required)"] * 2)


@pytest.fixture
def closed_device(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the first device, which cannot be opened."""
    first = devices()[0].name

    class Opened(Context):
        __slots__ = ()

        def __new__(cls, name: str | Device | None = None) -> Opened:
            if isinstance(name, Device) and name.name == first:
                raise VerbsError(errno.EACCES, "ibv_open_device: Permission denied")
            return super().__new__(cls, name)

    monkeypatch.setattr(cqnotify, "Context", Opened)
    return first


@pytest.mark.usefixtures("conversation")
def test_a_device_that_cannot_be_opened_is_left_out(run_suite: Run, closed_device: str) -> None:
    name = devices()[1].name
    result = run_suite(f"""
        def test_fixture(rdma_context):
            assert rdma_context.name == {name!r}

        @pytest.mark.rdma(devices=1)
        def test_marker(): pass

        @pytest.mark.rdma(devices=2)
        def test_both(): pass
    """)
    result.assert_outcomes(passed=2, skipped=1)
    says = (
        f"SKIPPED * rdma: 2 devices are needed, this machine has {len(devices()) - 1}: {name}, "
        f"{closed_device} (cannot be opened: ibv_open_device: Permission denied)"
    )
    result.stdout.fnmatch_lines([says])


@pytest.mark.usefixtures("conversation")
def test_a_named_device_that_cannot_be_opened_is_an_error(
    run_suite: Run, closed_device: str
) -> None:
    result = run_suite(TWO_TESTS, "--rdma-device", closed_device)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*ibv_open_device: Permission denied"] * 2)


def test_a_device_that_is_named_and_not_there_is_an_error(run_suite: Run) -> None:
    result = run_suite(TWO_TESTS, "--rdma-device", "nosuch")
    result.assert_outcomes(errors=2)
    there = ", ".join(device.name for device in devices())
    says = f"--rdma-device: no device 'nosuch'; there are: {there}"
    result.stdout.fnmatch_lines([says] * 2)


@pytest.mark.usefixtures("conversation")
def test_named_devices_are_the_ones_and_in_this_order(run_suite: Run) -> None:
    first, second = (device.name for device in devices()[:2])
    result = run_suite(
        f"""
        def test_it(rdma_context, rdma_context2):
            assert (rdma_context.name, rdma_context2.name) == ({second!r}, {first!r})
        """,
        f"--rdma-device={second},{first}",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("conversation")
def test_no_other_than_the_named_devices_are_used(run_suite: Run) -> None:
    name = devices()[1].name
    result = run_suite(
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
def test_a_pair_uses_the_gid_of_the_given_index(run_suite: Run, ctx: Context) -> None:
    source = """
        def test_it(rdma_ud_pair, rdma_rc_pair):
            for end in rdma_rc_pair:
                path = end.qp.query().ah_attr
                assert path.sgid_index == 1 and path.dgid == end.ctx.query_gid(1).gid
            send(*rdma_rc_pair)
            send(*rdma_ud_pair)
    """
    run_suite(source, "--rdma-gid-index=1").assert_outcomes(passed=1)
    result = run_suite(source, "--rdma-gid-index=99")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E * no GID at index 99; {ctx.name} port 1 has *"])


@pytest.mark.usefixtures("conversation")
def test_a_port_that_is_not_there_is_an_error(run_suite: Run) -> None:
    result = run_suite(TWO_TESTS, "--rdma-port=2")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["E * port_num is 2: it must be 1 to 1*"] * 2)


@pytest.mark.usefixtures("conversation")
def test_a_pair_is_not_made_on_a_port_that_is_down(run_suite: Run, netdev: str) -> None:
    name = devices()[0].name
    with Context(name) as ctx:
        ip_link(netdev, "down")  # which cuts both off
        until(lambda: ctx.query_port().state == PortState.DOWN, "the port is down")
    source = """
        def test_it(rdma_pair):
            rdma_pair(two_devices=True)
    """
    result = run_suite(source)
    result.assert_outcomes(skipped=1)
    says = f"rdma: port 1 of device {name} is DOWN, not ACTIVE"
    result.stdout.fnmatch_lines([f"SKIPPED * {says}"])
    result = run_suite(source, "--rdma-required")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{says} (--rdma-required)"])


# The marker -------------------------------------------------------------------


@pytest.mark.rdma(atomics=True, mw=True, multicast=True)
def test_what_is_there_is_there(run_suite: Run) -> None:
    result = run_suite(
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
    run_suite: Run, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    name = devices()[which].name
    none = {"max_srq": 0, "max_mw": 0, "max_mcast_grp": 0}
    lacking(monkeypatch, name, atomic_cap=AtomicCap.NONE, **none)
    source = "".join(
        f"@pytest.mark.rdma(devices={which + 1}, {wants})\ndef test_{i}(): assert False\n"
        for i, wants in enumerate(LACKS)
    )
    result = run_suite(source)
    result.assert_outcomes(skipped=len(LACKS))
    reasons = [f"device {name} has {what}" for what in LACKS.values()]
    lines = result.stdout.str().splitlines()
    told = [line.partition(": rdma: ")[2] for line in lines if line.startswith("SKIPPED")]
    assert [any(reason in text for text in told) for reason in reasons] == [True] * len(LACKS)
    result = run_suite(source, "--rdma-required")
    result.assert_outcomes(errors=len(LACKS))
    assert result.stdout.str().count("(--rdma-required)") >= len(LACKS)


def test_all_markers_of_a_test_count(run_suite: Run) -> None:
    result = run_suite("""
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


def test_a_mistake_in_the_marker_fails_its_test_and_no_other(run_suite: Run) -> None:
    result = run_suite(
        """
        @pytest.mark.rdma(atomic=True)
        def test_it(): pass

        @pytest.mark.rdma(devices=0)
        @pytest.mark.skip
        def test_skipped(): pass

        @pytest.mark.rdma
        def test_other(): pass
        """
    )
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines(
        [
            f"rdma() knows {KNOWN}; not atomic",
            "rdma(devices=0): devices must be a number of at least 1",
        ]
    )


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


def test_the_number_of_hosts_is_the_one_argument_of_their_marker(run_suite: Run) -> None:
    wrong = ["n=3", "2, 3", "'3'", "True", "0", "9"]
    tests = [
        f"@pytest.mark.hosts({given})\ndef test_{i}(hosts): pass" for i, given in enumerate(wrong)
    ]
    result = run_suite("\n".join(tests))
    result.assert_outcomes(errors=len(wrong))
    right = "give the number of hosts alone, 1 to 8, as in hosts(3)"
    result.stdout.fnmatch_lines([f"hosts({given}): {right}" for given in wrong])


# What pytest says of it -------------------------------------------------------


def test_each_fixture_has_a_docstring_and_no_other_names(run_suite: Run) -> None:
    listed = run_suite("", "--fixtures").stdout.str().partition("defined from pytest_cqnotify")[2]
    listed = re.split("\n---", listed)[0]
    assert re.findall(r"^(\w+).* -- .*pytest_cqnotify", listed, re.M) == FIXTURES
    assert "no docstring" not in listed


def test_the_marker_and_the_options_are_described(run_suite: Run) -> None:
    markers = run_suite("", "--markers").stdout.str()
    assert all(name in markers for name in KNOWN.split(", "))
    options = run_suite("", "--help").stdout.str()
    group = options.partition("RDMA devices (cqnotify):")[2]
    for option in ("--rdma-device=", "--rdma-port=", "--rdma-gid-index=", "--rdma-required"):
        assert option in group
        assert option.removesuffix("=") in DOCS.read_text()
    for option in ("--rdma-lab=", "--rdma-seed="):
        assert option in group
        assert option.removesuffix("=") in DOCS.with_name("hosts.md").read_text()


def test_the_docs_name_all_that_there_is(run_suite: Run) -> None:
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
