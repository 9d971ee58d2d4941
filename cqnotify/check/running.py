# SPDX-License-Identifier: MIT
"""Runs a program with the observer in it, and reads its log meanwhile.

The observer is a shared library, which the dynamic linker loads into the program and its children
because of LD_AUDIT: see rtld-audit(7). CQNOTIFY_CHECK names the folder of the logs, and
CQNOTIFY_TRACE the number of records of a timeline.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from ._log import Finding, Logs
from ._programs import find_program, why_not_observed

__all__ = ["CANNOT_EXECUTE", "NOT_FOUND", "RunError", "observed_environment", "run_observed"]

CANNOT_EXECUTE, NOT_FOUND = 126, 127  # the exit codes of env(1)
INTERVAL: Final = 0.2  # seconds between two readings of the logs

# Python ignores these two; the program gets them as it would from a shell.
RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
PASSED_ON: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
WAITED_FOR: Final = (*PASSED_ON, signal.SIGCHLD)


class RunError(Exception):
    """The program cannot be run; `code` is the exit code that env(1) has for it."""

    def __init__(self, message: str, code: int = CANNOT_EXECUTE) -> None:
        super().__init__(message)
        self.code = code


def run_observed(
    command: Sequence[str],
    logs: Logs,
    *,
    environment: Mapping[str, str] | None = None,
    timeline_records: int | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    note: Callable[[str], None] | None = None,
    timeout: float | None = None,
    on_timeout: Callable[[], None] | None = None,
) -> int:
    """Run a program under the observer and return its exit code: 128 + n if signal n killed it.

    The program has the streams, the terminal and the process group of this process. Ctrl-C and
    Ctrl-Z reach both; signals that another process sends to this one are passed on. Must be called
    by the main thread.

    Args:
        command: the program, looked up in PATH, and its arguments.
        logs: of the folder that the program writes to; they are read while it runs, and at the end.
        environment: of the program; by default that of this process.
        timeline_records: capacity of a timeline, which is recorded if this is not None.
        on_finding: is called for each finding while the program runs, and again if it is withdrawn.
        note: is called with a line about a program that cannot be observed; by default it is
            printed on stderr.
        timeout: end a program that runs for so many seconds, with SIGTERM, and SIGKILL after as
            many again.
        on_timeout: is called when it is ended.

    Raises RunError if the program cannot be run.
    """
    env = observed_environment(
        logs.folder, environment=environment, timeline_records=timeline_records
    )
    try:
        path = find_program(command[0], env)
    except OSError as e:
        raise _run_error(command[0], e) from None
    if why := why_not_observed(path):
        (note or _print_note)(f"cannot observe this program: {why}")

    def read() -> None:
        for finding in logs.read():
            if on_finding is not None:
                on_finding(finding)

    with _signals_blocked() as before:
        child = _spawn(path, command, env, before)
        status = _wait(child, _limited(child, read, timeout, on_timeout))
    read()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def observed_environment(
    folder: str | os.PathLike[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeline_records: int | None = None,
) -> dict[str, str]:
    """Return the environment of a program to observe, whose logs go to `folder`."""
    env = dict(os.environ if environment is None else environment)
    libraries = [library for library in env.get("LD_AUDIT", "").split(":") if library]
    observer = find_observer()
    if observer not in libraries:
        libraries.append(observer)
    env["LD_AUDIT"] = ":".join(libraries)
    env["CQNOTIFY_CHECK"] = os.path.abspath(folder)
    env.pop("CQNOTIFY_TRACE", None)
    if timeline_records is not None:
        env["CQNOTIFY_TRACE"] = str(timeline_records)
    return env


def find_observer() -> str:
    """Return the path of the observer's library."""
    package = Path(__file__).resolve().parent.parent
    for suffix in EXTENSION_SUFFIXES:
        path = package / f"_observer{suffix}"
        if path.exists():
            if ":" in str(path):
                raise RunError(f"LD_AUDIT cannot name {path}: a colon separates its entries")
            return str(path)
    raise RunError(
        f"the observer, _observer{EXTENSION_SUFFIXES[0]}, is not in {package}: install cqnotify "
        "again"
    )


def _print_note(line: str) -> None:
    print(f"cqnotify: {line}", file=sys.stderr, flush=True)


def _run_error(name: str, error: OSError) -> RunError:
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    code = NOT_FOUND if missing else CANNOT_EXECUTE
    return RunError(f"cannot run {name}: {error.strerror}", code)


def _spawn(path: str, command: Sequence[str], env: Mapping[str, str], mask: set[int]) -> int:
    """Start the program with this signal mask; return its process id."""
    arguments = [command[0], *command[1:]]
    for file, argv in ((path, arguments), ("/bin/sh", ["sh", path, *command[1:]])):
        try:
            return os.posix_spawn(file, argv, env, setsigmask=mask, setsigdef=RESTORED)
        except OSError as e:
            # A script without an interpreter's name is one of the shell, as for execvp().
            if e.errno != errno.ENOEXEC or file != path:
                raise _run_error(command[0], e) from None
    raise AssertionError  # pragma: no cover


@contextmanager
def _signals_blocked() -> Iterator[set[int]]:
    """Block the signals that _wait() takes; yield the mask that was."""
    # The kernel may drop a blocked signal that is ignored, and an ignored SIGCHLD may be inherited.
    # The other ignored signals stay so, here and in the program, as nohup(1) wants it.
    on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wanted = [n for n in WAITED_FOR if signal.getsignal(n) != signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield {int(n) for n in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if on_child is not None:
            signal.signal(signal.SIGCHLD, on_child)


def _limited(
    child: int,
    read: Callable[[], None],
    timeout: float | None,
    on_timeout: Callable[[], None] | None,
) -> Callable[[], None]:
    """Return `read`, which also ends the child that has run for too long."""
    if timeout is None:
        return read
    ends = [(timeout, signal.SIGTERM), (2 * timeout, signal.SIGKILL)]
    began = time.monotonic()

    def read_and_end() -> None:
        read()
        if ends and time.monotonic() - began >= ends[0][0]:
            os.kill(child, ends.pop(0)[1])
            if on_timeout is not None:
                on_timeout()

    return read_and_end


def _wait(child: int, read: Callable[[], None]) -> int:
    """Wait for the program; pass signals on to it, and call `read` now and then."""
    try:
        while True:
            found = signal.sigtimedwait(WAITED_FOR, INTERVAL)
            if found is not None and found.si_signo in PASSED_ON:
                # Those of the terminal come from the kernel, and go to the whole group. One that
                # the program sent to its group reached it, too.
                if found.si_code <= 0 and found.si_pid != child:
                    os.kill(child, found.si_signo)
                continue
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            read()
    except BaseException:  # of `read`; the program goes on without a reader otherwise
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
