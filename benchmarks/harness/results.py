# SPDX-License-Identifier: MIT
"""From the rounds of all subjects to rows of costs, ratios and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypedDict

from .plan import COUNTERS, Benchmark, Figures, Limit, Place

AGREE = 0.01
"""How far two boots may differ."""

FLOOR = "C"
PEERS = ("pyverbs", "ibverbs")


class About(TypedDict):
    """Where a run took place. `lab` is the kind of the lab; "vm" counts instructions."""

    place: Place
    lab: str
    device: str
    kernel: str
    python: str


class Result(TypedDict):
    """The figures of one subject's process."""

    benchmark: str
    subject: str
    rounds: list[dict[str, Figures]]


class Run(NamedTuple):
    """One boot, or one run on this machine."""

    about: About
    results: list[Result]

    @property
    def in_instructions(self) -> bool:
        return self.about["place"] == "device" and self.about["lab"] == "vm"


Key: TypeAlias = tuple[str, str]
"""Case and subject."""


class Verdict(NamedTuple):
    limit: Limit
    value: float
    holds: bool


@dataclass
class Row:
    """One subject in one case, with the means of the boots."""

    case: str
    subject: str
    cost: float
    counters: dict[str, float]
    over_floor: float | None
    over_peers: dict[str, float | None]
    apart: float | None
    """How far the boots differ; None for a single one."""
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return self.apart is None or self.apart <= AGREE


class Table(NamedTuple):
    name: str
    benchmark: Benchmark
    about: About
    unit: str
    judged: bool
    rows: list[Row]

    @property
    def good(self) -> bool:
        """Whether no limit is broken and the boots agree; always true where none is judged."""
        return not self.judged or all(
            row.agrees and all(verdict.holds for verdict in row.verdicts) for row in self.rows
        )


def per_op(figures: Figures) -> dict[str, float]:
    """Return the cost and the counters of one operation."""
    counts: Mapping[str, float] = {k: v for k, v in figures.items() if isinstance(v, int | float)}
    counted: dict[str, float] = {
        name: counts[name] / counts["ops"] for name in COUNTERS if name in counts
    }
    return {"cost": counts["total"] / counts["ops"], **counted}


def best(rounds: Sequence[Figures], unit: str) -> dict[str, float]:
    """Return the cheapest round, as disturbances only add time; of other units the median."""
    ordered = sorted(map(per_op, rounds), key=lambda figures: figures["cost"])
    return ordered[(len(ordered) - 1) // 2 if unit else 0]


def of_run(name: str, run: Run, unit: str) -> dict[Key, dict[str, float]]:
    return {
        (case, result["subject"]): best([r[case] for r in result["rounds"]], unit)
        for result in run.results
        if result["benchmark"] == name
        for case in result["rounds"][0]
    }


def ratio(figures: Mapping[Key, Mapping[str, float]], key: Key, over: Key) -> float | None:
    base = figures.get(over)
    return figures[key]["cost"] / base["cost"] if base and base["cost"] else None


def rest(
    figures: Mapping[Key, Mapping[str, float]], key: Key, above: Sequence[str]
) -> float | None:
    below = [figures.get((key[0], subject)) for subject in above]
    known = [each["cost"] for each in below if each is not None]
    return figures[key]["cost"] - sum(known) if len(known) == len(below) else None


def apart(values: Sequence[float]) -> float | None:
    """Return the difference of the extremes, as a fraction of the least."""
    if len(values) < 2 or min(values) <= 0:
        return None
    return max(values) / min(values) - 1


def verdicts(
    limits: Sequence[Limit], boots: Sequence[Mapping[Key, Mapping[str, float]]], key: Key
) -> Iterator[Verdict]:
    """Yield the verdicts on one row, each of the boot that is worst."""
    for limit in limits:
        if limit.subject != key[1] or limit.case not in ("", key[0]):
            continue
        if limit.over:
            over = (limit.over_case or key[0], limit.over)
            found = [ratio(boot, key, over) for boot in boots]
        elif limit.above:
            found = [rest(boot, key, limit.above) for boot in boots]
        else:
            found = [boot[key].get(limit.figure) for boot in boots]
        values = [value for value in found if value is not None]
        if values:
            worst = max(values) if limit.at_most != float("inf") else min(values)
            holds = all(limit.at_least <= value <= limit.at_most for value in values)
            yield Verdict(limit, worst, holds)


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def table(name: str, benchmark: Benchmark, runs: Sequence[Run]) -> Table | None:
    """Return the table of the runs at one place; None if the benchmark was not run."""
    boots = [of_run(name, run, benchmark.unit) for run in runs]
    if not boots or not boots[0]:
        return None
    about = runs[0].about
    judged = about["place"] == "native" or runs[0].in_instructions
    limits = [limit for limit in benchmark.limits if judged and limit.place == about["place"]]
    rows = []
    for key in sorted(boots[0], key=lambda key: order(boots[0], key)):
        figures = [boot[key] for boot in boots]
        costs = [each["cost"] for each in figures]
        row = Row(
            case=key[0],
            subject=key[1],
            cost=statistics.fmean(costs),
            counters={
                n: statistics.fmean(f[n] for f in figures) for n in figures[0] if n != "cost"
            },
            over_floor=mean([ratio(boot, key, (key[0], FLOOR)) for boot in boots]),
            over_peers={
                peer: mean([ratio(boot, key, (key[0], peer)) for boot in boots]) for peer in PEERS
            },
            apart=apart(costs),
            verdicts=list(verdicts(limits, boots, key)),
        )
        rows.append(row)
    unit = benchmark.unit or ("insn" if runs[0].in_instructions else "ns")
    return Table(name, benchmark, about, unit, judged, rows)


def order(figures: Mapping[Key, object], key: Key) -> tuple[int, int]:
    """Sort by case, then by subject, both in the order of their first appearance."""
    cases = list(dict.fromkeys(case for case, _ in figures))
    subjects = list(dict.fromkeys(subject for _, subject in figures))
    return cases.index(key[0]), subjects.index(key[1])
