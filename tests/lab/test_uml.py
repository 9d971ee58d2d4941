# SPDX-License-Identifier: MIT
"""A kernel that runs as a process: see uml.py. What needs one is run where one has been built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab_runs import CACHE, LAB, PATIENCE, built, lab, speaking, until

from cqnotify.lab import uml


def in_uml(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab("--uml", "run", *words, **options)


@built
def test_input_that_is_taken_slowly_all_arrives() -> None:
    """A serial line that was full once would stay deaf."""
    program = (
        "import sys, time\nfor line in sys.stdin: time.sleep(0.02); print(len(line), flush=True)"
    )
    sizes = [500 + i * 977 % 20000 for i in range(60)]
    with subprocess.Popen(
        [LAB, "--uml", "run", "python3", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin
        assert process.stdout
        for size in sizes:  # each answered before the next is sent: the line is idle in between
            process.stdin.write(b"x" * size + b"\n")
            process.stdin.flush()
            assert int(process.stdout.readline()) == size + 1
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@built
def test_a_killed_lab_leaves_no_process() -> None:
    mark = f"3{os.getpid()}"  # seconds, and the name of our own sleep
    command = [LAB, "--uml", "run", "sh", "-c", f"echo begun; exec sleep {mark}"]
    with speaking(*command, said=b"begun\n") as process:
        folder = CACHE / "uml" / f"run-{process.pid}"
        assert folder.exists()
        process.kill()
    until(lambda: not processes_below(folder), "its kernel is gone")
    assert in_uml("true").returncode == 0  # and the next one tidies up
    assert not folder.exists()


def processes_below(folder: Path) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in lines.stdout.splitlines() if str(folder) in line]


@built
def test_a_kernel_that_others_have_built_is_named_by_its_path() -> None:
    path = uml.image(CACHE, uml.present(CACHE)[-1])
    result = lab("--kernel", f"../{path.parent.name}/linux", "run", "uname", "-r", cwd=path.parent)
    assert result.stdout.decode().strip() == uml.present(CACHE)[-1]
    assert f"kernel {path}, as a process" in result.stderr.decode()


@built
def test_its_cpu_is_as_fast_as_this_machine_says() -> None:
    """Programs that count cycles, as perftest's, ask /proc/cpuinfo for it."""
    said = in_uml("cat", "/proc/cpuinfo").stdout.decode()
    there = re.findall(r"^cpu MHz\t+: (\d+\.\d+)$", said, re.M)
    assert len(there) == bool(uml.frequency()) == said.count("model name")


@built
@pytest.mark.parametrize("release", uml.present(CACHE))
def test_random_numbers_are_there_at_once(release: str) -> None:
    series = release.rpartition(".")[0]
    program = "import os; os.getrandom(1, os.GRND_NONBLOCK)"
    command = ["--uml", "--kernel", series, "run", "python3", "-c", program]
    assert lab(*command).returncode == 0


def test_a_program_whose_memory_is_in_as_many_pieces_as_the_machine_allows_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first child has as many, since neighbours of other protection stay apart."""
    most = 2000
    program = f"""
import mmap, sys
kept = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ | i % 2 * mmap.PROT_WRITE) for i in range({most})]
print("ready", flush=True)
sys.stdin.read()"""
    monkeypatch.setattr(uml, "most_mappings", lambda: most)
    for text, found in ((program, True), ("print(flush=True); input()", False)):
        command = [sys.executable, "-c", text]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            why = uml.stuck(os.getpid())
            child.kill()
        assert ("sysctl vm.max_map_count=" in why if why else False) == found, why


@built
@pytest.mark.skipif(uml.most_mappings() > 100_000, reason="the guest has less memory than that")
def test_a_program_with_more_pieces_of_memory_than_the_machine_allows_is_ended() -> None:
    """It would hang: with every second page, no two can be mapped as one."""
    program = f"""
import mmap
memory = mmap.mmap(-1, {uml.most_mappings()} * 8400)
for at in range(0, len(memory), 8192):
    memory[at] = 1"""
    result = in_uml("python3", "-c", program)
    assert result.returncode == 125
    assert b"as root sysctl vm.max_map_count=" in result.stderr
