# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Iterator

import pytest

from cqnotify import Context, memory


@pytest.fixture(autouse=True)
def _closed(ctx: Context) -> Iterator[None]:
    """Needs a device, and closes all of a test's."""
    yield
    memory.close()
