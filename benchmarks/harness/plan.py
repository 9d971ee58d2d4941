# SPDX-License-Identifier: MIT
"""What a benchmark is: its subjects, the figures that they give, and the limits on these."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, TypedDict, get_args

from .. import NAMES

Place: TypeAlias = Literal["native", "device"]
"""On the stand-in library, by this machine's clock; or where there is a device."""


Counter: TypeAlias = Literal["events", "wakeups", "arms", "spurious"]
"""What a round may have counted."""

COUNTERS: tuple[Counter, ...] = get_args(Counter)


class _Measured(TypedDict):
    ops: int
    total: float


class Figures(_Measured, total=False):
    """Of one round of one case: how many operations, and what all of them together took.

    `total` is in nanoseconds (which are instructions under --icount) or in the benchmark's unit.
    """

    events: int
    wakeups: int
    arms: int
    spurious: int


Round: TypeAlias = Callable[[], dict[str, Figures]]
"""Does each case of a benchmark once: figures by the name of the case."""


class InC(NamedTuple):
    """A subject in C: benchmarks/c/<program>.c with an argument."""

    program: str
    argument: str = ""


Subject: TypeAlias = Callable[[], Round] | InC
"""One way of doing the benchmark, in a process of its own. In Python: sets up, returns a round."""


@dataclass(frozen=True)
class Limit:
    """On what an operation of `case` costs `subject`; without `case` in every one of them.

    With `over` it is on the ratio to what it costs that subject, in this case or in `over_case`,
    else on the cost itself. `figure` can be one of the counters instead, for each operation.

    A limit on the cost is for a place where instructions are counted. A clock measures the machine,
    too: what else it does, and what a system call costs there beside a computation.
    """

    subject: str
    at_most: float = float("inf")
    at_least: float = float("-inf")
    case: str = ""
    over: str = ""
    over_case: str = ""
    figure: str = "cost"
    place: Place = "device"


@dataclass(frozen=True)
class Benchmark:
    title: str
    op: str
    """What one operation is: "completion", "round trip"."""
    subjects: Mapping[str, Subject]
    """By their names; "C" is the floor, "pyverbs" the peer. They run in this order."""
    places: tuple[Place, ...] = ("device",)
    limits: tuple[Limit, ...] = ()
    unit: str = ""
    """What the figures are in, if it is not time."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What is set in the environment of all its subjects."""
    peer: InC | None = None
    """The other end. Runs beside each subject; a socket joins them: see subject.peer()."""
    realtime: bool = False
    """Both ends run under chrt -f 10: the kernel switches between them only when one sleeps."""
    stand_in: bool = False
    """On the stand-in library everywhere: where the device is, too, since instructions are counted
    there, so that it can be judged."""
    quick: bool = False
    """Whether it is a part of --quick."""


def load(name: str) -> Benchmark:
    benchmark: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return benchmark


def load_all() -> dict[str, Benchmark]:
    return {name: load(name) for name in NAMES}
