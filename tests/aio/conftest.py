# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import pytest
from support import Link, MakeLink

from cqnotify.aio import AsyncCQ


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
