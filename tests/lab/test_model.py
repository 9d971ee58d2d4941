# SPDX-License-Identifier: MIT
"""The model of the core (tests/model): in no schedule does Spin find a property that does not hold,
and for each mutant, which lacks one rule of the core, it finds one."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_runs import PROJECT

MODEL = PROJECT / "tests/model"
MEMORY = 1900  # MiB


@dataclass(frozen=True)
class Configuration:
    """What may happen in a run of a model: the bounds that its file names."""

    model: str
    bounds: dict[str, int | str]


# Nothing happens besides; each poll returns at most one completion.
ACTS = {
    "threads": ("INTERRUPT", "RESIZE", "CLOSE"),
    "tasks": ("POLL", "ARM", "ACK", "RESIZE", "CLOSE", "QP"),
}
BOUNDS: dict[str, dict[str, int | str]] = {
    "threads": {"BATCH": 1, "ACTS": 0, "SIGNALS": 0, "TIMERS": 0, "QUITS": 0},
    "tasks": {"BATCH": 1, "ACTS": 0, "CANCELS": 0, "TIMERS": 0, "CQS": 2}
    | {"KIND_0": "0..4", "KIND_1": "0..4"},
}


def of(model: str, *acts: str, **bounds: int | str) -> Configuration:
    may = {f"ACT_{act}": int(act in acts) for act in ACTS[model]}
    return Configuration(model, BOUNDS[model] | may | bounds)


# The kinds of awaitables are: wait() for solicited events, wait(), completion(), recv(), send(). A
# send differs from a receive only if its task is cancelled, and nobody else awaits it.
NO_SEND = {"KIND_0": "0..3", "KIND_1": "0..3"}
NO_SEND_NOR_SOLICITED = {"KIND_0": "1..3", "KIND_1": "1..3"}
TWO = {"KIND_0": "2..2", "KIND_1": "1..1"}
CONFIGURATIONS = {
    "threads with a second program": of("threads", THIEF=1, TIMERS=1),
    "threads, signals and interrupts": of("threads", "INTERRUPT", ACTS=1, SIGNALS=1),
    "threads, resizing and closing": of("threads", "RESIZE", "CLOSE", ACTS=1),
    "threads, one of which leaves": of("threads", QUITS=1),
    "tasks": of("tasks", CANCELS=1),
    "tasks with a second program": of("tasks", THIEF=1, TIMERS=1),
    "tasks and a thread": of(
        "tasks", "POLL", "ARM", "ACK", "RESIZE", "CLOSE", "QP", ACTS=1, **NO_SEND
    ),
    "tasks, cancelled, and a thread": of(
        "tasks", "POLL", "CLOSE", ACTS=1, CANCELS=1, CQS=1, **NO_SEND_NOR_SOLICITED
    ),
    "a thread polls beside a completion and a wait": of("tasks", "POLL", ACTS=1, CQS=1, **TWO),
    "trio": of("tasks", "POLL", "CLOSE", TRIO=1, ACTS=1, **NO_SEND_NOR_SOLICITED),
}

# By the rule that it lacks: the configuration that needs the rule, and whether the steps alone show
# that it is missing. They do not if something is not done that they would be, or if only a program
# can tell, which waits.
MUTANTS = {
    "no_poll_after_the_arm": ("tasks", True),
    "threads_do_not_poll_after_the_arm": ("threads, signals and interrupts", False),
    "timed_out_waiter_trusts_its_record": ("threads with a second program", False),
    "late_event_acked_twice": ("threads, resizing and closing", True),
    "late_event_is_not_looked_for": ("threads, resizing and closing", False),
    "signal_cleared_last": ("threads, signals and interrupts", False),
    "handler_keeps_the_role": ("threads, signals and interrupts", True),
    "poller_leaves_without_a_successor": ("threads, one of which leaves", True),
    "interrupt_leaves_with_its_waiter": ("threads, signals and interrupts", False),
    "resize_raises_no_event": ("threads, resizing and closing", True),
    "solicited_replaces_any": ("tasks and a thread", True),
    "poll_before_the_arm_counts": ("tasks and a thread", True),
    "full_poll_counts": ("a thread polls beside a completion and a wait", True),
    "left_queue_dropped_early": ("tasks and a thread", False),
    "what_is_left_wakes_nobody": ("tasks", False),
    "one_who_gives_up_trusts_the_record": ("tasks with a second program", False),
    "one_who_gives_up_wakes_nobody": ("tasks", False),
    "cancelled_claim_drops_its_completion": ("tasks", False),
    "resumed_overtakes": ("tasks and a thread", True),
    "engine_acks_too_many": ("tasks and a thread", True),
    "close_wakes_nobody": ("tasks and a thread", False),
    "resize_leaves_it_unarmed": ("tasks and a thread", True),
    "falling_asleep_counts_as_running": ("trio", True),
}
SEEDS = 10  # random runs of each configuration


def run(folder: Path, *command: object, status: int | None = 0) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done.stdout


def words_of(name: str, mutant: str | None) -> list[str]:
    config = CONFIGURATIONS[name]
    macros = [f"-D{word}={value}" for word, value in config.bounds.items()]
    return macros + ([f"-DMUTANT_{mutant}"] if mutant else [])


@dataclass(frozen=True)
class Verdict:
    broken: str | None  # the assertion that does not hold, or the cycle
    complete: bool  # all schedules were searched


def verify(folder: Path, name: str, *, mutant: str | None = None, cycles: bool = False) -> Verdict:
    """Search all schedules, up to the first in which an assertion does not hold."""
    model = MODEL / f"{CONFIGURATIONS[name].model}.pml"
    run(folder, "spin", *words_of(name, mutant), "-a", model)
    # A mutant is found soon: compiling is most of the work.
    level = "-O0" if mutant else "-O1"
    kind = "-DNP" if cycles else "-DSAFETY"
    limits = ["-DNOFAIR", f"-DMEMLIM={MEMORY}"]
    run(folder, "gcc", level, "-w", kind, *limits, "-o", "pan", "pan.c")
    # Each model judges by itself, when nothing is left to happen: -E.
    said = run(folder, "./pan", "-E", "-m1000000", "-w24", *(["-l"] if cycles else []))
    broken = re.search(r"(assertion violated|non-progress cycle) .*\(at depth", said)
    complete = "errors: 0" in said and not re.search("not completed|search depth too small", said)
    return Verdict(broken and broken[0], complete)


def steps(folder: Path, name: str, *options: object, mutant: str | None = None) -> Path:
    """Run the model, and return a file with the steps that it prints."""
    model = MODEL / f"{CONFIGURATIONS[name].model}.pml"
    said = run(MODEL, "spin", "-B", "-T", *options, *words_of(name, mutant), model, status=None)
    printed = re.findall(r"^ *(\w+(?: [0-9a-f]+){4})$", said, re.M)
    assert len(printed) > 5
    path = folder / "steps"
    path.write_text("\n".join([*printed, ""]))
    return path


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_property_holds_in_all_schedules(name: str, tmp_path: Path) -> None:
    assert verify(tmp_path, name) == Verdict(None, complete=True)


@pytest.mark.parametrize("name", ["threads with a second program", "tasks with a second program"])
def test_every_schedule_ends(name: str, tmp_path: Path) -> None:
    """So what holds at the end of each is not only not violated: it comes true."""
    assert verify(tmp_path, name, cycles=True) == Verdict(None, complete=True)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    """And the steps of the schedule that shows it are refused by the replay, if they can be."""
    name, is_visible = MUTANTS[mutant]
    assert verify(tmp_path, name, mutant=mutant).broken is not None
    trail = tmp_path / f"{CONFIGURATIONS[name].model}.pml.trail"
    path = steps(tmp_path, name, "-k", trail, mutant=mutant)
    run(tmp_path, sys.executable, MODEL / "replay.py", path, status=int(is_visible))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_replay_allows_what_the_model_does(name: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        path = steps(tmp_path, name, f"-n{seed}", "-u20000")
        run(tmp_path, sys.executable, MODEL / "replay.py", path)
