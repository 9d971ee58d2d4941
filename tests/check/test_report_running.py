# SPDX-License-Identifier: MIT
"""cqnotify.check.running: streams, signals and exit codes of a program that is observed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from report_support import (
    check_command,
    compile_c,
    finding,
    process,
    program,
    stand_in,
    text,
    withdrawn,
)
from support import DEADLINE, until

from cqnotify.check import _programs, running
from cqnotify.check._log import Finding, Logs
from cqnotify.check._programs import why_not_observed
from cqnotify.check.running import RunError, observed_environment, run_observed

pytestmark = pytest.mark.usefixtures("no_observer")
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_that_of_the_program(code: int, tmp_path: Path) -> None:
    assert run_observed(["sh", "-c", f"exit {code}"], Logs(tmp_path)) == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_one_that_a_signal_kills_has_the_exit_code_of_shells(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = ["sh", "-c", f"ulimit -c 0; kill -{number.value} $$"]
    assert run_observed(command, Logs(tmp_path)) == 128 + number


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("./gone", 127, "No such file or directory"),
        ("no-such-program", 127, "No such file or directory"),
        ("", 127, "No such file or directory"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_as_by_env(
    name: str, code: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"^cannot run {re.escape(name)}: {why}$") as e:
        run_observed([name], Logs(tmp_path))
    assert e.value.code == code


def test_a_script_without_an_interpreter_is_one_of_the_shell(
    tmp_path: Path, capfd: Capture
) -> None:
    path = tmp_path / "script"
    path.write_text("echo $1 $2\nexit 5\n")
    path.chmod(0o755)
    assert run_observed([str(path), "a", "b"], Logs(tmp_path)) == 5
    assert capfd.readouterr().out == "a b\n"


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"#!/no/such/interpreter\n")
    path.chmod(0o755)
    with pytest.raises(RunError, match="No such file") as e:
        run_observed([str(path)], Logs(tmp_path))
    assert e.value.code == 127


def test_the_program_is_looked_up_in_its_own_path(tmp_path: Path) -> None:
    path = program(tmp_path, then="sys.exit(9)")
    env = {"PATH": f"/nowhere:{tmp_path}"}
    assert run_observed([Path(path).name], Logs(tmp_path), environment=env) == 9


def test_the_environment_names_the_library_the_folder_and_the_records(tmp_path: Path) -> None:
    env = observed_environment(tmp_path, environment={"A": "b", "CQNOTIFY_TRACE": "1"})
    assert env == {"A": "b", "LD_AUDIT": stand_in(), "CQNOTIFY_CHECK": str(tmp_path)}
    env = observed_environment("here", environment={}, timeline_records=100)
    assert env["CQNOTIFY_TRACE"] == "100"
    assert env["CQNOTIFY_CHECK"] == os.path.abspath("here")


@pytest.mark.parametrize("there", [False, True])
def test_other_libraries_of_ld_audit_stay(there: bool) -> None:
    before = f"/other.so:{stand_in()}" if there else "/other.so"
    env = observed_environment("here", environment={"LD_AUDIT": before})
    assert env["LD_AUDIT"] == f"/other.so:{stand_in()}"


def test_a_missing_observer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(running, "EXTENSION_SUFFIXES", [".gone.so"])
    with pytest.raises(RunError, match=r"^the observer, _observer\.gone\.so, is not in /"):
        run_observed(["true"], Logs(tmp_path))


def test_the_signals_that_python_ignores_are_not_ignored_in_the_program(
    tmp_path: Path, capfd: Capture
) -> None:
    assert run_observed(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"], Logs(tmp_path)) == 0
    blocked, ignored = (int(n, 16) for n in re.findall(r"\t(\w+)$", capfd.readouterr().out, re.M))
    assert blocked == 0
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_the_mask_and_the_handlers_are_as_before(tmp_path: Path) -> None:
    def state() -> object:
        numbers = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return mask, [signal.getsignal(number) for number in numbers]

    before = state()
    run_observed(["true"], Logs(tmp_path))
    assert state() == before


def test_findings_are_given_while_the_program_runs(tmp_path: Path) -> None:
    """It ends only when its findings were seen."""
    path = program(
        tmp_path,
        process(),
        finding(),
        then=(
            f"while not os.path.exists({str(tmp_path / 'one')!r}): time.sleep(0.01)\n"
            f"log({text(withdrawn(), finding(number=2))!r})\n"
            f"while not os.path.exists({str(tmp_path / 'three')!r}): time.sleep(0.01)\n"
            f"log({text(finding(number=3))!r})"
        ),
    )
    seen: list[tuple[int, bool]] = []

    def on_finding(finding: Finding) -> None:
        seen.append((finding.number, finding.withdrawn))
        (tmp_path / ("one" if len(seen) == 1 else "three")).touch()

    logs = tmp_path / "logs"
    logs.mkdir()
    assert run_observed([path], Logs(logs), on_finding=on_finding) == 0
    assert sorted(seen) == [(1, False), (1, True), (2, False), (3, False)]


def test_an_error_of_the_reader_ends_the_program(tmp_path: Path) -> None:
    path = program(tmp_path, process(), finding(), then="time.sleep(1000)")

    def on_finding(finding: Finding) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_observed([path], Logs(tmp_path), on_finding=on_finding)


# ---- signals and terminals --------------------------------------------------------------------

# It prints each signal that it gets; SIGTERM ends it.
SIGNALS = """\
def got(number, frame):
    # print() may be what the signal came into.
    os.write(1, f"{signal.Signals(number).name}\\n".encode())
    if number == signal.SIGTERM:
        sys.exit(5)
for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), got)
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_signals_that_are_sent_to_us_are_passed_on(tmp_path: Path) -> None:
    path = program(tmp_path, then=SIGNALS)
    with subprocess.Popen(check_command(path), stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline().startswith("ready")
        for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM"):
            ours.send_signal(getattr(signal, name))
            assert ours.stdout.readline() == f"{name}\n"
        assert ours.wait(DEADLINE) == 5


class OnTerminal:
    """A command with a terminal of its own, in a session of its own."""

    def __init__(self, command: list[str]) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.execvp(command[0], command)
            finally:
                os._exit(99)
        self.shown = ""

    def until(self, words: str) -> None:
        while words not in self.shown:
            assert select.select([self.master], [], [], DEADLINE)[0], self.shown
            self.shown += os.read(self.master, 65536).decode()

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait(self, options: int = 0) -> int:
        return os.waitpid(self.pid, options)[1]

    def close(self) -> None:
        os.close(self.master)


def test_ctrl_c_reaches_the_program_once_and_we_wait_for_it(tmp_path: Path) -> None:
    path = program(tmp_path, then=SIGNALS)
    terminal = OnTerminal(check_command(path))
    terminal.until("ready")
    for _ in range(3):
        terminal.shown = ""
        terminal.type("\x03")
        terminal.until("SIGINT\r\n")
    os.kill(terminal.pid, signal.SIGTERM)
    terminal.until("SIGTERM")
    terminal.until("was in no program")
    assert terminal.shown.count("SIGINT") == 1
    assert os.waitstatus_to_exitcode(terminal.wait()) == 5
    terminal.close()


def test_ctrl_z_stops_both_and_they_go_on(tmp_path: Path) -> None:
    path = program(tmp_path, then="print('ready', flush=True)\nprint('got', input())")
    # A group of a session's leader with a shell as its parent: else Ctrl-Z is ignored.
    shell = ["sh", "-c", 'set -m; "$@"; echo stopped $?; fg; echo ended $?', "sh"]
    terminal = OnTerminal([*shell, *check_command(path)])
    terminal.until("ready")
    terminal.type("\x1a")
    terminal.until(f"stopped {128 + signal.SIGTSTP}")
    terminal.type("words\n")
    terminal.until("got words")
    terminal.until("ended 0")
    assert os.waitstatus_to_exitcode(terminal.wait()) == 0
    terminal.close()


def test_the_program_is_in_the_foreground_of_our_terminal(tmp_path: Path) -> None:
    path = program(
        tmp_path,
        then="print(os.isatty(0), os.tcgetpgrp(0) == os.getpgrp() == os.getpgid(os.getppid()))",
    )
    terminal = OnTerminal(check_command(path))
    terminal.until("True True")
    terminal.until("was in no program")
    assert "\033[" not in terminal.shown.partition("cqnotify check:")[0]
    assert os.waitstatus_to_exitcode(terminal.wait()) == 0
    terminal.close()


# ---- programs that cannot be observed ---------------------------------------------------------


def test_ordinary_programs_can_be_observed(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env -S python3 -u\n")
    for path in ("/bin/sh", sys.executable, str(script), "/etc/passwd", "/no/such/program"):
        assert why_not_observed(path) is None


def test_a_static_program_is_noted_before_it_runs(tmp_path: Path, capfd: Capture) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 4; }\n")
    path = compile_c(source, tmp_path / "static", "-static")
    notes: list[str] = []
    assert run_observed([str(path)], Logs(tmp_path), note=notes.append) == 4
    why = f"{path} is statically linked: no dynamic linker loads the observer"
    assert notes == [f"cannot observe this program: {why}"]
    script = tmp_path / "script"
    script.write_text(f"#!{path}\n")
    script.chmod(0o755)
    assert run_observed([str(script)], Logs(tmp_path)) == 4
    assert capfd.readouterr().err == f"cqnotify: cannot observe this program: {why}\n"


def elf(bits: int = 2, machine: int | None = None, interpreter: bytes = b"/lib64/ld.so") -> bytes:
    """An ELF file of 64 bits with one segment; of 32 bits its header."""
    if machine is None:
        machine = struct.unpack_from("<H", Path("/proc/self/exe").read_bytes()[:32], 18)[0]
    ident = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    header = struct.pack("<HHIQQQIHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1) + bytes(6)
    name = interpreter + b"\0"
    segment = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    return ident + header + segment + name


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (elf(), 0o755, None),
        (elf(interpreter=b"/lib/ld-musl-x86_64.so.1"), 0o755, "is linked to musl"),
        (elf(bits=1), 0o755, "is a 32-bit program"),
        (elf(machine=0x1234), 0o755, "is for another architecture"),
        (elf(), 0o4755, "is setuid"),
        (elf(), 0o2755, "is setgid"),
        (elf(), 0o2745, None),  # a lock, in old times
        (elf()[:80], 0o755, None),
    ],
)
def test_why_a_program_cannot_be_observed(
    content: bytes, mode: int, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program"
    path.write_bytes(content)
    path.chmod(mode)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(os, "getgid", lambda: 12345)
    said = why_not_observed(str(path))
    assert said == why or (why is not None and said is not None and f"{path} {why}" in said)


def test_file_capabilities_are_privileges_of_whoever_has_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program"
    path.write_bytes(elf())
    path.chmod(0o755)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    said = why_not_observed(str(path))
    assert said is not None
    assert f"{path} has file capabilities" in said
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert why_not_observed(str(path)) is None


@pytest.mark.parametrize("name", _programs.CLEANERS)
def test_sudo_and_its_like_are_told_the_other_order(name: str) -> None:
    said = why_not_observed(f"/usr/bin/{name}")
    assert said is not None
    assert f"run {name} cqnotify check -- PROGRAM" in said


def test_scripts_that_run_each_other_end(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(f"#!{path}\n")
    path.chmod(0o755)
    assert why_not_observed(str(path)) is None


def test_a_child_that_goes_on_does_not_keep_us(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = ["sh", "-c", f"(until [ -e {done} ]; do sleep 0.01; done; rm {done}) & exit 3"]
    try:
        assert run_observed(command, Logs(tmp_path)) == 3
    finally:
        done.touch()
    until(lambda: not done.exists(), "it ends")
