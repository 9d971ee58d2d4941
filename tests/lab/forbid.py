# SPDX-License-Identifier: MIT
"""System calls that fail with EPERM, as in a container that forbids them: `forbid.py COMMAND...`
runs a command without ptrace(2) and seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

# By number and first argument.
PTRACE = [(101, 0)]
SECCOMP = [(317, 1), (157, 22)]  # seccomp(2), and prctl(2) for the same

LIBC = ctypes.CDLL(None, use_errno=True)


def forbid(*calls: tuple[int, int]) -> None:
    """From now on these system calls fail with EPERM, with that argument."""
    load, equal, leave = 0x20, 0x15, 0x06
    code = []
    for number, first in calls:
        code += [(load, 0, 0, 0), (equal, 0, 3, number), (load, 0, 0, 16), (equal, 0, 1, first)]
        code += [(leave, 0, 0, 0x50001)]
    code += [(leave, 0, 0, 0x7FFF0000)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    program = struct.pack("@HP", len(code), ctypes.addressof(filters))
    assert LIBC.prctl(38, 1, 0, 0, 0) == 0
    assert LIBC.prctl(22, 2, program, 0, 0) == 0


if __name__ == "__main__":
    forbid(*PTRACE, *SECCOMP)
    os.execvp(sys.argv[1], sys.argv[1:])
