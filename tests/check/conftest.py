# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import pytest
from report_support import stand_in

from cqnotify.check import running


@pytest.fixture
def no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run without the observer: a library in its place does nothing."""
    monkeypatch.setattr(running, "find_observer", stand_in)
