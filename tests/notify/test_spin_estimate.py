# SPDX-License-Identifier: MIT
"""The estimate of spin="auto": csrc/notify/spin.c by itself, with waits that are only numbers."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCE = """
#include "notify/spin.c"
cqn_spin_estimate estimate;
uint32_t begin(void) { return cqn_spin_begin(&estimate); }
void end(uint32_t limit, int found, int64_t took) { cqn_spin_end(&estimate, limit, found, took); }
void reset(void) { memset(&estimate, 0, sizeof(estimate)); }
"""
BOUND = 50_000  # ns
LONG = 1_000_000
FEW = 4  # probes, without which every wait is one
MANY = 32  # probes that count
EVERY = 8  # waits that spin: one is a probe
ASLEEP = 31  # waits in a row that do not, before one is a probe


class Estimate:
    def __init__(self, library: Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        self.lib.begin.restype = ctypes.c_uint32
        self.lib.end.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.c_int64]
        self.lib.reset()

    def wait(self, took: int) -> int:
        """For how long a wait was to spin that took so long."""
        limit = int(self.lib.begin())
        if limit:
            self.lib.end(limit, took <= limit, min(took, limit))
        return limit

    def waits(self, *took: int) -> list[int]:
        return [self.wait(each) for each in took]

    def asleep(self) -> int:
        """How many long waits in a row sleep at once, up to one that spins, in vain."""
        n = 0
        while self.wait(LONG) == 0:
            n += 1
            assert n < 2000, "no wait spins any more"
        return n


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spin")
    (folder / "it.c").write_text(SOURCE)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{CSRC}"]
    subprocess.run(["gcc", *flags, folder / "it.c", "-o", folder / "it.so"], check=True)
    return folder / "it.so"


@pytest.fixture
def estimate(library: Path) -> Estimate:
    return Estimate(library)


def test_the_first_waits_are_probes(estimate: Estimate) -> None:
    assert estimate.waits(*[2_000] * FEW) == [BOUND] * FEW
    assert estimate.wait(2_000) == 2_000


@pytest.mark.parametrize(
    ("took", "step"),
    [(0, 1_000), (1_000, 1_000), (1_001, 1_500), (9_000, 10_000), (39_000, 40_000)],
)
def test_equal_waits_spin_as_long_as_they_take_and_one_in_eight_is_a_probe(
    estimate: Estimate, took: int, step: int
) -> None:
    estimate.waits(*[took] * FEW)
    for _ in range(3 * MANY):
        assert estimate.waits(*[took] * EVERY) == [step] * (EVERY - 1) + [BOUND]


@pytest.mark.parametrize("took", [40_001, BOUND + 1, LONG, 1 << 31, 1 << 32, 1 << 62])
def test_waits_for_which_it_does_not_pay_do_not_spin(estimate: Estimate, took: int) -> None:
    estimate.waits(*[took] * FEW)
    assert estimate.waits(*[took] * ASLEEP) == [0] * ASLEEP


@pytest.mark.parametrize(
    ("short", "of_8", "pays"),
    [(10_000, 1, False), (10_000, 2, True), (40_000, 6, False), (40_000, 7, True)],
)
def test_it_spins_where_that_would_have_cost_less_than_sleeping(
    estimate: Estimate, short: int, of_8: int, pays: bool
) -> None:
    """A sleep counts as much as 50 us of spinning."""
    mixed = [short] * of_8 + [LONG] * (8 - of_8)
    estimate.waits(*[short] * FEW)
    for took in mixed * MANY:  # each is a probe
        estimate.lib.end(BOUND, took <= BOUND, took)
    assert estimate.waits(LONG, LONG) == [short if pays else 0] * 2


def test_of_short_and_middling_waits_it_covers_those_that_pay(estimate: Estimate) -> None:
    estimate.waits(3_000, 3_000, 3_000, 20_000)
    assert estimate.wait(LONG) == 20_000
    for took in [*[3_000] * 7, 49_000, *[LONG] * 3] * MANY:
        estimate.lib.end(BOUND, took <= BOUND, took)
    assert estimate.wait(LONG) == 3_000


def test_where_no_wait_spins_a_probe_comes_now_and_then_and_ever_more_rarely(
    estimate: Estimate,
) -> None:
    estimate.waits(*[LONG] * FEW)
    intervals = [estimate.asleep() for _ in range(9)]
    assert intervals == [31, 63, 127, 255, 255, 255, 255, 255, 255]


def test_a_rare_probe_that_finds_something_makes_it_forget_what_was_before(
    estimate: Estimate,
) -> None:
    estimate.waits(*[LONG] * (FEW + ASLEEP))
    assert estimate.waits(*[5_000] * FEW) == [BOUND] * FEW
    assert estimate.waits(*[5_000] * 7) == [5_000] * 7


def test_a_rare_probe_that_was_luck_soon_ends(estimate: Estimate) -> None:
    estimate.waits(*[LONG] * (FEW + ASLEEP))
    spins = [limit for limit in estimate.waits(10_000, *[LONG] * 64) if limit]
    assert sum(spins) < 1_000_000
    assert estimate.asleep() >= 20


def test_two_waits_at_once_do_not_disturb_each_other(estimate: Estimate) -> None:
    """The one that began as a probe is a probe, whatever the other one does."""
    estimate.waits(*[2_000] * (FEW + EVERY - 1))
    probe = estimate.lib.begin()
    other = estimate.lib.begin()
    assert probe == other == BOUND
    estimate.lib.end(probe, 1, 2_000)
    assert estimate.wait(2_000) == 2_000
    estimate.lib.end(other, 0, BOUND)
    assert estimate.wait(2_000) == 2_000


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "2 us": lambda r: r.uniform(1_500, 2_500),
    "10 us": lambda r: r.uniform(8_000, 12_000),
    "10 us, long tail": lambda r: r.expovariate(1 / 10_000),
    "30 us, long tail": lambda r: r.expovariate(1 / 30_000),
    "100 us": lambda r: r.uniform(80_000, 120_000),
    "1 ms": lambda r: r.uniform(900_000, 1_100_000),
    "10 us or 1 ms": lambda r: r.choice([10_000, 1_000_000]),
    "40 us or 1 ms": lambda r: r.choice([40_000, 1_000_000]),
    "2 us, sometimes 1 ms": lambda r: 2_000 if r.random() < 0.9 else 1_000_000,
    "1 ms, sometimes 2 us": lambda r: 2_000 if r.random() < 0.05 else 1_000_000,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_it_costs_little_more_than_the_best_spin_of_fixed_length(
    estimate: Estimate, draw: Callable[[random.Random], float]
) -> None:
    r = random.Random(1)
    waits = [int(draw(r)) for _ in range(5_000)]
    limits = estimate.waits(*waits)

    def cost(limits: Iterable[int]) -> int:
        pairs = zip(waits, limits, strict=False)
        return sum(took if took <= limit else limit + BOUND for took, limit in pairs)

    best = min(cost(repeat(spin)) for spin in range(0, BOUND + 1, 500))
    assert cost(limits) <= 1.25 * best


def test_it_follows_a_change(estimate: Estimate) -> None:
    for took, served in [(2_000, 64), (200_000, 0), (10_000, 64), (LONG, 0), (39_000, 64)]:
        estimate.waits(*[took] * 2_100)
        assert sum(took <= limit for limit in estimate.waits(*[took] * 64)) == served


def test_two_waits_that_end_together_do_not_put_off_the_next_probe(estimate: Estimate) -> None:
    estimate.waits(*[1000] * MANY)
    while estimate.wait(1000) != BOUND:
        pass
    assert BOUND not in estimate.waits(*[1000] * (EVERY - 2))
    limits = [estimate.lib.begin() for _ in range(2)]
    assert BOUND not in limits
    for limit in limits:
        estimate.lib.end(limit, True, 1000)
    assert estimate.wait(1000) == BOUND
