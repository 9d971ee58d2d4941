# SPDX-License-Identifier: MIT
"""Fixtures over real RDMA devices, beside and on top of those of pytest_cqnotify."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aio_support import Lane, MakeLane, Scenario
from hypothesis.configuration import set_hypothesis_home_dir
from support import DEADLINE, Endpoint, connect, ip_link, until

from cqnotify import CQ, PD, CompletionChannel, Context, QPType, _core
from cqnotify.conformance import Outcome, Row, cases, measure

# Nothing of hypothesis' is kept, nor written into the project.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"cqnotify-hypothesis-{os.getuid()}")

# What only a debug build can do is not part of the suite of an ordinary one.
FAULTS = hasattr(_core, "fail_call")
collect_ignore = [] if FAULTS else ["test_faults.py", "test_aio_faults.py"]


def pytest_report_header() -> str:
    return f"cqnotify: {'debug build, calls can be made to fail' if FAULTS else 'ordinary build'}"


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
def link() -> Iterator[str]:
    """The net device of the second RDMA device, which is up again afterwards."""
    names = os.environ.get("CQNOTIFY_LAB_NETDEVS", "").split()
    if len(names) < 2:
        pytest.fail("CQNOTIFY_LAB_NETDEVS must name the net devices: run it by ./lab test")
    yield names[1]
    ip_link(names[1], "up")
    with Context("rxe1") as ctx:
        until(lambda: ctx.query_port().state == 4, "the link is up again")
        until(lambda: bool(ctx.gid_table()), "its addresses are back")


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@pytest.fixture
def run(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Scenario:
    """asyncio.run with either kind of loop, and a deadline."""

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
            return loop.run_until_complete(bounded(scenario))

    return run


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
