# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from event_loop_support import Counting, Hook, Loop, MakeHook, PingPong
from support import Link, MakeLane, MakeLink

from cqnotify import Context
from cqnotify.aio import AsyncCQ, new_event_loop


@pytest.fixture(params=[True, False], ids=["one CQ", "a CQ each"])
def both(request: pytest.FixtureRequest, make_link: MakeLink) -> Link:
    return make_link(one_cq=request.param)


@pytest.fixture
def out(both: Link) -> AsyncCQ:
    return AsyncCQ(both.a.scq)


@pytest.fixture
def into(both: Link, out: AsyncCQ) -> AsyncCQ:
    """That of the receives, which may be that of the sends."""
    return out if both.a.rcq is both.a.scq else AsyncCQ(both.a.rcq)


# ---- for the tests of new_event_loop() ------------------------------------------------------


@pytest.fixture
def selector() -> Counting:
    return Counting()


@pytest.fixture
def loop(selector: Counting) -> Iterator[Loop]:
    with contextlib.closing(Loop(selector)) as loop:
        yield loop


@pytest.fixture(params=["asyncio", "cqnotify"])
def either(request: pytest.FixtureRequest) -> Iterator[Loop]:
    """A loop of each kind, between which a test tells no difference."""
    new = new_event_loop if request.param == "cqnotify" else Loop
    with contextlib.closing(new()) as loop:
        yield loop


@pytest.fixture
def game(new_lane: MakeLane, ctx: Context) -> PingPong:
    return PingPong(new_lane, ctx)


@pytest.fixture
def make_hook(ctx: Context) -> Iterator[MakeHook]:
    with contextlib.ExitStack() as stack:

        def make(loop: Loop, call: Callable[[], object]) -> Hook:
            hook = Hook(ctx, loop, call)
            stack.callback(hook.close)
            return hook

        yield make
