# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from fault_world import World, core

from cqnotify import Context


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """The tests collect garbage after each failure, for which what pytest has noted of thousands of
    tests before need not be looked through: with ASan that took minutes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    core.fail_call(sys.maxsize)  # never: but arming forgets what has failed
    core.fail_call(0)
    core.fail_alloc(0)
    core.before_call("", None)
    core.inject_event(-1, None)
    core.hide_features()
    core.use_fake_device(False)
    core.pretend_fork(-2)


@pytest.fixture
def w(ctx: Context) -> Iterator[World]:
    world = World(ctx.name)
    yield world
    world.close()
