# SPDX-License-Identifier: MIT
"""The other process of the tests: reads calls as lines of JSON, and writes their results."""

from __future__ import annotations

import json
import sys
from typing import Any

from memory_support import pattern

from cqnotify import memory

exposed: list[memory.Exposure] = []
buffers: list[bytearray] = []


def expose(nbytes: int, access: str, how: dict[str, Any]) -> dict[str, Any]:
    buffers.append(bytearray(pattern(nbytes)))
    exposed.append(memory.expose(buffers[-1], memory.Access[access], **how))
    return exposed[-1].to_dict()


def contents(number: int) -> str:
    return buffers[number].hex()


def close(number: int) -> None:
    exposed[number].close()


def get(one: dict[str, Any]) -> str:
    try:
        return bytes(memory.blocking.get(memory.Descriptor.from_dict(one))).hex()
    except OSError as e:
        return type(e).__name__


def connections() -> int:
    from cqnotify.memory._process import current

    return len(current()._all)


for line in sys.stdin:
    name, *args = json.loads(line)
    print(json.dumps(globals()[name](*args)), flush=True)
memory.close()
