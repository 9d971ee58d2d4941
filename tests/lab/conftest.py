# SPDX-License-Identifier: MIT
"""The option of the lab's own tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--distributions",
        metavar="FOLDER",
        help="test the source distribution and the wheel that are there, instead of new ones",
    )
