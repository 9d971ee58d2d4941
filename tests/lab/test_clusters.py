# SPDX-License-Identifier: MIT
"""Clusters under faults that a seed chooses (tests/clusters): no seed fails, the same seed makes
the same run, and of the faults that make a run fail the shortest list is found."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from lab_runs import CACHE, PROJECT, built

sys.path.append(str(PROJECT / "tests/clusters"))
for needed in ("numpy", "distributed"):
    pytest.importorskip(needed)

import bank  # noqa: E402
import cluster  # noqa: E402
import dask_sum  # noqa: E402
import faults  # noqa: E402
import replicated_log  # noqa: E402
from faults import Fault  # noqa: E402
from journal import Journal  # noqa: E402
from numbered import data_of, digest  # noqa: E402
from shrink import ddmin, remembered, shrink, simplify  # noqa: E402

JOBS = 2
SEEDS = 20
WORKLOADS = len(cluster.WORKLOADS)


# ---- the shrinker ------------------------------------------------------------------------------


def asked(
    fails: Callable[[list[Any]], bool],
) -> tuple[Callable[[list[Any]], bool], list[list[Any]]]:
    lists: list[list[Any]] = []

    def ask(items: list[Any]) -> bool:
        lists.append(items)
        return fails(items)

    return ask, lists


@pytest.mark.parametrize("needed", [{0}, {19}, {7}, {3, 4}, {0, 19}, {2, 9, 17}, set(range(20))])
def test_exactly_what_is_needed_is_left_in_its_order(needed: set[int]) -> None:
    ask, lists = asked(lambda items: needed <= set(items))
    assert ddmin(range(20), ask) == sorted(needed)
    assert len(lists) < 20 * 21


def test_one_of_twenty_is_found_in_few_runs() -> None:
    ask, lists = asked(lambda items: 13 in items)
    assert ddmin(range(20), ask) == [13]
    assert len(lists) <= 2 + 2 * 5


def test_what_fails_without_any_fault_needs_none() -> None:
    assert ddmin(range(20), lambda items: True) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_no_item_of_the_result_can_be_left_out(seed: int) -> None:
    """Also where failing follows no order: one of some lists must be whole."""
    pairs = [{seed % 7, 9}, {seed % 5 + 1, 11, 4}]

    def fails(items: list[int]) -> bool:
        return any(pair <= set(items) for pair in pairs) and (len(items) % 3 != 1 or len(items) < 4)

    if not fails(list(range(12))):
        pytest.skip("the whole list does not fail")
    left = ddmin(range(12), fails)
    assert fails(left)
    assert not any(fails(left[:i] + left[i + 1 :]) for i in range(len(left)))


def test_a_list_is_tried_once() -> None:
    ask, lists = asked(lambda items: len(items) > 2)
    once = remembered(ask)
    assert [once([1, 2, 3]), once([1, 2, 3]), once([1])] == [True, True, False]
    assert lists == [[1, 2, 3], [1]]


def test_faults_are_made_simpler_as_long_as_the_run_fails() -> None:
    drawn = [*faults.parse("4.37 loss 1>2 for 3.3 by 0.1"), *faults.parse("12.34 crash 2 for 7.7")]

    def fails(faulty: list[Fault]) -> bool:
        return any(f.kind == "crash" and 12.2 < f.at < 12.5 and f.lasts > 3.5 for f in faulty)

    assert faults.text(shrink(drawn, fails, Fault.simpler)) == "12.3 crash 2 for 4\n"


@pytest.mark.parametrize("seed", range(50))
def test_making_simpler_ends(seed: int) -> None:
    simplest = simplify(faults.draw(seed), lambda items: True, Fault.simpler)
    assert all(fault.lasts <= 1 and fault.at == round(fault.at) for fault in simplest)


# ---- the faults --------------------------------------------------------------------------------


def test_seeds_draw_faults_of_all_kinds_within_their_time() -> None:
    drawn = [fault for seed in range(200) for fault in faults.draw(seed)]
    assert {fault.kind for fault in drawn} == set(faults.KINDS)
    assert all(faults.BEGIN <= fault.at < fault.until <= faults.END for fault in drawn)
    assert faults.draw(7) == faults.draw(7) != faults.draw(8)


@pytest.mark.parametrize("seed", range(20))
def test_a_list_of_faults_is_text_that_can_be_given_back(seed: int) -> None:
    drawn = faults.draw(seed)
    assert faults.parse(f"# seed {seed}\n\n{faults.text(drawn)}") == drawn


@pytest.mark.parametrize(
    "line", ["crash 2", "3 crash 1-2 for 4", "3 cut 2 for 4", "3 burn 2 for 4"]
)
def test_a_line_that_is_no_fault_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=f"'{line}' is no fault"):
        faults.parse(line)


def test_of_several_faults_of_a_link_the_largest_holds() -> None:
    faulty = faults.parse("5 loss 1-2 for 4 by 0.1\n6 loss 1>2 for 1 by 0.2\n6 cut 2>1 for 1")
    seen = {link: [faults.link_faults(faulty, link, at) for at in (5, 6, 7, 9)] for link in PAIRS}
    assert seen[1, 2] == [{"loss": 0.1}, {"loss": 0.2}, {"loss": 0.1}, {}]
    assert seen[2, 1] == [{"loss": 0.1}, {"loss": 0.1, "cut": True}, {"loss": 0.1}, {}]
    assert seen[1, 3] == [{}] * 4
    assert faults.instants(faulty) == [5, 6, 7, 9]


PAIRS = list(itertools.permutations((1, 2, 3), 2))


# ---- the judges --------------------------------------------------------------------------------


def told(what: str, host: int, at: float = 60.0, **facts: Any) -> dict[str, Any]:
    return {"what": what, "host": host, "at": at, **facts}


def bank_finals(**changes: Any) -> list[dict[str, Any]]:
    finals = []
    for host in (1, 2, 3):
        calm = {str(peer): 3 for peer in (1, 2, 3) if peer != host}
        facts = {"balance": 1000, "paid": [], "booked": [], "open": [], "calm": calm}
        finals.append(told("final", host, **facts))
    finals[0] |= {"paid": ["1-2-0"], "balance": 990}
    finals[1] |= {"booked": ["1-2-0"], "balance": 1010} | changes
    return finals


def test_a_right_bank_is_right() -> None:
    assert bank.judge(bank_finals(), 3) == []


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"balance": 1020}, "the sum is 3010, not 3000"),
        ({"booked": [], "balance": 1010}, "paid, and not booked: 1-2-0"),
        ({"booked": ["1-2-0", "1-2-1"]}, "booked, and not paid: 1-2-1"),
        ({"open": ["2-3-0"]}, "host 2 waits for 2-3-0"),
        ({"calm": {"1": 2}}, "nothing went from 2 to 3 after 55 s"),
        ({"what": "begins"}, "host 2 has no end"),
    ],
)
def test_a_wrong_bank_is_wrong(changes: dict[str, Any], wrong: str) -> None:
    assert bank.judge(bank_finals(**changes), 3) == [wrong]


ENTRIES = [[name, digest(data_of(name))] for name in ("1-0-0", "2-0-0", "3-0-0")]


def log_record(acknowledged: int = 1, **changes: Any) -> list[dict[str, Any]]:
    finals = [told("final", host, entries=ENTRIES[:2], calm=1) for host in (1, 2, 3)]
    finals[1] |= changes
    return [told("acknowledged", 2, 9.0, id="2-0-0", index=acknowledged), *finals]


def test_a_right_log_is_right() -> None:
    assert replicated_log.judge(log_record(), 3) == []
    assert replicated_log.judge(log_record(entries=ENTRIES), 3) == []  # it is ahead


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"entries": ENTRIES[:1]}, "entry 2-0-0 was acknowledged, and hosts [2] are without it"),
        ({"entries": [*ENTRIES[:2], ENTRIES[0]]}, "an entry is twice in the log"),
        ({"entries": [*ENTRIES[:2], ["x", ENTRIES[0][1]]]}, "entry x is changed"),
        ({"calm": 0}, "nothing of host 2 was appended after 55 s"),
        ({"what": "begins"}, "host 2 has no end"),
    ],
)
def test_a_wrong_log_is_wrong(changes: dict[str, Any], wrong: str) -> None:
    assert replicated_log.judge(log_record(**changes), 3) == [wrong]


def test_another_order_is_wrong() -> None:
    found = replicated_log.judge(log_record(entries=[ENTRIES[1], ENTRIES[0]]), 3)
    assert "the log of host 2 has other entries, or another order" in found
    assert "entry 2-0-0 was acknowledged, and hosts [1, 2, 3] are without it" in (
        replicated_log.judge(log_record(acknowledged=0), 3)
    )


def test_dask_has_to_go_on() -> None:
    finals = [told("final", host) for host in (1, 2, 3)]
    assert dask_sum.judge([told("computed", 1, 56.0), *finals], 3) == []
    assert dask_sum.judge([told("computed", 1, 54.0), *finals], 3) == [
        "nothing was computed after 55 s"
    ]
    assert dask_sum.total(*[dask_sum.make(2 + i) + dask_sum.make(2 + i) for i in range(4)]) == (
        dask_sum.right(2)
    )


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        (told("violation", 2, text="two is three"), True),
        (told("overdue", 2, 30.0, op="send", bound=9, begun=21.0), True),
        (told("overdue", 1, 13.0, op="send", bound=9, begun=4.0), False),  # it was stopped
        (told("error", 2, 12.0, op="send", error="lost", begun=11.0), False),
        (told("error", 2, 9.0, op="send", error="lost", begun=8.0), True),  # before all faults
        (told("error", 2, 56.0, op="send", error="lost", begun=55.5), True),
    ],
)
def test_errors_need_a_fault_and_delays_a_pause(event: dict[str, Any], wrong: bool) -> None:
    outcome = cluster.Outcome(0, "bank", faults.parse("10 pause 1 for 3"), [event, *bank_finals()])
    assert bool(cluster.judge(outcome)) is wrong


def test_a_torn_record_at_the_end_of_a_journal_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append({"id": 1}, b"abc")
    journal.append({"id": 2}, b"defg")
    journal.close()
    size = journal.path.stat().st_size
    for lost in (1, 4, 40):
        with open(journal.path, "r+b") as file:
            file.truncate(size - lost)
        again = Journal(journal.path)
        assert [(facts, data) for facts, data, _ in again.records] == [({"id": 1}, b"abc")]
        again.append({"id": 2}, b"defg")
        again.close()
        assert journal.path.stat().st_size == size


# ---- the runs ----------------------------------------------------------------------------------


@contextlib.contextmanager
def running(seeds: Iterable[int], logs: Path) -> Iterator[list[Future[cluster.Outcome]]]:
    """`logs` is a folder for a log of each, by its number in the order."""
    with cluster.processes(JOBS) as pool:
        yield [
            pool.submit(
                cluster.run,
                CACHE,
                seed,
                cluster.workload_of(seed),
                faults.draw(seed),
                log=logs / str(number),
            )
            for number, seed in enumerate(seeds)
        ]
        pool.shutdown(cancel_futures=True)


def check(outcome: cluster.Outcome) -> None:
    print(outcome.summary())
    assert not outcome.wrong, "\n".join(
        [
            f"tests/clusters/run.py --first {outcome.seed} --shrink",
            faults.text(outcome.faults),
            *outcome.wrong,
        ]
    )


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[cluster.Outcome]]]:
    with running(range(SEEDS), tmp_path_factory.mktemp("some")) as begun:
        yield begun


@built
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_fails_the_cluster_is_right(
    some: list[Future[cluster.Outcome]], seed: int
) -> None:
    check(some[seed].result())


@pytest.fixture(scope="module")
def twice(logs: Path) -> Iterator[list[Future[cluster.Outcome]]]:
    with running([*range(WORKLOADS), *range(WORKLOADS)], logs) as begun:
        yield begun


@built
@pytest.mark.release
@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_the_same_seed_makes_the_same_run(
    twice: list[Future[cluster.Outcome]], logs: Path, seed: int
) -> None:
    """To the nanosecond of each frame, unless something else changes this machine's files
    meanwhile, as CI does."""
    first, again = twice[seed].result(), twice[WORKLOADS + seed].result()
    assert first.workload == again.workload
    assert len(first.record) > 10
    assert first.trace == again.trace, difference(logs / str(seed), logs / str(WORKLOADS + seed))
    assert (first.record, first.frames) == (again.record, again.frames)


def difference(*logs: Path) -> str:
    """The first lines that differ, after those that do not."""
    lines = [log.read_text().splitlines() for log in logs]
    pairs = enumerate(itertools.zip_longest(*lines))
    at = next(number for number, pair in pairs if len(set(pair)) > 1)
    parts = [
        f"{log}:\n" + "\n".join(own[at : at + 5]) for log, own in zip(logs, lines, strict=True)
    ]
    return "\n".join(["the same:", *lines[0][max(0, at - 5) : at], *parts])


def test_the_first_difference_of_two_logs_is_shown(tmp_path: Path) -> None:
    logs = [tmp_path / "1", tmp_path / "2"]
    logs[0].write_text("".join(f"{n}\n" for n in range(9)))
    logs[1].write_text("".join(f"{n}\n" for n in range(7)))
    shown = difference(*logs).splitlines()
    assert shown == ["the same:", *"23456", f"{logs[0]}:", "7", "8", f"{logs[1]}:"]


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[cluster.Outcome]]]:
    with running(range(SEEDS, 10 * SEEDS), tmp_path_factory.mktemp("more")) as begun:
        yield begun


@built
@pytest.mark.release
@pytest.mark.parametrize("seed", range(SEEDS, 10 * SEEDS))
def test_more_seeds_are_right(more: list[Future[cluster.Outcome]], seed: int) -> None:
    check(more[seed - SEEDS].result())
