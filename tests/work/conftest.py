# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import pytest
from mw_support import Window, new_pair
from posting import Post
from srq_hub import Hub
from support import Pair

from cqnotify import QP, Context, MWType, SendWR


@pytest.fixture
def mw_pair(ctx: Context) -> Pair:
    return new_pair(ctx)


@pytest.fixture
def window(request: pytest.FixtureRequest, mw_pair: Pair) -> Window:
    """Of type 2, or of that which the test's parameter says."""
    return Window(mw_pair, getattr(request, "param", MWType.TYPE_2))


@pytest.fixture
def hub(ctx: Context) -> Hub:
    return Hub(ctx)


@pytest.fixture(params=["arguments", "request"])
def post(request: pytest.FixtureRequest) -> Post:
    """Posts a send by its arguments, or as a request that was built before."""
    if request.param == "arguments":
        return QP.post_send
    return lambda qp, sg, **arguments: qp.post_send(SendWR(sg, **arguments))
