# SPDX-License-Identifier: MIT
"""Fixtures over real RDMA devices, beside and on top of those of pytest_cqnotify."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import inspect
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from flavors import FLAVORS, Flavor
from hypothesis.configuration import set_hypothesis_home_dir
from support import (
    DEADLINE,
    Endpoint,
    Lane,
    Link,
    MakeLane,
    MakeLink,
    Scenario,
    connect,
    ip_link,
    is_rxe,
    on_iwarp,
    reaping,
    until,
    until_addresses_are_back,
)

from cqnotify import (
    CQ,
    PD,
    CompletionChannel,
    Context,
    Device,
    QPType,
    VerbsError,
    _core,
    aio,
)
from cqnotify.aio import AsyncCQ
from cqnotify.conformance import Outcome, Row, cases, measure
from cqnotify.context import needs_rdma_cm

# The first loop of a process opens a pipe for signals, which stays: tests count descriptors.
uvloop.new_event_loop().close()

# Nothing of hypothesis' is kept, nor written into the project.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"cqnotify-hypothesis-{os.getuid()}")

# What only a debug build can do is not part of the suite of an ordinary one.
FAULTS = hasattr(_core, "fail_call")
collect_ignore = [] if FAULTS else ["faults", "model", "schedules"]


def pytest_report_header() -> str:
    return f"cqnotify: {'debug build, calls can be made to fail' if FAULTS else 'ordinary build'}"


def pytest_collection_finish() -> None:
    """What pytest holds until the end need not be looked through in each gc.collect() of a test."""
    gc.collect()
    gc.freeze()


# ---- iWARP --------------------------------------------------------------------------------

# There, a QP cannot be connected to itself, nor by addresses that processes exchange, and cqnotify
# says so; and a software device lacks much: datagrams, memory windows, extended CQs. A test that
# gets no further for that is skipped, with what was said. On any other device nothing is: there all
# of this is a failure. What such a device does otherwise is marked at the test, with a reason.


# What cqnotify says, also from a child process: the rest of the line is the reason.
LACKED = re.compile(
    r"\w+ is an iWARP device, whose QPs are connected by rdma_cm alone"
    r"|ibv_\w+: not supported by this device.*"
    r"|few iWARP devices have immediate data.*"
    r"|device \w+ has no .*"  # of the plugin's marker
    r"|is in \w+: rdma_cm makes all transitions itself.*"  # after a reset, which siw does not know
    r"|this QP belongs to another connection already"  # so that it can not be connected again
)


def lacked_by_iwarp(error: BaseException) -> str | None:
    """None: the test has failed of something else."""
    for inside in getattr(error, "exceptions", ()):  # of a group
        if lacked := lacked_by_iwarp(inside):
            return lacked
    found = LACKED.search(str(error))
    return None if found is None else "iWARP: " + re.sub(r"\d+", "N", found[0])


@contextlib.contextmanager
def skipping_on_iwarp() -> Iterator[None]:
    lacked = None
    try:
        yield
    except Exception as error:
        if not on_iwarp() or (lacked := lacked_by_iwarp(error)) is None:
            raise
        with warnings.catch_warnings():  # of what the test was about to close
            warnings.simplefilter("ignore", ResourceWarning)
            traceback.clear_frames(error.__traceback__)
            gc.collect()
    if lacked is not None:
        pytest.skip(lacked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    marker = item.get_closest_marker("not_on_iwarp")
    if marker is not None and re.search(marker.kwargs.get("only", ""), item.name) and on_iwarp():
        pytest.skip(f"iWARP: {marker.args[0]}")
    with skipping_on_iwarp():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with skipping_on_iwarp():
        yield


@pytest.fixture
def conversation(ctx: Context) -> None:
    """For tests whose conversations are in processes of their own: skips them where none can be."""
    if why := needs_rdma_cm(ctx):
        raise VerbsError(errno.EOPNOTSUPP, why)


@pytest.fixture
def ctx(rdma_context: Context) -> Context:
    return rdma_context


@pytest.fixture
def ctx2(rdma_context2: Context) -> Context:
    """The second device: between it and the first, packets cross a wire."""
    return rdma_context2


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Outcome], tuple[Row, ...]]:
    """What conformance measures of an outcome on the first device, once for all tests."""

    @functools.cache
    def measured(outcome: Outcome) -> tuple[Row, ...]:
        return measure(chosen=[case for case in cases() if case.outcome is outcome]).rows

    return measured


@pytest.fixture
def pd(rdma_pd: PD) -> PD:
    return rdma_pd


@pytest.fixture
def channel(rdma_channel: CompletionChannel) -> CompletionChannel:
    return rdma_channel


@pytest.fixture
def cq(rdma_cq: CQ) -> CQ:
    return rdma_cq


@pytest.fixture
def pair(ctx: Context) -> tuple[Endpoint, Endpoint]:
    """Two connected RC endpoints on one device."""
    return connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC))


@pytest.fixture
def uc_pair(ctx: Context) -> tuple[Endpoint, Endpoint]:
    return connect(Endpoint(ctx, QPType.UC), Endpoint(ctx, QPType.UC))


@pytest.fixture
def ud_pair(ctx: Context) -> tuple[Endpoint, Endpoint]:
    return connect(Endpoint(ctx, QPType.UD), Endpoint(ctx, QPType.UD))


@pytest.fixture
def wire_pair(ctx: Context, ctx2: Context) -> tuple[Endpoint, Endpoint]:
    """Two connected RC endpoints on two devices."""
    return connect(Endpoint(ctx, QPType.RC), Endpoint(ctx2, QPType.RC))


@pytest.fixture
def netdev(rdma_device2: Device) -> Iterator[str]:
    """The net device of the second RDMA device, which is up again afterwards."""
    names = os.environ.get("CQNOTIFY_LAB_NETDEVS", "").split()
    if len(names) < 2:
        pytest.fail("CQNOTIFY_LAB_NETDEVS must name the net devices: run it by ./lab test")
    yield names[1]
    ip_link(names[1], "up")
    with Context(rdma_device2) as ctx:
        until(lambda: ctx.query_port().state == 4, "the link is up again")
        if is_rxe(ctx):
            until_addresses_are_back(ctx)


# ---- tests that are coroutines ------------------------------------------------------------

# Each runs on each kind of loop, or, with the fixture `on`, on trio and anyio. An AsyncCQ of its
# fixtures is closed before the loop is. On a link, the test must have taken every completion.


def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    if not name.startswith("test_") or not inspect.iscoroutinefunction(obj):
        return
    if "on" not in inspect.signature(obj).parameters:
        pytest.mark.usefixtures("run")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    on = wanted.get("on")

    async def body() -> None:
        acqs = {id(arg): arg for arg in wanted.values() if isinstance(arg, AsyncCQ)}.values()
        async with contextlib.AsyncExitStack() as stack:
            for acq in acqs:
                await stack.enter_async_context(acq)
            async with reaping() if on is None else contextlib.nullcontext():
                await pyfuncitem.obj(**wanted)
            for acq in acqs:
                assert "link" not in wanted or acq.closed or acq.poll() == [], (
                    "nothing is left over"
                )

    if on is None:
        pyfuncitem.funcargs["run"](body())
    else:
        on.run(body)
    return True


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "cqnotify": aio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


@pytest.fixture
def run(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Scenario:
    """asyncio.run with each kind of loop, and a deadline."""

    async def bounded(scenario: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await asyncio.wait_for(scenario, DEADLINE)
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def run(scenario: Coroutine[Any, Any, Any]) -> Any:
        with contextlib.closing(new_loop()) as loop:
            try:
                return loop.run_until_complete(bounded(scenario))
            finally:  # threads may still let go of memory, of which the loop is to hear
                loop.run_until_complete(loop.shutdown_default_executor())
                pinning = sys.modules.get("cqnotify._registered._pinning")
                if pinning is not None:
                    pinning.wait_idle()
                    loop.run_until_complete(asyncio.sleep(0))

    return run


@pytest.fixture(params=FLAVORS)
def on(request: pytest.FixtureRequest) -> Flavor:
    return FLAVORS[request.param]


@pytest.fixture
def new_lane(ctx: Context, channel: CompletionChannel) -> Iterator[MakeLane]:
    """Makes lanes, and keeps them until the context closes."""
    lanes = []

    def make(cq_type: type[CQ] = CQ, on: CompletionChannel = channel) -> Lane:
        lanes.append(Lane(ctx, on, cq_type))
        return lanes[-1]

    yield make
    ctx.close()


@pytest.fixture
def lane(new_lane: MakeLane) -> Lane:
    return new_lane()


@pytest.fixture
def make_link(ctx: Context) -> Iterator[MakeLink]:
    yield lambda **options: Link(ctx, **options)
    ctx.close()


@pytest.fixture
def link(request: pytest.FixtureRequest, make_link: MakeLink) -> Link:
    """A connection; its options are those of the test's marker, @pytest.mark.link(one_cq=True)."""
    marker = request.node.get_closest_marker("link")
    options = dict(marker.kwargs) if marker else {}
    options.pop("recv", None)
    return make_link(**options)


@pytest.fixture
def acq(request: pytest.FixtureRequest) -> AsyncCQ:
    """On the CQ of the test's lane; or of what its link sends, with @pytest.mark.link(recv=True) of
    what that receives."""
    if "lane" in request.fixturenames:
        return AsyncCQ(request.getfixturevalue("lane").cq)
    marker = request.node.get_closest_marker("link")
    end = request.getfixturevalue("link").a
    return AsyncCQ(end.rcq if marker and marker.kwargs.get("recv") else end.scq)
