# SPDX-License-Identifier: MIT
"""What the lab's own tests have in common."""

from __future__ import annotations

import signal

import pytest

# In the background of a script, or under nohup, these are ignored, and the lab would inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--distributions",
        metavar="FOLDER",
        help="test the source distribution and the wheel that are there, instead of new ones",
    )
