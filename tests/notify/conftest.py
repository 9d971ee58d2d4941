# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import pytest
from support import Overflow, take_all

from cqnotify import Context


@pytest.fixture
def full(ctx: Context) -> Overflow:
    """The next completion of its sender is lost. What the device had to report was taken."""
    world = Overflow(ctx)
    world.fill()
    take_all(ctx)
    return world
