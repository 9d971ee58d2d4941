# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import pytest
from mw_support import new_pair
from srq_hub import Hub
from support import Pair

from cqnotify import Context


@pytest.fixture
def mw_pair(ctx: Context) -> Pair:
    return new_pair(ctx)


@pytest.fixture
def hub(ctx: Context) -> Hub:
    return Hub(ctx)
