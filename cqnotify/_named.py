# SPDX-License-Identifier: MIT
"""The bases of cqnotify's enums: members print as names, and are numbers in all else.

For IntEnum and IntFlag, what str() and format() return depends on the Python version.
"""

from __future__ import annotations

import enum
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class NamedInt(enum.IntEnum):
    __str__ = enum.Enum.__str__

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


class NamedFlag(enum.IntFlag):
    __str__ = enum.Flag.__str__

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


def build(name: str, base: str, body: Mapping[str, Any]) -> type[enum.Enum]:
    """Return what a class statement with this body and one of the bases above would make."""

    def fill(namespace: dict[str, Any]) -> None:
        for key, value in body.items():  # which counts those that are members
            namespace[key] = value

    cls: type[enum.Enum] = types.new_class(name, (globals()[base],), exec_body=fill)
    return cls
