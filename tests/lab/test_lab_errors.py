# SPDX-License-Identifier: MIT
"""The lab's errors, each of them one clear line, and variants of the suite."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_runs import (
    CACHE,
    LAB,
    PATIENCE,
    PROJECT,
    descendants,
    lab,
    name_of,
    own_words,
    shell,
    until,
)

pytestmark = pytest.mark.usefixtures("all_is_set_up")


def until_it_boots(run: subprocess.Popen[bytes]) -> None:
    """All set-up is done, and it has said so on its stderr."""
    assert run.stderr
    while not re.search(rb"\bkernel \d", run.stderr.readline()):
        assert run.poll() is None


# ---- errors: one clear line --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run"], "COMMAND is missing"),
        ([], "a command is missing"),
        (["frobnicate"], "no command or option 'frobnicate'"),
        (["--mem", "lots", "run", "true"], "--mem wants a number"),
        (["--kernel", "5.3", "run", "true"], "no kernel 5.3 here; there are: 6.1"),
        (["--uml", "--cpus", "2", "run", "true"], "--uml has one CPU, not 2"),
        (["--uml", "--kernel", "6.7", "run", "true"], "./lab kernels build 7.2"),
        (["--uml", "--icount", "run", "true"], "it cannot be combined with --uml"),
        (["--virtual-time", "--icount", "run", "true"], "--icount has a clock of its own"),
        (["--icount", "--virtual-time", "run", "true"], "--icount has a clock of its own"),
        (
            ["--virtual-time", "--accel", "tcg", "run", "true"],
            "--virtual-time is for a kernel that",
        ),
        (
            ["--accel", "tcg", "--virtual-time", "run", "true"],
            "--virtual-time is for a kernel that",
        ),
        (["--virtual-time", "--native", "run", "true"], "--virtual-time is for a kernel that runs"),
        (["--device", "mlx5", "run", "true"], "--device is rxe or siw, not 'mlx5'"),
        (["--device"], "--device wants a value"),
        (["--accel", "tcg", "--device", "siw", "run", "true"], "as a process have (--uml)"),
        (["--kernel", "./no/linux", "run", "true"], "./no/linux: there is no such file"),
        (["--mem", "99999999", "run", "true"], "too little memory"),
        (["--icount", "--accel", "kvm", "run", "true"], "it cannot be combined with --accel kvm"),
        (["--userland", "sarge", "run", "true"], "--userland is bookworm or trixie, not 'sarge'"),
        (["--userland", "trixie", "lint"], "--userland does not go with lint"),
        (["--userland", "trixie", "test", "--asan"], "--userland and --asan exclude each other"),
        (["--userland", "trixie", "--native", "run", "true"], "--userland needs the microVM"),
        (["--python", "/bin/false", "run", "true"], "/bin/false is not a Python"),
        (["kernels", "fetch", "/no/such.deb"], "no such suite or file: /no/such.deb"),
        (["kernels", "fetch", "nonsense"], "no such suite or file: nonsense"),
        (["kernels", "build", "5.10"], "build is for 6.1 or 7.2, not '5.10'"),
        (["kernels", "make"], "kernels knows only 'fetch' and 'build'"),
        (["test", "--asan", "--refleak"], "--asan and --refleak exclude each other"),
        (["test", "--asan", "--tsan"], "--asan and --tsan exclude each other"),
        (["--python", "3.13", "test", "--tsan"], "--tsan goes with --python 3.14t or 3.15t only"),
        (["test", "--asan", "--coverage", "--refleak"], "--asan-coverage and --refleak exclude"),
        (["--refleak", "run", "true"], "--refleak goes with test only"),
        (["test", "--coverage", "--fail-under"], "--fail-under wants a value"),
        (["test", "--coverage", "--fail-under", "most"], "--fail-under wants a number"),
        (["test", "-j", "many"], "-j wants a number, not 'many'"),
        (["-j", "2", "run", "true"], "-j goes with test only"),
        (["--icount", "test", "-j", "2"], "-j: the tests run in one place with --native"),
        (["test", "--asan", "--fail-under", "95"], "--fail-under goes with --coverage only"),
        (["test", "--refleak", "--python", "/usr/bin/python3"], "is not a debug build of Python"),
    ],
)
def test_failure_of_the_lab_is_125_and_says_why(words: list[str], text: str) -> None:
    result = lab(*words)
    assert result.returncode == 125
    assert text in result.stderr.decode()
    assert len(own_words(result)) == 1, result.stderr.decode()


def test_guest_that_does_not_come_up_is_booted_once_more() -> None:
    result = lab("--boot-timeout", "1", "--accel", "tcg", "run", "true")
    assert result.returncode == 125
    late = "lab: the microVM did not come up within 1 s"
    assert own_words(result) == [late, "lab: booting it once more", late]


def test_guest_whose_emulator_crashes_as_it_boots_is_booted_once_more() -> None:
    def emulators(pid: int) -> list[int]:
        return [child for child in descendants(pid) if name_of(child).startswith("qemu")]

    command = [LAB, "--accel", "tcg", "run", "echo", "hello"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        until_it_boots(run)
        until(lambda: emulators(run.pid), "QEMU runs")
        os.kill(emulators(run.pid)[0], signal.SIGSEGV)
        out, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, out) == (0, b"hello\n")
    assert b"lab: the microVM ended unexpectedly (QEMU by SIGSEGV)\n" in err
    assert b"lab: booting it once more\n" in err


def lab_whose_first_guest_has(option: str) -> subprocess.CompletedProcess[str]:
    """Runs `echo hello`; the first kernel that boots has one more option."""
    program = f"""
import sys
from cqnotify.lab import driver, vm
options = [{option!r}]
def command(*arguments, original=vm.qemu_command):
    words = original(*arguments)
    words[words.index("-append") + 1] += " " + (options.pop() if options else "")
    return words
vm.qemu_command = command
sys.exit(driver.main(sys.argv[1:]))"""
    words = [
        "run",
        "--writable",
        PROJECT,
        "--cache",
        CACHE,
        "--accel",
        "tcg",
        "--",
        "echo",
        "hello",
    ]
    return subprocess.run(
        [sys.executable, "-B", "-c", program, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("rdinit=/none", "the microVM ended unexpectedly (Kernel panic - not syncing: VFS: "),
        ("tsc_early_khz=200000", "the microVM's clock went "),
    ],
)
def test_guest_that_panics_as_it_boots_or_has_a_wrong_clock_is_booted_once_more(
    option: str, reason: str
) -> None:
    result = lab_whose_first_guest_has(option)
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr
    assert f"lab: {reason}" in result.stderr
    assert result.stderr.endswith("\nlab: booting it once more\n")


def test_emulated_kernel_is_told_the_frequency_of_this_machines_tsc() -> None:
    result = lab("--accel", "tcg", "run", "sh", "-c", "cat /proc/cmdline; dmesg | grep 'tsc: De'")
    told = re.search(rb" tsc_early_khz=(\d+)", result.stdout)
    # A line for the CPU's frequency, which is measured, and one for the TSC's if that is another.
    believed = re.findall(rb"Detected (\d+)\.(\d{3}) MHz", result.stdout)
    assert told, result.stdout
    assert believed, result.stdout
    assert told[1] == b"".join(believed[-1])


def test_command_that_takes_too_long_is_124() -> None:
    result = lab("--timeout", "6", "run", "sleep", "1000")
    assert result.returncode == 124
    assert own_words(result) == ["lab: the command took longer than 6 s"]


def test_guest_that_panics_is_reported_with_its_last_words(engine: str) -> None:
    result = shell("echo c >/proc/sysrq-trigger; sleep 1000", engine)
    assert result.returncode == 125
    panic = "Kernel panic - not syncing: sysrq triggered crash"
    assert own_words(result) == [f"lab: the microVM ended unexpectedly ({panic}). Its last words:"]


def test_help_names_every_command() -> None:
    text = lab("--help").stdout.decode()
    words = ["demo", "test", "bench", "run", "shell", "build", "lint", "analyze", "docs"]
    for word in [*words, "selftest", "mutants", "release", "kernels", "clean"]:
        assert f"./lab {word}" in text
    for variant in ("asan", "tsan", "valgrind", "refleak", "coverage"):
        assert f"\n  --{variant} " in text


# ---- variants of the suite ---------------------------------------------------------------


def test_a_python_is_built_without_the_lock_of_the_set_up(tmp_path: Path) -> None:
    command = [LAB, "--python", "3.15t", "build"]
    settings: dict[str, Any] = {"stderr": subprocess.PIPE, "start_new_session": True}
    env = {**os.environ, "CQNOTIFY_LAB_CACHE": str(tmp_path)}
    with open(tmp_path / "cpython-3.15t.lock", "w") as built_elsewhere:
        fcntl.flock(built_elsewhere, fcntl.LOCK_EX)
        with subprocess.Popen(command, env=env, **settings) as waiting:
            try:
                assert waiting.stderr
                said = b"lab: waiting for another ./lab to finish its Python 3.15t\n"
                assert waiting.stderr.readline() == said
                with open(tmp_path / "lock") as others:
                    fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.killpg(waiting.pid, signal.SIGKILL)


def functions_of_the_lab() -> dict[str, str]:
    text = Path(LAB).read_text()
    return dict(re.findall(r"^(\w+)\(\) \{(?: #[^\n]*)?\n(.*?)^\}", text, re.M | re.S))


def test_each_pip_has_the_lock_of_the_set_up() -> None:
    # Two pips in one environment break it, and each ./lab of a project has the same.
    functions = functions_of_the_lab()
    locked, _, _ = functions["set_up"].rpartition("exec 9>&-")
    piping = {name for name, body in functions.items() if re.search(r"-m (pip|venv)\b", body)}
    assert piping >= {"make_venv", "build_package", "install_tools"}
    within = {"install_group": "install_tools"}
    for name in piping:
        assert re.search(rf"\b{within.get(name, name)}\b", locked), name
        callers = [caller for caller, body in functions.items() if re.search(rf"\b{name}\b", body)]
        assert callers == [within.get(name, "set_up")], name


def test_an_environment_gets_what_it_lacks(tmp_path: Path) -> None:
    # It outlives the project's versions: of its groups some are new, others want other packages.
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    python.chmod(0o755)
    lock = tmp_path / "tests/lab/lock.txt"
    lock.parent.mkdir(parents=True)
    install = functions_of_the_lab()["install_group"]
    has_group = re.search(r"^has_group\(\) .*", Path(LAB).read_text(), re.M)
    assert has_group
    script = f"""set -eu
        fingerprint() {{ sha256sum <"$1"; }}
        logged() {{ "${{@:2}}"; }}
        {has_group[0]}
        install_group() {{\n{install}}}
        install_group . "$1" """

    def groups_after(group: str) -> list[str]:
        subprocess.run(["bash", "-c", script, "lab", group], cwd=tmp_path, check=True)
        return re.findall(r"--group (\w+)", (tmp_path / "asked").read_text())

    lock.write_text("ruff==1")
    assert groups_after("lint") == ["lint"]
    assert groups_after("lint") == ["lint"]
    assert groups_after("mutants") == ["lint", "mutants"]
    lock.write_text("ruff==2")
    assert groups_after("lint") == ["lint", "mutants", "lint"]


def test_suite_runs_in_two_guests_as_one() -> None:
    # Which guest takes which file is a matter of time: see test_shards.py.
    files = ["tests/aio/test_aio.py", "tests/aio/test_aio_failures.py"]
    result = lab("test", "-j", "2", "-v", *files, "-k", "no_cpu")
    assert result.returncode == 0, result.stderr.decode()
    output = result.stdout.decode()
    passed = re.search(r"=+ (\d+) passed(, \d+ deselected)? in [\d.]+s", output)
    assert passed, output
    assert len(re.findall(r"^\[[12]\] \[ *\d+%\] PASSED tests/", output, re.M)) == int(passed[1])
    for guest in "12":
        assert re.search(rf"^\[{guest}\] lab: .*kernel \d", result.stderr.decode(), re.M)


def test_what_reads_the_terminal_runs_in_one_guest_as_a_whole() -> None:
    result = lab("test", "-s", "-q", "tests/api/test_enums.py")
    assert result.returncode == 0, result.stderr.decode()
    assert b" passed in " in result.stdout
    assert len(own_words(result)) == 0


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        pytest.param(["--asan"], 0, "", marks=pytest.mark.release),
        pytest.param(["--tsan"], 0, "", marks=pytest.mark.release),
        pytest.param(["--valgrind"], 0, "memcheck reports nothing", marks=pytest.mark.release),
        pytest.param(["--refleak"], 0, " runs of ", marks=pytest.mark.release),
        pytest.param(["--coverage"], 0, "csrc/module.c", marks=pytest.mark.release),
        # That of .ci/run.
        (["--coverage", "--asan", "--fail-under", "100"], 1, "csrc/module.c"),
    ],
)
def test_variant_runs_the_tests_on_a_build_of_its_own(
    words: list[str], status: int, text: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (PROJECT / "cqnotify").glob("*.so")}
    result = lab("test", *words, "-q", "tests/api/test_enums.py", timeout=10 * PATIENCE)
    assert result.returncode == status, result.stderr.decode()
    output = result.stdout.decode()
    assert text in output
    assert " passed in " in output
    after = {path: path.stat().st_mtime_ns for path in (PROJECT / "cqnotify").glob("*.so")}
    assert before == after


def test_two_runs_of_a_variant_do_not_share_its_files() -> None:
    command = [LAB, "test", "--asan", "--coverage", "-q", "tests/api/test_enums.py"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        until_it_boots(first)
        first.send_signal(signal.SIGSTOP)  # so it is running, however long the second one takes
        try:
            second = lab(*command[1:])
        finally:
            first.send_signal(signal.SIGCONT)
        assert second.returncode == 125
        (said,) = own_words(second)
        assert said == "lab: another ./lab test --asan-coverage of this project is running"
        assert first.wait(2 * PATIENCE) == 0


def test_debug_build_of_an_unknown_kind_is_refused() -> None:
    command = [sys.executable, "setup.py", "--name"]
    env = {**os.environ, "CQNOTIFY_DEBUG": "faults nonsense"}
    result = subprocess.run(command, capture_output=True, cwd=PROJECT, env=env, timeout=PATIENCE)
    assert result.returncode != 0
    assert b"CQNOTIFY_DEBUG knows asan, tsan, coverage, faults; not 'nonsense'." in result.stderr


def test_debug_build_keeps_nothing_of_a_file_that_has_gone(tmp_path: Path) -> None:
    """Of its folder, which stays from build to build, the lines that ran are counted."""
    (tmp_path / "cqnotify").mkdir()
    for name in ("setup.py", "README.md", "cqnotify/__init__.py"):  # what setup.py reads
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "csrc/base").mkdir(parents=True)
    for name in ("module.c", "base/gone.c"):
        (tmp_path / "csrc" / name).touch()
    build = [sys.executable, "setup.py", "-q", "build_ext"]
    env = {**os.environ, "CQNOTIFY_DEBUG": "coverage"}
    notes = tmp_path / "build/debug/csrc"
    for stays in (True, False):
        if not stays:
            (tmp_path / "csrc/base/gone.c").unlink()
        subprocess.run(build, check=True, cwd=tmp_path, env=env, timeout=PATIENCE)
        assert (notes / "module.gcno").exists()
        assert (notes / "base/gone.gcno").exists() == stays


def test_clean_removes_what_the_lab_made_and_nothing_else(tmp_path: Path) -> None:
    project, cache = tmp_path / "project", tmp_path / "cache"
    project.mkdir()
    shutil.copy(LAB, project)
    made = ("asan-1", "tsan-1", "valgrind-1", "refleak-1", "coverage-1", "venv-3.11-1", "kernels")
    for name in (*made, "mine"):
        (cache / name).mkdir(parents=True)
    (cache / "asan-1.lock").touch()
    env = {**os.environ, "CQNOTIFY_LAB_CACHE": str(cache)}
    subprocess.run([project / "lab", "clean"], check=True, env=env, timeout=PATIENCE)
    assert [path.name for path in cache.iterdir()] == ["mine"]
