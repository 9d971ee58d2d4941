# SPDX-License-Identifier: MIT
"""runtime_types, on which the typing tests rest: it tells what is of a type from what is not."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from runtime_types import assert_type

from cqnotify import SendFlags, SuccessfulCompletion, WCStatus
from cqnotify.testing import SendDestination

OK = WCStatus.SUCCESS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(1, int), (0.0, float), (None, None), ("", str), (OK, WCStatus), (True, bool)],
        *[(OK, WCStatus | int), (999, WCStatus | int), (None, int | None), (OK, Literal[OK])],
        *[([], list[int]), ([1], list[int]), ([OK, 999], list[WCStatus | int])],
        *[((1, ""), tuple[int, str]), ((), tuple[int, ...]), ((1, 2), tuple[int, ...])],
        *[({}, SendDestination), ({"remote_qpn": 1}, SendDestination), (print, type(print))],
    ],
)
def test_what_is_of_a_type_passes(value: object, expected: Any) -> None:
    assert assert_type(value, expected) is value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(True, int), (OK, int), (1, float), (SendFlags.SIGNALED, int), (1, bool)],
        *[("1", int), (None, int), (0, None), (0, WCStatus), (0, WCStatus | int)],
        *[("", WCStatus | int), (0, int | WCStatus | None), (0, Literal[OK])],
        *[([None], list[int]), ((1,), list[int]), ([0], list[WCStatus | int])],
        *[((1,), tuple[int, str]), ((1, 2), tuple[int, str]), ((1, ""), tuple[int, ...])],
        *[({"qpn": 1}, SendDestination), ((), SendDestination), (1, SuccessfulCompletion)],
    ],
)
def test_what_is_not_fails(value: object, expected: Any) -> None:
    with pytest.raises(AssertionError, match="is a"):
        assert_type(value, expected)


def test_any_is_refused() -> None:
    with pytest.raises(TypeError):
        assert_type(1, Any)
