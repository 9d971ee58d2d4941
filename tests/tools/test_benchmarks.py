# SPDX-License-Identifier: MIT
"""The benchmarks' arithmetic, and that their fake libibverbs does what it counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import DEADLINE

from benchmarks import __main__ as bench
from benchmarks.harness import compiled, parts, plan, report, results
from benchmarks.harness.plan import Benchmark, Limit
from benchmarks.harness.results import About, Run, Table

ROOT = compiled.SOURCES.parents[1]
PARTS_OF_CI = 3

DEVICE: About = {
    "place": "device",
    "lab": "vm",
    "device": "rxe0",
    "kernel": "6.1",
    "python": "3.11.2",
}


def boot(about: About = DEVICE, **totals: float | list[float]) -> Run:
    """Of one case with 10 operations: the totals of each subject's rounds."""
    subjects = {
        name: total if isinstance(total, list) else [total] for name, total in totals.items()
    }
    return Run(
        about,
        [
            {
                "benchmark": "x",
                "subject": subject,
                "rounds": [{"case": {"ops": 10, "total": total, "events": 5}} for total in rounds],
            }
            for subject, rounds in subjects.items()
        ],
    )


def table(*boots: Run, limits: tuple[Limit, ...] = (), unit: str = "") -> Table:
    benchmark = Benchmark(title="T", op="thing", subjects={}, limits=limits, unit=unit)
    made = results.table("x", benchmark, boots)
    assert made is not None
    return made


def test_the_cheapest_round_counts_and_of_what_is_not_time_the_one_in_the_middle() -> None:
    rounds = boot(C=[120, 100, 130])
    assert table(rounds).rows[0].cost == 10
    assert table(rounds, unit="bytes").rows[0].cost == 12
    assert table(rounds).rows[0].counters == {"events": 0.5}


def test_ratios_are_taken_within_a_boot() -> None:
    made = table(boot(C=100, pyverbs=400, cqnotify=200), boot(C=200, pyverbs=800, cqnotify=200))
    row = made.rows[2]
    assert (row.subject, row.cost) == ("cqnotify", 20)
    assert row.over_floor == pytest.approx((2 + 1) / 2)
    assert row.over_peers == {"pyverbs": pytest.approx((0.5 + 0.25) / 2), "ibverbs": None}


@pytest.mark.parametrize(
    ("limit", "holds"),
    [
        (Limit("cqnotify", over="C", at_most=2.1), True),
        (Limit("cqnotify", over="C", at_most=2.05), False),  # in the second boot
        (Limit("cqnotify", over="C", at_least=2.05), False),  # in the first
        (Limit("cqnotify", at_most=20.9, case="case"), True),
        (Limit("cqnotify", at_most=20), False),
        (Limit("cqnotify", above=("C",), at_most=10.9), True),
        (Limit("cqnotify", above=("C",), at_most=10.5), False),  # in the second boot
        (Limit("cqnotify", above=("C", "C"), at_most=0.9), True),
        (Limit("cqnotify", figure="events", at_most=0.5, at_least=0.5), True),
        (Limit("cqnotify", figure="events", at_most=1, at_least=1), False),
    ],
)
def test_a_limit_holds_if_it_does_in_each_boot(limit: Limit, holds: bool) -> None:
    made = table(boot(C=100, cqnotify=200), boot(C=99.9, cqnotify=208), limits=(limit,))
    (verdict,) = made.rows[1].verdicts
    assert verdict.holds is holds
    assert ("BROKEN" in report.text(made)) is not holds


@pytest.mark.parametrize(("at_most", "holds"), [(1.03, True), (1.02, False)])
def test_a_limit_can_compare_two_cases(at_most: float, holds: bool) -> None:
    limit = Limit("C", case="many", over="C", over_case="one", at_most=at_most)
    rounds = [{"one": {"ops": 10, "total": 1000}, "many": {"ops": 10, "total": 1025}}]
    run = Run(DEVICE, [{"benchmark": "x", "subject": "C", "rounds": rounds}])
    one, many = table(run, limits=(limit,)).rows
    assert not one.verdicts
    assert [verdict.holds for verdict in many.verdicts] == [holds]
    assert "x C at one" in report.text(table(run, limits=(limit,)))


def test_a_limit_on_another_case_place_or_missing_subject_is_not_judged() -> None:
    limits = (
        Limit("cqnotify", at_most=0, case="other"),
        Limit("cqnotify", at_most=0, place="native"),
        Limit("cqnotify", at_most=0, over="pyverbs"),
        Limit("cqnotify", at_most=0, above=("C", "pyverbs")),
        Limit("pyverbs", at_most=0),
    )
    assert not any(row.verdicts for row in table(boot(C=1, cqnotify=1), limits=limits).rows)


@pytest.mark.parametrize(("second", "good"), [(100.9, True), (101.1, False), (98.9, False)])
def test_boots_that_are_more_than_a_hundredth_apart_are_told(second: float, good: bool) -> None:
    made = table(boot(C=100), boot(C=second))
    assert made.good is good
    assert ("DIFFER" in report.text(made)) is not good
    assert report.summary([made]).count("the boots DIFFER") == (not good)


def test_on_a_device_of_the_machine_time_is_real_and_nothing_is_judged() -> None:
    about: About = {**DEVICE, "lab": "device"}
    made = table(boot(about, C=100), boot(about, C=300), limits=(Limit("C", at_most=0),))
    assert (made.unit, made.good) == ("ns", True)
    assert "limits are not judged here" in report.text(made)


def test_a_page_gets_its_tables_between_the_marks_and_keeps_the_rest() -> None:
    made = table(boot(C=100, cqnotify=250))
    page = "before\n<!-- bench x -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    new = report.renew(page, [made])
    assert "| case | cqnotify | 25.0 | 2.50 | 0.500 |" in new
    assert "old" not in new
    assert new.startswith("before\n")
    assert new.endswith("<!-- end -->\nafter <!-- end -->\n")
    assert report.renew(new, [made]) == new
    with pytest.raises(ValueError, match="0 places for x"):
        report.renew("nothing", [made])


def test_the_benchmarks_fit_together() -> None:
    page = (ROOT / "docs/performance-tables.md").read_text()
    for name, benchmark in plan.load_all().items():
        assert f"<!-- bench {name} -->\n" in page
        ends = [*benchmark.subjects.values(), benchmark.peer]
        for program in [end.program for end in ends if isinstance(end, plan.InC)]:
            assert (compiled.SOURCES / f"{program}.c").exists()
        for limit in benchmark.limits:
            assert limit.subject in benchmark.subjects
            assert limit.over in ("", *benchmark.subjects)
            assert limit.place in benchmark.places
            # By a clock nothing is judged: it also measures what else the machine does.
            assert limit.figure != "cost" or limit.place == "device"


@pytest.mark.parametrize("count", range(1, 6))
def test_each_benchmark_is_run_by_quick_or_by_one_part(count: int) -> None:
    benchmarks = plan.load_all()
    chosen = [parts.choose(benchmarks, parts.Part(i + 1, count)) for i in range(count)]
    quick = [name for name, each in benchmarks.items() if each.quick]
    assert sorted([*quick, *(name for part in chosen for name in part)]) == sorted(benchmarks)
    assert chosen == [parts.choose(benchmarks, parts.Part(i + 1, count)) for i in range(count)]


def test_parts_take_about_as_long() -> None:
    benchmarks = plan.load_all()
    for name, benchmark in benchmarks.items():
        assert (benchmark.seconds > 0) is not benchmark.quick, name
    shares = parts.split(benchmarks, PARTS_OF_CI)
    seconds = [sum(benchmarks[name].seconds for name in share) for share in shares]
    assert max(seconds) < 1.25 * min(seconds)


def test_ci_runs_one_of_the_parts_and_the_workflow_all_of_them() -> None:
    ci, workflow = ((ROOT / name).read_text() for name in (".ci/run", ".github/workflows/test.yml"))
    assert f'./lab bench --part "$((16#${{commit:0:8}} % {PARTS_OF_CI} + 1))/{PARTS_OF_CI}"' in ci
    run = re.findall(r"^ +- bench --part (\S+)$", workflow, re.MULTILINE)
    assert run == [f"{i + 1}/{PARTS_OF_CI}" for i in range(PARTS_OF_CI)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--part", "0/3"], "there is no part 0 of 3"),
        (["--part", "4/3"], "there is no part 4 of 3"),
        (["--part", "half"], "'half' must be K/N"),
        (["--part", "1/3", "drain"], "it takes no names"),
        (["--part", "1/3", "--quick"], "not allowed with"),
    ],
)
def test_a_part_that_is_none_is_refused(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.parse([*arguments, "--"])
    assert raised.value.code == 2
    assert error in capsys.readouterr().err


# ---- the fake library ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def fake_verbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fake_verbs") / "fake_verbs.so"
    compiled.compile_c(compiled.SOURCES / "fake_verbs.c", library)
    return library


def on_fake_verbs(library: Path, program: str, **env: str) -> Any:
    start = "from benchmarks.endpoints import *\nimport json\nend = Loopback()\n"
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()  # ASan's wants to be first
    device = {"BENCH_DEVICE": "fake0", "LD_PRELOAD": preload}
    command = [sys.executable, "-c", start + program]
    out = subprocess.check_output(command, env={**os.environ, **device, **env}, timeout=DEADLINE)
    return json.loads(out)


def test_on_the_fake_library_what_is_posted_is_there_at_once_in_order(fake_verbs: Path) -> None:
    program = """
end.cq.req_notify()
end.fill(3)
events = [end.channel.try_get_event() is end.cq, end.channel.try_get_event() is None]
batches = [[wc.wr_id - FIRST_ID for wc in end.cq.poll(2)] for _ in range(3)]
print(json.dumps([events, batches]))
"""
    assert on_fake_verbs(fake_verbs, program) == [[True, True], [[0, 1], [2], []]]


def test_on_the_fake_library_each_arm_can_bring_one_completion_and_one_event(
    fake_verbs: Path,
) -> None:
    program = """
end.fill(2)
counts = [len(end.cq.poll())]
for _ in range(3):
    end.cq.req_notify()
    counts.append([end.channel.try_get_event() is not None, len(end.cq.poll())])
print(json.dumps(counts))
"""
    counts = on_fake_verbs(fake_verbs, program, FAKE_COMPLETE_ON_ARM="1")
    assert counts == [0, [True, 1], [True, 1], [False, 0]]
