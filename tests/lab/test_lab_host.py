# SPDX-License-Identifier: MIT
"""The lab, from outside: run it on the host with `python3 -m pytest tests/lab`.

Each test boots a guest or two: what users rely on in the microVM and, where one was built, in the
kernel that is a process; the rest in that which the lab chooses.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uml

PROJECT = Path(__file__).resolve().parents[2]
LAB = str(PROJECT / "lab")
PATIENCE = 60
CACHE = Path(
    os.environ.get("CQNOTIFY_LAB_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cqnotify-lab")
)
ENGINES = {"microVM": "--vm", "process": "--uml"}
if not uml.present(CACHE):
    del ENGINES["process"]


@pytest.fixture(scope="session", autouse=True)
def all_is_set_up() -> None:
    subprocess.run([LAB, "--vm", "build"], check=True, cwd=PROJECT)
    assert lab("--vm", "run", "true").returncode == 0  # KVM has been tried after this


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The option for each of them."""
    return ENGINES[request.param]


def lab(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    settings: dict[str, object] = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE * 2}
    settings |= options
    if "input" in settings:
        del settings["stdin"]
    return subprocess.run([LAB, *words], capture_output=True, **settings)  # type: ignore[call-overload, no-any-return]


def shell(script: str, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab(*words, "run", "sh", "-c", script, **options)


def own_words(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    """What the lab said on stderr, without the line that is always there, the advice for machines
    on which no kernel was built, and the one that other runs on this machine bring."""
    usual = (", emulated", ", KVM", ", as a process", uml.ADVICE, "waiting for another ./lab")
    lines = result.stderr.decode().splitlines()
    return [s for s in lines if s.startswith("lab: ") and not any(word in s for word in usual)]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)


def until_it_boots(run: subprocess.Popen[bytes]) -> None:
    """All set-up is done, and it has said so on its stderr."""
    assert run.stderr
    while not re.search(rb"\bkernel \d", run.stderr.readline()):
        assert run.poll() is None


# ---- exit status -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 37", 37), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_exit_status_is_the_commands(engine: str, script: str, status: int) -> None:
    assert shell(f"ulimit -c 0; {script}", engine).returncode == status


def test_command_that_is_not_there_is_127_and_not_executable_is_126() -> None:
    assert lab("run", "no-such-command").returncode == 127
    assert lab("run", "/etc/passwd").returncode == 126


# ---- streams -----------------------------------------------------------------------------


def test_ten_megabytes_pass_unchanged_both_ways(engine: str) -> None:
    data = os.urandom(10_000_000)
    result = lab(engine, "run", "cat", input=data)
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(data).digest()


def test_stdout_and_stderr_are_not_mixed(engine: str) -> None:
    script = "for i in 1 2 3; do echo out; echo err >&2; done; test -t 1 || test -t 2"
    result = shell(script, engine)
    assert result.stdout == b"out\n" * 3
    assert result.stderr.endswith(b"err\n" * 3)
    assert result.returncode == 1


def test_empty_stdin_is_an_end_of_file(engine: str) -> None:
    assert shell("cat; echo done", engine).stdout == b"done\n"


def test_output_is_there_before_the_command_ends(engine: str) -> None:
    command = [LAB, engine, "run", "sh", "-c", "echo first; cat"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"second\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"second\n"
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_reader_that_goes_away_ends_the_writer(engine: str) -> None:
    script = f"set -o pipefail; {LAB} {engine} run yes | head -n 1"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert result.stdout == b"y\n"
    assert result.returncode == 128 + signal.SIGPIPE


def test_background_process_does_not_hold_the_lab() -> None:
    assert shell("sleep 1000 & echo gone").stdout == b"gone\n"


# ---- the environment ---------------------------------------------------------------------


def test_two_rdma_devices_carry_traffic_over_the_cable(engine: str) -> None:
    script = """
        cat /sys/class/infiniband/rxe?/ports/1/state
        tc qdisc add dev v0 root netem delay 3ms || exit 1
        for server in 0 1; do
            ibv_rc_pingpong -d rxe$server -g 0 -n 50 >/dev/null & pid=$!
            for try in $(seq 100); do   # until it listens
                grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1
            done
            ibv_rc_pingpong -d rxe$((1 - server)) -g 0 -n 50 localhost >/dev/null || exit 1
            wait $pid || exit 1
        done
        echo traffic"""
    result = shell(script, engine)
    assert result.stdout == b"4: ACTIVE\n4: ACTIVE\ntraffic\n", result.stderr


def test_unprivileged_user_of_the_guest_may_use_the_device(engine: str) -> None:
    script = "setpriv --reuid 65534 --clear-groups ibv_devinfo -d rxe0"
    assert shell(script, engine).returncode == 0


def test_environment_is_what_was_asked_for(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_GIVEN", "from the host")
    monkeypatch.setenv("LAB_NOT_GIVEN", "secret")
    script = 'echo "$LAB_SET|$LAB_GIVEN|$LAB_NOT_GIVEN|$CQNOTIFY_LAB|$CQNOTIFY_LAB_NETDEVS"'
    result = lab(engine, "run", "-e", "LAB_SET=a=b c", "-e", "LAB_GIVEN", "--", "sh", "-c", script)
    assert result.stdout == b"a=b c|from the host||vm|v0 v1\n"


def test_arguments_and_folder_are_kept(tmp_path: Path) -> None:
    words = ["a  b", "", "$HOME", "\N{SNOWMAN}\n", "--vm"]
    result = lab("run", "printf", r"<%s>", *words, cwd=PROJECT / "tests")
    assert result.stdout.decode() == "".join(f"<{word}>" for word in words)
    assert lab("run", "pwd", cwd=PROJECT / "tests").stdout.decode() == f"{PROJECT}/tests\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    path = PROJECT / f".lab-selftest-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def test_files_and_core_dumps_in_the_project_come_back(engine: str, folder: Path) -> None:
    script = "echo text >file; echo lost >/opt/lab-selftest; sh -c 'kill -SEGV $$'"
    assert shell(script, engine, cwd=folder).returncode == 139
    assert (folder / "file").read_text() == "text\n"
    assert not Path("/opt/lab-selftest").exists()
    cores = list(folder.glob("core.sh.*"))
    assert len(cores) == 1
    assert cores[0].read_bytes()[:4] == b"\x7fELF"


def test_time_counts_instructions_where_that_is_asked_for() -> None:
    """So the same work always takes as long, and waiting takes no time."""
    program = """
import os, time
def work(start):
    for _ in range(100000):
        pass
    return time.perf_counter_ns() - start
took = [work(time.perf_counter_ns()) for _ in range(10)][5:]
assert os.cpu_count() == 1
assert max(took) < 1.1 * min(took), took
time.sleep(500)
print("done")"""
    result = lab("--icount", "run", "python", "-c", program)
    assert result.stdout == b"done\n", result.stderr


def test_two_labs_run_beside_each_other(engine: str) -> None:
    command = [LAB, engine, "run", "sh", "-c", "sleep 2; ibv_devices | grep -c rxe"]
    pair = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=PATIENCE * 2)[0] for process in pair] == [b"2\n"] * 2


# ---- signals and terminals ---------------------------------------------------------------


@contextlib.contextmanager
def started(script: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has said "ready"."""
    with subprocess.Popen(
        [LAB, *words, "run", "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_reaches_the_command(engine: str, number: signal.Signals) -> None:
    script = f"trap 'exit 42' {number.value}; echo ready; while :; do sleep 0.1; done"
    with started(script, engine) as run:
        run.send_signal(number)
        assert run.wait(PATIENCE) == 42


def test_signal_that_is_not_handled_ends_the_command() -> None:
    with started("echo ready; sleep 1000") as run:
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE) == 128 + signal.SIGTERM


def test_second_interrupt_ends_everything_at_once(engine: str) -> None:
    script = "trap 'echo caught' INT; echo ready; while :; do sleep 0.1; done"
    with started(script, engine) as run:
        assert run.stdout
        run.send_signal(signal.SIGINT)
        assert run.stdout.readline() == b"caught\n"
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE) == 130
        assert time.monotonic() - begin < 2


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid for child in children for pid in (int(child), *descendants(int(child)))]


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_killed_lab_leaves_no_process_and_no_file(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # others write to /tmp meanwhile
    before = set(os.listdir("/dev/shm"))
    with started("echo ready; sleep 1000", engine) as run:
        pids = descendants(run.pid)
        assert pids
        run.kill()
        until(lambda: not any(map(running, pids)), "its guest has ended")
    assert set(os.listdir("/dev/shm")) <= before
    assert not list(tmp_path.iterdir())


def test_lab_ends_with_the_process_that_started_it(engine: str) -> None:
    script = f"{LAB} {engine} run sh -c 'echo ready; sleep 1000' & wait"
    with subprocess.Popen(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"ready\n"
        pids = descendants(parent.pid)
        assert len(pids) >= 2
        parent.kill()
        until(lambda: not any(map(running, pids)), "the lab has ended")


@contextlib.contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[int, Callable[[bytes], None]]]:
    """A lab on a pseudo-terminal; yields that and a function that awaits a text on it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(LAB, [LAB, *words])
    seen = b""

    def await_text(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([terminal], [], [], PATIENCE)[0], seen
            seen += os.read(terminal, 4096)
        seen = seen.partition(text)[2]

    try:
        yield terminal, await_text
        with contextlib.suppress(OSError):  # EIO: the lab has ended
            while select.select([terminal], [], [], PATIENCE)[0]:
                os.read(terminal, 4096)
    finally:
        os.close(terminal)  # that hangs it up
        os.waitpid(pid, 0)


def test_terminal_is_one_in_the_guest_with_its_size_and_keys(engine: str) -> None:
    script = "tty; read x; stty size; cat; echo status $?"
    with on_a_terminal(engine, "run", "bash", "-c", script) as (terminal, await_text):
        await_text(b"/dev/pts/0")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 123, 0, 0))
        time.sleep(0.5)  # the guest says nothing when it has taken the new size
        os.write(terminal, b"\r")
        await_text(b"33 123\r\n")
        os.write(terminal, b"key\r")
        await_text(b"key\r\nkey\r\n")  # the terminal's echo, and cat's: it runs
        os.write(terminal, b"\x04")
        await_text(b"status 0")


def test_interrupt_key_on_the_terminal_ends_the_command(engine: str) -> None:
    with on_a_terminal(engine, "run", "cat") as (terminal, await_text):
        await_text(b"lab: ")
        os.write(terminal, b"key\r")
        await_text(b"key\r\nkey\r\n")
        os.write(terminal, b"\x03")
        await_text(b"^C")


def test_shell_is_interactive_and_has_the_package(engine: str) -> None:
    with on_a_terminal(engine, "shell") as (terminal, await_text):
        await_text(b"(lab)")
        os.write(terminal, b"command -v python; exit\r")
        await_text(b"/venv-")
        await_text(b"exit")


def test_interrupt_from_the_terminal_reaches_a_command_without_one(engine: str) -> None:
    script = f"{LAB} {engine} run sh -c 'echo ready; exec sleep 1000' </dev/null | cat"
    script += "; echo ${PIPESTATUS[0]}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", f"trap : INT; {script}"])
    seen = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 4096):
            seen += chunk
            if chunk.startswith(b"ready"):
                os.write(terminal, b"\x03")
    os.waitpid(pid, 0)
    os.close(terminal)
    assert seen.endswith(b"130\r\n")


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
        (["--kernel", "./no/linux", "run", "true"], "./no/linux: there is no such file"),
        (["--mem", "99999999", "run", "true"], "too little memory"),
        (["--icount", "--accel", "kvm", "run", "true"], "it goes without --accel kvm"),
        (["--userland", "sarge", "run", "true"], "--userland is bookworm or trixie, not 'sarge'"),
        (["--userland", "trixie", "lint"], "--userland does not go with lint"),
        (["--userland", "trixie", "test", "--asan"], "--userland and --asan exclude each other"),
        (["--userland", "trixie", "--native", "run", "true"], "--userland needs the microVM"),
        (["--python", "/bin/false", "run", "true"], "/bin/false is not a Python"),
        (["kernels", "fetch", "/no/such.deb"], "no such suite or file: /no/such.deb"),
        (["kernels", "fetch", "nonsense"], "no such suite or file: nonsense"),
        (["test", "--asan", "--coverage"], "--asan and --coverage exclude each other"),
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
        children = descendants(pid)
        return [c for c in children if Path(f"/proc/{c}/comm").read_text().startswith("qemu")]

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
sys.path.insert(0, {str(PROJECT / "tests/lab")!r})
import driver, vm
options = [{option!r}]
def command(*arguments, original=vm.qemu_command):
    words = original(*arguments)
    words[words.index("-append") + 1] += " " + (options.pop() if options else "")
    return words
vm.qemu_command = command
sys.exit(driver.main())"""
    words = ["run", "--project", PROJECT, "--cache", CACHE, "--accel", "tcg", "--", "echo", "hello"]
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
    words = ["demo", "test", "bench", "run", "shell", "build", "lint", "docs", "selftest"]
    for word in [*words, "release", "kernels", "clean"]:
        assert f"./lab {word}" in text
    for variant in ("asan", "refleak", "coverage"):
        assert f"\n  --{variant} " in text


# ---- variants of the suite ---------------------------------------------------------------


def test_suite_runs_in_two_guests_as_one() -> None:
    # Of two files, each of which takes longer than the other guest's boot.
    files = ["tests/aio/test_aio_timing.py", "tests/aio/test_aio_failures.py"]
    result = lab("test", "-j", "2", "-v", *files, "-k", "no_cpu")
    assert result.returncode == 0, result.stderr.decode()
    output = result.stdout.decode()
    passed = re.search(r"=+ (\d+) passed(, \d+ deselected)? in [\d.]+s", output)
    assert passed, output
    assert len(re.findall(r"^\[[12]\] \[ *\d+%\] PASSED tests/", output, re.M)) == int(passed[1])
    for guest in "12":
        assert re.search(rf"^\[{guest}\] lab: .*kernel \d", result.stderr.decode(), re.M)
        assert re.search(rf"^\[{guest}\].*PASSED", output, re.M)


def test_what_reads_the_terminal_runs_in_one_guest_as_a_whole() -> None:
    result = lab("test", "-s", "-q", "tests/api/test_enums.py")
    assert result.returncode == 0, result.stderr.decode()
    assert b" passed in " in result.stdout
    assert len(own_words(result)) == 0


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--asan"], 0, ""),
        (["--refleak"], 0, " runs of "),
        (["--coverage"], 0, "csrc/module.c"),
        (["--coverage", "--fail-under", "100"], 1, "csrc/module.c"),
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
    command = [LAB, "test", "--asan", "-q", "tests/api/test_enums.py"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        until_it_boots(first)
        second = lab(*command[1:])
        assert second.returncode == 125
        assert own_words(second) == ["lab: another ./lab test --asan of this project is running"]
        assert first.wait(2 * PATIENCE) == 0


def test_debug_build_of_an_unknown_kind_is_refused() -> None:
    command = [sys.executable, "setup.py", "--name"]
    env = {**os.environ, "CQNOTIFY_DEBUG": "faults nonsense"}
    result = subprocess.run(command, capture_output=True, cwd=PROJECT, env=env, timeout=PATIENCE)
    assert result.returncode != 0
    assert b"CQNOTIFY_DEBUG knows asan, coverage, faults; not 'nonsense'." in result.stderr


def test_debug_build_keeps_nothing_of_a_file_that_has_gone(tmp_path: Path) -> None:
    """Of its folder, which stays from build to build, the lines that ran are counted."""
    shutil.copy(PROJECT / "setup.py", tmp_path)
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
    for name in ("asan-1", "refleak-1", "coverage-1", "venv-3.11-1", "kernels", "mine"):
        (cache / name).mkdir(parents=True)
    (cache / "asan-1.lock").touch()
    env = {**os.environ, "CQNOTIFY_LAB_CACHE": str(cache)}
    subprocess.run([project / "lab", "clean"], check=True, env=env, timeout=PATIENCE)
    assert [path.name for path in cache.iterdir()] == ["mine"]


def test_warm_start_takes_less_than_three_seconds_to_the_boot() -> None:
    """The best of three: other work on the machine must not fail it."""
    took = []
    for _ in range(3):
        begin = time.monotonic()
        with subprocess.Popen([LAB, "run", "true"], stderr=subprocess.PIPE) as run:
            until_it_boots(run)
            took.append(time.monotonic() - begin)
    assert min(took) < 3
