# SPDX-License-Identifier: MIT
"""The program: `cqnotify`, and `python -m cqnotify`."""

import os
import signal
import stat
import sys


def main() -> int:
    """Run the command line as this process's program, and return the exit code.

    Ctrl-C is expected already while the command line is imported.
    """
    try:
        for fd in (1, 2):
            _let_block(fd)
        from .cli import main as run
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return run()


def _let_block(fd: int) -> None:
    """Let writes to this descriptor wait for a slow reader: in non-blocking mode Python loses data.

    The mode belongs to an open file that others may share, so a pipe or a terminal is opened again.
    Where that cannot be, as for sockets, the mode is changed.
    """
    try:
        if os.get_blocking(fd) or stat.S_ISREG(os.fstat(fd).st_mode):
            return
    except OSError:  # it is closed
        return
    try:  # also without a reader, for which opening a pipe would wait
        reopened = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        os.set_blocking(fd, True)
        return
    os.set_blocking(reopened, True)
    os.dup2(reopened, fd)
    os.close(reopened)


if __name__ == "__main__":
    sys.exit(main())
