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
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_runs import (
    LAB,
    PATIENCE,
    PROJECT,
    descendants,
    lab,
    on_signal,
    running,
    shell,
    speaking,
    until,
)

pytestmark = pytest.mark.usefixtures("all_is_set_up")


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
    with speaking(*command, said=b"first\n", stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
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


def started(script: str, *words: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A run that has said "ready"."""
    return speaking(LAB, *words, "run", "bash", "-c", script, said=b"ready\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_reaches_the_command(engine: str, number: signal.Signals) -> None:
    command = on_signal(number, "raise SystemExit(42)")
    with speaking(LAB, engine, "run", *command, said=b"ready\n") as run:
        run.send_signal(number)
        assert run.wait(PATIENCE) == 42


def test_signal_that_is_not_handled_ends_the_command() -> None:
    with started("echo ready; sleep 1000") as run:
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE) == 128 + signal.SIGTERM


def test_second_interrupt_ends_everything_at_once(engine: str) -> None:
    command = on_signal(signal.SIGINT, "print('caught', flush=True); signal.pause()")
    with speaking(LAB, engine, "run", *command, said=b"ready\n") as run:
        assert run.stdout
        run.send_signal(signal.SIGINT)
        assert run.stdout.readline() == b"caught\n"
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE) == 130


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
    with speaking("bash", "-c", script, said=b"ready\n") as parent:
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
    wait = "until [ \"$(stty size)\" = '33 123' ]; do sleep 0.1; done"
    script = f"tty; read x; {wait}; echo resized; cat; echo status $?"
    with on_a_terminal(engine, "run", "bash", "-c", script) as (terminal, await_text):
        await_text(b"/dev/pts/0")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 123, 0, 0))
        os.write(terminal, b"\r")
        await_text(b"resized\r\n")
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
        while b"ready\r\n" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while chunk := os.read(terminal, 4096):
            seen += chunk
    os.waitpid(pid, 0)
    os.close(terminal)
    assert seen.endswith(b"130\r\n")
