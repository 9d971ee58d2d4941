# SPDX-License-Identifier: MIT
"""`cqnotify chaos`: each fault reaches the program, and comes again with its seed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import DEADLINE

from cqnotify import Context, WCStatus
from cqnotify.check.chaos import FAULTS, HARMLESS, injected, parse_faults
from cqnotify.check.report import Logs

pytestmark = pytest.mark.usefixtures("ctx")
SEEDS = range(3)


def chaos(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cqnotify", "chaos", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


def faults_of(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.rpartition("faults: ")[2].strip()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_program_survives_what_is_harmless(program: Path, seed: int) -> None:
    done = chaos("--seed", seed, "--rate", 3, "--", program, "right")
    assert done.returncode == 0, done.stderr
    assert "error:" not in done.stderr
    assert "eintr" in faults_of(done)


def test_the_same_seed_makes_the_same_faults(program: Path) -> None:
    # Which polls find something is a matter of time, so not the polls.
    command = ("--faults", "eintr", "--", program, "right")
    said = [faults_of(chaos("--seed", seed, *command)) for seed in (5, 5, 6, 7, 8)]
    assert said[0] == said[1]
    assert len(set(said)) > 1


def test_completions_come_in_part_and_in_order(program: Path) -> None:
    done = chaos("--faults", "split,hold", "--", program, "batch")
    assert done.returncode == 0, done.stderr
    assert {"0", "3"} <= set(done.stdout.split())
    assert "split" in faults_of(done)
    assert "hold" in faults_of(done)


def test_a_poll_before_the_arm_alone_is_found(program: Path) -> None:
    options = ["--faults", "hold", "--rate", "2", "--", str(program), "poll-once"]
    command = [sys.executable, "-m", "cqnotify", "chaos", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE, process.terminate)
        deadline.start()
        assert process.stderr is not None
        assert any("[lost-wakeup]" in line for line in process.stderr)
        deadline.cancel()
        process.terminate()
        assert "seed 0: exit code 143, errors: 1; faults: hold " in process.stderr.read()


def test_of_many_seeds_the_one_with_the_fewest_faults_is_named(program: Path) -> None:
    done = chaos("--seed", 4, "--seeds", 3, "--faults", "eintr", "--", program, "eintr")
    assert done.returncode == 1, done.stderr
    assert "3 seeds, 3 failed" in done.stderr
    assert "the fewest faults: seed 4: exit code 1; faults: eintr 1" in done.stderr
    again = f"cqnotify chaos --seed 4 --faults eintr -- {program} eintr"
    assert done.stderr.splitlines()[-1] == f"cqnotify chaos: again: {again}"


def test_an_assumption_fails_by_some_seeds_and_the_shortest_repeats_it(
    program: Path, tmp_path: Path
) -> None:
    """The program takes a send's completion for proof that the peer's can be polled."""
    out = tmp_path / "runs.json"
    options = ("--faults", "hold", "--rate", 12, "--timeout", int(DEADLINE))
    done = chaos("--json", out, "--seeds", 12, *options, "--", program, "assume")
    assert done.returncode == 1, done.stderr
    runs = json.loads(out.read_text())["runs"]
    failed = [run for run in runs if run["failed"]]
    assert 0 < len(failed) < len(runs) == 12
    assert all(run["code"] == 1 for run in failed)
    fewest = min(sum(run["faults"].values()) for run in failed)
    assert fewest < max(sum(run["faults"].values()) for run in failed)
    shortest = next(run for run in failed if sum(run["faults"].values()) == fewest)
    *_, named, again = done.stderr.splitlines()
    assert f"the fewest faults: seed {shortest['seed']}: exit code 1; faults: hold" in named
    command = shlex.split(again.removeprefix("cqnotify chaos: again: cqnotify chaos "))
    repeated = chaos("--json", out, *command)
    assert repeated.returncode == 1
    assert "failed: drain(p->recvs) == 1" in repeated.stderr
    assert json.loads(out.read_text())["runs"] == [shortest]


def test_a_signal_taken_for_a_failure_is_found(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    done = chaos(
        "--json", out, "--seed", 0, "--faults", "eintr", "--rate", 2, "--", program, "eintr"
    )
    assert done.returncode == 1
    assert "Interrupted system call" in done.stderr
    assert faults_of(done) == "eintr 1"
    (run,) = json.loads(out.read_text())["runs"]
    assert run["faults"] == {"eintr": 1}
    assert (run["seed"], run["code"], run["errors"]) == (0, 1, 0)
    assert (run["timed_out"], run["failed"]) == (False, True)


def test_a_list_is_refused_in_its_midst(program: Path) -> None:
    done = chaos("--faults", "post", "--rate", 2, "--", program, "list")
    assert done.returncode == 0, done.stderr
    results = [line.split() for line in done.stdout.splitlines()]
    assert {code for code, _ in results} == {"0", "12"}
    assert all(posted == "4" for code, posted in results if code == "0")
    assert {posted for code, posted in results if code == "12"} <= {"0", "1", "2", "3"}


def test_a_send_fails_and_those_after_it_are_flushed(program: Path) -> None:
    statuses = set()
    for seed in range(4):
        done = chaos("--seed", seed, "--faults", "fail", "--rate", 4, "--", program, "fail")
        assert done.returncode == 0, done.stderr
        first, then = done.stdout.splitlines()
        statuses.add(first)
        assert then == str(int(WCStatus.WR_FLUSH_ERR))
        assert faults_of(done) == "fail 1"
    assert len(statuses) > 1


@pytest.mark.parametrize(("fault", "what"), [("register", "mr"), ("create", "cq")])
def test_objects_are_refused(program: Path, fault: str, what: str) -> None:
    said = []
    for seed in range(6):
        done = chaos("--seed", seed, "--faults", fault, "--rate", 20, "--", program, "refused")
        said.append(done.stdout)
        assert faults_of(done) == f"{fault} 1"
    assert any(f"{what} Cannot allocate memory" in text for text in said)


def test_asynchronous_events_come(ctx: Context) -> None:
    source = (
        "from cqnotify import *\n"
        "with Context() as ctx:\n"
        "    for _ in range(20):\n"
        "        if event := ctx.try_get_async_event():\n"
        "            print(event.event_type.name)\n"
    )
    done = chaos("--faults", "async", "--rate", 2, "--", sys.executable, "-c", source)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) > 1
    assert set(done.stdout.split()) <= {
        *["PORT_ERR", "PORT_ACTIVE", "LID_CHANGE", "GID_CHANGE", "PKEY_CHANGE", "SM_CHANGE"],
        "DEVICE_FATAL",
    }


@pytest.mark.parametrize("fault", ["arm", "destroy"])
def test_the_program_sees_it(ctx: Context, tmp_path: Path, fault: str) -> None:
    source = (
        "from cqnotify import *\n"
        "with Context() as ctx:\n"
        "    for _ in range(20):\n"
        "        channel = CompletionChannel(ctx)\n"
        "        cq = CQ(ctx, 4, channel=channel)\n"
        "        try:\n"
        "            cq.req_notify()\n"
        "        except OSError as e:\n"
        "            print(e.errno)\n"
        "        cq.close()\n"
    )
    done = chaos("--faults", fault, "--rate", 2, "--", sys.executable, "-c", source)
    assert done.returncode == 0, done.stderr
    assert faults_of(done).startswith(fault)
    assert set(done.stdout.split()) == ({"12"} if fault == "arm" else set())


def test_the_exit_code_is_the_programs() -> None:
    assert chaos("--", "sh", "-c", "exit 9").returncode == 9


def test_what_takes_too_long_fails() -> None:
    done = chaos("--timeout", 1, "--seeds", 1, "--", "sleep", "1000")
    assert done.returncode == 1
    assert "seed 0: it took too long" in done.stderr


def test_faults_are_named() -> None:
    assert parse_faults("harmless") == HARMLESS
    assert parse_faults("all") == FAULTS
    assert parse_faults("late,split") == ("split", "late")
    with pytest.raises(ValueError, match="unknown fault 'x'; there are: split, "):
        parse_faults("x")
    assert chaos("--faults", "x", "--", "true").returncode == 2


def test_a_line_that_was_cut_is_no_fault(tmp_path: Path) -> None:
    line = '{"kind": "chaos", "fault": "late", "number": 2, "call": 5, "time": 1, "tid": 1}\n'
    (tmp_path / "1.0.log").write_text(line + line[:20])
    (tmp_path / "2.0.log").write_text(line)
    logs = Logs(tmp_path)
    logs.read()
    assert injected(logs) == {"late": 4}
