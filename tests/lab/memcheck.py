# SPDX-License-Identifier: MIT
"""What memcheck reports about the core: the arguments are its XML files.

CPython uses uninitialised values, too: 3.11 reads the first digit of a 0, which has none, so that
all its small integers count as uninitialised from then on. An error is the core's if it occurs in
the core, or in what the core has called into other libraries with a value that the core created.
"""

from __future__ import annotations

import contextlib
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CORE = "/_core."
# Whose frames are passed over: memcpy() is called by what is to blame.
REPLACED = ("vgpreload_", "libc.so", "libc-2")
INTEGER = "_PyLong_New"
UNINITIALISED = ("UninitCondition", "UninitValue", "SyscallParam")
LEAK = "Leak_"  # which XML always has; --refleak finds ours


class Frame(NamedTuple):
    function: str
    object: str
    place: str

    def in_core(self) -> bool:
        return CORE in self.object


def frames(stack: ET.Element) -> list[Frame]:
    return [
        Frame(
            frame.findtext("fn", "?"),
            frame.findtext("obj", "?"),
            f"{frame.findtext('file', '?')}:{frame.findtext('line', '?')}",
        )
        for frame in stack.iter("frame")
    ]


def errors(path: Path) -> Iterator[ET.Element]:
    """Of a process that was killed, those up to there."""
    parser: Any = ET.XMLPullParser(["end"])
    with contextlib.suppress(ET.ParseError):
        parser.feed(path.read_bytes())
    yield from (element for _, element in parser.read_events() if element.tag == "error")


def is_ours(kind: str, stacks: list[list[Frame]]) -> bool:
    where, created = stacks[0], [frame for stack in stacks[1:] for frame in stack]
    if kind not in UNINITIALISED:
        return any(frame.in_core() for frame in [*where, *created])
    if any(frame.function == INTEGER for frame in created):
        return False
    blamed = next((f for f in where if not any(name in f.object for name in REPLACED)), None)
    return any(frame.in_core() for frame in created) or (blamed is not None and blamed.in_core())


def describe(error: ET.Element, stacks: list[list[Frame]]) -> str:
    what = error.findtext("what") or error.findtext("xwhat/text") or "?"
    lines = [f"{error.findtext('kind')}: {what}"]
    for stack in stacks:
        lines += [f"    {frame.function} ({frame.place})" for frame in stack[:12]]
        lines += [f"  {error.findtext('auxwhat', '')}"] * (stack is not stacks[-1])
    return "\n".join(lines)


def main() -> int:
    ours: Counter[str] = Counter()
    others = 0
    for path in map(Path, sys.argv[1:]):
        for error in errors(path):
            stacks = [frames(stack) for stack in error.findall("stack")]
            kind = error.findtext("kind", "")
            if kind.startswith(LEAK):
                continue
            if is_ours(kind, stacks):
                ours[describe(error, stacks)] += 1
            else:
                others += 1
    for text in ours:
        print(text, end="\n\n")
    said = f"{len(ours)} errors of the core" if ours else "nothing about the core"
    print(
        f"memcheck reports {said}, and {others} errors of others, in {len(sys.argv) - 1} processes"
    )
    return 1 if ours or len(sys.argv) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
