# SPDX-License-Identifier: MIT
"""Programs that run in several interpreters of one process."""

from __future__ import annotations

import re
import sys

import pytest
from support import python

# What the programs share: interpreters by whichever module this Python has.
PRELUDE = """
import sys, threading, textwrap
try:
    import _interpreters as interpreters
    def create(own_gil):
        return interpreters.create("isolated" if own_gil else "legacy", reqrefs=False)
except ImportError:
    import _xxsubinterpreters as interpreters
    def create(own_gil):
        return interpreters.create(isolated=own_gil)

def run(i, code):
    failure = interpreters.run_string(i, textwrap.dedent(code))  # 3.12 and before raise instead
    assert failure is None, failure

def in_threads(ids, code, beside=lambda: None):
    failed = []
    def work(i):
        try:
            run(i, code)
        except BaseException as e:
            failed.append(e)
    threads = [threading.Thread(target=work, args=[i]) for i in ids]
    for t in threads: t.start()
    beside()
    for t in threads: t.join()
    assert not failed, failed

def states():
    # Each module state of the core has a page that the kernel wipes in a forked child. Neighbours
    # are one mapping. Those of a newer libc, for random numbers, the kernel may also drop.
    pages = 0
    with open("/proc/self/smaps") as f:
        for line in f:
            if line.startswith("Size:"):
                size = int(line.split()[1]) // 4
            elif line.startswith("VmFlags:") and " wf" in line and " dp" not in line:
                pages += size
    return pages
"""

OWN_GIL = pytest.mark.parametrize(
    "own_gil", [False, True] if sys.version_info >= (3, 12) else [False]
)


# What Python's own `threading` says where an interpreter without a GIL ends in a thread that is not
# its own, and what asyncio's debug mode says on a slow machine.
NOT_OURS = re.compile(
    r"Exception ignored in: <function _DeleteDummyThreadOnDel\.__del__ .*\nTraceback .*\n"
    r'  File ".*/threading\.py", .*\nTypeError: .*\n'
    r"|Executing <.*> took \d+\.\d+ seconds\n"
)


def program(code: str) -> str:
    out = python("-X", "dev", "-W", "ignore", "-c", PRELUDE + code)
    assert (out.returncode, NOT_OURS.sub("", out.stderr)) == (0, ""), out
    return out.stdout
