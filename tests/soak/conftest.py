# SPDX-License-Identifier: MIT
"""Each test is run shortly by ./lab test, and for long by ./lab --timeout 0 test -m soak."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["short", pytest.param("long", marks=pytest.mark.soak)])
def is_long(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "long")
