# SPDX-License-Identifier: MIT
"""pytorch's own tests of a transport, which environment.py says how to get."""

from __future__ import annotations

import unittest
from typing import Any

import pytest
import torch
from support import DEADLINE

from cqnotify.torch import CqnotifyTransport, Memory

mixin = pytest.importorskip("transport_test_utils").TransportTestMixin

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("ctx", "reused_registration")]


@pytest.fixture
def reused_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixin calls this method, which the interface had before 2.15.0."""
    seen = set()

    def reused(self: Memory) -> bool:
        known = self.registration in seen
        seen.add(self.registration)
        return known

    monkeypatch.setattr(Memory, "reused_registration", reused, raising=False)


class TestCqnotifyTransport(mixin, unittest.TestCase):
    def make_transport_pair(self) -> tuple[CqnotifyTransport, CqnotifyTransport]:
        a, b = CqnotifyTransport(timeout=DEADLINE), CqnotifyTransport(timeout=DEADLINE)
        a.connect(b.bind())
        b.connect(a.bind())
        return a, b

    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        """As that of torch's TestCase, which needs a package more."""
        if isinstance(first, torch.Tensor):
            assert torch.equal(first, second), msg
        else:
            assert first == second, msg


def test_the_mixin_has_tests() -> None:
    assert len([name for name in dir(TestCqnotifyTransport) if name.startswith("test_")]) >= 4
