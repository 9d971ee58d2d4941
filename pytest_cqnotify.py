# SPDX-License-Identifier: MIT
"""The pytest plugin: fixtures over real RDMA devices, and a marker for what a test needs of them.

pytest imports this file wherever cqnotify is installed. So it stands beside the package, and
imports it only when a test uses a fixture or the marker.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from cqnotify import CQ, MR, PD, CompletionChannel, Context, Device
    from cqnotify.check.chaos import Chaos
    from cqnotify.check.plugin import Watch
    from cqnotify.hosts import Hosts
    from cqnotify.testing import Endpoint, PairFactory
    from cqnotify.testing._requirements import Requirements

OPENED = pytest.StashKey[list["Context"]]()
TRIED = pytest.StashKey[dict[str, "str | None"]]()  # of a session: why a device cannot be opened
WATCH: pytest.StashKey[Watch] = pytest.StashKey()  # of a session with --rdma-check

# ---- options and the marker ---------------------------------------------------------------

MARKER = """\
rdma(devices=2, atomics=True, srq=True, mw=True, multicast=True, link_layer="Ethernet", \
min_mtu=4096, min_kernel="6.12"): \
the test needs an RDMA device, or so many devices, each with what the arguments name. Where \
something is missing the test is skipped, or fails with --rdma-required."""

HOSTS_MARKER = "hosts(N): the number of hosts of the fixture `hosts`, from 1 to 8; by default 2"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rdma", "RDMA devices (cqnotify)")
    group.addoption(
        "--rdma-device",
        metavar="NAME[,NAME]",
        help="the devices to test on, in this order; by default all devices",
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
        help="the index of each device's GID, for pairs; by default the first RoCE v2 entry",
    )
    group.addoption(
        "--rdma-required",
        action="store_true",
        help="fail the tests that would be skipped because the machine or a device lacks something",
    )
    group.addoption(
        "--rdma-lab",
        metavar="COMMAND",
        help="the lab that starts the hosts of the fixture `hosts`, with options; by default "
        "'cqnotify lab'",
    )
    group.addoption(
        "--rdma-seed",
        type=int,
        default=0,
        metavar="N",
        help="the seed of the random faults between hosts; by default 0",
    )
    group.addoption(
        "--rdma-check",
        action="store_true",
        help="run the tests under the observer of 'cqnotify check': what it calls an error fails "
        "the test",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", HOSTS_MARKER)


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates the markers that skip
def pytest_runtest_setup(item: pytest.Item) -> None:
    try:
        for requirements in _requirements(item):
            _require(item.config, requirements)
    except pytest.skip.Exception as skipped:  # a marker makes pytest report the test's own line
        item.add_marker(pytest.mark.skip(reason=str(skipped.msg)))


def _requirements(item: pytest.Item) -> Iterator[Requirements]:
    for marker in item.iter_markers("rdma"):
        from cqnotify.testing._requirements import Requirements

        try:
            yield Requirements.of(*marker.args, **marker.kwargs)
        except ValueError as error:
            # That of this test, and not earlier: what is raised as tests are collected ends the
            # workers of pytest-xdist, with an internal error in the place of its text.
            raise pytest.fail.Exception(str(error), pytrace=False) from None


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
    """Return the first `n` devices to test on; skip or fail the test where there are fewer.

    Devices that cannot be opened are left out, unless they are named.
    """
    import cqnotify

    try:
        present = {device.name: device for device in cqnotify.devices()}
    except cqnotify.VerbsError as e:
        if e.errno != errno.ELIBACC:
            raise
        _unavailable(config, f"{e.strerror}")
    option: str | None = config.getoption("rdma_device")
    names = list(present) if option is None else option.split(",")
    for name in names:
        if name not in present:
            there = ", ".join(present) or "none"
            pytest.fail(f"--rdma-device: no device '{name}'; there are: {there}", pytrace=False)
    if not names:
        _unavailable(config, "there is no RDMA device")
    closed = {} if option is not None else _closed(config, list(present.values()), n)
    usable = [name for name in names if name not in closed]
    if len(usable) < n:
        has = "this machine has" if option is None else "--rdma-device names"
        listed = [*usable, *(f"{name} (cannot be opened: {closed[name]})" for name in closed)]
        needed = "1 device is" if n == 1 else f"{n} devices are"
        _unavailable(config, f"{needed} needed, {has} {len(usable)}: {', '.join(listed)}")
    return [present[name] for name in usable[:n]]


def _closed(config: pytest.Config, devices: list[Device], n: int) -> dict[str, str]:
    """Return why devices cannot be opened: of those before the n-th that can."""
    tried = config.stash.setdefault(TRIED, {})
    closed: dict[str, str] = {}
    opened = 0
    for device in devices:
        if opened == n:
            break
        if device.name not in tried:
            tried[device.name] = _why_closed(device)
        why = tried[device.name]
        if why is None:
            opened += 1
        else:
            closed[device.name] = why
    return closed


def _why_closed(device: Device) -> str | None:
    from cqnotify import Context, VerbsError

    try:
        Context(device).close()
    except VerbsError as e:
        return f"{e.strerror}"
    return None


def _check_port(config: pytest.Config, ctx: Context, port_num: int) -> None:
    from cqnotify import PortState

    state = ctx.query_port(port_num).state
    if state < PortState.ACTIVE:
        name = state.name if isinstance(state, PortState) else state
        _unavailable(config, f"port {port_num} of device {ctx.name} is {name}, not ACTIVE")


def _close(part: PD | CompletionChannel | CQ | MR | Endpoint) -> None:
    """Close it, unless it is in use by objects that a failed test left: those the context closes.

    The context also closes what the device refuses to close here, and then raises the error.
    """
    from cqnotify import VerbsError

    with contextlib.suppress(VerbsError):
        part.close()


# ---- the observer of cqnotify check ---------------------------------------------------------

CHECK_SECTION = "cqnotify check"


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest redirects the streams
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Execute pytest again under the observer, for --rdma-check."""
    if early_config.known_args_namespace.rdma_check:
        from cqnotify.check.plugin import NotObservedError, observe

        try:
            early_config.stash[WATCH] = observe(early_config.invocation_params.args)
        except NotObservedError as e:
            raise pytest.UsageError(f"--rdma-check: {e}") from None
    return (yield)


def pytest_report_header(config: pytest.Config) -> str | None:
    return "rdma: under the observer of cqnotify check" if WATCH in config.stash else None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if WATCH in config.stash and (text := config.stash[WATCH].warnings()):
        terminalreporter.section(f"warnings of {CHECK_SECTION}")
        terminalreporter.write_line(text)


def pytest_unconfigure(config: pytest.Config) -> None:
    if WATCH in config.stash:
        config.stash[WATCH].close()


def _check(config: pytest.Config, report: pytest.TestReport) -> None:
    """Make the report one of a failure if the observer found an error."""
    if WATCH not in config.stash or not (text := config.stash[WATCH].errors()):
        return
    if report.passed:
        report.outcome = "failed"
        report.longrepr = text
    else:
        report.sections.append((CHECK_SECTION, text))


# ---- the report of a test that failed -----------------------------------------------------

SECTION = "RDMA objects (cqnotify)"
HOSTS_SECTION = "Hosts (cqnotify)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the open objects to a failure, before the fixtures are closed."""
    report = yield
    if report.failed and report.when != "teardown" and "cqnotify.hosts" in sys.modules:
        report.sections += [(HOSTS_SECTION, text) for text in _hosts_report(item)]
    if report.failed and report.when != "teardown" and "cqnotify" in sys.modules:
        import cqnotify

        texts = [cqnotify.report(context) for context in _contexts(item)]
        if texts:
            report.sections.append((SECTION, "\n".join(texts)))
    _check(item.config, report)
    return report


def _hosts_report(item: pytest.Item) -> Iterator[str]:
    from cqnotify.hosts import Hosts

    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Hosts):
            yield value.report()


def _contexts(item: pytest.Item) -> list[Context]:
    """The open contexts of a test, each once: those of the values of its fixtures, and those that
    our fixtures opened while it ran."""
    from cqnotify import Context
    from cqnotify.testing import Endpoint

    values: list[object] = []
    for value in getattr(item, "funcargs", {}).values():
        values.extend(value if isinstance(value, tuple | list) else [value])
    opened: list[Context] = item.stash.get(OPENED, [])
    values.extend(opened)
    contexts = [value.ctx if isinstance(value, Endpoint) else value for value in values]
    found = {id(value): value for value in contexts if isinstance(value, Context)}
    return [context for context in found.values() if not context.closed]


# ---- fixtures -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rdma_device(pytestconfig: pytest.Config) -> Device:
    """The device to test on: a cqnotify.Device, which is not open."""
    return _devices(pytestconfig, 1)[0]


@pytest.fixture(scope="session")
def rdma_device2(pytestconfig: pytest.Config) -> Device:
    """The second device."""
    return _devices(pytestconfig, 2)[1]


@pytest.fixture
def rdma_context(rdma_device: Device) -> Iterator[Context]:
    """The device, opened for this test, and closed after it with all that was made from it."""
    from cqnotify import Context

    with Context(rdma_device) as ctx:
        yield ctx


@pytest.fixture
def rdma_context2(request: pytest.FixtureRequest, rdma_device2: Device) -> Iterator[Context]:
    """The second device, opened for this test."""
    from cqnotify import Context

    with Context(rdma_device2) as ctx:
        request.node.stash[OPENED] = [ctx]  # rdma_pair() may request it while the test runs
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
    """64 KiB of memory, registered in rdma_pd without remote access."""
    from cqnotify import MR

    mr = MR(rdma_pd, 65536)
    yield mr
    _close(mr)


@pytest.fixture
def rdma_pair(request: pytest.FixtureRequest, rdma_context: Context) -> Iterator[PairFactory]:
    """Makes connected pairs: rdma_pair(qp_type=QPType.RC, *, two_devices=False, **options).

    Each is two cqnotify.testing.Endpoint, both on rdma_context, or with two_devices=True the second
    on rdma_context2. The options are those of Endpoint and of cqnotify.testing.connect.
    """
    from cqnotify import QP, QPType
    from cqnotify.testing import Endpoint, connect

    config = request.config
    of_connect = inspect.signature(QP.connect).parameters.keys() - {"access"}  # that of the MR
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
def rdma_rc_pair(rdma_pair: PairFactory) -> tuple[Endpoint, Endpoint]:
    """Two connected RC endpoints on rdma_context, see cqnotify.testing.Endpoint."""
    from cqnotify import QPType

    return rdma_pair(QPType.RC)


@pytest.fixture
def rdma_uc_pair(rdma_pair: PairFactory) -> tuple[Endpoint, Endpoint]:
    """Two connected UC endpoints on rdma_context, see cqnotify.testing.Endpoint."""
    from cqnotify import QPType

    return rdma_pair(QPType.UC)


@pytest.fixture
def rdma_ud_pair(rdma_pair: PairFactory) -> tuple[Endpoint, Endpoint]:
    """Two UD endpoints on rdma_context, for post_send(..., **a.to_peer)."""
    from cqnotify import QPType

    return rdma_pair(QPType.UD)


@pytest.fixture
def rdma_chaos(pytestconfig: pytest.Config) -> Chaos:
    """Makes faults that the verbs allow: with rdma_chaos(seed=7): ...; needs --rdma-check."""
    if WATCH not in pytestconfig.stash:
        _unavailable(pytestconfig, "faults are made under the observer only, with --rdma-check")
    from cqnotify.check.chaos import Chaos

    return Chaos()


# ---- several hosts ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _all_hosts(pytestconfig: pytest.Config) -> Iterator[Callable[[int], Hosts]]:
    """Return so many hosts; they are booted once, and reset for each test."""
    from cqnotify.hosts import HostError, Hosts

    booted: dict[int, Hosts] = {}

    def get(count: int) -> Hosts:
        seed: int = pytestconfig.option.rdma_seed
        if count in booted and booted[count].alive:
            booted[count].reset(seed)
            return booted[count]
        while booted:  # hosts that no test uses take memory and CPU time
            booted.popitem()[1].close()
        try:
            booted[count] = Hosts(count, lab=pytestconfig.getoption("rdma_lab"), seed=seed)
        except HostError as error:
            _unavailable(pytestconfig, str(error))
        return booted[count]

    yield get
    for hosts in booted.values():
        hosts.close()


@pytest.fixture
def hosts(request: pytest.FixtureRequest, _all_hosts: Callable[[int], Hosts]) -> Hosts:
    """Two hosts of the lab, or as many as @pytest.mark.hosts(N) says: a cqnotify.hosts.Hosts.

    Each host has a device rxe0 on the network of the lab's switch. The hosts are up and in their
    initial state. pytest itself runs on this machine, not on a host.
    """
    marker = request.node.get_closest_marker("hosts")
    return _all_hosts(_count(marker) if marker else 2)


def _count(marker: pytest.Mark) -> int:
    count, *more = marker.args or (2,)
    if more or marker.kwargs or type(count) is not int or not 1 <= count <= 8:
        given = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
        text = f"hosts({', '.join(given)}): give the number of hosts alone, 1 to 8, as in hosts(3)"
        raise pytest.fail.Exception(text, pytrace=False)
    return count
