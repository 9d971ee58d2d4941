# SPDX-License-Identifier: MIT
"""The definition of a benchmark: its subjects, their figures, and the limits on these."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, TypedDict, get_args

from .. import NAMES

Place: TypeAlias = Literal["native", "device"]
"""Native: on the fake library, by this machine's clock. Device: where there is a device."""


Counter: TypeAlias = Literal["events", "wakeups", "arms", "spurious"]
"""The counts of a round besides its time."""

COUNTERS: tuple[Counter, ...] = get_args(Counter)


class _Measured(TypedDict):
    ops: int
    total: float


class Figures(_Measured, total=False):
    """The result of one round of one case: the number of operations, and their total cost.

    `total` is in nanoseconds (which are instructions under --icount) or in the benchmark's unit.
    """

    events: int
    wakeups: int
    arms: int
    spurious: int


Round: TypeAlias = Callable[[], dict[str, Figures]]
"""Runs each case of a benchmark once, and returns figures by the names of the cases."""


class InC(NamedTuple):
    """A subject in C: the program benchmarks/c/<program>.c with an argument."""

    program: str
    argument: str = ""


Subject: TypeAlias = Callable[[], Round] | InC
"""A way of doing the work, in a process of its own. In Python: sets up, and returns a round."""


@dataclass(frozen=True)
class Limit:
    """A limit on the cost of an operation.

    subject: the subject that must keep it.
    at_most, at_least: the limit.
    case: the case, by default all.
    over, over_case: if given, the limit is on the ratio to the cost of that subject, in the same
        case or in `over_case`.
    above: if given, the limit is on what the cost is above the sum of those subjects' costs.
    figure: the cost, or one of the counters for each operation.
    place: where the limit is judged.

    Limits on the cost are judged only where instructions are counted. A clock also measures what
    else the machine does, and how fast its system calls are compared with its computations.
    """

    subject: str
    at_most: float = float("inf")
    at_least: float = float("-inf")
    case: str = ""
    over: str = ""
    over_case: str = ""
    above: tuple[str, ...] = ()
    figure: str = "cost"
    place: Place = "device"


@dataclass(frozen=True)
class Benchmark:
    title: str
    op: str
    """The name of one operation: "completion", "round trip"."""
    subjects: Mapping[str, Subject]
    """The subjects by name, in the order of running; "C" is the floor, "pyverbs" and "ibverbs" are
    the peers."""
    places: tuple[Place, ...] = ("device",)
    limits: tuple[Limit, ...] = ()
    unit: str = ""
    """The unit of the figures, if it is not time."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all subjects."""
    peer: InC | None = None
    """The other end, which runs beside each subject; a socket joins them, see subject.peer()."""
    realtime: bool = False
    """Whether both ends run under chrt -f 10: then the kernel switches only when one sleeps."""
    fake_verbs: bool = False
    """Whether to use the fake library even where the device is: instructions are counted there,
    so that the limits can be judged."""
    quick: bool = False
    """Whether --quick runs it."""
    seconds: int = 0
    """About what it takes in the emulated machine with one round, by which --part splits; none if
    --quick runs it."""


def load(name: str) -> Benchmark:
    benchmark: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return benchmark


def load_all() -> dict[str, Benchmark]:
    return {name: load(name) for name in NAMES}
