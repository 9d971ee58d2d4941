# SPDX-License-Identifier: MIT
"""The pytest plugin: fixtures over real RDMA devices, and a marker for what a test needs of them.

pytest imports this wherever cqnotify is installed. So it stands beside the package, whose import
loads libibverbs, and reaches into it only where a test uses a fixture or the marker.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from cqnotify import CQ, MR, PD, CompletionChannel, Context, Device
    from cqnotify._requirements import Requirements
    from cqnotify.testing import Endpoint, MakePair

# ---- options and the marker ---------------------------------------------------------------

MARKER = """\
rdma(devices=2, atomics=True, srq=True, mw=True, multicast=True, link_layer="Ethernet", \
min_mtu=4096, min_kernel="6.12"): \
the test needs an RDMA device, or so many, and of each what is named; without arguments just a \
device. Where something is missing the test is skipped, or fails with --rdma-required."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdma", "RDMA devices (cqnotify)")
    group.addoption(
        "--rdma-device",
        metavar="NAME[,NAME]",
        help="the devices to test on, the first one first; by default all there are",
    )
    group.addoption(
        "--rdma-port",
        type=int,
        default=1,
        metavar="N",
        help="the port of each device; by default 1",
    )
    group.addoption(
        "--rdma-gid-index",
        type=int,
        metavar="N",
        help="the index of each device's GID, for pairs; by default its first RoCE v2 address",
    )
    group.addoption(
        "--rdma-required",
        action="store_true",
        help="a test that would be skipped, for what the machine or a device lacks, fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        try:
            list(_requirements(item))
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None


@pytest.hookimpl(tryfirst=True)  # before pytest looks for markers that skip
def pytest_runtest_setup(item: pytest.Item) -> None:
    try:
        for requirements in _requirements(item):
            _require(item.config, requirements)
    except pytest.skip.Exception as skipped:  # by a marker, to be reported where the test is
        item.add_marker(pytest.mark.skip(reason=str(skipped.msg)))


def _requirements(item: pytest.Item) -> Iterator[Requirements]:
    for marker in item.iter_markers("rdma"):
        from cqnotify._requirements import Requirements

        yield Requirements.of(*marker.args, **marker.kwargs)


def _require(config: pytest.Config, requirements: Requirements) -> None:
    from cqnotify import Context

    missing = [requirements.missing_here()]
    for device in _devices(config, requirements.devices):
        with Context(device) as ctx:
            missing.append(requirements.missing_in(ctx, config.option.rdma_port))
    if told := [what for what in missing if what is not None]:
        _unavailable(config, "; ".join(told))


def _unavailable(config: pytest.Config, what: str) -> NoReturn:
    if config.getoption("rdma_required"):
        pytest.fail(f"rdma: {what} (--rdma-required)", pytrace=False)
    pytest.skip(f"rdma: {what}")


def _devices(config: pytest.Config, n: int) -> list[Device]:
    """The first `n` of the devices to test on; does not return where there are fewer."""
    import cqnotify

    present = {device.name: device for device in cqnotify.devices()}
    option: str | None = config.getoption("rdma_device")
    names = list(present) if option is None else option.split(",")
    for name in names:
        if name not in present:
            there = ", ".join(present) or "none"
            pytest.fail(f"--rdma-device: no device '{name}'; there are: {there}", pytrace=False)
    if not names:
        _unavailable(config, "there is no RDMA device")
    if len(names) < n:
        has = "this machine has" if option is None else "--rdma-device names"
        _unavailable(config, f"{n} devices are needed, {has} {len(names)}: {', '.join(names)}")
    return [present[name] for name in names[:n]]


def _check_port(config: pytest.Config, ctx: Context, port_num: int) -> None:
    from cqnotify import PortState

    state = ctx.query_port(port_num).state
    if state < PortState.ACTIVE:
        name = state.name if isinstance(state, PortState) else state
        _unavailable(config, f"port {port_num} of device {ctx.name} is {name}, not ACTIVE")


def _close(part: PD | CompletionChannel | CQ | MR | Endpoint) -> None:
    """What is still in use, by what a failed test made or left in flight, goes with the context.

    So does what the device refuses to close; the context then says why, once.
    """
    from cqnotify import VerbsError

    with contextlib.suppress(VerbsError):
        part.close()


# ---- fixtures -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rdma_device(pytestconfig: pytest.Config) -> Device:
    """The device to test on, a cqnotify.Device; it is not open."""
    return _devices(pytestconfig, 1)[0]


@pytest.fixture(scope="session")
def rdma_device2(pytestconfig: pytest.Config) -> Device:
    """The second device."""
    return _devices(pytestconfig, 2)[1]


@pytest.fixture
def rdma_context(rdma_device: Device) -> Iterator[Context]:
    """The device, opened for this test; all that is made from it is closed with it."""
    from cqnotify import Context

    with Context(rdma_device) as ctx:
        yield ctx


@pytest.fixture
def rdma_context2(rdma_device2: Device) -> Iterator[Context]:
    """The second device, opened for this test."""
    from cqnotify import Context

    with Context(rdma_device2) as ctx:
        yield ctx


@pytest.fixture
def rdma_pd(rdma_context: Context) -> Iterator[PD]:
    """A protection domain on rdma_context."""
    from cqnotify import PD

    pd = PD(rdma_context)
    yield pd
    _close(pd)


@pytest.fixture
def rdma_channel(rdma_context: Context) -> Iterator[CompletionChannel]:
    """A completion channel on rdma_context."""
    from cqnotify import CompletionChannel

    channel = CompletionChannel(rdma_context)
    yield channel
    _close(channel)


@pytest.fixture
def rdma_cq(rdma_context: Context, rdma_channel: CompletionChannel) -> Iterator[CQ]:
    """A completion queue of 256 entries on rdma_channel."""
    from cqnotify import CQ

    cq = CQ(rdma_context, 256, channel=rdma_channel)
    yield cq
    _close(cq)


@pytest.fixture
def rdma_mr(rdma_pd: PD) -> Iterator[MR]:
    """64 KiB of memory, registered in rdma_pd; no peer may touch it."""
    from cqnotify import MR

    mr = MR(rdma_pd, 65536)
    yield mr
    _close(mr)


@pytest.fixture
def rdma_pair(request: pytest.FixtureRequest, rdma_context: Context) -> Iterator[MakePair]:
    """Makes connected pairs: rdma_pair(qp_type=QPType.RC, *, two_devices=False, **options).

    Returns two cqnotify.testing.Endpoint, on rdma_context both, or one there and the other on
    rdma_context2. The options are those of Endpoint and of cqnotify.testing.connect.
    """
    from cqnotify import QP, QPType
    from cqnotify.testing import Endpoint, connect

    config = request.config
    of_connect = inspect.signature(QP.connect).parameters.keys() - {"access"}  # which is the MR's
    ends: list[Endpoint] = []

    def make(
        qp_type: QPType = QPType.RC, *, two_devices: bool = False, **options: Any
    ) -> tuple[Endpoint, Endpoint]:
        connection: dict[str, Any] = {
            "port_num": config.getoption("rdma_port"),
            "gid_index": config.getoption("rdma_gid_index"),
        }
        connection.update((name, options.pop(name)) for name in of_connect & options.keys())
        there = request.getfixturevalue("rdma_context2") if two_devices else rdma_context
        for ctx in (rdma_context, there):
            _check_port(config, ctx, connection["port_num"])
            ends.append(Endpoint(ctx, qp_type, **options))
        a, b = ends[-2:]
        return connect(a, b, **connection)

    yield make
    for end in reversed(ends):
        _close(end)


@pytest.fixture
def rdma_rc_pair(rdma_pair: MakePair) -> tuple[Endpoint, Endpoint]:
    """Two connected RC endpoints on rdma_context, see cqnotify.testing.Endpoint."""
    from cqnotify import QPType

    return rdma_pair(QPType.RC)


@pytest.fixture
def rdma_uc_pair(rdma_pair: MakePair) -> tuple[Endpoint, Endpoint]:
    """Two connected UC endpoints on rdma_context, see cqnotify.testing.Endpoint."""
    from cqnotify import QPType

    return rdma_pair(QPType.UC)


@pytest.fixture
def rdma_ud_pair(rdma_pair: MakePair) -> tuple[Endpoint, Endpoint]:
    """Two UD endpoints on rdma_context that know each other: post_send(..., **a.to_peer)."""
    from cqnotify import QPType

    return rdma_pair(QPType.UD)
