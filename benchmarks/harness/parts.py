# SPDX-License-Identifier: MIT
"""What --part runs: an even share of the benchmarks that --quick leaves out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import NamedTuple

from .plan import Benchmark


class Part(NamedTuple):
    number: int
    """From 1."""
    of: int


def parse(text: str) -> Part:
    """Return the part that K/N means."""
    if not (found := re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)):
        raise argparse.ArgumentTypeError(f"'{text}' must be K/N, as 1/3")
    part = Part(int(found[1]), int(found[2]))
    if not 1 <= part.number <= part.of:
        raise argparse.ArgumentTypeError(f"there is no part {part.number} of {part.of}")
    return part


def split(benchmarks: Mapping[str, Benchmark], parts: int) -> list[set[str]]:
    """Give each benchmark, the longest first, to the part that has the least to do."""
    seconds = {name: each.seconds for name, each in benchmarks.items() if not each.quick}
    shares: list[set[str]] = [set() for _ in range(parts)]
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        min(shares, key=lambda share: sum(seconds[each] for each in share)).add(name)
    return shares


def choose(benchmarks: Mapping[str, Benchmark], part: Part) -> dict[str, Benchmark]:
    """Return that part of the benchmarks, in their order."""
    names = split(benchmarks, part.of)[part.number - 1]
    return {name: each for name, each in benchmarks.items() if name in names}
